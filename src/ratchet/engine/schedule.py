"""The steps of sft and dpo: how many there are, which of them make a round, and the learning rate of each.

Pure arithmetic over a run's settings and its number of rows, so that a resumed run needs no state of a scheduler.
Rates are those of transformers' schedules (optimization.py of version 5.24), which TRL's trainers use.
"""

import math

from ratchet.config import DpoSettings, SftSettings

Tuning = SftSettings | DpoSettings


def rows_per_step(settings: Tuning, rows: int) -> int:
    """How many rows a step takes: none twice."""
    return min(settings.batch_size, rows)


def number_of_steps(settings: Tuning, rows: int) -> int:
    """How many steps the epochs take; the last one has what is left of the rows."""
    return -(-settings.epochs * rows // rows_per_step(settings, rows))


def steps_of_round(number: int, rounds: int, steps: int) -> range:
    """Return the steps, counted from 0, of round ``number`` (from 1): shares of all steps, as even as can be."""
    return range((number - 1) * steps // rounds, number * steps // rounds)


def rate_at(step: int, steps: int, rate: float, settings: Tuning) -> float:
    """Return the learning rate of a step, counted from 0: a rise from 0 over the warm-up, then the schedule.

    A run with a warm-up therefore takes its first step at rate 0, and none takes one at the end's 0.
    """
    warmup = math.ceil(settings.warmup_share * steps)
    if step < warmup:
        return rate * step / warmup
    if settings.schedule == "constant":
        return rate
    done = (step - warmup) / (steps - warmup)
    return rate * ((1 - done) if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done)))
