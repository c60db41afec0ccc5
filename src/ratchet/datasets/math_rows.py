"""Math problems whose answer is an expression: boxed (prompt, ground_truth) and DeepMath (prompt, solution).

Neither brings few-shot examples.
"""

from collections.abc import Mapping
from typing import Any

from ratchet.config import BoxedData, DeepMathData, FormatKind
from ratchet.datasets import row_columns
from ratchet.datasets.dataset import Dataset, tags_request
from ratchet.datasets.splits import read_splits
from ratchet.run.records import Prompt

_GROUND_TRUTH_COLUMN = {"boxed": "ground_truth", "deepmath": "solution"}


def load(data: BoxedData | DeepMathData, *, validation_prompts: int, format_kind: FormatKind) -> Dataset:
    """Read the rows and split them.

    Raises:
        IncompatibleData: the data is not there, or has rows that cannot be used.
    """
    column = _GROUND_TRUTH_COLUMN[data.source]

    def prompt(number: int, row: Mapping[str, Any]) -> Prompt:
        return Prompt(
            id=number,
            messages=row_columns.messages(row, "prompt"),
            ground_truth=row_columns.ground_truth(row, column),
            extras=row_columns.extras(row),
        )

    splits = read_splits(data, validation_prompts, prompt)
    return Dataset(
        train=splits.train,
        validation=splits.validation,
        heldout=(),
        instruction=instruction(format_kind),
        examples=(),
        notes=splits.notes,
    )


def instruction(format_kind: FormatKind) -> str:
    """The default system prompt, which asks for a box whatever the form."""
    if format_kind == "tags":
        return "Solve the problem. " + tags_request("the final answer in \\boxed{}")
    return "Solve the problem step by step and give the final answer inside \\boxed{}."
