"""The health of a run: what its rounds so far show, and what to do about it."""

from ratchet.run.health import Health, examine
from ratchet.service.runs.runs import RunSummary, summary


def run_health(run: str | RunSummary) -> Health:
    """What the rounds of a run show, while it runs or after its end.

    Args:
        run: Its id or folder, or what is known of it already.

    Raises:
        NotFound: there is no such run.
        Conflict: its files are damaged.
    """
    known = run if isinstance(run, RunSummary) else summary(run)
    return examine(known.records, known.config)
