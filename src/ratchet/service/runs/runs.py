"""Reading runs: list them, show one, read its samples, and say what can be done with it.

Loads nothing that checking or starting a run needs.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ratchet.config import RunConfig
from ratchet.errors import Conflict, RatchetError
from ratchet.files import damage_as_error
from ratchet.run.ancestry import Ancestor
from ratchet.run.endings import AT_WORK, Ending, RunStatus, is_resumable
from ratchet.run.events import RunEnded
from ratchet.run.health import Health, examine
from ratchet.run.records import RoundRecord, RunKind
from ratchet.run.report_card import Confirmation
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.registry import all_runs, find_run, find_stored, open_store

if TYPE_CHECKING:
    from ratchet.store import StoredRun


# An inline run without an end that is not running was killed, and waits for its user.
ShownStatus = RunStatus | Literal["interrupted"]
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


@dataclass(frozen=True)
class RunSummary:
    """What is known of a run from its folder."""

    run: str
    kind: RunKind
    folder: Path
    created_at: str
    status: ShownStatus
    config: RunConfig
    records: tuple[RoundRecord, ...]
    heldout_before: float | None
    heldout_after: float | None
    ended: RunEnded | None
    notes: tuple[str, ...]
    report: Confirmation | None
    start: Ancestor | None

    @property
    def cost(self) -> float | None:
        """What the run has cost so far, by its last round or its end; None without a price."""
        by_round = self.records[-1].cost if self.records else None
        return by_round if self.ended is None or self.ended.cost is None else self.ended.cost


@dataclass(frozen=True)
class ListedRun:
    """One run as lists show it; ``stored`` is what the database knows of it."""

    stored: "StoredRun"
    status: ShownStatus


def list_runs(project: str | None = None, status: ShownStatus | None = None) -> list[ListedRun]:
    """Drafts and every run that is still in its folder, oldest first, of one project and status if asked."""
    with open_store() as store:
        runs = [run for run in all_runs(store, project) if run.kind != "evaluation"]
        listed = [ListedRun(run, _shown_status(run)) for run in runs]
    return [one for one in listed if status in (None, one.status)]


def summary(run_or_folder: str) -> RunSummary:
    """What is known of one run.

    Raises:
        NotFound: there is no such run.
        Conflict: its files are damaged.
    """
    stored: StoredRun | None = None
    folder = find_run(run_or_folder)
    # A convenience: what is in the folder can be shown without the database.
    with suppress(RatchetError), open_store() as store:
        _, stored = find_stored(store, str(folder.path))
    return _summary(folder, stored)


def _shown_status(run: "StoredRun") -> ShownStatus:
    is_cut_short = run.status in AT_WORK and not run.is_kept and run.folder and not RunFolder(run.folder).is_locked()
    return "interrupted" if is_cut_short else run.status


def samples(run_or_folder: str, number: int | None) -> tuple[str, list[dict[str, Any]]]:
    """What a round's samples are called, and the samples; the last round with samples for None.

    Round 0 stands for the kept adapter's answers to the held-out problems.

    Raises:
        NotFound: no such run, or that round has no samples.
    """
    folder = find_run(run_or_folder)
    if number == 0:
        return "held-out problems", _checked(folder.heldout_path, folder.read_heldout())
    chosen = number if number is not None else folder.last_rollouts()
    return f"round {chosen}", _checked(folder.rollouts_file(chosen), folder.read_rollouts(chosen))


def _checked(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows if each holds what surfaces show of it.

    Raises:
        Conflict: one does not; the file is damaged.
    """
    with damage_as_error(path):
        for row in rows:
            answers = row["answers"]
            texts = [row["prompt"][-1]["content"], row["ground_truth"]]
            texts += [message[name] for message in row["prompt"] for name in ("role", "content")]
            texts += [answer[name] for answer in answers for name in ("text", "outcome")]
            numbers = [answer[name] for answer in answers for name in ("reward", "correctness")]
            is_whole = all(isinstance(text, str) for text in texts) and all(isinstance(n, int | float) for n in numbers)
            if not answers or not is_whole or "prompt_id" not in row:
                raise ValueError("no samples")
    return rows


def changed_samples(run_or_folder: str, count: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Up to ``count`` held-out problems as rows before and after training, those that became right first.

    Raises:
        NotFound: there is no such run, or it did not score the held-out problems.
    """
    folder = find_run(run_or_folder)
    before = _checked(folder.heldout_before_path, folder.read_heldout_before())
    after = _checked(folder.heldout_path, folder.read_heldout())
    with damage_as_error(folder.heldout_path):
        pairs = list(zip(before, after, strict=True))

    def correctness(row: dict[str, Any]) -> float:
        return float(row["answers"][0]["correctness"])

    return sorted(pairs, key=lambda pair: correctness(pair[0]) - correctness(pair[1]))[:count]


def _summary(folder: RunFolder, stored: "StoredRun | None") -> RunSummary:
    state = folder.state()
    is_at_work = folder.is_locked()
    ended = None if is_at_work else state.ended
    # A copy, or a folder that no database knows, has the status that its files tell.
    status: ShownStatus = ended.status if ended else ("training" if is_at_work else "interrupted")
    if stored is not None:
        status = _shown_status(stored)
    record = folder.read_run()
    with damage_as_error(folder.run_path):
        # A run from before there were reports has none; one with a new adapter has no start.
        report = Confirmation.model_validate(record["report"]) if "report" in record else None
        start = Ancestor.model_validate(record["start"]) if "start" in record else None
    return RunSummary(
        run=record["id"],
        kind=folder.kind,
        folder=folder.path,
        created_at=record["created_at"],
        status=status,
        config=folder.read_config(),
        records=state.records,
        heldout_before=state.heldout_before,
        heldout_after=state.heldout_after if ended else None,
        ended=ended,
        notes=tuple(dict.fromkeys(state.notes)),
        report=report,
        start=start,
    )


def run_health(run: str | RunSummary) -> Health:
    """What the rounds of a run show, while it goes on or after its end.

    Args:
        run: Its id or folder, or what is known of it already.

    Raises:
        NotFound: there is no such run.
        Conflict: its files are damaged.
    """
    known = run if isinstance(run, RunSummary) else summary(run)
    return examine(known.records, known.config)


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
