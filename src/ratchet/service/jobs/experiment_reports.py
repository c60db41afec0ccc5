"""What an experiment says at its end: every side in one table, the seeds together, and the verdict in a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.evaluation.comparing import side_by_side
from ratchet.evaluation.comparison import Comparison
from ratchet.evaluation.evaluation import Evaluation, QuestionResult
from ratchet.evaluation.experiment import AcrossSeeds, BenchmarkReport, ExperimentReport
from ratchet.service.evaluations.benchmarks import find_benchmark
from ratchet.service.evaluations.evaluations import find_evaluation, questions_of
from ratchet.stats import judge_seeds

if TYPE_CHECKING:
    from ratchet.service.jobs.experiments import Experiment


def report_of(one: "Experiment") -> ExperimentReport:
    """Put all that was measured side by side, a table for each benchmark."""
    reports = [_on_benchmark(one, number, benchmark) for number, benchmark in enumerate(one.settings.benchmarks)]
    runs = {f"train/{seed}": one.run_of(f"train/{seed}") for seed in one.settings.seeds}
    if one.settings.sft is not None:
        runs["sft"] = one.run_of("sft")
    return ExperimentReport(sentence=_sentence(reports[0]), benchmarks=reports, runs=runs)


def _sentence(report: BenchmarkReport) -> str:
    """Return the verdict on a benchmark: across seeds, else of the last side against the start and the one before."""
    if report.across_seeds is not None:
        return " ".join(one.sentence for one in (report.across_seeds, report.from_start) if one is not None)
    last = report.table.evaluations[-1].id
    return " ".join(one.main.sentence for one in report.table.comparisons if one.right.id == last)


@dataclass(frozen=True)
class _Side:
    label: str
    evaluation: Evaluation
    questions: list[QuestionResult]


def _on_benchmark(one: "Experiment", number: int, benchmark: str) -> BenchmarkReport:
    sides = _sides(one, number, benchmark)
    table = side_by_side([(side.label, side.evaluation, side.questions) for side in sides])
    name = find_benchmark(benchmark).spec.name
    report = BenchmarkReport(benchmark=name, benchmark_hash=benchmark, table=table)
    if len(one.settings.seeds) == 1:
        return report
    # Each seed against what was there before; which seed is ahead of which is what the seeds are not asked.
    count = len(one.settings.seeds)
    trained, before = sides[-count:], sides[:-count]
    ids = {side.evaluation.id for side in trained}
    told = [comparison for comparison in table.comparisons if comparison.left.id not in ids]
    if one.settings.sft is None:
        report = report.model_copy(update={"across_seeds": _together(one.settings.seeds, before[0], trained)})
    else:
        # What the seeds were trained from is the SFT stage, of which there is one for all of them.
        stage = before[-1]
        told += [_pair(stage, side) for side in trained[1:]]
        seeds = _together(one.settings.seeds, stage, trained)
        whole = _together(one.settings.seeds, before[0], trained)
        together = {
            "across_seeds": _led_in(f"{_objective(one)} after {stage.label}", seeds),
            "from_start": _led_in(
                f"Both stages against {before[0].label}, with one {stage.label} for all seeds", whole
            ),
        }
        report = report.model_copy(update=together)
    return report.model_copy(update={"table": table.model_copy(update={"comparisons": told})})


def _pair(left: _Side, right: _Side) -> Comparison:
    (found,) = side_by_side([(side.label, side.evaluation, side.questions) for side in (left, right)]).comparisons
    return found


def _led_in(words: str, found: AcrossSeeds) -> AcrossSeeds:
    return found.model_copy(update={"sentence": f"{words}: {found.sentence}"})


def _objective(one: "Experiment") -> str:
    return {"rl": "RL", "sft": "SFT", "dpo": "DPO"}[one.settings.config.objective]


def _together(seeds: Sequence[int], start: _Side, trained: Sequence[_Side]) -> AcrossSeeds:
    """Return what the seeds say together; no verdict where one of the evaluations gives none."""
    found = judge_seeds({seed: (_scores(start), _scores(side)) for seed, side in zip(seeds, trained, strict=True)})
    withheld = [
        f"{side.label}: {scores.withheld}"
        for side in (start, *trained)
        if (scores := side.evaluation.scores) is not None and scores.withheld
    ]
    return AcrossSeeds(
        seeds=list(found.gains),
        gains=list(found.gains.values()),
        mean=found.mean,
        low=found.low,
        high=found.high,
        verdict="withheld" if withheld else found.verdict,
        sentence=f"No verdict on the seeds together. {' '.join(withheld)}" if withheld else found.sentence,
    )


def _scores(side: _Side) -> list[float]:
    """Return a side's score of the main column on each question, in the benchmark's order."""
    return [question.score(side.evaluation.main_column) for question in side.questions]


def _sides(one: "Experiment", number: int, benchmark: str) -> list[_Side]:
    """Return the sides of a table: the start first, then the base under it, the SFT stage, and each seed's adapter."""
    settings = one.settings
    has_adapter = settings.config.start_from.adapter is not None
    named = [("start" if has_adapter else "base", f"start/{number}")]
    named += [("base", f"base/{number}")] if has_adapter else []
    named += [("SFT", f"sft/{number}")] if settings.sft else []
    what = _objective(one)
    many = len(settings.seeds) > 1
    named += [(f"{what} seed {seed}" if many else what, f"score/{seed}/{number}") for seed in settings.seeds]
    sides = []
    for label, step in named:
        baseline = settings.baselines.get(benchmark) if step == f"start/{number}" else None
        evaluation = find_evaluation(baseline or one.run_of(step))
        sides.append(_Side(label, evaluation, questions_of(evaluation.folder)))
    return sides
