"""Verifier: the scorer that a task of the package reasoning-gym brings along.

Each problem carries the entry that its task made, so nothing is made again to grade an answer. The scorer is given the
text inside the only answer tag where there is one, else the whole part that is read. It returns 0 to 1; many tasks give
part of it for an answer that is close.

Tasks whose scorer would run the answer's text as Python code (``eval``, sympy's ``parse_expr``) are refused: what a
policy writes must not run in this process, and some of it (``9**9**9**9``) would never end. An answer on which a scorer
raises is unparseable: that the task's own solution scores 1 is checked before, so it is the answer that cannot be read.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

from ratchet.verifiers.base import Example, Grade, Kind, Prompt
from ratchet.verifiers.known_answers import as_given
from ratchet.verifiers.reading import part_to_read
from ratchet.verifiers.settings import KindSettings, kind_setting

EXTRA = "reasoning_gym"  # the key of a prompt's extras that holds its task and entry
# Found by reading the scorers of reasoning-gym 0.1.25; a test reads those of the installed version.
RUN_ANSWERS = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
_MOST_CHARACTERS = 20_000  # of an answer; some scorers take time that grows with its square


class ReasoningGymVerifier(KindSettings):
    """The task's own scorer, for prompts of the source reasoning_gym."""

    kind: Literal["reasoning_gym"] = kind_setting(
        "reasoning_gym", "the task's own scorer, for prompts of the source reasoning_gym."
    )


class ReasoningGym:
    """Grades with the score that the task of each prompt gives."""

    def __init__(self, settings: ReasoningGymVerifier) -> None:
        self._read = settings.read

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse a row that no task made, or whose own solution its task does not take for right."""
        made = prompt.extras.get(EXTRA)
        if not isinstance(made, Mapping):
            return "was not made by a task of reasoning-gym, which alone can score its answers"
        if made["task"] in RUN_ANSWERS:
            return f"belongs to the task {made['task']}, whose scorer would run answers as Python code: choose another"
        if made["entry"]["answer"] is None:
            return None  # any valid solution is right, and the task names none
        score = _score(made, made["entry"]["answer"])
        return None if score == 1 else "has a solution that its own task does not score as right"

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Let the task score the answer."""
        part = part_to_read(text, self._read, prefer_answer_tag=True)
        answer = None if part is None else part.strip()
        if not answer or len(answer) > _MOST_CHARACTERS:
            return Grade(correctness=0.0, outcome="unparseable")
        score = _score(prompt.extras[EXTRA], answer)
        if score is None:
            return Grade(correctness=0.0, outcome="unparseable")
        return Grade(correctness=score, outcome="graded")

    def close(self) -> None:
        """Release nothing: there are no processes."""


def _score(made: Mapping[str, Any], answer: str) -> float | None:
    try:
        score = float(_scorer(made["task"])(answer, made["entry"]))
    except Exception:  # a scorer that was given what it cannot read raises whatever it happens to meet
        return None
    return score if 0 <= score <= 1 else None


@cache
def _scorer(task: str) -> Callable[[str, Mapping[str, Any]], float]:
    if task in RUN_ANSWERS:
        raise ValueError(f"the scorer of {task} runs answers as code")
    from reasoning_gym import get_score_answer_fn

    scorer: Callable[[str, Mapping[str, Any]], float] = get_score_answer_fn(task)
    return scorer


KIND = Kind(
    settings=ReasoningGymVerifier,
    build=lambda settings, building: ReasoningGym(settings),
    metrics={"score": "What the task's own scorer gives."},
    example=Example(
        ReasoningGymVerifier(),
        "7",
        right="<answer>7</answer>",
        wrong="",
        extras={EXTRA: {"task": "chain_sum", "entry": {"question": "3 + 4 =", "answer": "7", "metadata": {}}}},
    ),
    known_answers=as_given,
)
