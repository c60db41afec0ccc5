"""The files of an evaluation in its job's folder: graded questions, a part at a time, and the scores at the end.

    rollouts/part-0001.jsonl   questions with their graded answers, in the order of the benchmark; the owner's alone
    scores.json                what was found, once every question is graded

A part is there whole or not at all, so that a resumed evaluation grades exactly the missing parts.
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from ratchet.errors import Conflict
from ratchet.evaluation.evaluation import Evaluation, EvaluationScores, EvaluationSpec, QuestionResult
from ratchet.files import damage_as_error, disk_full_as_error, write_atomically
from ratchet.run.run_folder import RunFolder

EVALUATION_KEY = "evaluation"  # of the job's record
_PART = re.compile(r"part-([0-9]{4,9})\.jsonl")


class EvaluationFiles:
    """The files of one evaluation. Creating the object touches nothing."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.scores_path = folder.path / "scores.json"

    def spec(self) -> EvaluationSpec:
        """What is evaluated.

        Raises:
            Conflict: the job is no evaluation, or its record is damaged.
        """
        if self.folder.kind != "evaluation":
            raise Conflict(f"Run {self.folder.run_id} is not an evaluation.")
        with damage_as_error(self.folder.run_path):
            return EvaluationSpec.model_validate(self.folder.read_run()[EVALUATION_KEY])

    def scores(self) -> EvaluationScores | None:
        """What was found, None before the end.

        Raises:
            Conflict: the file is damaged.
        """
        if not self.scores_path.is_file():
            return None
        with damage_as_error(self.scores_path):
            return EvaluationScores.model_validate_json(self.scores_path.read_bytes())

    def write_scores(self, scores: EvaluationScores) -> None:
        """Write what was found."""
        write_atomically(self.scores_path, scores.model_dump_json(indent=1).encode())

    def parts_done(self) -> int:
        """How many parts are there, from the first on without a gap."""
        path = self.folder.rollouts_path
        names = [match for file in path.glob("part-*") if (match := _PART.fullmatch(file.name))]
        numbers = {int(match[1]) for match in names}
        return next(number for number in range(len(numbers) + 1) if number + 1 not in numbers)

    def write_part(self, number: int, results: Sequence[QuestionResult]) -> None:
        """Write a part, counted from 1."""
        path = self._part(number)
        with disk_full_as_error(path.parent):
            path.parent.mkdir(mode=0o700, exist_ok=True)
        # A model may write half of a surrogate pair: kept as it is, since what was graded is shown.
        lines = (json.dumps(result.model_dump(mode="python"), ensure_ascii=False) + "\n" for result in results)
        write_atomically(path, "".join(lines).encode("utf-8", "surrogatepass"), private=True)

    def questions(self) -> list[QuestionResult]:
        """Questions graded so far.

        Raises:
            Conflict: a file is damaged.
        """
        return [question for number in range(1, self.parts_done() + 1) for question in self._read(number)]

    def column(self, name: str) -> tuple[float, ...]:
        """Score of each question graded so far in a column; files that stay as they are are read once.

        Raises:
            Conflict: a file is damaged.
        """
        with damage_as_error(self.folder.rollouts_path):
            files = [self._part(number).stat() for number in range(1, self.parts_done() + 1)]
        return _column(self.folder.path, name, tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in files))

    def refuse_torn(self, parts: Sequence[Sequence[int]], answers: int) -> None:
        """Refuse parts that do not hold each of their questions once, in order and with all answers.

        Args:
            parts: The numbers of the questions of each part.
            answers: How many each question has.

        Raises:
            Conflict: a part does not, or cannot be read.
        """
        for number in range(1, self.parts_done() + 1):
            asked = parts[number - 1] if number <= len(parts) else ()
            found = self._read(number)
            if [one.question for one in found] != list(asked) or any(len(one.answers) != answers for one in found):
                raise Conflict(
                    f"{self._part(number)} is damaged: it does not hold its questions. Remove it, then resume: "
                    f"ratchet eval resume {self.folder.run_id}"
                )

    def _read(self, number: int) -> list[QuestionResult]:
        path = self._part(number)
        with damage_as_error(path):
            text = path.read_bytes().decode("utf-8", "surrogatepass")
            return [QuestionResult.model_validate(json.loads(line)) for line in text.split("\n") if line]

    def _part(self, number: int) -> Path:
        return self.folder.rollouts_path / f"part-{number:04d}.jsonl"


@lru_cache(maxsize=256)
def _column(folder: Path, name: str, stamps: tuple[tuple[int, int, int], ...]) -> tuple[float, ...]:
    """A column of the answers in a folder, whose files ``stamps`` tell from changed ones."""
    return tuple(one.score(name) for one in EvaluationFiles(RunFolder(folder)).questions())


def evaluation_of(
    job: str, project: str, spec: EvaluationSpec, scores: EvaluationScores | None, **fields: str | None
) -> Evaluation:
    """An evaluation as it is shown: ``fields`` are status, created_at, ended_at, message and folder."""
    return Evaluation.model_validate(
        {
            **spec.model_dump(exclude={"score_columns", "questions", "endpoint", "only", "withheld", "notes"}),
            **fields,
            "id": job,
            "project": project,
            "main_column": spec.main_column,
            "scores": scores,
        }
    )
