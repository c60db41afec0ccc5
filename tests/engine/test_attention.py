"""Attention by parts against a dense softmax under a mask, values and gradients, over random trees of segments."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratchet.engine.decoder import attention
from ratchet.engine.decoder.attention import Heads, attend, attend_backward, layout
from ratchet.engine.packing import pack

from .ways import answers_of

CPU = torch.device("cpu")
WIDTH = 4
SCALE = 0.7


def row_of(groups, prefix):
    (row,) = pack(answers_of(groups, prefix), 1 << 20, device=CPU, plain=False)
    return row


def joint_of(row, heads, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return 1.5 * torch.randn(len(row.input_ids) * heads.all, WIDTH, dtype=dtype, generator=generator)


def dense(joint, row, heads):
    """All scores, those that are not allowed at minus infinity; (T * heads.query, d)."""
    query, key, value = joint.view(-1, heads.all, WIDTH).split(list(heads.parts), dim=1)
    key, value = (part.repeat_interleave(heads.query // heads.key, dim=1) for part in (key, value))
    scores = SCALE * torch.einsum("thd,shd->hts", query, key)
    is_hidden = row.attention_mask(torch.float64)[0, 0] != 0
    shares = scores.masked_fill(is_hidden, -torch.inf).softmax(-1)
    return torch.einsum("hts,shd->thd", shares, value).reshape(-1, WIDTH)


def assert_as_dense(row, heads, seed=0, dtype=torch.float64, tolerance=1e-10):
    joint = joint_of(row, heads, seed, dtype)
    at = layout(row, heads, dtype)
    attended = attend(joint, at, SCALE)
    exact = joint.double().requires_grad_()
    expected = dense(exact, row, heads)
    gradient = torch.randn(expected.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    given_joint, given_gradient = joint.clone(), gradient.to(dtype)
    torch.testing.assert_close(attended.outputs.double(), expected, atol=tolerance, rtol=0)
    ours = attend_backward(given_gradient, joint, attended, at, SCALE)
    (theirs,) = torch.autograd.grad(expected, exact, gradient)
    torch.testing.assert_close(ours.double(), theirs, atol=tolerance * 20, rtol=0)
    assert torch.equal(joint, given_joint)  # what others still need is not written over
    assert torch.equal(given_gradient, gradient.to(dtype))


TREES = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 8), min_size=1, max_size=4)), min_size=1, max_size=4
)
HEADS = st.sampled_from([Heads(1, 1), Heads(2, 1), Heads(4, 2), Heads(3, 3), Heads(6, 2)])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TREES, st.sampled_from([0, 8, 13]), HEADS, st.sampled_from([0, 1, 4, 96]), st.integers(0, 1000))
def test_any_tree_of_segments_is_that_of_a_dense_softmax(groups, prefix, heads, short, seed):
    with patch.object(attention, "_SHORT", short):
        assert_as_dense(row_of(groups, prefix), heads, seed)


@pytest.mark.parametrize("prefix", [0, 10, 150])
@pytest.mark.parametrize(
    "groups",
    [
        [(96, (97, 98)), (3, (2,))],  # a level is as long as its longest segment
        [(97, (1,)), (110, (1, 1))],
        [(200, (97, 40, 260))],
    ],
)
def test_segments_around_and_beyond_the_length_that_is_multiplied_in_full(groups, prefix):
    row = row_of(groups, prefix)
    assert_as_dense(row, Heads(4, 2))
    assert_as_dense(row, Heads(2, 2), dtype=torch.float32, tolerance=1e-5)


@pytest.mark.parametrize("short", [0, 96], ids=["flash", "in full"])
@pytest.mark.parametrize("prefix", [0, 8])
def test_gradients_are_those_of_small_differences(short, prefix, monkeypatch):
    monkeypatch.setattr(attention, "_SHORT", short)
    row, heads = row_of([(2, (3, 1)), (1, (2, 2, 4))], prefix), Heads(2, 1)
    at = layout(row, heads, torch.float64)

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(ctx, joint):
            ctx.joint, ctx.attended = joint, attend(joint, at, SCALE)
            return ctx.attended.outputs.clone()

        @staticmethod
        def backward(ctx, gradient):
            return attend_backward(gradient.contiguous(), ctx.joint, ctx.attended, at, SCALE)

    assert torch.autograd.gradcheck(ByHand.apply, joint_of(row, heads, 3).requires_grad_())


def test_scores_far_apart_neither_overflow_nor_vanish():
    row, heads = row_of([(5, (4, 2)), (3, (6,))], 9), Heads(2, 1)
    joint = joint_of(row, heads, 0, torch.float32)
    joint.view(-1, heads.all, WIDTH)[:, : heads.query] *= 100  # scores of several hundreds, both signs
    attended = attend(joint, layout(row, heads, torch.float32), SCALE)
    torch.testing.assert_close(attended.outputs.double(), dense(joint.double(), row, heads), atol=1e-3, rtol=0)


def test_a_layout_without_padding_says_so():
    heads = Heads(2, 1)
    assert not layout(row_of([(3, (4, 4)), (3, (4, 4))], 9), heads, torch.float32).has_padding
    for groups in ([(3, (4, 2))], [(3, (4,)), (5, (4,))], [(3, (4, 4)), (3, (4,))]):
        assert layout(row_of(groups, 9), heads, torch.float32).has_padding


def test_every_row_of_the_projection_has_a_place_of_its_own():
    row, heads = row_of([(9, (1, 6, 3)), (1, (4, 1)), (5, (7,))], 11), Heads(4, 2)
    at = layout(row, heads, torch.float32)
    for places, count in ((at.gather_outputs, heads.query), (at.gather_gradients, heads.all)):
        assert len(places) == len(set(places.tolist())) == len(row.input_ids) * count


def test_what_is_masked_matters_nothing_even_where_numbers_are_huge():
    # Padding reads token 0; what it holds must not come through.
    row, heads = row_of([(3, (5, 2)), (6, (1, 2))], 0), Heads(2, 1)
    at = layout(row, heads, torch.float64)
    joint = joint_of(row, heads, 0)
    changed = joint.clone()
    changed[: heads.all] += 1e6  # the first token, which only the first group sees
    before, after = (attend(one, at, SCALE).outputs.view(-1, heads.query, WIDTH) for one in (joint, changed))
    start = row.groups[1].prompt[0]
    assert torch.equal(before[start:], after[start:])
    assert not torch.equal(before[:start], after[:start])
