"""Truncated importance: values worked by hand, and what is reported of them."""

from math import e, exp, inf, log, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratchet.engine.losses import ImportanceStats, truncated_importance


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_weights_are_the_ratio_of_probabilities_up_to_the_cap():
    # The trainer's probabilities over the sampler's: .2/.4 = .5, .3/.3 = 1, .6/.4 = 1.5, .9/.3 = 3 -> 2.
    trainer, sampler = tensor(0.2, 0.3, 0.6, 0.9).log(), tensor(0.4, 0.3, 0.4, 0.3).log()
    weights, stats = truncated_importance(trainer, sampler, 2.0)
    torch.testing.assert_close(weights, tensor(0.5, 1.0, 1.5, 2.0))
    assert stats.tokens == 4
    assert stats.capped_tokens == 1
    assert stats.ratio_sum == pytest.approx(0.5 + 1 + 1.5 + 3)  # before the cap
    assert stats.ratio_max == pytest.approx(3)
    assert stats.gap_sum == pytest.approx(log(2) + log(1.5) + log(3))


def test_weights_are_constants():
    trainer = tensor(-1.0, -2.0).requires_grad_()
    weights, _ = truncated_importance(trainer, tensor(-1.5, -1.5), 2.0)
    assert not weights.requires_grad


def test_a_ratio_of_exactly_the_cap_is_not_lowered():
    assert truncated_importance(tensor(0.0), tensor(0.0), 1.0)[1].capped_tokens == 0


def test_what_is_reported_stays_a_number_that_a_file_can_hold():
    _, stats = truncated_importance(torch.tensor([0.0]), torch.tensor([-500.0]), 2.0)
    assert stats.ratio_max == pytest.approx(exp(20))
    assert stats.gap_sum == pytest.approx(500)


@pytest.mark.parametrize("damaged", [nan, inf, -inf])
def test_a_number_that_is_not_finite_stops_the_step_and_is_not_reported(damaged):
    weights, stats = truncated_importance(tensor(damaged, -1.0), tensor(-1.0, -2.0), 2.0)
    assert weights[0].isnan()
    assert weights[1] == 2.0
    assert (stats.tokens, stats.ratio_max) == (1, pytest.approx(e))


@given(
    st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=12),
    st.floats(1, 10),
    st.integers(0, 12),
)
def test_micro_batches_add_up_and_no_weight_passes_the_cap(pairs, cap, cut):
    trainer, sampler = torch.tensor(pairs, dtype=torch.float64).unbind(dim=1)
    weights, whole = truncated_importance(trainer, sampler, cap)
    assert bool(((weights > 0) & (weights <= cap)).all())
    parts = sum(
        (truncated_importance(trainer[part], sampler[part], cap)[1] for part in (slice(cut), slice(cut, None))),
        ImportanceStats(),
    )
    assert (parts.tokens, parts.capped_tokens, parts.ratio_max) == (
        whole.tokens,
        whole.capped_tokens,
        whole.ratio_max,
    )
    assert parts.ratio_sum == pytest.approx(whole.ratio_sum)
    assert parts.gap_sum == pytest.approx(whole.gap_sum)
