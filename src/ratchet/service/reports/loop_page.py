"""A loop as an HTML page that needs nothing else (see ``pages.py``), and its chart as a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.evaluation import LoopStatus
from ratchet.evaluation.evaluation import Score
from ratchet.evaluation.loop import LoopReport, LoopView, RoundState, RoundView
from ratchet.run.display import counted, shown_seconds
from ratchet.service.jobs.loops import Loop
from ratchet.service.reports import evaluation_words as words
from ratchet.service.reports.evaluation_plots import RoundBar, draw_rounds, round_bars, write_loop_chart
from ratchet.service.reports.pages import PAGE, render, svg

if TYPE_CHECKING:
    from ratchet.store import StoredRun

_STATE_TITLES: dict[RoundState, str] = {
    "waiting": "waiting",
    "training": "training",
    "benchmarking": "benchmarking",
    "scored": "",
    "unscored": "no score",
    "failed": "failed",
}
_STATUS_TONES: dict[LoopStatus, str] = {"target_reached": "good", "failed": "bad", "stopped": "warn"}


@dataclass(frozen=True)
class RoundJob:
    """The run that made a round's adapter: its id, and how long run and evaluation took, None while they run."""

    run: str
    seconds: float | None


@dataclass(frozen=True)
class LoopHead:
    """What is shown above a loop's rounds. ``reason`` says in a sentence why it ended, "" while it runs."""

    name: str
    benchmark: str
    column: str
    status: LoopStatus
    elapsed_seconds: float
    reason: str = ""


def loop_page(head: LoopHead, view: LoopView, jobs: Mapping[int, RoundJob], report: LoopReport | None) -> str:
    """A loop as a page.

    Args:
        head: Name, benchmark, status and time.
        view: Its rounds.
        jobs: Round -> its run; round 0 has none.
        report: The measurement on the held-out half, None before the end.
    """
    bars = round_bars(view)
    target = None if view.target_percent is None else view.target_percent / 100
    return render(
        "loop_page",
        head=head,
        tone=_STATUS_TONES.get(head.status, "plain"),
        tiles=_tiles(head, view),
        rows=[_row(one, jobs.get(one.number)) for one in view.rounds],
        chart=bars
        and svg(draw_rounds(bars, target, PAGE), "Score by round; the numbers are in the table below", "fixed"),
        hatched=_hatched(bars),
        report=report,
        halves=[] if report is None else _halves(report),
        interval_meaning=words.INTERVAL_MEANING,
    )


def _hatched(bars: Sequence[RoundBar]) -> str:
    """What hatched bars are; "" where there are none."""
    what = ["no score"] if any(bar.score is None for bar in bars) else []
    what += [] if all(bar.has_verdict for bar in bars) else ["a score without a verdict"]
    return f"Hatched rounds have {' or '.join(what)}." if what else ""


def _tiles(head: LoopHead, view: LoopView) -> list[tuple[str, str]]:
    """(number, what it is) of what people want to know first."""
    column = words.column_title(head.column)
    tiles = [("none yet", f"best {column}")]
    if view.best_percent is not None:
        where = "the start" if view.best == 0 else f"round {view.best}"
        tiles = [(f"{view.best_percent:.1f}%", f"best {column}: {where}")]
    gains = [(view.gain_over_start, "start"), (view.gain_over_first, "round 1")]
    tiles += [(_points(gain), f"points, best against {what}") for gain, what in gains if gain is not None]
    tiles.append(("none" if view.target_percent is None else f"{view.target_percent:.1f}%", "target"))
    tiles.append((f"{view.rounds_used} of {view.max_rounds}", "rounds used"))
    tiles.append((shown_seconds(head.elapsed_seconds), "elapsed"))
    return tiles


def _row(one: RoundView, job: RoundJob | None) -> dict[str, Any]:
    change = ""
    if one.change is not None:
        rounded = round(one.change, 1)
        arrow = "\N{BLACK UP-POINTING TRIANGLE} " if rounded > 0 else "\N{BLACK DOWN-POINTING TRIANGLE} "
        change = f"{arrow if rounded else ''}{_points(one.change)}"
    origin = {None: "", 0: "start"}.get(one.on_top_of, f"round {one.on_top_of}")
    return {
        "name": "start" if one.number == 0 else str(one.number),
        "is_best": one.best,
        "score": _STATE_TITLES[one.state] if one.percent is None else f"{one.percent:.1f}%",
        "has_score": one.percent is not None,
        "change": change,
        "is_gain": one.real_gain_over is not None,
        "gain": _gain(one),
        "origin": origin,
        "run": "" if job is None else job.run,
        "duration": "" if job is None or job.seconds is None else shown_seconds(job.seconds),
    }


def _gain(one: RoundView) -> str:
    """Whether a round is a real gain, and over which."""
    if one.withheld:
        return "no verdict"
    if one.percent is None or one.number == 0:
        return ""
    if one.real_gain_over is None:
        return "not significant"
    return "over start" if one.real_gain_over == 0 else f"over round {one.real_gain_over}"


def _points(points: float) -> str:
    return words.points(points / 100)


def _halves(report: LoopReport) -> list[tuple[str, list[str]]]:
    """(which half, start and best with interval and their difference) for both halves."""
    start, best = report.selection_start, report.selection_best
    first = [_scored(start), _scored(best), words.points(best.value - start.value)]
    rows = [(f"selection half ({counted(best.of, 'question')})", first)]
    held_out = report.held_out
    last = ["", _scored(report.held_out_score), ""]
    if held_out is not None:
        difference = (
            f"{words.points(held_out.difference)} ({words.points(held_out.low)} to {words.points(held_out.high)})"
        )
        last = [_scored(held_out.start), _scored(held_out.best), difference]
    return [*rows, (f"held-out half ({counted(report.held_out_score.of, 'question')})", last)]


def _scored(score: Score) -> str:
    return f"{words.percent(score.value)} ({words.interval(score)})"


def page_of(loop: Loop) -> str:
    """A loop as a page, read from what its steps have left."""
    return loop_page(_head(loop), loop.view, _jobs(loop), loop.report)


def write_chart(loop: Loop, path: Path) -> Path:
    """Write the bars of a loop's rounds to a PNG file and return its path."""
    target = None if loop.view.target_percent is None else loop.view.target_percent / 100
    return write_loop_chart(round_bars(loop.view), target, loop.stored.name, path)


def _head(loop: Loop) -> LoopHead:
    """What is shown above a loop's rounds."""
    stored = loop.stored
    # The page shows the report by itself.
    said = " ".join(loop.report.sentences) if loop.report else ""
    until = stored.ended_at or datetime.now(UTC)
    return LoopHead(
        name=stored.name,
        benchmark=loop.benchmark.name,
        column=str(loop.spec.settings.score_column),
        status=stored.status,  # type: ignore[arg-type]  # the database holds no other
        elapsed_seconds=(until - stored.created_at).total_seconds(),
        reason=stored.message.removesuffix(said).rstrip(),
    )


def _jobs(loop: Loop) -> dict[int, RoundJob]:
    """Round -> its run, and how long run and evaluation took."""
    found = {}
    for view in loop.view.rounds:
        run, scored = loop.run_of(view.number), loop.evaluation_of(view.number)
        if run is not None:
            found[view.number] = RoundJob(run.id, _seconds([run, scored]))
    return found


def _seconds(jobs: "list[StoredRun | None]") -> float | None:
    """How long jobs took in all, None while one is running."""
    there = [job for job in jobs if job is not None]
    return None if any(job.ended_at is None for job in there) else sum(job.seconds for job in there)
