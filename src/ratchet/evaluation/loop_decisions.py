"""What a loop does next, as a pure function of its settings and its history; the benchmark's two halves; its view.

No database, file, clock or process: who calls ``decide`` brings the history and does what it says. The same history
gives the same answer, so that a server killed between the answer and the deed loses nothing. Left out: how a loop is
closed on the held-out half, ``loop_report.py``.

What a loop may claim
---------------------
Two statements of a loop are claims: that a round is a *real gain* (over its anchor, the last round that was one, the
start at first, so that small gains add up), and the verdict on the held-out half. Both together are to be wrong about a
loop that gains nothing in at most ALPHA = 5 % of loops. Half of that goes to the held-out verdict (a two-sided test at
5 % says "better" by chance in 2.5 %). The other half is shared by the rounds: round r may spend 1 / (r (r + 1)) of it,
which sums to 1 however many rounds there are (Bonferroni, whatever rounds have in common; spent as in a trial that is
inspected repeatedly, Lan and DeMets 1983, Biometrika 70). So a loop that is given more rounds changes nothing that
was said of it. Each round is tested once, exactly where answers are right or wrong, and an anchor that won by luck only
makes the next test harder. Scores, changes, BEST and "target reached" are what was observed on the selection half: none
of them says that something got better, and the words around them must not either.

Rounds without a verdict
------------------------
An evaluation may come with scores that allow no verdict (``withheld``): its verifier failed on too many answers, or the
model was trained on its questions. Such a round is shown, and says neither that something was gained nor that nothing
was: it is no real gain, nothing is tested against it, it reaches no target, it counts for no plateau, and it is not the
best while any other round is scored. Where no other is, the highest of them is trained on, since there is nothing
better to go by, and none is called the best. A start without a verdict so ends nothing; but no gain over it can be
claimed: the first round with a verdict takes its place as what later ones are measured against.

When a loop gives up
--------------------
To ask for a real gain within two rounds would end most loops that gain 5 points a round: on 200 questions that takes
about three. So giving up asks for the opposite, that there is not even a sign of gain: no real gain among the newest
``patience`` scored rounds, and in each of them a one-sided p-value above a lenient level against one of two marks.
The first is the anchor, with FALLEN_BACK = 0.8: rounds that lie visibly below it, or answer as it does question by
question. The level is that high because an anchor owes part of its score to luck, and so the rounds after it seem to
gain less than they do. The second has no such luck: the mean, question by question, of the ``patience`` + 1 scored
rounds before, with SIGN = 0.45. It takes no more rounds, or what was gained long ago would hide a plateau for ever.

Simulated (tests/evaluation/test_loop_simulations.py has the models; 200 questions in either half, one greedy answer to
each; pass probabilities uniform unless said otherwise):

    no gain, 10 rounds, no giving up: claims one, in 1,500 loops      all answers redrawn each round 2.8 %, half of
                                                                       them 3.6 % (upper 95 % bounds 3.6 and 4.5 %)
    the same with four answers a question, in 2,000 loops              redrawn 4.0 % (upper bound 4.8 %)
    gains 5 points a round over the last round: given up, in 500       redrawn 0.6 %; few easy or hard questions 2.4 %
    gains 5 points a round over the best so far: given up, in 500      0.7 redrawn 4.4 %; all redrawn, 256 questions
                                                                       5.4 %, 200 questions 11 %; the same with few
                                                                       easy or hard questions 14 %
    no gain: rounds trained of 8, on average                           3.6; half redrawn 4.1
    20 points in round 1, nothing after: rounds trained of 12          6.2

Where more than one in ten is given up, a lucky round was taken for the best and trained on again, so that the loop
gained less than 5 points a round in truth. With patience 1 three of ten loops that gain are given up, with 3 one in
fifty.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import fsum

from ratchet.config.resources import LoopSettings
from ratchet.evaluation.loop import (
    BenchmarkRound,
    Decision,
    EndLoop,
    LoopEnding,
    LoopRound,
    LoopView,
    RoundState,
    RoundView,
    TrainRound,
    Wait,
)
from ratchet.run.display import counted
from ratchet.stats import ALPHA, one_sided_p

# What the real gains of all rounds together may claim wrongly; the rest of ALPHA is the held-out half's.
REAL_GAIN_ALPHA = ALPHA / 2
# A round with at most this p-value against the rounds before it shows a sign of gain, far more lenient than a claim.
SIGN = 0.45
# The same against the last real gain, which luck had a part in.
FALLEN_BACK = 0.8
# So many failed runs in a row end a loop.
MOST_FAILED = 2
_ROUNDING = 1e-9


def split_halves(
    questions: Sequence[int], seed: int, difficulty: Mapping[int, float | str] | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split a benchmark's questions into the selection half and the half that is held out until the loop is over.

    Questions next to one another in difficulty are paired, and one of each pair goes to either half, as a hash of seed
    and question decides: the halves are alike in difficulty, and the split depends on no library and no order.

    Args:
        questions: Their numbers, each once.
        seed: Of the split.
        difficulty: Of those questions that have one, all of one kind. Not given: all are alike.

    Returns:
        Selection and held-out half, disjoint and together all, each in ascending order. An odd question is selection.

    Raises:
        ValueError: fewer than two questions, or one of them twice.
    """
    if len(questions) < 2 or len(set(questions)) != len(questions):
        raise ValueError(f"two halves need at least two questions, each once, not {len(questions)}")
    bands = difficulty or {}
    lots = {question: sha256(f"{seed}:{question}".encode()).digest() for question in questions}
    by_lot = sorted(questions, key=lots.__getitem__)
    order = sorted((one for one in by_lot if one in bands), key=bands.__getitem__)
    order += [one for one in by_lot if one not in bands]
    selection, held_out = [], []
    for start in range(0, len(order), 2):
        pair = sorted(order[start : start + 2], key=lots.__getitem__)
        selection.append(pair[0])
        held_out += pair[1:]
    return tuple(sorted(selection)), tuple(sorted(held_out))


def decide(settings: LoopSettings, rounds: Sequence[LoopRound], *, stop_requested: bool = False) -> Decision:
    """Decide what a loop does next.

    The start is benchmarked first. Each round trains on top of the best so far and is then benchmarked, also where its
    run stopped early with an adapter; an evaluation that fails is begun once more, after which the round stays
    unscored. At most one run or evaluation is under way.

    Args:
        settings: The loop's.
        rounds: Every round that was begun, from round 0 on, each as far as it has come. A round may be there before its
            job is: the decision is the same with and without it.
        stop_requested: Whether the loop was asked to stop. The caller also stops what is under way; an adapter that
            this leaves is kept and not benchmarked.

    Raises:
        ValueError: a history that these rules do not lead to.
    """
    _check(rounds)
    last = rounds[-1] if rounds else LoopRound(number=0)
    if last.at_work:
        return Wait(round=last.number, status="training" if last.run == "at_work" else "benchmarking")
    if stop_requested:
        return _end("stopped", f"Stopped on request after round {last.number}.", rounds)
    if not last.is_over:
        return _unfinished(last, rounds)
    ending = _ending(settings, rounds)
    if ending is not None:
        return _end(*ending, rounds)
    return TrainRound(round=last.number + 1, on_top_of=_best(rounds).number)


def candidates(rounds: Sequence[LoopRound]) -> list[LoopRound]:
    """Rounds of which one is the best: the scored ones with a verdict, or all scored ones where none has."""
    scored = [entry for entry in rounds if entry.evaluation == "scored"]
    return _judged(scored) or scored


def best_round(rounds: Sequence[LoopRound]) -> LoopRound | None:
    """The candidate with the highest score, of equal ones the earliest; None where no round is scored."""
    best, best_score = None, -1.0
    for entry in candidates(rounds):
        if entry.score is not None and entry.score > best_score:
            best, best_score = entry, entry.score
    return best


def real_gains(settings: LoopSettings, rounds: Sequence[LoopRound]) -> dict[int, int]:
    """Rounds that are a real gain, each with the round that it is significantly better than.

    A claim, see the head of this file: about a loop that gains nothing it is made in at most 2.5 % of loops.
    """
    gains: dict[int, int] = {}
    anchor: LoopRound | None = None
    for entry in _judged(rounds):
        if anchor is None:
            anchor = entry
        elif _p_value(settings, anchor.scores, entry) <= REAL_GAIN_ALPHA * share(entry.number):
            gains[entry.number] = anchor.number
            anchor = entry
    return gains


def share(number: int) -> float:
    """The share of REAL_GAIN_ALPHA that a round's test may spend; all rounds' shares sum to 1."""
    return 1 / (number * (number + 1))


def view(settings: LoopSettings, rounds: Sequence[LoopRound]) -> LoopView:
    """A loop's rounds as pages and terminals show them."""
    gains, best, views = real_gains(settings, rounds), _shown_best(rounds), []
    before: float | None = None
    for index, entry in enumerate(rounds):
        on_top_of = best_round(rounds[:index])
        views.append(
            RoundView(
                number=entry.number,
                state=_state(entry),
                on_top_of=on_top_of.number if on_top_of else None,
                percent=None if entry.score is None else 100 * entry.score,
                change=_points(entry.score, before),
                best=entry is best,
                real_gain_over=gains.get(entry.number),
                withheld=entry.withheld,
            )
        )
        before = before if entry.score is None else entry.score
    score = best.score if best else None
    return LoopView(
        rounds=views,
        rounds_used=max(0, len(rounds) - 1),
        max_rounds=settings.max_rounds,
        target_percent=settings.target_percent,
        best=best.number if best else None,
        best_percent=None if score is None else 100 * score,
        gain_over_start=_points(score, _judged_score(rounds, 0)),
        gain_over_first=_points(score, _judged_score(rounds, 1)),
    )


def meets(settings: LoopSettings, score: float) -> bool:
    """Whether a score of 0..1 is at the target or above it; never without a target."""
    return settings.target_percent is not None and 100 * score >= settings.target_percent - _ROUNDING


def _check(rounds: Sequence[LoopRound]) -> None:
    """Raise ValueError for a history that ``decide`` does not lead to."""
    numbers = [entry.number for entry in rounds]
    if numbers != list(range(len(rounds))):
        raise ValueError(f"a loop has rounds 0, 1, 2 and so on, not {numbers}")
    if not all(entry.is_over for entry in rounds[:-1]):
        raise ValueError("a round began before the one ahead of it was over")
    if len({len(entry.scores or ()) for entry in rounds if entry.evaluation == "scored"}) > 1:
        raise ValueError("rounds were scored on different numbers of questions")


def _unfinished(last: LoopRound, rounds: Sequence[LoopRound]) -> Decision:
    """The next job of a round that is not over and has none running."""
    if last.number > 0 and last.run == "none":
        return TrainRound(round=last.number, on_top_of=_best(rounds).number)
    return BenchmarkRound(round=last.number, attempt=last.tries + 1)


def _ending(settings: LoopSettings, rounds: Sequence[LoopRound]) -> tuple[LoopEnding, str] | None:
    """How a loop whose rounds are all over ends, and why; None where another round follows."""
    best = best_round(rounds)
    if best is None or best.score is None or rounds[0].score is None:
        return "failed", f"The start could not be evaluated in {rounds[0].tries} tries."
    if not best.withheld and meets(settings, best.score):
        where = f"round {best.number}" if best.number else "the start, before any training"
        return "target_reached", f"The target of {settings.target_percent:g} % was reached by {where}."
    newest = rounds[-MOST_FAILED:]
    if len(newest) == MOST_FAILED and all(entry.run == "no_adapter" for entry in newest):
        return "failed", f"The runs of rounds {newest[0].number} and {newest[-1].number} both ended without an adapter."
    without = _without_gain(settings, rounds)
    if without:
        return "plateaued", without
    if len(rounds) > settings.max_rounds:
        return "rounds_spent", f"Used {counted(len(rounds) - 1, 'round')} of {settings.max_rounds}."
    return None


def _without_gain(settings: LoopSettings, rounds: Sequence[LoopRound]) -> str:
    """Why the newest rounds show no sign of gain; "" where they do, or it is too early to say."""
    scored, patience = _judged(rounds), settings.patience
    if len(scored) <= patience:
        return ""
    newest, before = scored[-patience:], scored[-2 * patience - 1 : -patience]
    gains = real_gains(settings, rounds)
    if any(entry.number in gains for entry in newest):
        return ""
    anchor = next((entry for entry in reversed(scored) if entry.number in gains), scored[0])
    for marks, level in (([anchor], FALLEN_BACK), (before, SIGN)):
        mark = [fsum(answers) / len(marks) for answers in zip(*(entry.scores or () for entry in marks), strict=True)]
        if all(_p_value(settings, mark, entry) > level for entry in reversed(newest)):
            what, which = counted(patience, "round"), "the score" if len(marks) == 1 else "the mean"
            return f"{what} without gain over {_percent(fsum(mark) / len(mark))}, {which} of {_named(marks)}."
    return ""


def _named(rounds: Sequence[LoopRound]) -> str:
    """Such as "rounds 0, 1 and 3"."""
    *most, last = (str(entry.number) for entry in rounds)
    return f"rounds {', '.join(most)} and {last}" if most else f"round {last}"


def _end(status: LoopEnding, why: str, rounds: Sequence[LoopRound]) -> EndLoop:
    """An ending whose reason names the best round, and the rounds without a verdict."""
    best = best_round(rounds)
    if best is None or best.score is None:
        return EndLoop(status=status, reason=why, best=None)
    who = f"round {best.number}" if best.number else "the start"
    seen = f"Best on the selection half: {who} with {_percent(best.score)}."
    if best.withheld:
        seen = f"Highest on the selection half: {who} with {_percent(best.score)}."
    return EndLoop(status=status, reason=" ".join([why, seen, *_without_verdict(rounds)]), best=best.number)


def _without_verdict(rounds: Sequence[LoopRound]) -> list[str]:
    """Why rounds are without a verdict, the start by itself, since every gain would be one over it."""
    sentences = []
    if rounds[0].withheld:
        sentences.append(f"No verdict is given on the start, so no gain over it can be claimed: {rounds[0].withheld}")
    reasons = dict.fromkeys(entry.withheld for entry in rounds[1:] if entry.withheld)
    for reason in reasons:
        named = _named([entry for entry in rounds[1:] if entry.withheld == reason])
        sentences.append(f"No verdict is given on {named}: {reason}")
    return sentences


def _best(rounds: Sequence[LoopRound]) -> LoopRound:
    best = best_round(rounds)
    if best is None:
        raise ValueError("a round is to be trained and the start has no score")
    return best


def _p_value(settings: LoopSettings, left: Sequence[float] | None, right: LoopRound) -> float:
    return one_sided_p(left or (), right.scores or (), settings.seed)


def _judged(rounds: Sequence[LoopRound]) -> list[LoopRound]:
    """Scored rounds whose scores allow a verdict."""
    return [entry for entry in rounds if entry.evaluation == "scored" and not entry.withheld]


def _judged_score(rounds: Sequence[LoopRound], number: int) -> float | None:
    return next((entry.score for entry in _judged(rounds) if entry.number == number), None)


def _shown_best(rounds: Sequence[LoopRound]) -> LoopRound | None:
    best = best_round(rounds)
    return None if best is None or best.withheld else best


def _state(entry: LoopRound) -> RoundState:
    if entry.at_work:
        return "training" if entry.run == "at_work" else "benchmarking"
    if entry.run == "no_adapter":
        return "failed"
    if entry.evaluation == "scored":
        return "scored"
    return "unscored" if entry.is_unscored else "waiting"


def _percent(score: float) -> str:
    return f"{100 * score:.1f} %"


def _points(score: float | None, other: float | None) -> float | None:
    return None if score is None or other is None else 100 * (score - other)
