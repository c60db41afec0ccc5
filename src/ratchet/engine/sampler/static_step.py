"""The decoding step in shapes that stay, so that a CUDA graph can hold it: one launch instead of a thousand small ones.

A graph repeats the same kernels at the same addresses. So the step reads its ids, lengths and column from buffers,
writes keys and values at the column that a tensor names, and attends to every column of the cache's buffers under a
mask. It is captured once for these buffers, and again when they are replaced: ``buffer_shape`` sees to it that this is
seldom. Layers that look back over a window take the same step with a mask of their own.

Left out: prompts, which have all shapes; models that wait for the device within a step (experts that are chosen by a
token's router, rotary frequencies that follow the longest row), quantized weights (what their kernels do was not
inspected), layers that read another one's keys and values, and attention that reads no mask of ours (flash, flex).

How far this was tried: the step, run on the CPU without a graph, against the step of changing shapes. ``CudaGraphs``
itself has not been run on a GPU yet; its tests replace CUDA by recorders.

Dimensions: S rows of the cache, C columns of its buffers, b live rows, V vocabulary.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ratchet.engine.policy import Policy, experts_of
from ratchet.models.footprint import COLUMN_BLOCK as _COLUMNS
from ratchet.models.footprint import static_rows

log = logging.getLogger(__name__)

# From a step to a function that repeats it: the tensor that it returns may be the same one each time, overwritten.
Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]

# Buffers that are needed to this share at least are kept.
_KEPT_SHARE = 0.75

# Libraries set themselves up in the first calls, which a graph must not hold.
_WARM_UP_STEPS = 3

# The first static step is compared with the plain one: the mean gap of log-probabilities over the vocabulary, of a
# few rows. A mask or a column that a model reads otherwise than we mean it is off by far more than rounding: tiny
# random models on the CPU in bfloat16 differ by 0.008 at most, and by 0.1 to 0.5 where the mask hides nothing.
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
_COARSE_TOLERANCE = 0.1
_ROWS_COMPARED = 8


def buffer_shape(rows: int, end: int, present: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """How many rows and columns the cache's buffers should have, with room for 64 columns beyond ``end`` at least.

    ``present`` is what they have. It stays where it is enough and not far too much.
    """
    fitting_rows = static_rows(rows)
    fitting_columns = -(-(end + max(_COLUMNS, end // 4)) // _COLUMNS) * _COLUMNS
    has_rows, has_columns = present
    keeps_rows = rows <= has_rows and fitting_rows > has_rows * _KEPT_SHARE
    keeps_columns = end + _COLUMNS <= has_columns and fitting_columns > has_columns * _KEPT_SHARE
    return has_rows if keeps_rows else fitting_rows, has_columns if keeps_columns else fitting_columns


def reason_against(policy: Policy) -> str | None:
    """Return why this model's step cannot be static, or None if nothing speaks against it."""
    config = policy.model.config.get_text_config(decoder=True)
    if experts_of(config) > 1:
        return "the model is a mixture of experts"
    if getattr(policy.model.get_base_model(), "is_quantized", False):
        return "its weights are quantized"
    attention = config._attn_implementation
    if attention not in ("sdpa", "eager"):
        return f"its attention is {attention}"
    unknown = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        return f"it has layers of {', '.join(sorted(unknown))}"
    if any("dynamic" in str(getattr(module, "rope_type", "")) for module in policy.model.modules()):
        return "its rotary frequencies follow the longest row"
    return None


class _ColumnLayer(DynamicLayer):  # type: ignore[misc] # transformers carries no types
    """Keys and values of one layer, (S, heads, C, width) each: written at one column, read whole."""

    def __init__(self, keys: Tensor, values: Tensor, column: Tensor) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values, self._column = keys, values, column

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self._column, key_states)
        self.values.index_copy_(2, self._column, value_states)
        return self.keys, self.values


class Buffers(NamedTuple):
    """Keys and values of one layer, (S, heads, C, width) each, and the window it looks back over, if any."""

    keys: Tensor
    values: Tensor
    window: int | None


class Loaded(NamedTuple):
    """What a step reads."""

    tokens: Tensor  # (b,) on the device, the new ones of the live rows
    slots: Tensor  # (b,) on the CPU, the row of the cache of each
    lengths: Tensor  # (S,) on the CPU, tokens of each row of the cache with the new one, 1 where no live row is
    column: int  # where all rows write


class StaticStep:
    """One step over buffers of the cache. Good as long as these and the model's weights stay where they are."""

    def __init__(self, policy: Policy, buffers: Sequence[Buffers]) -> None:
        rows, _, columns, _ = buffers[0].keys.shape
        self._policy = policy
        self._cache_argument = policy.cache_argument
        self._columns = torch.arange(columns, device=policy.device)
        self._input_ids = torch.zeros((rows, 1), dtype=torch.long, device=policy.device)
        self._lengths = torch.ones(rows, dtype=torch.long, device=policy.device)
        self._column = torch.zeros(1, dtype=torch.long, device=policy.device)
        self._cache = DynamicCache(config=policy.model.config)
        self._cache.layers = [_ColumnLayer(keys, values, self._column) for keys, values, _ in buffers]
        self._windows = {window for _, _, window in buffers}
        self._repeat: Callable[[], Tensor] | None = None

    def capture(self, capture: Capture) -> None:
        """Have the step captured, with whatever is in its buffers: it writes at the present column alone."""
        self._repeat = capture(self._step)

    def load(self, loaded: Loaded) -> None:
        """Set what the step reads."""
        self._input_ids.zero_()
        self._input_ids[loaded.slots.to(self._input_ids.device), 0] = loaded.tokens
        self._lengths.copy_(loaded.lengths)
        self._column.fill_(loaded.column)

    def __call__(self) -> Tensor:
        """Compute the logits of every row of the cache, (S, V). The next call may overwrite them."""
        if self._repeat is None:
            raise ValueError("the step was not captured yet")
        return self._repeat()

    def _step(self) -> Tensor:
        first = self._column + 1 - self._lengths[:, None]
        visible = (self._columns >= first) & (self._columns <= self._column)
        result = self._policy.model(
            input_ids=self._input_ids,
            attention_mask=self._masks(visible),
            position_ids=self._lengths[:, None] - 1,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self._cache},
        )
        logits: Tensor = result.logits[:, -1]
        return logits

    def _masks(self, visible: Tensor) -> Tensor | dict[str, Tensor]:
        """What is added to attention scores, (S, 1, 1, C): one mask, or one for each kind of layer."""
        masks = {}
        for window in self._windows:
            within = visible if window is None else visible & (self._columns > self._column - window)
            mask = torch.zeros_like(within, dtype=self._policy.model.dtype)
            mask.masked_fill_(~within, torch.finfo(mask.dtype).min)
            masks["full_attention" if window is None else "sliding_attention"] = mask[:, None, None]
        # Only models with layers of both kinds take a mask by kind.
        return masks if len(masks) > 1 else next(iter(masks.values()))


class CudaGraphs:
    """A ``Capture`` by CUDA graphs for one batch. Not run on a GPU yet.

    All of a batch's graphs use the memory of the first: only the newest one is ever replayed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._newest: torch.cuda.CUDAGraph | None = None  # keeps that memory known until the next graph has it

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Run the step a few times, then capture it.

        Raises:
            RuntimeError: something in the step cannot be captured.
        """
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP_STEPS):
                    step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            pool = self._newest.pool() if self._newest is not None else None
            # What other threads do on the device (none of ours does anything) must not spoil the capture.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                logits = step()
        self._newest = graph

        def repeat() -> Tensor:
            graph.replay()
            return logits

        return repeat


class StaticSteps:
    """Whether a policy's steps are static: until the first one that cannot be captured or computes something else."""

    def __init__(self, policy: Policy, new_capture: Callable[[], Capture]) -> None:
        self._policy = policy
        self._new_capture = new_capture
        self._tolerance = _TOLERANCE.get(policy.model.dtype, _COARSE_TOLERANCE)
        self._agreed = False
        reason = reason_against(policy)
        self._are_on = reason is None
        if reason is not None:
            log.info("sampling graphs=off: %s", reason)

    def of_batch(self) -> "BatchSteps | None":
        """Return the steps of a new batch, None if they are not static."""
        return BatchSteps(self._policy, self, self._new_capture()) if self._are_on else None

    def give_up(self, reason: str) -> None:
        """Go on without, for good."""
        self._are_on = False
        log.warning("sampling graphs=off: answers are written without CUDA graphs, more slowly. %s", reason)

    def agree(self, found: Tensor, plain: Callable[[], Tensor]) -> bool:
        """Compare the first logits, (b, V), with those of the plain step; later ones are taken as they are."""
        if not self._agreed:
            # Of all lengths: rows come sorted by their prompts, and the longest has nothing before it to hide.
            rows = slice(None, None, max(1, found.shape[0] // _ROWS_COMPARED))
            expected, found = (logits[rows].float().log_softmax(dim=-1) for logits in (plain(), found))
            gap = float((found - expected).abs().mean(dim=-1).max())
            if not gap <= self._tolerance:  # also if it is not a number
                self.give_up(f"Log-probabilities differ by {gap:.2g} from those without, limit {self._tolerance}.")
                return False
            self._agreed = True
        return True


class BatchSteps:
    """The static steps of one batch, of which the newest lives."""

    def __init__(self, policy: Policy, steps: StaticSteps, capture: Capture) -> None:
        self._policy = policy
        self._steps = steps
        self._capture = capture
        self._newest: StaticStep | None = None

    def forget(self) -> None:
        """Throw the newest step away: the cache's buffers are being replaced."""
        self._newest = None

    def logits(
        self, buffers: Callable[[], Sequence[Buffers]], loaded: Loaded, plain: Callable[[], Tensor]
    ) -> Tensor | None:
        """Compute the next logits of the live rows, (b, V), or None where no static step can, now and ever after.

        ``buffers`` returns the cache's of every layer, for a new step. ``plain`` computes the same by the plain step:
        both write the same keys and values at the same column, so one may follow the other.
        """
        if self._newest is None:
            try:
                step = StaticStep(self._policy, buffers())
                step.load(loaded)
                step.capture(self._capture)
            # A capture fails as the library at fault likes; what is no fault of its own, the plain step meets again.
            except Exception as error:
                self._steps.give_up(f"{type(error).__name__}: {error}")
                return None
            self._newest = step
        else:
            self._newest.load(loaded)
        # A copy: the next step overwrites what it is taken from.
        logits = self._newest()[loaded.slots.to(self._policy.device)]
        return logits if self._steps.agree(logits, plain) else None
