"""What an evaluation is and what it found: one model on one benchmark. Plain data, written to files and read back.

Answers and questions are the user's own texts: no error and no log is made of them. How scores are computed is in
``scores.py``, how two evaluations are compared in ``comparison.py``.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ratchet.evaluation.benchmark import ACCURACY, ANSWERED, FORMAT
from ratchet.run.records import Outcome, Record

SubjectKind = Literal["base", "adapter", "merged", "endpoint"]
# What became of an answer, as people sort failures. "partly" is graded above 0 and below 1. A refusal is an answer
# that says it will not answer; "wrong_format" is any other that the verifier could not read.
AnswerGroup = Literal["right", "partly", "wrong", "wrong_format", "cut_off", "refusal", "failed"]
ANSWER_GROUPS: tuple[AnswerGroup, ...] = (
    "right",
    "partly",
    "wrong",
    "wrong_format",
    "cut_off",
    "refusal",
    "failed",
)
# Settings, by key, that an evaluation may have otherwise than its benchmark and its model's run; no other plays a part.
CHANGEABLE = (
    "model",
    "revision",
    "quantization",
    "device",
    "window_tokens",
    "seed",
    "prompt.system_prompt",
    "prompt.few_shot_examples",
    "prompt.template_options",
    "verifier.read",
    "rl.max_answer_tokens",
    "rl.temperature",
    "rl.top_p",
    "rl.top_k",
    "rl.sampling_tokens",
    "sampler.backend",
    "sampler.gpu_memory_share",
    "limits.stall_minutes",
)
# Parts of a set-up that evaluations of earlier versions have under another name.
_RENAMED_PARTS = {"Worked examples": "Few-shot examples", "Longest answer": "Max answer tokens"}
Setup = Annotated[
    dict[str, Any], BeforeValidator(lambda parts: {_RENAMED_PARTS.get(name, name): parts[name] for name in parts})
]
IntervalMethod = Literal["wilson", "bootstrap"]


class GivenAnswer(Record):
    """One answer to a question, graded.

    ``seconds`` is its latency: of an endpoint from the request to the last byte, otherwise from when the batch began
    to when the answer was finished. ``tokens`` counts the answer's, None where an endpoint does not say.
    """

    text: str
    correctness: float
    reward: float
    format: float
    parts: dict[str, float] = Field(default_factory=dict)
    outcome: Outcome
    failure: str | None = None
    tokens: int | None
    seconds: float
    group: AnswerGroup

    def score(self, column: str) -> float:
        """An answer's value in a score column, 0..1: one of every benchmark's, or a part of the verifier."""
        if column == ACCURACY:
            return self.correctness
        if column == FORMAT:
            return self.format
        if column == ANSWERED:
            return float(self.outcome != "cut_off" and bool(self.text.strip()))
        return self.parts.get(column, 0.0)


class QuestionResult(Record):
    """One question with its answers. ``question`` is its number in the benchmark, from 1 on."""

    question: int
    prompt: list[dict[str, str]]  # messages, role and content
    ground_truth: str
    difficulty: float | str | None = None
    prompt_tokens: int | None = None
    answers: list[GivenAnswer]

    @property
    def correctness(self) -> float:
        """Mean correctness of the answers, 0..1."""
        return self.score(ACCURACY)

    def score(self, column: str) -> float:
        """Mean of a score column over the answers, 0..1; a part that an answer lacks counts as 0."""
        return sum(answer.score(column) for answer in self.answers) / len(self.answers)


class Score(Record):
    """A score column over some questions, 0..1, with its 95 % interval."""

    name: str
    value: float
    low: float
    high: float
    method: IntervalMethod
    of: int


class BandScore(Record):
    """The accuracy on the questions of one band of difficulty, easiest band first where there is an order."""

    band: str
    score: Score


class Cost(Record):
    """What an endpoint's tokens cost by the price that was given."""

    prompt_tokens: int
    answer_tokens: int
    amount: float | None
    currency: str


class EvaluationScores(Record):
    """What an evaluation found.

    Attributes:
        columns: One score a column, the benchmark's main one first.
        pass_at: pass@k for some k, where several answers were sampled a question; name "pass@4".
        bands: By the column difficulty; empty where the questions have none.
        groups: Answers by what became of them.
        outcomes: Answers by outcome; unparseable apart from wrong.
        failures: Failed answers by kind.
        failed_share: Share of the answers given to the verifier on which it failed.
        could_be: The main column's lowest and highest value if every failed answer were wrong, or right.
        withheld: Why no verdict is given on this evaluation, in a sentence; "" where one is.
        warnings: Whole sentences worth reading beside the scores.
        seconds: Wall-clock seconds that answering took.
    """

    columns: list[Score]
    pass_at: list[Score] = Field(default_factory=list)
    bands: list[BandScore] = Field(default_factory=list)
    groups: dict[AnswerGroup, int]
    outcomes: dict[Outcome, int]
    failures: dict[str, int] = Field(default_factory=dict)
    failed_share: float = 0.0
    could_be: tuple[float, float] | None = None
    withheld: str = ""
    warnings: list[str] = Field(default_factory=list)
    questions: int
    answers: int
    mean_tokens: float | None = None
    median_seconds: float = 0.0
    seconds: float = 0.0
    cost: Cost | None = None

    def column(self, name: str) -> Score | None:
        """A column's score, None where there is no such column."""
        return next((score for score in self.columns if score.name == name), None)


class Subject(Record):
    """What was evaluated. ``name`` is how people call it; ``sha256`` is an adapter's checksum, "" for none.

    ``identity`` is the commit or content hash of the base model; of an endpoint its address.
    """

    kind: SubjectKind
    name: str
    model: str
    revision: str = ""
    identity: str = ""
    run: str | None = None
    sha256: str = ""


class EvaluationSpec(Record):
    """What an evaluation is to do, fixed when it is made; the settings of its model are its job's ``RunConfig``.

    ``setup`` holds what must be the same for two evaluations to be comparable, part by part under a name people know:
    system prompt, few-shot examples, verifier, format, max answer tokens, answers per question, sampling, and where
    they play a part quantization and an endpoint's extra fields. ``endpoint`` are the ``EndpointSettings``, None for a
    model on this machine. ``only`` are the questions of one that takes a part of the benchmark, such as a loop's
    selection half; None: all. ``withheld`` says why its scores allow no verdict, whatever they are, "" where they may;
    ``notes`` are sentences to read beside them.
    """

    name: str = ""
    benchmark: str
    benchmark_hash: str
    questions_sha256: str
    questions: int
    score_columns: tuple[str, ...]
    subject: Subject
    setup: Setup
    answers_per_question: int
    endpoint: dict[str, Any] | None = None
    only: tuple[int, ...] | None = None
    withheld: str = ""
    notes: tuple[str, ...] = ()

    @property
    def main_column(self) -> str:
        """The column that comparisons and loops go by."""
        return self.score_columns[0]


class Evaluation(Record):
    """One evaluation as it is shown and compared; ``setup`` as in ``EvaluationSpec``."""

    id: str
    name: str = ""
    project: str = ""
    benchmark: str
    benchmark_hash: str
    questions_sha256: str
    main_column: str
    subject: Subject
    setup: Setup
    answers_per_question: int
    status: str
    created_at: str
    ended_at: str | None = None
    message: str = ""
    scores: EvaluationScores | None = None
    folder: str
