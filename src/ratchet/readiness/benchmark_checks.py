"""Checks of a benchmark before it is stored: its questions, tried with answers whose verdict is known.

Every ground truth must be one that the verifier can check, a correct answer must pass and an empty one must not. Which
score columns there are is decided here too. No model is asked. Rows are named by number, never by content.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from ratchet.config import CompositeVerifier, FormatKind, VerifierSettings
from ratchet.datasets.bundle import GROUND_TRUTH
from ratchet.datasets.dataset import in_form
from ratchet.datasets.leak_guard import canonical
from ratchet.datasets.reference_sets import text_of
from ratchet.datasets.rows import BadRows
from ratchet.errors import IncompatibleData, InvalidSetting
from ratchet.evaluation.benchmark import ACCURACY, ANSWERED, FORMAT
from ratchet.readiness.row_checks import refuse_ungradable
from ratchet.run.records import Grade, Prompt
from ratchet.run.report_card import PASS_MARK
from ratchet.verifiers import KINDS, Tried, Verifier, correctness_part, known_answers
from ratchet.verifiers.composite import part_names

MOST_REFERENCES = 200
_THREADS = 4
_REASONING = "Some steps."


def score_columns(
    verifier: VerifierSettings, form: FormatKind, asked: Sequence[str] | None = None, main: str | None = None
) -> tuple[str, ...]:
    """The columns that are reported, the main one first: accuracy unless another one is asked for.

    Accuracy and answered are always there; the parts that the verifier reports, and format where a form is asked for,
    unless only some columns are asked for, of which the first is the main one then.

    Raises:
        InvalidSetting: a column was asked for that this verifier does not give.
    """
    available = (ACCURACY, *_parts(verifier), *([] if form == "off" else [FORMAT]), ANSWERED)
    for name in (*(asked or ()), *([main] if main else [])):
        if name not in available:
            raise InvalidSetting(
                f"There is no score column {name[:100]} with the verifier {verifier.kind} and the form {form}. Choose "
                f"among {', '.join(available)}.",
                "score_columns",
            )
    return tuple(dict.fromkeys([*([main] if main else []), *(asked or available), ACCURACY, ANSWERED]))


def _parts(settings: VerifierSettings) -> list[str]:
    """Scores that a verifier reports besides its correctness."""
    if isinstance(settings, CompositeVerifier):
        names = part_names([part.verifier.kind for part in settings.parts])
        return [name for place, name in enumerate(names) if place != settings.correctness_from]
    metrics = list(KINDS[settings.kind].metrics)
    chosen = getattr(settings, "metric", None)
    return [name for name in metrics if name != (chosen if chosen in metrics else metrics[0])]


def reference_solutions(
    prompts: Sequence[Prompt],
    verifier: VerifierSettings,
    form: FormatKind,
    *,
    template: str | None = None,
    prefers_own: bool = False,
) -> list[str | None]:
    """A correct answer to each question, None where none is known.

    Args:
        prompts: The questions.
        verifier: Says how its kind of answer is written and which part of it is read.
        form: The form that is asked for.
        template: A text with {ground_truth} in it, if the author gave one: it goes before all else.
        prefers_own: Whether a row's own whole answer goes before its ground truth in the form that is asked for.
    """
    if template is not None:
        return [template.replace(GROUND_TRUTH, prompt.ground_truth) for prompt in prompts]
    read = correctness_part(verifier).read or verifier.read
    solutions = []
    for prompt in prompts:
        right = known_answers(verifier, prompt, ()).right or prompt.ground_truth
        made = _in_place(right, read, form) if right.strip() else None
        own = prompt.demonstration
        solutions.append((own or made) if prefers_own else (made or own))
    return solutions


def check_questions(
    verifier: Verifier, prompts: Sequence[Prompt], solutions: Sequence[str | None], *, must_have_solutions: bool
) -> tuple[str, ...]:
    """Try answers on a benchmark's questions, and return notes on them.

    Args:
        verifier: Checks the answers; not closed here.
        prompts: The questions.
        solutions: A right answer to each, None where none is known.
        must_have_solutions: Whether one has to be known for every question that is tried.

    Raises:
        IncompatibleData: a ground truth cannot be checked, a right answer does not pass, or an empty one does; up to
            20 rows are named, with what happened.
        MetricRefused, SandboxUnavailable: the verifier cannot be used at all.
    """
    if isinstance(verifier, Tried):
        verifier.load()
    refuse_ungradable(verifier, prompts, "questions")
    repeats = _repeats(prompts)
    notes = _try_solutions(verifier, prompts, solutions, must_have_solutions)
    return (*repeats, *notes, *_try_empty(verifier, prompts))


def _repeats(prompts: Sequence[Prompt]) -> list[str]:
    """Report duplicate questions, which intervals would count as independent."""
    first: dict[str, int] = {}
    repeated = BadRows()
    for prompt in prompts:
        earlier = first.setdefault(canonical(text_of(prompt.messages)), prompt.id)
        if earlier != prompt.id:
            repeated.add(prompt.id, f"as row {earlier}")
    if not repeated.count:
        return []
    ask = "1 question asks" if repeated.count == 1 else f"{repeated.count:,} questions ask"
    return [
        f"{ask} what an earlier one asks ({repeated.named()}). Duplicates count again, so intervals are too narrow."
    ]


def _try_solutions(
    verifier: Verifier, prompts: Sequence[Prompt], solutions: Sequence[str | None], must_have: bool
) -> Iterator[str]:
    count = min(len(prompts), MOST_REFERENCES)
    places = [number * len(prompts) // count for number in range(count)]  # spread over all of them
    tried = [(prompts[place], text) for place in places if (text := solutions[place]) is not None]
    if len(tried) < count:
        unknown = [str(prompts[place].id) for place in places if solutions[place] is None]
        if must_have:
            raise IncompatibleData(
                f"No reference solution is known for {len(unknown):,} of {count:,} questions, the first of them row "
                f"{unknown[0]}. Map the column completion to correct answers, or set reference_solution."
            )
        yield f"No correct answer is known for {len(unknown):,} of {count:,} questions, so none was tried there."
    bad, lower = BadRows(), 0
    for (prompt, _), grade in zip(tried, _grades(verifier, tried), strict=True):
        if grade.correctness <= PASS_MARK:
            bad.add(prompt.id, _what_happened(grade))
        lower += PASS_MARK < grade.correctness < 1
    if bad.count:
        raise IncompatibleData(
            f"{bad.count:,} of {len(tried):,} reference solutions do not pass: {bad.named()}. Correct the ground "
            "truths or the verifier, or set reference_solution to what a correct answer looks like."
        )
    if lower:
        yield f"{lower:,} of {len(tried):,} reference solutions pass with less than full credit by this verifier."
    if count < len(prompts):
        yield f"Reference solutions of {len(tried):,} of {len(prompts):,} questions were tried: all pass."


def _try_empty(verifier: Verifier, prompts: Sequence[Prompt]) -> list[str]:
    bad, failed = BadRows(), BadRows()
    for prompt, grade in zip(prompts, _grades(verifier, [(prompt, "") for prompt in prompts]), strict=True):
        if grade.correctness > PASS_MARK:
            bad.add(prompt.id, _what_happened(grade))
        elif grade.outcome == "failed":
            failed.add(prompt.id, grade.failure or "failed")
    if bad.count:
        raise IncompatibleData(
            f"The empty answer passes on {bad.count:,} of {len(prompts):,} questions: {bad.named()}. A model that says "
            "nothing would score there. Fix the verifier, or remove these questions."
        )
    if not failed.count:
        return []
    return [
        f"The verifier fails on the empty answer to {failed.count:,} of {len(prompts):,} questions ({failed.named()}). "
        "Such answers count as failed, not as wrong; above 10 % of them there is no verdict."
    ]


def _grades(verifier: Verifier, answers: Sequence[tuple[Prompt, str]]) -> list[Grade]:
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(lambda one: verifier.grade(one[1], one[0]), answers))


def _what_happened(grade: Grade) -> str:
    if grade.outcome == "failed":
        return f"the verifier failed ({grade.failure})"
    return "unparseable" if grade.outcome == "unparseable" else f"correctness {grade.correctness:g}"


def _in_place(right: str, read: str | None, form: FormatKind) -> str:
    """Put a right answer where the verifier reads it, in the form that is asked for."""
    if form == "boxed" and "\\boxed" not in right:
        right = f"\\boxed{{{right}}}"
    if form == "tags" or read == "answer_tag":
        return in_form(_REASONING, right, "tags")
    return f"{_REASONING}</think>\n{right}" if read == "after_reasoning" else right
