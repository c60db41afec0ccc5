"""Settings as people write them: YAML, flags and mappings accept and refuse the same, and say why in sentences."""

import json

import pytest
import yaml

from ratchet.config import RunConfig
from ratchet.config.config_text import build, read_file
from ratchet.config.setting_words import full_key, keys, short_keys
from ratchet.errors import InvalidSetting


def refusal(settings, flags=None):
    with pytest.raises(InvalidSetting) as caught:
        build(settings, flags)
    return str(caught.value)


def from_yaml(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return build(read_file(path))


def nested(key, value):
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


# key, what is written in YAML and as a flag, the same value in Python, accepted
WRITTEN = [
    ("rl.rounds", "6", 6, True),
    ("rl.rounds", "full", "full", True),
    ("rl.rounds", "0", 0, False),
    ("rl.rounds", "6.0", 6.0, False),
    ("rl.rounds", "true", True, False),
    ("rl.rounds", "six", "six", False),
    ("rl.rounds", "1_0", "1_0", False),
    ("seed", "010", 10, True),
    ("seed", "-1", -1, False),
    ("learning_rate", "1e-4", 1e-4, True),
    ("learning_rate", "0.001", 0.001, True),
    ("learning_rate", "1e-3", 0.001, True),
    ("learning_rate", "1", 1, False),
    ("learning_rate", ".nan", float("nan"), False),
    ("rl.temperature", ".5", 0.5, True),
    ("rl.temperature", "1", 1, True),
    ("rl.temperature", ".inf", float("inf"), False),
    ("rl.batch_size", "null", None, True),
    ("rl.batch_size", "none", "none", True),
    ("limits.time_hours", "none", "none", True),
    ("limits.time_hours", "0", 0, False),
    ("rl.dynamic_sampling", "off", "off", True),
    ("rl.dynamic_sampling", "none", "none", False),
    ("reward.format_bonus", "off", "off", True),
    ("reward.format_bonus", "none", "none", False),
    ("reward.format_bonus", "false", False, False),
    ("prompt.few_shot_examples", "3", 3, True),
    ("prompt.few_shot_examples", '[{"user": "a", "assistant": "b"}]', [{"user": "a", "assistant": "b"}], True),
    ("prompt.few_shot_examples", '[{"user": "a"}]', [{"user": "a"}], False),
    ("prompt.template_options", "{enable_thinking: false}", {"enable_thinking": False}, True),
    ("prompt.template_options", "[1]", [1], False),
    ("revision", "abc123", "abc123", True),
    ("model", "tiny", "tiny", True),
    ("device", "cpu", "cpu", True),
    ("device", "gpu", "gpu", False),
    ("rl.loss", "dapo", "dapo", True),
    ("rl.loss", "ppo", "ppo", False),
]


@pytest.mark.parametrize(("key", "text", "value", "accepted"), WRITTEN, ids=[f"{row[0]} {row[1]}" for row in WRITTEN])
def test_flags_yaml_and_mappings_accept_and_refuse_the_same(key, text, value, accepted, tmp_path):
    *path, leaf = key.split(".")
    written = (
        "".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate(path)) + f"{'  ' * len(path)}{leaf}: {text}"
    )
    ways = [
        lambda: build({}, {key: text}),
        lambda: from_yaml(tmp_path, written),
        lambda: build(nested(key, value)),
    ]
    if accepted:
        first, *others = [way() for way in ways]
        assert all(other == first for other in others)
        return
    messages = set()
    for way in ways:
        with pytest.raises(InvalidSetting) as caught:
            way()
        assert caught.value.field.startswith(key.split(".")[0])
        messages.add(str(caught.value))
    assert len(messages) == 1, messages


SENTENCES = [
    ({"rl": {"rounds": 0}}, "Rounds (rl.rounds) is 0; it must be at least 1 or 'full'."),
    ({"rl": {"top_p": 1.5}}, "Top-p (rl.top_p) is 1.5; it must be at most 1."),
    ({"rl": {"temperature": 0}}, "Temperature (rl.temperature) is 0; it must be at least 0.01."),
    ({"optimizer": {"beta1": 1}}, "Beta 1 (optimizer.beta1) is 1; it must be below 1."),
    ({"rl": {"temperature": "hot"}}, 'Temperature (rl.temperature) is "hot"; it must be a number.'),
    ({"seed": 1.5}, "Seed (seed) is 1.5; it must be a whole number."),
    ({"seed": True}, "Seed (seed) is true; it must be a whole number."),
    ({"model": ""}, 'Base model (model) is ""; it must be a text that is not empty.'),
    ({"model": 5}, "Base model (model) is 5; it must be a text."),
    ({"rl": {"temperature": float("nan")}}, "Temperature (rl.temperature) is NaN; it must be a finite number."),
    ({"rl": {"loss": "ppo"}}, "Loss (rl.loss) is \"ppo\"; it must be 'grpo', 'dapo', 'dr_grpo', 'gspo' or 'cispo'."),
    ({"device": "gpu"}, 'Device (device) is "gpu"; what it can be: auto, cpu, cuda, cuda:N or mps;'),
    ({"rl": None}, "rl is null; it must be a section with settings in it."),
    ({"rl": 5}, "rl is 5; it must be a section with settings in it."),
    ({"data": {"source": "boxed"}}, "Dataset (data.path) is missing. Give it a value."),
    (
        {"data": {"path": "a"}},
        "data.source is missing; it must be one of math_pairs, gsm8k, boxed, deepmath, dataset, reasoning_gym.",
    ),
    (
        {"data": {"source": "web"}},
        'data.source is "web"; it must be one of math_pairs, gsm8k, boxed, deepmath, dataset, reasoning_gym.',
    ),
    (
        {"verifier": {"kind": "judge"}},
        'verifier.kind is "judge", which is never a reward: it needs a model that judges',
    ),
    ({"verifier": {"kind": "guess"}}, 'verifier.kind is "guess"; it must be one of math_pairs, final_number, math'),
    ({"data": {"source": "gsm8k", "pairs": 2}}, "Pairs (data.pairs) does not go with data.source gsm8k."),
    (
        {"verifier": {"kind": "math_pairs", "require_boxed": True}},
        "Require a box (verifier.require_boxed) does not go with verifier.kind math_pairs.",
    ),
    (
        {"verifier": {"kind": "math", "require_boxed": "yes"}},
        'Require a box (verifier.require_boxed) is "yes"; it must be true or false.',
    ),
    (
        {"prompt": {"few_shot_examples": 17}},
        "Few-shot examples (prompt.few_shot_examples) is 17; it must be at most 16 or",
    ),
    (
        {"prompt": {"few_shot_examples": [{"user": "a", "assistant": "b"}, {"user": "a"}]}},
        "Few-shot examples (prompt.few_shot_examples), entry 2, assistant is missing.",
    ),
    (
        {"prompt": {"template_options": {"thinking": None}}},
        "Chat template options (prompt.template_options), thinking is null; it must be true or false or a",
    ),
    (
        {"prompt": {"template_options": 1}},
        "Chat template options (prompt.template_options) is 1; it must be a mapping.",
    ),
    ({"rl": {"batch_size": 13}}, "Batch size is 13, which is not a multiple of Answers per prompt (8)."),
    ({"data": {"source": "math_pairs", "smallest": 9}}, "Smallest number is 9 and Largest number is 9"),
    ({"nonsense": 1}, "There is no setting nonsense. See ratchet train --help for all of them."),
    ({"rl": {"round": 1}}, "There is no setting rl.round. Did you mean rl.rounds? See ratchet train --help"),
    ({"model": {1, 2}}, "model holds a set, which is neither text, number, true/false, list nor mapping."),
    ({"rl": {"rounds": 1j}}, "rl.rounds holds a complex, which is neither"),
]


@pytest.mark.parametrize(("settings", "sentence"), SENTENCES, ids=[sentence[:40] for _, sentence in SENTENCES])
def test_what_is_wrong_is_said_with_label_value_and_limit(settings, sentence):
    message = refusal(settings)
    assert sentence in message
    assert "Input should be" not in message


def test_of_a_value_that_may_be_a_number_or_a_list_only_what_was_meant_is_found_wrong():
    assert refusal({"prompt": {"few_shot_examples": [{"user": "a"}]}}) == (
        "Few-shot examples (prompt.few_shot_examples), entry 1, assistant is missing. Give it a value."
    )


def test_every_wrong_setting_is_named_once():
    message = refusal({"rl": {"rounds": 0, "answers_per_prompt": 1}, "seed": -1})
    assert [message.count(label) for label in ("Rounds (", "Answers per prompt (", "Seed (")] == [1, 1, 1]


def test_a_long_value_is_shortened():
    assert len(refusal({"prompt": {"system_prompt": "x" * 30_000}})) < 300


@pytest.mark.parametrize("key", ["rl.rounds", "rounds"])
def test_a_setting_is_found_by_its_dotted_key_and_by_a_name_that_one_section_has(key):
    assert build({}, {key: "3"}).rl.rounds == 3
    assert build({key: 3}).rl.rounds == 3


def test_every_setting_is_found_by_its_dotted_key():
    assert all(full_key(key) == key for key in keys())


def test_every_short_name_means_one_setting():
    in_full = ("watch.", "sft.", "dpo.")
    for leaf, key in short_keys().items():
        if leaf != "start_from":
            assert key == leaf or [k for k in keys() if k.endswith(f".{leaf}") and not k.startswith(in_full)] == [key]


def test_a_setting_shared_with_another_objective_or_the_watch_metric_is_rls_or_the_verifiers_own():
    assert full_key("epochs") == "rl.epochs"
    assert full_key("metric") == "verifier.metric"
    assert full_key("sft.epochs") == "sft.epochs"


def test_what_a_run_starts_from_goes_by_one_word(tmp_path):
    assert from_yaml(tmp_path, "start_from: r1").start_from.adapter == "r1"
    assert from_yaml(tmp_path, "start_from: {adapter: r1}").start_from.adapter == "r1"
    assert build({"start_from": "r1"}, {"start_from": "r2"}).start_from.adapter == "r2"


def test_a_name_that_several_sections_have_means_the_one_at_the_top_or_none():
    assert full_key("seed") == "seed"
    assert full_key("data.seed") == "data.seed"


def test_an_ambiguous_name_is_refused_with_the_names_in_full(monkeypatch):
    found = {"a.size": [], "b.size": []}
    monkeypatch.setattr("ratchet.config.setting_words.keys", lambda: found)
    monkeypatch.setattr("ratchet.config.setting_words.short_keys", short_keys.__wrapped__)
    with pytest.raises(InvalidSetting, match=r"Setting size could mean a\.size or b\.size\. Write it in full\."):
        full_key("size")


def test_an_unknown_flag_says_what_was_meant_and_how_to_list_all():
    assert refusal({}, {"ronds": "3"}) == (
        "There is no setting ronds. Did you mean rl.rounds? See ratchet train --help for all of them."
    )


def test_flags_are_laid_over_a_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("seed: 3\nrl:\n  rounds: 5\n  loss: dapo\n")
    config = build(read_file(path), {"rounds": "7"})
    assert (config.seed, config.rl.rounds, config.rl.loss) == (3, 7, "dapo")


@pytest.mark.parametrize(
    "settings", [{"rl": {"rounds": 5}, "rounds": 6}, {"rounds": 5, "rl.rounds": 6}, {"rounds": 6, "rl": {"rounds": 5}}]
)
def test_a_setting_given_twice_under_two_names_is_refused(settings):
    assert refusal(settings) == "Setting rl.rounds is given twice. Leave one of them out."


def test_a_section_and_a_dotted_key_of_it_go_together():
    assert build({"rounds": 5, "rl": {"loss": "dapo"}}) == build({"rl": {"loss": "dapo"}, "rl.rounds": 5})


def test_a_text_setting_takes_a_flag_as_it_stands():
    for text in ("[x]", "1", "true", "none", "", "a: b", "#"):
        assert build({}, {"system_prompt": text}).prompt.system_prompt == text


def test_settings_stored_as_json_are_read_back_as_a_file(tmp_path):
    config = build({"rl": {"rounds": 3, "temperature": 0.6}, "model": "tiny"}).resolved()
    path = tmp_path / "config.json"
    path.write_text(config.model_dump_json(indent=2))
    assert build(read_file(path)) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rl: [", "is not valid YAML at line 1"),
        ("[" * 20_000, "is not valid YAML at line 1: it is nested more than 100 deep"),
        ("".join(" " * depth + "a:\n" for depth in range(2_000)), "it is nested more than 100 deep"),
        ("a: b: c", "is not valid YAML at line 1"),
        ("seed: 1\nseed: 2\n", "seed is given twice"),
        ("- 1", "holds no settings"),
        ("", "holds no settings"),
        ("5", "holds no settings"),
        ("!!python/object:os.system {}", "is not valid YAML"),
        ("\x00", "is not valid YAML"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused_by_name(text, said, tmp_path):
    with pytest.raises(InvalidSetting) as caught:
        from_yaml(tmp_path, text)
    assert said in str(caught.value)
    assert "run.yaml" in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_is_refused_by_name(tmp_path):
    with pytest.raises(InvalidSetting, match="No such file"):
        read_file(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidSetting, match=r"bytes\.yaml is not valid YAML"):
        read_file(tmp_path / "bytes.yaml")


def test_reading_settings_changes_nothing_for_others_who_read_yaml():
    assert yaml.safe_load("a: off") == {"a": False}


def test_the_defaults_are_settings_too():
    assert build({}) == RunConfig()
    assert build(json.loads(RunConfig().model_dump_json())) == RunConfig()


def circle():
    content = []
    content.append(content)
    return content


@pytest.mark.parametrize(("settings", "flags"), [({"model": circle()}, {}), ({}, {"rl.rounds": "&a [*a]"})])
def test_a_value_that_contains_itself_is_refused_in_words(settings, flags):
    with pytest.raises(InvalidSetting, match="contains itself"):
        build(settings, flags)


def test_a_file_whose_alias_names_itself_is_refused_in_words(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("data: &a\n  source: *a\n")
    with pytest.raises(InvalidSetting):
        build(read_file(path))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bleu", "overlap"),
        ("ROUGE-L", "overlap"),
        ("rouge_1", "overlap"),
        ("chrF", "overlap"),
        ("llm-as-a-judge", "a model that judges"),
        ("LLM judge", "a model that judges"),
        ("BERTScore", "another model's embeddings"),
        ("perplexity", "another model's embeddings"),
        ("macro F1", "a whole set of answers"),
        ("pass@k", "a whole set of answers"),
    ],
)
def test_a_measure_that_needs_a_judge_or_a_whole_set_is_refused_with_the_reason(name, reason):
    for verifier, what in (({"kind": name}, "verifier.kind"), ({"kind": "qa", "metric": name}, "verifier.metric")):
        said = refusal({"verifier": verifier})
        assert said.startswith(f"{what} is {json.dumps(name)}, which is never a reward: ")
        assert reason in said
    assert reason in refusal({"verifier": {"kind": "math", "metric": name}})  # a kind without a choice of metrics


@pytest.mark.parametrize("name", ["nothing", "mapping", "bluegrass", "token_f2", ""])
def test_any_other_name_is_refused_with_what_there_is(name):
    assert "it must be one of math_pairs, final_number, math, numeric, qa," in refusal({"verifier": {"kind": name}})
    said = refusal({"verifier": {"kind": "qa", "metric": name}})
    assert said.endswith("it must be 'normalized_exact_match' or 'token_f1'.")


def test_the_parts_of_a_composite_are_refused_by_number():
    def parts(*verifiers):
        return {"verifier": {"kind": "composite", "parts": [{"verifier": verifier} for verifier in verifiers]}}

    assert refusal(parts({"kind": "qa"}, {"kind": "composite"})).startswith(
        'verifier.parts, entry 2, verifier.kind is "composite"; it must be one of math_pairs,'
    )
    assert ", composite" not in refusal(parts({"kind": "qa"}, {"kind": "guess"}))
    assert "a model that judges" in refusal(parts({"kind": "qa"}, {"kind": "judge"}))
    assert refusal(parts({"kind": "qa", "metric": "x"}, {"kind": "qa"})).startswith(
        'Parts (verifier.parts), entry 1, verifier, qa, metric is "x"; it must be'
    )
    assert refusal(parts({"kind": "qa"})).endswith("it must be at least 2 entries.")


SCHEMA = {"type": "object", "properties": {"a.b": {"type": "number", "minimum": 0.5}}}


def test_a_json_schema_is_given_as_schema_everywhere(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "verifier:\n  kind: structured_json\n  schema:\n    type: object\n    properties:\n"
        "      a.b: {type: number, minimum: 0.5}\n"
    )
    config = build(read_file(path))
    assert config.verifier.json_schema == SCHEMA
    assert config == build({"verifier": {"kind": "structured_json", "schema": SCHEMA}})
    assert config == build({}, {"kind": "structured_json", "schema": json.dumps(SCHEMA)})
    stored = json.loads(config.resolved().model_dump_json())
    assert stored["verifier"]["schema"] == SCHEMA
    assert build(stored) == config.resolved()
    assert build({}, {"kind": "structured_json", "schema": "none"}).verifier.json_schema is None
    assert "There is no setting verifier.json_schema" in refusal(
        {"verifier": {"kind": "structured_json", "json_schema": {}}}
    )


def test_half_a_unicode_character_is_refused_by_key_and_never_quoted(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text('verifier: {kind: custom, metric: m, source: "secret \\ud800"}\n')
    assert refusal(read_file(path)) == "Setting verifier.source holds half a Unicode character. Correct it."
    with pytest.raises(InvalidSetting, match=r"^Setting prompt.system_prompt holds half a Unicode character."):
        build({}, {"system_prompt": "secret \udcff"})
    path.write_text('prompt: {system_prompt: "\\ud83d\\ude00"}\n')  # both halves, escaped each for itself
    assert build(read_file(path)).prompt.system_prompt == "\N{GRINNING FACE}"


def test_settings_of_the_usual_source_need_not_name_it():
    assert build({"data": {"heldout": 0}}).data.heldout == 0
    assert build({}, {"data.largest": "5"}).data.source == "math_pairs"
    assert "data.source is missing" in refusal({"data": {"path": "rows.jsonl"}})


def test_what_is_filled_in_of_a_start_is_no_start_by_itself():
    assert "Start from names no adapter" in refusal({"start_from": {"run": "r1"}})
    assert "it must be a text of another form" in refusal({"start_from": {"adapter": "a", "sha256": "zz"}})
