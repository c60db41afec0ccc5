"""A version of a dataset as a source of prompts. Reads its train and validation rows; its test rows are never opened.

The user's own rows bring no worked examples, and say themselves what is to be done: the instruction asks for the form
of the format bonus alone, and for nothing where that is off.
"""

from ratchet.config import DatasetData, FormatKind
from ratchet.datasets.answer_form import form_request
from ratchet.datasets.canonical import prompt_of
from ratchet.datasets.dataset import Dataset
from ratchet.datasets.splits import split
from ratchet.datasets.version_folders import read_manifest, read_rows, usability
from ratchet.errors import IncompatibleData


def load(data: DatasetData, *, validation_prompts: int, format_kind: FormatKind) -> Dataset:
    """Read the version that the content hash names, and prove that it is that version.

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
