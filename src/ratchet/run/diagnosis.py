"""What is wrong with sampled answers, and what ran out of memory: counts in; cause, evidence and remedy out, as data.

The report card, the trial, the rounds of a run, its end and ``health.py``, which adds what curves show, take their
advice from here; they only phrase it. Numbers and names of settings, never the text of a prompt or an answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ratchet.errors import Stage
from ratchet.run.records import Outcome, Record, RoundRecord
from ratchet.run.report_card import PARSE_FAILURE_WARNING, TOO_EASY, TOO_HARD

DiagnosisCode = Literal[
    "reward_hacking",
    "entropy_collapse",
    "length_creep",
    "ratio_blow_up",
    "dead_signal",
    "mostly_cut_off",
    "parse_failures",
    "verifier_failures",
    "too_hard",
    "too_easy",
    "validation_collapse",
    "overfitting",
]
# Of the answers that the verifier was given: where it fails on more, a run ends and an evaluation has no verdict.
FAILURE_LIMIT = 0.1
# Above this share of answers that were cut off, the score says more of the limit than of the model.
CUT_OFF_WARNING = 0.1

_HARDER = "Choose harder prompts: there is nothing to learn on these."
_EASIER = (
    "Train on demonstrations first (SFT), start from a model that sometimes succeeds, show few-shot examples, give "
    "partial credit, or choose easier prompts."
)
_MORE_VARIED = "Raise Temperature or Answers per prompt, so that answers differ, or choose other prompts."
_HANDLE_ANY_TEXT = "Make it handle any text; the empty answer is an answer too."
_PLACE_OF_THE_ANSWER = (
    "In the system prompt, tell the model where to put its answer, show few-shot examples, or check what the verifier "
    "reads (verifier.read)."
)
_LONGER = "Raise Max answer tokens, or in the system prompt ask for shorter answers."
_CHECK_VERIFIER = "Check the verifier."


class CurveEnds(Record):
    """A curve that speaks for a diagnosis, with its first and last value over the rounds that were compared."""

    name: str
    first_round: int
    last_round: int
    first: float
    last: float


class Diagnosis(Record):
    """What is wrong: the cause as a title, what shows it, what to do. Evidence and remedy are whole sentences."""

    code: DiagnosisCode
    title: str
    evidence: str
    remedy: str
    curves: tuple[CurveEnds, ...] = ()

    @property
    def sentence(self) -> str:
        """All of it in a row."""
        return f"{self.title}: {self.evidence} {self.remedy}"

    @property
    def advice(self) -> str:
        """Evidence and remedy, where the title would say the same again."""
        return f"{self.evidence} {self.remedy}"


@dataclass(frozen=True)
class Counts:
    """What became of sampled answers; ``accuracy`` and ``reward`` are means over all of them."""

    outcomes: Mapping[Outcome, int]
    accuracy: float
    reward: float
    groups: int
    informative_groups: int
    failures: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_rounds(cls, rounds: Sequence[RoundRecord]) -> "Counts":
        """Sums over rounds; the means are over rounds."""
        return cls(
            {outcome: sum(record.outcomes[outcome] for record in rounds) for outcome in rounds[0].outcomes},
            sum(record.accuracy or 0.0 for record in rounds) / len(rounds),
            sum(record.reward or 0.0 for record in rounds) / len(rounds),
            sum(record.groups for record in rounds),
            sum(record.informative_groups for record in rounds),
        )

    @property
    def answers(self) -> int:
        """How many answers there are."""
        return sum(self.outcomes.values())

    @property
    def given(self) -> int:
        """How many answers the verifier was given: those that were not cut off."""
        return self.answers - self.outcomes.get("cut_off", 0)

    def share(self, outcome: Outcome) -> float:
        """Share of all answers with that outcome."""
        return self.outcomes.get(outcome, 0) / self.answers


def of_answers(counts: Counts, max_answer_tokens: int) -> Iterator[Diagnosis]:
    """Diagnoses of a starting model's answers, the most pressing first."""
    failed, cut_off, unparseable = (counts.outcomes.get(one, 0) for one in ("failed", "cut_off", "unparseable"))
    if failed:
        yield verifier_failures(counts.failures, counts.given)
    if counts.share("cut_off") > CUT_OFF_WARNING:
        yield Diagnosis(
            code="mostly_cut_off",
            title="Many answers are cut off",
            evidence=f"{cut_off} of {counts.answers} answers were cut off at {max_answer_tokens} tokens and score 0.",
            remedy=_LONGER,
        )
    if counts.share("unparseable") > PARSE_FAILURE_WARNING:
        yield unparseable_answers(unparseable, counts.answers)
    if not counts.informative_groups:
        yield no_signal_among(counts)
    elif counts.accuracy < TOO_HARD:
        yield _of_difficulty("too_hard", "The prompts are too hard", counts, f"under {TOO_HARD:.0%}", _EASIER)
    elif counts.accuracy > TOO_EASY:
        yield _of_difficulty("too_easy", "The prompts are too easy", counts, f"over {TOO_EASY:.0%}", _HARDER)


def _of_difficulty(code: DiagnosisCode, title: str, counts: Counts, limit: str, remedy: str) -> Diagnosis:
    evidence = f"{counts.accuracy:.0%} of the answers were right, {limit}: there is little to learn."
    return Diagnosis(code=code, title=title, evidence=evidence, remedy=remedy)


def verifier_failures(
    failures: Mapping[str, int], given: int, verifier: str = "The verifier", where: str = "answers"
) -> Diagnosis:
    """Diagnosis of a verifier that failed on answers. Above ``FAILURE_LIMIT`` of those it was given a run ends."""
    failed = sum(failures.values())
    kinds = ", ".join(f"{count} by {kind}" for kind, count in sorted(failures.items()))
    limit = f", more than {FAILURE_LIMIT:.0%}, which ends a run" if ends_run(failures, given) else ""
    return Diagnosis(
        code="verifier_failures",
        title=f"{verifier} fails",
        evidence=f"{verifier} failed on {failed} of {given} {where} ({kinds}){limit}.",
        remedy=_HANDLE_ANY_TEXT,
    )


def ends_run(failures: Mapping[str, int], given: int) -> bool:
    """Whether the verifier failed on more of the answers it was given than a run allows."""
    return sum(failures.values()) > FAILURE_LIMIT * given


def unparseable_answers(hits: int, total: int, where: str = "answers") -> Diagnosis:
    """Diagnosis of answers in which the verifier finds nothing to grade."""
    return Diagnosis(
        code="parse_failures",
        title="Many answers are unparseable",
        evidence=f"{hits} of {total} {where} ({hits / total:.1%}) were unparseable and score 0; above "
        f"{PARSE_FAILURE_WARNING:.0%} the score measures more than the policy.",
        remedy=_PLACE_OF_THE_ANSWER,
    )


def cut_off_answers(hits: int, total: int, where: str, max_answer_tokens: int) -> Diagnosis:
    """Diagnosis of rounds in which most answers were cut off."""
    return Diagnosis(
        code="mostly_cut_off",
        title="Most answers are cut off",
        evidence=f"{hits} of {total} {where} met the limit of {max_answer_tokens} tokens before they ended, and "
        "score 0.",
        remedy=_LONGER,
    )


def has_no_signal(records: Sequence[RoundRecord]) -> bool:
    """Whether no round so far had an answer to learn from. False for rounds that do not compare answers."""
    sampled = [record for record in records if record.groups]
    return bool(sampled) and not any(record.informative_groups for record in sampled)


def no_signal_sentence(rounds: Sequence[RoundRecord]) -> str:
    """Why no group of these rounds had a signal, and what to do about it."""
    counts = Counts.of_rounds(rounds)
    cause, remedy = why_no_signal(counts)
    return (
        f"There was no learning signal in rounds {rounds[0].round} to {rounds[-1].round}: {cause} "
        f"({outcome_counts_in_words(counts)}). {remedy}"
    )


def no_signal_among(counts: Counts) -> Diagnosis:
    """Diagnosis of prompts of which none had answers that scored differently."""
    cause, remedy = why_no_signal(counts)
    return Diagnosis(
        code="dead_signal",
        title=f"No learning signal, {cause}",
        evidence=f"None of {counts.groups} prompts had answers that scored differently: {cause}, "
        f"{counts.accuracy:.0%} of them right.",
        remedy=remedy,
    )


def outcome_counts_in_words(counts: Counts) -> str:
    """Such as "9 graded, 3 cut off of 12 answers; mean score 0.25"."""
    counted = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts.outcomes.items() if number)
    return f"{counted} of {counts.answers} answers; mean score {counts.reward:.2f}"


def why_no_signal(counts: Counts) -> tuple[str, str]:
    """Cause and remedy of answers that scored alike, by what became of most of them."""
    common = max(counts.outcomes, key=lambda outcome: counts.outcomes[outcome])
    if common == "cut_off":
        return "most answers were cut off", _LONGER
    if common == "unparseable":
        return "most answers were unparseable", _PLACE_OF_THE_ANSWER
    if common == "failed":
        return "the verifier failed on most answers", _CHECK_VERIFIER
    if counts.accuracy == 1.0:
        return "every answer was right", _HARDER
    if counts.accuracy == 0.0:
        return "all answers were wrong", _EASIER
    return f"all answers to a prompt scored alike, {counts.accuracy:.0%} of them right", _MORE_VARIED


def why_all_alike(counts: Counts) -> tuple[str, str]:
    """Cause and remedy where every answer to every prompt scored the same."""
    if counts.share("graded") > 0.5 and 0 < counts.accuracy < 1:
        return "every answer is partly right", "Give credit in finer steps, or check the verifier."
    return why_no_signal(counts)


def less_memory(stage: Stage, *, micro_batch: bool = True, gradient_checkpointing: bool = True) -> str:
    """What to lower where memory ran out, or is expected to, in a stage of a run.

    Args:
        stage: What the run was doing.
        micro_batch: Whether the micro batch can be smaller: one answer with its prompt is never split.
        gradient_checkpointing: Whether it is off, so that it can be turned on.
    """
    shorter = "a lower Max answer tokens"
    choices = {
        "sampling": ["fewer Answers per prompt", shorter, "a smaller Sampling budget"],
        "validation": [shorter, "a smaller Sampling budget"],
        "update": [
            *(["a smaller Micro batch"] if micro_batch else []),
            *(["Gradient checkpointing on"] if gradient_checkpointing else []),
            shorter,
        ],
        "loading": ["a smaller model", "Quantization", "a lower LoRA rank"],
    }[stage]
    return f"Choose {', '.join(choices)}, or a device with more memory."
