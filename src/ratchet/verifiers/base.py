"""What a verifier is: a function from (completion text, prompt) to a Grade, and a check of ground truths.

A kind of verifier is one file: its settings, the verifier, its metrics, usual format bonus, probe answers and an
example, gathered in a ``Kind``. ``kinds.py`` is the table of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

from ratchet.verifiers.reading import part_to_read
from ratchet.verifiers.settings import FormatKind, KindSettings

# What became of one completion. Only "graded" speaks of the policy alone; the others are counted apart because
# they point at the prompt, the token limit or the verifier. Verifiers return "graded", "unparseable" or "failed";
# the engine adds "cut_off" without asking the verifier.
Outcome = Literal["graded", "unparseable", "cut_off", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("graded", "unparseable", "cut_off", "failed")


class Message(TypedDict):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Prompt:
    """What the policy is given, and what a right answer must contain.

    ``id`` is the row's number in its source, counted from 1, and is how errors and logs name it. ``messages``
    ends with a user turn. ``extras`` holds the per-row columns that some verifiers read. ``demonstration`` is a whole
    answer to learn from, of a preference pair the chosen one; ``rejected`` the other one of the pair.
    """

    id: int
    messages: tuple[Message, ...]
    ground_truth: str
    extras: Mapping[str, Any] = field(default_factory=dict)
    demonstration: str | None = None
    rejected: str | None = None


@dataclass(frozen=True)
class Grade:
    """The verifier's finding on one completion.

    ``correctness`` lies in [0, 1] and is 0 unless the outcome is "graded". ``parts`` holds further numbers of the
    verifier (each 0..1), reported but not trained on. ``failure`` names the kind when the outcome is "failed".
    ``score`` (0..1) is what is trained on where that is not the correctness: a composite pays a mean of several
    verifiers, and accuracy counts one of them.
    """

    correctness: float
    outcome: Outcome
    parts: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None
    score: float | None = None


class Verifier(Protocol):
    """Checks completions. Holds no state that changes a grade and never sees the policy."""

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Say in a few words why no completion could be graded against this ground truth, or None if one could.

        The words never hold the ground truth itself.
        """

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Grade any text at all, the empty one included, without raising. Safe to call from any thread.

        Raises:
            SandboxUnavailable: the machine cannot run what the verifier runs; nothing is said of the answer.
        """

    def close(self) -> None:
        """Release worker processes, if there are any. The verifier is not used afterwards."""


@runtime_checkable
class Tried(Protocol):
    """A verifier that is not Ratchet's own, and is tried before a model is loaded for it."""

    def load(self) -> None:
        """See that it can be loaded, whatever it then makes of any row. Raises like ``trial``."""

    def trial(self, prompt: Prompt) -> str:
        """Grade a ground truth against itself; return a note for the run's record, which may be empty.

        Raises:
            MetricRefused: it cannot be used, in one sentence.
            SandboxUnavailable: this machine cannot run it.
        """


@dataclass(frozen=True)
class Building:
    """What a verifier is built with besides its settings.

    ``prefer_answer_tag``: whether to read inside the only answer tag when there is one. ``function`` is the user's
    own, for the kind ``python``.
    """

    prefer_answer_tag: bool = False
    function: Callable[..., Any] | None = None


class PartVerifier:
    """What verifiers have in common that read one part of an answer and hold no process.

    Args:
        settings: Say which part.
        building: Whether the only answer tag within it is preferred; some kinds always do.
    """

    always_prefers_answer_tag = False

    def __init__(self, settings: KindSettings, building: Building) -> None:
        self._read = settings.read
        self._prefer_answer_tag = building.prefer_answer_tag or self.always_prefers_answer_tag

    def part(self, text: str) -> str | None:
        """The part of an answer that is checked, None if the answer lacks it."""
        return part_to_read(text, self._read, prefer_answer_tag=self._prefer_answer_tag)

    def close(self) -> None:
        """Release nothing."""


class NoVerifier:
    """Refuses no row, since no answer will be graded against it. Whether a run has a verifier its settings say."""

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Find nothing wrong."""
        return None

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Never called: unknown is not wrong.

        Raises:
            ValueError: it was called.
        """
        raise ValueError("this run has no verifier, so nothing can be graded")

    def close(self) -> None:
        """Release nothing."""


@dataclass(frozen=True)
class KnownAnswers:
    """Answers to one prompt whose verdict is known. Everything may be missing.

    ``variants`` are further ways to write the right answer, ``mistakes`` further wrong ones, both by the probe's name.
    ``empty_forms`` have the asked-for form and nothing in it. ``reads_all``: whether words around a right answer make
    it wrong. ``left_out`` says why a probe was not made.
    """

    right: str | None = None
    wrong: str | None = None
    variants: Mapping[str, str] = field(default_factory=dict)
    mistakes: Mapping[str, str] = field(default_factory=dict)
    empty_forms: tuple[str, ...] = ()
    reads_all: bool = True
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """A row with a right and a wrong answer, on which the tests of all kinds run."""

    settings: KindSettings
    ground_truth: str
    right: str
    wrong: str
    extras: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> Prompt:
        """The row as a verifier sees it."""
        return Prompt(1, ({"role": "user", "content": "?"},), self.ground_truth, self.extras)


@dataclass(frozen=True)
class Kind:
    """One kind of verifier.

    Args:
        settings: Its class of settings; the Literal of ``kind`` is its name.
        build: Makes the verifier of those settings.
        metrics: What each of its numbers means, by id, as settings, records and the API use them. The first one is
            correctness unless the settings name another. Each lies in 0..1 for one answer, so that it can be a reward.
        example: Makes what the tests of all kinds run on; not made at import, where pydantic would build every kind.
        known_answers: Of the settings, a prompt, and the ground truths of other prompts to make wrong answers of: the
            answers whose verdict is known. What a kind leaves open is not claimed.
        usual_format: The format bonus that goes with it where the user chooses none.
    """

    settings: type[KindSettings]
    build: Callable[[Any, Building], Verifier]
    metrics: Mapping[str, str]
    example: Callable[[], Example] | None
    known_answers: Callable[[Any, Prompt, Sequence[str]], KnownAnswers]
    usual_format: FormatKind = "off"

    @property
    def name(self) -> str:
        """What settings call it."""
        return str(self.settings.model_fields["kind"].default)
