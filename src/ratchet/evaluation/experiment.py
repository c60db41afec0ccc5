"""What an experiment is: measure, train, score and compare, as one job that can be stopped and resumed.

Plain data. A replication is an experiment too: the same settings under several seeds, and a verdict across them.
"""

from typing import Any, Literal, NamedTuple

from pydantic import Field

from ratchet.config import RunConfig
from ratchet.evaluation import ExperimentStatus
from ratchet.evaluation.comparison import SideBySide
from ratchet.run.records import Record

ExperimentKind = Literal["experiment", "replication"]


class ExperimentSpec(Record):
    """What an experiment is to do.

    Attributes:
        config: Settings of the run, resolved.
        sft: Settings of a run of sft that comes before it, None for none.
        benchmarks: Content hashes, the one that the verdict is about first.
        seeds: One training for each.
        confirmation: Who has read the report of the run's verifier.
        baselines: Benchmark -> a completed evaluation of the start that is taken as it is.
        adapter_of: A run whose adapter is scored instead of training one.
        source_run: The run that is repeated, of a replication.
        answers: Answers a question: 1 is greedy.
        home: The RATCHET_HOME whose scheduler carries it out.
    """

    kind: ExperimentKind = "experiment"
    config: RunConfig
    sft: RunConfig | None = None
    benchmarks: tuple[str, ...]
    seeds: tuple[int, ...]
    confirmation: dict[str, Any] | None = None
    baselines: dict[str, str] = Field(default_factory=dict)
    adapter_of: str | None = None
    source_run: str | None = None
    answers: int = 1
    home: str


class SeedsVerdict(Record):
    """What several seeds say together: gains are differences of the main column, 0..1."""

    seeds: list[int]
    gains: list[float]
    mean: float
    low: float
    high: float
    verdict: str
    sentence: str


class BenchmarkReport(Record):
    """What an experiment found on one benchmark: every side in one table, and what the seeds say together.

    ``across_seeds`` is over what each seed was trained from. ``from_start`` is over the start of the experiment, where
    an SFT stage comes between the two.
    """

    benchmark: str
    benchmark_hash: str
    table: SideBySide
    across_seeds: SeedsVerdict | None = None
    from_start: SeedsVerdict | None = None


class ExperimentReport(Record):
    """What an experiment says at its end: ``sentence`` is the verdict on its first benchmark."""

    sentence: str
    benchmarks: list[BenchmarkReport]
    runs: dict[str, str]


class ExperimentStep(NamedTuple):
    """One thing that an experiment does. ``run`` names the step whose adapter is scored, or trained further.

    ``kind``: "evaluate" scores an adapter or, without ``run``, a starting point; "train" makes one.
    """

    name: str
    kind: Literal["evaluate", "train"]
    phase: ExperimentStatus
    benchmark: str = ""
    run: str = ""
    seed: int = 0


def steps_of_experiment(spec: ExperimentSpec) -> list[ExperimentStep]:
    """Steps of an experiment in their order; those of one phase do not wait for one another.

    Names: ``start/B``, ``base/B``, ``sft``, ``sft/B``, ``train/SEED``, ``score/SEED/B``, where B counts benchmarks.
    """
    steps: list[ExperimentStep] = []
    numbered = list(enumerate(spec.benchmarks))
    has_adapter = spec.config.start_from.adapter is not None
    for number, benchmark in numbered:
        if benchmark not in spec.baselines:
            steps.append(ExperimentStep(f"start/{number}", "evaluate", "measuring", benchmark))
        if has_adapter:
            steps.append(ExperimentStep(f"base/{number}", "evaluate", "measuring", benchmark))
    if spec.sft is not None:
        steps.append(ExperimentStep("sft", "train", "training"))
        steps += [ExperimentStep(f"sft/{number}", "evaluate", "scoring", one, run="sft") for number, one in numbered]
    for seed in spec.seeds:
        if spec.adapter_of is None:
            start = "sft" if spec.sft else ""
            steps.append(ExperimentStep(f"train/{seed}", "train", "training", run=start, seed=seed))
        for number, benchmark in numbered:
            steps.append(
                ExperimentStep(f"score/{seed}/{number}", "evaluate", "scoring", benchmark, run=f"train/{seed}")
            )
    return steps
