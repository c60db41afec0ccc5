"""The labelled programs: right and wrong solutions, and hostile ones, written and labelled from the specification alone."""

import json
from pathlib import Path

import pytest

from ratchet.sandbox.code_run import CodeRunner
from ratchet.sandbox.code_tests import read_tests

DATA = Path(__file__).parents[1] / "data"


def rows(name):
    return json.loads((DATA / f"{name}.json").read_text())


def solutions(label):
    return [
        pytest.param(source, row["tests"], id=f"{row['name']}-{number}")
        for row in rows("cases_code")
        for number, source in enumerate(row[label])
    ]


@pytest.fixture(scope="module")
def patient():
    """For honest programs, which must not fail because this machine is busy."""
    return CodeRunner(limit_seconds=10)


@pytest.fixture(scope="module")
def strict():
    return CodeRunner(limit_seconds=1)


@pytest.mark.parametrize(("source", "tests"), solutions("right"))
def test_a_right_solution_passes_every_test(source, tests, patient):
    result = patient.run(source, read_tests(tests))
    assert set(result.statuses) == {"passed"}


@pytest.mark.parametrize(("source", "tests"), solutions("wrong"))
def test_a_wrong_solution_does_not(source, tests, strict):
    result = strict.run(source, read_tests(tests))
    assert set(result.statuses) != {"passed"}
    assert result.ending == "finished"


@pytest.mark.slow  # all of them together: many run until they are out of time
@pytest.mark.parametrize("row", [pytest.param(row, id=row["name"]) for row in rows("cases_code_hostile")])
def test_a_hostile_program_does_not_pass(row, strict):
    result = strict.run(row["source"], read_tests(row["tests"]))
    assert set(result.statuses) != {"passed"}
