"""From what a trial measured to what the full run takes: arithmetic alone, no torch, no clock.

    seconds = preparation + (rounds + 1) x validation + rounds x (sampling + grading + update + saving) + 2 x held-out

Sampling does not grow in proportion to the answers: a decoding step costs something whatever the batch holds, and how
many steps there are depends on how evenly the answers fill the places. So the time of a sampler's call is taken apart
into steps x fixed cost + what is proportional to the answers, where the fixed cost comes from two calls of different
size and the steps from laying the measured lengths into the places one after the other (list scheduling, Graham 1969).
The update is proportional to the groups that carry a signal; first calls, which prepare routines and buffers, count
once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from itertools import cycle, islice


@dataclass(frozen=True)
class SamplerCall:
    """One call of the sampler: how long it took and how many tokens each answer got, in the order of the requests."""

    seconds: float
    lengths: tuple[int, ...]

    @property
    def answers(self) -> int:
        """How many answers were written."""
        return len(self.lengths)


@dataclass(frozen=True)
class PassTimes:
    """One pass over the phases of a round: seconds, and on how much."""

    sampling: SamplerCall
    grading: float
    update: float
    groups: int
    validation: SamplerCall

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.sampling.seconds + self.grading + self.update + self.validation.seconds


@dataclass(frozen=True)
class Size:
    """What the full run has of everything."""

    rounds: int  # as planned
    prompts: int  # of a round
    answers: int  # to each prompt
    validation: int  # prompts of the validation sample
    heldout: int  # held-out problems, scored before and after
    rows: int  # answers of such prompts that may be written at a time
    draws: int = 1  # of a round at most: with dynamic sampling groups without a signal are drawn again


@dataclass(frozen=True)
class EstimatedSeconds:
    """The full run's seconds: those of each part, once a round but for ``preparation`` and ``heldout``."""

    rounds: int
    preparation: float
    sampling: float
    grading: float
    update: float
    validation: float
    saving: float
    heldout: float

    @property
    def total(self) -> float:
        """All of the run. Saving comes after round 0 as well."""
        a_round = self.sampling + self.grading + self.update + self.validation + self.saving
        return self.preparation + self.validation + self.saving + self.rounds * a_round + self.heldout


def steps(lengths: Sequence[int], rows: int) -> int:
    """Return after how many steps answers of these lengths are written when at most ``rows`` of them run at a time.

    Each waiting answer takes the place that is free first.
    """
    places = [0] * min(rows, len(lengths))
    for length in lengths:
        heapreplace(places, places[0] + length)
    return max(places, default=0)


def fixed_step_seconds(small: SamplerCall, large: SamplerCall, rows: int) -> float:
    """What a decoding step costs whatever the batch holds, from two calls of different size; 0 if of one.

    small = fixed x its steps + answers x each, and the same for large: two equations, two unknowns. Between 0 and all
    of a step's time, so that noise cannot make a call cost less than nothing.
    """
    share = small.answers / large.answers
    apart = steps(small.lengths, rows) - share * steps(large.lengths, rows)
    if share >= 1 or apart <= 0:
        return 0.0
    found = (small.seconds - share * large.seconds) / apart
    return min(max(found, 0.0), large.seconds / steps(large.lengths, rows))


def call_seconds(measured: SamplerCall, answers: int, rows: int, fixed: float) -> float:
    """What a call for so many answers of the measured lengths takes."""
    there = steps(measured.lengths, rows)
    fixed = min(fixed, measured.seconds / there)  # it may come from a call of the other kind
    lengths = list(islice(cycle(measured.lengths), answers))
    proportional = measured.seconds - fixed * there
    return fixed * steps(lengths, rows) + proportional * answers / measured.answers


def signal_share(informative: int, groups: int) -> float:
    """Return the share of groups with a signal to expect, from those of a trial.

    By the rule of succession (Laplace): neither none nor all of a few groups says that it will always be so.
    """
    return (informative + 1) / (groups + 2)


def full_run(
    small: PassTimes, large: PassTimes, size: Size, *, signal: float, preparation: float, saving: float
) -> EstimatedSeconds:
    """Return the full run's seconds, from a small pass and one that fills a batch, both warm.

    ``large`` is ``small`` again where there was no time for one; ``signal`` is the share of groups with a signal;
    ``preparation`` the seconds before round 0, what first calls take on top included.
    """
    # The pair that lies further apart tells the fixed cost better.
    pairs = [(small.sampling, large.sampling), (small.validation, large.validation)]
    fixed = fixed_step_seconds(*max(pairs, key=lambda pair: pair[1].answers / pair[0].answers), size.rows)
    missing = 1 - signal
    draws = sum(missing**draw for draw in range(size.draws))
    learned = size.prompts * (1 - missing**size.draws)
    answers = round(size.prompts * size.answers * draws)
    return EstimatedSeconds(
        rounds=size.rounds,
        preparation=preparation,
        sampling=call_seconds(large.sampling, answers, size.rows, fixed),
        grading=large.grading * answers / large.sampling.answers,
        update=large.update * learned / large.groups,
        validation=call_seconds(large.validation, size.validation, size.rows, fixed),
        saving=saving,
        heldout=2 * call_seconds(large.validation, size.heldout, size.rows, fixed),
    )
