"""Reading a model for our own decoder: what it refuses, and that reading leaves the model what it was."""

import warnings

import pytest
import torch
from peft import LoraConfig, get_peft_model

from ratchet.engine import policy as policy_module
from ratchet.engine.decoder.weights import decoder_weights
from ratchet.engine.logprobs import chosen_forward

from .models import random_ids, tiny_model, tiny_policy
from .ways import DECODER, answers_of


def adapted(model, **settings):
    given = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **settings}
    with warnings.catch_warnings():
        # PEFT 0.21 and transformers 5.24 about each other.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
        warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys", category=RuntimeWarning)
        return get_peft_model(model, LoraConfig(**given)).eval()


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_family_is_read(architecture, dtype):
    weights = decoder_weights(adapted(tiny_model(architecture, dtype=dtype)))
    assert weights is not None
    assert len(weights.layers) == 2
    assert (weights.layers[0].joint.bias is not None) == (architecture == "qwen2")
    assert (weights.layers[0].query_norm is not None) == (architecture == "qwen3")
    assert weights.layers[0].joint.weight.dtype == dtype


def test_mistral_without_a_window_is_of_the_family():
    policy = tiny_policy("mistral", sliding_window=None)
    assert policy.decoder is not None
    assert chosen_forward(policy, answers_of(prefix=9)) == DECODER


def rope(**parameters):
    return {"rope_parameters": {"rope_theta": 10000.0, **parameters}}


@pytest.mark.parametrize(
    "settings",
    [
        rope(rope_type="linear", factor=2.0),
        rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=16,
        ),
        rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
        {"rms_norm_eps": 0.1},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"head_dim": 16},
    ],
    ids=str,
)
def test_kinds_of_rotary_positions_and_shapes_that_are_read_are_right(settings):
    # By numbers: the choice compares with transformers.
    policy = tiny_policy(dtype=torch.float64, **settings)
    assert policy.decoder is not None
    assert chosen_forward(policy, answers_of(prefix=9)) == DECODER


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("mistral", {}),  # a window
        ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
        ("llama", rope(rope_type="dynamic", factor=2.0)),
        ("llama", rope(rope_type="longrope", factor=2.0, short_factor=[1.0] * 4, long_factor=[2.0] * 4)),
        ("llama", rope(rope_type="default", partial_rotary_factor=0.5)),
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True}),
        ("llama", {"hidden_act": "gelu"}),
        *((other, {}) for other in ("gemma", "phi", "phi3", "gpt_neox", "mixtral", "gemma2", "gemma3")),
    ],
    ids=str,
)
def test_models_of_another_kind_are_not_read(architecture, settings):
    assert decoder_weights(adapted(tiny_model(architecture, **settings))) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"use_dora": True},
        {"lora_dropout": 0.1},
        {"target_modules": ["q_proj", "k_proj"]},
        {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"]},
    ],
    ids=str,
)
def test_adapters_of_another_kind_are_not_read(settings):
    assert decoder_weights(adapted(tiny_model(), **settings)) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_not_read(dtype):
    assert decoder_weights(adapted(tiny_model(dtype=dtype))) is None


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight"])
def test_a_mix_of_dtypes_is_not_read(name):
    model = tiny_model()
    module, _, last = name.rpartition(".")
    owner = model.get_submodule(module)
    setattr(owner, last, torch.nn.Parameter(getattr(owner, last).double()))
    assert decoder_weights(adapted(model)) is None


def test_an_output_layer_with_a_bias_is_not_read():
    model = tiny_model()
    model.lm_head.bias = torch.nn.Parameter(torch.zeros(model.config.vocab_size))
    assert decoder_weights(adapted(model)) is None


def test_two_adapters_are_not_read():
    model = adapted(tiny_model())
    model.add_adapter("other", LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.base_model.set_adapter(["default", "other"])
    assert decoder_weights(model) is None


@pytest.mark.parametrize("settings", [{"use_rslora": True}, {"rank_pattern": {"k_proj": 2, "up_proj": 6}}], ids=str)
def test_the_scale_and_rank_of_each_layer_are_read(settings, monkeypatch):
    monkeypatch.setattr(
        policy_module, "with_new_adapter", lambda model, lora, seed: adapted(model, **settings), raising=True
    )
    monkeypatch.setattr("tests.engine.models.with_new_adapter", policy_module.with_new_adapter)
    policy = tiny_policy(dtype=torch.float64)
    stack = policy.decoder.layers[0].joint
    if "rank_pattern" in settings:
        assert [factors.down.shape[0] for factors in stack.adapters] == [4, 2, 4]
    else:
        assert {factors.scale for factors in stack.adapters} == {8 / 4**0.5}
    assert chosen_forward(policy, answers_of(prefix=9)) == DECODER


# --- what reading leaves behind --------------------------------------------------------------------------------------


def test_stacked_weights_are_the_models_own():
    policy = tiny_policy("qwen2")
    layer = policy.model.get_base_model().model.layers[1]
    read = policy.decoder.layers[1]
    attention, network = layer.self_attn, layer.mlp
    for stack, modules in (
        (read.joint, (attention.q_proj, attention.k_proj, attention.v_proj)),
        (read.output, (attention.o_proj,)),
        (read.gate_up, (network.gate_proj, network.up_proj)),
        (read.down, (network.down_proj,)),
    ):
        start = 0
        for module in modules:
            own = module.get_base_layer()
            assert own.weight.untyped_storage().data_ptr() == stack.weight.untyped_storage().data_ptr()
            assert torch.equal(stack.weight[start : start + len(own.weight)], own.weight)
            if own.bias is not None:
                assert own.bias.untyped_storage().data_ptr() == stack.bias.untyped_storage().data_ptr()
                assert torch.equal(stack.bias[start : start + len(own.bias)], own.bias)
            assert not own.weight.requires_grad
            start += len(own.weight)
        assert start == len(stack.weight)
    held = {weight.untyped_storage().data_ptr() for weight in policy.model.parameters()}
    assert policy.decoder.embedding.untyped_storage().data_ptr() in held
    assert policy.decoder.head.untyped_storage().data_ptr() in held


def numbers_held(model):
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    return sum(storages.values())


def test_reading_holds_nothing_twice_and_changes_no_number():
    for architecture in ("llama", "qwen2", "qwen3"):
        model = adapted(tiny_model(architecture))
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        size = numbers_held(model)
        assert decoder_weights(model) is not None
        assert numbers_held(model) == size
        after = model.state_dict()
        assert list(after) == list(before)
        assert all(torch.equal(after[name], weight) for name, weight in before.items())
        assert all(weight.is_contiguous() for weight in after.values())


def test_reading_twice_gives_the_same():
    policy = tiny_policy(dtype=torch.float64)
    again = decoder_weights(policy.model)
    for first, second in zip(policy.decoder.layers, again.layers, strict=True):
        assert torch.equal(first.joint.weight, second.joint.weight)
    policy.decoder = again
    assert chosen_forward(policy, answers_of(prefix=9)) == DECODER


def test_a_state_that_is_loaded_reaches_the_decoder():
    policy, other = tiny_policy(dtype=torch.float64), tiny_policy(dtype=torch.float64, seed=3)
    policy.model.load_state_dict({name: weight.clone() for name, weight in other.model.state_dict().items()})
    assert torch.equal(policy.decoder.layers[0].joint.weight, other.decoder.layers[0].joint.weight)
    assert chosen_forward(policy, answers_of(prefix=9)) == DECODER
    with torch.no_grad():
        ids = torch.tensor([random_ids(9)])
        assert torch.equal(policy.model(input_ids=ids).logits, other.model(input_ids=ids).logits)


def test_adapter_files_are_those_of_a_model_that_was_not_read(monkeypatch):
    read = tiny_policy()
    monkeypatch.setattr(policy_module, "decoder_weights", lambda model: None)
    unread = tiny_policy()
    assert unread.decoder is None
    assert read.adapter_files(read.adapter_state()) == unread.adapter_files(unread.adapter_state())


def test_the_merged_policy_of_transformers_leaves_the_stacks_alone():
    policy = tiny_policy()
    stack = policy.decoder.layers[0].joint
    before = stack.weight.clone()
    own = policy.model.get_base_model().model.layers[0].self_attn.q_proj.get_base_layer()
    with policy.merged():
        assert not torch.equal(own.weight, before[: len(own.weight)])
        assert torch.equal(stack.weight, before)
    assert own.weight.untyped_storage().data_ptr() == stack.weight.untyped_storage().data_ptr()
