"""The report card: how many answers are drawn, what is counted, which answers are shown, what is advised or refused."""

from collections import Counter

import pytest

from ratchet.config.config_text import build
from ratchet.datasets import PromptStream
from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.grading import Grader
from ratchet.engine.prepare import prepare
from ratchet.engine.report_sampling import card_of, drawn, make_report, probed
from ratchet.engine.worth_reading import MOST_WORTH_READING, advice, refusal, worth_reading
from ratchet.run.records import Completion, EncodedPrompt, Grade, Group, Prompt, Rollout

from ..cards import card
from ..small_runs import SMALL, small
from .scripted import ScriptedSampler, WordVerifier, prompt


class Recording(ScriptedSampler):
    """Notes also how it is asked to sample."""

    def sample(self, requests, settings, max_answer_tokens, check):
        self.asked = (settings, max_answer_tokens)
        yield from super().sample(requests, settings, max_answer_tokens, check)


def draw(words, prompts=40, answers=8, **changes):
    """Return the groups, whether more were drawn, and the sampler with its requests."""
    config = small(answers_per_prompt=answers, **changes)
    train = [EncodedPrompt(prompt(n), (1, 2, n)) for n in range(1, prompts + 1)]
    sampler = Recording([], [words], [])
    grader = Grader(WordVerifier([]), config.reward, 32, prefilled_think=False, threads=1)
    groups, was_extended = drawn(config, train, sampler, grader)
    return groups, was_extended, sampler


MIXED = ["right", "wrong"] * 128
ALIKE = ["wrong"] * 256


def test_sixty_four_answers_are_drawn_as_the_run_would_and_none_of_its_own():
    groups, was_extended, sampler = draw(MIXED, temperature=0.7, top_p=0.9)
    assert (len(groups), [len(group.rollouts) for group in groups], was_extended) == (8, [8] * 8, False)
    assert sampler.asked == (SamplingSettings.of(small(temperature=0.7, top_p=0.9).rl), 32)
    [requests] = sampler.requests
    # Rounds draw by (seed, number of the round, prompt), from 1 on.
    assert [request.random_key for request in requests] == [(0, 0, group.prompt.id) for group in groups]
    stream = PromptStream([prompt(n) for n in range(1, 41)], 0)
    assert [group.prompt.id for group in groups] == [one.id for one in stream.take(8)]


@pytest.mark.parametrize(
    ("asked", "prompts", "each"), [(2, 32, 2), (4, 16, 4), (8, 8, 8), (3, 8, 8), (16, 8, 8), (32, 8, 8)]
)
def test_prompts_get_as_many_answers_as_in_the_run_where_that_comes_to_sixty_four(asked, prompts, each):
    groups, _, _ = draw(MIXED, answers=asked)
    assert (len(groups), {len(group.rollouts) for group in groups}) == (prompts, {each})


def test_where_all_score_alike_a_hundred_and_ninety_two_more_are_drawn_from_other_prompts():
    groups, was_extended, sampler = draw(ALIKE)
    assert was_extended
    assert sum(len(group.rollouts) for group in groups) == 256
    assert len({group.prompt.id for group in groups}) == 32
    assert [len(requests) for requests in sampler.requests] == [8, 24]


def test_with_few_prompts_each_is_asked_more_often_and_never_drawn_the_same_way_again():
    groups, was_extended, sampler = draw(ALIKE, prompts=4)
    assert was_extended
    assert [len(group.rollouts) for group in groups] == [16] * 4 + [48] * 4
    keys = [request.random_key for requests in sampler.requests for request in requests]
    assert len(set(keys)) == len(keys) == 8


def test_a_difference_of_rounding_is_none():
    assert not draw(["half", *["right"] * 255])[1]
    groups, was_extended, _ = draw(["right"] * 256)
    assert was_extended
    assert all(rollout.reward == 1 for group in groups for rollout in group.rollouts)


@pytest.fixture(scope="module")
def prepared():
    found = prepare(build(SMALL))
    yield found
    found.verifier.close()


def rollout(text, correctness=0.0, outcome="graded", *, reward=None, form=0.0, tokens=4, **parts):
    completion = Completion((1,) * tokens, (), None, text, "length" if outcome == "cut_off" else "stop")
    failure = "time" if outcome == "failed" else None
    grade = Grade(correctness, outcome, parts, failure)
    return Rollout(completion, grade, form, correctness if reward is None else reward)


def group(number, *rollouts):
    return Group(Prompt(number, ({"role": "user", "content": f"ask {number}"},), f"truth {number}"), (1,), rollouts)


GROUPS = [
    group(
        1,
        rollout("a", 1.0, tokens=2),
        rollout("b", 0.0, tokens=10),
        rollout("c", 0.3, reward=0.3),
        rollout("d", 0.0, "unparseable"),
    ),
    group(2, rollout("e", 0.0, "cut_off"), rollout("f", 0.0, "failed"), rollout("g"), rollout("g")),
]


def test_what_is_counted_by_hand(prepared):
    found = card_of(prepared, GROUPS, probed(prepared), was_extended=False)
    assert found.answers == 8
    assert (found.right, found.partly, found.wrong) == (1, 1, 3)
    assert found.outcomes == {"graded": 5, "unparseable": 1, "cut_off": 1, "failed": 1}
    assert found.failures == {"time": 1}
    assert found.histogram == [6, 0, 0, 1, 0, 0, 0, 0, 0, 1]
    assert found.mean_reward == pytest.approx(1.3 / 8)
    assert found.mean_tokens == (2 + 10 + 4 * 6) / 8
    assert found.longest_tokens == 10
    assert [(score.prompt_id, score.has_signal) for score in found.scores] == [(1, True), (2, False)]
    assert (found.signal_prompts, found.signal_share) == (1, 0.5)
    assert found.refusal == ""


def test_an_answer_at_a_step_of_the_histogram_belongs_to_it_whatever_the_rounding(prepared):
    rewards = [0.0, 1 - 0.9, *(step / 10 for step in range(2, 10)), 1.0]
    assert rewards[1] < 0.1
    one = group(1, *(rollout(str(reward), reward) for reward in rewards))
    found = card_of(prepared, [one], probed(prepared), was_extended=False)
    assert found.histogram == [1] * 9 + [2]


def test_answers_worth_reading_come_by_every_reason_and_the_same_words_once():
    bonus = group(
        3,
        rollout("in form", 0.0, reward=0.09, form=1.0),
        rollout("bare", 1.0, reward=0.91),
        rollout("torn", 1.0, reward=1.0, form=1.0, strict=0.0),
    )
    found = worth_reading([*GROUPS, bonus], has_format=True)
    by_why = {}
    for one in found:
        by_why.setdefault(one.why, []).append(one.text)
    assert set(by_why) == {
        "highest score", "lowest score", "in the form, but wrong", "right, but not in the form", "parts disagree", "unparseable", "failed", "cut off", "longest",
    }  # fmt: skip
    assert by_why["in the form, but wrong"] == ["in form"]
    assert by_why["parts disagree"] == ["torn"]
    assert [one.text for one in found].count("g") == 1
    assert len(found) == len({(one.prompt_id, one.text) for one in found})


def test_nothing_is_lowest_highest_or_longest_that_is_like_the_others():
    # Rewards 1, 1, 1, 0 and lengths 4, 4, 4, 9: one is low, one is long, the same one.
    one = group(1, rollout("a"), rollout("b"), rollout("c"), rollout("d", 0.0, tokens=9))
    found = {read.text: read.why for read in worth_reading([one], has_format=False)}
    assert found == {"a": "highest score", "b": "highest score", "c": "highest score", "d": "longest"}
    alike = worth_reading([group(1, rollout("a", 0.5), rollout("b", 0.5))], has_format=False)
    assert {read.why for read in alike} == {"highest score"}


def test_twenty_answers_at_most_half_of_them_the_best_where_nothing_is_odd():
    many = [group(n, *(rollout(f"{n} {k}", float(k % 2), tokens=4) for k in range(8))) for n in range(8)]
    found = worth_reading(many, has_format=False)
    assert len(found) == MOST_WORTH_READING
    best = [one for one in found if one.why == "highest score"]
    assert all(one.reward == 1 for one in best)
    # Three reasons, and each takes from other prompts first.
    assert len(best) >= 6
    assert max(Counter(one.prompt_id for one in found).values()) <= 4
    assert worth_reading([group(1, rollout("x"))], has_format=False)[0].prompt == "ask 1"


def test_half_a_character_that_a_model_wrote_can_be_stored():
    [found] = worth_reading([group(1, rollout("half \ud83d"))], has_format=False)
    assert found.text == "half \N{REPLACEMENT CHARACTER}"


def outcomes(**counts):
    return {"graded": 0, "unparseable": 0, "cut_off": 0, "failed": 0, **counts}


ADVICE = {
    "few right": ({"accuracy": 0.04}, "4% of the answers were right, under 5%"),
    "nearly all right": ({"accuracy": 0.96}, "96% of the answers were right, over 95%"),
    "cut off": (
        {"outcomes": outcomes(graded=7, cut_off=1)},
        "1 of 8 answers were cut off at 32 tokens and score 0. Raise Max answer tokens",
    ),
    "unparseable": ({}, "1 of 8 answers (12.5%) were unparseable and score 0; above 3%"),
    "failing": (
        {"outcomes": outcomes(graded=7, failed=1), "failures": {"time": 1}},
        "failed on 1 of 8 answers (1 by time)",
    ),
    "probes": ({}, "accepts wrong answers (false positives), which a model may learn: the prompt repeated (1 of 2)"),
    "no signal": ({"scores": []}, "prompts had answers that scored differently"),
}


@pytest.mark.parametrize("what", ADVICE)
def test_advice(what):
    changes, said = ADVICE[what]
    assert any(said in sentence for sentence in advice(card(**changes), small()))


def test_nothing_is_advised_where_nothing_is_odd():
    fine = card(outcomes=outcomes(graded=8))
    fine = fine.model_copy(update={"probes": fine.probes.model_copy(update={"results": fine.probes.results[1:]})})
    assert advice(fine, small()) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accuracy": 1.0, "mean_reward": 1.0, "outcomes": outcomes(graded=8)}, "scored 1.00: every answer was right. Choose harder"),
        ({"accuracy": 0.0, "mean_reward": 0.0, "outcomes": outcomes(graded=8)}, "scored 0.00: all answers were wrong. Train on demonstr"),
        ({"accuracy": 0.5, "mean_reward": 0.5, "outcomes": outcomes(graded=8)}, "every answer is partly right. Give credit"),
        ({"outcomes": outcomes(cut_off=7, graded=1)}, "most answers were cut off. Raise Max answer tokens"),
        ({"outcomes": outcomes(unparseable=8)}, "most answers were unparseable. In the system prompt"),
        ({"outcomes": outcomes(failed=8)}, "the verifier failed on most answers"),
    ],
)  # fmt: skip
def test_a_refusal_says_why(changes, said):
    assert said in refusal(card(**changes))


def test_a_report_of_the_tiny_model_is_made_twice_the_same(prepared):
    phases = []
    first = make_report(prepared, lambda phase, done, total: phases.append((phase, done, total)))
    assert first.answers == 64
    assert len(first.scores) == 16  # four answers to each prompt in this run
    assert 0.1 < first.accuracy < 0.6
    assert (first.probes.false_positive_rate, first.probes.false_negative_rate) == (0.0, 0.0)
    assert phases[0][0] == "loading"
    assert ("inspecting", 64, 64) in phases
    again = make_report(prepared, lambda *_: None)
    assert again.model_dump(exclude={"made_at"}) == first.model_dump(exclude={"made_at"})


def test_a_model_that_knows_nothing_of_the_task_is_refused_after_256_answers():
    # The tiny model has never seen six pairs.
    unknown = prepare(small(data__pairs=6, max_answer_tokens=16))
    try:
        found = make_report(unknown, lambda *_: None)
    finally:
        unknown.verifier.close()
    assert (found.answers, found.was_extended, found.accuracy) == (256, True, 0.0)
    assert found.refusal.startswith("All 256 answers of the starting model scored 0.00")
