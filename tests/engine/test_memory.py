"""Memory budgets worked by hand, and which errors mean "out of memory"."""

import os
import subprocess
import sys

import pytest
import torch

from ratchet.config import RlSettings
from ratchet.engine import memory
from ratchet.engine.memory import (
    budget_memory,
    fitted_budgets,
    free_bytes,
    is_out_of_memory,
    out_of_memory_as,
    shape_of,
)
from ratchet.errors import OutOfMemory
from ratchet.models.footprint import (
    Budgets,
    Load,
    Shape,
    activation_bytes,
    adapter_bytes,
    cache_bytes,
    row_bytes,
    update_room,
)

from .models import tiny_model, tiny_policy

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
# 3 layers, hidden 10, inner 20, vocabulary 100, 8 cached numbers a token and layer.
WIDE, NARROW = (Shape(3, 10, 20, 100, 8, 10, width) for width in (4, 2))


def load_of(shape=WIDE, weights=0, merged=0, adapter=0, prompt=6, answer=4):
    return Load(shape, weights, merged, adapter, prompt, answer)


def machine(monkeypatch, total):
    monkeypatch.setattr(memory.os, "sysconf", {"SC_PHYS_PAGES": total, "SC_PAGE_SIZE": 1}.__getitem__)


# --- phases ----------------------------------------------------------------------------------------------------------


def test_the_shape_is_read_from_a_models_configuration():
    # Llama of the tests: 2 layers, 2 key/value heads of width 8, hidden 32, inner 48.
    config = tiny_model().config
    assert shape_of(config, torch.float32) == Shape(2, 32, 48, config.vocab_size, 2 * 2 * 8, 4 * 8, 4)
    assert shape_of(config, torch.bfloat16).width == 2


@pytest.mark.parametrize("architecture", ["phi", "gpt_neox", "gemma", "gemma3", "mixtral"])
def test_models_without_grouped_heads_or_a_head_width_of_their_own_have_a_shape_too(architecture):
    shape = shape_of(tiny_model(architecture).config, torch.float32)
    assert min(shape.layers, shape.hidden, shape.inner, shape.vocabulary, shape.cached) > 0


def test_the_cache_holds_keys_and_values_of_every_layer():
    assert cache_bytes(WIDE, 5) == 5 * 3 * 8 * 4
    assert cache_bytes(NARROW, 5) == 5 * 3 * 8 * 2


def test_an_adapter_takes_weights_gradients_and_two_moments_in_float32():
    assert adapter_bytes(7) == 7 * 4 * 4


def test_activations_worked_by_hand():
    # A layer keeps 8 * 10 + 4 * 20 = 160 numbers a token: 640 bytes in float32. Two tokens, mask of 2 x 2.
    layer, mask = 2 * 640, 2 * 2 * 4
    assert activation_bytes(WIDE, 2, 0, recomputed=False) == 3 * layer + layer + mask
    assert activation_bytes(WIDE, 2, 0, recomputed=True) == 3 * 2 * 10 * 4 + 2 * layer + mask
    # Two answer tokens: 2 * 100 logits in four float32 copies are 3200 bytes, more than a layer's 1280 or twice that.
    assert activation_bytes(WIDE, 2, 2, recomputed=False) == 3 * layer + 3200 + mask
    assert activation_bytes(WIDE, 2, 2, recomputed=True) == 3 * 2 * 10 * 4 + 3200 + mask


def test_activations_in_sixteen_bits_worked_by_hand():
    # float32 copies of 8 * 10 + 20 numbers and 4 * 10 + 3 * 20 numbers of two bytes: 600 bytes a token.
    layer, mask = 2 * 600, 2 * 2 * 2
    assert activation_bytes(NARROW, 2, 0, recomputed=False) == 3 * layer + layer + mask
    assert activation_bytes(NARROW, 2, 2, recomputed=True) == 3 * 2 * 10 * 2 + 2 * 100 * 20 + mask


MEASURE = """
import resource, sys
import torch, transformers
from ratchet.config import LoraSettings
from ratchet.engine.logprobs import PLAIN, answer_logprobs
from ratchet.engine.memory import shape_of
from ratchet.models.footprint import activation_bytes
from ratchet.engine.packing import PackedAnswer, pack
from ratchet.engine.policy import Policy, with_new_adapter
from ratchet.engine.memory import recompute_layers

recomputed = sys.argv[1] == "True"
config = transformers.LlamaConfig(
    hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=8,
    vocab_size=8000,
)
model = with_new_adapter(transformers.AutoModelForCausalLM.from_config(config), LoraSettings(), 0).eval()
if recomputed:
    recompute_layers(model)
policy = Policy(model, None, torch.device("cpu"), None, "")

def row(prompt, answers, length):
    packed = [PackedAnswer(tuple(range(prompt)), tuple(range(n, n + length)), n) for n in range(answers)]
    return pack(packed, 1 << 30, device=policy.device, plain=False)[0]

def step(row):
    answer_logprobs(policy, row, 1.0, PLAIN).sum().backward()

step(row(8, 2, 8))
with open("/proc/self/statm") as file:
    before = int(file.read().split()[1]) * resource.getpagesize()
measured = row(128, 8, 64)
step(measured)
with open("/proc/self/status") as file:  # ru_maxrss would start at what the process of the tests holds
    peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:")) - before
shape = shape_of(config, torch.float32)
estimate = activation_bytes(shape, len(measured.input_ids), len(measured.targets), recomputed=recomputed)
print(peak / estimate)
"""


@pytest.mark.slow  # a process of its own for each, with a model of 35 million parameters
@pytest.mark.parametrize("recomputed", [False, True])
def test_the_estimate_is_near_the_measured_peak(recomputed):
    # An allocator that gives every larger block back: what it keeps to itself is no matter of the model.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(recomputed)], capture_output=True, text=True, check=True, env=environment
    )
    assert 0.6 < float(done.stdout) < 1.3


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_on_a_gpu_half_of_what_is_free_is_shared_out(monkeypatch):
    # The cache takes 3 * 8 * 2 = 48 bytes a token.
    monkeypatch.setattr(memory, "free_bytes", lambda _: 2_000_000)
    assert fitted_budgets(load_of(NARROW), CUDA, RlSettings()).sampling_tokens == 1_000_000 // 48
    # The copy of the merged weights is not shared out to the cache.
    assert fitted_budgets(load_of(NARROW, merged=500_000), CUDA, RlSettings()).sampling_tokens == 750_000 // 48


@pytest.mark.parametrize(("free", "expected"), [(0, 4096), (1 << 60, 1 << 22)])
def test_the_sampling_budget_has_a_least_and_a_most(monkeypatch, free, expected):
    monkeypatch.setattr(memory, "free_bytes", lambda _: free)
    assert fitted_budgets(load_of(), CUDA, RlSettings()).sampling_tokens == expected


def test_without_a_gpu_free_memory_changes_nothing(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda _: 1 / 0)
    assert fitted_budgets(load_of(), CPU, RlSettings()) == Budgets(512, 1 << 20, False)


def test_a_small_machine_gives_a_quarter_of_its_memory_to_the_cache(monkeypatch):
    # The cache takes 3 * 8 * 4 = 96 bytes a token.
    for total, tokens in [(1_000_000, 4096), (8_000_000, 2_000_000 // 96)]:
        machine(monkeypatch, total)
        assert fitted_budgets(load_of(), CPU, RlSettings()).sampling_tokens == tokens


def test_budgets_that_are_asked_for_stay(monkeypatch):
    machine(monkeypatch, 1000)
    rl = RlSettings(micro_batch_tokens=100, sampling_tokens=300)
    budgets = fitted_budgets(load_of(), CPU, rl)
    assert (budgets.micro_batch_tokens, budgets.sampling_tokens) == (100, 300)


def test_the_updates_room_is_half_of_the_machine_less_weights_and_adapter(monkeypatch):
    machine(monkeypatch, 10_000)
    load = load_of(weights=1000, merged=700, adapter=10)
    assert update_room(load, budget_memory(CPU), on_cpu=True) == 5000 - 1000 - 160


def test_on_a_gpu_the_weights_are_there_when_the_room_is_measured(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda _: 10_000)
    assert update_room(load_of(weights=1000, adapter=10), budget_memory(CUDA), on_cpu=False) == 5000 - 160


def test_a_row_holds_at_least_the_longest_prompt_and_answer():
    load = load_of(prompt=6, answer=4)
    assert row_bytes(load, 3, recomputed=False) == activation_bytes(WIDE, 10, 4, recomputed=False)
    assert row_bytes(load, 12, recomputed=True) == activation_bytes(WIDE, 12, 12, recomputed=True)


def room_for(monkeypatch, needed):
    machine(monkeypatch, 2 * needed)


ONE, ONE_RECOMPUTED = (row_bytes(load_of(), 10, recomputed=recomputed) for recomputed in (False, True))
USUAL = row_bytes(load_of(), 512, recomputed=False)


def test_with_enough_memory_nothing_is_recomputed(monkeypatch):
    room_for(monkeypatch, USUAL)
    budgets = fitted_budgets(load_of(), CPU, RlSettings())
    assert (budgets.micro_batch_tokens, budgets.gradient_checkpointing) == (512, False)


def test_a_smaller_micro_batch_comes_before_recomputing(monkeypatch):
    room_for(monkeypatch, USUAL - 1)
    budgets = fitted_budgets(load_of(), CPU, RlSettings())
    assert (budgets.micro_batch_tokens, budgets.gradient_checkpointing) == (256, False)
    room_for(monkeypatch, ONE)
    budgets = fitted_budgets(load_of(), CPU, RlSettings())
    assert (budgets.micro_batch_tokens, budgets.gradient_checkpointing) == (10, False)


def test_layers_are_recomputed_where_one_answer_would_not_fit_otherwise(monkeypatch):
    room_for(monkeypatch, ONE - 1)
    budgets = fitted_budgets(load_of(), CPU, RlSettings())
    assert budgets.gradient_checkpointing
    assert row_bytes(load_of(), budgets.micro_batch_tokens, recomputed=True) < ONE
    assert not fitted_budgets(load_of(), CPU, RlSettings(gradient_checkpointing="off")).gradient_checkpointing


def test_a_micro_batch_that_is_asked_for_is_recomputed_where_it_does_not_fit(monkeypatch):
    asked = RlSettings(micro_batch_tokens=128)
    needed = row_bytes(load_of(), 128, recomputed=False)
    room_for(monkeypatch, needed)
    assert not fitted_budgets(load_of(), CPU, asked).gradient_checkpointing
    room_for(monkeypatch, needed - 1)
    budgets = fitted_budgets(load_of(), CPU, asked)
    assert (budgets.micro_batch_tokens, budgets.gradient_checkpointing) == (128, True)


def test_recomputing_is_on_where_it_is_asked_for():
    assert fitted_budgets(load_of(), CPU, RlSettings(gradient_checkpointing="on")).gradient_checkpointing


def test_the_longest_prompt_alone_may_decide(monkeypatch):
    room_for(monkeypatch, row_bytes(load_of(prompt=1000), 1004, recomputed=False) - 1)
    assert fitted_budgets(load_of(prompt=1000), CPU, RlSettings()).gradient_checkpointing
    assert not fitted_budgets(load_of(prompt=500), CPU, RlSettings()).gradient_checkpointing


def test_a_policy_says_what_it_asks_of_a_device():
    policy = tiny_policy()
    adapter = sum(weight.numel() for weight in policy.parameters)
    base = sum(weight.numel() for weight in policy.model.parameters()) - adapter
    load = policy.memory_load(30, 20)
    assert (load.adapter_weights, load.merged_bytes) == (adapter, policy.merged_bytes)
    # The buffers of the rotary embedding are counted too.
    assert 4 * base <= load.weight_bytes < 4 * base + 1000
    assert load.longest_row == 50


def test_free_memory_is_asked_of_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (123, 456))
    assert free_bytes(CUDA) == 123
    assert free_bytes(CPU) > 1 << 20


def test_free_memory_of_an_apple_gpu(monkeypatch):
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 1000)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 300)
    assert free_bytes(torch.device("mps")) == 700


@pytest.mark.parametrize("error", [ValueError("out of memory"), RuntimeError("shape mismatch"), OSError(12, "x")])
def test_other_errors_are_not_about_memory(error):
    assert not is_out_of_memory(error)
    with pytest.raises(type(error)), out_of_memory_as("update"):
        raise error


@pytest.mark.parametrize(
    ("stage", "knob"),
    [
        ("sampling", "fewer Answers per prompt"),
        ("update", "smaller Micro batch"),
        ("validation", "lower Max answer tokens"),
        ("loading", "smaller model"),
    ],
)
def test_each_stage_names_its_knob(stage, knob):
    with pytest.raises(OutOfMemory, match=knob) as caught, out_of_memory_as(stage):
        raise MemoryError
    assert caught.value.stage == stage
