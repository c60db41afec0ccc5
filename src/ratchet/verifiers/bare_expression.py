r"""The last expression in text without LaTeX delimiters: numbers, operators, LaTeX commands and single letters.

What cannot be told from prose is not read in part: ``sqrt(2)``, ``2pi``, ``alpha + 2``, ``12θ`` and ``x > 5`` are not
the numbers 2, 12 and 5, and give ``""``. √2, 2π, 10² and 2½ are turned into LaTeX first. Names such as ``km2`` are no
expressions at all; trailing units are left to the parser. ``=`` and line ends separate expressions, so
``60 + 13 = 73`` ends in 73.
"""

import re
import unicodedata
from fractions import Fraction

MAX_BARE_CHARACTERS = 2_000

# A letter counts only when it stands alone among letters; a colon only between digits.
_RUN = re.compile(
    r"(?:\\(?:text|mathrm|textbf|mathbf|mbox)\s?\{[^{}]*\}|\\[A-Za-z]+|\\[,;:! %${}]"
    r"|[0-9.,+\-*/^()\[\]{}_!%\N{MULTIPLICATION SIGN}÷·\N{MINUS SIGN} ]"
    r"|(?<=[0-9]):(?=[0-9])|(?<![A-Za-zÀ-ÖØ-öø-ɏ])[A-Za-z](?![A-Za-zÀ-ÖØ-öø-ɏ]))+"
)
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_VULGAR_FRACTION = re.compile(
    rf"(?<![\w.,^/{_VULGAR}])(?<![0-9] )(?:([0-9]{{1,9}}) ?)?([{_VULGAR}])(?![0-9^!{_SUPERSCRIPTS}{_VULGAR}])"
)
_AREA = re.compile(r"(?<=[0-9]) m[²³](?![\w(])")  # 12 m² like 12 cm²: a unit
_SUPERSCRIPT = re.compile(rf"(?<=[0-9A-Za-zπ)\]}}])(⁻?[⁰¹²³⁴-⁹]+)(?![0-9_√∛∜{_SUPERSCRIPTS}])")
_RADICAL = re.compile(
    rf"(?<![{_SUPERSCRIPTS}])√(?:([0-9]+(?:\.[0-9]+)?)(?![0-9A-Za-z^!(π{_SUPERSCRIPTS}]|[.,][0-9])|\(([^()√]*)\))"
)
_PI = re.compile(r"(?<![^\x00-\x7f])π(?![^\x00-\x7f])")
_TAG = re.compile(r"</?(?:[A-Za-z]{2,10}[0-9]?|[bipu])\s*/?>")
# ASCII comparisons at the edge of a run; not arrows, and not the << >> that GSM8K puts around its sums
_COMPARED_BEFORE = re.compile(r"(?:(?<![<>=-])[<>]|[<>]=|(?<![0-9)])!=)\s*\Z")
_COMPARED_AFTER = re.compile(r"[<>](?![<>])|!=")
_SEPARATORS = "∴∵≈"
_READABLE = re.compile(r"[0-9]|\\[A-Za-z]")
_OPERAND_GAP = re.compile(r"(?<=[0-9A-Za-z)\]}!%]) +(?=[0-9A-Za-z(\[])")
_MIXED_NUMBER = re.compile(r"-?[0-9]+ [0-9]+/[0-9]+")
_THOUSANDS = re.compile(r"(?<![0-9,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_NAMES = "sqrt|cbrt|root|log|ln|exp|sin|cos|tan|sec|csc|cot|arcsin|arccos|arctan|pi|theta|alpha|beta|infinity|inf"
_NAME_BEFORE = re.compile(rf"\b(?:{_NAMES})[₀-₉]*\s*\Z")
_NAME_AFTER = re.compile(rf"(?:{_NAMES})\b")
_MAGNITUDE_AFTER = re.compile(r"((?:hundred|thousand|million|billion|trillion)(?:s|ths?)?|tenths?|dozens?|score)\b")
_UNIT_POWER = re.compile(r"\^\{?[23]\}?[ .,)]*")
_SPACED_OPERATOR = re.compile(r" +[+/^\N{MULTIPLICATION SIGN}÷·] ")
_LEADING = " *_^/,)]}\N{MULTIPLICATION SIGN}÷·:!"
_TRAILING = " *_^/,([{+-\N{MINUS SIGN}\N{MULTIPLICATION SIGN}÷·:!."


def last_bare_expression(text: str) -> str | None:
    """The last bare expression, ``""`` if the last one cannot be read whole, or None if there is none."""
    last = None
    text = _in_latex(text)
    for run in _RUN.finditer(text):
        if _READABLE.search(run.group()):
            expression = _expression(text, run.start(), run.end())
            last = last if expression is None else expression
    return last


def _in_latex(text: str) -> str:
    """Write what Unicode writes as one character in LaTeX, where that is certain. Tags become line ends."""
    text = _VULGAR_FRACTION.sub(_fraction, _TAG.sub("\n", text))
    text = _SUPERSCRIPT.sub(_power, _AREA.sub(" m", text))
    text = _RADICAL.sub(lambda found: rf"\sqrt{{{found[1] or found[2]}}}", text)
    return _PI.sub(r"\\pi ", text)


def _fraction(found: re.Match[str]) -> str:
    """Write a vulgar fraction, with the integer before it, as one fraction, so that nobody takes it for a product."""
    value = int(found[1] or 0) + Fraction(unicodedata.numeric(found[2])).limit_denominator(10)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _power(found: re.Match[str]) -> str:
    return f"^{{{unicodedata.normalize('NFKC', found[1]).replace(chr(0x2212), '-')}}}"


def _expression(text: str, start: int, end: int) -> str | None:
    """Make an expression of a run of characters: ``""`` if it is part of something larger, None if it is none."""
    run, before, after = text[start:end], text[max(0, start - 12) : start], text[end : end + 12]
    if _is_cut(run, before, after):
        return ""
    if before[-1:].isalnum() and (run[0].isdigit() or _UNIT_POWER.fullmatch(run)):
        return None  # the 2 of km2 or cm^2
    if len(run) > MAX_BARE_CHARACTERS or _continues(run, before) or _NAME_AFTER.match(after):
        return ""
    if before[-1:].isalpha() and run[0] == "-":
        run = run[1:]  # a hyphen, as in COVID-19
    expression = _last_operand(_trimmed(run))
    if not _READABLE.search(expression):
        return None
    magnitude = _MAGNITUDE_AFTER.match(after)
    return rf"{expression}\text{{ {magnitude[1]}}}" if magnitude else expression


def _is_cut(run: str, before: str, after: str) -> bool:
    """Whether an expression goes on beyond a run, in characters that no run holds: 12θ, x > 5."""
    is_arrow = run.endswith("-") and after.startswith(">")
    return (
        _belongs(before[-1:], is_adjacent=run[0] != " ")
        or _belongs(after[:1], is_adjacent=run[-1] != " ")
        or _COMPARED_BEFORE.search(before) is not None
        or (_COMPARED_AFTER.match(after) is not None and not is_arrow)
    )


def _belongs(symbol: str, *, is_adjacent: bool) -> bool:
    """Whether a character beside a run makes it part of something larger. ASCII is handled elsewhere."""
    if not symbol or symbol.isascii() or symbol in _SEPARATORS:
        return False
    is_operator = "\u2200" <= symbol <= "\u22ff" or symbol in "±‰\N{FRACTION SLASH}" + _VULGAR
    if is_operator or "\u0391" <= symbol <= "\u03c9":  # Greek also after a blank: 3 alpha
        return True
    return is_adjacent and unicodedata.category(symbol) in ("Lu", "Ll", "Lt", "Lm", "Lo", "No", "Nl", "Mn", "Me")


def _continues(run: str, before: str) -> bool:
    """Whether a run continues an expression that began in words: sqrt(2), pi/2, alpha + 2."""
    if before[-1:].isalnum() and (run[0] in "([/^*+_" or _SPACED_OPERATOR.match(run)):
        return True
    return _NAME_BEFORE.search(before) is not None


def _trimmed(run: str) -> str:
    """Remove blanks, emphasis, punctuation, list marks and unmatched brackets from both ends of a run."""
    while True:
        shorter = run.lstrip(_LEADING).rstrip(_TRAILING)
        if shorter[:1] == "." and not shorter[1:2].isdigit():
            shorter = shorter[1:]
        elif shorter[:1] in ("-", "+", "\N{MINUS SIGN}") and shorter[1:2] == " ":
            shorter = shorter[2:]
        for opening, closing in (("([", ")]"), ("{", "}")):  # [1,2) is balanced
            surplus = sum(map(shorter.count, opening)) - sum(map(shorter.count, closing))
            if surplus > 0 and shorter.startswith(tuple(opening)):
                shorter = shorter[1:]
            elif surplus < 0 and shorter.endswith(tuple(closing)):
                shorter = shorter[:-1]
        if shorter == run:
            return run
        run = shorter


def _last_operand(expression: str) -> str:
    """The last of several expressions that only blanks or commas separate. Brackets hold a list together."""
    if "\\" in expression or _MIXED_NUMBER.fullmatch(expression):
        return expression
    pieces = [piece for piece in _OPERAND_GAP.split(expression) if _READABLE.search(piece)]
    expression = _trimmed(pieces[-1]) if pieces else expression
    if "," in _THOUSANDS.sub("", expression) and not re.search(r"[(\[{]", expression):
        pieces = [piece for piece in expression.split(",") if _READABLE.search(piece)]
        expression = _trimmed(pieces[-1]) if pieces else expression
    return expression
