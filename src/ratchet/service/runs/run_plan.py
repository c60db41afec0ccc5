"""``ratchet plan``: all checks of a run, its steps, whether it fits in memory, and which objective suits the data.

Nothing is trained and nothing loads torch. How long a run takes is not guessed here: a trial measures it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import yaml

from ratchet.config import CompositeVerifier, DatasetData, RunConfig
from ratchet.config.changes import with_pins
from ratchet.errors import Conflict, IncompatibleData
from ratchet.files import unusable_as_error, write_atomically
from ratchet.models.anatomy import anatomy_of
from ratchet.models.memory_estimate import CARDS, MemoryDemand, MemoryEstimate, estimate_memory
from ratchet.readiness import Readiness
from ratchet.readiness.device_checks import memory_of
from ratchet.readiness.step_counts import StepCounts, steps_of
from ratchet.service.data.datasets import list_datasets
from ratchet.service.runs.start_checks import check_run

Advised = Literal["rl", "sft", "dpo", "none"]


@dataclass(frozen=True)
class ObjectiveAdvice:
    """Which objective goes with data and verifier, and why."""

    objective: Advised
    why: str


@dataclass(frozen=True)
class RunPlan:
    """What is known about a run before it starts.

    Attributes:
        report: What the checks found.
        steps: None where the rows could not be counted, and for sft and dpo, whose steps count rows.
        objective: What is advised.
        memory: This device first, then usual cards; empty where the model's configuration is not at hand.
        why_no_memory: Says so, else empty.
        settings: What a file that starts this very run holds.
    """

    report: Readiness
    steps: StepCounts | None
    objective: ObjectiveAdvice
    memory: tuple[MemoryEstimate, ...]
    why_no_memory: str
    settings: dict[str, Any]


def plan(
    config: RunConfig,
    out: Path | None = None,
    *,
    against: Sequence[Path] = (),
) -> RunPlan:
    """Make all checks of a run and describe it.

    Args:
        config: Settings as given.
        out: The folder that it would be given.
        against: JSONL files of rows that the user scores on.
    """
    report = check_run(config, out, against=against)
    try:
        steps = _steps(report)
        memory, why_not = _memory(report)
        objective = _objective(report)
    finally:
        report.close()
    return RunPlan(report, steps, objective, memory, why_not, _settings(config, report))


def write_plan(planned: RunPlan, path: Path) -> None:
    """Write the settings of a plan to a YAML file that ``ratchet train`` takes unchanged.

    Raises:
        RatchetError: what prevents the run: only settings that passed their checks are written.
        Conflict: the file is there already, or cannot be written.
    """
    planned.report.raise_faults()
    with unusable_as_error(path, "Choose another --write."):
        if path.exists():
            raise Conflict(f"{path} exists already. Choose another name for --write, or remove it.")
        text = yaml.safe_dump(planned.settings, sort_keys=False, allow_unicode=True, width=100)
        write_atomically(path, f"# Checked by ratchet plan. Start it with: ratchet train {path.name}\n{text}".encode())


def _steps(report: Readiness) -> StepCounts | None:
    prompts = report.row_counts.get("training", 0)
    return steps_of(report.config.rl, prompts) if report.config.objective == "rl" and prompts else None


def advised(layout: str | None, verifiers: Sequence[str], *, are_graded: bool) -> ObjectiveAdvice:
    """Advise an objective.

    Args:
        layout: How the rows of a dataset are made: prompt, messages or preference; None for a built-in source.
        verifiers: The kinds of checks that are named; none where nothing is.
        are_graded: Whether every reference can be checked by them.
    """
    kinds = ", ".join(verifiers)
    if layout == "preference":
        also = f" With the verifier ({kinds}) rl can learn from prompt and chosen answer too." if verifiers else ""
        return ObjectiveAdvice("dpo", f"The rows are pairs of a chosen and a rejected answer.{also}")
    if verifiers and are_graded:
        return ObjectiveAdvice("rl", f"A program can check every answer against its reference ({kinds}).")
    if verifiers:
        return ObjectiveAdvice("none", f"The verifier ({kinds}) cannot check these rows: see the problems.")
    if layout == "messages":
        return ObjectiveAdvice(
            "sft",
            "The rows are conversations that end with a demonstration, and no verifier is named that checks answers.",
        )
    if layout == "prompt":
        return ObjectiveAdvice(
            "sft",
            "No verifier is named, so nothing checks an answer, but the references can be learned as demonstrations. "
            "With a verifier, rl could learn from them.",
        )
    return ObjectiveAdvice(
        "none", "There is neither a verifier nor rows of a known format, so there is nothing to learn from."
    )


def _objective(report: Readiness) -> ObjectiveAdvice:
    data, verifier = report.config.data, report.config.verifier
    layout = None
    if isinstance(data, DatasetData):
        found = [one for one in list_datasets() if (one.name, one.version) == (data.name, data.version)]
        layout = found[0].format if found else None
    parts = [part.verifier for part in verifier.parts] if isinstance(verifier, CompositeVerifier) else [verifier]
    kinds = [part.kind for part in parts if part is not None]
    # Of other objectives, and of faults that are not the rows', nothing says that they could not be graded.
    are_graded = report.config.objective != "rl" or not any(isinstance(f, IncompatibleData) for f in report.faults)
    return advised(layout, kinds, are_graded=are_graded)


def _memory(report: Readiness) -> tuple[tuple[MemoryEstimate, ...], str]:
    config, facts = report.config, report.model
    if config.objective != "rl":
        return (), f"Memory of {config.objective} is not estimated."
    if report.longest_prompt is None:
        return (), "Memory is not estimated: the prompts' tokens could not be counted."
    with_vllm = config.sampler.backend == "vllm" or (config.sampler.backend == "auto" and find_spec("vllm") is not None)
    asked = MemoryDemand(
        config=config,
        longest_prompt=report.longest_prompt,
        common_prefix=report.common_prefix,
        prompts=report.row_counts["training"],
        validation_prompts=report.row_counts["validation"],
        with_vllm=with_vllm and config.quantization == "none",
    )
    wide, narrow = (anatomy_of(facts.settings, width, facts.parameters) for width in (4, 2))
    if wide is None or narrow is None:
        return (), (
            f"Memory is not estimated: there is no config.json of {config.model} that lists its layers. Give a local "
            "folder, or a hub id whose config.json can be downloaded."
        )
    plans = [estimate_memory(asked, narrow, name, "gpu", size) for name, size in CARDS.items()]
    if report.device is not None and (here := memory_of(report.device)):
        on_cpu = report.device == "cpu"
        plans.insert(
            0, estimate_memory(asked, wide if on_cpu else narrow, here[0], "cpu" if on_cpu else "gpu", here[1])
        )
    return tuple(plans), ""


def _settings(config: RunConfig, report: Readiness) -> dict[str, Any]:
    """What was given, with what the checks fixed: the version of the data, and the loss of a mixture of experts."""
    checked = with_pins(config.model_copy(update={"data": report.config.data}))
    if config.rl.loss != report.config.rl.loss:
        checked["rl"] = {**checked.get("rl", {}), "loss": report.config.rl.loss}
    named = {"model": config.model, "data": checked.get("data", {"source": config.data.source})}
    return {**named, **{key: value for key, value in checked.items() if key not in named}}
