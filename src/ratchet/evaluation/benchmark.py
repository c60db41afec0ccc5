"""What a benchmark is: questions that nobody trains on, their prompt, how answers are checked, what is scored.

Plain data. A benchmark never changes once it is there: its content hash names a folder, see
``datasets/benchmark_folders.py``. Where questions come from is in ``datasets/questions.py``.
"""

import hashlib
import json
from typing import Literal

from pydantic import Field

from ratchet.config import RewardSettings, VerifierSettings, WorkedExample
from ratchet.run.records import Record

BenchmarkSource = Literal["dataset", "built_in", "bundle"]
# Of what kind the questions' column difficulty is: numbers that are sorted into bands, words that are bands, or none.
DifficultyKind = Literal["number", "label", "none"]

# Score columns that every benchmark has. Further ones are the verifier's own parts, such as accuracy_strict.
ACCURACY, FORMAT, ANSWERED = "accuracy", "format", "answered"


class Harness(Record):
    """What surrounds a question on its way to the model. None: as the run that made the model asks, see ``usual``."""

    system_prompt: str | None = None
    worked_examples: tuple[WorkedExample, ...] | None = None


class BenchmarkSpec(Record):
    """A benchmark. Everything but ``name``, ``description`` and ``origin`` decides its content hash.

    Attributes:
        name: How it is called here, unique.
        source: Where its questions come from.
        origin: The same in words that find it again: a dataset's NAME@VERSION, a hub id, a folder.
        description: A sentence for people.
        harness: What the benchmark itself fixes of the prompt.
        usual: Default for what ``harness`` leaves open, for models that no run of ours made.
        verifier: How an answer is checked.
        reward: Which form the column format counts.
        max_answer_tokens: None: that of the run, else 512.
        score_columns: What is reported, the main one first: accuracy, format, answered, parts of the verifier.
        questions: How many there are.
        questions_sha256: Of the file of questions.
        difficulty: Of what kind the questions' column difficulty is.
    """

    name: str
    source: BenchmarkSource
    origin: str
    description: str = ""
    harness: Harness = Harness()
    usual: Harness = Harness(system_prompt="", worked_examples=())
    verifier: VerifierSettings
    reward: RewardSettings = RewardSettings()
    max_answer_tokens: int | None = Field(None, ge=16, le=32_768)
    score_columns: tuple[str, ...] = (ACCURACY,)
    questions: int
    questions_sha256: str
    difficulty: DifficultyKind = "none"

    @property
    def content_hash(self) -> str:
        """The hash that identifies the benchmark."""
        parts = self.model_dump(mode="json", exclude={"name", "description", "origin"})
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
