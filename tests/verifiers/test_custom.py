"""The verifier kind custom: what it grades, what it counts as failed, and what it refuses before a model loads."""

import pytest

from ratchet.config import CustomVerifier, RunConfig
from ratchet.config.config_text import build
from ratchet.errors import IncompatibleData, InvalidSetting, MetricRefused
from ratchet.run.records import Grade, Prompt
from ratchet.service.verification.grade_rows import grade_rows
from ratchet.verifiers import Tried, make_verifier

EQUAL = "def score(answer, reference):\n    return 1.0 if answer == reference else 0.0\n"


@pytest.fixture
def verifier_of():
    made = []

    def make(source, **settings):
        made.append(make_verifier(CustomVerifier(metric="closeness", version=2, source=source, **settings)))
        return made[-1]

    yield make
    for verifier in made:
        verifier.close()


def prompt(ground_truth, number=7):
    return Prompt(number, (), ground_truth)


def test_the_metrics_number_is_the_correctness(verifier_of):
    verifier = verifier_of("def score(answer, reference):\n    return len(answer) / int(reference)\n")
    assert verifier.grade("abc", prompt("4")) == Grade(0.75, "graded")
    assert verifier.grade("", prompt("4")) == Grade(0.0, "graded")


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("raise ValueError", "execution"),
        ("return 7", "result"),
        ("while True: pass", "time"),
        ("return len('x' * (1 << 30))", "memory"),
        ("while True: print('x' * 100)", "output"),
    ],
)
def test_what_it_fails_on_is_counted_by_kind_and_is_not_wrong(body, failure, verifier_of):
    verifier = verifier_of(f"def score(answer, reference):\n    {body}\n", limit_seconds=0.5)
    assert verifier.grade("a", prompt("b")) == Grade(0.0, "failed", failure=failure)


def test_only_the_part_that_is_read_reaches_the_metric(verifier_of):
    verifier = verifier_of(EQUAL, read="answer_tag")
    assert verifier.grade("so <answer>7</answer>", prompt("7")).correctness == 1.0
    assert verifier.grade("7", prompt("7")) == Grade(0.0, "unparseable")


def test_a_reference_over_the_limit_is_named_without_its_text(verifier_of):
    verifier = verifier_of(EQUAL)
    assert verifier.check_ground_truth(prompt("x" * 32_000)) is None
    assert (
        verifier.check_ground_truth(prompt("x" * 32_001))
        == "it has 32,001 characters; the limit for a metric is 32,000"
    )


def test_the_trial_grades_a_reference_against_itself(verifier_of):
    verifier = verifier_of(EQUAL)
    assert isinstance(verifier, Tried)
    assert verifier.trial(prompt("7")) == (
        "Metric closeness version 2 grades by bubblewrap; the reference of row 7 scores 1 as its own answer."
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def score(answer:", "it does not compile: line 1: '(' was never closed."),
        (
            "def score(answer, reference):\n    return float(answer)\n",
            "tried on the reference of row 7 as the answer, it failed (ValueError on line 2 of the metric).",
        ),
        (
            "def score(answer, reference):\n    while True: pass\n",
            "tried on the reference of row 7 as the answer, it took longer than 0.5 s.",
        ),
    ],
)
def test_a_failing_trial_refuses_the_metric_in_one_sentence(source, message, verifier_of):
    with pytest.raises(MetricRefused) as caught:
        verifier_of(source, limit_seconds=0.5).trial(prompt("a secret reference"))
    assert str(caught.value) == f"Metric closeness version 2 is refused: {message}"


def test_without_a_source_there_is_nothing_to_grade_with():
    with pytest.raises(InvalidSetting, match="Metric closeness has no source") as caught:
        make_verifier(CustomVerifier(metric="closeness"))
    assert caught.value.field == "verifier.metric"


def test_the_source_is_stored_with_the_run_and_there_is_no_flag_for_it():
    config = build({"verifier": {"kind": "custom", "metric": "m", "source": EQUAL}}).resolved()
    stored = RunConfig.model_validate_json(config.model_dump_json())
    assert stored.verifier == CustomVerifier(metric="m", source=EQUAL, read="whole")
    assert stored.reward.format_bonus == "off"
    with pytest.raises(InvalidSetting, match=r"no setting verifier\.source"):
        build({"verifier": {"kind": "custom"}}, {"verifier.source": EQUAL})
    assert build({}, {"source": "gsm8k", "path": "x"}).data.source == "gsm8k"


@pytest.mark.parametrize("seconds", [0.09, 60.5])
def test_the_limit_has_limits(seconds):
    with pytest.raises(InvalidSetting, match="Limit per answer"):
        build({"verifier": {"kind": "custom", "limit_seconds": seconds}})


def test_rows_are_graded_and_refused_by_number():
    config = build({"verifier": {"kind": "custom", "metric": "m", "source": EQUAL}}).resolved()
    rows = [{"answer": "7", "ground_truth": "7"}, {"answer": "8", "ground_truth": "7"}]
    graded, counts = grade_rows(rows, config)
    assert [row["reward"] for row in graded] == [1.0, 0.0]
    assert (counts["right"], counts["graded"], counts["failed"]) == (1, 2, 0)
    with pytest.raises(IncompatibleData, match=r"row 2: it has 40,000 characters"):
        grade_rows([rows[0], {"answer": "", "ground_truth": "x" * 40_000}], config)
