"""The sources of data: one function each, in an explicit table; versions of the user's own datasets here."""

from collections.abc import Callable

from ratchet.config import Data, DatasetData, FormatKind
from ratchet.datasets import gsm8k, gym, math_pairs_source, math_rows
from ratchet.datasets.canonical import prompt_of
from ratchet.datasets.dataset import Dataset, form_request
from ratchet.datasets.splits import split
from ratchet.datasets.version_folders import read_manifest, read_rows, usability
from ratchet.errors import IncompatibleData


def load_version(data: DatasetData, *, validation_prompts: int, format_kind: FormatKind) -> Dataset:
    """Read train and validation rows of the version that the content hash names; its test rows are never opened.

    The user's own rows bring no few-shot examples, and say themselves what is to be done: the instruction asks for the
    form of the format bonus alone, and for nothing where that is off.

    Raises:
        NotFound: its folder is not here.
        Conflict: its rows were changed.
        IncompatibleData: it has no train or no validation rows.
    """
    if not data.content_hash:
        raise ValueError("the version of the dataset is not resolved")
    manifest = read_manifest(data.content_hash)
    if not {"train", "validation"} <= manifest.splits.keys():
        lacks = usability({name: split.rows for name, split in manifest.splits.items()})[0]
        raise IncompatibleData(
            f"Dataset {data.name} cannot be used: {lacks} Add it again with both, or with --set-aside validation."
        )
    train, validation = (
        [prompt_of(row, manifest.format) for row in read_rows(data.content_hash, name)]
        for name in ("train", "validation")
    )
    splits = split(train, validation, data, validation_prompts)
    return Dataset(
        train=splits.train,
        validation=splits.validation,
        heldout=(),
        instruction=form_request(format_kind),
        examples=(),
        notes=splits.notes,
    )


SOURCES: dict[str, Callable[..., Dataset]] = {
    "math_pairs": math_pairs_source.load,
    "gsm8k": gsm8k.load,
    "boxed": math_rows.load,
    "deepmath": math_rows.load,
    "dataset": load_version,
    "reasoning_gym": gym.load,
}


def load(data: Data, *, validation_prompts: int, format_kind: FormatKind) -> Dataset:
    """Make or read the prompts that the settings ask for. The same settings and files give the same dataset.

    Args:
        data: Which source, and how much of it.
        validation_prompts: Size of the fixed validation sample.
        format_kind: Which form the default instruction and the few-shot examples ask for.

    Raises:
        IncompatibleData: the data is missing, empty, or has rows that cannot be used.
        InvalidSetting: more was asked for than exists.
    """
    return SOURCES[data.source](data, validation_prompts=validation_prompts, format_kind=format_kind)
