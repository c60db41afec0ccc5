"""The folders of benchmarks: questions that never change, found by the hash of what is in them.

    RATCHET_HOME/benchmarks/HASH/
      benchmark.json          the ``BenchmarkSpec``: where the questions come from, how they are asked and checked
      questions.jsonl         the questions as ``canonical.py`` has rows, in the order in which they are asked

The hash is of ``benchmark.json`` without name, description and origin, and that file holds the hash of the questions.
It is taken of the file itself and not of what this version of Ratchet reads in it, so that settings added later do not
change it. Worker processes read them too: no database is known here.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ratchet.datasets.canonical import line_of, prompt_of
from ratchet.datasets.content_folders import changed, place, staging
from ratchet.datasets.questions import stored_row
from ratchet.errors import Conflict, NotFound
from ratchet.evaluation.benchmark import BenchmarkSpec
from ratchet.files import ratchet_home, write_atomically
from ratchet.run.records import Prompt

# What people call it and where it came from decide nothing that is measured.
_OUTSIDE_HASH = ("name", "description", "origin")


def benchmarks_home() -> Path:
    """The folder of all benchmarks."""
    return ratchet_home() / "benchmarks"


def questions_file(content_hash: str) -> Path:
    """The file of a benchmark's questions."""
    return benchmarks_home() / content_hash / "questions.jsonl"


def written(prompts: Iterable[Prompt]) -> bytes:
    """The bytes of a questions file, numbered from 1 on in the given order."""
    return b"".join(line_of(stored_row(number, prompt)) for number, prompt in enumerate(prompts, start=1))


def keep(spec: BenchmarkSpec, questions: bytes) -> str:
    """Keep a benchmark in the folder of its content, and return the hash.

    A folder that is there and whole stays; it takes on the name, description and origin.

    Args:
        spec: With the hash of the questions.
        questions: What ``written`` returned.

    Raises:
        Conflict: the folder of all benchmarks cannot be used.
        DiskFull: there is no room; nothing is left behind then.
    """
    content_hash, content = spec.content_hash, json.dumps(spec.model_dump(mode="json"), indent=2).encode()
    target = benchmarks_home() / content_hash
    if _is_whole(content_hash):
        if (target / "benchmark.json").read_bytes() != content:
            write_atomically(target / "benchmark.json", content, private=True)
        return content_hash
    with staging(benchmarks_home()) as folder:
        folder.chmod(0o700)
        write_atomically(folder / "questions.jsonl", questions, private=True)
        write_atomically(folder / "benchmark.json", content, private=True)
        place(folder, content_hash, lambda: _is_whole(content_hash))
    return content_hash


def read(content_hash: str) -> tuple[BenchmarkSpec, tuple[Prompt, ...]]:
    """Read a benchmark and its questions, after proving that they are those that were stored.

    Raises:
        NotFound: its folder is not here.
        Conflict: a file was changed or removed.
    """
    spec = read_spec(content_hash)
    file = questions_file(content_hash)
    try:
        content = file.read_bytes()
        if hashlib.sha256(content).hexdigest() != spec.questions_sha256:
            raise changed(file, "benchmark")
        prompts = tuple(prompt_of(json.loads(line)) for line in content.split(b"\n") if line)
    except (OSError, ValueError, KeyError) as error:
        raise changed(file, "benchmark") from error
    if len(prompts) != spec.questions:
        raise changed(file, "benchmark")
    return spec, prompts


def read_spec(content_hash: str) -> BenchmarkSpec:
    """Read a benchmark without its questions, which are not opened.

    Raises:
        NotFound: its folder is not here.
        Conflict: its record was changed.
    """
    file = benchmarks_home() / content_hash / "benchmark.json"
    try:
        given = json.loads(file.read_bytes())
        if _hash_of(given) != content_hash:
            raise changed(file, "benchmark")
        return BenchmarkSpec.model_validate_json(json.dumps(given))
    except FileNotFoundError as error:
        raise NotFound(
            f"The benchmark {content_hash[:12]} is not in {benchmarks_home()}. Add it again, or set RATCHET_HOME to "
            "where it was added."
        ) from error
    except (OSError, ValueError, AttributeError, RecursionError, ValidationError) as error:
        raise changed(file, "benchmark") from error


def discard(content_hash: str) -> None:
    """Remove a benchmark's folder, if there is one."""
    shutil.rmtree(benchmarks_home() / content_hash, ignore_errors=True)


def _hash_of(given: dict[str, Any]) -> str:
    """The hash of a record as its file has it; as of ``BenchmarkSpec.content_hash``."""
    parts = {name: value for name, value in given.items() if name not in _OUTSIDE_HASH}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _is_whole(content_hash: str) -> bool:
    try:
        read(content_hash)
    except (NotFound, Conflict):
        return False
    return True
