"""What a loop does next, its halves, its view and its report, against histories and numbers worked by hand."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ratchet.config.resources import LoopSettings
from ratchet.evaluation.loop import BenchmarkRound, EndLoop, LoopReport, LoopRound, TrainRound, Wait
from ratchet.evaluation.loop_decisions import best_round, decide, real_gains, share, split_halves, view
from ratchet.evaluation.loop_report import closing, expected_selection_bias
from ratchet.stats import paired_test

QUESTIONS = 200
LOOP = LoopSettings(name="loop")


def right(count, questions=QUESTIONS):
    """The first ``count`` questions right: between two such rounds only the difference is discordant."""
    return (1.0,) * count + (0.0,) * (questions - count)


def scored(number, count):
    return LoopRound(
        number=number, run="adapter" if number else "none", evaluation="scored", tries=1, scores=right(count)
    )


def withheld(number, count, reason="It failed."):
    return scored(number, count).model_copy(update={"withheld": reason})


def lost(number):
    return LoopRound(number=number, run="no_adapter")


def trained(number, evaluation="none", tries=0):
    return LoopRound(number=number, run="adapter", evaluation=evaluation, tries=tries)


def rising(*counts):
    return [scored(number, count) for number, count in enumerate(counts)]


def at(number):
    """Round 0 as far as it may have come."""
    return LoopRound(number=0, evaluation="failed", tries=number)


def swapped(number, fixed, broken):
    """A round that has ``fixed`` questions right which the start of ``rising(100)`` has not, and ``broken`` wrong."""
    scores = (0.0,) * broken + (1.0,) * (100 - broken + fixed) + (0.0,) * (100 - fixed)
    return LoopRound(number=number, run="adapter", evaluation="scored", tries=1, scores=scores)


# Rounds 1 and 2 add three questions each, too few for a real gain (p = 1/8); rounds 3 and 4 are level with them, and
# against the start (3 fixed, 2 broken: p = 1/2) neither shows that it has fallen back.
SEESAW = [scored(0, 100), scored(1, 103), scored(2, 103), swapped(3, 3, 2), swapped(4, 3, 2)]

ENDED = {
    "target at the start": (LoopSettings(target_percent=50), rising(100), "target_reached", 0),
    "target after training": (LoopSettings(target_percent=60), rising(100, 120), "target_reached", 1),
    "target in the last round": (LoopSettings(target_percent=60, max_rounds=1), rising(100, 120), "target_reached", 1),
    "target though nothing else gains": (
        LoopSettings(target_percent=50.5),
        rising(100, 100, 101),
        "target_reached",
        2,
    ),
    "rounds spent": (LoopSettings(max_rounds=2), rising(100, 120, 140), "rounds_spent", 2),
    "rounds spent, the last one unscored": (
        LoopSettings(max_rounds=2),
        [*rising(100, 120), trained(2, "failed", 2)],
        "rounds_spent",
        1,
    ),
    "rounds spent, the last run lost": (LoopSettings(max_rounds=2), [*rising(100, 120), lost(2)], "rounds_spent", 1),
    "more rounds than there may be": (LoopSettings(max_rounds=1), rising(100, 120, 140), "rounds_spent", 2),
    "two rounds alike": (LOOP, rising(100, 100, 100), "plateaued", 0),
    "two rounds worse": (LOOP, rising(100, 90, 80), "plateaued", 0),
    "a gain, then a plateau": (LOOP, rising(100, 130, 130, 130), "plateaued", 1),
    "patience of one": (LoopSettings(patience=1), rising(100, 100), "plateaued", 0),
    "patience of three": (LoopSettings(patience=3), rising(100, 100, 100, 100), "plateaued", 0),
    "a plateau with an unscored round in it": (
        LOOP,
        [*rising(100, 100), trained(2, "failed", 2), scored(3, 100)],
        "plateaued",
        0,
    ),
    "a plateau with a lost run in it": (LOOP, [*rising(100, 100), lost(2), scored(3, 100)], "plateaued", 0),
    "a plateau in the last round": (LoopSettings(max_rounds=2), rising(100, 100, 100), "plateaued", 0),
    "two lost runs in a row": (LOOP, [*rising(100, 120), lost(2), lost(3)], "failed", 1),
    "two lost runs at once": (LOOP, [scored(0, 100), lost(1), lost(2)], "failed", 0),
    "the last two runs lost": (LoopSettings(max_rounds=2), [scored(0, 100), lost(1), lost(2)], "failed", 0),
    "a start that cannot be benchmarked": (LOOP, [at(2)], "failed", None),
    "no verdict on the round that would reach the target": (
        LoopSettings(target_percent=60, max_rounds=2),
        [*rising(100, 110), withheld(2, 140)],
        "rounds_spent",
        1,
    ),
    "no verdict on the start, which would reach the target": (
        LoopSettings(target_percent=50, max_rounds=1),
        [withheld(0, 140), scored(1, 90)],
        "rounds_spent",
        1,
    ),
    "no verdict on anything": (
        LoopSettings(target_percent=50, max_rounds=3, patience=1),
        [withheld(0, 110), withheld(1, 110), withheld(2, 130), withheld(3, 130)],
        "rounds_spent",
        2,
    ),
    "a plateau with a round without a verdict in it": (
        LOOP,
        [*rising(100, 100), withheld(2, 140), scored(3, 100)],
        "plateaued",
        0,
    ),
}


@pytest.mark.parametrize(("loop", "rounds", "status", "best"), ENDED.values(), ids=ENDED)
def test_a_loop_that_is_over_says_how_and_keeps_its_best(loop, rounds, status, best):
    decision = decide(loop, rounds)
    assert isinstance(decision, EndLoop)
    assert (decision.status, decision.best) == (status, best)


NEXT = {
    "the start comes first": ([], BenchmarkRound(round=0, attempt=1)),
    "a start that has a row and nothing else": ([LoopRound(number=0)], BenchmarkRound(round=0, attempt=1)),
    "a start under way": ([LoopRound(number=0, evaluation="at_work", tries=1)], Wait(round=0, status="benchmarking")),
    "a start that failed once": ([at(1)], BenchmarkRound(round=0, attempt=2)),
    "a start tried again": (
        [LoopRound(number=0, evaluation="at_work", tries=2)],
        Wait(round=0, status="benchmarking"),
    ),
    "training on the start": (rising(100), TrainRound(round=1, on_top_of=0)),
    "a round that has a row and no run": (
        [scored(0, 100), LoopRound(number=1)],
        TrainRound(round=1, on_top_of=0),
    ),
    "a run under way": ([scored(0, 100), LoopRound(number=1, run="at_work")], Wait(round=1, status="training")),
    "a run that left an adapter": ([scored(0, 100), trained(1)], BenchmarkRound(round=1, attempt=1)),
    "a benchmark under way": ([scored(0, 100), trained(1, "at_work", 1)], Wait(round=1, status="benchmarking")),
    "a benchmark that failed once": ([scored(0, 100), trained(1, "failed", 1)], BenchmarkRound(round=1, attempt=2)),
    "an unscored round is skipped": (
        [scored(0, 100), trained(1, "failed", 2)],
        TrainRound(round=2, on_top_of=0),
    ),
    "on top of the best": (rising(100, 130, 120), TrainRound(round=3, on_top_of=1)),
    "of equal ones the earlier": (rising(100, 130, 130), TrainRound(round=3, on_top_of=1)),
    "on the start while nothing is better": (rising(100, 90), TrainRound(round=2, on_top_of=0)),
    "one lost run": ([*rising(100, 120), lost(2)], TrainRound(round=3, on_top_of=1)),
    "lost runs with a scored round between": (
        [scored(0, 100), lost(1), scored(2, 120), lost(3)],
        TrainRound(round=4, on_top_of=2),
    ),
    "lost runs with an unscored round between": (
        [scored(0, 100), lost(1), trained(2, "failed", 2), lost(3)],
        TrainRound(round=4, on_top_of=0),
    ),
    "one round without gain": (rising(100, 100), TrainRound(round=2, on_top_of=0)),
    "unscored rounds do not count against it": (
        [*rising(100, 100), trained(2, "failed", 2), trained(3, "failed", 2)],
        TrainRound(round=4, on_top_of=0),
    ),
    "not on a round without a verdict": ([*rising(100, 110), withheld(2, 130)], TrainRound(round=3, on_top_of=1)),
    "no verdict on the start": ([withheld(0, 130), scored(1, 110)], TrainRound(round=2, on_top_of=1)),
    "no verdict on anything": ([withheld(0, 100), withheld(1, 130)], TrainRound(round=2, on_top_of=1)),
    "rounds without a verdict do not count against it": (
        [*rising(100, 100), withheld(2, 90), withheld(3, 90)],
        TrainRound(round=4, on_top_of=0),
    ),
    "a sign of gain in either round": (rising(100, 102, 99), TrainRound(round=3, on_top_of=1)),
    # Round 1 has 13 more, p = 2 ** -13: a real gain; both rounds after it are no better than round 1, but only one of
    # them is new since.
    "a real gain within reach": (rising(100, 113, 100), TrainRound(round=3, on_top_of=1)),
}


@pytest.mark.parametrize(("rounds", "decision"), NEXT.values(), ids=NEXT)
def test_what_a_loop_does_next(rounds, decision):
    assert decide(LOOP, rounds) == decision


@pytest.mark.parametrize(
    ("before", "fixed", "broken", "goes_on"),
    [
        ([scored(0, 100)], 3, 1, True),  # p = 5/16
        ([scored(0, 100)], 21, 19, True),  # p = 0.437
        ([scored(0, 100)], 51, 49, False),  # p = 0.460, too little for a sign of gain over the rounds before
        ([scored(0, 80), scored(1, 100)], 1, 1, True),  # round 1 is a real gain; p = 3/4 against it
        ([scored(0, 80), scored(1, 100)], 2, 3, False),  # p = 26/32: fallen back behind it
    ],
)
def test_how_little_is_a_sign_of_gain(before, fixed, broken, goes_on):
    decision = decide(LoopSettings(patience=1), [*before, swapped(len(before), fixed, broken)])
    assert isinstance(decision, TrainRound) == goes_on
    assert goes_on or decision.status == "plateaued"


def test_all_rounds_that_a_loop_may_have_are_trained():
    assert decide(LoopSettings(max_rounds=2), rising(100, 120)) == TrainRound(round=2, on_top_of=1)


STOPPED = {
    "before anything": ([], "stopped"),
    "between rounds": (rising(100, 120), "stopped"),
    "an adapter that a stop left is not benchmarked": ([scored(0, 100), trained(1)], "stopped"),
    "a benchmark that the stop ended": ([scored(0, 100), trained(1, "failed", 1)], "stopped"),
    "a start whose benchmark the stop ended for the second time": ([at(2)], "stopped"),
    "a run that the stop ended": ([scored(0, 100), lost(1), lost(2)], "stopped"),
    "a run under way": ([scored(0, 100), LoopRound(number=1, run="at_work")], "training"),
    "a benchmark under way": ([scored(0, 100), trained(1, "at_work", 1)], "benchmarking"),
}


@pytest.mark.parametrize(("rounds", "status"), STOPPED.values(), ids=STOPPED)
def test_a_stop_waits_for_what_is_at_work_and_starts_nothing(rounds, status):
    assert decide(LOOP, rounds, stop_requested=True).status == status


REASONS = {
    "over the last real gain": (
        LOOP,
        rising(100, 140, 140, 139),
        "2 rounds without gain over 70.0 %, the score of round 1. Best on the selection half: round 1 with 70.0 %.",
    ),
    "over the start": (
        LoopSettings(patience=1),
        rising(100, 98),
        "1 round without gain over 50.0 %, the score of round 0. Best on the selection half: the start with 50.0 %.",
    ),
    "over rounds before": (
        LOOP,
        SEESAW,
        "2 rounds without gain over 51.0 %, the mean of rounds 0, 1 and 2. Best on the selection half: "
        "round 1 with 51.5 %.",
    ),
    "target": (
        LoopSettings(target_percent=62.5),
        rising(100, 125),
        "The target of 62.5 % was reached by round 1. Best on the selection half: round 1 with 62.5 %.",
    ),
    "target at the start": (
        LoopSettings(target_percent=40),
        rising(100),
        "The target of 40 % was reached by the start, before any training. Best on the selection half: "
        "the start with 50.0 %.",
    ),
    "no start": (LOOP, [at(2)], "The start could not be evaluated in 2 tries."),
    "lost": (
        LOOP,
        [scored(0, 100), lost(1), lost(2)],
        "The runs of rounds 1 and 2 both ended without an adapter. Best on the selection half: the start with 50.0 %.",
    ),
    "no verdict on the start and on rounds": (
        LoopSettings(max_rounds=4),
        [withheld(0, 100, "So it is."), withheld(1, 90), scored(2, 80), withheld(3, 80), withheld(4, 70, "No.")],
        "Used 4 rounds of 4. Best on the selection half: round 2 with 40.0 %. No verdict is given "
        "on the start, so no gain over it can be claimed: So it is. No verdict is given on rounds 1 and 3: It failed. "
        "No verdict is given on round 4: No.",
    ),
    "no verdict on anything": (
        LoopSettings(max_rounds=1, target_percent=10),
        [scored(0, 100).model_copy(update={"withheld": "So it is."}), withheld(1, 90)],
        "Used 1 round of 1. Highest on the selection half: the start with 50.0 %. No verdict is "
        "given on the start, so no gain over it can be claimed: So it is. No verdict is given on round 1: It failed.",
    ),
    "spent": (
        LoopSettings(max_rounds=1),
        rising(100, 120),
        "Used 1 round of 1. Best on the selection half: round 1 with 60.0 %.",
    ),
}


@pytest.mark.parametrize(("loop", "rounds", "reason"), REASONS.values(), ids=REASONS)
def test_reasons_are_sentences_with_the_numbers_behind_them(loop, rounds, reason):
    assert decide(loop, rounds).reason == reason


@pytest.mark.parametrize(
    "rounds",
    [
        [scored(1, 100)],
        [scored(0, 100), scored(2, 100)],
        [scored(0, 100), LoopRound(number=1, run="at_work"), LoopRound(number=2, run="at_work")],
        [at(2), LoopRound(number=1)],
        [scored(0, 100), LoopRound(number=1, run="adapter", evaluation="scored", tries=1, scores=right(5, 10))],
    ],
    ids=["no start", "a gap", "two at work", "no score to train on", "other questions"],
)
def test_a_history_that_cannot_be_is_refused(rounds):
    with pytest.raises(ValueError, match=r"round"):
        decide(LOOP, rounds)


@pytest.mark.parametrize(
    "fields",
    [
        {"number": 0, "run": "adapter"},
        {"number": 1, "run": "at_work", "evaluation": "at_work", "tries": 1},
        {"number": 0, "evaluation": "at_work"},
        {"number": 0, "evaluation": "scored", "tries": 1},
        {"number": 0, "evaluation": "failed", "tries": 1, "scores": (1.0,)},
        {"number": 0, "evaluation": "failed", "tries": 1, "withheld": "It failed."},
    ],
    ids=[
        "the start has no run",
        "no adapter to benchmark",
        "no try",
        "no scores",
        "scores of a failure",
        "no scores yet",
    ],
)
def test_a_round_that_cannot_be_is_refused(fields):
    with pytest.raises(ValidationError):
        LoopRound(**fields)


def test_real_gains_add_up_over_an_anchor_worked_by_hand():
    # One discordant question is fixed by each count above the anchor, so p = 2 ** -count. Round r may spend
    # 0.025 / (r (r + 1)): 0.0125, 0.0042, 0.0021, 0.00125. Four more in round 1: 0.0625, no; eight in round 2: 0.0039,
    # yes; then round 3 is four above round 2, no, and round 4 eight above it: 0.0039 > 0.00125, no; ten in round 5:
    # 0.00098 > 0.00083, no; eleven in round 6: 0.00049 <= 0.0006, yes.
    assert real_gains(LOOP, rising(100, 104, 108, 112, 116, 118, 119)) == {2: 0, 6: 2}


@pytest.mark.parametrize(
    ("rounds", "gains"),
    [
        ([withheld(0, 100), scored(1, 140)], {}),
        ([scored(0, 100), withheld(1, 140)], {}),
        ([scored(0, 100), withheld(1, 120), scored(2, 140)], {2: 0}),
        ([withheld(0, 100), scored(1, 120), scored(2, 140)], {2: 1}),
        ([withheld(0, 100), withheld(1, 140)], {}),
    ],
    ids=["of the start", "of the round", "of one between", "a round takes the start's place", "of both"],
)
def test_without_a_verdict_there_is_no_real_gain(rounds, gains):
    assert real_gains(LOOP, rounds) == gains


def test_the_view_marks_what_is_without_a_verdict_and_reckons_no_gain_with_it():
    seen = view(LOOP, [withheld(0, 100), scored(1, 110), withheld(2, 150)])
    assert [one.withheld for one in seen.rounds] == ["It failed.", "", "It failed."]
    assert [one.percent for one in seen.rounds] == [50, pytest.approx(55), 75]
    assert [one.best for one in seen.rounds] == [False, True, False]
    assert (seen.best, seen.gain_over_start, seen.gain_over_first) == (1, None, 0)
    nothing = view(LOOP, [withheld(0, 100), withheld(1, 110)])
    assert (nothing.best, nothing.best_percent, nothing.gain_over_first) == (None, None, None)
    assert not any(one.best for one in nothing.rounds)


def test_what_rounds_may_spend_never_exceeds_its_half_however_many_there_are():
    assert sum(share(number) for number in range(1, 100)) == pytest.approx(0.99)


def test_the_view_shows_changes_and_gains_in_points_and_skips_what_has_no_score():
    rounds = [
        *rising(100, 110),
        trained(2, "failed", 2),
        lost(3),
        scored(4, 130),
        scored(5, 130),
        LoopRound(number=6, run="at_work"),
    ]
    seen = view(LOOP, rounds)
    assert [one.state for one in seen.rounds] == [
        "scored",
        "scored",
        "unscored",
        "failed",
        "scored",
        "scored",
        "training",
    ]
    assert [one.percent for one in seen.rounds] == [50, pytest.approx(55), None, None, 65, 65, None]
    assert [one.change for one in seen.rounds] == [None, pytest.approx(5), None, None, pytest.approx(10), 0, None]
    assert [one.best for one in seen.rounds] == [False, False, False, False, True, False, False]
    assert [one.on_top_of for one in seen.rounds] == [None, 0, 1, 1, 1, 4, 4]
    assert [one.real_gain_over for one in seen.rounds] == [None, 0, None, None, 1, None, None]
    assert (seen.best, seen.best_percent, seen.rounds_used) == (4, 65, 6)
    assert (seen.gain_over_start, seen.gain_over_first) == (pytest.approx(15), pytest.approx(10))


def test_the_view_of_what_is_between_two_jobs_and_of_nothing():
    assert [one.state for one in view(LOOP, [scored(0, 1), trained(1, "at_work", 1)]).rounds] == [
        "scored",
        "benchmarking",
    ]
    assert view(LOOP, [at(1)]).rounds[0].state == "waiting"
    nothing = view(LOOP, [])
    assert (nothing.best, nothing.best_percent, nothing.gain_over_start, nothing.rounds_used) == (None, None, None, 0)


def test_partial_credit_in_another_order_is_no_other_score():
    one, other = (0.1, 0.2, 0.3, 0.4, 0.7), (0.7, 0.3, 0.1, 0.4, 0.2)
    rounds = [
        LoopRound(number=number, run=run, evaluation="scored", tries=1, scores=scores)
        for number, run, scores in [(0, "none", one), (1, "adapter", other)]
    ]
    assert best_round(rounds).number == 0


@given(
    st.lists(st.integers(1, 10_000), min_size=2, max_size=60, unique=True),
    st.integers(0, 2**31 - 1),
    st.sampled_from(["none", "number", "label", "some"]),
)
def test_halves_are_disjoint_complete_equal_and_independent_of_order(questions, seed, kind):
    difficulty = {
        "none": None,
        "number": {one: one % 7 for one in questions},
        "label": {one: "abc"[one % 3] for one in questions},
        "some": {one: one % 7 for one in questions if one % 2},
    }[kind]
    selection, held_out = split_halves(questions, seed, difficulty)
    assert sorted(selection + held_out) == sorted(questions)
    assert len(selection) - len(held_out) == len(questions) % 2
    assert split_halves(questions[::-1], seed, difficulty) == (selection, held_out)
    if kind in ("number", "label"):
        for band in set(difficulty.values()):
            sides = [sum(difficulty[one] == band for one in side) for side in (selection, held_out)]
            assert abs(sides[0] - sides[1]) <= 2  # the pairs at a band's two ends may be split with its neighbours


def test_halves_differ_by_seed_and_favour_neither_side():
    questions = range(1, 401)
    assert len({split_halves(questions, seed) for seed in range(20)}) == 20
    difficulty = {one: float(one) for one in questions}
    easier = [np.mean(split_halves(questions, seed, difficulty)[0]) - 200.5 for seed in range(200)]
    # Of each pair one is 0.5 below the middle: the mean over 200 pairs has a standard error of 0.035 for one seed.
    assert np.mean(easier) == pytest.approx(0, abs=4 * 0.5 / np.sqrt(200 * 200))
    assert np.std(easier) == pytest.approx(0.5 / np.sqrt(200), rel=0.25)


@pytest.mark.parametrize("questions", [[], [1], [1, 1]])
def test_what_cannot_be_halved_is_refused(questions):
    with pytest.raises(ValueError, match="at least two questions"):
        split_halves(questions, 0)


def test_halves_stay_what_they_are_across_versions():
    assert split_halves(range(1, 11), 3) == ((2, 5, 7, 8, 10), (1, 3, 4, 6, 9))


@dataclass
class Driver:
    """Carries out decisions with made-up outcomes, and is killed between decision and deed whenever it likes."""

    loop: LoopSettings
    draw: object
    rounds: list = field(default_factory=list)
    runs: list = field(default_factory=list)
    stop: bool = False

    def step(self):
        decision = decide(self.loop, self.rounds, stop_requested=self.stop)
        assert decide(self.loop, list(self.rounds), stop_requested=self.stop) == decision
        if isinstance(decision, TrainRound):
            self._begin(decision)
        elif isinstance(decision, BenchmarkRound):
            if decision.round == len(self.rounds):
                self.rounds.append(LoopRound(number=decision.round))
            self._change(evaluation="at_work", tries=decision.attempt)
        elif isinstance(decision, Wait):
            self._finish(decision)
        return decision

    def _begin(self, decision):
        best = best_round(self.rounds)
        assert decision.on_top_of == best.number
        if decision.round == len(self.rounds):
            self.rounds.append(LoopRound(number=decision.round))
            assert decide(self.loop, self.rounds) == decision  # killed when the row was there and the run was not
        self.runs.append(decision.round)
        self._change(run="at_work")

    def _finish(self, decision):
        self.stop = self.stop or self.draw(st.integers(0, 19)) == 0
        if decision.status == "training":
            self._change(run=self.draw(st.sampled_from(["adapter", "adapter", "adapter", "no_adapter"])))
        elif self.draw(st.integers(0, 3)) == 0:
            self._change(evaluation="failed")
        else:
            answers = self.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=6, max_size=6))
            self._change(evaluation="scored", scores=tuple(answers))

    def _change(self, **changes):
        self.rounds[-1] = LoopRound(**(self.rounds[-1].model_dump() | changes))
        assert sum(one.at_work for one in self.rounds) <= 1


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_loop_ends_within_its_rounds_whatever_becomes_of_its_jobs(data):
    loop = LoopSettings(
        max_rounds=data.draw(st.integers(1, 6)),
        patience=data.draw(st.integers(1, 3)),
        target_percent=data.draw(st.sampled_from([None, 70.0, 100.0])),
    )
    driver, best = Driver(loop, data.draw), -1.0
    for _ in range(8 * (loop.max_rounds + 1)):  # a round takes a run, two evaluations, and as many waits, at most
        decision = driver.step()
        leader = best_round(driver.rounds)
        if leader is not None:
            assert leader.score >= best
            assert all(one.score < leader.score for one in driver.rounds[: leader.number] if one.score is not None)
            best = leader.score
        if isinstance(decision, EndLoop):
            break
    assert isinstance(decision, EndLoop)
    assert decision.best == (leader.number if leader else None)
    assert driver.runs == list(range(1, len(driver.rounds)))
    assert len(driver.runs) <= loop.max_rounds
    assert decide(loop, driver.rounds, stop_requested=driver.stop) == decision
    assert decision.status != "target_reached" or 100 * best >= loop.target_percent
    assert (decision.status == "stopped") == driver.stop


def shares(first, last):
    """Scores on 100 held-out questions: right from ``first`` to ``last``."""
    return [1.0 if first <= number < last else 0.0 for number in range(100)]


def test_the_report_of_a_winner_worked_by_hand():
    loop = LoopSettings(target_percent=64, score_column="accuracy")
    report = closing(loop, rising(100, 130, 120), shares(0, 50), shares(0, 60))
    assert (report.best, report.chosen_from) == (1, 3)
    assert (report.selection_start.value, report.selection_best.value) == (0.5, 0.65)
    assert (report.held_out.start.value, report.held_out.best.value) == (0.5, 0.6)
    assert report.held_out_score == report.held_out.best
    assert report.held_out.difference == pytest.approx(0.1)
    assert report.held_out.p_value == pytest.approx(2 * 0.5**10)  # ten fixed, none broken, both sides
    assert report.held_out.verdict == "better"
    assert report.selection_bias.points == pytest.approx(0.15 - 0.1)
    assert report.selection_bias.low < report.selection_bias.points < report.selection_bias.high
    assert (report.target_on_selection, report.target_on_held_out) == (True, False)
    verdict, target, bias = report.sentences
    assert verdict.startswith("Round 1 is better than the start: 60.0 % against 50.0 % on the 100 questions of the")
    assert target == (
        "The target of 64 % was reached on the selection half (65.0 %); on the held-out half the score is 60.0 %, "
        "which is below it."
    )
    assert bias.startswith(
        "Selection bias of 5.0 points: the gain is 15.0 points on the selection half and 10.0 on the held-out half"
    )


def test_a_report_of_an_earlier_version_is_read():
    report = closing(LoopSettings(target_percent=64), rising(100, 130), shares(0, 50), shares(0, 60))
    before = {
        "selection_start": "choosing_start",
        "selection_best": "choosing_best",
        "held_out_score": "sealed_score",
        "held_out": "sealed",
        "selection_bias": "flattery",
        "target_on_selection": "target_on_choosing",
        "target_on_held_out": "target_on_sealed",
    }
    stored = report.model_dump(mode="json")
    assert LoopReport.model_validate({before.get(name, name): value for name, value in stored.items()}) == report
    assert LoopReport.model_validate(stored) == report


def test_the_interval_of_the_selection_bias_combines_those_of_two_independent_halves():
    report = closing(LOOP, rising(100, 130), shares(0, 50), shares(0, 60))
    chosen, confirmed = paired_test(right(100), right(130)), paired_test(shares(0, 50), shares(0, 60))
    assert report.selection_bias.points - report.selection_bias.low == pytest.approx(
        np.sqrt((chosen.difference - chosen.low) ** 2 + (confirmed.high - confirmed.difference) ** 2)
    )
    assert report.selection_bias.high - report.selection_bias.points == pytest.approx(
        np.sqrt((chosen.high - chosen.difference) ** 2 + (confirmed.difference - confirmed.low) ** 2)
    )


@pytest.mark.parametrize(
    ("held_out", "verdict", "says"),
    [
        (shares(0, 53), "within_noise", "Round 1 is within the noise of the start"),
        (shares(0, 40), "worse", "Round 1 is worse than the start"),
    ],
)
def test_the_held_out_half_may_contradict_the_selection_half(held_out, verdict, says):
    report = closing(LOOP, rising(100, 130), shares(0, 50), held_out)
    assert report.held_out.verdict == verdict
    assert report.sentences[0].startswith(says)
    assert report.target_on_held_out is None


def test_a_gain_that_is_larger_on_the_held_out_half_shows_no_selection_bias():
    report = closing(LOOP, rising(100, 110), shares(0, 50), shares(0, 60))
    assert report.sentences[-1].startswith("No selection bias found: the gain is 5.0 points")


def test_a_report_on_too_many_failed_answers_gives_no_verdict():
    report = closing(LOOP, rising(100, 130), shares(0, 50), shares(0, 60), withheld="9 % of the answers failed.")
    assert report.held_out.verdict == "withheld"
    assert report.sentences[0].startswith("No verdict: 9 % of the answers failed. Observed: 60.0 % against")


def test_a_report_without_a_verdict_claims_neither_target_nor_selection_bias():
    loop = LoopSettings(target_percent=60)
    report = closing(loop, rising(100, 130), shares(0, 50), shares(0, 60), withheld="It failed.")
    assert (report.target_on_selection, report.target_on_held_out, report.selection_bias) == (True, None, None)
    assert report.sentences[1:] == [
        "The target of 60 % was reached on the selection half (65.0 %); on the held-out half the score is 60.0 %, no "
        "verdict."
    ]


def test_rounds_without_a_verdict_have_no_part_in_what_is_reported():
    loop = LoopSettings(target_percent=70)
    report = closing(loop, [*rising(100, 130), withheld(2, 180)], shares(0, 50), shares(0, 60))
    assert (report.best, report.chosen_from, report.held_out.verdict) == (1, 2, "better")
    assert report == closing(loop, rising(100, 130), shares(0, 50), shares(0, 60))


def test_no_selection_bias_is_computed_from_a_start_without_a_verdict_and_the_held_out_half_stands_by_itself():
    report = closing(LOOP, [withheld(0, 100), scored(1, 130)], shares(0, 50), shares(0, 60))
    assert (report.best, report.selection_bias, report.held_out.verdict) == (1, None, "better")


def test_where_no_round_has_a_verdict_no_target_is_reached():
    report = closing(
        LoopSettings(target_percent=60), [withheld(0, 100), withheld(1, 130)], shares(0, 50), shares(0, 60)
    )
    assert (report.best, report.target_on_selection, report.target_on_held_out) == (1, None, True)
    assert report.sentences[1] == (
        "The target of 60 % is not known to be reached on the selection half (65.0 %, no verdict); on the held-out "
        "half the score is 60.0 %."
    )
    assert report.selection_bias is None


def test_a_start_that_wins_because_the_others_have_no_verdict_says_so():
    report = closing(LOOP, [scored(0, 100), withheld(1, 130)], shares(0, 50), (), withheld="It failed.")
    assert report.sentences[0] == (
        "No round with a verdict scored above the start on the selection half, so there is no gain to report. The start "
        "scores 50.0 % on the 100 questions of the held-out half. No verdict is given on that: It failed."
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_verdict_in_partial_credit_is_one_that_its_interval_bears_out(seed):
    # Ten to fourteen of 15 questions stay, the others go up by quarters.
    random = np.random.default_rng(seed)
    start = [0.25] * 15
    best = [*(0.25 + random.integers(1, 4, 6 + seed % 3) / 4), *start[6 + seed % 3 :]]
    report = closing(LOOP, rising(100, 130), start, list(map(float, best)))
    assert report.held_out.p_value < 0.05
    assert report.held_out.verdict == "better"
    assert report.held_out.low > 0


@pytest.mark.parametrize(
    ("rounds", "says"),
    [
        (rising(100, 90, 100), "No round scored above the start on the selection half"),
        (rising(100), "No round was trained and scored"),
    ],
)
def test_a_loop_whose_start_is_the_best_claims_nothing(rounds, says):
    report = closing(LoopSettings(target_percent=40), rounds, shares(0, 50), ())
    assert (report.best, report.held_out, report.selection_bias) == (0, None, None)
    assert report.held_out_score.value == 0.5
    assert report.sentences[0].startswith(says)
    assert (report.target_on_selection, report.target_on_held_out) == (True, True)


def test_a_loop_without_a_scored_start_has_no_report():
    with pytest.raises(ValueError, match="start has no score"):
        closing(LOOP, [at(2)], shares(0, 50), shares(0, 50))


def test_selection_among_equal_rounds_is_biased_as_the_largest_of_so_many_is():
    # Rounds of independent answers at 1/2: each mean has the standard error s = 0.5 / sqrt(2500) = 0.01, and of two the
    # larger lies on average s / sqrt(pi) above the mean of both; the gain over the first is 0 or the difference, so its
    # expectation is half of E|difference| = s sqrt(2) sqrt(2 / pi) / 2 = s / sqrt(pi) = 0.0056.
    random = np.random.default_rng(5)
    seen = [expected_selection_bias(random.integers(0, 2, (2, 2500)).astype(float), seed) for seed in range(300)]
    assert np.mean(seen) == pytest.approx(0.0056, rel=0.15)
    assert expected_selection_bias([right(100)]) == 0
    assert expected_selection_bias([right(100), right(100)]) == pytest.approx(0, abs=1e-9)


def test_selection_of_a_round_far_above_the_others_is_not_biased():
    random = np.random.default_rng(6)
    weak, strong = (random.random((3, 400)) < 0.2), (random.random((1, 400)) < 0.9)
    assert abs(expected_selection_bias(np.concatenate([weak, strong]).astype(float))) < 0.002
