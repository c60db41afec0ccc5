"""Where the prompts come from: one class per source."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ratchet.config.base import Settings, setting

_SOURCE_LABEL = "Source"
_SOURCE_HELP = (
    "Where the prompts come from: dataset (one that was added with ratchet data add), math_pairs, gsm8k, boxed, "
    "deepmath or reasoning_gym."
)
_OVERLONG_LABEL = "Over-long rows"
_OVERLONG_HELP = (
    "Rows whose prompt and longest answer do not fit the training window: refuse the run and name the first one, or "
    "leave_out, which leaves them out and counts them."
)


class _Rows(Settings):
    """What every source of rows has in common."""

    rows: int | None = setting(
        None, ge=1, label="Rows used", unit="rows", help="How many training rows to use; empty takes all of them."
    )
    pick: Literal["first", "sample"] = setting(
        "first",
        label="Which rows",
        help="With a number of rows: the first ones of the file, or a random sample drawn by the data seed.",
    )
    seed: int = setting(
        0, ge=0, le=2**31 - 1, label="Data seed", help="Decides which rows are sampled and how they are split."
    )
    overlong: Literal["refuse", "leave_out"] = setting("refuse", label=_OVERLONG_LABEL, help=_OVERLONG_HELP)


class _Path(_Rows):
    """What sources that are read anew for each run have in common."""

    revision: str | None = setting(
        None,
        min_length=1,
        max_length=200,
        label="Data revision",
        help="Hub datasets: a branch, tag or commit; pinned to a commit when the run is saved. Empty takes the newest.",
    )


class MathPairsData(Settings):
    """Math Pairs: made-up problems such as (3 + 4) * (2 + 6). Needs no dataset."""

    source: Literal["math_pairs"] = setting("math_pairs", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    prompts: int = setting(
        256, ge=8, le=100_000, label="Training prompts", unit="prompts", help="How many problems to train on."
    )
    heldout: int = setting(
        512,
        ge=0,
        le=10_000,
        label="Held-out prompts",
        unit="prompts",
        help="Problems kept apart to score the run before and after. As many as exist are used, at most this many.",
    )
    pairs: int = setting(2, ge=1, le=6, label="Pairs", help="How many sums are multiplied in a problem.")
    smallest: int = setting(1, ge=0, le=999, label="Smallest number", help="Smallest number in a pair.")
    largest: int = setting(9, ge=1, le=999, label="Largest number", help="Largest number in a pair.")
    seed: int = setting(
        0, ge=0, le=2**31 - 1, label="Data seed", help="Decides which problems are made and how they are split."
    )
    overlong: Literal["refuse", "leave_out"] = setting("refuse", label=_OVERLONG_LABEL, help=_OVERLONG_HELP)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.smallest >= self.largest:
            raise ValueError(
                f"Smallest number is {self.smallest} and Largest number is {self.largest}: choose a larger Largest "
                "number."
            )
        return self


class Gsm8kData(_Path):
    """GSM8K: school problems in words; the reference is the number after the last ####."""

    source: Literal["gsm8k"] = setting("gsm8k", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    path: str = setting(
        "openai/gsm8k",
        label="Dataset",
        help="Hub id, a folder with train.jsonl, or one file (JSONL, CSV, Parquet); columns question and answer.",
    )


class BoxedData(_Path):
    """Any dataset with the columns prompt and ground_truth whose answer belongs in a box."""

    source: Literal["boxed"] = setting("boxed", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    path: str = setting(
        ...,
        label="Dataset",
        help="Hub id, a folder with train.jsonl, or one file (JSONL, CSV, Parquet); columns prompt and ground_truth.",
    )


class DeepMathData(_Path):
    """Rows as in DeepMath-103K: prompt is a list of messages, solution the expected answer."""

    source: Literal["deepmath"] = setting("deepmath", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    path: str = setting(
        "trl-lib/DeepMath-103K",
        label="Dataset",
        help="Hub id, a folder with train.jsonl, or one file (JSONL, CSV, Parquet); columns prompt and solution.",
    )


class DatasetData(_Rows):
    """A version of a dataset that was added with ratchet data add. Its test rows are never read by training."""

    source: Literal["dataset"] = setting("dataset", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    name: str = setting(..., min_length=1, max_length=100, label="Dataset name", help="See ratchet data list.")
    version: int | None = setting(
        None, ge=1, label="Dataset version", help="Empty takes the newest; stored with the run."
    )
    content_hash: str = setting(
        "",
        pattern="^([0-9a-f]{64})?$",
        label="Content hash",
        help="Identifies the version's rows: 64 hexadecimal digits, filled in when the run is saved.",
    )


class ReasoningGymData(Settings):
    """A task of the package reasoning-gym, which makes its problems and scores their answers."""

    source: Literal["reasoning_gym"] = setting("reasoning_gym", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    task: str = setting(
        ..., min_length=1, max_length=100, label="Task", help="Name of a task of reasoning-gym, such as chain_sum."
    )
    size: int = setting(
        256, ge=2, le=100_000, label="Problems", unit="prompts", help="How many problems to make and train on."
    )
    task_config: dict[str, bool | int | float | str] = setting(
        {}, label="Task settings", help="The task's own settings, such as {max_terms: 4}."
    )
    seed: int = setting(0, ge=0, le=2**31 - 1, label="Data seed", help="Decides which problems are made.")
    overlong: Literal["refuse", "leave_out"] = setting("refuse", label=_OVERLONG_LABEL, help=_OVERLONG_HELP)


Data = Annotated[
    MathPairsData | Gsm8kData | BoxedData | DeepMathData | DatasetData | ReasoningGymData,
    Field(discriminator="source"),
]
