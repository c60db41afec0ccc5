"""Benchmarks, evaluations, comparisons, experiments and loops as plain data, and what is concluded from them.

Knows no model, verifier, database or clock: numbers and answers in, scores, verdicts and next steps out.
Job statuses are defined here: the database checks them without loading what the jobs are.
"""

from typing import Literal

LoopStatus = Literal[
    "queued", "training", "benchmarking", "target_reached", "rounds_spent", "plateaued", "failed", "stopped"
]
ExperimentStatus = Literal["measuring", "training", "scoring", "done", "failed", "stopped"]
