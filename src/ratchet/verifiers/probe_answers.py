r"""What is known of right and wrong answers to a prompt, by kind of verifier: the table behind ``probes``.

A kind says how a right answer is written, which differences in writing it ignores by its definition, and how a wrong
one looks. What a kind leaves open is not claimed: its variants are then not tried. A kind that is not in the table
(a metric or a function of the user's own, a task of another package) has no form that is known beforehand: its right
answer is the ground truth itself. Strings only; nothing is graded here.
"""

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from ratchet.config import CompositeVerifier
from ratchet.run.records import Prompt
from ratchet.verifiers.exact_number import read_exact
from ratchet.verifiers.final_number import last_number
from ratchet.verifiers.math_reading import read_ground_truth

_LEAST_WITH_SEPARATOR = 1000
_LONGEST_PLAIN_NUMBER = 15  # digits; longer ones are not written out with separators here


@dataclass(frozen=True)
class KnownAnswers:
    """Answers to one prompt whose verdict is known. Everything may be missing.

    ``variants`` are further ways to write the right answer, ``mistakes`` further wrong ones, both by the probe's name.
    ``empty_forms`` have the asked-for form and nothing in it. ``reads_all`` tells whether words around a right answer
    make it wrong; ``left_out`` says why a probe was not made.
    """

    right: str | None = None
    wrong: str | None = None
    variants: Mapping[str, str] = field(default_factory=dict)
    mistakes: Mapping[str, str] = field(default_factory=dict)
    empty_forms: tuple[str, ...] = ()
    reads_all: bool = True
    left_out: Mapping[str, str] = field(default_factory=dict)


# Settings of the verifier, the prompt, and the ground truths of other prompts.
Writer = Callable[[Any, Prompt, Sequence[str]], KnownAnswers]

# Terms to which 1 can be added: numbers, letters, roots, fractions and pi, without relations, commas, sets or words.
_SUM_DIFFERS = re.compile(r"(?:[0-9a-z+\-*/^(){} .]|\\(?:sqrt|d?frac|pi|cdot|times|left|right))+")

_LAST_COUNTS = {"negated": "this kind reads the last value, whatever the words around it say"}


def known_answers(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    """Return what is known of answers to a prompt.

    Args:
        settings: The verifier's.
        prompt: With its ground truth.
        others: Ground truths of other prompts, to make wrong answers of.
    """
    stated = correctness_part(settings)  # the other parts of a composite may ask for more
    return WRITERS.get(stated.kind, _as_given)(stated, prompt, others)


def _as_given(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    """Take the ground truth for the right answer. Only white space around it is sure to mean nothing."""
    right = prompt.ground_truth
    if not right.strip():
        return KnownAnswers(left_out={"right": "the ground truth is empty, so no right answer is known"})
    return KnownAnswers(right=right, wrong=_other(right, others), variants={"white_space": f"\n  {right}  \n"})


def _other(right: str, others: Sequence[str]) -> str | None:
    """Return another prompt's ground truth that is not just the same one written otherwise."""
    own = _plain(right)
    return next((other for other in others if _plain(other) and _plain(other) != own), None)


def _plain(text: str) -> str:
    return "".join(c for c in text.casefold() if c.isalnum() or c in "+-.")


def _last_number(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    found = last_number(prompt.ground_truth)
    if found is None or found.value is None:
        return KnownAnswers()
    right, wrong, further = found.written, _written(found.value + 1), _written(found.value + 2)
    variants = {
        "white_space": f"\n  {right}  \n",
        "full_stop": f"The answer is {right}.",
        "bold": f"**{right}**",
        "units": f"{right} apples",
        **_with_separators(found.value),
    }
    return KnownAnswers(
        right=right,
        wrong=wrong,
        variants=variants,
        mistakes={
            "many_answers": " ".join([*map(str, range(10)), right, further, wrong]),
            "beside_another": f"It is {right}. No, it is {wrong}.",
        },
        empty_forms=("\\boxed{}",),
        reads_all=False,
        left_out=_LAST_COUNTS,
    )


def _with_separators(value: Decimal) -> dict[str, str]:
    """Return a whole number of four digits or more with separators of thousands, and with a decimal that is zero."""
    if value != value.to_integral_value() or len(str(abs(value))) > _LONGEST_PLAIN_NUMBER:
        return {}
    whole = int(value)
    zero = {"trailing_zero": f"{whole}.0"}
    return {"thousands": f"{whole:,}", **zero} if abs(whole) >= _LEAST_WITH_SEPARATOR else zero


def _written(value: Decimal) -> str:
    return format(value, "f") if abs(value.adjusted()) <= _LONGEST_PLAIN_NUMBER else str(value)


def _math(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    right = read_ground_truth(prompt.ground_truth)
    if right is None:
        return KnownAnswers()
    wrong = _wrong_expression(right)
    variants = {
        "white_space": f"\n\\boxed{{ {right} }}\n",
        "full_stop": f"The answer is \\boxed{{{right}}}.",
        "bold": f"**\\boxed{{{right}}}**",
        "dollars": f"$\\boxed{{{right}}}$",
    }
    exact = read_exact(right)
    if exact is not None and not exact.is_percent and exact.value.denominator == 1 and right.isdecimal():
        variants["units"] = f"\\boxed{{{right}\\text{{ cm}}}}"
        variants |= {name: f"\\boxed{{{text}}}" for name, text in _with_separators(Decimal(right)).items()}
    mistakes = {}
    if wrong is not None:
        mistakes["many_boxes"] = " ".join(f"\\boxed{{{one}}}" for one in (wrong, right, *_small_numbers(right)))
        mistakes["beside_another"] = f"\\boxed{{{right}}} or perhaps \\boxed{{{wrong}}}"
    return KnownAnswers(
        right=f"\\boxed{{{right}}}",
        wrong=None if wrong is None else f"\\boxed{{{wrong}}}",
        variants=variants,
        mistakes=mistakes,
        empty_forms=("\\boxed{}", "$$ $$"),
        reads_all=False,
        left_out=_LAST_COUNTS,
    )


def _small_numbers(right: str) -> list[str]:
    return [str(number) for number in range(10) if str(number) != right]


def _wrong_expression(right: str) -> str | None:
    """Return an expression of another value; None where none is sure to differ, as with words, sets and infinity."""
    exact = read_exact(right)
    if exact is None:
        return f"{right} + 1" if _SUM_DIFFERS.fullmatch(right) else None
    more = exact.value + 1
    written = str(more) if more.denominator == 1 else f"\\frac{{{more.numerator}}}{{{more.denominator}}}"
    return written + ("\\%" if exact.is_percent else "")


def _question(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    """Write answers to questions, compared after normalisation: case, articles and punctuation mean nothing."""
    known = _as_given(settings, prompt, others)
    if known.right is None:
        return known
    right = known.right.strip()
    variants = {**known.variants, **_other_case(right), "full_stop": f"{right}.", "article": f"The {right}"}
    several = [other for other in dict.fromkeys(others) if _other(right, [other])][:8]
    mistakes = {"many_answers": ", ".join([*several, right])} if several else {}
    return replace(known, variants=variants, mistakes=mistakes)


def _label(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    labels = [str(label) for label in getattr(settings, "labels", None) or ()]
    right = prompt.ground_truth.strip()
    known = replace(_as_given(settings, prompt, labels), reads_all=True)
    if known.right is None:
        return known
    mistakes = {"all_labels": ", ".join(labels), "many_answers": "\n".join(labels)} if len(labels) > 1 else {}
    return replace(known, variants={**known.variants, **_other_case(right)}, mistakes=mistakes)


def _other_case(text: str) -> dict[str, str]:
    """Return a text in other case, where that is the same text but for case: of some letters it is not."""
    other = text.swapcase()
    return {"case": other} if other.lower() == text.lower() != other else {}


def _number(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    """Write a number that is the whole text; the wrong one lies beyond both tolerances."""
    right = prompt.ground_truth.strip()
    try:
        value = Decimal(right)
    except InvalidOperation:
        return KnownAnswers()
    if not value.is_finite():
        return KnownAnswers()
    absolute = Decimal(str(getattr(settings, "absolute_tolerance", None) or 0))
    far = abs(value) + 1 + 2 * absolute
    # On the other side of zero the difference is larger than either number, so no share of them covers it.
    wrong = _written(far if value < 0 else -far)
    zero = {name: text for name, text in _with_separators(value).items() if name == "trailing_zero"}
    return KnownAnswers(
        right=right,
        wrong=wrong,
        variants={"white_space": f"\n  {right}  \n", **zero},
        mistakes={"many_answers": f"{right} {wrong}", "beside_another": f"{right} or {wrong}"},
        empty_forms=("\\boxed{}",),
    )


def _json_value(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    try:
        value = json.loads(prompt.ground_truth)
        right = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return KnownAnswers()
    spoilt, fields = _spoilt(value), getattr(settings, "fields", None)
    if fields and isinstance(value, dict):
        spoilt = {key: _spoilt(inner) if key in fields else inner for key, inner in value.items()}
    wrong = json.dumps(spoilt, ensure_ascii=False) if spoilt != value else None
    variants = {
        "white_space": "\n" + json.dumps(value, indent=4, ensure_ascii=False) + "\n",
        "code_fence": f"```json\n{right}\n```",
    }
    if isinstance(value, dict):
        variants["key_order"] = json.dumps(_reversed(value), ensure_ascii=False)
    form_alone = getattr(settings, "metric", None) == "schema_valid"
    return KnownAnswers(
        right=right,
        wrong=None if form_alone else wrong,
        variants=variants,
        mistakes={"many_answers": f"{right}\n{wrong}"} if wrong is not None else {},
        empty_forms=("```json\n```",) if value == {} else ("{}", "```json\n```", "```json\n{}\n```"),
        left_out={"wrong": "schema_valid asks for the form alone, whatever is in it"} if form_alone else {},
    )


def _loaded(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value else None


def _spoilt(value: Any) -> Any:
    """Return a value of the same kind that differs."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1 if value + 1 != value else -value
        case str():
            return f"not {value}"
        case list():
            return [*value, value[-1]] if value else ["nothing"]
        case dict() if value:
            return {key: _spoilt(inner) for key, inner in value.items()}
        case _:
            return "nothing"


def _reversed(value: Any) -> Any:
    """Return the same value with the keys of every object in the opposite order."""
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in reversed(list(value))}
    return [_reversed(inner) for inner in value] if isinstance(value, list) else value


def _code(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    """Write programs. A solution is known only where the ground truth is one."""
    solution = prompt.ground_truth.strip()
    known = KnownAnswers(
        wrong="```python\npass\n```",
        mistakes={
            "leaves_at_once": "```python\nimport sys\nsys.exit(0)\n```",
            "leaves_hard": "```python\nimport os\nos._exit(0)\n```",
        },
        empty_forms=("```python\n```", "```python\n# solution\n```"),
        reads_all=False,
        left_out={"negated": "words around a program are not read"},
    )
    if not _is_program(solution):
        without = {**known.left_out, "right": "the ground truth is no Python program, so no right answer is known"}
        return replace(known, left_out=without)
    fenced, commented = f"```python\n{solution}\n```", f"```python\n# A solution.\n{solution}\n```"
    return replace(known, right=fenced, variants={"white_space": f"\n\n{fenced}\n\n", "comment": commented})


def _is_program(text: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):  # what it is written like is not ours to judge
            compile(text, "ground truth", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return "def " in text or "print(" in text or "class " in text


def _call(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    value = _loaded(prompt.ground_truth)
    if value is None or not isinstance(value.get("name"), str) or not isinstance(value.get("arguments"), dict):
        return KnownAnswers()
    right = json.dumps(value, ensure_ascii=False)
    wrong = json.dumps({**value, "name": value["name"] + "_not"}, ensure_ascii=False)
    spoilt = {**value, "arguments": _spoilt(value["arguments"])}
    tools = [_tool_name(tool) for tool in prompt.extras.get("tools") or ()]
    every = "\n".join(json.dumps({**value, "name": name}, ensure_ascii=False) for name in tools if name)
    asks_for_arguments = getattr(settings, "metric", None) not in ("name_match", "call_valid")
    mistakes = {}
    if value["arguments"] and asks_for_arguments:
        mistakes["wrong_arguments"] = json.dumps(spoilt, ensure_ascii=False)
    if every.count("\n") and getattr(settings, "metric", None) != "call_valid":
        mistakes["all_tools"] = every
    return KnownAnswers(
        right=right,
        wrong=wrong,
        variants={
            "white_space": "\n" + json.dumps(value, indent=4, ensure_ascii=False) + "\n",
            "key_order": json.dumps(_reversed(value), ensure_ascii=False),
        },
        mistakes=mistakes,
        empty_forms=("{}", "<tool_call></tool_call>", '{"name": "", "arguments": {}}'),
        left_out={} if asks_for_arguments else {"wrong_arguments": f"{settings.metric} does not compare arguments"},
    )


def _tool_name(tool: Any) -> str:
    """Return the name of a tool, described as such or as a function."""
    described = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    return str(described.get("name", "")) if isinstance(described, Mapping) else ""


def correctness_part(settings: Any) -> Any:
    """Return the settings of the part of a composite that stands for correctness; any other verifier is its own."""
    return settings.parts[settings.correctness_from].verifier if isinstance(settings, CompositeVerifier) else settings


WRITERS: dict[str, Writer] = {
    "math_pairs": _last_number,
    "final_number": _last_number,
    "math": _math,
    "qa": _question,
    "classification": _label,
    "numeric": _number,
    "structured_json": _json_value,
    "code": _code,
    "tool_call": _call,
}
