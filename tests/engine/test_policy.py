"""The policy: its adapter on disk and in memory, the reference, and models that cannot be had."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file, save_file

from ratchet.config import LoraSettings, RunConfig
from ratchet.engine import policy as policy_module
from ratchet.engine.policy import (
    chosen_device,
    load_chat,
    load_policy,
    refuse_mixture_of_experts,
)
from ratchet.errors import InvalidSetting, ModelUnavailable, OutOfMemory
from ratchet.models import model_files
from ratchet.models.model_files import locate, model_config

from .models import ARCHITECTURES, EOS, TURN, character_tokenizer, random_ids, tiny_model, tiny_policy

IDS = torch.tensor([random_ids(9)])


def logits_of(policy):
    with torch.no_grad():
        return policy.model(input_ids=IDS).logits


@pytest.fixture
def folder(tmp_path):
    """A tiny model saved as users have them, with two end ids in its generation configuration."""
    path = tmp_path / "model"
    model = tiny_model()
    model.generation_config.eos_token_id = [TURN, 20]
    model.save_pretrained(path)
    character_tokenizer().save_pretrained(path)
    return path


def config_of(path, **settings):
    return RunConfig(model=str(path), device="cpu", lora=LoraSettings(rank=4, alpha=8), **settings)


def loaded(path, **settings):
    config = config_of(path, **settings)
    return load_policy(config, *load_chat(config))


# --- the adapter on disk ---------------------------------------------------------------------------------------------


# PEFT 0.21 about itself: what it prepares for fused experts, and an attribute that transformers 5.24 renamed.
@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_adapter_folder_loads_in_plain_peft_with_the_same_logits(architecture, tmp_path):
    policy = tiny_policy(architecture)
    for name, content in policy.adapter_files(policy.adapter_state()).items():
        (tmp_path / name).write_bytes(content)
    other = PeftModel.from_pretrained(tiny_model(architecture), str(tmp_path)).eval()
    with torch.no_grad():
        assert torch.equal(other(input_ids=IDS).logits, logits_of(policy))
        with other.disable_adapter():
            assert not torch.allclose(other(input_ids=IDS).logits, logits_of(policy), atol=1e-3)


def test_the_adapter_files_are_those_of_the_state_given():
    policy = tiny_policy()
    best = policy.adapter_state()
    with torch.no_grad():
        policy.parameters[0].add_(1)
    assert policy.adapter_files(best) != policy.adapter_files(policy.adapter_state())
    assert policy.adapter_files(best) == tiny_policy().adapter_files(best)


@pytest.mark.parametrize("architecture", ["llama", "mixtral"])
def test_the_adapters_configuration_is_plain_json_in_a_fixed_order(architecture):
    policy = tiny_policy(architecture)
    settings = json.loads(policy.adapter_files({"x": torch.zeros(1)})["adapter_config.json"])
    assert list(settings) == sorted(settings)
    assert settings["target_modules"] == sorted(settings["target_modules"])
    ends = {name.split(".")[-1] for name in settings["target_modules"]}
    assert ends >= {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert (settings["target_parameters"] or []) == (
        ["down_proj", "gate.weight", "gate_up_proj"] if architecture == "mixtral" else []
    )
    assert (settings["peft_type"], settings["task_type"], settings["r"], settings["lora_alpha"]) == (
        "LORA",
        "CAUSAL_LM",
        4,
        8,
    )
    assert settings["base_model_name_or_path"] == "/nowhere/random"
    assert settings["revision"] is None
    assert settings["inference_mode"] is True


def test_a_hub_model_is_named_with_its_commit():
    policy = tiny_policy()
    policy.identity = "0123abcd"
    assert json.loads(policy.adapter_files({})["adapter_config.json"])["revision"] == "0123abcd"


def test_looking_at_the_adapter_asks_no_hub():
    # As if it had come from a hub id: PEFT would look there whether the vocabulary was resized.
    policy = tiny_policy()
    policy.model.peft_config["default"].base_model_name_or_path = "someone/some-model"
    assert policy.adapter_state()


BUILD = """
import hashlib, sys
from ratchet.config import LoraSettings, RunConfig
from ratchet.engine.policy import load_chat, load_policy
config = RunConfig(model=sys.argv[1], device="cpu", lora=LoraSettings(rank=4, alpha=8), seed=5)
policy = load_policy(config, *load_chat(config))
files = policy.adapter_files(policy.adapter_state())
print({name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())})
"""


@pytest.mark.slow  # each process loads torch and PEFT
def test_the_same_seed_gives_the_same_adapter_bytes_in_every_process(folder):
    # Names hash differently in each: sets would show.
    printed = {
        subprocess.run(
            [sys.executable, "-c", BUILD, str(folder)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1", "PATH": "", "HF_HUB_OFFLINE": "1"},
        ).stdout.splitlines()[-1]
        for hash_seed in ("1", "2")
    }
    assert len(printed) == 1
    assert "adapter_model.safetensors" in printed.pop()


def test_the_seed_decides_the_adapter_and_nothing_else_does(folder):
    one, again, other = loaded(folder, seed=5), loaded(folder, seed=5), loaded(folder, seed=6)
    files = [policy.adapter_files(policy.adapter_state()) for policy in (one, again, other)]
    assert files[0] == files[1]
    assert files[0] != files[2]


def test_building_an_adapter_leaves_the_global_generator_alone(folder):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    loaded(folder)
    assert torch.equal(torch.rand(3), expected)


# --- the adapter in memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_adapter_alone_is_trained(architecture):
    policy = tiny_policy(architecture)
    assert {name for name, weight in policy.model.named_parameters() if weight.requires_grad} == {
        name for name, _ in policy.model.named_parameters() if "lora_" in name
    }
    assert [name for name, _ in policy.named_parameters()] == [
        name for name, _ in tiny_policy(architecture).named_parameters()
    ]
    assert not any("lm_head" in name or "embed" in name for name, _ in policy.named_parameters())


def test_a_state_that_was_put_back_is_the_state_that_was_taken():
    policy = tiny_policy()
    before, logits = policy.adapter_state(), logits_of(policy)
    with torch.no_grad():
        for weight in policy.parameters:
            weight.mul_(2)
    assert not torch.equal(logits_of(policy), logits)
    policy.load_adapter_state(before)
    assert torch.equal(logits_of(policy), logits)
    after = policy.adapter_state()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert list(before) == sorted(before)


def test_a_new_adapter_changes_nothing_yet():
    policy = tiny_policy(fresh=True)
    with torch.no_grad():
        assert torch.equal(logits_of(policy), tiny_model()(input_ids=IDS).logits)


@pytest.mark.parametrize("architecture", ["llama", "mixtral"])
def test_the_reference_is_the_base_model_and_the_policy_comes_back(architecture):
    policy = tiny_policy(architecture)
    logits = logits_of(policy)
    with policy.as_reference(), torch.no_grad():
        torch.testing.assert_close(logits_of(policy), tiny_model(architecture)(input_ids=IDS).logits, atol=1e-6, rtol=0)
    assert torch.equal(logits_of(policy), logits)
    assert all(weight.requires_grad for name, weight in policy.model.named_parameters() if "lora_" in name)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_merged_weights_give_the_policys_logits(architecture):
    policy = tiny_policy(architecture)
    logits = logits_of(policy)
    before = {name: weight.clone() for name, weight in policy.model.named_parameters()}
    with policy.merged():
        torch.testing.assert_close(logits_of(policy), logits, atol=1e-4, rtol=0)
        assert not any("lora" in str(hook) for hook in policy.model._forward_hooks)
    assert torch.equal(logits_of(policy), logits)
    assert all(torch.equal(weight, before[name]) for name, weight in policy.model.named_parameters())


@pytest.mark.parametrize("training", [True, False])
def test_merging_is_undone_after_an_error_inside_and_the_mode_comes_back(training):
    policy = tiny_policy()
    logits = logits_of(policy)
    policy.model.train(training)
    merged = policy.merged()
    merged.__enter__()
    assert not policy.model.training
    error = KeyError("inside")
    assert not merged.__exit__(KeyError, error, None)
    assert policy.model.training == training
    policy.model.eval()
    assert torch.equal(logits_of(policy), logits)


def test_merging_that_fails_half_way_is_undone(monkeypatch):
    policy = tiny_policy()
    logits = logits_of(policy)
    last = [m for m in policy.model.modules() if hasattr(m, "get_delta_weight")][-1]
    monkeypatch.setattr(last, "get_delta_weight", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError), policy.merged():
        pass
    assert torch.equal(logits_of(policy), logits)


# --- loading ---------------------------------------------------------------------------------------------------------


def test_a_folder_loads_with_all_of_its_end_ids(folder):
    config = config_of(folder)
    chat, files = load_chat(config)
    assert chat.end_ids == {EOS, TURN, 20}  # the tokenizer's own, and two of the generation configuration
    assert files.identity.startswith("sha256:")
    policy = load_policy(config, chat, files)
    assert policy.identity == files.identity
    assert policy.model.dtype == torch.float32
    assert not policy.model.training
    with torch.no_grad():
        assert torch.equal(logits_of(policy), tiny_model()(input_ids=IDS).logits)


def test_a_model_without_a_generation_configuration_ends_as_its_own_configuration_says(folder):
    (folder / "generation_config.json").unlink()
    assert load_chat(config_of(folder))[0].end_ids == {EOS}


def test_a_model_that_can_never_end_is_refused(folder):
    (folder / "generation_config.json").unlink()
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "eos_token_id": None}))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": None}))
    with pytest.raises(ModelUnavailable, match="no end-of-sequence token"):
        load_chat(config_of(folder))


def test_a_model_that_was_edited_has_another_identity(folder):
    before = locate(str(folder)).identity
    assert locate(str(folder)).identity == before
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert locate(str(folder)).identity != before


def test_renaming_a_file_changes_the_identity_and_notes_beside_it_do_not(folder):
    before = locate(str(folder)).identity
    (folder / "notes.md").write_text("mine")
    assert locate(str(folder)).identity == before
    (folder / "tokenizer.json").rename(folder / "tokenizer2.json")
    assert locate(str(folder)).identity != before


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "does not exist. Check the path"),
        (lambda path: path.mkdir(), "has no config.json"),
        (lambda path: path.write_text("x"), "is not a GGUF file"),
    ],
    ids=["missing", "empty folder", "a file"],
)
def test_a_path_that_holds_no_model_is_named(tmp_path, make, said):
    path = tmp_path / "mine"
    make(path)
    with pytest.raises(ModelUnavailable, match=said) as caught:
        load_chat(config_of(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["./mine", "~/no-such-model", "~nobody-of-that-name/mine", "a/b/c", "mine.gguf"])
def test_what_looks_like_a_path_is_never_taken_for_a_hub_id(name):
    with pytest.raises(ModelUnavailable, match="does not exist") as caught:
        locate(name)
    assert name in str(caught.value)


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(ModelUnavailable, match=r"bogus is neither .* Models by name: tiny, smollm2-135m"):
        locate("bogus")


def test_a_hub_id_is_left_to_the_hub():
    assert locate("someone/some-model") == model_files.ModelFiles("someone/some-model", "someone/some-model", None, "")
    assert model_config(locate("someone/some-model")) == {}


def test_a_gguf_file_is_found_by_its_folder_and_name(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    files = locate(str(tmp_path / "a.gguf"))
    assert (files.source, files.gguf_file) == (str(tmp_path), "a.gguf")
    assert files.identity.startswith("sha256:")


def truncate(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize(
    "how", [truncate, Path.unlink, lambda path: path.write_bytes(b"\xff\xfe")], ids=["cut", "gone", "spoiled"]
)
def test_a_file_that_is_damaged_or_gone_makes_the_model_unavailable(folder, name, how):
    how(folder / name)
    with pytest.raises(ModelUnavailable) as caught:
        loaded(folder)
    assert str(folder) in str(caught.value)


def test_advice_about_the_network_goes_with_hub_ids_alone(folder):
    truncate(folder / "model.safetensors")
    with pytest.raises(ModelUnavailable, match="cannot be loaded") as caught:
        loaded(folder)
    assert "Without a network" not in str(caught.value)


# What makes transformers ask whether to run a model's own code: by its configuration and by its tokenizer's; for a type
# of model that it knows, and for one that only that code knows.
NAMING_CODE = {
    "known type": ("config.json", {"auto_map": {"AutoModelForCausalLM": "own.Model", "AutoConfig": "own.Config"}}),
    "unknown type": ("config.json", {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}),
    "text part": ("config.json", {"text_config": {"auto_map": {"AutoConfig": "own.Config"}}}),
    "tokenizer": ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}),
}


@pytest.fixture
def bringing_code(folder, tmp_path, monkeypatch):
    """Return a function that makes the model bring code along, and one that says whether it was run; all say yes."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    mark = tmp_path / "it-was-run"
    code = f"open({str(mark)!r}, 'w')\nclass Model: pass\nConfig = Tokenizer = Model\n"
    (folder / "own.py").write_text(code)

    def bring(file, settings):
        (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | settings))

    return bring, mark.exists


@pytest.mark.parametrize(("file", "settings"), NAMING_CODE.values(), ids=NAMING_CODE)
def test_a_model_that_brings_code_along_is_refused_and_the_code_is_not_run(folder, bringing_code, file, settings):
    bring, was_run = bringing_code
    bring(file, settings)
    with pytest.raises(ModelUnavailable) as caught:
        loaded(folder)
    assert str(caught.value).startswith(
        f"Base model {folder} brings code of its own along (auto_map in {file}), which is never run."
    )
    assert not was_run()


@pytest.mark.parametrize(("file", "settings"), NAMING_CODE.values(), ids=NAMING_CODE)
def test_even_unseen_that_code_is_not_run(folder, bringing_code, monkeypatch, file, settings):
    bring, was_run = bringing_code
    bring(file, settings)
    monkeypatch.setattr(model_files, "_refuse_code", lambda *_: None)
    with suppress(ModelUnavailable):  # of a type that transformers knows by itself, it loads
        loaded(folder)
    assert not was_run()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
def test_a_model_that_does_not_fit_is_not_called_unavailable(folder, monkeypatch, error):
    def failing(*_, **__):
        raise error

    monkeypatch.setattr(policy_module.AutoModelForCausalLM, "from_pretrained", failing)
    with pytest.raises(OutOfMemory, match=r"The model does not fit .* smaller model") as caught:
        loaded(folder)
    assert caught.value.stage == "loading"


def test_a_model_of_a_kind_that_is_not_known_is_unavailable(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "no-such-kind"}))
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        loaded(folder)


# Convolutions; and recurrent states beside attention in one layer, whose cache inherits from that of attention.
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Lfm2Config", {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
        ("FalconH1Config", {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8}),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of packages that would make these faster
def test_a_model_with_a_recurrent_state_is_refused(folder, kind, settings):
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = getattr(transformers, kind)(**sizes, num_attention_heads=4, num_key_value_heads=2, **settings)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    with pytest.raises(ModelUnavailable, match="recurrent state"):
        loaded(folder)


def test_weights_of_another_shape_make_the_model_unavailable(folder):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "intermediate_size": 50}))
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        loaded(folder)


def without_a_weight(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def changed_settings(**changes):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def with_content(name, content):
    return lambda folder: (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (without_a_weight, r"1 of its weights .* model\.layers\.1\.mlp\.up_proj\.weight\."),
        (changed_settings(num_hidden_layers=3), r"9 of its weights .* model\.layers\.2\..* and others"),
        (changed_settings(intermediate_size=50), r"6 of its weights .* model\.layers\.0\.mlp\.down_proj\.weight"),
    ],
    ids=["dropped", "more layers", "other shape"],
)
def test_weights_that_would_be_filled_with_random_numbers_make_the_model_unavailable(folder, damage, named):
    damage(folder)
    with pytest.raises(ModelUnavailable, match=named):
        loaded(folder)


@pytest.mark.parametrize(
    "damage",
    [
        *(with_content("config.json", content) for content in ("[]", "null", "5", "[" * 100_000)),
        with_content("tokenizer.json", "[]"),
        with_content("tokenizer_config.json", "null"),
        with_content("generation_config.json", "[]"),
        changed_settings(text_config=[1]),
        changed_settings(hidden_size="x"),
        changed_settings(num_attention_heads=0),
        changed_settings(num_experts="x"),
        changed_settings(eos_token_id={"a": 1}),
    ],
)
def test_damage_of_any_kind_makes_the_model_unavailable(folder, damage):
    damage(folder)
    with pytest.raises(ModelUnavailable, match=str(folder)):
        loaded(folder)


@pytest.mark.parametrize("name", ["x" * 5000, f"a/{'x' * 5000}", "a\0b", f"/{'x' * 300}"])
def test_a_name_that_no_file_can_have_is_refused_and_not_repeated_in_full(name):
    with pytest.raises(ModelUnavailable) as caught:
        locate(name)
    assert len(str(caught.value)) < 500


def test_a_folder_that_may_not_be_read_is_unavailable(folder, monkeypatch):
    def forbidden(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", forbidden)
    with pytest.raises(ModelUnavailable, match="Permission denied"):
        locate(str(folder))


def test_the_packaged_model_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path))
    with pytest.raises(ModelUnavailable, match=r"no-such-package, which is not installed. Run: pip install"):
        model_files._packaged_gguf("no-such-package")


@pytest.mark.parametrize("name", ["cuda:97", "cuda", "mps"])
def test_a_device_that_is_not_there_is_an_invalid_setting(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InvalidSetting, match=rf"Device is {name}, but this machine has .* Choose auto") as caught:
        chosen_device(name)
    assert caught.value.field == "device"


def test_auto_takes_the_first_gpu_there_is_and_else_the_cpu(monkeypatch):
    for cuda, mps, expected in [(True, True, "cuda:0"), (False, True, "mps"), (False, False, "cpu")]:
        monkeypatch.setattr(torch.cuda, "device_count", lambda cuda=cuda: int(cuda))
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        assert chosen_device("auto") == torch.device(expected)


@pytest.mark.parametrize("name", ["num_local_experts", "num_experts", "n_routed_experts"])
def test_a_mixture_of_experts_is_trained_with_gspo_alone(name):
    config = transformers.LlamaConfig(**{name: 8})
    refuse_mixture_of_experts(config, "gspo")
    with pytest.raises(InvalidSetting, match=r"Loss is grpo.*mixture of 8 experts.*Choose gspo"):
        refuse_mixture_of_experts(config, "grpo")


def test_a_dense_model_is_trained_with_any_loss():
    refuse_mixture_of_experts(transformers.LlamaConfig(), "grpo")
    refuse_mixture_of_experts(transformers.LlamaConfig(num_experts=1), "dapo")


def test_merging_needs_a_copy_of_every_adapted_weight():
    # Llama of the tests, float32: per layer q and o 32 x 32, k and v 16 x 32, and three times 32 x the inner width.
    policy = tiny_policy("llama")
    inner = policy.model.config.intermediate_size
    assert policy.merged_bytes == 2 * 4 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * inner)


def test_a_tokenizer_with_more_tokens_than_the_model_knows_is_refused(folder):
    settings = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    tokens = 50
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in weights:
            weights[name] = weights[name][:tokens].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**settings, "vocab_size": tokens}))
    config = config_of(folder)
    with pytest.raises(ModelUnavailable, match=r"has \d+ tokens, but the model knows 50: they do not belong together"):
        load_policy(config, *load_chat(config))
