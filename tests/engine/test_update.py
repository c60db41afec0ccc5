"""The update: against a slow one written here, whatever the micro-batches, with its endings, and that it learns."""

import copy
from dataclasses import replace
from math import exp, inf, nan

import pytest
import torch

from ratchet.config import OptimizerSettings, RlSettings, RunConfig
from ratchet.engine import logprobs as logprobs_module
from ratchet.engine import update as update_module
from ratchet.engine.advantages import group_advantages
from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.losses import LOSSES, policy_loss
from ratchet.engine.sampler import SampleRequest
from ratchet.engine.sampler.in_process import InProcessSampler
from ratchet.engine.update import Learner, new_optimizer, packed_answers, update
from ratchet.errors import Interrupted, NotFinite, OutOfMemory
from ratchet.run.records import Grade, Group, Prompt, Rollout

from ..repeated import matrix
from .models import EOS, group_of, random_ids, tiny_policy
from .ways import DECODER, PACKED, PLAIN, WAYS

# Three prompts with four answers each, of uneven lengths.
LENGTHS = [(7, (5, 1, 3, 8)), (2, (2, 6, 1, 1)), (11, (4, 4, 2, 9))]
REWARDS = [(1.0, 0.0, 0.0, 0.5), (0.0, 0.0, 1.0, 0.0), (1.0, 1.0, 0.0, 1.0)]
TOKENS = sum(sum(lengths) for _, lengths in LENGTHS)


def groups_of(lengths=LENGTHS, rewards=REWARDS, prefix=0):
    return [
        group_of(
            random_ids(prefix, seed=99) + random_ids(prompt, seed=number),
            [random_ids(length, seed=100 * number + place) for place, length in enumerate(answers)],
            scores,
            number,
        )
        for number, ((prompt, answers), scores) in enumerate(zip(lengths, rewards, strict=True))
    ]


def settings_of(**rl):
    given = {"answers_per_prompt": 4, "prompts_per_round": 3, "max_answer_tokens": 16, **rl}
    return RunConfig(rl=RlSettings(**given)).resolved().rl


def learner_of(policy, micro_batch_tokens=1 << 20, forward=DECODER, rate=1e-2, limit=1e9, **rl):
    optimizer = new_optimizer(policy, rate, OptimizerSettings(weight_decay=0.1))
    return Learner(policy, settings_of(**rl), optimizer, limit, micro_batch_tokens, forward)


def weights_of(policy):
    return [weight.detach().clone() for weight in policy.parameters]


def assert_equal(ours, theirs, tolerance=0.0):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=0)


def nothing():
    pass


# --- against a slow update -------------------------------------------------------------------------------------------


def slow_logprobs(policy, group, rollout, temperature):
    """One answer alone, through a plain forward pass."""
    ids = torch.tensor([group.prompt_token_ids + rollout.completion.token_ids])
    logits = policy.model(input_ids=ids).logits[0, len(group.prompt_token_ids) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(rollout.completion.token_ids)[:, None])[:, 0]


def slow_grpo(policy, groups, groups_per_step, settings, rate, limit):
    """GRPO written as the paper does, one answer at a time; ratios refer to the policy at the start of the round."""
    optimizer = torch.optim.AdamW(policy.parameters, lr=rate, weight_decay=0.1)
    pairs = [[(group, rollout) for rollout in group.rollouts] for group in groups]
    with torch.no_grad():
        old = [[slow_logprobs(policy, *pair, settings.temperature) for pair in some] for some in pairs]
        with policy.model.disable_adapter():
            reference = [[slow_logprobs(policy, *pair, settings.temperature) for pair in some] for some in pairs]
    losses, norms, kl_sum = [], [], 0.0
    for start in range(0, len(groups), groups_per_step):
        chosen = range(start, min(start + groups_per_step, len(groups)))
        loss = 0.0
        for g in chosen:
            rewards = torch.tensor([r.reward for r in groups[g].rollouts], dtype=torch.float64)
            for a, advantage in enumerate((rewards - rewards.mean()) / (rewards.std() + 1e-4)):
                new = slow_logprobs(policy, *pairs[g][a], settings.temperature)
                ratio = (new - old[g][a]).exp()
                gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                difference = reference[g][a] - new
                kl = difference.exp() - difference - 1
                kl_sum += kl.sum().item()
                loss = loss - (gain - settings.beta * kl).mean() / (len(chosen) * len(rewards))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.cat([weight.grad.flatten() for weight in policy.parameters]).norm()
        for weight in policy.parameters:
            weight.grad *= min(1.0, limit / (norm.item() + 1e-6))
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return sum(losses) / len(losses), sum(norms) / len(norms), kl_sum / TOKENS


@pytest.mark.parametrize(
    ("way", "budget", "prefix", "batch_size"),
    matrix(
        [(PLAIN, 1), *((way, budget) for way in WAYS[:4] for budget in (1 << 20, 40)), (DECODER, 1)],
        [0, 10],
        [None, 4, 8],  # one step; three; two, one of them short
        # Every way with three steps; with one and two, and without a prefix or with one row, one way.
        ci=lambda way, budget, prefix, batch_size: (
            (prefix == 10 and (batch_size == 4 or way == DECODER)) or (way == PACKED and batch_size == 8)
        ),
    ),
    ids=str,
)
def test_a_round_of_steps_is_that_of_a_slow_update(way, budget, batch_size, prefix):
    setup = {"rate": 1e-2, "limit": 0.5}
    policy, slow = (tiny_policy(dtype=torch.float64) for _ in range(2))
    before = weights_of(policy)
    learner = learner_of(policy, budget, way, loss="grpo", beta=0.05, temperature=0.7, batch_size=batch_size, **setup)
    groups = groups_of(prefix=prefix)
    learned = update(learner, groups, nothing)
    loss, norm, kl = slow_grpo(slow, groups, (batch_size or 12) // 4, learner.settings, **setup)
    assert_equal(weights_of(policy), weights_of(slow), 1e-9)
    assert max((a - b).abs().max() for a, b in zip(weights_of(policy), before, strict=True)) > 1e-3
    assert learned.loss == pytest.approx(loss, abs=1e-9)
    assert learned.gradient_norm == pytest.approx(norm, abs=1e-9)
    assert learned.kl == pytest.approx(kl, abs=1e-9)
    assert learned.steps == {None: 1, 4: 3, 8: 2}[batch_size]
    assert learned.tokens == TOKENS


# With a single step every ratio is 1, so the loss is minus the weighted sum of the advantages, rewards less their mean:
#   (1, 0, 0, .5) -> .625 -.375 -.375 .125, by its std .4787 + 1e-4: 1.30531 -.783186 -.783186 .261062
#   (0, 0, 1, 0)  -> -.25 -.25 .75 -.25, by .5001: -.4999 -.4999 1.4997 -.4999;  (1, 1, 0, 1): the other sign
# Times lengths (5, 1, 3, 8), (2, 6, 1, 1), (4, 4, 2, 9), 46 in all: 5.48230 - 2.99940 + 5.49890 = 7.98180;
# without division by the std 2.625 - 1.5 + 2.75 = 3.875. A mean over answers of equal weight is 0.
@pytest.mark.parametrize(
    ("loss", "expected"), [("grpo", 0.0), ("gspo", 0.0), ("dapo", -7.98180 / 46), ("dr_grpo", -3.875 / (12 * 16))]
)
def test_each_loss_counts_the_answers_and_tokens_of_the_whole_step(loss, expected):
    for budget in (1 << 20, 1):
        learned = update(learner_of(tiny_policy(), budget, loss=loss), groups_of(), nothing)
        assert learned.loss == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_micro_batches_change_no_loss(loss):
    results = []
    for way, budget in [(PLAIN, 1), (PACKED, 25), *((DECODER, n) for n in (1 << 20, 25, 1))]:
        policy = tiny_policy(dtype=torch.float64)
        learned = update(learner_of(policy, budget, way, loss=loss, batch_size=4, beta=0.1), groups_of(), nothing)
        results.append((weights_of(policy), learned))
    (weights, learned), *others = results
    for other_weights, other in others:
        assert_equal(other_weights, weights, 1e-9)
        assert other.model_dump() == pytest.approx(learned.model_dump(), abs=1e-9)


def test_a_step_is_a_whole_number_of_groups_and_a_group_that_was_dropped_leaves_its_place():
    seen = []
    policy = tiny_policy()
    learner = learner_of(policy, batch_size=8)
    learner.optimizer.step = lambda: seen.append("step")
    assert update(learner, groups_of()[:2], nothing).steps == 1
    assert update(learner, groups_of()[:1], nothing).steps == 1
    assert update(learner, groups_of(), nothing).steps == 2
    assert len(seen) == 4


def test_answers_are_numbered_through_all_groups():
    answers = packed_answers(groups_of())
    assert [answer.number for answer in answers] == list(range(12))
    assert [len(answer.token_ids) for answer in answers] == [n for _, lengths in LENGTHS for n in lengths]
    assert answers[5].prompt_token_ids == groups_of()[1].prompt_token_ids


def test_with_one_step_nothing_is_clipped_and_with_several_something_may_be():
    one = update(learner_of(tiny_policy(), rate=0.1), groups_of(), nothing)
    several = update(learner_of(tiny_policy(), rate=0.1, batch_size=4), groups_of(), nothing)
    assert one.clip_fraction == 0
    assert several.clip_fraction > 0


# --- what is reported ------------------------------------------------------------------------------------------------


def test_kl_is_0_at_the_start_and_above_it_after():
    policy = tiny_policy(fresh=True)
    learner = learner_of(policy, beta=0.1)
    assert update(learner, groups_of(), nothing).kl == 0
    assert update(learner, groups_of(), nothing).kl > 1e-6
    assert all(weight.requires_grad for weight in policy.parameters)


def test_without_beta_there_is_no_kl_and_no_pass_of_the_reference(monkeypatch):
    policy = tiny_policy()
    monkeypatch.setattr(policy, "as_reference", lambda: 1 / 0)
    assert update(learner_of(policy), groups_of(), nothing).kl is None


def test_the_gradient_is_limited_in_norm_and_reported_as_it_was():
    policy = tiny_policy()
    free = update(learner_of(policy, rate=0.0), groups_of(), nothing).gradient_norm
    learner = learner_of(policy, limit=free / 10)
    seen = []
    learner.optimizer.step = lambda: seen.append(torch.cat([w.grad.flatten() for w in policy.parameters]).norm().item())
    assert update(learner, groups_of(), nothing).gradient_norm == pytest.approx(free, rel=1e-5)
    assert seen == [pytest.approx(free / 10, rel=1e-4)]


def sampled_groups(policy, temperature=0.7, top_p=0.9):
    prompt = random_ids(6)
    stream = InProcessSampler(policy, 1 << 20).sample(
        [SampleRequest(prompt, 4, (0, 1, 1))], SamplingSettings(temperature, top_p=top_p), 12, nothing
    )
    completions = [one.completion for one in sorted(stream, key=lambda one: one.answer)]
    rollouts = [Rollout(c, Grade(float(i), "graded"), 0.0, float(i)) for i, c in enumerate(completions)]
    return [Group(Prompt(1, (), ""), prompt, tuple(rollouts))]


@pytest.mark.parametrize("rows", [*({"forward": way} for way in WAYS), {"micro_batch_tokens": 1}], ids=str)
def test_the_gap_between_sampler_and_trainer_is_rounding(rows):
    policy = tiny_policy()
    learned = update(learner_of(policy, temperature=0.7, **rows), sampled_groups(policy), nothing)
    assert learned.sampler_gap < 1e-5


def test_the_gap_shows_a_sampler_that_differs_and_is_measured_before_the_first_step():
    policy = tiny_policy()
    groups = sampled_groups(policy)
    doubled = [Group(g.prompt, g.prompt_token_ids, g.rollouts) for g in groups * 2]
    assert update(learner_of(policy, temperature=1.0), groups, nothing).sampler_gap > 0.05  # another temperature
    policy = tiny_policy()
    learned = update(learner_of(policy, temperature=0.7, batch_size=4, rate=0.1), doubled, nothing)
    assert learned.steps == 2
    assert learned.sampler_gap < 1e-5


# --- a sampler that differs ------------------------------------------------------------------------------------------


def drawn_by_another(groups, shift, full=None):
    """Return the groups as if their sampler had found every token ``exp(shift)`` times as likely as the policy does."""
    return [
        replace(
            group,
            rollouts=tuple(
                replace(
                    r,
                    completion=replace(
                        r.completion, logprobs=tuple(p + shift for p in r.completion.logprobs), full_logprobs=full
                    ),
                )
                for r in group.rollouts
            ),
        )
        for group in groups
    ]


NUCLEUS_RL = {"temperature": 0.7, "top_p": 0.9}


@pytest.mark.parametrize("rows", [*({"forward": way} for way in WAYS), {"micro_batch_tokens": 1}], ids=str)
def test_a_sampler_that_agrees_is_corrected_by_1(rows):
    # The sampler's own log-probabilities are under the nucleus; so must be the trainer's that they are compared with.
    policy, uncorrected = tiny_policy(), tiny_policy()
    groups = drawn_by_another(sampled_groups(policy), 0.0)
    learner = learner_of(policy, **NUCLEUS_RL, **rows)
    learner.importance_cap = 2.0
    learned = update(learner, groups, nothing)
    assert learned.sampler_gap < 1e-5
    assert learned.importance_mean == pytest.approx(1, abs=1e-5)
    assert learned.importance_max == pytest.approx(1, abs=1e-4)
    assert learned.importance_capped == 0
    plain = update(learner_of(uncorrected, **NUCLEUS_RL, **rows), sampled_groups(uncorrected), nothing)
    assert (plain.importance_mean, plain.importance_max, plain.importance_capped) == (None, None, None)
    assert learned.loss == pytest.approx(plain.loss, abs=1e-5)
    assert learned.gradient_norm == pytest.approx(plain.gradient_norm, rel=1e-4)


def test_against_the_untruncated_distribution_the_same_sampler_would_seem_to_differ():
    policy = tiny_policy()
    learner = learner_of(policy, temperature=0.7)  # no nucleus on the trainer's side
    learner.importance_cap = 2.0
    learned = update(learner, drawn_by_another(sampled_groups(policy), 0.0), nothing)
    assert learned.sampler_gap > 0.01
    assert learned.importance_mean < 0.99


@pytest.mark.parametrize(
    ("shift", "cap", "weight", "capped"),
    [(-0.5, 2.0, exp(0.5), 0.0), (-0.5, 1.2, 1.2, 1.0), (0.5, 2.0, exp(-0.5), 0.0)],
)
def test_the_gradient_is_weighed_by_the_ratio_up_to_the_cap(shift, cap, weight, capped):
    norms = []
    for given_shift in (0.0, shift):
        policy = tiny_policy()
        learner = learner_of(policy, **NUCLEUS_RL)
        learner.importance_cap = cap
        learned = update(learner, drawn_by_another(sampled_groups(policy), given_shift), nothing)
        norms.append(learned.gradient_norm)
    assert norms[1] == pytest.approx(weight * norms[0], rel=1e-4)
    assert learned.importance_mean == pytest.approx(exp(-shift), abs=1e-4)
    assert learned.importance_max == pytest.approx(exp(-shift), abs=1e-3)
    assert learned.importance_capped == capped
    assert learned.sampler_gap == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("rl", [NUCLEUS_RL, {"temperature": 0.7}])
def test_the_ratio_refers_to_the_round_s_start_in_every_step(rl):
    policy = tiny_policy()
    sampling = SamplingSettings(0.7, top_p=rl.get("top_p", 1.0))
    groups = drawn_by_another(sampled_groups(policy, top_p=sampling.top_p) * 3, -0.5)
    learner = learner_of(policy, rate=0.1, batch_size=4, **rl)
    learner.importance_cap = 2.0
    learned = update(learner, groups, nothing)
    assert learned.steps == 3
    assert learned.importance_mean == pytest.approx(exp(0.5), abs=1e-4)
    assert learned.importance_max == pytest.approx(exp(0.5), abs=1e-3)


def test_a_sampler_that_cannot_tell_the_full_log_probabilities_must_be_corrected():
    policy = tiny_policy()
    with pytest.raises(ValueError, match="importance cap"):
        update(learner_of(policy), drawn_by_another(sampled_groups(policy), 0.0), nothing)


def test_no_group_is_no_step():
    policy = tiny_policy()
    learner = learner_of(policy)
    before = weights_of(policy)
    learned = update(learner, [], nothing)
    assert learned.model_dump() == {
        "steps": 0,
        "skipped_steps": 0,
        "loss": None,
        "gradient_norm": None,
        "kl": None,
        "clip_fraction": None,
        "sampler_gap": None,
        "importance_mean": None,
        "importance_max": None,
        "importance_capped": None,
        "tokens": 0,
    }
    assert_equal(weights_of(policy), before)
    assert not learner.optimizer.state


# --- numbers that are not finite -------------------------------------------------------------------------------------


def spoil_weights(policy, monkeypatch):
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.fill_(nan)


def spoil_advantages(policy, monkeypatch):
    monkeypatch.setattr(
        update_module, "group_advantages", lambda rewards, scale: group_advantages(rewards, scale=scale) * inf
    )


def spoil_gradient(policy, monkeypatch):
    policy.parameters[3].register_hook(lambda gradient: gradient * inf)


def spoil_loss(policy, monkeypatch):
    """Only the value: the gradient stays finite."""

    def spoiled(*given):
        loss, stats = policy_loss(*given)
        return loss - inf, stats

    monkeypatch.setattr(update_module, "policy_loss", spoiled)


@pytest.mark.parametrize("spoil", [spoil_weights, spoil_advantages, spoil_gradient, spoil_loss])
def test_a_step_that_is_not_finite_changes_nothing_and_a_second_one_ends_the_run(spoil, monkeypatch):
    policy = tiny_policy()
    learner = learner_of(policy)
    update(learner, groups_of(), nothing)  # so that the optimizer has moments to lose
    weights, moments = weights_of(policy), copy.deepcopy(learner.optimizer.state_dict())
    spoil(policy, monkeypatch)
    learned = update(learner, groups_of(), nothing)
    assert (learned.steps, learned.skipped_steps, learned.loss, learned.gradient_norm) == (0, 1, None, None)
    assert learner.skipped_in_a_row == 1
    with pytest.raises(NotFinite, match=r"two steps in a row. Choose a lower Learning rate"):
        update(learner, groups_of(), nothing)
    assert_equal(weights_of(policy), weights)
    for index, state in learner.optimizer.state_dict()["state"].items():
        assert all(torch.equal(state[key], moments["state"][index][key]) for key in moments["state"][index])


def test_two_steps_of_one_round_that_are_not_finite_end_the_run(monkeypatch):
    policy = tiny_policy()
    spoil_advantages(policy, monkeypatch)
    with pytest.raises(NotFinite):
        update(learner_of(policy, batch_size=4), groups_of(), nothing)


def test_a_good_step_in_between_starts_the_count_again():
    policy = tiny_policy()
    learner = learner_of(policy)
    for _ in range(3):
        handle = policy.parameters[0].register_hook(lambda gradient: gradient * nan)
        assert update(learner, groups_of(), nothing).skipped_steps == 1
        handle.remove()
        assert update(learner, groups_of(), nothing).steps == 1
        assert learner.skipped_in_a_row == 0


def test_a_skipped_step_leaves_no_gradient_behind(monkeypatch):
    policy, clean = tiny_policy(), tiny_policy()
    learner = learner_of(policy)
    handle = policy.parameters[0].register_hook(lambda gradient: gradient * nan)
    update(learner, groups_of(), nothing)
    handle.remove()
    update(learner, groups_of(), nothing)
    update(learner_of(clean), groups_of(), nothing)
    assert_equal(weights_of(policy), weights_of(clean))


# --- giving up -------------------------------------------------------------------------------------------------------


def test_the_check_comes_before_each_micro_batch_and_may_give_up():
    policy = tiny_policy()
    before = weights_of(policy)
    calls = []

    def check():
        calls.append(1)
        if len(calls) == 3:
            raise Interrupted("enough")

    learner = learner_of(policy, 1)
    with pytest.raises(Interrupted):
        update(learner, groups_of(), check)
    assert_equal(weights_of(policy), before)
    # What was given up half way is not in the next gradient.
    other = tiny_policy()
    update(learner, groups_of(), nothing)
    update(learner_of(other, 1), groups_of(), nothing)
    assert_equal(weights_of(policy), weights_of(other))


def test_the_check_also_comes_before_each_pass_for_old_log_probabilities():
    calls = []
    update(learner_of(tiny_policy(), 1, batch_size=4), groups_of(), lambda: calls.append(1))
    assert len(calls) == 12 + 12  # rows of one answer: once for where the round started, once in its step


@pytest.mark.parametrize("way", [DECODER, PLAIN], ids=str)
def test_too_little_memory_names_the_update(monkeypatch, way):
    policy = tiny_policy()

    def failing(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(policy.model, "forward", failing)
    monkeypatch.setattr(logprobs_module, "run_layers", failing)
    with pytest.raises(OutOfMemory, match="smaller Micro batch") as caught:
        update(learner_of(policy, forward=way), groups_of(), nothing)
    assert caught.value.stage == "update"


def test_the_same_round_twice_gives_the_same_bytes():
    policies = [tiny_policy(), tiny_policy()]
    for policy in policies:
        learner = learner_of(policy, 30, batch_size=4)
        update(learner, groups_of(), nothing)
    assert_equal(*map(weights_of, policies))


# --- learning --------------------------------------------------------------------------------------------------------


def rewards_over_rounds(policy, learner, reward, sampling, rounds, longest=16):
    """Sample, score and update for some rounds; return the mean reward of each."""
    sampler = InProcessSampler(policy, 1 << 20)
    means = []
    for number in range(rounds):
        requests = [SampleRequest(random_ids(4, seed=p), 8, (3, number, p)) for p in range(4)]
        answers = {p: {} for p in range(4)}
        for one in sampler.sample(requests, sampling, longest, nothing):
            answers[one.request][one.answer] = one.completion
        groups = []
        for p, request in enumerate(requests):
            rollouts = [Rollout(c, Grade(reward(c), "graded"), 0.0, reward(c)) for _, c in sorted(answers[p].items())]
            groups.append(Group(Prompt(p, (), ""), request.prompt_token_ids, tuple(rollouts)))
        rewards = [[rollout.reward for rollout in group.rollouts] for group in groups]
        means.append(sum(map(sum, rewards)) / 32)
        update(learner, [g for g, r in zip(groups, rewards, strict=True) if max(r) > min(r)], nothing)
    return means


def longer_is_better(completion):
    return len(completion.token_ids) / 16


def lower_ids_are_better(completion):
    return sum(token < 32 for token in completion.token_ids) / len(completion.token_ids)


# A fifth of the vocabulary ends an answer, so that random answers are short.
ENDS = tuple(range(2, 64, 5))
NUCLEUS = SamplingSettings(temperature=0.6, top_p=0.9)


def learns(reward, sampling, end_ids=ENDS, **rl):
    """Tell by how much the mean reward rose from the first round to the last three."""
    policy = tiny_policy(end_ids=end_ids, fresh=True)
    learner = learner_of(
        policy, rate=2e-2, limit=1.0, temperature=sampling.temperature, answers_per_prompt=8, prompts_per_round=4, **rl
    )
    means = rewards_over_rounds(policy, learner, reward, sampling, rounds=14)
    return sum(means[-3:]) / 3 - means[0]


@pytest.mark.parametrize("loss", matrix(LOSSES, ci=lambda loss: loss in ("grpo", "cispo")))
def test_longer_is_better_is_learned_at_a_low_temperature_with_a_nucleus(loss):
    # From about .4: at temperature 0.6 a ratio of unscaled log-probabilities, or a sampler that forgets the adapter,
    # would not get there.
    assert learns(longer_is_better, NUCLEUS, loss=loss) > 0.25


@pytest.mark.parametrize("loss", LOSSES)
def test_a_wanted_kind_of_token_is_learned_at_temperature_1(loss):
    assert learns(lower_ids_are_better, SamplingSettings(), end_ids=(EOS,), loss=loss) > 0.15


@pytest.mark.parametrize("loss", matrix(LOSSES, ci=lambda loss: loss in ("gspo", "dapo")))
def test_a_wanted_kind_of_token_is_learned_in_several_steps_a_round_with_kl_and_top_k(loss):
    assert learns(lower_ids_are_better, SamplingSettings(top_k=20), loss=loss, beta=0.001, batch_size=8) > 0.2


@pytest.mark.parametrize("way", WAYS[:3], ids=str)
def test_several_threads_give_the_same_bytes_each_time(way):
    # All answers of a group share the last token of its prompt, whose gradient is a sum that several threads could add
    # up in any order; without a fixed one, 8 tries gave several results. Wide enough for torch to use the threads.
    policy = tiny_policy(hidden_size=256)
    answers = [random_ids(20, seed=place) for place in range(16)]
    # And two prompts begin alike, so that the gradient of what they share is such a sum too.
    prompts = [random_ids(9) + random_ids(3, seed=n) for n in range(2)]
    groups = [group_of(prompt, answers, [float(place % 3 == 0) for place in range(16)]) for prompt in prompts]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        start, seen = policy.adapter_state(), set()
        for _ in range(8):
            policy.load_adapter_state(start)
            update(learner_of(policy, forward=way, answers_per_prompt=16, max_answer_tokens=32), groups, nothing)
            seen.add(b"".join(tensor.numpy().tobytes() for tensor in policy.adapter_state().values()))
    finally:
        torch.set_num_threads(threads)
    assert len(seen) == 1
