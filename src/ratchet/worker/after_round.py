"""What follows each round of a run: diagnoses and failures of the watch metric, said once each, and its trackers.

What they are is ``ratchet/run/health.py``; nothing here changes what a run does.
"""

import logging
from contextlib import suppress

from ratchet.config import RunConfig, Tracker
from ratchet.errors import DiskFull
from ratchet.run.health import examine
from ratchet.run.records import RoundRecord
from ratchet.worker.session import Session
from ratchet.worker.tracker_processes import Trackers

log = logging.getLogger(__name__)

_WATCH_FAILURES = "watch_failures"


class Following:
    """Looks at a run after each round. What an earlier session of the run noted is not noted again."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._config = session.folder.read_config()
        self._noted = {event.get("about") for event in session.folder.events() if event["event"] == "note"}
        if self._config.trackers:
            session.trackers = Trackers(session.folder, self._config.trackers, self._on_tracker)

    def after_round(self) -> None:
        """Note in the journal what the rounds so far show for the first time."""
        progress = self._session.progress
        if progress is None:
            return
        try:
            diagnoses = examine(progress.records, self._config).diagnoses
            found: dict[str, str] = {diagnosis.code: diagnosis.sentence for diagnosis in diagnoses}
        except Exception as error:  # a run must not end because nobody can say how it goes
            log.warning("the run's health could not be looked at (%s)", type(error).__name__)
            found = {}
        self._note(found | _watch_failures(progress.records[-1], self._config))
        if self._session.trackers:
            self._session.trackers.look(progress.rounds_done)

    def _on_tracker(self, tracker: Tracker, text: str) -> None:
        with suppress(DiskFull):  # which the end of the run meets and says itself
            self._note({f"tracker {tracker}": text})

    def _note(self, found: dict[str, str]) -> None:
        for about, text in found.items():
            if about not in self._noted:
                self._session.event("note", text=text, about=about)
                self._noted.add(about)


def _watch_failures(record: RoundRecord, config: RunConfig) -> dict[str, str]:
    """Return what to note of answers that the watch metric failed on in a round, nothing where there are none."""
    in_training, in_validation = record.watch_failures, record.validation.watch_failures
    if config.watch is None or not (in_training or in_validation):
        return {}
    kinds = sorted({*in_training, *in_validation})
    counted = ", ".join(f"{in_training.get(kind, 0) + in_validation.get(kind, 0)} by {kind}" for kind in kinds)
    answers = sum(record.outcomes.values()) + record.validation.prompts
    failed = sum(in_training.values()) + sum(in_validation.values())
    text = (
        f"The watch metric ({config.watch.title}) failed on {failed} of the {answers} answers of round {record.round}, "
        f"validation included: {counted}. They are left out of its mean, and the run goes on."
    )
    return {_WATCH_FAILURES: text}
