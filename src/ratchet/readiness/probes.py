"""Adversarial probes: answers whose correct verdict is known, to be tried before a model learns to exploit one.

Some must fail: nothing, the prompt again, every guess at once, the ground truth in a sentence that denies it, a wrong
answer however often. Others must pass: the right answer, also where it is written a little differently in ways that
the kind ignores by its definition. What a kind leaves open is not tried. Each kind's own file says which answers are
right; here they are put where the run's verifier reads them, graded and counted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.config import FormatKind
from ratchet.run.records import Grade, Prompt
from ratchet.run.report_card import PASS_MARK, ProbeResult, Probes
from ratchet.verifiers import correctness_part, known_answers
from ratchet.verifiers.base import KnownAnswers

# Every name with what is tried, in the order in which they are shown.
WHAT = {
    "empty": "an empty answer",
    "blank": "whitespace only",
    "echo": "the prompt repeated",
    "form_only": "the requested format with nothing in it",
    "all_labels": "every label at once",
    "all_tools": "calls to every tool at once",
    "many_boxes": "many boxed answers, the correct one among them",
    "many_answers": "many answers, the correct one among them",
    "beside_another": "the correct answer next to another one",
    "negated": "the correct answer in a sentence that denies it",
    "wrong": "a wrong answer",
    "wrong_in_form": "a wrong answer in the requested format",
    "wrong_arguments": "the correct call with other arguments",
    "padding": "a wrong answer repeated over and over",
    "filler": "a long text without an answer",
    "leaves_at_once": "a program that ends before its tests",
    "leaves_hard": "a program that ends the process before its tests",
    "right": "the correct answer",
    "in_form": "the correct answer in the requested format",
    "white_space": "whitespace around or inside it",
    "case": "other case",
    "full_stop": "a full stop after it",
    "article": "an article before it",
    "bold": "bold type",
    "dollars": "dollars around it",
    "units": "a unit after it",
    "thousands": "thousands separators",
    "trailing_zero": "a trailing zero decimal",
    "code_fence": "a code fence around it",
    "key_order": "keys in another order",
    "comment": "an extra comment",
}
# Prompts that are tried at most: rates of a percent or two are no aim, and some verifiers take milliseconds an answer.
MOST_PROMPTS = 16
_REPEATED = 50
_FILLER = "Let me think about this step by step, carefully and in order. " * 40
_REASONING = "Some steps."


@dataclass(frozen=True)
class AdversarialAnswer:
    """One probe of one prompt, and whether it has to pass."""

    name: str
    text: str
    must_pass: bool


def run_probes(
    grade: Callable[[str, Prompt], Grade], settings: Any, format_kind: FormatKind, prompts: Sequence[Prompt]
) -> Probes:
    """Try all probes on some prompts and count the verdicts that were not the right ones.

    Args:
        grade: The verifier's.
        settings: The verifier's; ``read``, in a composite that of the part that stands for correctness, says where it
            looks for an answer.
        format_kind: The form that the run asks for.
        prompts: At most ``MOST_PROMPTS`` of them are tried.
    """
    tried = prompts[:MOST_PROMPTS]
    counts: dict[tuple[str, bool], list[int]] = {}
    left_out: dict[str, str] = {}
    for prompt in tried:
        others = [other.ground_truth for other in prompts if other is not prompt]
        known = known_answers(settings, prompt, others)
        left_out |= known.left_out
        for probe in probes_of(prompt, known, correctness_part(settings).read, format_kind):
            found = grade(probe.text, prompt)
            count = counts.setdefault((probe.name, probe.must_pass), [0, 0, 0])
            has_passed = found.correctness > PASS_MARK
            count[0] += 1
            count[1] += found.outcome != "failed" and has_passed != probe.must_pass
            count[2] += found.outcome == "failed"
    results = [
        ProbeResult(name=name, what=WHAT[name], must_pass=must_pass, tried=number, wrong=wrong, failed=failed)
        for (name, must_pass), (number, wrong, failed) in counts.items()
    ]
    order = list(WHAT)
    results.sort(key=lambda result: order.index(result.name))
    were_tried = {result.name for result in results}
    if "right" not in were_tried:
        left_out.setdefault("right", "none is known for ground truths such as these")
    missing = {WHAT[name]: reason for name, reason in left_out.items() if name not in were_tried}
    return Probes(prompts=len(tried), results=results, left_out=missing)


def probes_of(
    prompt: Prompt, known: KnownAnswers, read: str | None, format_kind: FormatKind
) -> Iterator[AdversarialAnswer]:
    """Yield the probes for one prompt: its answers where a verifier that reads that part looks for them."""
    for name, text in _failing(prompt, known):
        yield AdversarialAnswer(name, _placed(text, read), must_pass=False)
    for name, text in (("empty", ""), ("blank", " \n\t ")):
        yield AdversarialAnswer(name, text, must_pass=False)
    for text in (*known.empty_forms, "<think></think><answer></answer>"):
        yield AdversarialAnswer("form_only", text, must_pass=False)
    for name, text in _passing(known):
        yield AdversarialAnswer(name, _placed(text, read), must_pass=True)
    if format_kind == "tags" and read != "after_reasoning":
        for name, answer in (("in_form", known.right), ("wrong_in_form", known.wrong)):
            if answer is not None:
                yield AdversarialAnswer(name, _in_tags(answer), must_pass=name == "in_form")


def _failing(prompt: Prompt, known: KnownAnswers) -> Iterator[tuple[str, str]]:
    yield "echo", prompt.messages[-1]["content"] if prompt.messages else ""
    yield "filler", _FILLER
    yield from known.mistakes.items()
    if known.wrong is not None:
        yield "wrong", known.wrong
        yield "padding", "\n".join([known.wrong] * _REPEATED)
    if known.right is not None and known.reads_all:
        yield "negated", f"It is not {known.right.strip()}, that much is certain and beyond any doubt whatsoever."


def _passing(known: KnownAnswers) -> Iterator[tuple[str, str]]:
    if known.right is not None:
        yield "right", known.right
        yield from known.variants.items()


def _placed(text: str, read: str | None) -> str:
    if read == "answer_tag":
        return f"{_REASONING}\n<answer>{text}</answer>"
    return f"{_REASONING}</think>\n{text}" if read == "after_reasoning" else text


def _in_tags(answer: str) -> str:
    return f"<think>{_REASONING}</think>\n<answer>{answer}</answer>"
