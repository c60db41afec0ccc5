"""Checks of a dataset version with a verifier, with what a run would load; listing datasets needs none of that."""

from contextlib import closing
from dataclasses import dataclass

from ratchet.config import RunConfig
from ratchet.datasets.canonical import prompt_of
from ratchet.datasets.leak_guard import RowText, find_leaks
from ratchet.datasets.reference_sets import text_of
from ratchet.datasets.tables import SPLITS
from ratchet.datasets.version_folders import read_rows, usability
from ratchet.readiness import Faults
from ratchet.readiness.leak_checks import leak_notes, refuse_leaks
from ratchet.readiness.row_checks import refuse_ungradable
from ratchet.service.data.datasets import found_version
from ratchet.service.verification.user_metrics import with_source
from ratchet.verifiers import Tried, make_verifier


@dataclass(frozen=True)
class DatasetCheck:
    """What prevents training or scoring with a version, as sentences; none if it is fit for both."""

    name: str
    version: int
    verifier: str
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def check_dataset(reference: str, verifier: RunConfig) -> DatasetCheck:
    """Check whether a version can be trained on and scored with a verifier.

    Args:
        reference: NAME or NAME@VERSION.
        verifier: Resolved; its verifier is used, also one with an archived metric.

    Raises:
        NotFound: there is no such version of the dataset or of a metric, or its rows are not here.
        Conflict: its rows were changed.
    """
    verifier = with_source(verifier, is_new_run=False)
    if verifier.verifier is None:
        raise ValueError("the settings are not resolved")
    found = found_version(reference)
    faults, warnings, texts = Faults(), list(usability(found.rows)), []
    checking = make_verifier(verifier.verifier, prefer_answer_tag=verifier.reward.format_bonus == "tags")
    with closing(checking):
        if isinstance(checking, Tried):
            with faults.gathered():
                checking.load()
        for split in (split for split in SPLITS if found.rows[split]):
            prompts = [prompt_of(row) for row in read_rows(found.content_hash, split)]
            texts += [RowText(split, prompt.id, text_of(prompt.messages)) for prompt in prompts]
            with faults.gathered():
                refuse_ungradable(checking, prompts, f"{split} rows")
    leaks = find_leaks(texts, unshared=SPLITS)
    with faults.gathered():
        refuse_leaks(leaks)
    warnings += leak_notes(leaks)
    problems = tuple(str(fault) for fault in faults.found)
    return DatasetCheck(found.name, found.version, verifier.verifier.kind, problems, tuple(warnings))
