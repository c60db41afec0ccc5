"""Whatever is written, no kind raises: it grades, the same each time, within 0..1 and 0 unless graded."""

import json
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.config import (
    ClassificationVerifier,
    CompositePart,
    CompositeVerifier,
    FinalNumberVerifier,
    MathPairsVerifier,
    NumericVerifier,
    PythonVerifier,
    QaVerifier,
    StructuredJsonVerifier,
    ToolCallVerifier,
    VerifierSettings,
)
from ratchet.run.records import Prompt
from ratchet.verifiers import METRICS, make_verifier

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 2}, "b": {"pattern": "^(x+)+$"}}}
CALL = json.dumps({"name": "f", "arguments": {"a": 2}})
TOOLS = [{"name": "f", "parameters": SCHEMA}]
CASES = {
    "math_pairs": (MathPairsVerifier(), "7"),
    "final_number": (FinalNumberVerifier(), "7"),
    "numeric": (NumericVerifier(absolute_tolerance=0.5, relative_tolerance=0.1), "7"),
    "qa": (QaVerifier(metric="token_f1"), "the red house"),
    "classification": (ClassificationVerifier(labels=("yes", "no")), "yes"),
    "structured_json": (StructuredJsonVerifier(schema=SCHEMA), '{"a": 2, "c": [1]}'),
    "tool_call": (ToolCallVerifier(), CALL),
    "composite": (
        CompositeVerifier(
            parts=(
                CompositePart(verifier=StructuredJsonVerifier(fields=("name",)), weight=2.0),
                CompositePart(verifier=ToolCallVerifier(metric="name_match")),
                CompositePart(verifier=QaVerifier(metric="token_f1")),
            ),
            correctness_from=1,
        ),
        CALL,
    ),
}
PIECES = st.sampled_from(
    ["</think>", "<think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "```json\n", "\n```", CALL, "{", "}",
     "[", "]", '"', ":", ",", "7", "-", "1e9999", "1,234", "NaN", "true", '{"a": 2, "c": [1]}', "yes", "the red", "\n",
     "\ud800", "\x00", "\N{MINUS SIGN}", "x" * 50, "[" * 200]
)  # fmt: skip
TEXTS = st.text(max_size=60) | st.lists(PIECES, max_size=12).map("".join)


@pytest.mark.parametrize("kind", CASES)
@settings(deadline=None, max_examples=150)
@given(text=TEXTS, prefer_answer_tag=st.booleans())
def test_any_text_is_graded_without_raising_and_alike_each_time(kind, text, prefer_answer_tag):
    verifier_settings, truth = CASES[kind]
    row = Prompt(1, (), truth, {"tools": TOOLS})
    first, second = (
        make_verifier(verifier_settings, prefer_answer_tag=prefer_answer_tag).grade(text, row) for _ in "ab"
    )
    assert first == second
    assert first.outcome in ("graded", "unparseable")
    assert 0 <= first.correctness <= 1
    assert first.correctness == 0 or first.outcome == "graded"
    assert first.score is None or 0 <= first.score <= 1
    assert all(0 <= number <= 1 for number in first.parts.values())


@pytest.mark.parametrize("kind", CASES)
def test_the_reference_as_the_answer_is_right(kind):
    verifier_settings, truth = CASES[kind]
    row = Prompt(1, (), truth, {"tools": TOOLS})
    verifier = make_verifier(verifier_settings)
    assert verifier.check_ground_truth(row) is None
    found = verifier.grade(truth, row)
    assert (found.outcome, found.correctness) == ("graded", 1.0)


@pytest.mark.parametrize("kind", ["numeric", "qa", "classification", "structured_json", "tool_call", "composite"])
def test_the_answer_tag_is_read_where_the_tags_bonus_is_on(kind):
    verifier_settings, truth = CASES[kind]
    row = Prompt(1, (), truth, {"tools": TOOLS})
    text = f"<think>{truth} or not</think>\n<answer>{truth}</answer>"
    assert make_verifier(verifier_settings, prefer_answer_tag=True).grade(text, row).correctness == 1.0
    assert make_verifier(verifier_settings).grade(text, row).correctness < 1.0


def test_a_function_reads_the_answer_tag_there_too():
    verifier = make_verifier(PythonVerifier(), prefer_answer_tag=True, function=lambda answer, truth: answer == truth)
    assert verifier.grade("<think>x</think><answer>7</answer>", Prompt(1, (), "7")).correctness == 1.0


def test_every_kind_states_its_metrics_and_the_settings_offer_no_other():
    union, _ = get_args(VerifierSettings)
    kinds = {get_args(kind.model_fields["kind"].annotation)[0]: kind for kind in get_args(union)}
    assert set(METRICS) == set(kinds)
    for name, kind in kinds.items():
        assert all(text.endswith(".") for text in METRICS[name].values())
        if name != "custom" and "metric" in kind.model_fields:  # there it is the name of a metric
            field = kind.model_fields["metric"]
            assert set(get_args(field.annotation)) == set(METRICS[name])
            assert field.default == next(iter(METRICS[name]))


@pytest.mark.parametrize("kind", ["math_pairs", "numeric", "qa", "classification", "structured_json", "tool_call"])
def test_the_parts_of_a_grade_are_metrics_of_its_kind(kind):
    verifier_settings, truth = CASES[kind]
    for text in (truth, ""):
        found = make_verifier(verifier_settings).grade(text, Prompt(1, (), truth, {"tools": TOOLS}))
        assert set(found.parts) <= set(METRICS[kind])
