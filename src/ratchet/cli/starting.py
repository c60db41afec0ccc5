"""What becomes of a run that is to start: followed here to its end, or left to the keeper."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.cli import tell
from ratchet.cli.train_commands import start, telling
from ratchet.config import RunConfig

NO_KEEPER = "No keeper runs here: start it with ratchet serve."

if TYPE_CHECKING:
    from ratchet.service import Queued
    from ratchet.service.runs.registry import Origin


def launch(
    settings: RunConfig,
    out: Path | None,
    parameters: Mapping[str, Any],
    *,
    as_json: bool,
    against: tuple[Path, ...] = (),
    trial: str | None = None,
    origin: "Origin | None" = None,
) -> int:
    """Start a run as ``start`` does, or, with ``--queue``, leave it to the keeper; return the exit code."""
    if not parameters["queue"]:
        return start(settings, out, parameters, as_json=as_json, against=against, trial=trial, origin=origin)[0]
    from ratchet import service
    from ratchet.cli.console import console_for
    from ratchet.cli.inspect_commands import asking
    from ratchet.cli.live import Live

    if trial is not None:
        service.find_trial(trial)  # one that is not there is said before anything is queued
    with Live(console_for(as_json, of_a_run=True), None) as live:
        ask = asking(live, inspected=parameters["inspected"], override=parameters["override_report"], as_json=as_json)
        told = telling(live, trial)
        progress = live.watch.on_progress
        queued = service.create_and_queue(
            settings, out, against=against, ask=ask, on_launch=told, on_progress=progress, origin=origin
        )
    return tell_queued(queued, as_json=as_json)


def tell_queued(queued: "Queued", *, as_json: bool) -> int:
    """Say where in the queue a run is, and whether a keeper is there; return the exit code."""
    if as_json:
        tell(json.dumps({"run": queued.run, "folder": str(queued.folder), "status": "queued", "ahead": queued.ahead}))
        return 0
    place = "next" if not queued.ahead else f"after {queued.ahead} other{'s' if queued.ahead > 1 else ''}"
    tell(f"Run {queued.run} is queued, {place}.")
    if not queued.is_kept:
        tell(NO_KEEPER)
    return 0
