"""What can be done with a run in which state, and the sentence that refuses the rest. Plain tables, no files."""

from typing import Literal

from ratchet.errors import Conflict
from ratchet.run.endings import AT_WORK, Ending, is_resumable
from ratchet.run.records import RunKind

Action = Literal["stop", "resume", "retry", "duplicate", "continue", "launch", "drop"]

_COMMANDS: dict[Action, str] = {
    "stop": "ratchet runs stop {}",
    "resume": "ratchet resume {}",
    "retry": "ratchet runs retry {}",
    "duplicate": "ratchet runs duplicate {}",
    "continue": "ratchet runs continue {}",
    "launch": "ratchet runs launch {}",
    "drop": "ratchet runs drop {}",
}
# Commands of an evaluation.
_OF_EVALUATIONS: dict[Action, str] = {"stop": "ratchet eval stop {}", "resume": "ratchet eval resume {}"}
_SCORES = "ratchet eval show {}"
_WORDS: dict[Action, str] = {
    "stop": "stopped",
    "resume": "resumed",
    "retry": "retried: that is for failed and cancelled runs",
    "duplicate": "duplicated",
    "continue": "continued: that takes the adapter of a full run that completed or stopped early",
    "launch": "launched: only a draft can be",
    "drop": "dropped: only a draft can be",
}


def possible(status: str, ending: Ending | None, kind: RunKind) -> tuple[Action, ...]:
    """Actions that the state of a run allows, the most likely first.

    Args:
        status: One of ``records.RunStatus``, or interrupted: it was running, and no process works on it now.
        ending: How it ended, None where it has not.
        kind: Full, trial or evaluation.
    """
    if status == "draft":
        return "launch", "duplicate", "drop"
    found: list[Action] = []
    if status in ("queued", *AT_WORK):
        found.append("stop")
    is_cut_short = status == "interrupted" or (status in ("stopped_early", "failed") and is_resumable(ending))
    if kind == "evaluation":
        is_cut_short = is_cut_short or (status == "cancelled" and is_resumable(ending))
        return (*found, "resume") if is_cut_short else tuple(found)
    if is_cut_short and kind == "full":
        found.append("resume")
    if status in ("failed", "cancelled") and kind == "full":
        found.append("retry")
    if status in ("completed", "stopped_early") and kind == "full":
        found.append("continue")
    return *found, "duplicate"


def commands(run: str, status: str, ending: Ending | None, kind: RunKind) -> list[str]:
    """Commands for the possible actions; arguments as of ``possible``."""
    allowed = possible(status, ending, kind)
    if kind == "evaluation":
        return [text.format(run) for text in (*(_OF_EVALUATIONS[action] for action in allowed), _SCORES)]
    return [_COMMANDS[action].format(run) for action in allowed]


def refuse(action: Action, run: str, status: str, ending: Ending | None, kind: RunKind) -> None:
    """Refuse what the state of a run does not allow, and say what it does.

    Raises:
        Conflict: the state does not allow it.
    """
    allowed = possible(status, ending, kind)
    if action in allowed:
        return
    state = status.replace("_", " ") + (f" ({ending.replace('_', ' ')})" if ending else "")
    what = {"full": "", "trial": "a trial and is ", "evaluation": "an evaluation and is "}[kind]
    told = ", ".join(commands(run, status, ending, kind))
    raise Conflict(f"Run {run} is {what}{state}, so it cannot be {_WORDS[action]}. What is possible: {told}.")
