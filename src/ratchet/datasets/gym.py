"""Tasks of the package reasoning-gym as a source: problems made from a seed, scored by the task itself.

A problem of reasoning-gym is made from the seed plus its place, so two seeds that are close share problems. Training
and validation problems are therefore made from ranges of seeds that do not meet; in tasks with few different problems
the same one can still come up in both, and then leaves training.
"""

import difflib
from typing import Any

from ratchet.config import FormatKind, ReasoningGymData
from ratchet.datasets.dataset import Dataset, tags_request
from ratchet.datasets.splits import without_leaks, without_repeats
from ratchet.errors import IncompatibleData, InvalidSetting
from ratchet.run.records import Prompt
from ratchet.verifiers.reasoning_gym import EXTRA

# Validation problems are made from seeds this far on; more than the most problems that can be asked for.
_VALIDATION_OFFSET = 1_000_000


def load(data: ReasoningGymData, *, validation_prompts: int, format_kind: FormatKind) -> Dataset:
    """Make the problems.

    Raises:
        InvalidSetting: there is no such task, it does not take these settings, or the package is missing.
        IncompatibleData: nothing is left to train on.
    """
    notes: list[str] = []
    validation = without_repeats(_problems(data, validation_prompts, data.seed + _VALIDATION_OFFSET), notes)
    train = without_leaks(without_repeats(_problems(data, data.size, data.seed), notes), validation, notes)
    if not train:
        raise IncompatibleData(
            f"Task {data.task} with these settings makes too few different problems: of {data.size:,} none is left to "
            "train on. Change its settings so that there are more."
        )
    return Dataset(
        train=tuple(train),
        validation=tuple(validation),
        heldout=(),
        instruction=f"Solve the problem. {tags_request('the final answer')}",
        examples=(),
        notes=tuple(notes),
    )


def _problems(data: ReasoningGymData, count: int, seed: int) -> list[Prompt]:
    made = _task(data, count, seed)
    return [_prompt(data.task, number, made[number - 1]) for number in range(1, count + 1)]


def _task(data: ReasoningGymData, count: int, seed: int) -> Any:
    try:
        from reasoning_gym import create_dataset
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise InvalidSetting(
            "Data source reasoning_gym needs the package reasoning-gym: pip install 'ratchet-rl[reasoning-gym]'.",
            "data.source",
        ) from error
    if data.task not in DATASETS:
        raise InvalidSetting(_unknown(data.task, sorted(DATASETS)), "data.task")
    for name in ("seed", "size"):
        if name in data.task_config:
            raise InvalidSetting(
                f"Task settings hold {name}, which is a setting of its own: data.{name}.", "data.task_config"
            )
    try:
        return create_dataset(data.task, seed=seed, size=count, **data.task_config)
    except (AssertionError, TypeError, ValueError) as error:  # how the tasks refuse settings
        raise InvalidSetting(
            f"Task {data.task} does not take these settings: {error or type(error).__name__}.", "data.task_config"
        ) from error


def _unknown(task: str, known: list[str]) -> str:
    close = difflib.get_close_matches(task, known, n=3)
    meant = f" Did you mean {' or '.join(close)}?" if close else f" It has {len(known)}: {', '.join(known)}."
    return f"reasoning-gym has no task {task}.{meant}"


def _prompt(task: str, number: int, entry: dict[str, Any]) -> Prompt:
    answer = entry["answer"]
    return Prompt(
        id=number,
        messages=({"role": "user", "content": entry["question"]},),
        ground_truth="" if answer is None else str(answer),
        extras={EXTRA: {"task": task, "entry": entry}},
    )
