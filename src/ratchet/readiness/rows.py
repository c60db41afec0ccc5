"""The rows of a run and what checks them: loaded, and every ground truth gradable."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.config import RunConfig
from ratchet.datasets import Dataset, load, worked_examples
from ratchet.datasets.rows import MOST_NAMED_ROWS
from ratchet.errors import Conflict, IncompatibleData
from ratchet.readiness.faults import Faults
from ratchet.records import Prompt
from ratchet.verifiers import Tried, Verifier, compile_pattern, make_verifier, takes_function


@dataclass(frozen=True)
class Rows:
    """The rows of a run and its verifier, which whoever has them closes.

    ``config`` is resolved, system prompt and worked examples included. ``notes`` are whole sentences for the user.
    """

    config: RunConfig
    dataset: Dataset
    verifier: Verifier
    notes: tuple[str, ...]


def open_rows(config: RunConfig, function: Callable[..., Any] | None, faults: Faults) -> Rows | None:
    """Load the rows of a run and check each ground truth; None where rows or verifier cannot be had.

    Args:
        config: Settings as given or as stored.
        function: The user's own verifier, for ``verifier.kind`` python.
        faults: Where whatever is wrong goes.
    """
    config = config.resolved()
    dataset: Dataset | None = None
    verifier: Verifier | None = None
    with faults.gathered():
        if config.reward.format_bonus == "pattern" and config.reward.format_pattern:
            compile_pattern(config.reward.format_pattern)
    with faults.gathered():
        verifier = _verifier(config, function)
    try:
        with faults.gathered():
            dataset = load(
                config.data,
                validation_prompts=config.rl.validation_prompts,
                format_kind=config.reward.format_bonus or "off",
            )
        if dataset is None or verifier is None:
            if verifier:
                verifier.close()
            return None
        with faults.gathered():
            config = _with_prompt_setup(config, dataset)
        for split, prompts in (("training", dataset.train), ("validation", dataset.validation)):
            with faults.gathered():
                refuse_ungradable(verifier, prompts, f"{split} rows")
        tried = ""
        if isinstance(verifier, Tried) and dataset.train:
            with faults.gathered():
                tried = verifier.trial(dataset.train[0])
    except BaseException:
        if verifier:
            verifier.close()
        raise
    return Rows(config, dataset, verifier, (*dataset.notes, *filter(None, [tried])))


def refuse_ungradable(verifier: Verifier, prompts: Sequence[Prompt], what: str) -> None:
    """Refuse rows whose ground truth no answer could be graded against; ``what`` is such as "training rows".

    Raises:
        IncompatibleData: there are such rows, up to 20 of them named by number, or there are none at all.
    """
    if not prompts:
        raise IncompatibleData(f"There are no {what}. Give a dataset with rows for training and validation.")
    reasons = [(prompt.id, reason) for prompt in prompts if (reason := verifier.check_ground_truth(prompt))]
    if reasons:
        rows_by_reason: dict[str, list[int]] = {}
        for row, reason in reasons[:MOST_NAMED_ROWS]:
            rows_by_reason.setdefault(reason, []).append(row)
        named = "; ".join(f"{_rows(rows)}: {reason}" for reason, rows in rows_by_reason.items())
        raise IncompatibleData(
            f"{len(reasons)} of {len(prompts)} {what} have a reference that the verifier cannot check: "
            f"{named}. Correct the rows or choose another verifier."
        )


def _rows(numbers: Sequence[int]) -> str:
    """Return such as "row 3" or "rows 3, 4 and 9"."""
    *others, last = map(str, numbers)
    return f"rows {', '.join(others)} and {last}" if others else f"row {last}"


def _with_prompt_setup(config: RunConfig, dataset: Dataset) -> RunConfig:
    given = config.prompt.system_prompt
    prompt = config.prompt.model_copy(
        update={
            "system_prompt": dataset.instruction if given is None else given,
            "worked_examples": worked_examples(config.prompt, dataset),
        }
    )
    return config.model_copy(update={"prompt": prompt})


def _verifier(config: RunConfig, function: Callable[..., Any] | None) -> Verifier:
    settings = config.verifier
    if settings is None:
        raise ValueError("the settings are not resolved")
    if takes_function(settings) and function is None:
        raise Conflict(
            "This run is checked by a Python function of your own, which is not stored. Start or resume it from "
            "Python: ratchet.resume(folder, verifier=function)."
        )
    return make_verifier(settings, prefer_answer_tag=config.reward.format_bonus == "tags", function=function)
