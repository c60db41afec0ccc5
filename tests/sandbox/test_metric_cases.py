"""The labelled metrics: those that people write must score, those that misbehave must fail alone."""

import time

import pytest

from ratchet.errors import MetricRefused
from ratchet.sandbox.metric_process import MetricScore

from .conftest import cases

PAIRS = [("BAD" if number == 3 else "fine", "reference") for number in range(8)]
KINDS = {
    "raises": "execution",
    "returns nan": "result",
    "returns True": "result",
    "returns str": "result",
    "returns 1.5": "result",
    "returns -0.1": "result",
    "huge int": "result",
    "infinite loop": "time",
    "redos": "time",
    "sleep": "time",
    "memory bomb": "memory",
    "sys.exit": "execution",
    "KeyboardInterrupt": "execution",
    "abort": "execution",
    "recursion": "execution",
    "C recursion": "execution",
    "exception with huge str": "execution",
    "prints forever": "output",
    "forge on every fd": "result",
    "kill parent": "time",
    "stop parent": "time",
    "fork bomb": "execution",
    "thread": "execution",
    "closerange": "execution",
}
CONTAINED = {"prints 10KB (allowed)", "poison next answers", "reads files", "writes files", "stdin of the worker"}
REFUSALS = {
    "syntax error": "it does not compile: line 1: invalid syntax.",
    "no score": "it has no function score(answer, reference).",
    "loop at import": "it took longer than 1 s to load.",
    "exit at import": "while loading it, the process ended early.",
    "mem bomb at import": "loading it took more memory than a metric may have.",
    "fork bomb at import": "loading it raised BlockingIOError on line 2 of the metric",
    "forges at import": "loading it raised OSError on line 2 of the metric",
}


@pytest.mark.parametrize("case", cases("plausible"))
def test_a_metric_as_people_write_it_scores(case, pool_of, metric_environment, monkeypatch):
    if case["name"] in ("numpy", "sympy"):
        monkeypatch.setenv("RATCHET_METRIC_ENV", str(metric_environment))
    pool = pool_of(case["source"], answer_seconds=20.0, load_seconds=60.0)
    pool.check()
    assert pool.score(case["answer"], case["reference"]).value == pytest.approx(case["expected"], abs=1e-6)


def test_every_hostile_case_is_expected_to_end_in_some_way():
    assert {case.id for case in cases("hostile", "score")} == KINDS.keys() | CONTAINED
    assert {case.id for case in cases("hostile", "load")} == REFUSALS.keys()


@pytest.mark.parametrize("case", cases("hostile", "score"))
def test_a_hostile_metric_fails_on_its_answer_alone(case, pool_of):
    # Only what ends by its time limit has a short one: a busy machine may take seconds to fill the memory.
    is_endless = KINDS.get(case["name"]) == "time"
    pool = pool_of(case["source"], answer_seconds=1.0 if is_endless else 30.0)
    pool.score("warm", "up")
    started = time.monotonic()
    found = pool.score_many(PAIRS)
    seconds = time.monotonic() - started
    after = pool.score_many([("fine", "reference")] * 8)
    assert [score.value for number, score in enumerate(found) if number != 3] == [1.0] * 7
    assert [score.value for score in after] == [1.0] * 8
    if case["name"] in CONTAINED:
        assert found[3] == MetricScore(0.25)
    else:
        assert (found[3].value, found[3].failure) == (None, KINDS[case["name"]])
        assert len(found[3].detail) <= 300
    assert not is_endless or seconds < 20.0, "its limit, the host's patience, and much room for a busy machine"


@pytest.mark.parametrize("case", cases("hostile", "load"))
def test_a_metric_that_cannot_be_loaded_is_refused_in_one_sentence(case, pool_of):
    # Short only for what ends by its limit: a busy machine may take seconds to fill the memory.
    pool = pool_of(case["source"], load_seconds=1.0 if case["name"] == "loop at import" else 30.0)
    with pytest.raises(MetricRefused) as caught:
        pool.check()
    message = str(caught.value)
    assert message.startswith(f"Metric tested version 3 is refused: {REFUSALS[case['name']]}")
    assert message.endswith(".")
    assert "\n" not in message
