"""Made-up answers with known verdicts: what they are for each kind, and that they tell a good verifier from a bad one."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.config import (
    ClassificationVerifier,
    CodeVerifier,
    CompositePart,
    CompositeVerifier,
    CustomVerifier,
    FinalNumberVerifier,
    MathPairsVerifier,
    MathVerifier,
    NumericVerifier,
    PythonVerifier,
    QaVerifier,
    ReasoningGymVerifier,
    StructuredJsonVerifier,
    ToolCallVerifier,
)
from ratchet.readiness.probes import MOST_PROMPTS, WHAT, probes_of, run_probes
from ratchet.run.records import Grade, Prompt
from ratchet.verifiers import correctness_part, known_answers, make_verifier

SCHEMA = {"type": "object"}
KINDS = {
    "qa": QaVerifier(read="whole"),
    "classification": ClassificationVerifier(read="whole", labels=("ham", "spam", "Other")),
    "numeric": NumericVerifier(read="whole", absolute_tolerance=0.5, relative_tolerance=0.1),
    "structured_json": StructuredJsonVerifier(read="whole", schema=SCHEMA, fields=("city",)),
    "code": CodeVerifier(read="whole"),
    "tool_call": ToolCallVerifier(read="whole"),
    "custom": CustomVerifier(read="whole"),
    "reasoning_gym": ReasoningGymVerifier(read="whole"),
    "python": PythonVerifier(read="whole"),
    "math_pairs": MathPairsVerifier(read="whole"),
    "final_number": FinalNumberVerifier(read="whole"),
    "math": MathVerifier(read="whole", require_boxed=False),
}
PARTS = (
    CompositePart(verifier=ClassificationVerifier(labels=("ham", "spam", "Other"), read="whole")),
    CompositePart(verifier=QaVerifier(read="answer_tag")),
)
KINDS["composite"] = CompositeVerifier(read="whole", parts=PARTS)


def prompt(truth, number=1, question="What is it?", **extras):
    return Prompt(number, ({"role": "user", "content": question},), truth, extras)


def made(kind, truth, others=("ham", "spam"), *, read="whole", form="off", **extras):
    """Return (name, text) -> must it pass, of one prompt."""
    one = prompt(truth, **extras)
    known = known_answers(KINDS[kind], one, list(others))
    return {(probe.name, probe.text): probe.must_pass for probe in probes_of(one, known, read, form)}


def passing(probes):
    return {name: text for (name, text), must_pass in probes.items() if must_pass}


def failing(probes):
    return {name: text for (name, text), must_pass in probes.items() if not must_pass}


def test_every_kind_is_asked_nothing_blank_and_its_own_prompt():
    for kind in KINDS:
        wrong = failing(made(kind, "7"))
        assert (wrong["empty"], wrong["blank"].strip(), wrong["echo"]) == ("", "", "What is it?")
        assert set(wrong) | set(passing(made(kind, "7"))) <= set(WHAT)


def test_answers_that_end_in_a_number_by_hand():
    probes = made("final_number", "so #### 1200", form="tags")
    assert passing(probes) == {
        "right": "1200",
        "white_space": "\n  1200  \n",
        "full_stop": "The answer is 1200.",
        "bold": "**1200**",
        "units": "1200 apples",
        "thousands": "1,200",
        "trailing_zero": "1200.0",
        "in_form": "<think>Some steps.</think>\n<answer>1200</answer>",
    }
    wrong = failing(probes)
    assert wrong["wrong"] == "1201"
    assert wrong["wrong_in_form"] == "<think>Some steps.</think>\n<answer>1201</answer>"
    assert wrong["many_answers"] == "0 1 2 3 4 5 6 7 8 9 1200 1202 1201"
    assert wrong["beside_another"] == "It is 1200. No, it is 1201."
    assert "negated" not in wrong
    assert "thousands" not in passing(made("math_pairs", "56"))


def test_boxed_answers_by_hand():
    probes = made("math", "1234")
    assert passing(probes)["thousands"] == "\\boxed{1,234}"
    assert passing(probes)["units"] == "\\boxed{1234\\text{ cm}}"
    assert failing(probes)["wrong"] == "\\boxed{1235}"
    assert failing(probes)["many_boxes"].startswith("\\boxed{1235} \\boxed{1234} \\boxed{0} \\boxed{1}")
    assert failing(made("math", "\\frac{1}{2}"))["wrong"] == "\\boxed{\\frac{3}{2}}"
    assert failing(made("math", "x + 1"))["wrong"] == "\\boxed{x + 1 + 1}"


@pytest.mark.parametrize("truth", ["\\infty", "x = 3", "(1, 2)", "\\text{yes}", "\\{1\\}"])
def test_no_wrong_expression_is_claimed_where_adding_one_may_change_nothing(truth):
    assert not {"wrong", "many_boxes", "padding"} & set(failing(made("math", truth)))


def test_answers_to_questions_by_hand():
    probes = made("qa", "New York", others=("new york!", "Paris", "Rome"))
    assert passing(probes) == {
        "right": "New York",
        "white_space": "\n  New York  \n",
        "case": "nEW yORK",
        "full_stop": "New York.",
        "article": "The New York",
    }
    assert failing(probes)["wrong"] == "Paris"
    assert failing(probes)["many_answers"] == "Paris, Rome, New York"
    assert failing(probes)["negated"].startswith("It is not New York, ")


def test_labels_by_hand():
    probes = made("classification", "spam", others=())
    assert passing(probes) == {"right": "spam", "white_space": "\n  spam  \n", "case": "SPAM"}
    assert failing(probes)["all_labels"] == "ham, spam, Other"
    assert failing(probes)["wrong"] == "ham"


def test_numbers_by_hand_lie_beyond_both_tolerances():
    # -(10 + 1 + 2 * 0.5) = -12, and on the other side of zero for a negative one
    probes = made("numeric", "10")
    assert float(failing(probes)["wrong"]) == -12
    assert float(failing(made("numeric", "-2.5"))["wrong"]) == 4.5
    assert failing(probes)["beside_another"].startswith("10 or -12")
    assert passing(probes) == {"right": "10", "white_space": "\n  10  \n", "trailing_zero": "10.0"}


def test_json_by_hand_spoils_the_compared_fields_alone():
    probes = made("structured_json", '{"city": "Rome", "size": {"a": 1, "b": [2]}}')
    assert json.loads(failing(probes)["wrong"]) == {"city": "not Rome", "size": {"a": 1, "b": [2]}}
    assert passing(probes)["key_order"] == '{"size": {"b": [2], "a": 1}, "city": "Rome"}'
    assert passing(probes)["code_fence"] == '```json\n{"city": "Rome", "size": {"a": 1, "b": [2]}}\n```'


def test_a_number_too_large_to_be_told_from_the_next_one_is_spoilt_all_the_same():
    wrong = json.loads(failing(made("structured_json", '{"city": 1e300}'))["wrong"])
    assert wrong["city"] != 1e300


def test_letters_whose_case_cannot_be_turned_round_are_left_as_they_are():
    assert "case" not in passing(made("qa", "Straße"))
    assert "case" not in passing(made("qa", "42"))


@pytest.mark.parametrize(
    ("truth", "right", "wrong"),
    [("48", "48", "49"), ('"a"', '"a"', '"not a"'), ("[1, 2]", "[1, 2]", "[1, 2, 2]"), ("true", "true", "false")],
)
def test_json_need_not_be_an_object(truth, right, wrong):
    one = prompt(truth)
    known = known_answers(StructuredJsonVerifier(read="whole", metric="json_exact_match"), one, [])
    assert (known.right, known.wrong, known.mistakes["many_answers"]) == (right, wrong, f"{right}\n{wrong}")
    assert "key_order" not in known.variants


def test_what_a_metric_does_not_ask_for_is_no_mistake():
    form_alone = known_answers(StructuredJsonVerifier(read="whole", metric="schema_valid"), prompt('{"a": 1}'), [])
    assert (form_alone.right, form_alone.wrong) == ('{"a": 1}', None)
    assert "form alone" in form_alone.left_out["wrong"]
    call = prompt('{"name": "f", "arguments": {"x": 1}}', tools=[{"name": "f"}])
    for metric in ("name_match", "call_valid"):
        known = known_answers(ToolCallVerifier(read="whole", metric=metric), call, [])
        assert "wrong_arguments" not in known.mistakes
        assert known.left_out["wrong_arguments"] == f"{metric} does not compare arguments"


def test_programs_by_hand():
    solution = "def f(x):\n    return x + 1"
    probes = made("code", solution)
    assert passing(probes)["right"] == f"```python\n{solution}\n```"
    assert "sys.exit(0)" in failing(probes)["leaves_at_once"]
    assert "os._exit(0)" in failing(probes)["leaves_hard"]
    known = known_answers(KINDS["code"], prompt("passes all tests"), [])
    assert known.right is None
    assert "no Python program" in known.left_out["right"]


def test_calls_by_hand():
    truth = {"name": "weather", "arguments": {"city": "Rome", "days": 2}}
    tools = [{"type": "function", "function": {"name": "weather"}}, {"name": "news"}]
    probes = made("tool_call", json.dumps(truth), tools=tools)
    assert json.loads(passing(probes)["key_order"]) == truth
    assert passing(probes)["key_order"].startswith('{"arguments": {"days"')
    assert json.loads(failing(probes)["wrong_arguments"])["arguments"] == {"city": "not Rome", "days": 3}
    assert [json.loads(line)["name"] for line in failing(probes)["all_tools"].split("\n")] == ["weather", "news"]


def test_what_a_metric_of_the_users_own_takes_is_not_claimed_beyond_the_ground_truth():
    for kind in ("custom", "python", "reasoning_gym"):
        probes = made(kind, "Rome", others=("rome ", "Paris"))
        assert passing(probes) == {"right": "Rome", "white_space": "\n  Rome  \n"}
        assert failing(probes)["wrong"] == "Paris"
        assert "right" in known_answers(KINDS[kind], prompt(" "), []).left_out


def test_a_composite_is_probed_by_the_part_that_stands_for_correctness():
    assert made("composite", "spam") == made("classification", "spam")
    second = KINDS["composite"].model_copy(update={"correctness_from": 1})
    assert correctness_part(second) is KINDS["composite"].parts[1].verifier
    assert correctness_part(KINDS["qa"]) is KINDS["qa"]


@pytest.mark.parametrize("place", [0, 1])
def test_a_composite_is_probed_where_that_part_reads(place):
    verifier = KINDS["composite"].model_copy(update={"correctness_from": place})
    found = run_probes(make_verifier(verifier).grade, verifier, "off", [prompt("spam"), prompt("ham", 2)])
    assert found.false_negative_rate == 0.0


@pytest.mark.parametrize(
    ("read", "start", "end"),
    [("answer_tag", "Some steps.\n<answer>", "</answer>"), ("after_reasoning", "Some steps.</think>\n", "")],
)
def test_answers_stand_where_the_verifier_reads_and_nothing_is_nothing(read, start, end):
    probes = made("final_number", "5", read=read)
    assert passing(probes)["right"] == f"{start}5{end}"
    assert failing(probes)["echo"] == f"{start}What is it?{end}"
    assert failing(probes)["empty"] == ""


TRUTHS = {
    "math_pairs": ["56", "1200", "9"],
    "final_number": ["56", "1234.5", "-3", "so #### 12,000", "1e3"],
    "math": [
        "56",
        "1234",
        "\\frac{1}{2}",
        "x + 1",
        "50\\%",
        "\\infty",
        "(1,2)",
        "x=3",
        "2\\pi",
        "0.5",
        "-7",
        "\\text{yes}",
    ],
}


@pytest.mark.parametrize(
    ("kind", "read"),
    [("math_pairs", "whole"), ("final_number", "answer_tag"), ("final_number", "after_reasoning"), ("math", "whole")],
)
@pytest.mark.parametrize("form", ["off", "tags"])
def test_our_own_verifiers_give_every_verdict_as_it_should_be(kind, read, form):
    chosen = KINDS[kind].model_copy(update={"read": read})
    verifier = make_verifier(chosen, prefer_answer_tag=form == "tags")
    prompts = [
        prompt(truth, number, f"({number} + 1) * ({number} + 2)") for number, truth in enumerate(TRUTHS[kind], 3)
    ]
    try:
        found = run_probes(verifier.grade, chosen, form, prompts)
    finally:
        verifier.close()
    assert [(one.name, one.wrong, one.failed) for one in found.results if one.wrong or one.failed] == []
    assert (found.false_positive_rate, found.false_negative_rate) == (0.0, 0.0)
    assert found.prompts == len(prompts)
    assert {one.name for one in found.results} >= {"empty", "echo", "wrong", "right", "padding"}
    assert list(found.left_out) == [WHAT["negated"]]


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NEWS = {"type": "function", "function": {"name": "news", "parameters": {"type": "object", "properties": {}}}}
PEOPLE = ['{"name": "Ida", "age": 3}', '{"name": "Tom", "age": 41}']
CALLS = ['{"name": "weather", "arguments": {"city": "Rome"}}', '{"name": "news", "arguments": {}}']
OWN_ROWS = [
    (QaVerifier(read="whole"), ["New York", "Rome", "42"], {}),
    (KINDS["classification"], ["spam", "ham", "Other"], {}),
    (KINDS["numeric"], ["10", "-2.5", "1000"], {}),
    *((StructuredJsonVerifier(read="whole", metric=metric), PEOPLE, {"schema": {"type": "object", "required": ["name"]}})
      for metric in ("field_accuracy", "json_exact_match", "schema_valid")),
    (StructuredJsonVerifier(read="answer_tag", metric="json_exact_match"), ["48", "[1, 2]", '"a"', "{}", "null"], {}),
    *((ToolCallVerifier(read="whole", metric=metric), CALLS, {"tools": [WEATHER, NEWS]})
      for metric in ("call_match", "name_match", "call_valid")),
    (CompositeVerifier(read="whole", parts=PARTS, correctness_from=1), ["spam", "ham"], {}),
]  # fmt: skip


@pytest.mark.parametrize(("chosen", "truths", "extras"), OWN_ROWS)
def test_those_for_rows_of_ones_own_do_too(chosen, truths, extras):
    prompts = [prompt(truth, number, f"Number {number}?", **extras) for number, truth in enumerate(truths, 3)]
    verifier = make_verifier(chosen)
    assert [verifier.check_ground_truth(one) for one in prompts] == [None] * len(prompts)
    found = run_probes(verifier.grade, chosen, "off", prompts)
    assert [(one.name, one.wrong, one.failed) for one in found.results if one.wrong or one.failed] == []
    assert {one.name for one in found.results} >= {"empty", "echo", "right", "white_space"}


def test_where_no_right_answer_is_known_that_is_said():
    found = run_probes(by(lambda text, truth: False), KINDS["numeric"], "off", [prompt("about ten")])
    assert found.false_negative_rate is None
    assert found.left_out == {"the correct answer": "none is known for ground truths such as these"}


def by(rule):
    """Return a verifier of one rule: (answer, ground truth) -> is it right?"""
    return lambda text, one: Grade(float(rule(text, one.ground_truth)), "graded")


def squad(text):
    return " ".join(re.sub(r"\b(a|an|the)\b|[^\w\s]", " ", text.casefold()).split())


def as_json(text):
    try:
        return json.loads(re.sub(r"\A\s*```json\n|\n?```\s*\Z", "", text))
    except ValueError:
        return None


def as_number(text):
    try:
        return float(text)
    except ValueError:
        return None


# As product pages define the kinds: each written here in a line or two, so that the probes are checked against them.
DEFINITIONS = {
    "qa": lambda text, truth: squad(text) == squad(truth),
    "classification": lambda text, truth: text.strip().casefold() == truth.casefold(),
    "numeric": lambda text, truth: (
        as_number(text) is not None and abs(as_number(text) - float(truth)) <= max(0.5, 0.1 * abs(float(truth)))
    ),
    "structured_json": lambda text, truth: (
        isinstance(as_json(text), dict) and as_json(text).get("city") == json.loads(truth)["city"]
    ),
    "tool_call": lambda text, truth: as_json(text) == json.loads(truth),
    "custom": lambda text, truth: text.strip() == truth,
}
EXAMPLES = {
    "qa": ["New York", "the Pope", "42"],
    "classification": ["spam", "ham", "Other"],
    "numeric": ["10", "-2.5", "1000"],
    "structured_json": ['{"city": "Rome", "n": 1}', '{"city": "Bonn", "n": [1, 2]}'],
    "tool_call": ['{"name": "f", "arguments": {"x": 1}}', '{"name": "g", "arguments": {}}'],
    "custom": ["Rome", "3 of 4"],
}


def probed(kind, rule):
    prompts = [prompt(truth, number) for number, truth in enumerate(EXAMPLES[kind])]
    return run_probes(by(rule), KINDS[kind], "off", prompts)


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_a_verifier_that_keeps_to_its_kinds_definition_is_found_to_be_right(kind):
    found = probed(kind, DEFINITIONS[kind])
    assert [(one.name, one.wrong) for one in found.results if one.wrong] == []
    assert (found.false_positive_rate, found.false_negative_rate) == (0.0, 0.0)


@pytest.mark.parametrize("kind", ["qa", "classification", "numeric", "custom"])
def test_a_verifier_that_searches_for_the_ground_truth_is_caught(kind):
    found = probed(kind, lambda text, truth: truth in text)
    caught = {one.name for one in found.results if one.wrong and not one.must_pass}
    assert "negated" in caught
    assert caught & {"many_answers", "all_labels", "beside_another"} or kind == "custom"
    assert found.false_positive_rate > 0


def test_a_verifier_that_is_pedantic_is_caught():
    found = probed("classification", lambda text, truth: text == truth)
    assert {one.name for one in found.results if one.wrong} == {"white_space", "case"}
    assert (found.false_positive_rate, found.false_negative_rate) == (0.0, 2 / 3)


def test_a_verifier_that_likes_everything_or_nothing_has_a_rate_of_one():
    assert probed("qa", lambda text, truth: True).false_positive_rate == 1
    assert probed("qa", lambda text, truth: False).false_negative_rate == 1


def test_answers_on_which_the_verifier_fails_are_in_neither_rate():
    def grade(text, one):
        return (
            Grade(float(text.strip() == one.ground_truth), "graded")
            if text
            else Grade(0.0, "failed", failure="execution")
        )

    found = run_probes(grade, KINDS["custom"], "off", [prompt("Rome"), prompt("Paris", 2)])
    empty = next(one for one in found.results if one.name == "empty")
    assert (empty.tried, empty.wrong, empty.failed) == (2, 0, 2)
    assert (found.false_positive_rate, found.false_negative_rate) == (0.0, 0.0)

    def grade_bare(text, one):
        failed = Grade(0.0, "failed", failure="time")
        return failed if text.startswith("\n") else Grade(float(text == one.ground_truth), "graded")

    bare = run_probes(grade_bare, KINDS["custom"], "off", [prompt("Rome"), prompt("Paris", 2)])
    spaced = next(one for one in bare.results if one.name == "white_space")
    assert (spaced.tried, spaced.wrong, spaced.failed) == (2, 0, 2)
    assert bare.false_negative_rate == 0.0
    all_fail = run_probes(
        lambda text, one: Grade(0.0, "failed", failure="time"), KINDS["custom"], "off", [prompt("Rome")]
    )
    assert (all_fail.false_positive_rate, all_fail.false_negative_rate) == (None, None)


def test_more_prompts_than_are_tried_serve_as_wrong_answers():
    prompts = [prompt(f"city {number}", number) for number in range(MOST_PROMPTS + 4)]
    found = run_probes(by(lambda text, truth: text.strip() == truth), KINDS["custom"], "off", prompts)
    assert found.prompts == MOST_PROMPTS
    assert all(one.tried == MOST_PROMPTS for one in found.results if one.name in ("wrong", "right"))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.text(max_size=40) | st.from_regex(r"-?[0-9]{1,30}(\.[0-9]+)?", fullmatch=True) | st.just('{"a": null, "b": {}}'),
    st.text(max_size=20),
)
def test_any_ground_truth_whatever_can_be_probed(kind, truth, question):
    one = prompt(truth, question=question)
    list(probes_of(one, known_answers(KINDS[kind], one, [truth, question]), "answer_tag", "tags"))
