"""Whatever is written, no kind raises: it grades, the same each time, within 0..1 and 0 unless graded."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.config import (
    CompositePart,
    CompositeVerifier,
    PythonVerifier,
    QaVerifier,
    StructuredJsonVerifier,
    ToolCallVerifier,
    VerifierSettings,
)
from ratchet.run.records import Prompt
from ratchet.verifiers import KINDS, make_verifier
from ratchet.verifiers.base import Example

CALL = KINDS["tool_call"].example().ground_truth
OF_CALLS = CompositeVerifier(
    parts=(
        CompositePart(verifier=StructuredJsonVerifier(fields=("name",)), weight=2.0),
        CompositePart(verifier=ToolCallVerifier(metric="name_match")),
        CompositePart(verifier=QaVerifier(metric="token_f1")),
    ),
    correctness_from=1,
)
# Kinds that need a process, a sandbox, a package or a function are tested on their examples below.
CASES = {
    **{
        name: kind.example()
        for name, kind in KINDS.items()
        if name not in ("math", "code", "custom", "reasoning_gym", "python")
    },
    "composite of calls": Example(OF_CALLS, CALL, CALL, "7", KINDS["tool_call"].example().extras),
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
    case = CASES[kind]
    first, second = (
        make_verifier(case.settings, prefer_answer_tag=prefer_answer_tag).grade(text, case.prompt) for _ in "ab"
    )
    assert first == second
    assert first.outcome in ("graded", "unparseable")
    assert 0 <= first.correctness <= 1
    assert first.correctness == 0 or first.outcome == "graded"
    assert first.score is None or 0 <= first.score <= 1
    assert all(0 <= number <= 1 for number in first.parts.values())


@pytest.mark.parametrize("kind", [*sorted(KINDS.keys() - {"python", "code", "custom"}), "composite of calls"])
def test_the_reference_and_the_right_answer_pass_and_the_wrong_one_does_not(kind):
    case = CASES.get(kind) or KINDS[kind].example()
    verifier = make_verifier(case.settings)
    assert verifier.check_ground_truth(case.prompt) is None
    found = [verifier.grade(text, case.prompt) for text in (case.ground_truth, case.right, case.wrong)]
    verifier.close()
    assert [(one.outcome, one.correctness == 1) for one in found[:2]] == [("graded", True)] * 2
    assert found[2].correctness < 1
    if not isinstance(case.settings, CompositeVerifier):
        assert {part for one in found for part in one.parts} <= set(KINDS[kind].metrics)


@pytest.mark.parametrize("kind", sorted(CASES.keys() - {"math_pairs", "final_number"}))
def test_the_answer_tag_is_read_where_the_tags_bonus_is_on(kind):
    case = CASES[kind]
    text = f"<think>{case.ground_truth} or not</think>\n<answer>{case.ground_truth}</answer>"
    assert make_verifier(case.settings, prefer_answer_tag=True).grade(text, case.prompt).correctness == 1.0
    assert make_verifier(case.settings).grade(text, case.prompt).correctness < 1.0


def test_a_function_reads_the_answer_tag_there_too():
    verifier = make_verifier(PythonVerifier(), prefer_answer_tag=True, function=lambda answer, truth: answer == truth)
    assert verifier.grade("<think>x</think><answer>7</answer>", Prompt(1, (), "7")).correctness == 1.0


def test_every_kind_states_its_metrics_and_the_settings_offer_no_other():
    union, _ = get_args(VerifierSettings)
    assert [kind.settings for kind in KINDS.values()] == list(get_args(union))
    for name, kind in KINDS.items():
        assert (name,) == get_args(kind.settings.model_fields["kind"].annotation)
        assert all(text.endswith(".") for text in kind.metrics.values())
        if name != "custom" and "metric" in kind.settings.model_fields:  # there it is the name of a metric
            field = kind.settings.model_fields["metric"]
            assert set(get_args(field.annotation)) == set(kind.metrics)
            assert field.default == next(iter(kind.metrics))
