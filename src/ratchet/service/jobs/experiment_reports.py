"""The report of an experiment: every side in one table, the seeds together, and the verdict in a sentence."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.evaluation.comparison import Side, side_by_side
from ratchet.evaluation.experiment import BenchmarkReport, ExperimentReport, SeedsVerdict
from ratchet.service.evaluations.benchmarks import find_benchmark
from ratchet.service.evaluations.evaluation_catalogue import find_evaluation, questions_of
from ratchet.stats import judge_seeds

if TYPE_CHECKING:
    from ratchet.service.jobs.experiments import Experiment


def report_of(one: "Experiment") -> ExperimentReport:
    """Put all that was measured side by side, a table for each benchmark."""
    reports = [_on_benchmark(one, number, benchmark) for number, benchmark in enumerate(one.spec.benchmarks)]
    runs = {f"train/{seed}": one.run_of(f"train/{seed}") for seed in one.spec.seeds}
    if one.spec.sft is not None:
        runs["sft"] = one.run_of("sft")
    return ExperimentReport(sentence=_sentence(reports[0]), benchmarks=reports, runs=runs)


def _sentence(report: BenchmarkReport) -> str:
    """Verdict on a benchmark: across seeds, else of the last side against the start and the one before."""
    if report.across_seeds is not None:
        return " ".join(one.sentence for one in (report.across_seeds, report.from_start) if one is not None)
    last = report.table.evaluations[-1].id
    return " ".join(one.main.sentence for one in report.table.comparisons if one.right.id == last)


def _on_benchmark(one: "Experiment", number: int, benchmark: str) -> BenchmarkReport:
    sides = _sides(one, number, benchmark)
    table = side_by_side(sides)
    name = find_benchmark(benchmark).spec.name
    report = BenchmarkReport(benchmark=name, benchmark_hash=benchmark, table=table)
    if len(one.spec.seeds) == 1:
        return report
    # Each seed against what was there before; no seed against another.
    count = len(one.spec.seeds)
    trained, before = sides[-count:], sides[:-count]
    ids = {side.evaluation.id for side in trained}
    shown = [comparison for comparison in table.comparisons if comparison.left.id not in ids]
    if one.spec.sft is None:
        report = report.model_copy(update={"across_seeds": _together(one.spec.seeds, before[0], trained)})
    else:
        # What the seeds were trained from is the SFT stage, of which there is one for all of them.
        stage = before[-1]
        shown += [one for side in trained[1:] for one in side_by_side([stage, side]).comparisons]
        seeds = _together(one.spec.seeds, stage, trained)
        whole = _together(one.spec.seeds, before[0], trained)
        together = {
            "across_seeds": _led_in(f"{_objective(one)} after {stage.name}", seeds),
            "from_start": _led_in(f"Both stages against {before[0].name}, with one {stage.name} for all seeds", whole),
        }
        report = report.model_copy(update=together)
    return report.model_copy(update={"table": table.model_copy(update={"comparisons": shown})})


def _led_in(words: str, found: SeedsVerdict) -> SeedsVerdict:
    return found.model_copy(update={"sentence": f"{words}: {found.sentence}"})


def _objective(one: "Experiment") -> str:
    return {"rl": "RL", "sft": "SFT", "dpo": "DPO"}[one.spec.config.objective]


def _together(seeds: Sequence[int], start: Side, trained: Sequence[Side]) -> SeedsVerdict:
    """What the seeds say together; no verdict where one of the evaluations gives none."""
    found = judge_seeds({seed: (_scores(start), _scores(side)) for seed, side in zip(seeds, trained, strict=True)})
    withheld = [
        f"{side.name}: {scores.withheld}"
        for side in (start, *trained)
        if (scores := side.evaluation.scores) is not None and scores.withheld
    ]
    return SeedsVerdict(
        seeds=list(found.gains),
        gains=list(found.gains.values()),
        mean=found.mean,
        low=found.low,
        high=found.high,
        verdict="withheld" if withheld else found.verdict,
        sentence=f"No verdict on the seeds together. {' '.join(withheld)}" if withheld else found.sentence,
    )


def _scores(side: Side) -> list[float]:
    """A side's score of the main column on each question, in the benchmark's order."""
    return [question.score(side.evaluation.main_column) for question in side.questions]


def _sides(one: "Experiment", number: int, benchmark: str) -> list[Side]:
    """Sides of a table: the start first, then the base under it, the SFT stage, and each seed's adapter."""
    spec = one.spec
    has_adapter = spec.config.start_from.adapter is not None
    named = [("start" if has_adapter else "base", f"start/{number}")]
    named += [("base", f"base/{number}")] if has_adapter else []
    named += [("SFT", f"sft/{number}")] if spec.sft else []
    what = _objective(one)
    many = len(spec.seeds) > 1
    named += [(f"{what} seed {seed}" if many else what, f"score/{seed}/{number}") for seed in spec.seeds]
    sides = []
    for label, step in named:
        baseline = spec.baselines.get(benchmark) if step == f"start/{number}" else None
        evaluation = find_evaluation(baseline or one.run_of(step))
        sides.append(Side(label, evaluation, questions_of(evaluation.folder)))
    return sides
