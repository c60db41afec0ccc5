"""Bundles: a benchmark as one thing that its author hands over, a folder or a .zip with ``benchmark.yaml`` in it.

    benchmark.yaml    the keys of ``BundleFile``
    questions.jsonl   or any other name: JSONL, CSV, TSV or Parquet
    metric.py         where the verifier is the author's own: score(answer, reference) -> 0..1

A bundle may come from anybody. Nothing in it is run here (metrics run in the sandbox), its paths may not lead out of
it, and what is unpacked is limited in size and removed again. Which answers pass is checked in
``readiness/benchmark_checks.py``.
"""

import json
import lzma
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from ratchet.config import RewardSettings, Settings, VerifierSettings, WorkedExample
from ratchet.config.config_text import SettingsLoader, build, read_file
from ratchet.datasets.questions import Questions, absolute, of_table
from ratchet.datasets.readers import SUFFIXES, table
from ratchet.errors import IncompatibleData, InvalidSetting
from ratchet.evaluation.benchmark import Harness
from ratchet.files import FULL_DISK, disk_full_as_error, expanded, make_folder

FILE = "benchmark.yaml"
GROUND_TRUTH = "{ground_truth}"
MOST_FILES = 1_000
MOST_UNPACKED_BYTES = 512 << 20
_MOST_FILE_BYTES = 1 << 20  # of benchmark.yaml and of a metric
_CHUNK_BYTES = 1 << 20
_NOT_QUESTIONS = "__MACOSX"  # what macOS packs beside a folder
_DISK_ADVICE = "Free some space there, or set TMPDIR to a folder on another disk."
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError, ValueError)


class BundleHarness(Settings):
    """How the questions are asked; what is left out is as with the model's own run."""

    system_prompt: str | None = Field(None, max_length=20_000)
    worked_examples: Annotated[tuple[WorkedExample, ...], Field(max_length=16)] | None = None


class BundleFile(Settings):
    """What ``benchmark.yaml`` may hold. Unknown keys are refused.

    Attributes:
        name: Proposed name of the benchmark.
        description: A sentence for people.
        data: File of questions, relative to this one.
        columns: Our column -> the file's, such as prompt: question. ``completion`` is a whole right answer.
        harness: System prompt and few-shot examples.
        verifier: As in the settings of a run; of the kind custom where ``metric`` is given, or left out then.
        metric: File of a metric, relative to this one.
        reward: As in the settings of a run; its form is what the column format counts.
        max_answer_tokens: Max answer tokens.
        score_columns: Which columns, the main one first; all of them where left out.
        reference_solution: How a right answer looks, with {ground_truth} in it. Left out: the row's own completion,
            else the ground truth in the form that is asked for.
    """

    name: str = Field(min_length=1, max_length=100)
    description: str = Field("", max_length=2_000)
    data: str = Field(min_length=1, max_length=1_000)
    columns: dict[str, str] = Field({})
    harness: BundleHarness = BundleHarness(system_prompt=None)
    verifier: dict[str, Any] | None = None
    metric: str | None = Field(None, min_length=1, max_length=1_000)
    reward: dict[str, Any] = Field({})
    max_answer_tokens: int | None = Field(None, ge=16, le=32_768)
    score_columns: Annotated[tuple[str, ...], Field(min_length=1, max_length=100)] | None = None
    reference_solution: str | None = Field(None, max_length=20_000)


@dataclass(frozen=True)
class Bundle:
    """An opened bundle. ``metric`` is the file of its metric, there while the bundle is open, and None without one."""

    file: BundleFile
    questions: Questions
    verifier: VerifierSettings
    reward: RewardSettings
    metric: Path | None

    @property
    def harness(self) -> Harness:
        """What the bundle fixes of how its questions are asked."""
        return Harness(system_prompt=self.file.harness.system_prompt, worked_examples=self.file.harness.worked_examples)


def is_bundle(path: Path) -> bool:
    """Whether a path is meant as a bundle: a .zip, or a folder with benchmark.yaml."""
    path = expanded(path)
    return path.suffix.lower() == ".zip" or (path / FILE).is_file() or path.name == FILE


@contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """Open a bundle and read its questions.

    Raises:
        InvalidSetting: benchmark.yaml cannot be used; says which key.
        IncompatibleData: the bundle or its data cannot be read; rows are named by number.
        DiskFull: there is no room to unpack it.
    """
    path = expanded(path)
    if path.name == FILE and path.is_file():
        path = path.parent
    if path.is_dir():
        yield _read(path, absolute(str(path)))
    elif path.is_file() and path.suffix.lower() == ".zip":
        with TemporaryDirectory(prefix="ratchet-bundle-") as folder:
            with disk_full_as_error(Path(folder), _DISK_ADVICE):
                _unpack(path, Path(folder))
            yield _read(_root(path, Path(folder)), absolute(str(path)))
    elif path.exists():
        raise IncompatibleData(f"{path} is no bundle: give a folder with {FILE} in it, or a .zip of one.")
    else:
        raise IncompatibleData(f"There is no file or folder {path}. Correct the path of the bundle.")


def _read(folder: Path, origin: str) -> Bundle:
    file = _file(_inside(folder, FILE, FILE))
    data = _inside(folder, file.data, "data")
    metric = None if file.metric is None else _inside(folder, file.metric, "metric")
    if data.suffix.lower() not in SUFFIXES:
        raise _wrong(f"data is a file of the kind {data.suffix or 'without ending'}; give one of {', '.join(SUFFIXES)}")
    verifier, reward = _checking(file)
    return Bundle(file, of_table(table([data]), file.columns, origin), verifier, reward, metric)


def _file(path: Path) -> BundleFile:
    if path.stat().st_size > _MOST_FILE_BYTES:
        raise _wrong(f"it is longer than {_MOST_FILE_BYTES >> 20} MB")
    _refuse_aliases(path)
    try:
        # By way of JSON, so that lists are taken for tuples, as in the settings of a run.
        file = BundleFile.model_validate_json(_as_json(read_file(path)))
    except ValidationError as error:
        raise _wrong(" ".join(dict.fromkeys(_sentence(dict(one)) for one in error.errors(include_url=False)))) from None
    if file.reference_solution is not None and GROUND_TRUTH not in file.reference_solution:
        raise _wrong(f"reference_solution does not hold {GROUND_TRUTH}, in place of which each row's own is put")
    if file.metric is None and file.verifier is None:
        raise _wrong("it says nothing of how answers are checked: give verifier: {kind: ...} or metric: metric.py")
    return file


def _refuse_aliases(path: Path) -> None:
    """Refuse YAML's references: a few lines of them expand to more text than any memory holds."""
    try:
        has_any = any(
            isinstance(token, yaml.AliasToken)
            for token in yaml.scan(path.read_text(encoding="utf-8-sig"), SettingsLoader)
        )
    except (yaml.YAMLError, ValueError, RecursionError):
        return  # reading it says what is wrong
    if has_any:
        raise _wrong("it has YAML references (*name). Write out the text they refer to")


def _as_json(content: Mapping[str, Any]) -> str:
    try:
        return json.dumps(content)
    except (TypeError, ValueError, RecursionError):
        raise _wrong("it holds a value that is neither text, number, true/false, list nor mapping") from None


def _sentence(finding: dict[str, Any]) -> str:
    """What is wrong with one key; a text may be a question or an answer and is not shown."""
    key = ".".join(f"entry {part + 1}" if isinstance(part, int) else str(part) for part in finding["loc"])
    known = BundleFile.model_fields if len(finding["loc"]) == 1 else BundleHarness.model_fields
    if finding["type"] == "extra_forbidden":
        return f"{key} is no key of it; the keys are {', '.join(known)}."
    if finding["type"] == "missing":
        return f"{key} is missing."
    value = finding["input"]
    shown = f" is {value}" if isinstance(value, bool | int | float) else ""
    return f"{key}{shown}: {finding['msg'][:1].lower()}{finding['msg'][1:]}."


def _checking(file: BundleFile) -> tuple[VerifierSettings, RewardSettings]:
    """The verifier of a bundle. Name and source of its own metric are left to whoever stores it."""
    given = dict(file.verifier or {})
    if file.metric is not None:
        given.setdefault("kind", "custom")
        if given["kind"] != "custom" or given.keys() & {"metric", "version", "source"}:
            raise _wrong(
                "verifier and metric do not go together: with metric, leave verifier out or give it as kind custom "
                "with limit_seconds or read alone"
            )
    try:
        config = build({"verifier": given, "reward": file.reward})
    except InvalidSetting as error:
        raise InvalidSetting(f"{FILE}: {error}", error.field) from error
    if config.verifier is None:
        raise _wrong("verifier has no kind")
    return config.verifier, config.reward


def _inside(folder: Path, given: str, key: str) -> Path:
    """A file of a bundle by its path in it.

    Raises:
        InvalidSetting: the path leads out of the folder, by itself or by a link.
        IncompatibleData: there is no such file.
    """
    path = PurePosixPath(given)
    if path.is_absolute() or ".." in path.parts or "\\" in given or "\0" in given:
        raise _wrong(f"{key} is a path out of the bundle. Write it relative to {FILE}, without ../ in it")
    try:
        file = (folder / path).resolve()
        root = folder.resolve()
    except (OSError, RuntimeError) as error:
        raise IncompatibleData(f"The file that {key} names cannot be used: links that lead nowhere.") from error
    if not file.is_relative_to(root):
        raise _wrong(f"{key} is a link that leads out of the bundle. Put the file itself there")
    if not file.is_file():
        raise IncompatibleData(f"The bundle {folder} has no file {path}" + ("." if key == FILE else f" ({key})."))
    return file


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive of files; links, paths that lead out and too much of anything are refused."""
    try:
        _unpack_all(archive, folder)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise IncompatibleData(f"{archive} holds two files of one name. Pack the folder again.") from error
    except (*_BAD_ZIP, OSError) as error:
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            raise
        raise IncompatibleData(
            f"{archive} cannot be unpacked ({type(error).__name__}): it is damaged, encrypted or no .zip. Pack the "
            "folder again."
        ) from error


def _unpack_all(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        members = opened.infolist()
        if len(members) > MOST_FILES:
            raise IncompatibleData(f"{archive} holds {len(members):,} files; a bundle has {MOST_FILES:,} at most.")
        left = MOST_UNPACKED_BYTES
        for number, member in enumerate(members, start=1):
            target = folder / _path_of(archive, number, member)
            if member.is_dir():
                make_folder(target)
            else:
                left -= _unpacked(archive, opened, member, target, left)


def _path_of(archive: Path, number: int, member: zipfile.ZipInfo) -> PurePosixPath:
    path = PurePosixPath(member.filename)
    leads_out = path.is_absolute() or ".." in path.parts or "\\" in member.filename
    if leads_out or not path.parts:
        raise IncompatibleData(f"Entry {number} of {archive} has a path that leads out of the bundle. Pack it again.")
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise IncompatibleData(f"Entry {number} of {archive} is a link or a device. Put the file itself in its place.")
    return path


def _unpacked(archive: Path, opened: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, most_bytes: int) -> int:
    """Write a file of an archive and return how long it is, by what is written and not by what the archive claims."""
    make_folder(target.parent)
    count = 0
    with opened.open(member) as packed, target.open("xb") as file:
        while chunk := packed.read(_CHUNK_BYTES):
            count += len(chunk)
            if count > most_bytes:
                raise IncompatibleData(
                    f"{archive} unpacks to more than {MOST_UNPACKED_BYTES >> 20} MB. Give a folder instead."
                )
            file.write(chunk)
    return count


def _root(archive: Path, folder: Path) -> Path:
    """The path of benchmark.yaml: at the top, or in the one folder that was packed."""
    if (folder / FILE).is_file():
        return folder
    inner = [one for one in folder.iterdir() if one.is_dir() and one.name != _NOT_QUESTIONS]
    if len(inner) == 1 and (inner[0] / FILE).is_file():
        return inner[0]
    raise IncompatibleData(f"{archive} has no {FILE} at its top or in the one folder that it holds.")


def _wrong(what: str) -> InvalidSetting:
    return InvalidSetting(f"{FILE} cannot be used: {what.rstrip('.')}.")
