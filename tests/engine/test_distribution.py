"""The sampling distribution against hand-worked cases, exact frequencies and transformers' own processors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from ratchet.config import RlSettings
from ratchet.engine.distribution import (
    GREEDY,
    SamplingSettings,
    draw_with_logprobs,
    sampling_logprobs,
    scaled_logits,
    taken_logprobs,
    truncated,
)

INF = float("inf")
# Exact in binary, so that sums at the edge are exact too.
HALVES = torch.tensor([[0.125, 0.5, 0.25, 0.125]]).log()
JUST_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0)).item()


def drawn_tokens(logits, uniform, settings):
    return draw_with_logprobs(logits, uniform, settings)[0]


def kept(logits):
    return (logits > -INF).tolist()


# --- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("top_k", "top_p", "expected"),
    [
        (0, 1.0, [True, True, True, True]),
        (1, 1.0, [False, True, False, False]),
        (2, 1.0, [False, True, True, False]),
        (3, 1.0, [True, True, True, True]),  # third and fourth are alike: both stay
        (4, 1.0, [True, True, True, True]),
        (99, 1.0, [True, True, True, True]),
        (0, 1e-9, [False, True, False, False]),  # at least one
        (0, 1e-60, [False, True, False, False]),  # also where float32 takes it for 0
        (0, 0.49, [False, True, False, False]),
        (0, 0.51, [False, True, True, False]),  # .5 is not yet enough, .75 is
        (0, 0.74, [False, True, True, False]),
        (0, 0.76, [True, True, True, False]),  # of two alike the first in the vocabulary
        (0, 0.88, [True, True, True, True]),
        # Top-k first: of .5 and .25 the first has 2/3 of what is left, so 0.7 needs both and 0.66 one.
        (2, 0.7, [False, True, True, False]),
        (2, 0.66, [False, True, False, False]),
    ],
)
def test_what_is_kept_worked_by_hand(top_k, top_p, expected):
    assert kept(truncated(HALVES, top_k, top_p)) == [expected]


def test_the_nucleus_ends_with_the_token_that_reaches_top_p_exactly():
    # softmax of these is (.5, .25, .25) without rounding; .5 reaches .5, .5 + .25 reaches .75
    logits = torch.tensor([[2.0, 1.0, 1.0]], dtype=torch.float64) * np.log(2)
    probabilities = logits.softmax(-1)
    assert probabilities.tolist() == [[0.5, 0.25, 0.25]]
    assert kept(truncated(logits, 0, 0.5)) == [[True, False, False]]
    assert kept(truncated(logits, 0, 0.75)) == [[True, True, False]]


def test_what_stays_is_not_changed():
    logits = torch.tensor([[3.0, 1.0, 2.0, -5.0], [0.0, 9.0, 1.0, 8.0]])
    result = truncated(logits, 3, 0.999)
    assert result[result > -INF].tolist() == logits[result > -INF].tolist()
    assert truncated(logits, 0, 1.0) is logits


def test_rows_do_not_leak_into_one_another():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 30, generator=generator) * 3
    together = truncated(logits, 9, 0.8)
    assert torch.equal(together, torch.cat([truncated(row[None], 9, 0.8) for row in logits]))


def test_a_drawn_token_stays_whatever_its_rank():
    result = truncated(HALVES, 1, 0.3, keep=torch.tensor([3]))
    assert kept(result) == [[False, True, False, True]]
    assert result[0, 3] == HALVES[0, 3]


def test_keeping_a_token_that_stays_anyway_changes_nothing():
    assert torch.equal(truncated(HALVES, 2, 0.9, keep=torch.tensor([1])), truncated(HALVES, 2, 0.9))


# --- log-probabilities -----------------------------------------------------------------------------------------------


def test_log_probabilities_worked_by_hand():
    logits = HALVES + 7.0  # a constant drops out
    own = SamplingSettings(top_k=2)
    drawn, sampled, full = draw_with_logprobs(logits, torch.tensor([0.8]), own)
    # .25 of everything; of the two that stay 1/3
    assert drawn.tolist() == [2]
    torch.testing.assert_close(full.exp(), torch.tensor([0.25]))
    torch.testing.assert_close(sampled.exp(), torch.tensor([1 / 3]))
    torch.testing.assert_close(sampling_logprobs(logits, drawn, own), sampled)


def test_temperature_comes_before_truncation():
    # At T = 0.5 probabilities are squared: 1/64, 16/64, 4/64, 1/64 over 22/64
    settings = SamplingSettings(temperature=0.5, top_p=0.9)  # 16/22 = .73, 20/22 = .909: two stay; at T = 1 three would
    drawn, sampled, full = draw_with_logprobs(HALVES, torch.tensor([0.9]), settings)
    assert drawn.tolist() == [2]
    torch.testing.assert_close(full.exp(), torch.tensor([4 / 22]))
    torch.testing.assert_close(sampled.exp(), torch.tensor([4 / 20]))
    torch.testing.assert_close(sampling_logprobs(HALVES, drawn, settings), sampled)


def test_without_truncation_both_are_one():
    for sampling, uniform in ((SamplingSettings(temperature=0.7), torch.tensor([0.5])), (GREEDY, None)):
        _, sampled, full = draw_with_logprobs(HALVES, uniform, sampling)
        assert sampled is full


def test_a_token_outside_the_nucleus_has_a_finite_log_probability_if_it_was_drawn():
    sampled = sampling_logprobs(HALVES, torch.tensor([3]), SamplingSettings(top_k=1))
    torch.testing.assert_close(sampled.exp(), torch.tensor([0.2]))  # .125 of .5 + .125


def test_greedy_leaves_the_other_settings_unused():
    odd = SamplingSettings(temperature=0.3, top_k=1, top_p=0.1, greedy=True)
    assert not odd.truncates
    token = torch.tensor([2])
    assert sampling_logprobs(HALVES, token, odd).tolist() == sampling_logprobs(HALVES, token, GREEDY).tolist()
    both = [draw_with_logprobs(HALVES, torch.tensor([0.99]), settings) for settings in (odd, GREEDY)]
    assert [t.tolist() for t in both[0]] == [t.tolist() for t in both[1]]
    assert both[0][1].exp().tolist() == pytest.approx([0.5])


def test_taken_logprobs_are_log_softmax_with_its_gradient():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 11, generator=generator, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([0, 10, 3, 3, 7])
    ours = taken_logprobs(logits, tokens)
    plain = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    torch.testing.assert_close(ours, plain, atol=1e-12, rtol=0)
    weights = torch.arange(1.0, 6, dtype=torch.float64)
    (own,) = torch.autograd.grad((ours * weights).sum(), logits)
    (theirs,) = torch.autograd.grad((plain * weights).sum(), logits)
    torch.testing.assert_close(own, theirs, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("given", "result"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64, torch.float64)],
)
def test_half_precision_is_widened_before_anything_is_computed(given, result):
    for temperature in (1.0, 0.5):
        assert scaled_logits(torch.ones(1, 3, dtype=given), temperature).dtype == result


def test_settings_of_a_run_are_taken_over():
    assert SamplingSettings.of(RlSettings(temperature=0.6, top_p=0.9, top_k=20)) == SamplingSettings(0.6, 0.9, 20)
    assert [
        SamplingSettings(top_p=0.9).truncates,
        SamplingSettings(top_k=1).truncates,
        SamplingSettings().truncates,
    ] == [
        True,
        True,
        False,
    ]


# --- agreement with transformers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 5, 20, 49])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.9, 0.3])
def test_the_same_tokens_stay_as_in_transformers_where_nothing_is_tied(temperature, top_k, top_p):
    # Where tokens are tied at the edge of the nucleus, transformers keeps the later ones of the vocabulary and we the
    # earlier ones; random logits are never tied.
    logits = torch.randn(40, 50, generator=torch.Generator().manual_seed(1)) * 3
    theirs = TemperatureLogitsWarper(temperature)(None, logits.clone()) if temperature != 1 else logits
    theirs = TopKLogitsWarper(top_k)(None, theirs) if top_k else theirs
    theirs = TopPLogitsWarper(top_p)(None, theirs) if top_p < 1 else theirs
    torch.testing.assert_close(truncated(scaled_logits(logits, temperature), top_k, top_p), theirs, atol=0, rtol=0)


def test_ties_at_the_edge_of_top_k_all_stay_as_in_transformers():
    logits = torch.tensor([[1.0, 2.0, 1.0, 1.0, 0.0]])
    assert kept(truncated(logits, 2, 1.0)) == kept(TopKLogitsWarper(2)(None, logits)) == [[True] * 4 + [False]]


# --- drawing ---------------------------------------------------------------------------------------------------------


def test_a_token_is_drawn_where_its_share_of_the_unit_interval_lies():
    # shares in order of the vocabulary: [0, .125) [.125, .625) [.625, .875) [.875, 1)
    uniform = torch.tensor([0.0, 0.124, 0.126, 0.624, 0.626, 0.874, 0.876, JUST_BELOW_ONE])
    drawn = drawn_tokens(HALVES.expand(8, -1), uniform, SamplingSettings())
    assert drawn.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_evenly_spread_numbers_give_exactly_the_probabilities():
    settings = SamplingSettings(temperature=0.5)  # 1/22, 16/22, 4/22, 1/22
    uniform = (torch.arange(2200) + 0.5) / 2200
    drawn = drawn_tokens(HALVES.expand(2200, -1), uniform, settings)
    assert torch.bincount(drawn, minlength=4).tolist() == [100, 1600, 400, 100]


@pytest.mark.parametrize("settings", [SamplingSettings(top_k=2), SamplingSettings(top_p=0.7)])
def test_evenly_spread_numbers_never_draw_what_was_left_out(settings):
    drawn = drawn_tokens(HALVES.expand(300, -1), (torch.arange(300) + 0.5) / 300, settings)
    assert torch.bincount(drawn, minlength=4).tolist() == [0, 200, 100, 0]


@pytest.mark.parametrize("uniform", [0.0, JUST_BELOW_ONE])
@pytest.mark.parametrize("impossible", [[0], [3], [0, 3], [1, 2], [0, 1, 2], [1, 2, 3]])
def test_a_token_of_probability_zero_is_never_drawn_at_the_edges(uniform, impossible):
    logits = torch.zeros(1, 4)
    logits[:, impossible] = -INF
    assert drawn_tokens(logits, torch.tensor([uniform]), SamplingSettings()).item() not in impossible


def test_a_token_too_unlikely_for_float32_is_never_drawn_at_the_edges():
    logits = torch.tensor([[-200.0, 0.0, 0.0, -200.0]])
    for uniform in (0.0, JUST_BELOW_ONE):
        assert drawn_tokens(logits, torch.tensor([uniform]), SamplingSettings()).item() in (1, 2)


def test_a_uniform_number_in_double_precision_may_round_up_to_one():
    uniform = torch.tensor([1 - 1e-12], dtype=torch.float64)
    assert drawn_tokens(torch.zeros(1, 3), uniform, SamplingSettings()).item() == 2


def test_greedy_takes_the_likeliest_and_of_equals_the_first():
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, 4.0]])
    assert drawn_tokens(logits, None, GREEDY).tolist() == [1, 0]
    assert drawn_tokens(logits, torch.tensor([0.99, 0.99]), GREEDY).tolist() == [1, 0]


FEW = st.lists(st.floats(-30, 30), min_size=2, max_size=12)


@settings(max_examples=200, deadline=None)
@given(FEW, st.integers(0, 14), st.floats(0.01, 1), st.floats(0.1, 5), st.floats(0, 1, exclude_max=True, width=32))
def test_what_is_drawn_was_possible_and_has_the_log_probability_it_was_drawn_with(values, top_k, top_p, temperature, u):
    own = SamplingSettings(temperature, top_p, top_k)
    logits = torch.tensor([values], dtype=torch.float32)
    token, sampled, full = draw_with_logprobs(logits, torch.tensor([u]), own)
    allowed = truncated(scaled_logits(logits, temperature), top_k, top_p)
    assert allowed[0, token] > -INF
    close = {"atol": 1e-5 + 2e-7 * float(scaled_logits(logits, temperature).abs().max()), "rtol": 1e-5}
    torch.testing.assert_close(sampling_logprobs(logits, token, own), sampled, **close)
    torch.testing.assert_close(full, taken_logprobs(scaled_logits(logits, temperature), token), **close)
    torch.testing.assert_close(sampled, allowed.log_softmax(-1)[0, token], **close)
    assert full <= sampled + close["atol"]
    assert sampled <= 1e-6


@settings(max_examples=200, deadline=None)
@given(FEW, st.integers(1, 14), st.floats(0.01, 0.99))
def test_the_kept_tokens_are_the_smallest_likeliest_set_that_reaches_top_p(values, top_k, top_p):
    logits = torch.tensor([values], dtype=torch.float64)
    is_kept = truncated(logits, top_k, top_p)[0] > -INF
    order = logits[0].argsort(descending=True, stable=True)
    number = int(is_kept.sum())
    assert number >= 1
    assert set(order[:number].tolist()) == set(is_kept.nonzero()[:, 0].tolist())
    among = truncated(logits, top_k, 1.0).softmax(-1)[0][order]
    assert among[:number].sum() >= top_p - 1e-9
    assert number == 1 or among[: number - 1].sum() < top_p + 1e-9


# --- drawing against a plain inverse of the cumulative distribution --------------------------------------------------

# Around multiples of the block in which the distribution is summed.
SIZES = [1, 2, 3, 255, 256, 257, 511, 512, 513, 1000, 1024]


def by_the_book(probabilities, uniform):
    """Return the first token at which the sum exceeds the number, in float64, one row after the other."""
    drawn = []
    for row, number in zip(probabilities.double().tolist(), uniform.double().tolist(), strict=True):
        target, total, passed = number * sum(row), 0.0, None
        for token, share in enumerate(row):
            total += share
            if share and total > target:
                passed = token
                break
        drawn.append(passed)
    return drawn


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "own", [SamplingSettings(), SamplingSettings(0.7, 0.9), SamplingSettings(1.5, top_k=40)], ids=str
)
def test_any_vocabulary_is_drawn_from_as_by_the_book(size, own):
    generator = torch.Generator().manual_seed(size)
    logits = 2 * torch.randn(50, size, generator=generator, dtype=torch.float64)
    uniform = torch.rand(50, generator=generator, dtype=torch.float64)
    tokens, sampled, full = draw_with_logprobs(logits, uniform, own)
    scaled = logits / own.temperature
    kept_logits = truncated(scaled, own.top_k, own.top_p)
    assert tokens.tolist() == by_the_book(kept_logits.softmax(-1), uniform)
    for ours, whole in ((sampled, kept_logits), (full, scaled)):
        expected = whole.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
        torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(sampling_logprobs(logits, tokens, own), sampled, atol=1e-12, rtol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_edges_of_the_unit_interval_are_the_first_and_the_last_token(size, dtype):
    logits = torch.zeros(2, size, dtype=dtype)
    tokens = drawn_tokens(logits, torch.tensor([0.0, JUST_BELOW_ONE]), SamplingSettings())
    assert tokens.tolist() == [0, size - 1]


@pytest.mark.parametrize(
    "possible", [[0], [255], [256], [599], [255, 256], [0, 599], [300, 301, 520], [511, 512], [256, 257, 258, 511]]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_blocks_of_probability_zero_are_passed_over(possible, dtype):
    logits = torch.full((601, 600), -INF, dtype=dtype)
    logits[:, possible] = torch.linspace(-2, 2, len(possible), dtype=dtype)
    uniform = torch.cat([torch.arange(600) / 600, torch.tensor([JUST_BELOW_ONE])])
    tokens, sampled, _ = draw_with_logprobs(logits, uniform, SamplingSettings())
    assert tokens.unique().tolist() == possible
    assert sampled.isfinite().all()
    assert tokens.tolist() == sorted(tokens.tolist())


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 700),
    st.integers(0, 2**32 - 1),
    st.floats(0, 1),
    st.one_of(st.just(0.0), st.just(JUST_BELOW_ONE), st.floats(0, 1, exclude_max=True, width=32)),
)
def test_no_token_of_probability_zero_is_ever_drawn(size, seed, share, u):
    generator = np.random.default_rng(seed)
    logits = torch.from_numpy(generator.standard_normal((4, size)).astype(np.float32) * 20)
    logits[torch.from_numpy(generator.random((4, size)) < share)] = -INF
    logits[torch.arange(4), torch.from_numpy(generator.integers(0, size, 4))] = 1.0
    tokens = drawn_tokens(logits, torch.full((4,), u), SamplingSettings())
    assert (logits.softmax(-1).gather(-1, tokens[:, None]) > 0).all()


@pytest.mark.parametrize("size", [3, 256, 300, 600])
@pytest.mark.parametrize(
    "own", [SamplingSettings(), SamplingSettings(0.7, 0.9), SamplingSettings(top_k=2), GREEDY], ids=str
)
@pytest.mark.parametrize("value", [float("nan"), INF])
def test_a_row_that_is_not_finite_shows_and_leaves_the_others_alone(size, own, value):
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(0))
    spoiled = logits.clone()
    spoiled[1, size // 2] = value
    uniform = None if own.greedy else torch.tensor([0.1, 0.5, 0.9])
    expected = draw_with_logprobs(logits, uniform, own)
    tokens, sampled, full = draw_with_logprobs(spoiled, uniform, own)
    assert 0 <= tokens[1] < size
    assert not sampled[1].isfinite()
    assert not full[1].isfinite()
    for ours, theirs in zip((tokens, sampled, full), expected, strict=True):
        assert torch.equal(ours[[0, 2]], theirs[[0, 2]])


def test_a_large_vocabulary_in_float32_is_drawn_from_evenly():
    # A float32 sum over so many tokens would have lost the small shares at the end.
    size = 150_000
    logits = torch.zeros(1, size).expand(200, -1)
    uniform = (torch.arange(200) + 0.5) / 200
    tokens = drawn_tokens(logits, uniform, SamplingSettings())
    expected = (uniform.double() * size).long()
    assert (tokens - expected).abs().max() <= 1
