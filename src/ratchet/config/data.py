"""Where the prompts come from, one class per source, and what is put around a row's own text."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ratchet.config.base import Settings, setting

_SOURCE_LABEL = "Source"
_SOURCE_HELP = (
    "Where the prompts come from: dataset (one that was added with ratchet data add), math_pairs, gsm8k, boxed, "
    "deepmath or reasoning_gym."
)
_OVERLONG_LABEL = "Over-long rows"
_OVERLONG_HELP = (
    "Rows whose prompt plus Max answer tokens exceed the context length: refuse the run and name the first one, or "
    "leave_out, which drops and counts them."
)


class _RowSettings(Settings):
    """Settings of every source of rows."""

    rows: int | None = setting(
        None, ge=1, label="Rows used", unit="rows", help="How many training rows to use. Empty: all."
    )
    pick: Literal["first", "sample"] = setting(
        "first",
        label="Which rows",
        help="With a number of rows: the first ones of the file, or a random sample drawn by the data seed.",
    )
    seed: int = setting(0, span=(0, 2**31 - 1), label="Data seed", help="Seeds the sample of rows and their split.")
    overlong: Literal["refuse", "leave_out"] = setting("refuse", label=_OVERLONG_LABEL, help=_OVERLONG_HELP)


class _PathSettings(_RowSettings):
    """Settings of sources that are read again for each run."""

    revision: str | None = setting(
        None,
        min_length=1,
        max_length=200,
        label="Data revision",
        help="Hub datasets: a branch, tag or commit; pinned to a commit when the run is saved. Empty takes the newest.",
    )


def _path(default: Any, columns: str) -> Any:
    help = f"Hub id, a folder with train.jsonl, or one file (JSONL, CSV, Parquet); columns {columns}."
    return setting(default, label="Dataset", help=help)


class MathPairsData(Settings):
    """Math Pairs: generated problems such as (3 + 4) * (2 + 6). Needs no dataset."""

    source: Literal["math_pairs"] = setting("math_pairs", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    prompts: int = setting(
        256, span=(8, 100_000), label="Training prompts", unit="prompts", help="How many problems to train on."
    )
    heldout: int = setting(
        512,
        span=(0, 10_000),
        label="Held-out prompts",
        unit="prompts",
        help="Held-out problems that score the run before and after; fewer if fewer exist.",
    )
    pairs: int = setting(2, span=(1, 6), label="Pairs", help="How many sums a problem multiplies.")
    smallest: int = setting(1, span=(0, 999), label="Smallest number", help="Smallest number in a pair.")
    largest: int = setting(9, span=(1, 999), label="Largest number", help="Largest number in a pair.")
    seed: int = setting(0, span=(0, 2**31 - 1), label="Data seed", help="Seeds the problems and their split.")
    overlong: Literal["refuse", "leave_out"] = setting("refuse", label=_OVERLONG_LABEL, help=_OVERLONG_HELP)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.smallest >= self.largest:
            raise ValueError(
                f"Smallest number is {self.smallest} and Largest number is {self.largest}: choose a larger Largest "
                "number."
            )
        return self


class Gsm8kData(_PathSettings):
    """GSM8K: school problems in words; the reference is the number after the last ####."""

    source: Literal["gsm8k"] = setting("gsm8k", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    path: str = _path("openai/gsm8k", "question and answer")


class BoxedData(_PathSettings):
    """Any dataset with the columns prompt and ground_truth whose answer belongs in a box."""

    source: Literal["boxed"] = setting("boxed", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    path: str = _path(..., "prompt and ground_truth")


class DeepMathData(_PathSettings):
    """Rows as in DeepMath-103K: prompt is a list of messages, solution the expected answer."""

    source: Literal["deepmath"] = setting("deepmath", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    path: str = _path("trl-lib/DeepMath-103K", "prompt and solution")


class DatasetData(_RowSettings):
    """A version of a dataset that was added with ratchet data add. Its test rows are never read by training."""

    source: Literal["dataset"] = setting("dataset", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    name: str = setting(..., min_length=1, max_length=100, label="Dataset name", help="See ratchet data list.")
    version: int | None = setting(None, ge=1, label="Dataset version", help="Empty: the newest. Stored with the run.")
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
        256, span=(2, 100_000), label="Problems", unit="prompts", help="How many problems to generate and train on."
    )
    task_config: dict[str, bool | int | float | str] = setting(
        {}, label="Task settings", help="The task's own settings, such as {max_terms: 4}."
    )
    seed: int = setting(0, span=(0, 2**31 - 1), label="Data seed", help="Seeds the problems.")
    overlong: Literal["refuse", "leave_out"] = setting("refuse", label=_OVERLONG_LABEL, help=_OVERLONG_HELP)


Data = Annotated[
    MathPairsData | Gsm8kData | BoxedData | DeepMathData | DatasetData | ReasoningGymData,
    Field(discriminator="source"),
]


class WorkedExample(Settings):
    """One few-shot example, shown to the model as an earlier exchange."""

    user: str = setting(..., min_length=1, label="Question", help="What the user asks.")
    assistant: str = setting(..., min_length=1, label="Answer", help="What the assistant answers.")


class PromptSettings(Settings):
    """The prompt around a row's own text. The same in training and validation."""

    system_prompt: str | None = setting(
        None,
        max_length=20_000,
        label="System prompt",
        help="Tells the model how to answer. Left out: the source's own instruction; empty text: no system prompt.",
    )
    few_shot_examples: (
        Annotated[int, Field(ge=0, le=16)] | Annotated[tuple[WorkedExample, ...], Field(max_length=16)]
    ) = setting(
        0,
        label="Few-shot examples",
        help="How many of the source's own examples to show first (0 to 16), or a list of your own "
        "({user, assistant}).",
    )
    template_options: dict[str, bool | int | float | str] = setting(
        {},
        label="Chat template options",
        help="Arguments of the model's chat template, such as {enable_thinking: false}.",
    )
