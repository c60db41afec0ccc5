"""Memory before anything loads: anatomies against real models, phases worked by hand, and what to lower first."""

from dataclasses import replace

import pytest

from ratchet.config.config_text import build
from ratchet.engine.sampler.static_step import buffer_shape
from ratchet.models.anatomy import anatomy_of
from ratchet.models.footprint import Shape, activation_bytes, static_rows
from ratchet.models.memory_estimate import MemoryDemand, _columns, estimate_memory

from ..engine.models import tiny_model, tiny_policy

GB = 10**9
# Two layers, hidden 4, inner 8, vocabulary 10, one key/value head of width 2 and two query heads.
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 4, "intermediate_size": 8, "vocab_size": 10,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2, "tie_word_embeddings": False,
}  # fmt: skip
# Qwen2.5-7B.
LARGE = {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944,
    "vocab_size": 152064, "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip


def asked(prompt=8, **settings):
    settings = {"prompts_per_round": 2, "answers_per_prompt": 2, "max_answer_tokens": 16, **settings}
    config = build({"data": {"source": "math_pairs"}}, {name: str(value) for name, value in settings.items()})
    return MemoryDemand(config.resolved(), prompt, 0, 64, 3)


def parts_of(plan, name):
    return next(phase.parts for phase in plan.phases if phase.name == name)


def test_an_anatomy_worked_by_hand():
    found = anatomy_of(CONFIG, 4)
    # A layer: q 4x4, k and v 4x2, o 4x4 = 48; gate, up, down 3 x 32 = 96. Embeddings 40, output layer 40, norms 5 x 4.
    assert (found.linear, found.embedding, found.head, found.rest) == (2 * 144, 40, 40, 20)
    assert found.parameters == 388
    # Inputs and outputs: q 8, k 6, v 6, o 8, gate 12, up 12, down 12 = 64 for each rank.
    assert found.adapter_per_rank == 2 * 64
    assert found.stacked == 2 * (4 * (4 + 4) + 2 * 32)
    assert found.shape == Shape(2, 4, 8, 10, 4, 4, 4)


def test_weights_in_fewer_bits_worked_by_hand():
    found = anatomy_of(CONFIG, 2)
    assert found.weight_bytes("none") == 2 * 388
    # One byte a number of a linear layer, four a row: q 4, k 2, v 2, o 4, gate 8, up 8, down 4 = 32 rows a layer.
    assert found.weight_bytes("8bit") == 288 + 4 * 64 + 2 * 100
    assert found.weight_bytes("4bit") == int(288 * (0.5 + 1 / 64 + 4 / 16384)) + 2 * 100


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma", "phi3", "mistral", "gemma2", "mixtral"])
def test_an_anatomy_counts_what_a_real_model_holds(architecture):
    policy = tiny_policy(architecture, rank=4)
    base = policy.model.get_base_model()
    adapter = sum(weight.numel() for weight in policy.parameters)
    total = sum(weight.numel() for weight in base.parameters()) - adapter
    found = anatomy_of(base.config.to_dict(), 4)
    # Norms of heads, biases and routers are left out: a few of thousands.
    assert found.parameters == pytest.approx(total, rel=0.03)
    if architecture == "phi3":  # projections stored as one have one adapter: a little less than is counted
        assert adapter < found.adapter_per_rank * 4 < 1.3 * adapter
    else:
        assert found.adapter_per_rank * 4 == adapter
    assert anatomy_of(base.config.to_dict(), 4, total).parameters == total
    assert found.decoder_fits == (policy.decoder is not None)


def test_a_configuration_that_tells_no_layers_has_no_anatomy():
    assert anatomy_of({}, 4) is None
    assert anatomy_of({"hidden_size": 4, "num_hidden_layers": "two", "num_attention_heads": 2}, 4) is None


def test_buffers_are_as_large_as_the_engine_makes_them():
    for rows, end in [(1, 5), (9, 100), (64, 300), (1000, 70)]:
        shape = buffer_shape(rows, end)
        assert (static_rows(rows), _columns(end, end, "gpu", own_decoder=False)) == shape


def test_columns_of_the_cache_grow_as_in_the_engine_worked_by_hand():
    # From 8 tokens: 72, 136, 200, 264, then a quarter more than 64: 330.
    assert _columns(8, 300, "cpu", own_decoder=True) == 330
    assert _columns(8, 300, "cpu", own_decoder=False) == 328
    # In multiples of 64: 128, 192, 256, 320.
    assert _columns(8, 300, "gpu", own_decoder=False) == 320


def test_phases_on_a_gpu_worked_by_hand():
    anatomy = anatomy_of(CONFIG, 2)
    plan = estimate_memory(asked(), anatomy, "card", "gpu", 24 * GB)
    weights = 2 * 388
    assert parts_of(plan, "loading") == {"libraries": 600_000_000, "base model": weights}
    # Rank 8: 1,024 numbers, four times in float32.
    adapter = {"adapter and optimizer": 4 * 4 * 1024}
    # 4 answers in a buffer of 8 rows, 8 + 16 tokens in 128 columns; 2 layers x 4 numbers x 2 bytes a token.
    sampling = {
        "merged copy": 2 * 288,
        "cache": 8 * 128 * 16,
        "prompts being read": 4 * 8 * (8 + 16 + 24) * 2,
        "logits": 4 * 10 * (12 + 2),
    }
    assert parts_of(plan, "sampling") == {**parts_of(plan, "loading"), **adapter, **sampling}
    # A round has 2 x (8 + 2 x 16) = 80 tokens: the micro-batch is no larger.
    activations = activation_bytes(anatomy.shape, 80, 80, recomputed=False)
    assert parts_of(plan, "update")["activations and logits"] == activations
    assert plan.fits
    assert plan.lower == ()


def test_phases_on_a_cpu_worked_by_hand():
    anatomy = anatomy_of(CONFIG, 4)
    plan = estimate_memory(asked(), anatomy, "cpu", "cpu", 24 * GB)
    assert parts_of(plan, "loading") == {
        "libraries": 130_000_000, "base model": 4 * 388, "stacked weights": 4 * anatomy.stacked,
    }  # fmt: skip
    # 4 rows of 8 + 64 columns, which hold the 24 tokens; 2 layers x 4 numbers x 4 bytes; the allocator's part on top.
    assert parts_of(plan, "sampling")["cache"] == int(4 * 72 * 32 * 2.7)
    assert parts_of(plan, "validation")["cache"] == int(3 * 72 * 32 * 2.7)
    assert parts_of(plan, "sampling")["merged copy"] == 4 * (288 + 40)


def test_what_all_prompts_begin_with_is_held_once_by_our_own_decoder():
    anatomy = anatomy_of(CONFIG, 4)
    shared = estimate_memory(replace(asked(prompt=100), common_prefix=90), anatomy, "cpu", "cpu", 24 * GB)
    assert parts_of(shared, "sampling")["cache"] == int((4 * (10 + 64) + 90) * 32 * 2.7)


def test_the_kl_reference_takes_memory_only_beside_an_adapter_that_the_run_starts_from():
    anatomy = anatomy_of(CONFIG, 2)
    new = asked(beta=0.1)
    from_adapter = new.config.model_copy(
        update={"start_from": new.config.start_from.model_copy(update={"adapter": "a"})}
    )
    sizes = [
        parts_of(estimate_memory(one, anatomy, "card", "gpu", 24 * GB), "update")["adapter and optimizer"]
        for one in (asked(), new, replace(new, config=from_adapter))
    ]
    assert sizes == [16 * 1024, 16 * 1024, 20 * 1024]


def test_gradient_checkpointing_and_micro_batch_lower_the_update():
    anatomy = anatomy_of(LARGE, 2)
    usual, recomputed, small = (
        parts_of(
            estimate_memory(asked(prompt=200, prompts_per_round=64, **more), anatomy, "c", "gpu", 80 * GB), "update"
        )
        for more in (
            {"micro_batch_tokens": 4096, "gradient_checkpointing": "off"},
            {"micro_batch_tokens": 4096, "gradient_checkpointing": "on"},
            {"micro_batch_tokens": 1024, "gradient_checkpointing": "off"},
        )
    )
    name = "activations and logits"
    assert recomputed[name] < usual[name]
    assert small[name] < usual[name]


def test_a_card_too_small_is_told_what_to_lower_and_the_value_makes_it_fit():
    anatomy = anatomy_of(LARGE, 2)
    one = asked(prompt=200, prompts_per_round=64, max_answer_tokens=512)
    plan = estimate_memory(one, anatomy, "24 GB card", "gpu", 24 * GB)
    assert not plan.fits
    assert [(lower.key, lower.value) for lower in plan.lower] == [("quantization", "8bit")]
    lowered = one.config.model_copy(update={"quantization": "8bit"})
    assert estimate_memory(replace(one, config=lowered), anatomy, "24 GB card", "gpu", 24 * GB).fits
    assert estimate_memory(one, anatomy, "80 GB card", "gpu", 80 * GB).fits
    # 1 GB is not even enough for the weights in 4 bits.
    assert estimate_memory(one, anatomy, "tiny card", "gpu", GB).lower is None


def test_a_micro_batch_that_was_asked_for_is_what_is_lowered():
    anatomy = anatomy_of(LARGE, 2)
    one = asked(prompt=200, prompts_per_round=64, max_answer_tokens=512, micro_batch_tokens=65536, sampling_tokens=4096)
    plan = estimate_memory(one, anatomy, "48 GB card", "gpu", 48 * GB)
    assert plan.peak.name == "update"
    assert plan.lower[0].key == "rl.micro_batch_tokens"
    lowered = one.config.rl.model_copy(update={"micro_batch_tokens": plan.lower[0].value})
    fitting = replace(one, config=one.config.model_copy(update={"rl": lowered}))
    assert estimate_memory(fitting, anatomy, "48 GB card", "gpu", 48 * GB).fits


def test_vllm_takes_its_share_and_a_smaller_one_is_what_is_lowered():
    anatomy = anatomy_of(LARGE, 2)
    one = asked(prompt=200, max_answer_tokens=512)
    config = one.config.model_copy(update={"sampler": one.config.sampler.model_copy(update={"gpu_memory_share": 0.6})})
    plan = estimate_memory(replace(one, config=config, with_vllm=True), anatomy, "card", "gpu", 48 * GB)
    assert parts_of(plan, "sampling")["vLLM's share"] == pytest.approx(28.8 * GB)
    assert plan.lower[0].key == "sampler.gpu_memory_share"
    # 0.9 x 48 less 0.6 for CUDA, 15.2 for the model and 0.3 for the adapter leaves 27.1 GB: 56 percent, so 55.
    assert plan.lower[0].value == 0.55


def test_a_mixture_counts_all_experts_and_their_copies_while_it_samples():
    found = anatomy_of(tiny_model("mixtral").config.to_dict(), 2)
    # Two layers of four experts with three products of 32 x 48, and a router each.
    assert found.experts == 2 * (4 * 3 * 32 * 48 + 32 * 4)
    plan = estimate_memory(asked(loss="gspo"), found, "card", "gpu", 24 * GB)
    assert parts_of(plan, "sampling")["merged copy"] == 2 * (found.linear + found.experts)
    assert found.experts_count == 4
