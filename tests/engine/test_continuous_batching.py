"""Continuous batching: whatever is in the batch and whoever takes whose place, each answer is what it is alone."""

import zlib
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.engine.distribution import GREEDY, SamplingSettings, draw_with_logprobs
from ratchet.engine.sampler import SampleRequest, in_process
from ratchet.engine.sampler.choice import DecoderBatches
from ratchet.engine.sampler.in_process import InProcessSampler
from ratchet.engine.sampler.transformers_batch import TransformersBatches

from ..repeated import matrix
from .models import ARCHITECTURES, EOS, TURN, VOCABULARY, random_ids, tiny_policy

# Several end ids of 64, so that answers of very different lengths occur within 20 tokens.
END_IDS = (EOS, TURN, 10, 20, 30, 40)
LONGEST = 20
PLAIN = SamplingSettings()
NUCLEUS = SamplingSettings(temperature=0.6, top_p=0.9)
# So cold that answers begin alike and part later.
COLD = SamplingSettings(temperature=0.2)


class ScriptedBatch:
    """A batch without a model: the logits of a row are a hash of all its tokens, so that any mix-up shows.

    It branches or not, as it is told.

    ``seen`` is filled with what the sampler does: ("prefill", prompts), ("admit", rows) with all the rows there are,
    ("advance", rows).
    """

    def __init__(self, common_prefix, seen, branches):
        self.prefix, self.seen, self.branches, self.rows = common_prefix, seen, branches, []

    def prefill(self, prompts):
        assert prompts
        assert all(len(p) > len(self.prefix) and p[: len(self.prefix)] == self.prefix for p in prompts)
        self.seen.append(("prefill", list(prompts)))
        return tuple(prompts)

    def admit(self, prompts, owners):
        assert owners
        self.rows += [prompts[owner] for owner in owners]
        self.seen.append(("admit", list(self.rows)))
        self.logits = logits_of(self.rows)

    def keep(self, staying):
        assert staying.dtype == torch.int64
        assert staying.tolist() == sorted(staying.tolist())
        assert staying.tolist() != list(range(len(self.rows)))
        assert self.branches or len(set(staying.tolist())) == len(staying)
        self.rows = [self.rows[row] for row in staying.tolist()]
        self.logits = None

    def advance(self, tokens):
        self.rows = [(*row, token) for row, token in zip(self.rows, tokens.tolist(), strict=True)]
        self.seen.append(("advance", list(self.rows)))
        self.logits = logits_of(self.rows)


class ScriptedBatches:
    def __init__(self, seen, branches=False):
        self.seen, self.branches = seen, branches

    @contextmanager
    def batch(self, common_prefix, most_rows):
        yield ScriptedBatch(common_prefix, self.seen, self.branches)

    def rest(self):
        self.seen.append(("rest", None))


def logits_of(rows):
    generators = [np.random.default_rng(zlib.crc32(repr(row).encode())) for row in rows]
    return torch.tensor(np.array([2 * generator.standard_normal(VOCABULARY) for generator in generators]))


def scripted(policy, requests, budget_tokens=1 << 20, longest=LONGEST, sampling=PLAIN, branches=False):
    """Return what the sampler yields, each with how much it had done until then; and all that it did."""
    seen = []
    sampler = InProcessSampler(policy, budget_tokens, ScriptedBatches(seen, branches))
    stream = sampler.sample(requests, sampling, longest, lambda: None)
    return [(one, len(seen)) for one in stream], seen


def alone(request, answer, longest, sampling=PLAIN):
    """Write one answer by the book: one token after the other, one random number at a time."""
    generator = np.random.default_rng([*request.random_key, answer])
    history, logprobs, full = request.prompt_token_ids, [], []
    for _ in range(request.limit(answer, longest)):
        logits = logits_of([history])
        uniform = None if sampling.greedy else torch.tensor([generator.random(dtype=np.float32)])
        token, sampled_with, unscaled = draw_with_logprobs(logits, uniform, sampling)
        logprobs.append(sampled_with.item())
        full.append(unscaled.item())
        history = (*history, token.item())
        if token.item() in END_IDS:
            break
    written = history[len(request.prompt_token_ids) :]
    return written, tuple(logprobs), tuple(full), "stop" if written[-1] in END_IDS else "length"


def asked(lengths, answers, prefix=0, limits=None):
    """Ask for answers to prompts of these lengths. ``limits``: what each prompt's answers may have at most, or None.

    Each further answer of a prompt may have three tokens more, so that the limits within one differ.
    """
    limits = limits or [None] * len(lengths)
    return [
        SampleRequest(
            random_ids(prefix, seed=99) + random_ids(length, seed=number),
            count,
            (7, number),
            None if limit is None else tuple(limit + 3 * answer for answer in range(count)),
        )
        for number, (length, count, limit) in enumerate(zip(lengths, answers, limits, strict=True))
    ]


@pytest.fixture(scope="module")
def policy():
    return tiny_policy(end_ids=END_IDS)


# --- the bookkeeping, without a model --------------------------------------------------------------------------------

requests_strategy = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 5), st.none() | st.integers(1, 90)), min_size=0, max_size=7
)


@settings(deadline=None, max_examples=150)
@given(
    shapes=requests_strategy,
    prefix=st.sampled_from([0, 40]),
    budget_tokens=st.integers(1, 900),
    longest=st.integers(1, 150),
    sampling=st.sampled_from([PLAIN, NUCLEUS, GREEDY, COLD]),
    branches=st.booleans(),
)
def test_every_answer_is_what_it_is_alone(policy, shapes, prefix, budget_tokens, longest, sampling, branches):
    lengths, answers, limits = zip(*shapes, strict=True) if shapes else ((), (), ())
    requests = asked(lengths, answers, prefix, limits)
    yielded = [one for one, _ in scripted(policy, requests, budget_tokens, longest, sampling, branches)[0]]
    wanted = [(number, answer) for number, request in enumerate(requests) for answer in range(request.answers)]
    assert sorted((one.request, one.answer) for one in yielded) == wanted
    for one in yielded:
        token_ids, logprobs, full, finish = alone(requests[one.request], one.answer, longest, sampling)
        assert one.completion.token_ids == token_ids
        assert one.completion.logprobs == pytest.approx(logprobs, abs=1e-12)
        assert one.completion.full_logprobs == pytest.approx(full, abs=1e-12)
        assert one.completion.finish == finish


def test_answers_that_have_written_the_same_are_one_row(policy):
    yielded, seen = scripted(policy, asked([5, 6], [8, 8]), sampling=COLD, branches=True)
    rows = [step for what, step in seen if what in ("admit", "advance")]
    assert len(rows[0]) == 2
    assert all(len(step) == len(set(step)) for step in rows)
    assert max(map(len, rows)) < 16
    assert len({(one.request, one.completion.token_ids) for one, _ in yielded}) > 2


@settings(deadline=None, max_examples=100)
@given(shapes=requests_strategy, budget_tokens=st.integers(1, 900), longest=st.integers(1, 60))
def test_budget_prompts_and_order(policy, shapes, budget_tokens, longest):
    lengths, answers, limits = zip(*shapes, strict=True) if shapes else ((), (), ())
    requests = asked(lengths, answers, limits=limits)
    yielded, seen = scripted(policy, requests, budget_tokens, longest)
    # Each prompt that has answers is computed once, shortest first, together only with what the budget holds.
    computed = [prompts for what, prompts in seen if what == "prefill"]
    wanted = sorted((r for r in requests if r.answers), key=lambda r: len(r.prompt_token_ids))
    assert [prompt for prompts in computed for prompt in prompts] == [r.prompt_token_ids for r in wanted]
    assert all(len(p) == 1 or len(p) * max(map(len, p)) <= budget_tokens for p in computed)
    # Rows times what the longest of them may become stays within the budget; one row always runs.
    admitted = [rows for what, rows in seen if what == "admit"]
    assert all(len(rows) == 1 or len(rows) * (len(rows[-1]) + longest) <= budget_tokens for rows in admitted)
    # Answers come in the step in which they end, those of one step by request and answer.
    for one, done in yielded:
        _, rows = seen[done - 1]
        assert requests[one.request].prompt_token_ids + one.completion.token_ids[:-1] in rows
    order = [(done, one.request, one.answer) for one, done in yielded]
    assert order == sorted(order)


@pytest.mark.parametrize(("budget", "sizes"), [(1, [1] * 6), (40, [2, 2, 1, 1]), (54, [3, 2, 1]), (69, [3, 3])])
def test_the_budget_bounds_rows_times_their_longest_possible_length(budget, sizes):
    # two answers each to prompts of 1, 4 and 9 tokens, sorted; longest answer 14: rows of 15, 18 and 23 tokens.
    # 40: 2 x 15 fits and 3 x 18 does not; 2 x 18 fits and 3 x 23 does not; 2 x 23 does not.
    # 54: 3 x 18 fits and 4 x 18 does not; 2 x 23 fits and 3 x 23 does not.
    # 69: 3 x 18 fits and 4 x 18 does not; 3 x 23 just fits.
    # No token ends an answer here, so that those who begin together end together, after 13 steps between 14 tokens.
    policy = tiny_policy(end_ids=(VOCABULARY,))
    _, seen = scripted(policy, [SampleRequest(random_ids(n), 2, (n,)) for n in (9, 1, 4)], budget, longest=14)
    assert [len(rows) for what, rows in seen if what == "advance"] == [size for size in sizes for _ in range(13)]


def test_waiting_answers_take_the_places_of_finished_ones(policy, monkeypatch):
    monkeypatch.setattr(in_process, "_MOST_ROWS", {"cpu": 8})
    yielded, seen = scripted(policy, asked([5, 3, 9, 7], [20] * 4))
    assert len(yielded) == 80
    begun, steps = 0, [what for what, _ in seen]
    for at, (what, rows) in enumerate(seen):
        if what == "admit":
            begun += sum(row in {random_ids(n, seed=k) for k, n in enumerate([5, 3, 9, 7])} for row in rows)
            assert len(rows) <= 8
        if what == "advance" and begun < 80 and steps[at + 1] == "advance":
            assert len(rows) == 8  # an eighth of the rows is one row: no place stays free
    written = sum(len(one.completion.token_ids) for one, _ in yielded)
    assert steps.count("advance") < 1.25 * written / 8  # in batches that all wait for their longest it is over 2


def test_places_are_filled_when_enough_of_them_are_free(policy, monkeypatch):
    monkeypatch.setattr(in_process, "_MOST_ROWS", {"cpu": 32})
    _, seen = scripted(policy, asked([5, 3], [60] * 2))
    came = []
    for (_, before), (what, rows) in pairwise(seen):
        if what == "admit":
            came.append(len(rows) - len(before))
    assert len(came) > 10
    assert all(count >= 4 for count in came[:-1])


def test_answers_to_a_prompt_begin_next_to_each_other(policy, monkeypatch):
    monkeypatch.setattr(in_process, "_MOST_ROWS", {"cpu": 5})
    monkeypatch.setattr(in_process, "_PREFILL_TOKENS", {"cpu": 12})
    requests = asked([4, 4, 4, 4], [3] * 4)
    _, seen = scripted(policy, requests)
    assert [len(prompts) for what, prompts in seen if what == "prefill"] == [3, 1]
    prompts = [request.prompt_token_ids for request in requests]
    begun = [row for what, rows in seen if what == "admit" for row in rows if row in prompts]
    assert begun == [prompt for prompt in prompts for _ in range(3)]


def test_a_request_has_a_limit_of_its_own_but_no_higher_one(policy):
    longer = {}
    for one, _ in scripted(policy, asked([5, 3, 9], [8] * 3), longest=30)[0]:
        longer[one.request, one.answer] = one.completion
    limits = [4, None, 50]
    for one, _ in scripted(policy, asked([5, 3, 9], [8] * 3, limits=limits), longest=12)[0]:
        own = limits[one.request]
        limit = 12 if own is None else min(12, own + 3 * one.answer)
        whole = longer[one.request, one.answer]
        assert one.completion.token_ids == whole.token_ids[:limit]
        assert one.completion.finish == ("stop" if len(whole.token_ids) <= limit else "length")
    assert max(len(completion.token_ids) for completion in longer.values()) > 12


@pytest.mark.parametrize("longest", [(0,), (3, 3), ()])
def test_a_limit_for_each_answer_of_one_token_or_more_or_none(longest):
    with pytest.raises(ValueError, match="longest must be 1 limits of one token or more"):
        SampleRequest((1, 2), 1, longest=longest)


def test_numbers_drawn_in_blocks_are_those_drawn_one_by_one():
    one_by_one, blocks = (np.random.default_rng([3, 1, 4, 0]) for _ in range(2))
    singles = [one_by_one.random(dtype=np.float32) for _ in range(200)]
    drawn = np.concatenate([blocks.random(n, dtype=np.float32) for n in (64, 64, 1, 7, 64)])
    assert drawn.tolist() == singles


# --- with a model ----------------------------------------------------------------------------------------------------


def sampled(policy, requests, sampling=PLAIN, budget_tokens=1 << 20, longest=LONGEST):
    stream = InProcessSampler(policy, budget_tokens).sample(requests, sampling, longest, lambda: None)
    return {(one.request, one.answer): one.completion for one in stream}


def assert_same(ours, expected, tolerance):
    assert ours.keys() == expected.keys()
    for key, completion in ours.items():
        assert completion.token_ids == expected[key].token_ids
        assert completion.logprobs == pytest.approx(expected[key].logprobs, abs=tolerance, rel=0)
        assert completion.full_logprobs == pytest.approx(expected[key].full_logprobs, abs=tolerance, rel=0)


def recorded_forwards(policy, monkeypatch):
    """Return a list to which every forward pass adds the shapes of its ids and of its mask."""
    shapes, forward = [], policy.model.forward

    def recording(**inputs):
        shapes.append((tuple(inputs["input_ids"].shape), inputs["attention_mask"].shape[1]))
        return forward(**inputs)

    monkeypatch.setattr(policy.model, "forward", recording)
    return shapes


# The routers of the one and the attention of the other compute in float32 whatever the model does.
ROUNDING = ("mixtral", "gemma2")
EXACT = [(one, torch.float64, 1e-9) for one in ARCHITECTURES if one not in ROUNDING]


@pytest.mark.parametrize(
    ("architecture", "dtype", "tolerance", "prefix"),
    matrix(
        [*((architecture, torch.float32, 1e-4) for architecture in ARCHITECTURES), *EXACT],
        [0, 13],
        # Every architecture as exactly as it computes; without a common prefix and in float32 one of each kind.
        ci=lambda architecture, dtype, _, prefix: (
            (prefix == 13 and (dtype == torch.float64 or architecture in ROUNDING))
            or (architecture == "llama" and dtype == torch.float32)
            or (architecture, dtype, prefix) == ("gemma3", torch.float64, 0)
        ),
    ),
)
def test_refilled_rows_write_what_they_write_together_and_alone(architecture, dtype, tolerance, prefix, monkeypatch):
    policy = tiny_policy(architecture, dtype=dtype, end_ids=END_IDS)
    answers = 6 if architecture in ("gemma2", "gemma3") else 3  # so many that their lengths differ
    requests = asked([3, 9, 5, 1, 14], [answers] * 5, prefix)
    monkeypatch.setattr(in_process, "_WORTH_SHARING_TOKENS", 1 << 30)
    together = sampled(policy, requests, NUCLEUS)
    assert len({len(completion.token_ids) for completion in together.values()}) > 3
    monkeypatch.setattr(in_process, "_WORTH_SHARING_TOKENS", 1)
    assert_same(sampled(policy, requests, NUCLEUS), together, tolerance)
    # One row at a time is the plain order of things, which no architecture changes.
    for rows, prefill, block in [*([(1, 4096, 64)] if architecture == "llama" else []), (4, 40, 5)]:
        monkeypatch.setattr(in_process, "_MOST_ROWS", {"cpu": rows})
        monkeypatch.setattr(in_process, "_PREFILL_TOKENS", {"cpu": prefill})
        monkeypatch.setattr("ratchet.engine.sampler.transformers_batch._BLOCK_TOKENS", block)
        assert_same(sampled(policy, requests, NUCLEUS), together, tolerance)


def test_the_common_prefix_is_computed_once(monkeypatch):
    policy = tiny_policy(end_ids=END_IDS)
    shapes = recorded_forwards(policy, monkeypatch)
    sampled(policy, asked([3, 9, 5, 7], [2] * 4, prefix=40))
    assert [ids for ids, _ in shapes[:2]] == [(1, 40), (4, 9)]
    assert all(ids[1] == 1 for ids, _ in shapes[2:])


@pytest.mark.parametrize(
    ("prompts", "shared"),
    [
        ([random_ids(40)] * 3, 0),  # one prompt in three requests
        ([random_ids(70), random_ids(40)], 0),  # 39 tokens saved are too few
        ([random_ids(90), random_ids(80), random_ids(100)], 79),  # each keeps a token to itself
        ([random_ids(80), (*random_ids(79), 63), (5, *random_ids(79))], 0),  # they begin differently
        ([(*random_ids(66), 5), (*random_ids(66), 6, 7)], 66),
    ],
)
def test_what_is_shared(policy, monkeypatch, prompts, shared):
    shapes = recorded_forwards(policy, monkeypatch)
    sampled(policy, [SampleRequest(prompt, 1) for prompt in prompts], GREEDY, longest=1)
    longest = max(map(len, prompts))
    assert [ids for ids, _ in shapes] == [(1, shared)] * (shared > 0) + [(len(prompts), longest - shared)]


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_columns_that_no_row_needs_are_left_out(architecture, monkeypatch):
    policy = tiny_policy(architecture, end_ids=END_IDS)
    monkeypatch.setattr(in_process, "_MOST_ROWS", {"cpu": 12})
    batches = []

    class Recorded(TransformersBatches):
        @contextmanager
        def batch(self, common_prefix, most_rows):
            with super().batch(common_prefix, most_rows) as batch:
                batches.append(batch)
                yield batch

    shapes = recorded_forwards(policy, monkeypatch)
    columns = set()
    sampler = InProcessSampler(policy, 1 << 20, Recorded(policy))
    for _ in sampler.sample(asked([9, 6], [90] * 2), PLAIN, 20, lambda: None):
        columns |= {layer.keys.shape[-2] for layer in batches[0]._cache.layers}
    assert len(shapes) > 100
    assert max(width for _, width in shapes) <= 9 + 20
    assert max(columns) <= 9 + 20 + 64


def test_a_late_answer_does_not_see_who_had_its_place_before(policy, monkeypatch):
    # One place, so each answer but the first writes over another one's keys and values; the last prompt is shorter
    # than what was there.
    monkeypatch.setattr(in_process, "_MOST_ROWS", {"cpu": 2})
    requests = [SampleRequest(random_ids(30), 3, (1,)), SampleRequest(random_ids(29, seed=5), 3, (2,))]
    ours = sampled(policy, requests)
    for number, request in enumerate(requests):
        for answer in range(3):
            monkeypatch.setattr(in_process, "_MOST_ROWS", {"cpu": 1})
            assert_same({(0, 0): ours[number, answer]}, {(0, 0): sampled(policy, [request])[0, answer]}, 1e-4)


def test_buffers_have_no_more_rows_than_may_run(monkeypatch):
    # Rows that branch one after the other make the buffers grow twofold each time.
    policy = tiny_policy("llama", end_ids=END_IDS)
    monkeypatch.setattr(in_process, "_MOST_ROWS", {"cpu": 12})
    made = []

    class Recorded(DecoderBatches):
        @contextmanager
        def batch(self, common_prefix, most_rows):
            with super().batch(common_prefix, most_rows) as batch:
                made.append(batch)
                yield batch

    sampler = InProcessSampler(policy, 1 << 20, Recorded(policy))
    slots = {len(made[0]._keys[0]) for _ in sampler.sample(asked([5] * 7, [8] * 7), PLAIN, 20, lambda: None)}
    assert max(slots) == 12
