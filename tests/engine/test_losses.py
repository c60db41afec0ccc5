"""Losses against hand-worked numbers, a slow loop, and the properties training relies on."""

from dataclasses import replace
from math import exp, inf

import pytest
import torch

from ratchet.config import RlSettings, RunConfig
from ratchet.engine.losses import LOSSES, LossStats, StepTotals, TokenBatch, k3, policy_loss

ALL = ["grpo", "dapo", "dr_grpo", "gspo", "cispo"]
RATIO_LOSSES = ["grpo", "dapo", "dr_grpo", "gspo"]


def settings(loss, **rl):
    return RunConfig(rl=RlSettings(loss=loss, **rl)).resolved().rl


def batch_of(answers, advantages, reference=None):
    """Build a micro-batch from (ratio, ...) per answer; every old probability is one half."""
    ratios = torch.tensor([ratio for answer in answers for ratio in answer], dtype=torch.float64)
    index = torch.tensor([number for number, answer in enumerate(answers) for _ in answer])
    return TokenBatch(
        logprobs=(ratios / 2).log().requires_grad_(),
        old_logprobs=torch.full_like(ratios, 0.5).log(),
        reference_logprobs=None if reference is None else torch.tensor(reference, dtype=torch.float64).log(),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        answer_index=index,
    )


def totals_of(batch, max_answer_tokens=16):
    return StepTotals(len(batch.advantages), len(batch.logprobs), max_answer_tokens)


def random_batch(lengths, seed=0, spread=0.4):
    """Build a micro-batch of float64 whose ratios leave the clip range on both sides now and then."""
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)
    normal = torch.randn(4, tokens, generator=generator, dtype=torch.float64)
    old = -normal[0].abs()
    return TokenBatch(
        logprobs=(old + spread * normal[1]).requires_grad_(),
        old_logprobs=old,
        reference_logprobs=old + 0.3 * normal[2],
        advantages=torch.randn(len(lengths), generator=generator, dtype=torch.float64),
        answer_index=torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
    )


def chosen(batch, answers):
    """Return the micro-batch of these answers, renumbered; it shares the log-probabilities' graph."""
    tokens = torch.cat([(batch.answer_index == answer).nonzero()[:, 0] for answer in answers])
    return TokenBatch(
        logprobs=batch.logprobs[tokens],
        old_logprobs=batch.old_logprobs[tokens],
        reference_logprobs=batch.reference_logprobs[tokens],
        advantages=batch.advantages[list(answers)],
        answer_index=torch.tensor([answers.index(answer) for answer in batch.answer_index[tokens].tolist()]),
    )


def gradient(batch, totals, rl):
    loss, _ = policy_loss(batch, totals, rl)
    return torch.autograd.grad(loss, batch.logprobs)[0]


# --- values worked out by hand ---------------------------------------------------------------------------------------

TWO_ANSWERS = ([1.5, 0.5], [1.5, 0.5, 1.0, 1.1]), [2.0, -1.0]


def test_grpo_worked_by_hand():
    # A = 2:  min(3, 2.4) = 2.4 clipped; min(1, 1.6) = 1; mean 1.7
    # A = -1: min(-1.5, -1.2) = -1.5; min(-.5, -.8) = -.8 clipped; -1; -1.1; mean -1.1
    # loss = -(1.7 - 1.1) / 2 = -0.3
    loss, stats = policy_loss(batch := batch_of(*TWO_ANSWERS), totals_of(batch), settings("grpo"))
    assert loss.item() == pytest.approx(-0.3)
    assert (stats.tokens, stats.clipped_tokens) == (6, 2)
    assert stats.ratio_sum == pytest.approx(6.1)
    assert (stats.ratio_min, stats.ratio_max) == pytest.approx((0.5, 1.5))


def test_dapo_worked_by_hand():
    # as grpo, but the upper bound is 1.28: min(3, 2.56) = 2.56; sums 3.56 and -4.4; loss = -(3.56 - 4.4) / 6 = 0.14
    loss, stats = policy_loss(batch := batch_of(*TWO_ANSWERS), totals_of(batch), settings("dapo"))
    assert loss.item() == pytest.approx(0.14)
    assert stats.clipped_tokens == 2


def test_dr_grpo_worked_by_hand():
    # sums as in grpo: 3.4 and -4.4; loss = -(3.4 - 4.4) / (2 answers * longest 16) = 1 / 32
    loss, _ = policy_loss(batch := batch_of(*TWO_ANSWERS), totals_of(batch), settings("dr_grpo"))
    assert loss.item() == pytest.approx(1 / 32)


def test_gspo_worked_by_hand():
    # A = 2:  s = (1.5 * .5)^(1/2) = .8660254; min(1.7320508, 1.9994) = 1.7320508, its token sum unclipped
    # A = -1: s = (1.5 * .5 * 1 * 1.1)^(1/4) = .9530452; min(-.9530452, -.9997) = -.9997, all 4 tokens clipped
    # loss = -(1.7320508 - .9997) / 2 = -0.3661754
    loss, stats = policy_loss(batch := batch_of(*TWO_ANSWERS), totals_of(batch), settings("gspo"))
    assert loss.item() == pytest.approx(-0.3661754)
    assert stats.clipped_tokens == 4
    assert stats.ratio_sum == pytest.approx(2 * 0.8660254 + 4 * 0.9530452)
    assert (stats.ratio_min, stats.ratio_max) == pytest.approx((0.8660254, 0.9530452))


def test_cispo_worked_by_hand():
    # bound 1.2; log-probabilities: ln .75 = -.2876821, ln .25 = -1.3862944, ln .5 = -.6931472, ln .55 = -.5978370
    # A = 2:  2 * (1.2 * -.2876821 + .5 * -1.3862944) = -2.0767314
    # A = -1: 1.2 * .2876821 + .5 * 1.3862944 + .6931472 + 1.1 * .5978370 = 2.3891336
    # loss = -(-2.0767314 + 2.3891336) / 6 = -0.0520670; both tokens of ratio 1.5 are bounded
    batch = batch_of(*TWO_ANSWERS)
    loss, stats = policy_loss(batch, totals_of(batch), settings("cispo", clip_high=1.2))
    assert loss.item() == pytest.approx(-0.0520670, abs=1e-7)
    assert stats.clipped_tokens == 2
    assert (stats.ratio_min, stats.ratio_max) == pytest.approx((0.5, 1.5))


def test_k3_worked_by_hand():
    # policy 1/2, reference 1/4, 1/2 and 1: d = -ln 2, 0, ln 2; e^d - d - 1 = .5 + .6931472 - 1, 0, 2 - .6931472 - 1
    kl = k3(batch_of([[1.0, 1.0, 1.0]], [0.0], reference=[0.25, 0.5, 1.0]))
    assert kl.tolist() == pytest.approx([0.1931472, 0.0, 0.3068528], abs=1e-7)


@pytest.mark.parametrize(("loss", "divisor"), [("grpo", 3), ("dapo", 3), ("dr_grpo", 16), ("gspo", 3), ("cispo", 3)])
def test_the_kl_term_is_averaged_like_the_policy_term(loss, divisor):
    # one answer without advantage, so the loss is beta times the k3 values above: 0.5 * (.1931472 + 0 + .3068528)
    batch = batch_of([[1.0, 1.0, 1.0]], [0.0], reference=[0.25, 0.5, 1.0])
    value, stats = policy_loss(batch, totals_of(batch), settings(loss, beta=0.5))
    assert value.item() == pytest.approx(0.5 * 0.5 / divisor)
    assert stats.kl_sum == pytest.approx(0.5)


def test_k3_keeps_its_digits_in_float32():
    # d = 1e-4: e^d - 1 - d = d^2 / 2 = 5e-9; exp(d) - 1 alone is off by up to 6e-8 in float32
    batch = TokenBatch(torch.zeros(1), torch.zeros(1), torch.tensor([1e-4]), torch.zeros(1), torch.tensor([0]))
    assert k3(batch).item() == pytest.approx(5e-9, rel=0.01)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        # ratios are 1: the gradient is -A * weight; weights: 1 / (2 * |i|), 1 / 4 tokens, 1 / (2 * 16)
        ("grpo", [-2.0 / 2, 1.0 / 6, 1.0 / 6, 1.0 / 6]),
        ("gspo", [-2.0 / 2, 1.0 / 6, 1.0 / 6, 1.0 / 6]),
        ("dapo", [-2.0 / 4, 1.0 / 4, 1.0 / 4, 1.0 / 4]),
        ("cispo", [-2.0 / 4, 1.0 / 4, 1.0 / 4, 1.0 / 4]),
        ("dr_grpo", [-2.0 / 32, 1.0 / 32, 1.0 / 32, 1.0 / 32]),
    ],
)
def test_on_policy_every_loss_is_the_policy_gradient(loss, expected):
    batch = batch_of([[1.0], [1.0, 1.0, 1.0]], [2.0, -1.0])
    assert gradient(batch, totals_of(batch), settings(loss)).tolist() == pytest.approx(expected)


# --- against a slow loop ---------------------------------------------------------------------------------------------


def loss_by_loop(batch, totals, rl):
    """Return the papers' formulas, one answer and one token at a time."""
    step = 0.0
    for answer, advantage in enumerate(batch.advantages.tolist()):
        here = (batch.answer_index == answer).nonzero()[:, 0].tolist()
        new, old = [batch.logprobs[t].item() for t in here], [batch.old_logprobs[t].item() for t in here]
        ratios = [exp(n - o) for n, o in zip(new, old, strict=True)]
        if rl.loss == "gspo":
            ratios = [exp(sum(n - o for n, o in zip(new, old, strict=True)) / len(here))] * len(here)
        if rl.loss == "cispo":
            terms = [-min(r, rl.clip_high) * advantage * n for r, n in zip(ratios, new, strict=True)]
        else:
            bounded = [min(max(r, 1 - rl.clip_low), 1 + rl.clip_high) for r in ratios]
            terms = [-min(r * advantage, b * advantage) for r, b in zip(ratios, bounded, strict=True)]
        if rl.beta:
            apart = [batch.reference_logprobs[t].item() - n for t, n in zip(here, new, strict=True)]
            terms = [term + rl.beta * (exp(d) - d - 1) for term, d in zip(terms, apart, strict=True)]
        step += {
            "grpo": sum(terms) / len(here) / totals.answers,
            "gspo": sum(terms) / len(here) / totals.answers,
            "dapo": sum(terms) / totals.tokens,
            "cispo": sum(terms) / totals.tokens,
            "dr_grpo": sum(terms) / (totals.answers * totals.max_answer_tokens),
        }[rl.loss]
    return step


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", ALL)
def test_values_equal_a_slow_loop(loss, beta):
    batch = random_batch([3, 1, 7, 2, 5])
    rl = settings(loss, beta=beta, **({"clip_high": 1.3} if loss == "cispo" else {}))
    value, _ = policy_loss(batch, totals_of(batch), rl)
    assert value.item() == pytest.approx(loss_by_loop(batch, totals_of(batch), rl), abs=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", RATIO_LOSSES)
def test_gradients_equal_finite_differences(loss, beta):
    batch = random_batch([3, 1, 4])
    rl = settings(loss, beta=beta)
    assert torch.autograd.gradcheck(
        lambda logprobs: policy_loss(replace(batch, logprobs=logprobs), totals_of(batch), rl)[0], (batch.logprobs,)
    )


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_the_gradient_of_cispo_equals_finite_differences_with_its_weights_held_still(beta):
    # The stop-gradient makes the weight a constant: with r the current ratio, -min(r, 1.3) * A * logp / 8 + KL term.
    batch = random_batch([3, 1, 4])
    rl = settings("cispo", beta=beta, clip_high=1.3)
    weights = (batch.logprobs.detach() - batch.old_logprobs).exp().clamp(max=1.3)
    assert (weights == 1.3).any()

    def held(logprobs):
        apart = batch.reference_logprobs - logprobs
        return (
            (-weights * batch.advantages[batch.answer_index] * logprobs) + beta * (apart.exp() - apart - 1)
        ).sum() / 8

    assert torch.autograd.gradcheck(held, (batch.logprobs,))
    (expected,) = torch.autograd.grad(held(batch.logprobs), batch.logprobs)
    torch.testing.assert_close(gradient(batch, totals_of(batch), rl), expected)


# --- how the losses relate -------------------------------------------------------------------------------------------


def assert_same_loss(batch, totals, one, other):
    torch.testing.assert_close(policy_loss(batch, totals, one)[0], policy_loss(batch, totals, other)[0])
    torch.testing.assert_close(gradient(batch, totals, one), gradient(batch, totals, other))
    assert policy_loss(batch, totals, one)[1] == policy_loss(batch, totals, other)[1]


def test_dapo_with_equal_lengths_and_clips_is_grpo():
    batch = random_batch([4, 4, 4])
    assert_same_loss(batch, totals_of(batch), settings("dapo", clip_high=0.2, beta=0.1), settings("grpo", beta=0.1))


def test_dr_grpo_whose_answers_all_have_the_longest_length_is_grpo():
    batch = random_batch([4, 4, 4])
    totals = totals_of(batch, max_answer_tokens=4)
    assert_same_loss(batch, totals, settings("dr_grpo", beta=0.1), settings("grpo", beta=0.1))


def test_gspo_with_one_token_an_answer_and_equal_clips_is_grpo():
    batch = random_batch([1] * 8)
    clips = {"clip_low": 0.2, "clip_high": 0.2, "beta": 0.1}
    assert_same_loss(batch, totals_of(batch), settings("gspo", **clips), settings("grpo", **clips))


def test_cispo_inside_its_bound_has_the_gradient_of_dapo_inside_its_clips():
    # d(r * A) = r * A * d(logp), which is what the held weight gives
    batch = random_batch([3, 1, 4], spread=0.05)
    ours = gradient(batch, totals_of(batch), settings("cispo"))
    torch.testing.assert_close(ours, gradient(batch, totals_of(batch), settings("dapo")))


def test_only_dr_grpo_takes_advantages_that_are_not_divided():
    assert [name for name, rule in LOSSES.items() if rule.advantage_scale != "group_std"] == ["dr_grpo"]


# --- what training relies on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize(
    "split",
    [[[0], [1], [2], [3], [4]], [[0, 1, 2], [3, 4]], [[4, 0], [2], [3, 1]]],
    ids=["one answer each", "in order", "shuffled"],
)
@pytest.mark.parametrize("loss", ALL)
def test_the_split_into_micro_batches_changes_nothing(loss, split, beta):
    batch = random_batch([3, 1, 7, 2, 5], spread=1.0)
    totals, rl = totals_of(batch), settings(loss, beta=beta)
    whole, whole_stats = policy_loss(batch, totals, rl)
    parts = [policy_loss(chosen(batch, answers), totals, rl) for answers in split]
    summed = sum(loss for loss, _ in parts)
    torch.testing.assert_close(summed, whole, atol=1e-9, rtol=0)
    (of_parts,) = torch.autograd.grad(summed, batch.logprobs)
    (of_whole,) = torch.autograd.grad(whole, batch.logprobs)
    torch.testing.assert_close(of_parts, of_whole, atol=1e-9, rtol=0)
    stats = sum((stats for _, stats in parts), LossStats())
    assert (stats.tokens, stats.clipped_tokens) == (whole_stats.tokens, whole_stats.clipped_tokens)
    assert stats.kl_sum == (None if beta == 0 else pytest.approx(whole_stats.kl_sum))
    assert stats.ratio_sum == pytest.approx(whole_stats.ratio_sum)
    assert (stats.ratio_min, stats.ratio_max) == pytest.approx((whole_stats.ratio_min, whole_stats.ratio_max))


@pytest.mark.parametrize("loss", ALL)
def test_tokens_may_come_in_any_order(loss):
    batch = random_batch([3, 1, 7, 2, 5])
    order = torch.randperm(18, generator=torch.Generator().manual_seed(0))
    mixed = TokenBatch(
        logprobs=batch.logprobs.detach()[order].requires_grad_(),
        old_logprobs=batch.old_logprobs[order],
        reference_logprobs=None,
        advantages=batch.advantages,
        answer_index=batch.answer_index[order],
    )
    rl = settings(loss)
    torch.testing.assert_close(policy_loss(mixed, totals_of(batch), rl)[0], policy_loss(batch, totals_of(batch), rl)[0])
    torch.testing.assert_close(gradient(mixed, totals_of(batch), rl), gradient(batch, totals_of(batch), rl)[order])


# ratio 1.5 is above and 0.5 below every bound used here; the advantage's sign decides whether the clip acts
@pytest.mark.parametrize(
    ("ratio", "advantage", "acts"), [(1.5, 1.0, True), (0.5, -1.0, True), (1.5, -1.0, False), (0.5, 1.0, False)]
)
@pytest.mark.parametrize("loss", RATIO_LOSSES)
def test_the_clip_stops_a_gradient_that_would_push_a_ratio_further_out_and_no_other(loss, ratio, advantage, acts):
    batch = batch_of([[ratio, ratio]], [advantage])
    _, stats = policy_loss(batch, totals_of(batch), settings(loss))
    assert stats.clipped_tokens == (2 if acts else 0)
    assert gradient(batch, totals_of(batch), settings(loss)).eq(0).tolist() == [acts, acts]


@pytest.mark.parametrize(("ratio", "low", "high"), [(1.25, 0.2, 0.3), (0.75, 0.3, 0.2)], ids=["high", "low"])
def test_each_clip_setting_bounds_its_own_side(ratio, low, high):
    # 1.25 is inside 1 + 0.3 but outside 1 + 0.2, and 0.75 inside 1 - 0.3 but outside 1 - 0.2
    batch = batch_of([[ratio]], [1.0 if ratio > 1 else -1.0])
    clipped = [
        policy_loss(batch, totals_of(batch), settings("grpo", clip_low=a, clip_high=b))[1].clipped_tokens
        for a, b in [(low, high), (high, low)]
    ]
    assert clipped == [0, 1]


@pytest.mark.parametrize(("advantage", "clipped"), [(1.0, 1), (-1.0, 1), (0.0, 0)])
def test_cispo_bounds_the_weight_but_keeps_the_gradient(advantage, clipped):
    # ratios 8 and 0.01: weights 5 (the bound itself, not 1 + 5) and 0.01 (no bound below); gradient -weight * A / 2
    batch = batch_of([[8.0, 0.01]], [advantage])
    _, stats = policy_loss(batch, totals_of(batch), settings("cispo"))
    assert stats.clipped_tokens == clipped
    found = gradient(batch, totals_of(batch), settings("cispo")).tolist()
    assert found == pytest.approx([-5 * advantage / 2, -0.01 * advantage / 2])


@pytest.mark.parametrize("loss", ALL)
def test_an_answer_without_advantage_gives_no_gradient(loss):
    batch = random_batch([3, 4, 2], spread=1.0)
    batch.advantages[1] = 0.0
    is_silent = gradient(batch, totals_of(batch), settings(loss)).eq(0)
    _, stats = policy_loss(chosen(batch, [1]), totals_of(batch), settings(loss))
    assert is_silent[batch.answer_index == 1].all()
    assert stats.clipped_tokens == 0


@pytest.mark.parametrize("loss", ALL)
def test_old_and_reference_policy_are_constants(loss):
    batch = random_batch([3, 1, 4])
    grown = replace(
        batch,
        old_logprobs=batch.old_logprobs.clone().requires_grad_(),
        reference_logprobs=batch.reference_logprobs.clone().requires_grad_(),
    )
    policy_loss(grown, totals_of(batch), settings(loss, beta=0.1))[0].backward()
    assert batch.logprobs.grad is not None
    assert grown.old_logprobs.grad is None
    assert grown.reference_logprobs.grad is None


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_has_the_dtype_of_the_logprobs(loss, dtype):
    batch = random_batch([3, 1, 4])
    cast = TokenBatch(
        batch.logprobs.detach().to(dtype),
        batch.old_logprobs.to(dtype),
        batch.reference_logprobs.to(dtype),
        batch.advantages.to(dtype),
        batch.answer_index,
    )
    assert policy_loss(cast, totals_of(batch), settings(loss, beta=0.1))[0].dtype == dtype


@pytest.mark.parametrize("loss", ALL)
def test_the_same_micro_batch_gives_the_same_bytes(loss):
    batch = random_batch([40] * 1000)
    first, second = (gradient(batch, totals_of(batch), settings(loss, beta=0.1)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("loss", ALL)
def test_the_backward_pass_never_sums_over_tokens_in_an_order_a_device_may_choose(loss):
    # Gathering with repeated indices has a scattered sum as its gradient, which devices add up in any order.
    batch = random_batch([3, 1, 4])
    nodes, names = [policy_loss(batch, totals_of(batch), settings(loss, beta=0.1))[0].grad_fn], set()
    while nodes:
        node = nodes.pop()
        names.add(node.name())
        nodes += [parent for parent, _ in node.next_functions if parent is not None]
    assert "SumBackward0" in names
    assert not [name for name in names if name.startswith(("Index", "Gather", "Scatter", "Put", "Take"))]


def test_no_kl_is_none_and_not_zero():
    batch = random_batch([3])
    assert policy_loss(batch, totals_of(batch), settings("grpo"))[1].kl_sum is None
    same = replace(batch, reference_logprobs=batch.logprobs.detach().clone())
    assert policy_loss(same, totals_of(batch), settings("grpo", beta=0.1))[1].kl_sum == 0.0


def test_stats_join_by_sums_and_extremes():
    one, other = LossStats(3, 1, 0.5, 3.1, 0.9, 1.2), LossStats(2, 0, None, 1.9, 0.8, 1.1)
    assert one + other == LossStats(5, 1, 0.5, 5.0, 0.8, 1.2)
    assert LossStats() + other == other
    assert other + other == LossStats(4, 0, None, 3.8, 0.8, 1.1)
    assert LossStats().ratio_min == inf


def test_the_kl_sum_joins_the_micro_batches():
    assert (LossStats(kl_sum=0.5) + LossStats(kl_sum=0.25)).kl_sum == 0.75


# --- refused ---------------------------------------------------------------------------------------------------------


def test_beta_without_a_reference_is_refused():
    batch = batch_of([[1.0]], [1.0])
    with pytest.raises(ValueError, match="no reference log-probabilities"):
        policy_loss(batch, totals_of(batch), settings("grpo", beta=0.1))


@pytest.mark.parametrize("given", [{"clip_low": 0.2}, {"clip_high": 0.2}])
def test_settings_that_are_not_resolved_are_refused(given):
    batch = batch_of([[1.0]], [1.0])
    with pytest.raises(ValueError, match="not resolved"):
        policy_loss(batch, totals_of(batch), RlSettings(**given))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprobs": torch.zeros(0)}, "^logprobs must be"),
        ({"logprobs": torch.zeros(1, 4)}, "^logprobs must be"),
        ({"old_logprobs": torch.zeros(1)}, "old_logprobs must be"),
        ({"reference_logprobs": torch.zeros(1)}, "reference_logprobs must be"),
        ({"answer_index": torch.zeros(1, dtype=torch.int64)}, "answer_index must be"),
        ({"advantages": torch.zeros(2, 1)}, "advantages must be"),
    ],
)
def test_tensors_that_would_broadcast_into_a_wrong_loss_are_refused(change, message):
    batch = random_batch([3, 1])
    with pytest.raises(ValueError, match=message):
        policy_loss(replace(batch, **change), totals_of(batch), settings("grpo", beta=0.1))
