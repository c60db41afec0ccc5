"""How much memory the parts of a run take: plain arithmetic on a model's shape, without torch.

One source for two readers: the engine, which fixes a run's budgets by it once the model is loaded
(``engine/memory.py``), and ``ratchet plan``, which knows the configuration alone (``models/memory_estimate.py``).
How far the estimates are off was measured (dev/LOG.md).

Dimensions: T tokens of a row, N answer tokens of a row, h hidden size, i inner size of a layer, V vocabulary; width is
the bytes of one number.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ratchet.config import RlSettings

# Of the sampler, by torch's name of the device. Answers at a time: more make a step longer without making a token
# cheaper.
MOST_ROWS = {"cpu": 128, "cuda": 1024, "mps": 256}
# Prompts are computed so many tokens at a time: enough for fast products, and few beside the cache.
PREFILL_TOKENS = {"cpu": 1024, "cuda": 8192, "mps": 4096}
# Columns of the cache come in multiples of this, on a GPU with a quarter to spare: so many steps must pay for the
# capture of a graph after each growth.
COLUMN_BLOCK = 64
# Rows of a captured step come in multiples of this, or of a sixteenth of the next power of two: at most an eighth of
# many rows is waste.
_LEAST_STATIC_ROWS = 8
# Without a GPU larger rows under a mask only cost: attention grows with the square of a row, also between its unrelated
# groups. Measured on two cores (dev/LOG.md): 512 tokens is about the best for small and larger models.
_CPU_MICRO_BATCH_TOKENS = 512
# Our own decoder has no such mask: larger rows share more, until they no longer fit the processor's caches. So many
# bytes of what the backward pass needs, and so many tokens at most.
_DECODER_KEPT_BYTES = 1 << 29
_DECODER_MICRO_BATCH_TOKENS = 2560
# Its logits, for a few tokens at a time, and what is made of them (``engine/logprobs.py``).
_DECODER_LOGITS_BYTES = 3 * 4 * (6 << 20)
_CPU_SAMPLING_BYTES = 1 << 30
# What a GPU computes at a time at most: more tokens bring nothing, and the mask grows with their square.
_GPU_MICRO_BATCH_TOKENS = 16_384
_LEAST_SAMPLING_TOKENS, _MOST_CPU_TOKENS, _MOST_GPU_TOKENS = 4096, 1 << 20, 1 << 22
# Share of a device's memory that estimates may fill. glibc's allocator alone was measured to take twice what is in use.
SHARE = 0.5


@dataclass(frozen=True)
class Budgets:
    """What a run may hold at a time, in tokens: per pass of the update, and in the sampler's cache.

    With ``gradient_checkpointing`` the update keeps what goes into a layer alone (``engine/memory.py``).
    """

    micro_batch_tokens: int
    sampling_tokens: int
    gradient_checkpointing: bool = False


@dataclass(frozen=True)
class Shape:
    """What of a model decides how much memory a token takes. ``width`` is that of its weights and activations."""

    layers: int
    hidden: int
    inner: int
    vocabulary: int
    cached: int  # numbers that a token's keys and values have in a layer
    attended: int  # numbers that a token's queries, and what attention returns for them, have in a layer
    width: int
    own_decoder: bool = False  # the update runs through our own decoder (``engine/decoder/layer.py``)


@dataclass(frozen=True)
class Load:
    """What a run asks of a device, beside what every pass needs."""

    shape: Shape  # of the base model
    weight_bytes: int  # the base model as it is in memory, quantized or not
    merged_bytes: int  # the second copy of some weights while sampling
    adapter_weights: int  # how many numbers the adapter has
    longest_prompt: int  # tokens of the run's longest prompt
    longest_answer: int  # tokens that an answer may have

    @property
    def longest_row(self) -> int:
        """Tokens of the longest prompt with one answer, which is never split."""
        return self.longest_prompt + self.longest_answer


def cache_bytes(shape: Shape, tokens: int) -> int:
    """What the sampler's cache takes: keys and values of every layer."""
    return tokens * shape.layers * shape.cached * shape.width


def static_rows(rows: int) -> int:
    """Rows of the cache's buffers on a GPU, where a captured step computes so many: at least ``rows``."""
    quantum = max(_LEAST_STATIC_ROWS, (1 << (rows - 1).bit_length()) // 16)
    return -(-rows // quantum) * quantum


def adapter_bytes(weights: int) -> int:
    """What an adapter takes while it is trained: float32 weights, gradients and AdamW's two moments."""
    return 4 * 4 * weights


def activation_bytes(shape: Shape, tokens: int, answer_tokens: int, *, recomputed: bool) -> int:
    """What a forward and backward pass over one row takes at its peak, beside weights and adapter.

    Of a gated layer with an adapter on each of its seven products, float32 keeps 8h + 4i numbers a token: both inputs
    of the norms, both outputs, query, key, value and their result; gate, its activation, the other branch and the
    product. In 16 bits the norms and the adapter compute in float32 and keep copies of their own, 8h + i numbers, next
    to 4h + 3i in 16 bits. Recomputed, a layer keeps its input.

    The peak comes either at the logits, of which the loss and its gradient keep four float32 copies (in 16 bits also
    logits and gradient as they are), or in a layer's backward pass, which takes about as much again as the layer keeps
    and, recomputed, that as well.

    Our own decoder keeps less: the inputs of layer and network, queries and outputs of attention, keys and values, gate
    and up, about 4h + 2i numbers and those of the cache. It has no mask over the row, and few logits at a time.
    """
    h, i, width = shape.hidden, shape.inner, shape.width
    if shape.own_decoder:
        kept = tokens * shape.layers * (h * width if recomputed else _decoder_layer_bytes(shape))
        # In a layer's backward pass: gradients of gate and up, two products and the inputs of both norms.
        working = tokens * (4 * i + 4 * h) * width + (tokens * _decoder_layer_bytes(shape) if recomputed else 0)
        return kept + max(working, answer_tokens * h * width + _DECODER_LOGITS_BYTES)
    layer = tokens * (4 * (8 * h + 4 * i) if width >= 4 else 4 * (8 * h + i) + width * (4 * h + 3 * i))
    kept = shape.layers * (tokens * h * width if recomputed else layer)
    logits = answer_tokens * shape.vocabulary * (16 if width >= 4 else 16 + 2 * width)
    mask = tokens * tokens * width
    return kept + mask + max(logits, (2 if recomputed else 1) * layer)


def _decoder_layer_bytes(shape: Shape) -> int:
    """What our own decoder keeps of a token in a layer."""
    return (2 * shape.hidden + 2 * shape.attended + shape.cached + 2 * shape.inner) * shape.width


def row_bytes(load: Load, tokens: int, *, recomputed: bool) -> int:
    """``activation_bytes`` of the largest row there may be under a micro-batch of so many tokens.

    One answer is never split, whatever the micro-batch. A longer row may be made of answers nearly alone.
    """
    if tokens <= load.longest_row:
        return activation_bytes(load.shape, load.longest_row, load.longest_answer, recomputed=recomputed)
    return activation_bytes(load.shape, tokens, tokens, recomputed=recomputed)


def update_room(load: Load, memory: int, *, on_cpu: bool) -> int:
    """How many bytes the activations of the update may take; below 0 where not even the adapter fits.

    A share of the machine's memory less the weights, so that what else runs on the machine changes nothing; on a GPU a
    share of what is free once the weights are there.
    """
    weights = load.weight_bytes if on_cpu else 0
    return int(memory * SHARE) - weights - adapter_bytes(load.adapter_weights)


def sampling_tokens(load: Load, memory: int, *, on_cpu: bool) -> int:
    """How many tokens the sampler's cache may hold; ``memory`` as for ``update_room``.

    On a CPU fixed amounts, or a quarter of a small machine's memory; on a GPU a share beside the merged weights.
    """
    room = min(_CPU_SAMPLING_BYTES, memory // 4) if on_cpu else int((memory - load.merged_bytes) * SHARE)
    most = _MOST_CPU_TOKENS if on_cpu else _MOST_GPU_TOKENS
    return _between(room // cache_bytes(load.shape, 1), _LEAST_SAMPLING_TOKENS, most)


def fitted(load: Load, rl: RlSettings, memory: int, *, on_cpu: bool) -> Budgets:
    """The budgets that the settings leave open.

    What does not fit is first cut into smaller micro-batches, down to one answer each: that costs less time than
    computing layers twice. A micro-batch that was asked for stays as it is. ``memory`` as for ``update_room``.
    """
    room = update_room(load, memory, on_cpu=on_cpu)
    usual = _cpu_micro_batch(load.shape) if on_cpu else _GPU_MICRO_BATCH_TOKENS
    least = rl.micro_batch_tokens or load.longest_row
    recomputed = rl.gradient_checkpointing == "on" or (
        rl.gradient_checkpointing == "auto" and row_bytes(load, least, recomputed=False) > room
    )
    tokens = rl.micro_batch_tokens or usual
    while rl.micro_batch_tokens is None and tokens > least and row_bytes(load, tokens, recomputed=recomputed) > room:
        tokens = max(least, tokens // 2)
    return Budgets(tokens, rl.sampling_tokens or sampling_tokens(load, memory, on_cpu=on_cpu), recomputed)


def _cpu_micro_batch(shape: Shape) -> int:
    """How many tokens a pass of the update should have on a CPU, if memory is no question."""
    if not shape.own_decoder:
        return _CPU_MICRO_BATCH_TOKENS
    tokens = _DECODER_KEPT_BYTES // (shape.layers * _decoder_layer_bytes(shape))
    return _between(tokens, _CPU_MICRO_BATCH_TOKENS, _DECODER_MICRO_BATCH_TOKENS)


def _between(value: int, least: int, most: int) -> int:
    return max(least, min(most, value))


# Where the two versions of control groups say so, see cgroups(7).
_GROUPS = Path("/sys/fs/cgroup")
_V1_LIMIT = "memory/memory.limit_in_bytes"
_V2_LIMIT = "memory.max"


def host_memory(proc: Path = Path("/proc"), groups: Path = _GROUPS) -> int:
    """How many bytes of main memory there are for this process; ``proc`` and ``groups`` are for tests."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(proc, groups)])


def _limits(proc: Path, groups: Path) -> Iterator[int]:
    """Yield the limits of this process's control group and of those around it."""
    own = groups
    for line in _text(proc / "self" / "cgroup").splitlines():
        if line.startswith("0::"):  # the second version's one hierarchy
            own = groups / line[3:].strip().lstrip("/")
    places = [own, *own.parents]
    for place in places[: places.index(groups) + 1] if groups in places else [groups]:
        yield from _number(place / _V2_LIMIT)
    yield from _number(groups / _V1_LIMIT)


def _number(path: Path) -> Iterator[int]:
    text = _text(path).strip()
    if text.isdecimal():  # "max" where there is no limit
        yield int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
