r"""One mathematical expression: cleaned LaTeX, what can be told from its text, and, on demand, its sympy form.

Cleaning replaces the unit stripping of ``latex2sympy2_extended``, which takes the variables c, d, g, h, l, m, s and t
for units (3t would be 3), keeps the case of letters (R - r is not 0), reads i as the imaginary unit, degrees inside a
trigonometric function as degrees, and decimals as exact fractions. Imports sympy: for the worker process alone.
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.math_normalization import NormalizationConfig

from ratchet.verifiers.exact_number import ExactNumber, join_thousands, read_exact, without_blanks

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_CONVERSION = ConversionConfig(lowercase_symbols=False)

_REPLACEMENTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\boxed\s*(?=\{)", ""),
        (r"\\(?:left|right|m?left|m?right|big|Big|bigg|Bigg)(?![A-Za-z])(?=\s*\\?[()\[\]{}|.])", ""),
        (r"\\(?:displaystyle|textstyle|limits|quad|qquad)(?![A-Za-z])", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*([0-9])\s*([0-9])(?![0-9])", r"\\frac{\1}{\2}"),
        (r"\{,\}|,\\!", ","),
        (r"(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))", ""),
        (r"(?<!\\)\\[!,;: ]|~", " "),
        (r"\\?\$", ""),
        ("\N{MINUS SIGN}", "-"),
        ("\N{MULTIPLICATION SIGN}", r"\\times "),
        ("÷", r"\\div "),
        ("[·⋅]", r"\\cdot "),
        ("π", r"\\pi "),
        ("√", r"\\sqrt"),
        ("∞", r"\\infty "),
        ("°", r"^\\circ"),
        (r"\\degree(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![A-Za-z])", r"^{\\circ}"),
        (r"\*\*", "^"),
        (r"(?<![\\A-Za-z])(?=(?:pi|sqrt|sin|cos|tan|ln|log|exp|theta)(?![A-Za-z]))", r"\\"),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\(?:text|mathrm|mathbf|textbf)\s*\{\s*([-+0-9.,/ ]+)\}", r"\1"),
        (r"(?<=[A-Z])\s*\^\s*(?:\{\s*(?:T|\\top|\\intercal)\s*\}|T|\\top(?![A-Za-z]))", r"_{flip}"),
        (r"\^\s*(?:\{\s*T\s*\}|T(?![A-Za-z]))", r"^{T_{0}}"),
        (r"(?<!\\)%", r"\\%"),
        (r"\\(?:mathrm|text|operatorname)\s*\{\s*([ei])\s*\}", r"\1"),
        (r"([A-Za-z])'", r"\1_{prime}"),
        (r"\.\s*$", ""),
    )
)
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_MAGNITUDE = re.compile(rf"\s*\\text\s*\{{\s*({'|'.join(_MAGNITUDES)})\b\s*")
_UNIT_GROUP = re.compile(
    r"(?:[\s/]*\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{([^{}]*)\}(?:\s*\^\s*\{?-?\d\}?)?)+\s*$"
)
_PLAIN_UNITS = (
    "cm|mm|km|kg|mg|ml|mL|ft|inch|inches|feet|foot|miles?|hours?|hrs?|minutes?|mins?|seconds?|secs?|days?|weeks?|months?|"
    "years?|dollars?|cents?|degrees?|units?|square units?|cubic units?|met(?:er|re)s?|lit(?:er|re)s?|pounds?|lbs?|mph|"
    "km/h|m/s|USD|EUR|euros?|percent"
)
_PLAIN_UNIT = re.compile(rf"(?<=[0-9}})])\s*({_PLAIN_UNITS})(?:\s*\^\s*\{{?[23]\}}?)?\s*$")
# What a text group may not hold beside a number: guesses, operators, a factor. Such an answer is never read in part.
_SAYS_MORE = re.compile(
    r"[0-9+*=<>!²³√¼½¾]|\\(?!%)|^\s*(?:squared|cubed)\b"
    r"|\b(?:and|or|nor|not|dozens?|scores?|tenths?|(?:hundred|thousand|million|billion|trillion)(?:s|ths?)?)\b",
    re.IGNORECASE,
)
_JOINT = re.compile(r"\\text\s*\{\s*(?:and|or)\s*\}(?=\s*[^\s}])")  # between two expressions
_POWER_OF_UNIT = re.compile(r"(?<=[A-Za-z])(?:\^-?[1-9](?![0-9])|[²³])")
_BLANK_BETWEEN_DIGITS = re.compile(r"[0-9] +[0-9]")
_TEXT_ONLY = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"(?=.*(?:[A-Za-z]{4}|\b(?:yes|no|odd|all|none)\b))[A-Za-z][A-Za-z ,.'-]*", re.IGNORECASE)
_IN_BASE = re.compile(r"\(?([0-9A-Fa-f]+)\)?_\{?([0-9]{1,2})\}?")
_BRACKET_OR_COMMA = re.compile(r"[()\[\]{}]|,(?![0-9]{3}(?![0-9]))")
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")

# Spellings of one unit. A unit that is not listed equals its own spelling only.
_UNITS = {
    spelling: name
    for name, spellings in {
        "mm": "mm millimeter millimetre",
        "cm": "cm centimeter centimetre",
        "m": "m meter metre",
        "km": "km kilometer kilometre",
        "in": "in inch inches",
        "ft": "ft foot feet",
        "yd": "yd yard",
        "mi": "mi mile",
        "mg": "mg milligram",
        "g": "g gram",
        "kg": "kg kilogram",
        "lb": "lb pound",
        "s": "s sec second",
        "min": "min minute",
        "h": "h hr hour",
        "day": "day",
        "week": "week",
        "month": "month",
        "year": "year yr",
        "ml": "ml milliliter millilitre",
        "l": "l liter litre",
        "cent": "cent",
        "dollar": "dollar usd",
        "euro": "euro eur",
        "mi/h": "mph",
        "km/h": "kph kmh kmph",
    }.items()
    for spelling in spellings.split()
}


@dataclass(frozen=True)
class Expression:
    """An expression after cleaning. Equal ``latex`` means equal, whatever it is.

    ``unit`` is the normalised unit that was removed, empty if there was none.
    """

    latex: str
    unit: str

    @cached_property
    def words(self) -> str | None:
        """The text of an answer in words such as "no solution", case-folded, or None if it is no such answer."""
        plain = _TEXT_ONLY.sub(r" \1 ", self.latex)
        folded = " ".join(plain.casefold().replace(".", " ").split())
        return folded if _WORDS.fullmatch(folded) and folded not in ("infinity", "inf") else None

    @cached_property
    def exact(self) -> ExactNumber | None:
        """The number, where the expression is one plain number."""
        return read_exact(self.latex)

    @cached_property
    def in_base(self) -> tuple[str, int] | None:
        """Digits and base of a number such as 101_2."""
        found = _IN_BASE.fullmatch(without_blanks(self.latex))
        return (found[1].upper(), int(found[2])) if found else None

    @cached_property
    def brackets(self) -> str:
        """``{`` for a set in braces, ``(`` for a list in round or square brackets, empty for anything else."""
        latex = self.latex.replace(" ", "")
        if latex.startswith("\\{") and latex.endswith("\\}"):
            return "{"
        return "(" if "," in latex and latex[0] in "([" and latex[-1] in ")]" else ""

    @cached_property
    def repeated(self) -> Counter[Any]:
        """How often each entry of a bare list is written, those that stand once left out; sympy's set forgets it.

        A number is its value, anything else its spelling. Digits in groups of three are one number, not a list.
        """
        entries = Counter(_entry(piece) for piece in _between_commas(self.latex)) if not self.brackets else Counter()
        return Counter({entry: count for entry, count in entries.items() if count > 1})

    @cached_property
    def form(self) -> Any:
        """The sympy form, not evaluated, or None if the LaTeX cannot be parsed or only in part."""
        latex = join_thousands(self.latex)
        if _says_more(_JOINT.sub(" ", latex)) or _BLANK_BETWEEN_DIGITS.search(latex):
            return None
        try:
            normal = normalize_latex(latex, _NORMALIZATION)
            in_degrees = "\\circ" in normal and _TRIGONOMETRY.search(normal) is not None
            parsed = latex2sympy(
                normal,
                is_real=True,
                convert_degrees=in_degrees,
                normalization_config=None,
                conversion_config=_CONVERSION,
            )
            return _symbol_first(_exact_form(parsed))
        except MemoryError:
            raise
        except Exception:  # the parser raises bare Exception, and sympy nearly anything, on text that is not LaTeX
            return None

    @property
    def is_readable(self) -> bool:
        """Whether this is anything that can be compared with something else."""
        return any(part is not None for part in (self.words, self.exact, self.in_base, self.form))


def _between_commas(latex: str) -> list[str]:
    """The entries of a list without brackets around it."""
    pieces, start, depth = [], 0, 0
    for found in _BRACKET_OR_COMMA.finditer(latex):
        if found.group() == ",":
            if depth == 0:
                pieces.append(latex[start : found.start()])
                start = found.end()
        else:
            depth += 1 if found.group() in "([{" else -1
    return [*pieces, latex[start:]]


def _entry(latex: str) -> Any:
    exact = read_exact(latex)
    return without_blanks(latex) if exact is None else exact


@lru_cache(maxsize=512)
def expression(latex: str) -> Expression:
    """Clean one expression. Cached, because the answers of a group share their ground truth and many answers."""
    for pattern, replacement in _REPLACEMENTS:
        latex = pattern.sub(replacement, latex)
    factors = 1
    while factors:  # hundred thousand
        latex, factors = _MAGNITUDE.subn(lambda found: rf" \times 10^{{{_MAGNITUDES[found[1]]}}}\text{{", latex)
    latex = re.sub(r"\\text\{\s*\}", "", latex).strip()
    unit = ""
    found = _UNIT_GROUP.search(latex) or _PLAIN_UNIT.search(latex)
    if (
        found
        and found.start() > 0
        and re.search(r"[0-9A-Za-z})]\s*$", latex[: found.start()])
        and not _says_more(found.group())
    ):
        unit = _unit_name(found.group())
        latex = latex[: found.start()].strip()
    if _TRIGONOMETRY.search(latex) is None:
        latex = latex.replace("^{\\circ}", "").strip()
    return Expression(" ".join(latex.split()), unit)


def _says_more(latex: str) -> bool:
    r"""Whether a text group holds more than a unit or a name: 3\text{ or 4}, 3\text{ dozen}."""
    return any(_SAYS_MORE.search(_POWER_OF_UNIT.sub("", group)) for group in _TEXT_ONLY.findall(latex))


def _unit_name(latex: str) -> str:
    r"""Normalise a unit, so that ``\text{ square meters}`` and ``\mathrm{m}^2`` are both ``m^2``."""
    name = re.sub(r"[.(){}~,\\]", "", _TEXT_ONLY.sub(r"\1", latex).casefold())
    name = name.replace("²", "^2").replace("³", "^3")
    name = re.sub(r"\bper\b", "/", name)
    name = re.sub(r"\b(?:square|sq)\s+([a-z]+)|\b([a-z]+)\s+squared\b", r"\1\2^2", name)
    name = re.sub(r"\b(?:cubic|cu)\s+([a-z]+)|\b([a-z]+)\s+cubed\b", r"\1\2^3", name)
    name = re.sub(r"\s*([/^])\s*", r"\1", " ".join(name.split()))
    return re.sub(r"[a-z]+", lambda word: _word_of_unit(word[0]), name)


def _word_of_unit(word: str) -> str:
    singular = word.removesuffix("s") if len(word) > 2 else word
    return _UNITS.get(word) or _UNITS.get(singular) or singular


def _symbol_first(form: Any) -> Any:
    """Turn 5 = x round: what an equation gives stands on its right side."""
    if isinstance(form, sympy.Eq) and form.rhs.is_Symbol and not form.lhs.is_Symbol:
        return sympy.Eq(form.rhs, form.lhs, evaluate=False)
    return form


def _exact_form(form: Any) -> Any:
    """Replace floats by the fractions they were written as, and a free i by the imaginary unit, evaluating nothing."""
    if isinstance(form, sympy.Float):
        return sympy.Rational(str(form))
    if isinstance(form, sympy.MatrixBase):
        return form.applyfunc(_exact_form)
    if not isinstance(form, sympy.Basic):
        return form
    imaginary = {symbol for symbol in form.free_symbols if symbol.name == "i"}
    return _rebuilt(form, imaginary) if imaginary or form.atoms(sympy.Float) else form


def _rebuilt(form: Any, imaginary: set[Any]) -> Any:
    if isinstance(form, sympy.Float):
        return sympy.Rational(str(form))
    if form in imaginary:
        return sympy.I
    arguments = getattr(form, "_unsorted_args", form.args)
    rebuilt = [_rebuilt(argument, imaginary) for argument in arguments]
    if not arguments or all(new is old for new, old in zip(rebuilt, arguments, strict=True)):
        return form
    try:
        return form.func(*rebuilt, evaluate=False)
    except TypeError:
        return form.func(*rebuilt)
