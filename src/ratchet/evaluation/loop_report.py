"""How a loop came out: its best round, selected on one half of the benchmark, measured once on the held-out half.

The best of several noisy scores is best partly by luck, so the score on the selection half is inflated. The held-out
half had no part in the selection: its verdict is the loop's claim, and the difference of the two gains is the selection
bias. Pure: the caller brings the scores of the held-out half, which was not evaluated before. See
``loop_decisions.py`` for what a loop may claim.
"""

from collections.abc import Sequence
from math import hypot
from typing import TYPE_CHECKING

from ratchet.config.resources import LoopSettings
from ratchet.evaluation.comparison import Verdict, verdict_of
from ratchet.evaluation.evaluation import Score
from ratchet.evaluation.loop import HeldOutVerdict, LoopReport, LoopRound, SelectionBias
from ratchet.evaluation.loop_decisions import best_round, candidates, meets
from ratchet.stats import Paired, bootstrap_mean, paired_test, shown_interval, shown_points, wilson

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The mean over so many draws wobbles by a fiftieth of a point with the seed.
DRAWS = 20_000
# Worded of the winner and the start.
_SAYS: dict[Verdict, str] = {
    "better": "is better than the",
    "worse": "is worse than the",
    "within_noise": "is within the noise of the",
}


def closing(
    settings: LoopSettings,
    rounds: Sequence[LoopRound],
    held_out_start: Sequence[float],
    held_out_best: Sequence[float],
    *,
    withheld: str = "",
) -> LoopReport:
    """Report a loop that is over.

    Args:
        settings: The loop's.
        rounds: Its history, the start scored.
        held_out_start: Scores of the start on the held-out half, 0..1, one a question.
        held_out_best: Scores of the best round, in the same order; not read where the start is the best.
        withheld: Why no verdict can be given on the held-out scores, a sentence; "" where one can. Then nothing is
            claimed of them: neither a gain nor the target, nor a selection bias.

    Raises:
        ValueError: the start has no score, or the held-out scores do not go together.
    """
    best = best_round(rounds)
    if best is None or best.scores is None or rounds[0].scores is None:
        raise ValueError("a loop whose start has no score has nothing to report")
    matrix = [entry.scores for entry in candidates(rounds) if entry.scores is not None]
    held_out_scores = held_out_best if best.number else held_out_start
    selection_best, held_out_score = _score(settings, best.scores), _score(settings, held_out_scores)
    held_out = bias = None
    if best.number:
        chosen = paired_test(rounds[0].scores, best.scores, settings.seed)
        confirmed = paired_test(held_out_start, held_out_best, settings.seed)
        held_out = _verdict(best.number, _score(settings, held_out_start), held_out_score, confirmed, withheld)
        if not (withheld or best.withheld or rounds[0].withheld):
            bias = _selection_bias(chosen, confirmed, expected_selection_bias(matrix, settings.seed), len(matrix))
    on_selection = _meets(settings, selection_best, best.withheld)
    on_held_out = _meets(settings, held_out_score, withheld)
    sentences = [held_out.sentence if held_out else _no_winner(rounds, held_out_score, withheld)]
    if settings.target_percent is not None:
        there, here = _shown(selection_best, on_selection), _shown(held_out_score, on_held_out)
        sentences.append(_on_target(settings.target_percent, on_selection, there, on_held_out, here))
    if bias:
        sentences.append(bias.sentence)
    return LoopReport(
        best=best.number,
        chosen_from=len(matrix),
        selection_start=_score(settings, rounds[0].scores),
        selection_best=selection_best,
        held_out_score=held_out_score,
        held_out=held_out,
        selection_bias=bias,
        target_on_selection=on_selection,
        target_on_held_out=on_held_out,
        sentences=sentences,
    )


def expected_selection_bias(scores: Sequence[Sequence[float]], seed: int = 0) -> float:
    """Selection bias to expect: how much selecting the highest of several scores adds to its gain over the first.

    Scores are drawn around the true ones with the noise that means over these questions have: normal, and correlated
    as the rounds' answers are, question by question (the parametric bootstrap: Efron and Tibshirani 1993, An
    Introduction to the Bootstrap, section 6.5). Observed scores spread more than true ones, so the true ones are shrunk
    towards their mean by the share of the spread that noise explains (Efron and Morris 1973, JASA 68). Where all rounds
    are equally good that is all of it, and the estimate is largest; where a few stand out it falls somewhat short.

    Args:
        scores: R rounds of Q questions, 0..1, the start first.
        seed: Of the draws.

    Returns:
        A share, 0 for a single round.
    """
    import numpy as np

    if len(scores) < 2:
        return 0.0
    matrix = np.asarray(scores, dtype=float)  # (R, Q)
    means, questions = matrix.mean(axis=1), matrix.shape[1]
    rest = matrix - means[:, None]
    covariance = rest @ rest.T / questions**2  # (R, R), of the means
    random = np.random.default_rng(seed)
    noise = random.multivariate_normal(np.zeros(len(means)), covariance, DRAWS, check_valid="ignore")  # (DRAWS, R)
    chosen = (_nearer(means, rest) + noise).argmax(axis=1)
    return float((noise[np.arange(DRAWS), chosen] - noise[:, 0]).mean())


def _nearer(means: "NDArray[np.float64]", rest: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """(R,) means with their differences shrunk by the share of their variance that noise explains."""
    seen, noise = means.var(ddof=1), rest.var(axis=0, ddof=1).mean() / rest.shape[1]
    true_share = max(0.0, 1 - noise / seen) if seen > 0 else 0.0
    nearer: NDArray[np.float64] = true_share * means  # what they have in common chooses nothing
    return nearer


def _score(settings: LoopSettings, values: Sequence[float]) -> Score:
    """Mean with its interval: Wilson's for right and wrong, the bootstrap for partial credit."""
    is_binary = all(value in (0, 1) for value in values)
    interval = wilson(sum(values), len(values)) if is_binary else bootstrap_mean(values, settings.seed)
    return Score(
        name=settings.score_column,
        value=sum(values) / len(values),
        low=interval.low,
        high=interval.high,
        method=interval.method,
        of=len(values),
    )


def _verdict(number: int, start: Score, best: Score, test: Paired, withheld: str) -> HeldOutVerdict:
    """Verdict on the winner, in numbers and words."""
    word = verdict_of(test, withheld=bool(withheld))
    numbers = (
        f"{_percent(best.value)} against {_percent(start.value)} on the {best.of} questions of the held-out half, "
        f"{shown_points(test.difference)} points ({shown_interval(test.low, test.high)}, p = {test.p_value:.2g})."
    )
    says = f"No verdict: {withheld} Observed:" if word == "withheld" else f"Round {number} {_SAYS[word]} start:"
    return HeldOutVerdict(
        start=start,
        best=best,
        difference=test.difference,
        low=test.low,
        high=test.high,
        test=test.test,
        p_value=test.p_value,
        verdict=word,
        sentence=f"{says} {numbers}",
    )


def _selection_bias(chosen: Paired, confirmed: Paired, expected: float, rounds: int) -> SelectionBias:
    """Compare the two halves' gains. They share no question, so their intervals combine (Zou and Donner 2008).

    Statistics in Medicine 27, 1693: the distance from an estimate to the end of its interval stands for its spread.
    """
    points = chosen.difference - confirmed.difference
    low = points - hypot(chosen.difference - chosen.low, confirmed.high - confirmed.difference)
    high = points + hypot(chosen.high - chosen.difference, confirmed.difference - confirmed.low)
    found = f"Selection bias of {shown_points(points)} points" if points > 0 else "No selection bias found"
    return SelectionBias(
        points=points,
        low=low,
        high=high,
        expected=expected,
        sentence=(
            f"{found}: the gain is {shown_points(chosen.difference)} points on the selection half and "
            f"{shown_points(confirmed.difference)} on the held-out half (difference {shown_points(points)}, "
            f"{shown_interval(low, high)}). Selecting the best of {rounds} scores adds about {shown_points(expected)} "
            "points on its own."
        ),
    )


def _no_winner(rounds: Sequence[LoopRound], held_out: Score, withheld: str) -> str:
    seen = f"The start scores {_percent(held_out.value)} on the {held_out.of} questions of the held-out half."
    if withheld:
        seen = f"{seen} No verdict is given on that: {withheld}"
    scored = [entry for entry in rounds[1:] if entry.scores is not None]
    if not scored:
        return f"No round was trained and scored, so there is no gain to report. {seen}"
    rounds_with = "round with a verdict" if any(entry.withheld for entry in scored) else "round"
    return f"No {rounds_with} scored above the start on the selection half, so there is no gain to report. {seen}"


def _meets(settings: LoopSettings, score: Score, withheld: str) -> bool | None:
    """Whether a score meets the target; None without a target, and where no verdict is given on the score."""
    return None if settings.target_percent is None or withheld else meets(settings, score.value)


def _shown(score: Score, is_met: bool | None) -> str:
    return f"{_percent(score.value)}, no verdict" if is_met is None else _percent(score.value)


def _on_target(
    target_percent: float, on_selection: bool | None, there: str, on_held_out: bool | None, here: str
) -> str:
    """Whether the target is confirmed on the held-out half."""
    target = f"The target of {target_percent:g} %"
    if not on_selection:
        reached = "was not reached" if on_selection is False else "is not known to be reached"
        return f"{target} {reached} on the selection half ({there}); on the held-out half the score is {here}."
    holds = {True: ", which meets it too", False: ", which is below it", None: ""}[on_held_out]
    return f"{target} was reached on the selection half ({there}); on the held-out half the score is {here}{holds}."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
