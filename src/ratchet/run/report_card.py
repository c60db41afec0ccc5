"""The verifier report card as plain data: what the starting model's answers and adversarial ones say of a verifier.

Made by ``engine/report_sampling.py``, kept by ``report_store.py``, shown by the surfaces. Holds texts of prompts,
answers and references, which are the user's own; no error and no log is made of them. Knows neither torch nor files.
"""

from typing import Any, Literal

from pydantic import Field

from ratchet.run.records import Outcome, Record

CARD_VERSION = 1
# What could not be read by the verifier is worth a warning from here on: it is no answer of the model, right or wrong.
PARSE_FAILURE_WARNING = 0.03
# Below the first share of right answers a run rarely finds any to learn from, above the second hardly a wrong one.
TOO_HARD, TOO_EASY = 0.05, 0.95
# An answer that scores more than this counts as passed where a probe asks for a verdict.
PASS_MARK = 0.5

# Settings that shape the answers of a report and are no part of its key: a run may have others.
SAMPLED_WITH = ("temperature", "top_p", "top_k", "max_answer_tokens")

Why = Literal[
    "highest score",
    "lowest score",
    "in the form, but wrong",
    "right, but not in the form",
    "parts disagree",
    "unparseable",
    "cut off",
    "failed",
    "longest",
]
How = Literal["flag", "terminal", "python", "api", "shipped"]


class CardSetup(Record):
    """What a report was made with: verifier, reward, data, model, its quantization and prompt make its key.

    So does ``start``, the checksum of the adapter that was on the model, "" for none. The rest may differ in a run.
    """

    verifier: dict[str, Any]
    reward: dict[str, Any]
    data: str
    model: str
    quantization: str
    prompt: dict[str, Any]
    start: str = ""
    model_name: str
    source: str
    training_prompts: int
    temperature: float
    top_p: float
    top_k: int
    max_answer_tokens: int
    seed: int
    device: str
    versions: dict[str, str]

    @property
    def scored_by(self) -> str:
        """The verifier's kind, and in brackets which of its numbers counts or which verifiers it is made of."""
        kind, metric = self.verifier["kind"], self.verifier.get("metric")
        if kind == "composite":
            of = ", ".join(part["verifier"]["kind"] for part in self.verifier.get("parts", ()))
        else:
            version = self.verifier.get("version")
            of = f"{metric or ''}{f'@{version}' if version else ''}"
        return f"{kind} ({of})" if of else str(kind)


class ProbeResult(Record):
    """One kind of adversarial answer, over all prompts it was tried on.

    ``wrong`` counts verdicts that were not the right one: passed where it had to fail, or the other way round.
    ``failed`` counts those on which the verifier failed; they are in neither.
    """

    name: str
    what: str
    must_pass: bool
    tried: int
    wrong: int
    failed: int


class Probes(Record):
    """All probes. ``left_out`` says of some that were not tried, by what they are, why not."""

    prompts: int
    results: list[ProbeResult]
    left_out: dict[str, str] = Field(default_factory=dict)

    @property
    def false_positive_rate(self) -> float | None:
        """Share of adversarial answers that had to fail and passed, None where none was graded."""
        return _rate([result for result in self.results if not result.must_pass])

    @property
    def false_negative_rate(self) -> float | None:
        """Share of right answers, variously written, that did not pass, None where none was graded."""
        return _rate([result for result in self.results if result.must_pass])


def _rate(results: list[ProbeResult]) -> float | None:
    graded = sum(result.tried - result.failed for result in results)
    return sum(result.wrong for result in results) / graded if graded else None


class WorthReading(Record):
    """One sampled answer and why it is worth reading; ``prompt`` is the last turn of the user."""

    why: Why
    prompt_id: int
    prompt: str
    ground_truth: str
    text: str
    reward: float
    correctness: float
    format: float
    parts: dict[str, float]
    outcome: Outcome
    failure: str | None
    tokens: int

    @property
    def tag(self) -> str:
        """What became of it where it was not graded, as far as ``why`` does not say so already."""
        outcome = self.outcome.replace("_", " ")
        if self.outcome == "graded" or outcome == self.why:
            return self.failure or ""
        return f"{outcome} ({self.failure})" if self.failure else outcome

    @property
    def telling_parts(self) -> dict[str, float]:
        """The parts of the grade; none where nothing was graded, since all of them are 0 then."""
        return self.parts if self.outcome == "graded" else {}


class PromptScores(Record):
    """The rewards of one prompt's answers, in the order in which they were drawn."""

    prompt_id: int
    rewards: list[float]
    has_signal: bool


class ReportCard(Record):
    """What was found. Shares are of ``answers``; ``histogram`` counts rewards in ten steps of 0.1, 1 in the last.

    ``right`` answers score 1, ``partly`` right ones something, ``wrong`` ones 0 although they could be graded. Where
    all answers score alike, also after more were drawn, ``refusal`` says in words why a run is refused; else it is "".
    """

    card_version: int = CARD_VERSION
    key: str
    made_at: str
    made_with: CardSetup
    answers: int
    was_extended: bool
    scores: list[PromptScores]
    histogram: list[int]
    mean_reward: float
    accuracy: float
    right: int
    partly: int
    wrong: int
    outcomes: dict[Outcome, int]
    failures: dict[str, int]
    format: float
    parts: dict[str, float]
    mean_tokens: float
    longest_tokens: int
    probes: Probes
    worth_reading: list[WorthReading]
    advice: list[str]
    refusal: str

    @property
    def signal_prompts(self) -> int:
        """How many prompts had answers that scored differently."""
        return sum(score.has_signal for score in self.scores)

    @property
    def signal_share(self) -> float:
        """Share of prompts with a learning signal."""
        return self.signal_prompts / len(self.scores)

    def share(self, outcome: Outcome) -> float:
        """Share of answers with that outcome."""
        return self.outcomes[outcome] / self.answers


class Confirmation(Record):
    """Who has read a report, when, and how that was said; ``override`` is the reason to start although it refuses.

    ``report_sha256`` is of the report file that was read: another report under the same key is not confirmed by it.
    """

    key: str
    by: str
    at: str
    how: How
    override: str = ""
    report_sha256: str = ""
