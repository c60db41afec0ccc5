"""Statistics behind what is said of curves and of evaluations. Knows numbers alone: no run, no question, no answer.

    trend.py         where a curve went, and whether that is more than chance
    intervals.py     95 % intervals of shares and means, pass@k
    paired.py        two sides on the same questions: difference, interval, test
    power.py         how many questions show a gain
    across_seeds.py  one recipe trained with several seeds

numpy and scipy are loaded when something is computed, not before.
"""

from ratchet.stats.across_seeds import AcrossSeeds, SeedVerdict, judge_seeds
from ratchet.stats.intervals import Interval, bootstrap_mean, pass_at_k, shown_interval, shown_points, wilson
from ratchet.stats.paired import ALPHA, Paired, holm, one_sided_p, paired_test
from ratchet.stats.power import expected_discordance, power_of, questions_to_decide, questions_to_detect, smallest_gain
from ratchet.stats.trend import Direction, Trend, exceeds, mann_kendall, trend

__all__ = [
    "ALPHA",
    "AcrossSeeds",
    "Direction",
    "Interval",
    "Paired",
    "SeedVerdict",
    "Trend",
    "bootstrap_mean",
    "exceeds",
    "expected_discordance",
    "holm",
    "judge_seeds",
    "mann_kendall",
    "one_sided_p",
    "paired_test",
    "pass_at_k",
    "power_of",
    "questions_to_decide",
    "questions_to_detect",
    "shown_interval",
    "shown_points",
    "smallest_gain",
    "trend",
    "wilson",
]
