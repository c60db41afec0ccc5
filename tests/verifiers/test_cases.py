"""The labelled cases: answers that real models and hostile ones write, labelled from the specification alone."""

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from ratchet.config import VerifierSettings
from ratchet.run.records import Prompt
from ratchet.verifiers import compile_pattern, earns_format, make_verifier

DATA = Path(__file__).parents[1] / "data"
SETTINGS = TypeAdapter(VerifierSettings)

# Kinds that take the text they read as a whole.
OF_WHOLE_TEXTS = ("qa", "classification", "structured_json", "numeric", "tool_call")


def rows(kind):
    return json.loads((DATA / f"cases_{kind}.json").read_text())


def case(kind):
    return [pytest.param(row, id=row["name"]) for row in rows(kind)]


def case_id(value):
    return value if isinstance(value, str) else value["name"]


def answer_of(row):
    if "answer" in row:
        return row["answer"]
    return "".join(part if isinstance(part, str) else part[0] * part[1] for part in row["answer_parts"])


def prompt_of(row):
    message = {"role": "user", "content": "?"}
    return Prompt(id=1, messages=(message,), ground_truth=row["ground_truth"], extras=row.get("extras", {}))


@pytest.fixture(scope="module")
def verifier_of():
    """Verifiers by kind and settings, shared by the cases so that worker processes are too."""
    built = {}

    def get(kind, row):
        settings = row.get("settings", {})
        if kind == "math":
            settings = {"limit_seconds": 3.0, **settings}
        key = (kind, json.dumps(settings))
        if key not in built:
            built[key] = make_verifier(SETTINGS.validate_json(json.dumps({"kind": kind, **settings})))
        return built[key]

    yield get
    for verifier in built.values():
        verifier.close()


def check(verifier, row):
    grade = verifier.grade(answer_of(row), prompt_of(row))
    assert grade.outcome in row.get("outcome_any", [row.get("outcome")]), grade
    assert grade.correctness == pytest.approx(float(row["correct"]), abs=1e-12), grade
    assert grade.failure is None or grade.outcome == "failed"
    return grade


@pytest.mark.parametrize("row", case("final_number"))
def test_final_number_grades_as_labelled(row, verifier_of):
    check(verifier_of("final_number", row), row)


@pytest.mark.parametrize("row", case("math_pairs"))
def test_math_pairs_grades_as_labelled(row, verifier_of):
    grade = check(verifier_of("math_pairs", row), row)
    assert grade.parts == {"accuracy_strict": float(row["strict"])}


@pytest.mark.parametrize("row", case("math"))
def test_math_grades_as_labelled(row, verifier_of):
    check(verifier_of("math", row), row)


@pytest.mark.parametrize(("kind", "row"), [(kind, row) for kind in OF_WHOLE_TEXTS for row in rows(kind)], ids=case_id)
def test_a_text_is_graded_as_labelled(kind, row, verifier_of):
    check(verifier_of(kind, row), row)


@pytest.mark.parametrize("row", case("composite"))
def test_composite_grades_as_labelled(row, verifier_of):
    verifier = verifier_of("composite", row)
    grade = verifier.grade(answer_of(row), prompt_of(row))
    assert grade.outcome == row["outcome"]
    assert grade.score == pytest.approx(row.get("mean", row["correct"]), abs=1e-12)
    assert {name: grade.parts[name] for name in row["parts"]} == pytest.approx(row["parts"])
    stated = list(row["parts"])[row["settings"].get("correctness_from", 0)]
    assert grade.correctness == pytest.approx(row["parts"][stated])


@pytest.mark.parametrize("row", case("format"))
def test_format_is_earned_as_labelled(row):
    pattern = compile_pattern(row["pattern"]) if "pattern" in row else None
    earned = earns_format(answer_of(row), row["kind"], pattern, prefilled_think=row["prefilled_think"])
    assert earned is row["earns"]


@pytest.mark.parametrize("kind", ["final_number", "math_pairs", "math"])
def test_every_reference_that_an_answer_gets_right_passes_the_check_before_a_run(kind, verifier_of):
    for row in rows(kind):
        if row["correct"]:
            assert verifier_of(kind, {}).check_ground_truth(prompt_of(row)) is None, row["name"]
