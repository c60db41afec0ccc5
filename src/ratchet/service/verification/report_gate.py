"""Verifier report cards and the inspection gate: a full run starts once somebody has read what its verifier does.

A report is made by the engine, stored here under its key, and confirmed by a person or a caller in whose name a surface
speaks. Resuming never asks: the run that it continues was confirmed when it started.
"""

import gc
import getpass
import html
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.config import RlSettings, RunConfig
from ratchet.errors import Conflict, InvalidSetting, NotFound
from ratchet.files import unusable_as_error, write_atomically
from ratchet.run.events import OnProgress
from ratchet.run.report_card import SAMPLED_WITH, CardSetup, Confirmation, How, ReportCard
from ratchet.run.report_store import ReportFolder
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.demo_presets import SHIPPED_REPORTS
from ratchet.service.runs.start_checks import prepared_run

if TYPE_CHECKING:
    from ratchet.engine.prepare import Prepared


_LEAST_WORDS = 3
_REMEDY = (
    "Read one and confirm it: ratchet inspect CONFIG --confirm (in Python: ratchet.inspect and "
    "ratchet.confirm_report), or pass --inspected (inspected=True) if you have read it."
)


@dataclass(frozen=True)
class Report:
    """A stored report card, and who has confirmed it, if anyone."""

    card: ReportCard
    folder: Path
    page: Path
    confirmation: Confirmation | None

    @property
    def key(self) -> str:
        """What the report is stored and confirmed under."""
        return self.card.key

    def _repr_html_(self) -> str:
        # In a frame of its own, so that the page's styles and the notebook's leave each other alone.
        page = html.escape(self.page.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" sandbox style="width:100%;height:48rem;border:0"></iframe>'


@dataclass(frozen=True)
class Consent:
    """Somebody says that they have read a report: how, and why a run may start although the report refuses it."""

    how: How
    override: str = ""


# Shown a report; returns whether and how it was confirmed, None if it was not.
AskToConfirm = Callable[[Report], Consent | None]


def inspect(
    config: RunConfig,
    *,
    function: Callable[..., Any] | None = None,
    on_progress: OnProgress = lambda phase, done, total: None,
    anew: bool = True,
) -> Report:
    """Make the report of a run's verifier, data, model and prompt, and store it. It is no run.

    Where it is not to be made ``anew``, as by somebody who says that they have read it, the stored one is returned if
    it was sampled as these settings ask.

    Raises:
        InvalidSetting, IncompatibleData, ModelUnavailable, Conflict, OutOfMemory: as for a run.
    """
    if config.objective != "rl":
        raise InvalidSetting(
            f"Objective is {config.objective}, which needs no verifier report. Choose Objective rl to make one.",
            "objective",
        )
    prepared = prepared_run(config, function=function)
    try:
        return (None if anew else _stored_report(prepared)) or _make_report(prepared, on_progress)
    finally:
        prepared.close()


def find_report(key: str) -> Report:
    """A stored report.

    Raises:
        NotFound: there is none under that key.
        Conflict: it is damaged.
    """
    folder = ReportFolder(key)
    card = folder.card()
    if card is None:
        raise NotFound(f"There is no report {key}. Make one: ratchet inspect CONFIG.")
    return Report(card, folder.path, folder.page_path, folder.confirmation())


def confirm(report: Report, consent: Consent, *, by: str | None = None) -> Confirmation:
    """Record that a report was read; return the record.

    Args:
        report: As it was shown.
        consent: How it was said, with a reason where the report refuses a run.
        by: Who; the user of this process by default.

    Raises:
        Conflict: the report refuses a run and no reason is given, or another report took its place since.
        InvalidSetting: the reason is too short to be one.
    """
    override = consent.override.strip() if report.card.refusal else ""  # there is nothing else to go past
    if override and len(override.split()) < _LEAST_WORDS:
        raise InvalidSetting(
            f"The reason to start a run that its report refuses has {len(override.split())} words; give "
            f"{_LEAST_WORDS} or more."
        )
    if report.card.refusal and not override:
        raise Conflict(
            f"The report refuses this run. {report.card.refusal} To start it anyway, give a reason: "
            '--override-report "..." (override="..." in Python).'
        )
    folder = ReportFolder(report.key)
    if folder.card() != report.card:
        raise Conflict("A newer report replaced the one you were shown. Read it: ratchet inspect CONFIG.")
    confirmation = Confirmation(
        key=report.key,
        by=by or user_name(),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        how=consent.how,
        override=override,
        report_sha256=folder.card_sha256(),
    )
    folder.confirm(confirmation)
    return confirmation


def confirmed(prepared: "Prepared", ask: AskToConfirm | None, on_progress: OnProgress) -> Confirmation:
    """The confirmation that lets a run start, asking for one where there is none.

    Args:
        prepared: The run, checked.
        ask: Shown the report, which is made if need be; None where nobody can be asked.
        on_progress: Told how far a report that is made has come.

    Raises:
        Conflict: there is no confirmation, or the report refuses the run.
    """
    from ratchet.engine.report_sampling import made_with

    made = made_with(prepared)
    if found := _confirmation_for(made, prepared.config):
        return found
    if ask is None:
        raise Conflict(f"This run's verifier has no confirmed report for its data, model and prompt. {_REMEDY}")
    report = _stored_report(prepared) or _make_report(prepared, on_progress)
    consent = ask(report)
    if consent is None:
        raise Conflict(f"The run was not started: its report was not confirmed. The report is in {report.folder}.")
    return confirm(report, consent)


def _confirmation_for(made: CardSetup, config: RunConfig) -> Confirmation | None:
    """The confirmation that a run may start with, None where there is none.

    It is of the run's own report, or of one for the same verifier, data, base model and prompt: that of the base model
    alone, or the one of the run whose adapter this one continues from. What a report holds for stays what it was.
    """
    from ratchet.engine.report_sampling import report_key, set_up_key

    key, base = report_key(made), set_up_key(made)
    for one in dict.fromkeys([key, base]):
        if found := ReportFolder(one).confirmation() or _shipped(one):
            return found
    if not config.start_from.run or config.start_from.adapter is None:
        return None
    source = RunFolder(Path(config.start_from.adapter).parent).read_run().get("report", {}).get("key", "")
    if not source:
        return None
    card = ReportFolder(source).card()
    is_same = card is not None and set_up_key(card.made_with) == base
    return ReportFolder(source).confirmation() if is_same else None


def write_page(report: Report, path: Path) -> None:
    """Copy a report's page to a file of the user's choice, readable by them alone.

    Raises:
        Conflict: it cannot be written there.
    """
    with unusable_as_error(path, "Choose another --out."):
        write_atomically(path, report.page.read_bytes(), private=True)


def user_name() -> str:
    """The name of this process's user, or their number where they have none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"


def described(confirmation: Confirmation) -> str:
    """Who confirmed a report, when and how, in words."""
    if confirmation.how == "shipped":
        return "confirmed; this preset ships with a confirmed report"
    how = {"flag": "--inspected or --confirm", "terminal": "asked here", "python": "from Python", "api": "by the API"}
    reason = " although it refuses the run, with a reason" if confirmation.override else ""
    at = confirmation.at[:16].replace("T", " ")
    return f"confirmed by {confirmation.by} on {at} UTC ({how[confirmation.how]}){reason}"


def state(confirmation: Confirmation, config: RunConfig) -> str:
    """What is known of a run's report, in words, also where it was sampled otherwise than the run will be."""
    card = ReportFolder(confirmation.key).card()
    made = {} if card is None else card.made_with.model_dump()
    others = [
        f"{RlSettings.model_fields[name].title} {made[name]:g}"
        for name in SAMPLED_WITH
        if made and made[name] != getattr(config.rl, name)
    ]
    words = described(confirmation) + (f"; it was made with {', '.join(others)}" if others else "")
    if made and made["start"] != config.start_from.sha256:
        words += f"; it shows {'another adapter' if made['start'] else 'the base model without the adapter'}"
    return words


def _stored_report(prepared: "Prepared") -> Report | None:
    """The report of a run that is there already, None where there is none or it was sampled otherwise."""
    from ratchet.engine.report_sampling import made_with, report_key

    made = made_with(prepared)
    card = ReportFolder(report_key(made)).card()
    if card is None or any(getattr(card.made_with, name) != getattr(made, name) for name in SAMPLED_WITH):
        return None
    return find_report(card.key)


def _make_report(prepared: "Prepared", on_progress: OnProgress) -> Report:
    from ratchet.engine.report_sampling import make_report
    from ratchet.service.reports.report_page import page

    card = make_report(prepared, on_progress)
    # The model is loaded again for the run, which may need all of the memory.
    gc.collect()
    folder = ReportFolder(card.key)
    folder.write(card, page(card))
    return find_report(card.key)


def _shipped(key: str) -> Confirmation | None:
    if key not in SHIPPED_REPORTS.values():
        return None
    return Confirmation(key=key, by="Ratchet", at="", how="shipped")
