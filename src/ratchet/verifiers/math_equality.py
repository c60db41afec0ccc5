"""Are two expressions equal? ``math_verify`` decides, within bounds that we check ourselves. For the worker process.

``math_verify.verify`` errs on the side of yes: it chops small differences (1/2004! is 1/2006!), compares solution
sets that are both empty (x^2 + 1 = 0 is x^2 + 2 = 0), takes the right side of any equation (2 + 2 = 5 is 5) and a set
for a point. So plain numbers are compared as fractions without it, and its yes stands only if nothing here
contradicts it. Its no always stands.
"""

import logging
import math
from typing import Any

import math_verify
import sympy
from latex2sympy2_extended.logic import And
from sympy.core.function import AppliedUndef

from ratchet.verifiers.exact_number import ExactNumber, same_number, without_blanks
from ratchet.verifiers.math_expression import Expression, expression
from ratchet.verifiers.math_reading import read_answer, read_ground_truth

# math_verify warns that its own alarm is off. It has to be: this process is killed from outside.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_DIGITS = 60  # working precision of the numeric check
_TOLERANCE = sympy.Rational(1, 10**45)  # of the larger side
# Below and above 1, positive, so that roots and logarithms stay on their principal branch; unlikely to solve anything.
_SAMPLES = (sympy.Rational(3_571, 9_931), sympy.Rational(13_457, 9_973))
_INEQUALITIES = (sympy.StrictLessThan, sympy.LessThan, sympy.StrictGreaterThan, sympy.GreaterThan)
_MAX_POWER_DIGITS = 100_000  # 9^(9^9) has 370 million; sympy would begin to write them out
_MAX_FACTORIAL = 10_000


def are_equal(gold: Expression, answer: Expression) -> bool:
    """Whether an answer equals the ground truth. May hang or run out of memory: call it where it can be killed."""
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if gold.words is not None or answer.words is not None:
        return gold.words == answer.words
    if without_blanks(gold.latex) == without_blanks(answer.latex):
        return True
    if gold.in_base is not None or answer.in_base is not None:
        return _same_in_base(gold, answer)
    if gold.exact is not None and answer.exact is not None:
        return same_number(gold.exact, answer.exact)
    if gold.form is None or answer.form is None:
        return False
    return _equal_forms(gold, answer)


def _equal_forms(gold: Expression, answer: Expression) -> bool:
    """Compare what sympy makes of two expressions, after what it forgets of how they are written."""
    if {gold.brackets, answer.brackets} == {"{", "("} or _repeat_differently(gold, answer):
        return False
    if answer.brackets == "(" and not gold.brackets and isinstance(gold.form, sympy.FiniteSet):
        # A bare list stands for a point only in the point's order; math_verify looks at that only from this side.
        return _same_form(answer.form, gold.form)
    if isinstance(gold.form, sympy.Interval) and _are_bounds(answer.form):
        # math_verify takes an inequality for its interval only from this side, so that an answer cannot repeat the
        # inequality it was to solve. Bounds of a variable by itself are a solution.
        return _same_form(answer.form, gold.form)
    return _same_form(gold.form, answer.form)


def _repeat_differently(gold: Expression, answer: Expression) -> bool:
    """Whether two bare lists repeat entries differently, as 1, 2, 2 and 1, 2 do."""
    are_lists = all(isinstance(one.form, sympy.FiniteSet) and not one.brackets for one in (gold, answer))
    if not are_lists or gold.repeated == answer.repeated:
        return False
    entries = [*gold.repeated, *answer.repeated]
    if all(isinstance(entry, ExactNumber) for entry in entries):
        return True
    return sorted(gold.repeated.values()) != sorted(answer.repeated.values())


def _are_bounds(form: Any) -> bool:
    """Whether a form bounds one variable that stands alone by numbers, as 1 < x < 2 and x > 1 do."""
    links = form._unsorted_args if isinstance(form, And) else (form,)
    symbols = set()
    for link in links:
        if not isinstance(link, _INEQUALITIES):
            return False
        symbol, bound = (link.lhs, link.rhs) if link.lhs.is_Symbol else (link.rhs, link.lhs)
        if not symbol.is_Symbol or bound.free_symbols:
            return False
        symbols.add(symbol)
    return len(symbols) == 1


def _same_in_base(gold: Expression, answer: Expression) -> bool:
    """Compare numbers with a base. Only an answer may leave the base out, since the question names it."""
    if gold.in_base is None:
        return answer.in_base is not None and answer.in_base[1] == 10 and answer.in_base[0] == gold.latex
    return answer.in_base == gold.in_base or answer.latex.upper() == gold.in_base[0]


def _same_form(gold: Any, answer: Any) -> bool:
    if _is_undefined(gold) or _is_undefined(answer) or _is_false(answer):
        return False
    if is_too_large(gold) or is_too_large(answer):
        return bool(gold == answer)
    try:
        if _are_equations(gold, answer) and _is_multiple(gold, answer):
            return True
        is_same = math_verify.verify(gold, answer, timeout_seconds=None, raise_on_error=True)
    except MemoryError:
        raise
    except Exception:
        # sympy raises nearly anything on kinds that it cannot compare. A reference is tried on itself before the run.
        return bool(gold == answer)
    return is_same and not _contradicted(gold, answer)


def is_too_large(form: Any) -> bool:
    """Whether evaluating an expression would write out a number beyond any answer."""
    return any(_power_digits(part) > _MAX_POWER_DIGITS for part in _parts(form, sympy.Pow)) or any(
        _magnitude(part.args[0]) > math.log10(_MAX_FACTORIAL) for part in _parts(form, sympy.factorial)
    )


def _parts(form: Any, kind: type) -> list[Any]:
    return [part for part in sympy.preorder_traversal(form) if isinstance(part, kind)]


def _power_digits(power: Any) -> float:
    """Estimate how many digits a power of numbers has, or its expansion has terms; 0 if it stays symbolic."""
    base, exponent = power.args
    if exponent.free_symbols:
        return 0.0
    exponent_digits = _magnitude(exponent)
    if exponent_digits > 9:
        return math.inf
    size = 10**exponent_digits
    if base.free_symbols:
        # (x + y + z)^n has about n^2 / 2 terms once expanded
        terms = len(base.args) if base.is_Add else 1
        return float(size ** (terms - 1)) if size > 1 else 0.0
    return float(size * max(1.0, abs(_magnitude(base))))


def _magnitude(form: Any) -> float:
    """Return log10 of the absolute value of a number without writing it out; -inf for 0, 0 where it is unknown."""
    if form.is_Pow:
        base, exponent = form.args
        size = _magnitude(exponent)
        if size > 9:
            return math.inf
        return float(_approximate(exponent) * _magnitude(base))
    if isinstance(form, sympy.factorial):
        n = _magnitude(form.args[0])
        return math.inf if n > 9 else 10**n * max(n, 0.0)
    if form.is_Mul:
        return sum(_magnitude(argument) for argument in form.args)
    if form.is_Add:
        return max(_magnitude(argument) for argument in form.args)
    value = abs(_approximate(form))
    return math.log10(value) if value > 0 else -math.inf


def _approximate(form: Any) -> float:
    try:
        return float(abs(complex(form.evalf(15))))
    except (TypeError, ValueError, OverflowError):
        return 1.0


def _is_undefined(form: Any) -> bool:
    """Whether an expression divides by zero somewhere, as 12:00 does. Only its own spelling equals it."""
    return any(part in (sympy.zoo, sympy.nan) for part in sympy.preorder_traversal(form))


def _is_false(form: Any) -> bool:
    """Whether an expression states a false equation between numbers, such as 2 + 2 = 5."""
    chain = form._unsorted_args if isinstance(form, And) else (form,)
    return any(
        isinstance(link, sympy.Eq)
        and all(isinstance(side, sympy.Expr) and not side.free_symbols for side in link.args)
        and _numbers_differ(link.lhs, link.rhs)
        for link in chain
    )


def _contradicted(gold: Any, answer: Any) -> bool:
    """Whether two forms that were found equal are certainly not."""
    try:
        return _surely_differ(gold, answer)
    except MemoryError:
        raise
    except Exception:  # such as RecursionError in a sum to a symbolic limit: no contradiction was found
        return False


def _surely_differ(gold: Any, answer: Any) -> bool:
    if isinstance(gold, sympy.Eq) and isinstance(answer, sympy.Eq):
        return _equations_differ(gold, answer)
    gold, answer = _right_side(gold), _right_side(answer)
    if isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase):
        return gold.shape != answer.shape or any(map(_surely_differ, gold.flat(), answer.flat()))
    if isinstance(gold, sympy.FiniteSet) and isinstance(answer, sympy.FiniteSet):
        return any(all(_surely_differ(one, other) for other in answer.args) for one in gold.args)
    if isinstance(gold, (sympy.Tuple, sympy.Interval)) and type(gold) is type(answer):
        return any(map(_surely_differ, gold.args, answer.args))
    if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr):
        return _values_differ(gold, answer)
    return False


def _right_side(form: Any) -> Any:
    """What an equation or a chain of equations gives in the end; anything else unchanged."""
    last = form._unsorted_args[-1] if isinstance(form, And) else form
    return last.rhs if isinstance(last, sympy.Eq) else form


def _are_equations(gold: Any, answer: Any) -> bool:
    """Whether both are equations between expressions, as opposed to x = (1, 2)."""
    return all(
        isinstance(form, sympy.Eq) and all(isinstance(side, sympy.Expr) for side in form.args)
        for form in (gold, answer)
    )


def _is_multiple(gold: Any, answer: Any) -> bool:
    """Whether one equation is the other times a number: 2x + 4y = 3 is y = 3/4 - x/2."""
    other = answer.lhs - answer.rhs
    ratio = sympy.simplify((gold.lhs - gold.rhs) / other) if other != 0 else sympy.S.Zero
    return bool(ratio.is_finite and ratio.is_number and not ratio.is_zero)


def _equations_differ(gold: Any, answer: Any) -> bool:
    """Whether equations found equal have different right sides, or no solution that could make them equal."""
    if gold.lhs == answer.lhs:
        return _surely_differ(gold.rhs, answer.rhs)
    return _are_equations(gold, answer) and not (sympy.solve(gold, dict=True) and sympy.solve(answer, dict=True))


def _values_differ(gold: Any, answer: Any) -> bool:
    """Whether two expressions take different values, at the same sample point if they have variables."""
    if gold.has(AppliedUndef) or answer.has(AppliedUndef):
        return False
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    if not symbols:
        return _numbers_differ(gold, answer)
    for sample in _SAMPLES:
        point = {symbol: sample * (1 + sympy.Rational(i, 7)) for i, symbol in enumerate(symbols)}
        if not _numbers_differ(gold.subs(point), answer.subs(point)):
            return False
    return True


def _numbers_differ(a: Any, b: Any) -> bool:
    """Whether two numbers certainly differ. Neither is approximated where both are rational."""
    a, b = a.doit(), b.doit()
    if a.is_Rational and b.is_Rational:
        return bool(a != b)
    a, b = a.evalf(_DIGITS), b.evalf(_DIGITS)
    if not (a.is_number and b.is_number and a.is_finite and b.is_finite):
        return False
    size = max(abs(a), abs(b))
    return bool(abs(a - b) > _TOLERANCE * size)


def find(text: str, ground_truth: str, require_boxed: bool) -> dict[str, Any]:
    """Grade one answer.

    Returns:
        ``{"outcome": "graded", "is_correct": ...}``, ``{"outcome": "unparseable"}`` when the answer holds nothing that
        can be compared or boxes that disagree, or ``{"outcome": "ungradable"}`` when the ground truth is to blame.
    """
    gold_text = read_ground_truth(ground_truth)
    if gold_text is None:
        return {"outcome": "ungradable"}
    gold = expression(gold_text)
    answers = [expression(latex) for latex in read_answer(text, require_boxed=require_boxed)]
    # The cheap test first: equal spelling needs no parser.
    right = [are_equal(gold, answer) for answer in answers]
    if not answers:
        return {"outcome": "unparseable"}
    if all(right):
        return {"outcome": "graded", "is_correct": True}
    # One of them right and another not, or two that differ: several guesses are no answer.
    if any(right) or any(not answer.is_readable or not are_equal(answers[0], answer) for answer in answers):
        return {"outcome": "unparseable"}
    return {"outcome": "graded", "is_correct": False}
