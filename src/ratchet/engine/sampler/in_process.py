"""The in-process sampler: continuous batching over the model's own forward pass. Which answers run, and their ends.

Each prompt is computed once, what all prompts begin with once for all of them, and its answers start from it next to
each other. Rows that finish leave the batch, and waiting answers take their places. How many rows run together follows
from a token budget and a cap that are fixed for the run, never from free memory at the moment, so the same run always
forms the same batches; and what is in the batch changes no answer but by rounding.

Nothing here is done for each token of each row in Python: a step works on whole columns, and only beginnings and ends
are handled one by one.

Dimensions: b live rows, V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ratchet.engine.distribution import SamplingSettings, draw_with_logprobs
from ratchet.engine.memory import out_of_memory_as
from ratchet.engine.packing import shared_length
from ratchet.engine.policy import Policy
from ratchet.engine.sampler import NOT_FINITE, Batches, DecodingBatch, Sampled, SampleRequest
from ratchet.engine.sampler.transformers_batch import TransformersBatches
from ratchet.errors import NotFinite
from ratchet.models.footprint import MOST_ROWS as _MOST_ROWS
from ratchet.models.footprint import PREFILL_TOKENS as _PREFILL_TOKENS
from ratchet.run.records import Completion

# Waiting answers come in when this share of the rows is free: each time the batch is touched as a whole.
_REFILL_SHARE = 1 / 8
# The prompts' common beginning is computed apart when that saves so many tokens: it is a forward pass more.
_WORTH_SHARING_TOKENS = 64
# An answer's random numbers are drawn so many at a time.
_RANDOM_BLOCK = 64
# Room for so many tokens of each answer at first; it doubles when that is too little.
_FIRST_ROOM = 64


def rows_at_once(device_type: str, row_tokens: int, budget_tokens: int) -> int:
    """How many answers may be written at a time, each with its prompt of so many tokens at most; one always."""
    return min(_MOST_ROWS[device_type], max(1, budget_tokens // row_tokens))


class InProcessSampler:
    """Samples with the policy's own weights, in batches of some kind: the model's own forward pass if none is given."""

    def __init__(self, policy: Policy, budget_tokens: int, batches: Batches | None = None) -> None:
        self._policy = policy
        self._budget_tokens = budget_tokens
        self._batches = batches or TransformersBatches(policy)

    def rest(self) -> None:
        """Let go of memory that the next call can have again."""
        self._batches.rest()

    def close(self) -> None:
        """Let go of everything it holds beside the policy."""
        self.rest()

    def sample(
        self,
        requests: Sequence[SampleRequest],
        settings: SamplingSettings,
        max_answer_tokens: int,
        check: Callable[[], None],
    ) -> Generator[Sampled]:
        """Yield every answer once, in the order in which they finish. See ``Sampler``.

        Answers that finish in the same step come by request and answer.
        """
        waiting = _Waiting(requests, max_answer_tokens, self._budget_tokens, self._policy.device.type)
        if not waiting:
            return
        places = min(waiting.room, len(waiting))
        rows = _OpenRows(places, self._policy.chat.end_ids, greedy=settings.greedy)
        check()
        with out_of_memory_as("sampling"), self._batches.batch(waiting.common_prefix, places) as batch:
            _refill(batch, rows, waiting, check)
            while rows:
                check()
                tokens, drawn = _draw(batch.logits, rows.at, rows.uniform(), settings)
                # Of the token alone, which is at hand: its log-probability takes in the logits of the whole row.
                if not np.isfinite(drawn[2]).all():
                    raise NotFinite(NOT_FINITE)
                ended = rows.write(drawn)
                if ended.any():
                    yield from rows.finished(ended, self._policy.chat.decode)
                    rows.keep(~ended)
                    tokens = tokens[torch.from_numpy(~ended).to(tokens.device)]
                if rows:
                    _advance(batch, rows, tokens)
                else:
                    batch.keep(torch.zeros(0, dtype=torch.int64))
                _refill(batch, rows, waiting, check)


@torch.inference_mode()
def _draw(
    logits: Tensor, at: NDArray[np.int64], uniform: NDArray[np.float32] | None, settings: SamplingSettings
) -> tuple[Tensor, NDArray[np.floating[Any]]]:
    """Draw each answer's next token from the row of the batch that it is ``at``, (b,).

    Returns:
        The tokens, (b,), where the logits are; and on the CPU, (3, b), the tokens and their log-probabilities under
        the sampling distribution and under the temperature alone.
    """
    numbers = None if uniform is None else torch.from_numpy(uniform).to(logits.device)
    tokens, logprobs, full = draw_with_logprobs(logits, numbers, settings, torch.from_numpy(at).to(logits.device))
    # One transfer instead of three. float32 holds every whole number below 2 ** 24.
    return tokens, torch.stack([tokens.to(full.dtype), logprobs, full]).cpu().numpy()


def _advance(batch: DecodingBatch, rows: "_OpenRows", tokens: Tensor) -> None:
    """Give the batch the answers' new tokens, (b,); answers that are the same so far stay one row if it branches."""
    before, count = rows.at, batch.logits.shape[0]
    if batch.branches:
        written = rows.last_tokens()
        # One number for each pair of row and token.
        pairs = before * (int(written.max()) + 1) + written
        _, chosen, rows.at = np.unique(pairs, return_index=True, return_inverse=True)
        before, tokens = before[chosen], tokens[torch.from_numpy(chosen).to(tokens.device)]
    else:
        rows.at = np.arange(len(before))
    if len(before) != count or (before != np.arange(count)).any():
        batch.keep(torch.from_numpy(before))
    batch.advance(tokens)


def _refill(batch: DecodingBatch, rows: "_OpenRows", waiting: "_Waiting", check: Callable[[], None]) -> None:
    """Let waiting answers take the free places, if these are enough for it to pay."""
    if rows and waiting.room - len(rows) < min(len(waiting), max(1, waiting.room * _REFILL_SHARE)):
        return
    while waiting and waiting.room > len(rows):
        if waiting.prompts is None:
            if rows:
                check()
            waiting.prompts = batch.prefill(waiting.next_prompts())
        prompts, owners, answers = waiting.take(len(rows))
        live = batch.logits.shape[0] if rows else 0
        at = np.arange(len(owners))
        if batch.branches:
            distinct, at = np.unique(owners, return_inverse=True)
            owners = distinct.tolist()
        batch.admit(prompts, owners)
        rows.begin(answers, live + at)


@dataclass(frozen=True)
class _OpenAnswer:
    """One answer wanted: which of which request, and how long it may become."""

    request: int
    number: int
    limit: int
    random_key: tuple[int, ...]


class _Waiting:
    """The answers that have not begun: the shortest prompts first, answers to the same prompt next to each other."""

    def __init__(self, requests: Sequence[SampleRequest], longest: int, budget_tokens: int, device_type: str) -> None:
        self.prompts: Any = None  # computed, those of ``_next``
        self._requests = requests
        self._longest = longest
        self._budget_tokens = budget_tokens
        self._device_type = device_type
        self._prefill_tokens = min(_PREFILL_TOKENS[device_type], budget_tokens)
        wanted = [number for number, request in enumerate(requests) if request.answers > 0]
        self._order = sorted(wanted, key=lambda number: (len(requests[number].prompt_token_ids), number))
        self.common_prefix = self._common_prefix() if wanted else ()
        self._chunks = deque(self._in_chunks())
        self._next: deque[tuple[int, _OpenAnswer]] = deque()  # with the place of each one's prompt in ``prompts``
        self._left = sum(requests[number].answers for number in wanted)

    def __len__(self) -> int:
        return self._left

    def _in_chunks(self) -> Iterator[list[int]]:
        """Split the requests into those whose prompts are computed together."""
        chunk: list[int] = []
        for number in self._order:
            own = len(self._requests[number].prompt_token_ids) - len(self.common_prefix)
            if chunk and (len(chunk) + 1) * own > self._prefill_tokens:
                yield chunk
                chunk = []
            chunk.append(number)
        if chunk:
            yield chunk

    def _common_prefix(self) -> tuple[int, ...]:
        """What all prompts begin with, where computing it once pays; a token of each prompt is left out."""
        prompts = [self._requests[number].prompt_token_ids for number in self._order]
        shared = shared_length(prompts)
        return prompts[0][:shared] if shared * (len(prompts) - 1) >= _WORTH_SHARING_TOKENS else ()

    @property
    def room(self) -> int:
        """How many rows may run, with the next answer among them; one always may.

        Sorted by length, so that answer's prompt is the longest of them.
        """
        if not self:
            return 0
        request = self._next[0][1].request if self._next else self._chunks[0][0]
        row_tokens = len(self._requests[request].prompt_token_ids) + self._longest
        return rows_at_once(self._device_type, row_tokens, self._budget_tokens)

    def next_prompts(self) -> list[tuple[int, ...]]:
        """Move on to the next prompts that are computed together, and return them."""
        chunk = self._chunks.popleft()
        for owner, number in enumerate(chunk):
            request = self._requests[number]
            for answer in range(request.answers):
                self._next.append(
                    (owner, _OpenAnswer(number, answer, request.limit(answer, self._longest), request.random_key))
                )
        return [self._requests[number].prompt_token_ids for number in chunk]

    def take(self, live: int) -> tuple[Any, list[int], list[_OpenAnswer]]:
        """Return the next answers of the computed prompts that there is room for, and the places of their prompts.

        Computed prompts whose last answer is taken are let go of.
        """
        owners: list[int] = []
        answers: list[_OpenAnswer] = []
        while self._next and self.room > live + len(answers):
            owner, answer = self._next.popleft()
            owners.append(owner)
            answers.append(answer)
            self._left -= 1
        prompts = self.prompts
        if not self._next:
            self.prompts = None
        return prompts, owners, answers


class _OpenRows:
    """The live answers and what each has written, kept by places that the answers take one after the other.

    ``at`` (b,) is the row of the batch that each one reads its next token from.
    """

    def __init__(self, places: int, end_ids: Collection[int], *, greedy: bool) -> None:
        self._live: NDArray[np.int64] = np.empty(0, dtype=np.int64)  # the place of each answer
        self.at: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._free = list(range(places))
        self._answers: dict[int, _OpenAnswer] = {}
        self._written = np.zeros(places, dtype=np.int64)
        self._limits = np.zeros(places, dtype=np.int64)
        # Tokens, log-probabilities, untruncated ones.
        self._history = np.empty((3, places, _FIRST_ROOM))
        self._end_ids = np.array(sorted(end_ids), dtype=np.float64)
        self._generators: dict[int, np.random.Generator] | None = None if greedy else {}
        self._uniform = np.empty((places, _RANDOM_BLOCK), dtype=np.float32)

    def __len__(self) -> int:
        return len(self._live)

    def begin(self, answers: Sequence[_OpenAnswer], at: NDArray[np.int64]) -> None:
        """Add these answers, after the ones there are."""
        self.at = np.concatenate([self.at, at])
        places = [self._free.pop() for _ in answers]
        for place, answer in zip(places, answers, strict=True):
            self._answers[place] = answer
            if self._generators is not None:
                self._generators[place] = np.random.default_rng([*answer.random_key, answer.number])
        self._written[places] = 0
        self._limits[places] = [answer.limit for answer in answers]
        self._live = np.concatenate([self._live, np.array(places, dtype=np.int64)])

    def uniform(self) -> NDArray[np.float32] | None:
        """Return one number in [0, 1) per row, (b,), each the next of its own answer's generator; None when greedy."""
        if self._generators is None:
            return None
        at = self._written[self._live] % _RANDOM_BLOCK
        for place in self._live[at == 0]:
            self._uniform[place] = self._generators[place].random(_RANDOM_BLOCK, dtype=np.float32)
        return self._uniform[self._live, at]

    def write(self, drawn: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
        """Add each row's token with its log-probabilities, (3, b); return which rows end with it, (b,)."""
        at = self._written[self._live]
        if at.max() == self._history.shape[-1]:
            self._history = np.concatenate([self._history, np.empty_like(self._history)], axis=-1)
        self._history[:, self._live, at] = drawn
        self._written[self._live] = at + 1
        ended: NDArray[np.bool_] = self._stopped(drawn[0]) | (at + 1 == self._limits[self._live])
        return ended

    def _stopped(self, tokens: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
        stopped: NDArray[np.bool_] = (tokens[:, None] == self._end_ids).any(axis=1)
        return stopped

    def finished(self, ended: NDArray[np.bool_], decode: Callable[[Sequence[int]], str]) -> Iterator[Sampled]:
        """Yield the answers of the rows that ended, by request and answer."""
        answers = [(self._answers[place], place) for place in self._live[ended].tolist()]
        for answer, place in sorted(answers, key=lambda pair: (pair[0].request, pair[0].number)):
            written = self._history[:, place, : self._written[place]]
            stopped = bool(self._stopped(written[0, -1:])[0])
            token_ids = written[0].astype(np.int64).tolist()
            logprobs = tuple(written[1].tolist())
            # Where nothing is truncated they are the same numbers, kept once.
            full = logprobs if np.array_equal(written[1], written[2]) else tuple(written[2].tolist())
            completion = Completion(
                token_ids=tuple(token_ids),
                logprobs=logprobs,
                full_logprobs=full,
                text=decode(token_ids[:-1] if stopped else token_ids),
                finish="stop" if stopped else "length",
            )
            yield Sampled(answer.request, answer.number, completion)

    def keep(self, staying: NDArray[np.bool_]) -> None:
        """Let go of the answers that do not stay, (b,)."""
        self._free.extend(self._live[~staying].tolist())
        self._live, self.at = self._live[staying], self.at[staying]

    def last_tokens(self) -> NDArray[np.int64]:
        """What each answer wrote last, (b,)."""
        written: NDArray[np.int64] = self._history[0, self._live, self._written[self._live] - 1].astype(np.int64)
        return written
