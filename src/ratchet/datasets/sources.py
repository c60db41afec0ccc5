"""The sources of data: one function each, in an explicit table."""

from collections.abc import Callable

from ratchet.config import Data, FormatKind
from ratchet.datasets import gsm8k, gym, math_pairs_source, math_rows, stored
from ratchet.datasets.dataset import Dataset

SOURCES: dict[str, Callable[..., Dataset]] = {
    "math_pairs": math_pairs_source.load,
    "gsm8k": gsm8k.load,
    "boxed": math_rows.load,
    "deepmath": math_rows.load,
    "dataset": stored.load,
    "reasoning_gym": gym.load,
}


def load(data: Data, *, validation_prompts: int, format_kind: FormatKind) -> Dataset:
    """Make or read the prompts that the settings ask for. The same settings and files give the same dataset.

    Args:
        data: Which source, and how much of it.
        validation_prompts: Size of the fixed validation sample.
        format_kind: Which form the default instruction and the worked examples ask for.

    Raises:
        IncompatibleData: the data is missing, empty, or has rows that cannot be used.
        InvalidSetting: more was asked for than exists.
    """
    return SOURCES[data.source](data, validation_prompts=validation_prompts, format_kind=format_kind)
