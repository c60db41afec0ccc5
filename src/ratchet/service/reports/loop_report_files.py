"""A loop's page and chart, made of what the loop's jobs have left."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.service.jobs.loops import Loop
from ratchet.service.reports.evaluation_plots import round_bars, write_loop_chart
from ratchet.service.reports.loop_page import LoopHead, RoundJob, loop_page

if TYPE_CHECKING:
    from ratchet.store import StoredRun


def page_of(loop: Loop) -> str:
    """Return a loop as a page."""
    return loop_page(head_of(loop), loop.view, jobs_of(loop), loop.report)


def write_chart(loop: Loop, path: Path) -> Path:
    """Write the bars of a loop's rounds to a PNG file and return its path."""
    target = None if loop.view.target_percent is None else loop.view.target_percent / 100
    return write_loop_chart(round_bars(loop.view), target, loop.stored.name, path)


def head_of(loop: Loop) -> LoopHead:
    """Return what stands above a loop's rounds."""
    stored = loop.stored
    # What the report says stands in the page by itself.
    said = " ".join(loop.report.sentences) if loop.report else ""
    until = stored.ended_at or datetime.now(UTC)
    return LoopHead(
        name=stored.name,
        benchmark=loop.benchmark.name,
        column=str(loop.plan.settings.score_column),
        status=stored.status,  # type: ignore[arg-type]  # the database holds no other
        elapsed_seconds=(until - stored.created_at).total_seconds(),
        reason=stored.message.removesuffix(said).rstrip(),
    )


def jobs_of(loop: Loop) -> dict[int, RoundJob]:
    """Return round -> its run, and how long run and evaluation took."""
    found = {}
    for view in loop.view.rounds:
        run, scored = loop.run_of(view.number), loop.evaluation_of(view.number)
        if run is not None:
            found[view.number] = RoundJob(run.id, _seconds([run, scored]))
    return found


def _seconds(jobs: "list[StoredRun | None]") -> float | None:
    """Return how long jobs took in all, None while one goes on."""
    there = [job for job in jobs if job is not None]
    return None if any(job.ended_at is None for job in there) else sum(job.seconds for job in there)
