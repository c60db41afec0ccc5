"""The four trackers behind one protocol, and what they are sent: flat names, plain values, no texts of rows.

Each library is imported by the tracker that needs it, and by no other. Where its own environment variables name a place
or a server, that is where numbers go; else into the run folder. A run that is resumed continues the same tracked run:
``last_round`` says how far it is.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from ratchet.config import RunConfig, Tracker
from ratchet.run.records import RoundRecord

Settings = Mapping[str, str | int | float | bool]
# Written by people for the model, or worth an answer: none of a tracker's business. Under these names, anywhere below.
_TEXTS = {
    "prompt": {"system_prompt", "few_shot_examples", "template_options"},
    "verifier": {"source", "labels", "schema", "json_schema"},
    "watch": {"source", "labels", "schema", "json_schema"},
    "reward": {"format_reason", "format_pattern"},
}
_LONGEST_SETTING = 200  # characters; MLflow refuses what is much longer
_LONGEST_NAME = 200
# What MLflow takes in a name, the strictest of the four; a verifier may call its parts anything.
_UNUSUAL = re.compile(r"[^\w\-./ ]", re.ASCII)
# No measures: they place a number, or come apart from it.
_LEFT_OUT = {"round", "prompt_ids", "best_round", "best_accuracy", "groups", "informative_groups"}
_SECTIONS = {"learned": "update", "watch_failures": "watch_failed", "failures": "failed"}


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker gets of a run. ``kept`` is what ``keep`` returned in an earlier session, {} at first."""

    run_id: str
    project: str
    settings: Settings
    place: Path
    kept: Mapping[str, Any]


class Tracking(Protocol):
    """A run in a tracker, new or continued."""

    def last_round(self) -> int | None:
        """The last round that is there, None where there is none or the tracker cannot be asked."""

    def keep(self) -> dict[str, Any]:
        """What a later session needs to continue the same tracked run."""

    def log(self, number: int, numbers: Mapping[str, float], at: float) -> None:
        """Write a round's numbers; ``at`` is when it was done, in seconds since 1970."""

    def close(self, *, succeeded: bool) -> None:
        """Finish: everything is written when this returns."""


class _TensorBoard:
    """Event files under ``tensorboard/``, as scalars with the round as the step."""

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.summary import Writer

        self._folder = run.place / "tensorboard"
        self._last = self._read() if self._folder.exists() else None
        self._writer = Writer(str(self._folder))

    def _read(self) -> int | None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(self._folder), size_guidance={"tensors": 0})
        events.Reload()
        steps = [event.step for tag in events.Tags()["tensors"] for event in events.Tensors(tag)]
        return max(steps, default=None)

    def last_round(self) -> int | None:
        return self._last

    def keep(self) -> dict[str, Any]:
        return {}

    def log(self, number: int, numbers: Mapping[str, float], at: float) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, number, wall_time=at)
        self._writer.flush()

    def close(self, *, succeeded: bool) -> None:
        self._writer.close()


class _Trackio:
    """A local database under ``trackio/``; a Space or server where the user's environment names one."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._project, self._run_id = run.project, run.run_id
        self._run = trackio.init(
            project=run.project,
            name=run.run_id,
            config=dict(run.settings),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def last_round(self) -> int | None:
        if os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL"):
            return None
        from trackio.sqlite_storage import SQLiteStorage

        logs = SQLiteStorage.get_logs(self._project, self._run_id)
        return max((int(row["step"]) for row in logs if row.get("step") is not None), default=None)

    def keep(self) -> dict[str, Any]:
        return {}

    def log(self, number: int, numbers: Mapping[str, float], at: float) -> None:
        self._run.log(dict(numbers), step=number)

    def close(self, *, succeeded: bool) -> None:
        self._run.finish()


class _Wandb:
    """An offline run under ``wandb/``, for ``wandb sync`` to upload; online where the user's WANDB_MODE says so."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._run = wandb.init(
            project=run.project,
            id=run.run_id,
            name=run.run_id,
            resume="allow",
            config=dict(run.settings),
            # Numbers alone: neither the console nor code, host, packages or the use of the machine.
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )

    def last_round(self) -> int | None:
        return None

    def keep(self) -> dict[str, Any]:
        return {}

    def log(self, number: int, numbers: Mapping[str, float], at: float) -> None:
        self._run.log(dict(numbers), step=number, commit=True)

    def close(self, *, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)


class _Mlflow:
    """A database under ``mlflow/``, since MLflow takes no plain files; a server where MLFLOW_TRACKING_URI is."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow.tracking import MlflowClient

        folder = run.place / "mlflow"
        folder.mkdir(0o755, exist_ok=True)
        own = f"sqlite:///{folder / 'mlflow.db'}"
        is_own = not os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(tracking_uri=own if is_own else None)
        self._first: str | None = None
        if run.kept:
            self._run_id = str(run.kept["run_id"])
            self._client.update_run(self._run_id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(run.project)
        location = (folder / "artifacts").as_uri() if is_own else None
        number = experiment.experiment_id if experiment else self._client.create_experiment(run.project, location)
        self._run_id = self._client.create_run(number, run_name=run.run_id).info.run_id
        for name, value in run.settings.items():
            self._client.log_param(self._run_id, name, value)

    def last_round(self) -> int | None:
        history = self._client.get_metric_history(self._run_id, "validation/accuracy")
        return max((metric.step for metric in history), default=None)

    def keep(self) -> dict[str, Any]:
        return {"run_id": self._run_id}

    def log(self, number: int, numbers: Mapping[str, float], at: float) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(name, value, int(at * 1000), number) for name, value in numbers.items()]
        self._client.log_batch(self._run_id, metrics)

    def close(self, *, succeeded: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if succeeded else "FAILED")


_TRACKERS: dict[Tracker, Callable[[TrackedRun], Tracking]] = {
    "tensorboard": _TensorBoard,
    "trackio": _Trackio,
    "wandb": _Wandb,
    "mlflow": _Mlflow,
}


def opened(tracker: Tracker, run: TrackedRun) -> Tracking:
    """Open a run in a tracker, or continue it. Raises whatever the library raises."""
    return _TRACKERS[tracker](run)


def environment(place: Path) -> dict[str, str]:
    """The variables under which a tracker's process runs: the user's own, and ours where those are unset.

    Ours keep everything in the run folder and off the network: no login is used and no use is reported to anybody.
    """
    ours = {
        "TRACKIO_DIR": str(place / "trackio"),
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(place),
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "GRADIO_ANALYTICS_ENABLED": "False",
    }
    return ours | dict(os.environ)


def numbers_of(record: RoundRecord) -> dict[str, float]:
    """A round's numbers by name, such as ``reward``, ``validation/accuracy`` and ``update/loss``."""
    found = dict(_numbers("", record.model_dump(mode="json", exclude=_LEFT_OUT)))
    found["best/round"] = float(record.best_round)
    if record.best_accuracy is not None:
        found["best/accuracy"] = record.best_accuracy
    if record.groups:
        found["signal"] = record.signal_fraction
    return {_name(name): value for name, value in found.items() if isfinite(value)}


def _numbers(place: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in fields.items():
        where = f"{place}{_SECTIONS.get(name, name)}"
        if isinstance(value, Mapping):
            yield from _numbers(f"{where}/", value)
        elif isinstance(value, int | float):
            yield where, float(value)


def _name(name: str) -> str:
    return _UNUSUAL.sub("_", name)[:_LONGEST_NAME]


def settings_of(config: RunConfig) -> dict[str, str | int | float | bool]:
    """A run's settings by dotted key; without texts, and without those that are empty or long."""
    fields = config.model_dump(mode="json", exclude={"given"})
    return {_name(key): value for section in fields for key, value in _settings(section, section, fields[section])}


def _settings(section: str, key: str, value: Any) -> Iterator[tuple[str, str | int | float | bool]]:
    if key.rpartition(".")[2] in _TEXTS.get(section, ()) or value is None:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _settings(section, f"{key}.{name}", inner)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for number, inner in enumerate(value):
            yield from _settings(section, f"{key}.{number}", inner)
    else:
        plain = json.dumps(value) if isinstance(value, list) else value
        if not isinstance(plain, str) or 0 < len(plain) <= _LONGEST_SETTING:
            yield key, plain
