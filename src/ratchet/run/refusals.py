"""Which runs may not be started or resumed: those that are over, and those whose report nobody has read.

By the run folder alone, without torch: the worker asks before it starts, the service before it starts or queues.
"""

from ratchet.errors import Conflict
from ratchet.run.endings import ENDINGS
from ratchet.run.records import RunKind
from ratchet.run.run_folder import RunFolder

# What a run of each kind is called in a sentence.
KIND_WORDS: dict[RunKind, str] = {"full": "a run", "trial": "a trial", "evaluation": "an evaluation"}


def refuse_ended(folder: RunFolder) -> None:
    """Refuse to work on a run that is over.

    Raises:
        Conflict: it completed, failed for want of a signal, or used up its time; or it was a trial.
    """
    ended = folder.state().ended
    if ended and folder.kind == "trial":
        raise Conflict(f"Run {folder.run_id} was a trial, which cannot be resumed. Start another: ratchet trial.")
    if ended is None or ENDINGS[ended.ending].resumable:
        return
    status = ended.status.replace("_", " ")
    if folder.kind == "evaluation":
        raise Conflict(f"Evaluation {folder.run_id} is {status}: there is nothing to resume. Start another.")
    raise Conflict(
        f"Run {folder.run_id} is {status} ({ended.ending.replace('_', ' ')}). Only a run that was stopped "
        "or interrupted can be resumed; start a new one for more rounds or more time."
    )


def refuse_unconfirmed(folder: RunFolder) -> None:
    """Refuse to begin a run whose verifier's report nobody has confirmed: one that was not made by the service.

    Runs that have begun may be resumed without one. Only rl is trained by its verifier.

    Raises:
        Conflict: there is neither a confirmation in its record nor a checkpoint.
    """
    if folder.kind != "full" or folder.read_config().objective != "rl":
        return
    if "report" not in folder.read_run() and not folder.checkpoint_path.exists():
        raise Conflict(
            f"Run {folder.run_id} has not begun, and nobody has confirmed the report of its verifier. Start it anew "
            f"with its settings: ratchet train {folder.config_path}"
        )


def refuse_other_kind(folder: RunFolder, kind: RunKind) -> None:
    """Refuse to resume what is not of this kind.

    Raises:
        Conflict: it is not; a trial can never be resumed.
    """
    if folder.kind == "trial":
        raise Conflict(f"Run {folder.run_id} is a trial, which cannot be resumed. Start another: ratchet trial.")
    if folder.kind != kind:
        command = "ratchet eval resume" if folder.kind == "evaluation" else "ratchet resume"
        raise Conflict(f"{folder.run_id} is {KIND_WORDS[folder.kind]}. Resume it with: {command} {folder.run_id}")
