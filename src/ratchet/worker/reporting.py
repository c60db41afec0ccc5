"""A finished round: written to disk in an order that a kill cannot hurt, then diagnosed, and given to the trackers.

Rollouts first, then the checkpoint, then the event. Diagnoses (``run/health.py``) and failures of the watch metric are
noted once each; nothing of that changes what a run does.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import torch

from ratchet.config import RunConfig, Tracker
from ratchet.engine import checkpoint
from ratchet.engine.checkpoint import Progress
from ratchet.engine.policy import Policy
from ratchet.errors import DiskFull
from ratchet.files import write_atomically
from ratchet.run.events import Note, RoundDone
from ratchet.run.health import examine
from ratchet.run.records import Group, RoundRecord
from ratchet.run.round_lines import log_line, rollout_row
from ratchet.worker.session import Session
from ratchet.worker.tracker_processes import Trackers

log = logging.getLogger(__name__)


class Reporter:
    """Stores a finished round: rollouts, then the checkpoint with the record, then the event; then looks at the run.

    Rollouts that the settings do not ask to keep are removed after that. What an earlier session of the run noted is
    not noted again.
    """

    def __init__(self, session: Session, policy: Policy, optimizer: torch.optim.AdamW) -> None:
        self._session, self._policy, self._optimizer = session, policy, optimizer
        self._config = session.folder.read_config()
        self._noted = set(session.folder.state().noted)
        if self._config.trackers:
            session.trackers = Trackers(session.folder, self._config.trackers, self._on_tracker)

    def __call__(self, record: RoundRecord, groups: Sequence[Group], progress: Progress) -> None:
        """Store a round, and say what is to be said of the run."""
        with self._session.writing:
            self._write(record, groups, progress)
        self._look_at_run(progress)

    def _write(self, record: RoundRecord, groups: Sequence[Group], progress: Progress) -> None:
        session, folder = self._session, self._session.folder
        record = record.model_copy(update={"cost": session.budget.cost})
        is_best = record.best_round == record.round
        if groups:
            folder.write_rollouts(record.round, (rollout_row(group) for group in groups))
        dropped = folder.rollouts_to_drop(self._config.keep)
        oldest = folder.oldest_rollouts(dropped)
        if oldest is not None and oldest > 1:
            record = record.model_copy(update={"oldest_rollouts": oldest})
        progress.records[-1] = record
        if is_best:
            # Written before the checkpoint and put in place after it: on a full disk both stay those of one round.
            folder.stage_adapter(self._policy.adapter_files(progress.best_state))
        content = checkpoint.packed(progress, self._policy, self._optimizer, session.budget.elapsed)
        write_atomically(folder.checkpoint_path, content)
        session.progress = progress
        if is_best:
            folder.put_adapter()
        if record.round:
            session.budget.record_round(record.seconds.total)
        folder.log(log_line(record))
        session.event(RoundDone(record=record))
        # Last, now that the round is safe: what a kill leaves here the next round removes.
        folder.drop_rollouts(dropped)

    def _look_at_run(self, progress: Progress) -> None:
        """Note in the journal what the rounds so far show for the first time."""
        try:
            diagnoses = examine(progress.records, self._config).diagnoses
            found: dict[str, str] = {diagnosis.code: diagnosis.sentence for diagnosis in diagnoses}
        except Exception as error:  # a run must not end because nobody can say how it goes
            log.warning("the run's health could not be diagnosed (%s)", type(error).__name__)
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
                self._session.event(Note(text=text, about=about))
                self._noted.add(about)


def _watch_failures(record: RoundRecord, config: RunConfig) -> dict[str, str]:
    """What to note of answers that the watch metric failed on in a round, nothing where there are none."""
    failures = Counter(record.watch_failures) + Counter(record.validation.watch_failures)
    if config.watch is None or not failures:
        return {}
    counted = ", ".join(f"{count} by {kind}" for kind, count in sorted(failures.items()))
    answers = sum(record.outcomes.values()) + record.validation.prompts
    text = (
        f"The watch metric ({config.watch.title}) failed on {failures.total()} of the {answers} answers of round "
        f"{record.round}, validation included: {counted}. They are left out of its mean, and the run continues."
    )
    return {"watch_failures": text}
