"""How much memory each phase of a run takes, on this device and on usual cards, before anything is loaded.

Pure arithmetic on the model's anatomy, with the budgets and buffers that the engine allocates (``footprint.py``). On
a CPU the figure is what the process grows by once the model loads, measured to lie within 15 percent of that; on a GPU
it is arithmetic that was not measured. Left out: main memory beside a GPU, and sft and dpo.

Dimensions: b rows that are sampled at a time, P tokens of the longest prompt, L of an answer at most, V vocabulary.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from ratchet.config import Quantization, RunConfig
from ratchet.models.anatomy import Anatomy
from ratchet.models.footprint import (
    COLUMN_BLOCK,
    MOST_ROWS,
    PREFILL_TOKENS,
    Budgets,
    Load,
    adapter_bytes,
    cache_bytes,
    fitted,
    row_bytes,
    static_rows,
)

DeviceKind = Literal["cpu", "gpu"]
_TORCH_NAMES: dict[DeviceKind, str] = {"cpu": "cpu", "gpu": "cuda"}
PhaseName = Literal["loading", "sampling", "update", "validation"]

# Cards by their nominal memory. Makers count in steps of 1000 or 1024; the smaller figure is the safe one.
CARDS = {f"{size} GB card": size * 10**9 for size in (24, 48, 80, 141)}
# Of a device's memory; beyond it a run is advised to ask for less.
COMFORTABLE_SHARE = 0.9
# What torch and its libraries take once they compute: code that is read in, and oneDNN's routines. Measured on x86.
_CPU_LIBRARIES = 130_000_000
# CUDA's context and its libraries. An allowance: not measured.
_GPU_LIBRARIES = 600_000_000
# Buffers of the cache grow and move, and glibc's allocator keeps part of what they leave. Three models were measured to
# take 1.3 (SmolLM2-135M), 2.5 and 3.3 times the cache; this lies in between.
_CPU_CACHE_OVERHEAD = 2.7
_FEWER_BITS: dict[Quantization, tuple[Quantization, ...]] = {"none": ("8bit", "4bit"), "8bit": ("4bit",), "4bit": ()}
# Copies of a step's logits, (b, V), that drawing tokens makes in float32: scaled, exponentials, cumulative sums.
_LOGIT_COPIES = 3


@dataclass(frozen=True)
class PhaseMemory:
    """What one phase takes at its peak, in bytes, and of what that consists."""

    name: PhaseName
    parts: dict[str, int]

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Lower:
    """A setting that makes a run fit, and the value that does."""

    key: str
    label: str
    value: Any


@dataclass(frozen=True)
class MemoryEstimate:
    """What a run takes on one device.

    ``lower`` names what to lower first where it does not fit, in order; None where nothing that is known would do.
    """

    device: str
    kind: DeviceKind
    total_bytes: int
    phases: tuple[PhaseMemory, ...]
    budgets: Budgets
    lower: tuple[Lower, ...] | None = ()

    @property
    def peak(self) -> PhaseMemory:
        """The phase that takes most."""
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def fits(self) -> bool:
        """Whether the peak leaves a tenth of the device free."""
        return self.peak.bytes <= self.total_bytes * COMFORTABLE_SHARE


@dataclass(frozen=True)
class MemoryDemand:
    """What of a run decides about memory."""

    config: RunConfig  # resolved settings
    longest_prompt: int  # tokens of the longest prompt, P
    common_prefix: int  # tokens that all prompts begin with; our own decoder holds them once
    prompts: int  # training prompts
    validation_prompts: int  # prompts that are scored after each round
    with_vllm: bool = False  # whether vLLM samples on a GPU


def estimate_memory(
    asked: MemoryDemand, anatomy: Anatomy, device: str, kind: DeviceKind, total_bytes: int
) -> MemoryEstimate:
    """Estimate what a run takes on a device, with what to lower first where it does not fit.

    ``anatomy`` has the width of a number on that kind of device.
    """
    plan = _planned(asked, anatomy, device, kind, total_bytes)
    if plan.fits:
        return plan
    lowered: list[Lower] = []
    current, config = plan, asked.config
    tried: set[str] = set()
    while not current.fits:
        step = _best_step(replace(asked, config=config), anatomy, current, tried)
        if step is None:
            return replace(plan, lower=None)
        lower, config, current = step
        tried.add(lower.key)
        lowered.append(lower)
    return replace(plan, lower=tuple(lowered))


def _planned(asked: MemoryDemand, anatomy: Anatomy, device: str, kind: DeviceKind, total_bytes: int) -> MemoryEstimate:
    load = _load(asked, anatomy, kind)
    libraries = _CPU_LIBRARIES if kind == "cpu" else _GPU_LIBRARIES
    free = max(0, total_bytes - libraries - load.weight_bytes - 4 * load.adapter_weights)
    rl = asked.config.rl
    budgets = fitted(load, rl, total_bytes if kind == "cpu" else free, on_cpu=kind == "cpu")
    always = {"libraries": libraries, "base model": load.weight_bytes}
    if load.shape.own_decoder:  # copies beside the model, whose file stays mapped
        always["stacked weights"] = anatomy.stacked * load.shape.width
    # The KL term's reference takes nothing beside a new adapter, whose start is the base model alone.
    start = 4 * load.adapter_weights if rl.beta > 0 and asked.config.start_from.adapter else 0
    # What the optimizer holds stays from the first update on, so later rounds sample and validate beside it.
    learnt = {"adapter and optimizer": adapter_bytes(load.adapter_weights) + start}
    wanted = min(rl.prompts_per_round, asked.prompts) * rl.answers_per_prompt
    update = {**always, **learnt, "activations and logits": _update_bytes(load, budgets, asked)}
    phases = (
        PhaseMemory("loading", {**always, **_while_loading(asked.config, anatomy, kind)}),
        PhaseMemory("sampling", {**always, **learnt, **_sampling(asked, load, budgets, wanted, kind, total_bytes)}),
        PhaseMemory("update", update),
        PhaseMemory(
            "validation",
            {**always, **learnt, **_sampling(asked, load, budgets, asked.validation_prompts, kind, total_bytes)},
        ),
    )
    return MemoryEstimate(device, kind, total_bytes, phases, budgets)


def _load(asked: MemoryDemand, anatomy: Anatomy, kind: DeviceKind) -> Load:
    config = asked.config
    own_decoder = kind == "cpu" and anatomy.decoder_fits and config.quantization == "none"
    shape = replace(anatomy.shape, own_decoder=own_decoder)
    # Nothing can be added into quantized weights; experts are not quantized. Our own decoder lays out a copy of the
    # output layer as well.
    merged = anatomy.experts + (anatomy.linear if config.quantization == "none" else 0)
    merged += anatomy.embedding if own_decoder else 0
    return Load(
        shape=shape,
        weight_bytes=anatomy.weight_bytes(config.quantization),
        merged_bytes=merged * shape.width,
        adapter_weights=anatomy.adapter_per_rank * config.lora.rank,
        longest_prompt=asked.longest_prompt,
        longest_answer=config.rl.max_answer_tokens,
    )


def _while_loading(config: RunConfig, anatomy: Anatomy, kind: DeviceKind) -> dict[str, int]:
    """What is there for a moment while a quantized model is made on a CPU: the file's own numbers, mapped."""
    if config.quantization == "none" or kind == "gpu":
        return {}
    return {"files being read": anatomy.parameters * 2}


def _update_bytes(load: Load, budgets: Budgets, asked: MemoryDemand) -> int:
    """What a micro-batch takes; no row is longer than a round's answers with their prompts."""
    rl = asked.config.rl
    prompts = min(rl.prompts_per_round, asked.prompts)
    most = prompts * (load.longest_prompt + rl.answers_per_prompt * load.longest_answer)
    return row_bytes(load, min(budgets.micro_batch_tokens, most), recomputed=budgets.gradient_checkpointing)


def _sampling(
    asked: MemoryDemand, load: Load, budgets: Budgets, answers: int, kind: DeviceKind, total_bytes: int
) -> dict[str, int]:
    if asked.with_vllm and kind == "gpu":
        share = asked.config.sampler.gpu_memory_share
        return {"vLLM's share": int(share * total_bytes)}
    rows = max(1, min(MOST_ROWS[_TORCH_NAMES[kind]], budgets.sampling_tokens // load.longest_row, answers))
    shape = load.shape
    shared = asked.common_prefix if shape.own_decoder else 0
    own = load.longest_prompt - shared
    columns = _columns(own, own + load.longest_answer, kind, own_decoder=shape.own_decoder)
    cache = cache_bytes(shape, (rows if kind == "cpu" else static_rows(rows)) * columns + shared)
    prefill = min(PREFILL_TOKENS[_TORCH_NAMES[kind]], rows * own)
    return {
        "merged copy": load.merged_bytes,
        "cache": int(cache * (_CPU_CACHE_OVERHEAD if kind == "cpu" else 1)),
        "prompts being read": prefill
        * (shape.layers * shape.cached + 4 * shape.hidden + 3 * shape.inner)
        * shape.width,
        "logits": rows * shape.vocabulary * (4 * _LOGIT_COPIES + shape.width),
    }


def _columns(start: int, end: int, kind: DeviceKind, *, own_decoder: bool) -> int:
    """The columns of the cache's buffers once ``end`` of them are in use, grown from ``start``."""

    def grown(used: int) -> int:
        more = max(COLUMN_BLOCK, used // 4) if kind == "gpu" or own_decoder else COLUMN_BLOCK
        return used + more if kind == "cpu" else -(-(used + more) // COLUMN_BLOCK) * COLUMN_BLOCK

    room = grown(start)
    while room < end:
        room = grown(room)
    return room


def _best_step(
    asked: MemoryDemand, anatomy: Anatomy, current: MemoryEstimate, tried: set[str]
) -> tuple[Lower, RunConfig, MemoryEstimate] | None:
    """The first change that makes it fit, else the one that lowers the peak most; None if none lowers it."""
    best: tuple[Lower, RunConfig, MemoryEstimate] | None = None
    for lower, config in _changes(asked.config, current):
        if lower.key in tried:
            continue
        plan = _planned(replace(asked, config=config), anatomy, current.device, current.kind, current.total_bytes)
        if plan.fits:
            return lower, config, plan
        if plan.peak.bytes < (best[2] if best else current).peak.bytes:
            best = lower, config, plan
    return best


def _changes(config: RunConfig, plan: MemoryEstimate) -> Iterator[tuple[Lower, RunConfig]]:
    """Yield changes for the phase that takes most: what costs least first, and of each the mildest first."""
    name = plan.peak.name
    if "vLLM's share" in plan.peak.parts:
        yield from _smaller_shares(config)
    elif name in ("sampling", "validation"):
        yield from _of_rl(config, "sampling_tokens", "Sampling budget", _halves(plan.budgets.sampling_tokens, 256))
    elif name == "update":
        yield from _of_rl(config, "micro_batch_tokens", "Micro batch", _halves(plan.budgets.micro_batch_tokens, 64))
        if not plan.budgets.gradient_checkpointing:
            yield from _of_rl(config, "gradient_checkpointing", "Gradient checkpointing", ["on"])
    for quantization in _FEWER_BITS[config.quantization]:
        changed = config.model_copy(update={"quantization": quantization})
        yield Lower("quantization", "Quantization", quantization), changed
    if name != "loading":
        halves = _halves(config.rl.max_answer_tokens, 16)
        yield from _of_rl(config, "max_answer_tokens", "Max answer tokens", halves)


def _of_rl(config: RunConfig, name: str, label: str, values: Iterable[Any]) -> Iterator[tuple[Lower, RunConfig]]:
    for value in values:
        changed = config.model_copy(update={"rl": config.rl.model_copy(update={name: value})})
        yield Lower(f"rl.{name}", label, value), changed


def _smaller_shares(config: RunConfig) -> Iterator[tuple[Lower, RunConfig]]:
    for share in (percent / 100 for percent in range(95, 5, -5)):
        if share < config.sampler.gpu_memory_share:
            changed = config.sampler.model_copy(update={"gpu_memory_share": share})
            label = "Memory share of vLLM"
            yield Lower("sampler.gpu_memory_share", label, share), config.model_copy(update={"sampler": changed})


def _halves(value: int, least: int) -> Iterator[int]:
    while value // 2 >= least:
        value //= 2
        yield value
