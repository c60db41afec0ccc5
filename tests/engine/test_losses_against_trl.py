"""Losses against TRL 1.16: the same tensors through its trainer's loss give the same values and gradients.

TRL computes its loss in a method of its trainer, so the tests call that method on a trainer that was never set up
and holds just what the method reads. TRL pads answers into rows; we do not.
"""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from ratchet.config import RlSettings, RunConfig
from ratchet.engine.losses import LossStats, StepTotals, TokenBatch, policy_loss

ALL = ["grpo", "dapo", "dr_grpo", "gspo", "cispo"]
LENGTHS = [1, 3, 4, 7, 2, 5]
ADVANTAGES = [0.7, 1.3, -0.9, -1.1, 0.0, 0.4]
LONGEST = 16
# In float64 the two differ by rounding alone.
TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}


def settings(loss, beta):
    return RunConfig(rl=RlSettings(loss=loss, beta=beta)).resolved().rl


@pytest.fixture
def batch():
    """Six answers of uneven length under a policy that has moved away from the old one."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(3, sum(LENGTHS), generator=generator, dtype=torch.float64)
    old = -3 - normal[0].abs()
    new = old + 0.3 * normal[1]
    # Beyond every bound, cispo's 5 = e^1.6 included: up and down, each with a positive and with a negative advantage.
    new[1], new[17], new[8], new[4] = old[1] + 2, old[17] - 2, old[8] + 2, old[4] - 2
    return TokenBatch(
        logprobs=new.requires_grad_(),
        old_logprobs=old,
        reference_logprobs=old + 0.3 * normal[2],
        advantages=torch.tensor(ADVANTAGES, dtype=torch.float64),
        answer_index=torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS)),
    )


@pytest.fixture
def totals():
    return StepTotals(answers=len(LENGTHS), tokens=sum(LENGTHS), max_answer_tokens=LONGEST)


def rows(tokens):
    """Pad flat tokens into TRL's rows with a value that would show if it were counted."""
    return pad_sequence(tokens.split(LENGTHS), batch_first=True, padding_value=-0.123)


def corrected(batch):
    """Return the batch with an importance for each token, some of them at a cap of 2."""
    generator = torch.Generator().manual_seed(1)
    ratios = torch.randn(sum(LENGTHS), generator=generator, dtype=torch.float64).exp()
    return replace(batch, importance=ratios.clamp(max=2.0))


def trl_loss(batch, rl):
    """Return TRL's loss of one optimizer step that consists of this batch alone, and the metrics it logs."""
    from trl import GRPOTrainer

    trainer = object.__new__(GRPOTrainer)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (rows(batch.logprobs), torch.zeros(6, 7), None)
    trainer.model = SimpleNamespace(training=True)
    # One process, one micro-batch, one step per generation: nothing is left to rescale.
    trainer.accelerator = SimpleNamespace(
        num_processes=1, gather=lambda tensor: tensor, reduce=lambda tensor, reduction: tensor
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.args = SimpleNamespace(steps_per_generation=1, delta=None, use_bias_correction_kl=False)
    trainer._metrics = {"train": defaultdict(list)}
    # What we do not have, switched off as by TRL's defaults.
    trainer.aux_loss_enabled = trainer._entropy_bonus_enabled = False
    trainer.top_entropy_quantile, trainer.off_policy_mask_threshold = 1.0, None
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = batch.importance is not None
    # What is compared. TRL has no loss type of the name gspo.
    trainer.loss_type = "grpo" if rl.loss == "gspo" else rl.loss
    trainer.importance_sampling_level = "sequence" if rl.loss == "gspo" else "token"
    trainer.epsilon_low, trainer.epsilon_high, trainer.beta = rl.clip_low, rl.clip_high, rl.beta
    trainer.max_completion_length = LONGEST
    mask = pad_sequence([torch.ones(length, dtype=torch.int64) for length in LENGTHS], batch_first=True)
    inputs = {
        "prompt_ids": torch.zeros(6, 2, dtype=torch.int64),
        "prompt_mask": torch.ones(6, 2, dtype=torch.int64),
        "completion_ids": torch.zeros(6, 7, dtype=torch.int64),
        "completion_mask": mask,
        "advantages": batch.advantages,
        "old_per_token_logps": rows(batch.old_logprobs),
        "ref_per_token_logps": rows(batch.reference_logprobs),
        "num_items_in_batch": mask.sum(),
    }
    if batch.importance is not None:
        inputs["importance_sampling_ratio"] = rows(batch.importance)
    loss = trainer._compute_loss(trainer.model, inputs)
    return loss, {name: values[0] for name, values in trainer._metrics["train"].items()}


def chosen(batch, answers):
    """Return the micro-batch of these answers, renumbered; it shares the log-probabilities' graph."""
    tokens = torch.cat([(batch.answer_index == answer).nonzero()[:, 0] for answer in answers])
    return TokenBatch(
        logprobs=batch.logprobs[tokens],
        old_logprobs=batch.old_logprobs[tokens],
        reference_logprobs=batch.reference_logprobs[tokens],
        advantages=batch.advantages[answers],
        answer_index=torch.tensor([answers.index(answer) for answer in batch.answer_index[tokens].tolist()]),
        importance=None if batch.importance is None else batch.importance[tokens],
    )


@pytest.mark.parametrize("loss", ALL)
def test_the_batch_makes_the_clips_act_by_trls_own_count(batch, loss):
    theirs, metrics = trl_loss(batch, settings(loss, beta=0.0))
    (gradient,) = torch.autograd.grad(theirs, batch.logprobs)
    assert len(batch.answer_index[gradient != 0].unique()) >= 2  # and leave something to compare
    if loss == "cispo":  # has no lower bound
        assert 0 < metrics["cispo_clip_ratio"] < 1
    else:
        assert metrics["clip_ratio/low_mean"] > 0
        assert metrics["clip_ratio/high_mean"] > 0
        assert metrics["clip_ratio/region_mean"] < 1


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", ALL)
def test_value_and_gradient_are_trls(batch, totals, loss, beta):
    theirs, _ = trl_loss(batch, settings(loss, beta))
    ours, _ = policy_loss(batch, totals, settings(loss, beta))
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    (our_gradient,) = torch.autograd.grad(ours, batch.logprobs)
    (their_gradient,) = torch.autograd.grad(theirs, batch.logprobs)
    assert their_gradient.ne(0).any()
    torch.testing.assert_close(our_gradient, their_gradient, **TOLERANCE)


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", ALL)
def test_with_an_importance_value_and_gradient_are_trls(batch, totals, loss, beta):
    plain, batch = batch, corrected(batch)
    theirs, _ = trl_loss(batch, settings(loss, beta))
    ours = sum(
        policy_loss(chosen(batch, answers), totals, settings(loss, beta))[0] for answers in [[0, 3, 4], [5, 2, 1]]
    )
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    (our_gradient,) = torch.autograd.grad(ours, batch.logprobs)
    (their_gradient,) = torch.autograd.grad(theirs, batch.logprobs)
    torch.testing.assert_close(our_gradient, their_gradient, **TOLERANCE)
    # It matters to the surrogate, and not to the KL: what beta adds is the same with and without it.
    assert abs(ours - policy_loss(plain, totals, settings(loss, beta))[0]) > 1e-3
    kl = [
        policy_loss(b, totals, settings(loss, 0.1))[0] - policy_loss(b, totals, settings(loss, 0.0))[0]
        for b in (plain, batch)
    ]
    torch.testing.assert_close(kl[0], kl[1], **TOLERANCE)


@pytest.mark.parametrize(
    "split", [[[0], [1], [2], [3], [4], [5]], [[0, 1, 2, 3], [4, 5]], [[5, 1], [3], [0, 4, 2]]], ids=str
)
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", ALL)
def test_micro_batches_add_up_to_trls_single_batch(batch, totals, loss, beta, split):
    theirs, _ = trl_loss(batch, settings(loss, beta))
    ours = sum(policy_loss(chosen(batch, answers), totals, settings(loss, beta))[0] for answers in split)
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    (our_gradient,) = torch.autograd.grad(ours, batch.logprobs)
    (their_gradient,) = torch.autograd.grad(theirs, batch.logprobs)
    torch.testing.assert_close(our_gradient, their_gradient, **TOLERANCE)


@pytest.mark.parametrize("loss", ALL)
def test_kl_is_trls(batch, totals, loss):
    _, stats = policy_loss(batch, totals, settings(loss, beta=0.1))
    _, metrics = trl_loss(batch, settings(loss, beta=0.1))
    assert stats.kl_sum / stats.tokens == pytest.approx(metrics["kl"])


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo"])
def test_the_clipped_share_is_trls(batch, totals, loss):
    _, stats = policy_loss(batch, totals, settings(loss, beta=0.0))
    _, metrics = trl_loss(batch, settings(loss, beta=0.0))
    assert stats.clipped_tokens / stats.tokens == pytest.approx(metrics["clip_ratio/region_mean"])


def test_trl_counts_clipped_answers_for_gspo_where_we_count_their_tokens(batch, totals):
    _, metrics = trl_loss(batch, settings("gspo", beta=0.0))
    each = [policy_loss(chosen(batch, [answer]), totals, settings("gspo", beta=0.0))[1] for answer in range(6)]
    assert {stats.clipped_tokens in (0, stats.tokens) for stats in each} == {True}
    assert sum(stats.clipped_tokens > 0 for stats in each) / 6 == pytest.approx(metrics["clip_ratio/region_mean"])


def test_trl_counts_bounded_weights_of_positive_advantages_only_though_it_bounds_all(batch, totals):
    _, metrics = trl_loss(batch, settings("cispo", beta=0.0))
    each = [policy_loss(chosen(batch, [answer]), totals, settings("cispo", beta=0.0))[1] for answer in range(6)]
    positive = sum((each[answer] for answer in range(6) if ADVANTAGES[answer] > 0), LossStats())
    assert positive.clipped_tokens / 22 == pytest.approx(metrics["cispo_clip_ratio"])
    assert sum(each, LossStats()).clipped_tokens > positive.clipped_tokens
