"""Words: what users and contributors read says things by the field's own terms, in plain English.

Left out on purpose: grammar and style at large, which no test can judge; text that users bring themselves.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

import ratchet

ROOT = Path(__file__).parents[1]
SOURCE = Path(ratchet.__file__).parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEMPLATES = sorted(
    path
    for path in SOURCE.rglob("*")
    if path.suffix in (".html", ".jinja", ".css", ".js") and "assets" not in path.parts
)
# Names on disk that stay as they were first written, by the file that reads them.
FORMER_NAMES = {
    "config/base.py": "worked_examples",
    "evaluation/benchmark.py": "worked_examples",
    "evaluation/evaluation.py": "Worked examples|Longest answer",
    "evaluation/loop.py": "sealed",
    "cli/bench_commands.py": "worked_examples",
    "datasets/bundle.py": "worked_examples",
    "service/evaluations/benchmark_setup.py": "worked_examples",
    "service/evaluations/evaluation_setup.py": "worked_examples",
    "service/jobs/loops.py": "sealed",
    "service/reports/report_page.py": "worked_examples",
    "supervisor/scheduler.py": "keeper",
}

# What is not written, as a pattern, and what is written instead.
WORDS = {
    r"\blooked at\b": "inspect",
    r"\b(?:is|are|was|were) told\b": "is reported",
    r"stands? in the way": "this run cannot start: N problems",
    r"\b(?:go|goes|going|gone|went) on (?:from|with)\b": "resume, continue from",
    r"\bturn(?:s|ed|ing)? away\b": "rejects correct answers (false negatives)",
    r"\bpass(?:es|ed)? what is wrong": "accepts wrong answers (false positives)",
    r"\boff the queue\b": "run the scheduler",
    r"\bkeepers?\b": "scheduler, queued",
    r"\bcut short\b": "interrupted",
    r"\bnobody works on\b": "run X is not running",
    r"\bin good order\b": "stops cleanly",
    r"\bat work\b": "running, started on",
    r"\bunasked\b": "without asking",
    r"\blikeliest\b": "most likely",
    r"\bthe start is none\b": "the start is not counted",
    r"\b(?:un)?sealed\b": "held-out half, already revealed",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bheld to the one\b": "KL penalty towards the starting policy",
    r"\blongest answers?\b": "max answer tokens",
    r"\bsiblings?\b": "the others for the same prompt",
    r"\bunread\b|\bunparsed\b": "unparseable",
    r"\bruns watch\b": "runs follow",
    r"\bworked[ _-]examples?\b": "few-shot examples",
    r"\bmade-up\b": "adversarial, synthetic",
    r"\bwhite space alone\b": "whitespace only",
    r"\banswer's place\b": "where to put the answer",
    r"\bstand in two places\b": "appear in two splits",
    r"\bsay nothing of\b": "contaminated",
    r"\bhalf that chooses\b": "selection half",
    r"\bflatter(?:s|ed)?\b": "selection bias",
    r"\btold from chance\b": "detectable",
    r"\bstands? here\b": "is listed",
    r"\bpartly lucky\b": "regression to the mean",
    r"\blongest \d": "time limit",
    r"\bshall the run start\b": "Start the run?",
    r"\btraining window\b": "context length",
    r"\btoo early for a diagnosis\b": "not enough rounds for trends",
    r"\bthe same as a page\b": "the HTML version",
    r"\bone until the end\b": "no server is running; this command does the work",
    r"\bgo(?:es)? before (?:them|it)\b": "takes precedence",
    r"\bends? by (?:itself|themselves)\b": "stops on its own",
    r"^Return what\b|^Tell (?:whether|if|what)\b": "a noun phrase, an imperative, or: Whether ...",
}
# Parts of names that do not say what they hold.
NAMES = r"(?:^|_)(?:told|laid_over|apart|absent|seen|asked|asking|standing|outside|unasked|making)(?:_|$)|^(?:Made|Making|Ask|Asked)(?=[A-Z]|$)"


def lines_of(path):
    """Each text of a file with the number of its line: of Python the strings, comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (
            tokenize.STRING,
            tokenize.COMMENT,
            tokenize.FSTRING_MIDDLE if hasattr(tokenize, "FSTRING_MIDDLE") else tokenize.STRING,
        ):
            stripped = re.sub(r"^[a-zA-Z]*(?:\"\"\"|'''|\"|')|^#\s*", "", token.string)
            # A sentence may go on in the next line of a docstring.
            yield token.start[0], re.sub(r"\s+", " ", stripped)


def offences(path):
    found = []
    former = FORMER_NAMES.get(str(path.relative_to(SOURCE)) if path.is_relative_to(SOURCE) else "", "$.")
    for number, text in lines_of(path):
        for pattern, instead in WORDS.items():
            match = re.search(pattern, text, re.IGNORECASE if not pattern.startswith("^") else 0)
            if match and not re.fullmatch(former, match.group(0)):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match.group(0)!r}; write: {instead}")
    return found


def python_files():
    return sorted(path for path in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", [*PAGES, *TEMPLATES, *python_files()], ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_use_the_fields_words(path):
    assert offences(path) == []


def test_names_say_what_they_hold():
    found = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node, "name", None)
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and re.search(NAMES, name):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    assert found == []
