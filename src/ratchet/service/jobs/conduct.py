"""Carrying out loops and experiments: one pass over those that are open, each from what is there now.

A pass may be repeated, and killed, at any point. A step that cannot be started because of what was asked ends its loop
or experiment; what the machine lacks just now is waited for.
"""

import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ratchet.errors import Conflict, DiskFull, NotFound, RatchetError, StorageUnavailable
from ratchet.evaluation.experiment import OPEN as OPEN_EXPERIMENTS
from ratchet.service.jobs import experiments, loops
from ratchet.service.jobs.job_steps import this_home

if TYPE_CHECKING:
    from ratchet.store import RunStore
    from ratchet.store.job_rows import StoredPlan

log = logging.getLogger(__name__)

# Of the moment: another process was first, the disk or the storage has to be seen to.
_PASSING = (Conflict, DiskFull, StorageUnavailable, OSError)
# A conflict that is still the same after so long is none of the moment: a file was changed or damaged.
_CONFLICT_SECONDS = 600.0


@dataclass
class Conductor:
    """Carries out the loops and experiments of one RATCHET_HOME.

    Attributes:
        store: Where they are.
        say: Told what it does, in sentences.
        now: A clock in seconds.
    """

    store: "RunStore"
    say: Callable[[str], None]
    now: Callable[[], float] = time.monotonic
    _said: dict[str, tuple[str, float]] = field(default_factory=dict)

    def step(self) -> None:
        """Take one pass. A fault costs one loop's or experiment's pass, or ends it."""
        home = this_home()
        for module, plans, statuses in (
            (loops, self.store.loops, loops.OPEN),
            (experiments, self.store.experiments, OPEN_EXPERIMENTS),
        ):
            for one in plans.all(statuses=statuses):
                if one.settings.get("home") == home:
                    self._conduct(module, one, plans.kind)

    def is_open(self, id: str) -> bool:
        """Tell whether a loop or experiment has not ended."""
        found = [*self.store.loops.all(statuses=loops.OPEN), *self.store.experiments.all(statuses=OPEN_EXPERIMENTS)]
        return any(one.id == id for one in found)

    def _conduct(self, module: "object", one: "StoredPlan", kind: str) -> None:
        try:
            module.conduct(self.store, one)  # type: ignore[attr-defined]
            self._said.pop(one.id, None)
        except _PASSING as error:
            since = self._complain(one.id, f"{kind.capitalize()} {one.id} waits: {error}")
            if not isinstance(error, Conflict) or self.now() - since < _CONFLICT_SECONDS:
                return
            module.fail(self.store, one.id, str(error))  # type: ignore[attr-defined]
        except RatchetError as error:
            module.fail(self.store, one.id, str(error))  # type: ignore[attr-defined]
        except Exception as error:
            # Not the exception's text: it may quote what a model wrote. Waiting would be for ever.
            log.exception("the %s %s cannot go on", kind, one.id)
            message = f"Something unforeseen failed ({type(error).__name__}); see the keeper's log."
            module.fail(self.store, one.id, message)  # type: ignore[attr-defined]
        after = (self.store.loops if module is loops else self.store.experiments).get(one.id)
        if after.status != one.status:
            self.say(
                f"{kind.capitalize()} {one.id}: {after.status.replace('_', ' ')}. {_first(after.message)}".rstrip()
            )

    def _complain(self, id: str, message: str) -> float:
        """Say once what keeps one from going on, and again when it changes; return since when it does."""
        said, since = self._said.get(id, ("", 0.0))
        if said == message:
            return since
        self._said[id] = (message, self.now())
        self.say(message)
        return self.now()


def stop_followed(id: str) -> None:
    """Ask a loop or an experiment to end in good order; one that has ended is fine."""
    for stop in (loops.stop_loop, experiments.stop_experiment):
        with suppress(NotFound, Conflict):
            stop(id)


def _first(message: str) -> str:
    """Return the first sentence of a message: the log is to say that something ended, and why."""
    return re.split(r"(?<=[.]) (?=[A-Z])", message, maxsplit=1)[0]
