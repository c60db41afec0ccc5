"""The in-process sampler: batched decoding with the model's own forward pass and a key/value cache.

Each prompt is computed once and its keys and values are copied to its answers. Rows that finish leave the batch.
How many rows run together follows from a token budget that is fixed for the run, never from free memory at the
moment, so the same run always forms the same batches. Waiting rows do not take the place of finished ones within a
batch, and prompts do not share a common beginning.

Dimensions: b rows in the batch, T tokens of the longest prompt, V vocabulary.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ratchet.engine.distribution import SamplingSettings, draw, sampling_logprobs
from ratchet.engine.memory import out_of_memory_as
from ratchet.engine.policy import Policy
from ratchet.engine.sampler import Sampled, SampleRequest
from ratchet.errors import NotFinite
from ratchet.records import Completion, FinishReason

# The cache's buffers grow by so many tokens at a time.
_BLOCK_TOKENS = 64
# The cache is re-packed when this share of its rows has finished: a copy costs about as much as a decoding step.
_REPACK_SHARE = 0.25
_NOT_FINITE = (
    "The model's output is not a finite number (NaN or infinity), so no token can be drawn. If training got it there, "
    "choose a lower Learning rate; if it was so from the start, the base model is damaged."
)


class _BufferedLayer(DynamicLayer):  # type: ignore[misc] # transformers carries no types
    """Keys and values of one layer in a buffer with room to spare, instead of a new tensor for every token."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._buffers: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = [key_states, value_states]
            self.keys, self.values = key_states, value_states
            return key_states, value_states
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if end > self._buffers[0].shape[-2]:
            room = max(end, start + _BLOCK_TOKENS)
            self._buffers = [_with_room(buffer[..., :start, :], room) for buffer in self._buffers]
        self._buffers[0][..., start:end, :] = key_states
        self._buffers[1][..., start:end, :] = value_states
        self.keys, self.values = (buffer[..., :end, :] for buffer in self._buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows of ``indices``, in that order, repeated where they repeat."""
        length = self.get_seq_length()
        self._buffers = [buffer.index_select(0, indices) for buffer in self._buffers]
        self.keys, self.values = (buffer[..., :length, :] for buffer in self._buffers)


def _with_room(tensor: Tensor, tokens: int) -> Tensor:
    """Copy (b, heads, n, d) to the front of a new (b, heads, tokens, d)."""
    b, heads, length, width = tensor.shape
    roomier = tensor.new_empty((b, heads, tokens, width))
    roomier[..., :length, :] = tensor
    return roomier


@dataclass
class _Row:
    """One answer under way."""

    request: int
    answer: int
    generator: np.random.Generator | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    full_logprobs: list[float] = field(default_factory=list)


class InProcessSampler:
    """Samples with the policy's model, its adapter merged into the weights meanwhile and taken out again exactly."""

    def __init__(self, policy: Policy, budget_tokens: int) -> None:
        self._policy = policy
        self._budget_tokens = budget_tokens

    def sample(
        self,
        requests: Sequence[SampleRequest],
        settings: SamplingSettings,
        max_answer_tokens: int,
        check: Callable[[], None],
    ) -> Generator[Sampled]:
        """Yield every answer once, in the order in which they finish. See ``Sampler``."""
        with out_of_memory_as("sampling"), self._policy.merged():
            for wave in self._waves(requests, max_answer_tokens):
                yield from self._run(requests, wave, settings, max_answer_tokens, check)

    def rest(self) -> None:
        """Do nothing: between two calls it holds no memory of its own."""

    def close(self) -> None:
        """Do nothing: it holds nothing of its own."""

    def _waves(self, requests: Sequence[SampleRequest], max_answer_tokens: int) -> Iterator[list[tuple[int, int]]]:
        """Split all (request, answer) pairs into batches that fit the budget; one answer always does."""
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].prompt_token_ids), i))
        wave: list[tuple[int, int]] = []
        for request in order:
            # Sorted by length, so this prompt is the longest of its batch.
            row_tokens = len(requests[request].prompt_token_ids) + max_answer_tokens
            for answer in range(requests[request].answers):
                if wave and (len(wave) + 1) * row_tokens > self._budget_tokens:
                    yield wave
                    wave = []
                wave.append((request, answer))
        if wave:
            yield wave

    def _run(
        self,
        requests: Sequence[SampleRequest],
        wave: Sequence[tuple[int, int]],
        settings: SamplingSettings,
        max_answer_tokens: int,
        check: Callable[[], None],
    ) -> Generator[Sampled]:
        check()
        rows = [_Row(r, a, _generator(requests[r], a, settings)) for r, a in wave]
        batch = _Batch.prefilled(self._policy, requests, [row.request for row in rows])
        while rows:
            check()
            tokens, logprobs, full = batch.draw(_uniform(rows, self._policy.device), settings)  # (b,) each
            finished: set[int] = set()
            drawn = zip(rows, tokens.tolist(), logprobs.tolist(), full.tolist(), strict=True)
            for position, (row, token, logprob, full_logprob) in enumerate(drawn):
                # Of the token alone, which is at hand: its log-probability takes in the logits of the whole row.
                if not math.isfinite(full_logprob):
                    raise NotFinite(_NOT_FINITE)
                row.token_ids.append(token)
                row.logprobs.append(logprob)
                row.full_logprobs.append(full_logprob)
                stopped = token in self._policy.chat.end_ids
                if stopped or len(row.token_ids) == max_answer_tokens:
                    finished.add(position)
                    yield Sampled(row.request, row.answer, self._completion(row, "stop" if stopped else "length"))
            if finished:
                staying = [position for position in range(len(rows)) if position not in finished]
                rows = [rows[position] for position in staying]
                tokens = tokens[staying]
                batch.keep(staying)
            if rows:
                batch.advance(tokens)

    def _completion(self, row: _Row, finish: FinishReason) -> Completion:
        written = row.token_ids[:-1] if finish == "stop" else row.token_ids
        return Completion(
            token_ids=tuple(row.token_ids),
            logprobs=tuple(row.logprobs),
            full_logprobs=tuple(row.full_logprobs),
            text=self._policy.chat.decode(written),
            finish=finish,
        )


class _Batch:
    """The model's side of a batch: cache, attention mask, next positions and the logits of the next token.

    Finished rows stay in the cache as dead weight until enough of them make re-packing worth its cost; ``logits``
    holds the live rows alone.
    """

    def __init__(self, policy: Policy, cache: DynamicCache, is_token: Tensor, logits: Tensor) -> None:
        self._policy = policy
        self._cache = cache
        self._is_token = is_token  # (cache rows, tokens so far), False where padded
        self._positions = is_token.sum(dim=1, keepdim=True)  # (cache rows, 1) position of the next token
        self._live = list(range(is_token.shape[0]))  # cache row of each live row
        self.logits = logits  # (b, V) of the next token

    @classmethod
    @torch.inference_mode()
    def prefilled(cls, policy: Policy, requests: Sequence[SampleRequest], owners: Sequence[int]) -> "_Batch":
        """Compute each distinct prompt once, left-padded, and copy it to the rows that answer it."""
        distinct = list(dict.fromkeys(owners))
        longest = max(len(requests[r].prompt_token_ids) for r in distinct)
        # Which id fills the gap does not matter: it is masked, and padding is never recognised by its id.
        input_ids = torch.zeros((len(distinct), longest), dtype=torch.long)
        is_token = torch.zeros((len(distinct), longest), dtype=torch.bool)
        for position, request in enumerate(distinct):
            ids = requests[request].prompt_token_ids
            input_ids[position, longest - len(ids) :] = torch.tensor(ids)
            is_token[position, longest - len(ids) :] = True
        input_ids, is_token = input_ids.to(policy.device), is_token.to(policy.device)
        cache = DynamicCache(config=policy.model.config)
        cache.layers = [_BufferedLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
        result = policy.model(
            input_ids=input_ids,
            attention_mask=is_token.long(),
            position_ids=(is_token.cumsum(dim=1) - 1).clamp(min=0),
            use_cache=True,
            logits_to_keep=1,
            **{policy.cache_argument: cache},
        )
        copies = torch.tensor([distinct.index(owner) for owner in owners], device=policy.device)
        cache.batch_select_indices(copies)
        return cls(policy, cache, is_token[copies], result.logits[:, -1][copies])

    @torch.inference_mode()
    def draw(self, uniform: Tensor | None, settings: SamplingSettings) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the live rows' next tokens; return them with both of their log-probabilities, (b,) each."""
        tokens = draw(self.logits, uniform, settings)
        return tokens, *sampling_logprobs(self.logits, tokens, settings)

    @torch.inference_mode()
    def keep(self, staying: Sequence[int]) -> None:
        """Let go of the live rows that are not in ``staying``."""
        self._live = [self._live[position] for position in staying]
        rows = self._is_token.shape[0]
        if self._live and len(self._live) <= rows * (1 - _REPACK_SHARE):
            indices = torch.tensor(self._live, device=self._is_token.device)
            self._cache.batch_select_indices(indices)
            self._is_token, self._positions = self._is_token[indices], self._positions[indices]
            self._live = list(range(len(self._live)))

    @torch.inference_mode()
    def advance(self, tokens: Tensor) -> None:
        """Feed the live rows their new tokens (b,) and compute the logits of the next ones."""
        rows = self._is_token.shape[0]
        live = torch.tensor(self._live, device=tokens.device)
        input_ids = tokens.new_zeros((rows, 1))
        input_ids[live, 0] = tokens
        self._is_token = torch.cat([self._is_token, self._is_token.new_ones((rows, 1))], dim=1)
        result = self._policy.model(
            input_ids=input_ids,
            attention_mask=self._is_token.long(),
            position_ids=self._positions,
            use_cache=True,
            **{self._policy.cache_argument: self._cache},
        )
        self._positions = self._positions + 1
        self.logits = result.logits[live, -1]


def _generator(request: SampleRequest, answer: int, settings: SamplingSettings) -> np.random.Generator | None:
    return None if settings.greedy else np.random.default_rng([*request.random_key, answer])


def _uniform(rows: Sequence[_Row], device: torch.device) -> Tensor | None:
    """Return one number in [0, 1) per row, (b,), each from its own row's generator; None when greedy."""
    if rows[0].generator is None:
        return None
    numbers = [row.generator.random(dtype=np.float32) for row in rows if row.generator is not None]
    return torch.tensor(numbers, device=device)
