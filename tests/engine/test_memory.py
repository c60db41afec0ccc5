"""Memory budgets worked by hand, and which errors mean "out of memory"."""

import pytest
import torch

from ratchet.engine import memory
from ratchet.engine.memory import Budgets, fitted_budgets, free_bytes, is_out_of_memory, out_of_memory_as
from ratchet.errors import OutOfMemory

from .models import tiny_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def test_on_a_gpu_half_of_what_is_free_is_shared_out(monkeypatch):
    # Llama of the tests: 2 layers, 2 key/value heads of width 8, hidden 32, vocabulary 64, in bfloat16.
    # cache:  2 * 2 * 2 * 8 * 2 = 128 bytes a token; update: 40 * 2 * 32 * 2 + 12 * 64 = 5888 bytes a token
    free = 20_000_000
    monkeypatch.setattr(memory, "free_bytes", lambda _: free)
    assert fitted_budgets(tiny_model().config, CUDA, torch.bfloat16, 0) == Budgets(
        10_000_000 // 5888, 10_000_000 // 128
    )


def test_the_copy_of_the_merged_weights_is_not_shared_out_to_the_cache(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda _: 20_000_000)
    fitted = fitted_budgets(tiny_model().config, CUDA, torch.bfloat16, 4_000_000)
    assert fitted == Budgets(10_000_000 // 5888, 8_000_000 // 128)


@pytest.mark.parametrize(("free", "expected"), [(0, Budgets(512, 4096)), (1 << 60, Budgets(16_384, 1 << 22))])
def test_budgets_have_a_least_and_a_most(monkeypatch, free, expected):
    monkeypatch.setattr(memory, "free_bytes", lambda _: free)
    assert fitted_budgets(tiny_model().config, CUDA, torch.bfloat16, 0) == expected


def test_without_a_gpu_free_memory_changes_nothing(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda _: 1 / 0)
    assert fitted_budgets(tiny_model().config, CPU, torch.float32, 0) == Budgets(512, 1 << 20)


def test_a_small_machine_gives_a_quarter_of_its_memory(monkeypatch):
    # 1,000,000 bytes in pages of 100: a quarter at 2 * 2 * 2 * 8 * 4 = 256 bytes a token is 976, below the least;
    # with 8,000,000 it is 7812.
    for pages, tokens in [(10_000, 4096), (80_000, 7812)]:
        monkeypatch.setattr(memory.os, "sysconf", {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 100}.__getitem__)
        assert fitted_budgets(tiny_model().config, CPU, torch.float32, 0).sampling_tokens == tokens


def test_models_without_grouped_heads_or_a_head_width_of_their_own():
    for architecture in ("phi", "gpt_neox", "gemma", "gemma3", "mixtral"):
        assert fitted_budgets(tiny_model(architecture).config, CPU, torch.float32, 0).sampling_tokens > 0


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
        ("validation", "shorter Longest answer"),
        ("loading", "smaller model"),
    ],
)
def test_each_stage_names_its_knob(stage, knob):
    with pytest.raises(OutOfMemory, match=knob) as caught, out_of_memory_as(stage):
        raise MemoryError
    assert caught.value.stage == stage
