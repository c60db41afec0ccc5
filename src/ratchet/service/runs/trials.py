"""Trials: make one, show one, configure the full run from it, and list what has changed since.

A trial needs no confirmed report, since it learns nothing that is kept. Nothing here prints.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from ratchet.config import RunConfig, walk_settings
from ratchet.config.changes import with_values
from ratchet.errors import Conflict, InvalidSetting, NotFound, RatchetError
from ratchet.run.display import counted
from ratchet.run.endings import Ending, RunStatus
from ratchet.run.events import Listener
from ratchet.run.run_folder import RunFolder
from ratchet.run.trial_report import TrialReport
from ratchet.service.runs.registry import all_runs, bring_up_to_date, find_run, new_run, open_store
from ratchet.service.runs.start_checks import prepared_run

# Settings and sections that affect how much memory a run takes.
_MATTERS = (
    "objective",
    "model",
    "revision",
    "quantization",
    "device",
    "window_tokens",
    "data",
    "prompt",
    "lora.rank",
    "rl.prompts_per_round",
    "rl.answers_per_prompt",
    "rl.max_answer_tokens",
    "rl.validation_prompts",
    "rl.batch_size",
    "rl.micro_batch_tokens",
    "rl.sampling_tokens",
    "rl.gradient_checkpointing",
    "sampler.backend",
    "sampler.gpu_memory_share",
    "start_from",
)
_LONGEST_LIMIT_HOURS = 8760
_MORE_TIME = 1.25


@dataclass(frozen=True)
class TrialLaunch:
    """What is shown once before a trial starts."""

    device: str
    minutes: float
    folder: Path


@dataclass(frozen=True)
class Trial:
    """A trial that has ended: how, what it found, and the full run's settings that it was made with."""

    run: str
    folder: Path
    status: RunStatus
    ending: Ending
    message: str
    report: TrialReport
    config: RunConfig

    def full_run(self) -> tuple[RunConfig, list[str]]:
        """The settings of the full run, and sentences on what differs from the trial's.

        Raises:
            Conflict: the trial did not finish.
        """
        estimate, limits = self.report.estimate, self.config.limits
        if estimate is None:
            raise Conflict(
                f"Trial {self.run} did not finish, so it does not say what the full run takes. {self.report.fix_first}"
            )
        from ratchet.engine.budget import is_too_short

        hours = limits.time_hours
        if hours is None or not is_too_short(hours * 3600, estimate.seconds, estimate.round):
            return self.config, []
        # Upwards to a hundredth: a limit of many digits would only look exact.
        needed = ceil(estimate.seconds * _MORE_TIME / 36) / 100
        longer = None if needed > _LONGEST_LIMIT_HOURS else needed
        told = "none" if longer is None else counted(longer, "hour")
        said = f"Time limit was {counted(hours, 'hour')} and is now {told}: the estimate plus a quarter."
        return with_values(self.config, {"limits.time_hours": longer}), [said]


def run_trial(
    config: RunConfig,
    out: Path | None = None,
    *,
    function: Callable[..., Any] | None = None,
    listeners: Sequence[Listener] = (),
    on_launch: Callable[[TrialLaunch], None] = lambda launch: None,
) -> Trial:
    """Make a trial of a run, and return what it found, also if it did not finish.

    Args:
        config: Settings of the full run as given.
        out: The trial's folder; one under the user's data folder by default.
        function: The user's own verifier, for ``verifier.kind`` python.
        listeners: Called with the events of the trial.
        on_launch: Called once with what is about to start.

    Raises:
        InvalidSetting, IncompatibleData, ModelUnavailable, DiskFull, MetricRefused, SandboxUnavailable, NotReady: what
            would stop the full run too.
        Conflict: the folder cannot be used.
    """
    if config.objective != "rl":
        raise InvalidSetting(
            f"Objective is {config.objective}, and trials exist only for rl. Start the run itself with a short Time "
            "limit: it keeps what it has learned by then.",
            "objective",
        )
    prepared = prepared_run(config, out, function=function)
    from ratchet import worker
    from ratchet.engine.policy import device_name

    try:
        device = device_name(prepared.config.device)
        folder = new_run(prepared.config, out, kind="trial")
    except BaseException:
        prepared.close()
        raise
    hours, minutes = prepared.config.limits.time_hours, prepared.config.limits.trial_minutes
    on_launch(TrialLaunch(device, minutes if hours is None else min(minutes, hours * 60), folder.path))
    try:
        worker.run(folder, prepared=prepared, function=function, listeners=listeners)
    except RatchetError:
        if folder.read_trial() is None:
            raise
    finally:
        bring_up_to_date(folder)
    return _of_folder(folder)


def find_trial(run_or_folder: str) -> Trial:
    """An earlier trial.

    Raises:
        NotFound: there is no such run.
        Conflict: it is no trial, has not ended, or is damaged.
    """
    return _of_folder(find_run(run_or_folder))


def changed_since(trial: Trial, config: RunConfig) -> list[str]:
    """Labels of the settings that affect memory and differ from the trial's; ``config`` is resolved."""
    labels = {key: str(field.title) for key, field in walk_settings(RunConfig)}
    before, now = dict(_mattering(trial.config)), dict(_mattering(config))
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return list(dict.fromkeys(labels.get(key, key) for key in changed))


def since_trial(config: RunConfig, run: str | None = None) -> str:
    """A warning about the trial before a full run with these resolved settings starts; "" if there is none.

    Args:
        config: Of the full run.
        run: The trial; the newest finished one of the same model and data by default.

    Raises:
        NotFound, Conflict: there is no such trial.
    """
    trial = find_trial(run) if run else _newest_like(config)
    if trial is None:
        return ""
    if not trial.report.is_finished:
        return f"Trial {trial.run} did not finish. To fix first: {trial.report.fix_first}"
    changed = changed_since(trial, config)
    if not changed:
        return ""
    return f"Changed since trial {trial.run}: {', '.join(changed)}. Its estimate does not apply to this run."


def _newest_like(config: RunConfig) -> Trial | None:
    with open_store() as store:
        folders = [RunFolder(run.folder) for run in all_runs(store) if run.folder and run.kind == "trial"]
    for folder in reversed(folders):
        try:
            if _is_like(folder.read_config(), config):
                trial = _of_folder(folder)
                if trial.report.is_finished:
                    return trial
        except RatchetError:
            continue  # one that has not ended, or is damaged, is no trial to compare with
    return None


def _is_like(one: RunConfig, other: RunConfig) -> bool:
    def place(config: RunConfig) -> tuple[object, ...]:
        return (
            config.model,
            config.start_from.sha256,
            config.data.source,
            *(getattr(config.data, name, None) for name in ("path", "name", "task")),
        )

    return place(one) == place(other)


def _mattering(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of the settings that matter, sections down to their leaves."""
    for key in _MATTERS:
        value: Any = config.model_dump(mode="json")
        for name in key.split("."):
            value = value[name]
        yield from _leaves(key, value)


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key, value


def _of_folder(folder: RunFolder) -> Trial:
    if folder.kind != "trial":
        raise Conflict(f"Run {folder.run_id} is not a trial. Start one: ratchet trial.")
    report = folder.read_trial()
    ended = folder.state().ended
    if report is None or ended is None:
        raise NotFound(f"Trial {folder.run_id} has not finished or was interrupted. Start another: ratchet trial.")
    return Trial(
        run=folder.run_id,
        folder=folder.path,
        status=ended.status,
        ending=ended.ending,
        message=ended.message,
        report=report,
        config=folder.read_config(),
    )
