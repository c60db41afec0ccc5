"""What a run's curves say of its health: named diagnoses with evidence and remedy, and trends. Reads records alone.

    shares     of the last three rounds, by counts: no signal, cut off, unparseable
    trends     over all rounds or their latter half, from eight rounds on: entropy, length, ratios, watch metric,
               validation against training

A diagnosis needs both a size that matters and a test that says it is not chance, since a run is diagnosed after each
of its rounds. Every threshold stands below with its reason. Left out on purpose: nothing here ends a run.
"""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite, sqrt
from typing import NamedTuple

from ratchet.config import RunConfig
from ratchet.run.diagnosis import (
    Counts,
    CurveEnds,
    Diagnosis,
    cut_off_answers,
    outcome_counts_in_words,
    unparseable_answers,
    why_no_signal,
)
from ratchet.run.records import Outcome, Record, RoundRecord
from ratchet.run.report_card import PARSE_FAILURE_WARNING
from ratchet.stats import Trend, exceeds, trend

# Fewer rounds are a handful: a single odd one would decide.
FEWEST_FOR_SHARES, FEWEST_FOR_TRENDS = 3, 8
# What chance alone may do, a test: stricter than a trend tile's, since each round brings several tests.
SURE = 0.005
# A change of a share that is worth a word; less is within what a run's own measures wobble by.
LEAST_CHANGE = 0.02

# With entropy near zero the policy has stopped exploring and its reward stops rising (Cui et al. 2025,
# arXiv:2505.22617, section 2: R = -a exp(H) + b); clip-higher was made against it (Yu et al. 2025, DAPO,
# arXiv:2503.14476, section 3.1). Nats a token. A policy that is nearly always right has little entropy by right.
COLLAPSED_ENTROPY, COLLAPSED_SHARE, NEARLY_SOLVED = 0.2, 0.25, 0.9
# Dividing by an answer's length favours long wrong answers (Liu et al. 2025, Dr. GRPO, arXiv:2503.20783, section 3.1).
# A quarter longer is more than answers differ by from round to round.
CREEP_FACTOR = 1.25
# Of the tokens. PPO-like losses clip a few percent; GSPO's clips about 15 % by design (Zheng et al. 2025,
# arXiv:2507.18071, section 5.2). With a third clipped much of the round is thrown away.
MOST_CLIPPED, MOST_CLIPPED_GSPO = 0.3, 0.6
# Trainer and sampler agree to a percent as a rule; a capped ratio is a token on which they do not.
MOST_IMPORTANCE_OFF, MOST_CAPPED = 0.25, 0.05
# Gradient norms differ by half from round to round; five times the early ones is another regime.
NORM_FACTOR = 5.0
# With hardly a group in twenty that teaches anything a round is nearly all in vain. The number of groups compared.
DEAD_SIGNAL_SHARE, DEAD_SIGNAL_GROUPS = 0.05, 30
MOSTLY = 0.5
# Of the peak, and in accuracy: what validation must lose to be called collapsed. The peak is the best of many, so that
# three standard errors are met by luck in one run of forty (simulated); four are not.
COLLAPSE_SHARE, COLLAPSE_CHANGE, COLLAPSE_ERRORS = 1 / 3, 0.1, 4.0
OVERFIT_CHANGE = 0.05


class Health(Record):
    """What was found. ``too_early`` says in words what cannot be judged yet, "" where all can be.

    ``trends`` holds those curves that the run has, by name; none below six rounds.
    """

    rounds: int
    diagnoses: tuple[Diagnosis, ...]
    trends: dict[str, Trend]
    too_early: str


class _Run(NamedTuple):
    """A run as the rules see it: round 0 apart, since it has a validation alone."""

    records: tuple[RoundRecord, ...]
    trained: tuple[RoundRecord, ...]
    config: RunConfig


_Points = list[tuple[int, float]]

_CURVES: dict[str, Callable[[RoundRecord], float | None]] = {
    "reward": lambda record: record.reward,
    "accuracy": lambda record: record.accuracy,
    "watch metric": lambda record: record.watch,
    "validation accuracy": lambda record: record.validation.accuracy,
    "validation reward": lambda record: record.validation.reward,
    "validation watch metric": lambda record: record.validation.watch,
    "validation loss": lambda record: record.validation.loss,
    "entropy": lambda record: record.entropy,
    "answer length": lambda record: record.answer_tokens,
    "gradient norm": lambda record: None if record.learned is None else record.learned.gradient_norm,
    "training loss": lambda record: None if record.learned is None else record.learned.loss,
}
_SHOWN = (
    "reward",
    "accuracy",
    "validation accuracy",
    "watch metric",
    "validation watch metric",
    "validation loss",
    "entropy",
    "answer length",
)


def examine(records: Sequence[RoundRecord], config: RunConfig) -> Health:
    """Look at a run's rounds so far.

    Args:
        records: From round 0 on, in order.
        config: The run's settings, resolved.
    """
    run = _Run(tuple(records), tuple(record for record in records if record.round), config)
    rounds = len(run.trained)
    found: list[Diagnosis] = []
    if rounds >= FEWEST_FOR_SHARES:
        found += filter(None, (rule(run) for rule in _BY_SHARES))
    if rounds >= FEWEST_FOR_TRENDS:
        found += filter(None, (rule(run) for rule in _BY_TRENDS))
    trends = {name: trend(_curve(run, name)) for name in _SHOWN}
    return Health(
        rounds=rounds,
        diagnoses=tuple(found),
        trends={name: one for name, one in trends.items() if one is not None},
        too_early=_too_early(rounds),
    )


def found_in_words(diagnoses: Sequence[Diagnosis], run: str) -> str:
    """Sentence on a run's health that its end carries, "" where nothing was found."""
    if not diagnoses:
        return ""
    titles = "; ".join(diagnosis.title[0].lower() + diagnosis.title[1:] for diagnosis in diagnoses)
    return f"Found in its rounds: {titles}. What says so and what to do: ratchet runs health {run}"


def _too_early(rounds: int) -> str:
    if rounds >= FEWEST_FOR_TRENDS:
        return ""
    done = f"{rounds} {'round is' if rounds == 1 else 'rounds are'} done"
    if rounds < FEWEST_FOR_SHARES:
        return f"Not enough rounds for a diagnosis (needs {FEWEST_FOR_SHARES}): {done}."
    return f"Not enough rounds for trends (needs {FEWEST_FOR_TRENDS}): {done}."


def _curve(run: _Run, name: str) -> _Points:
    """Rounds that have the number, with it. Round 0 is part of the validation curves."""
    value_of = _CURVES[name]
    records = run.records if name.startswith("validation") else run.trained
    # Also a round that nothing was learned from may leave a number out, and one that blew up may hold no number.
    values = ((record.round, value_of(record)) for record in records)
    return [(number, float(value)) for number, value in values if value is not None and isfinite(value)]


def _ends(name: str, points: _Points) -> CurveEnds:
    (first_round, first), (last_round, last) = points[0], points[-1]
    return CurveEnds(name=name, first_round=first_round, last_round=last_round, first=first, last=last)


def _change(ends: CurveEnds, verb: str) -> str:
    """Such as "reward rose from 0.210 (round 1) to 0.880 (round 20)"."""
    shown = (f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}" for value in (ends.first, ends.last))
    return (
        f"{ends.name} {verb} from {next(shown)} (round {ends.first_round}) to {next(shown)} (round {ends.last_round})"
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _stretches(run: _Run) -> Iterator[range]:
    """Yield the rounds of the whole run, and of its latter half where that is long enough to judge by itself."""
    last = run.trained[-1].round
    yield range(last + 1)
    if last // 2 >= FEWEST_FOR_TRENDS:
        yield range(last - last // 2 + 1, last + 1)


def _within(points: _Points, rounds: range) -> _Points:
    return [point for point in points if point[0] in rounds]


def _sure_trend(points: _Points) -> Trend | None:
    """Trend of a curve that is long enough to diagnose by, by the stricter test."""
    return trend(points, SURE) if len(points) >= FEWEST_FOR_TRENDS else None


# Pairs of which the first must not rise while the second falls, with what each then is.
_OPPOSED = (
    ("reward", "watch metric"),
    ("validation reward", "validation watch metric"),
    ("reward", "accuracy"),  # shaping, or the other parts of a composite, learned instead of the task
)


def _reward_hacking(run: _Run) -> Diagnosis | None:
    for rounds in _stretches(run):
        for paid, meant in _OPPOSED:
            up, down = (_within(_curve(run, name), rounds) for name in (paid, meant))
            rise, fall = _sure_trend(up), _sure_trend(down)
            if rise is None or fall is None or (rise.direction, fall.direction) != ("rising", "falling"):
                continue
            if rise.change < LEAST_CHANGE or fall.change > -LEAST_CHANGE:
                continue
            watch = run.config.watch
            called = meant.replace("watch metric", f"watch metric ({watch.kind})") if watch else meant
            curves = (_ends(paid, up), _ends(called, down))
            return Diagnosis(
                code="reward_hacking",
                title="Likely reward hacking",
                evidence=_sentence(f"{_change(curves[0], 'rose')} while {_change(curves[1], 'fell')}"),
                remedy="Read the best paid answers of the last rounds (ratchet runs samples), close the gap in the "
                "verifier that they use, and start anew; do not trust this run's validation accuracy.",
                curves=curves,
            )
    return None


def _entropy_collapse(run: _Run) -> Diagnosis | None:
    points = _curve(run, "entropy")
    entropy, accuracy = _sure_trend(points), trend(_curve(run, "accuracy"))
    if entropy is None or accuracy is None or entropy.direction != "falling":
        return None
    if entropy.late > min(COLLAPSED_ENTROPY, COLLAPSED_SHARE * entropy.early) or accuracy.late >= NEARLY_SOLVED:
        return None
    rounds = list(_stretches(run))[-1]
    latter = trend(_within(_curve(run, "accuracy"), rounds))
    if latter is not None and latter.direction == "rising" and latter.change >= LEAST_CHANGE:
        return None  # it still learns
    curve = _ends("entropy", points)
    way = "Set Loss to dapo, whose higher clip keeps rare tokens alive"
    if run.config.rl.loss == "dapo":
        way = "Raise Clip high"
    return Diagnosis(
        code="entropy_collapse",
        title="Entropy collapse",
        evidence=_sentence(
            f"{_change(curve, 'fell')}, in nats a token, and accuracy is {accuracy.late:.1%}: answers to a prompt "
            "have become alike before the task is learned"
        ),
        remedy=f"{way}, or raise Temperature; a lower Learning rate slows it down.",
        curves=(curve,),
    )


def _length_creep(run: _Run) -> Diagnosis | None:
    for rounds in _stretches(run):
        points = _within(_curve(run, "answer length"), rounds)
        length = _sure_trend(points)
        if length is None or length.direction != "rising" or length.late < CREEP_FACTOR * length.early:
            continue
        gains = [trend(_within(_curve(run, name), rounds)) for name in ("accuracy", "validation accuracy")]
        if any(gain and gain.direction == "rising" and gain.change >= LEAST_CHANGE for gain in gains):
            continue
        curves = (_ends("answer length", points), _ends("accuracy", _within(_curve(run, "accuracy"), rounds)))
        way = "Set Loss to dr_grpo, which does not favour long wrong answers, or set an Overlong buffer."
        if run.config.rl.loss == "dr_grpo":
            way = "Set an Overlong buffer, or lower Max answer tokens."
        return Diagnosis(
            code="length_creep",
            title="Length creep",
            evidence=_sentence(f"{_change(curves[0], 'rose')}, in tokens, while {_change(curves[1], 'went')}, no rise"),
            remedy=way,
            curves=curves,
        )
    return None


def _ratio_blow_up(run: _Run) -> Diagnosis | None:
    signs = [*filter(None, (_clipped(run), _importance(run)))]
    curves: tuple[CurveEnds, ...] = ()
    if len(run.trained) >= FEWEST_FOR_TRENDS:
        points = _curve(run, "gradient norm")
        norm = _sure_trend(points)
        limit = run.config.optimizer.gradient_norm_limit
        if norm and norm.direction == "rising" and norm.late > max(limit, NORM_FACTOR * norm.early):
            curves = (_ends("gradient norm", points),)
            signs.append(_change(curves[0], "rose"))
    if not signs:
        return None
    way = "Lower Learning rate, or have fewer optimizer steps a round (a larger Batch size)."
    if run.config.rl.loss != "gspo":
        way = (
            "Set Loss to gspo, whose one ratio an answer is steadier (it is a must for mixture-of-experts models), or "
        )
        way += "lower Learning rate."
    return Diagnosis(
        code="ratio_blow_up",
        title="Ratios blow up",
        evidence=_sentence("; ".join(signs)),
        remedy=way,
        curves=curves,
    )


def _recent_mean(run: _Run, name: str) -> float | None:
    """Mean of a number of the update over the last rounds that learned, None where it is not known."""
    learned = [record.learned for record in run.trained if record.learned is not None and record.learned.steps]
    values = [getattr(one, name) for one in learned[-FEWEST_FOR_SHARES:]]
    if len(values) < FEWEST_FOR_SHARES or any(value is None or not isfinite(value) for value in values):
        return None
    return float(sum(values) / len(values))


def _clipped(run: _Run) -> str:
    clipped = _recent_mean(run, "clip_fraction")
    limit = MOST_CLIPPED_GSPO if run.config.rl.loss == "gspo" else MOST_CLIPPED
    if clipped is None or clipped <= limit:
        return ""
    return f"{clipped:.0%} of the tokens were clipped in the last {FEWEST_FOR_SHARES} rounds (limit {limit:.0%})"


def _importance(run: _Run) -> str:
    mean, capped = _recent_mean(run, "importance_mean"), _recent_mean(run, "importance_capped")
    if mean is not None and abs(mean - 1) > MOST_IMPORTANCE_OFF:
        return f"the trainer found the sampled tokens {mean:.2f} times as likely as the sampler did, on average"
    if capped is not None and capped > MOST_CAPPED:
        return f"the ratio of trainer to sampler was capped on {capped:.0%} of the tokens (limit {MOST_CAPPED:.0%})"
    return ""


def _dead_signal(run: _Run) -> Diagnosis | None:
    sampled = [record for record in run.trained if record.groups]
    recent = sampled[-FEWEST_FOR_SHARES:]
    while len(recent) < len(sampled) and sum(record.groups for record in recent) < DEAD_SIGNAL_GROUPS:
        recent = sampled[-len(recent) - 1 :]
    groups, telling = sum(r.groups for r in recent), sum(r.informative_groups for r in recent)
    few = 0.0 if groups < DEAD_SIGNAL_GROUPS else DEAD_SIGNAL_SHARE
    if len(recent) < FEWEST_FOR_SHARES or telling > few * groups:
        return None
    counts = Counts.of_rounds(recent)
    cause, remedy = why_no_signal(counts)
    return Diagnosis(
        code="dead_signal",
        title=f"No learning signal, {cause}",
        evidence=_sentence(
            f"{telling} of {groups} groups of rounds {recent[0].round} to {recent[-1].round} had answers that scored "
            f"differently ({outcome_counts_in_words(counts)})"
        ),
        remedy=remedy,
    )


_RECENT = f"answers of the last {FEWEST_FOR_SHARES} rounds"


def _counted(run: _Run, outcome: Outcome) -> tuple[int, int]:
    """How many answers of the last rounds ended so, and of how many."""
    recent = run.trained[-FEWEST_FOR_SHARES:]
    return sum(r.outcomes.get(outcome, 0) for r in recent), sum(sum(r.outcomes.values()) for r in recent)


def _mostly_cut_off(run: _Run) -> Diagnosis | None:
    hits, total = _counted(run, "cut_off")
    if not exceeds(hits, total, MOSTLY, SURE):
        return None
    return cut_off_answers(hits, total, _RECENT, run.config.rl.max_answer_tokens)


def _parse_failures(run: _Run) -> Diagnosis | None:
    hits, total = _counted(run, "unparseable")
    if not exceeds(hits, total, PARSE_FAILURE_WARNING, SURE):
        return None
    return unparseable_answers(hits, total, _RECENT)


def _validation_collapse(run: _Run) -> Diagnosis | None:
    points = _curve(run, "validation accuracy")
    width = FEWEST_FOR_SHARES
    if len(points) < FEWEST_FOR_TRENDS:
        return None
    # Means of three in a row: a single lucky round is no peak, a single bad one no collapse.
    means = [sum(value for _, value in points[i : i + width]) / width for i in range(len(points) - width + 1)]
    recent, peak = means[-1], max(means[:-width], default=means[-1])
    # The standard error of the difference of two such means, were all of their answers independent of one another.
    prompts = run.records[-1].validation.prompts
    error = sqrt(2 * peak * (1 - min(peak, 1)) / (width * prompts))
    drop = peak - recent
    if drop < max(COLLAPSE_CHANGE, COLLAPSE_SHARE * peak, COLLAPSE_ERRORS * error):
        return None
    best = run.records[-1]
    return Diagnosis(
        code="validation_collapse",
        title="Validation has collapsed",
        evidence=_sentence(
            f"validation accuracy stood at {peak:.1%} over three rounds and is {recent:.1%} over the last three; the "
            f"adapter of round {best.best_round}, with {best.best_accuracy:.1%}, is the one that is kept"
        ),
        remedy="Stop the run: what is kept does not get worse. For the next one lower Learning rate, or raise KL "
        "coefficient.",
        curves=(_ends("validation accuracy", points),),
    )


def _overfitting(run: _Run) -> Diagnosis | None:
    for rises, falls, sign in (("reward", "validation accuracy", 1), ("training loss", "validation loss", -1)):
        if rises == "training loss" and run.config.objective == "rl":
            continue  # there it is no measure of success
        apart = _diverging(run, rises, falls, sign)
        if apart is None:
            continue
        verbs = ("rose", "fell") if sign == 1 else ("fell", "rose")
        last = run.records[-1]
        return Diagnosis(
            code="overfitting",
            title="Overfitting",
            evidence=_sentence(
                f"{_change(apart[0], verbs[0])} while {_change(apart[1], verbs[1])}; the adapter of round "
                f"{last.best_round}, the best on validation, is the one that is kept"
            ),
            remedy="Stop the run, and use more prompts, fewer rounds or a lower Learning rate for the next.",
            curves=apart,
        )
    return None


def _diverging(run: _Run, training: str, validation: str, sign: int) -> tuple[CurveEnds, CurveEnds] | None:
    """Both curves since validation was best, if training has gone on to improve since and validation got worse.

    ``sign`` is 1 where more is better, -1 where less is.
    """
    checked = _curve(run, validation)
    if not checked:
        return None
    best_round = max(checked, key=lambda point: sign * point[1])[0]
    rounds = range(best_round, run.records[-1].round + 1)
    up, down = _within(_curve(run, training), rounds), _within(checked, rounds)
    rise, fall = _sure_trend([(n, sign * v) for n, v in up]), _sure_trend([(n, sign * v) for n, v in down])
    if rise is None or fall is None or (rise.direction, fall.direction) != ("rising", "falling"):
        return None
    least = OVERFIT_CHANGE * (1 if sign == 1 else abs(fall.early))
    if rise.change < LEAST_CHANGE * (1 if sign == 1 else abs(rise.early)) or fall.change > -least:
        return None
    return _ends(training, up), _ends(validation, down)


_BY_SHARES: tuple[Callable[[_Run], Diagnosis | None], ...] = (
    _dead_signal,
    _mostly_cut_off,
    _parse_failures,
    _ratio_blow_up,
)
_BY_TRENDS: tuple[Callable[[_Run], Diagnosis | None], ...] = (
    _reward_hacking,
    _validation_collapse,
    _overfitting,
    _entropy_collapse,
    _length_creep,
)
