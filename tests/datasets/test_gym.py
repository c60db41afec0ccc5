"""Tasks of reasoning-gym: their problems, and grades that are those of the task's own scorer."""

import inspect
import re

import pytest

from ratchet.config import ReasoningGymData, ReasoningGymVerifier
from ratchet.datasets import load
from ratchet.datasets.gym import EXTRA
from ratchet.errors import IncompatibleData, InvalidSetting
from ratchet.verifiers import make_verifier
from ratchet.verifiers.reasoning_gym import RUN_ANSWERS

reasoning_gym = pytest.importorskip("reasoning_gym")


def made(task="chain_sum", validation=8, **settings):
    return load(ReasoningGymData(task=task, **settings), validation_prompts=validation, format_kind="off")


@pytest.fixture
def verifier():
    return make_verifier(ReasoningGymVerifier(read="whole"))


def texts(prompts):
    return [prompt.messages[0]["content"] for prompt in prompts]


def test_problems_come_from_the_seed_and_are_those_of_the_package():
    dataset = made(size=20, seed=3)
    expected = reasoning_gym.create_dataset("chain_sum", seed=3, size=20)
    assert texts(dataset.train) == [entry["question"] for entry in expected]
    assert [prompt.ground_truth for prompt in dataset.train] == [entry["answer"] for entry in expected]
    assert made(size=20, seed=3) == dataset
    assert texts(made(size=20, seed=4).train) != texts(dataset.train)


def test_neighbouring_seeds_share_problems_and_validation_shares_none_with_training():
    # The reason for the distance between the ranges: problem n of seed s is problem n - 1 of seed s + 1.
    assert texts(made(size=20, seed=4).train)[0] == texts(made(size=20, seed=3).train)[1]
    dataset = made(size=200, validation=50)
    assert not set(texts(dataset.train)) & set(texts(dataset.validation))
    assert not any("left out of training" in note for note in dataset.notes)


def test_what_comes_up_in_both_leaves_training():
    few = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    dataset = made(size=300, task_config=few)
    assert dataset.train
    assert not set(texts(dataset.train)) & set(texts(dataset.validation))
    assert any(
        "left out of training because the validation split has the same prompt" in note for note in dataset.notes
    )
    with pytest.raises(IncompatibleData, match="makes too few different problems"):
        made(size=2, validation=1024, task_config=few)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "chain_sun"}, "has no task chain_sun. Did you mean chain_sum"),
        ({"task_config": {"seed": 3}}, "Task settings hold seed, which is a setting of its own"),
        ({"task_config": {"nonsense": 3}}, "Task chain_sum does not take these settings"),
        ({"task_config": {"min_terms": 0}}, "Task chain_sum does not take these settings"),
        ({"task": "composite"}, "Task composite does not take these settings"),
    ],
)
def test_tasks_and_settings_that_do_not_exist_are_refused(settings, message):
    with pytest.raises(InvalidSetting, match=re.escape(message)):
        made(**settings)


def test_grades_are_the_scores_of_the_task(verifier):
    dataset = made("letter_counting", size=10)
    score = reasoning_gym.get_score_answer_fn("letter_counting")
    for prompt in dataset.train:
        entry = prompt.extras[EXTRA]["entry"]
        assert verifier.check_ground_truth(prompt) is None
        for answer in (prompt.ground_truth, f"{prompt.ground_truth} letters", "none at all"):
            grade = verifier.grade(f"<think>?</think><answer> {answer}\n</answer>", prompt)
            assert (grade.outcome, grade.correctness) == ("graded", score(answer, entry))
    assert verifier.grade(prompt.ground_truth, prompt).correctness == 1


@pytest.mark.parametrize("text", ["", " ", "<answer></answer>", "x" * 20_001])
def test_an_empty_or_endless_answer_is_unparseable(verifier, text):
    assert verifier.grade(text, made(size=2).train[0]).outcome == "unparseable"


def test_an_answer_on_which_the_scorer_raises_is_unparseable(verifier):
    prompt = made("prime_factorization", size=2).train[0]
    with pytest.raises(ValueError, match="invalid literal"):
        reasoning_gym.get_score_answer_fn("prime_factorization")("two", prompt.extras[EXTRA]["entry"])
    assert verifier.grade("two", prompt).outcome == "unparseable"
    assert verifier.grade(prompt.ground_truth, prompt).correctness == 1


def test_a_task_that_names_no_solution_can_still_be_graded(verifier):
    prompt = made("graph_color", size=2).train[0]
    assert prompt.ground_truth == ""
    assert verifier.check_ground_truth(prompt) is None
    assert verifier.grade("{}", prompt).correctness < 1


def test_rows_of_another_source_are_refused(verifier):
    from ratchet.run.records import Prompt

    assert "was not made by a task" in verifier.check_ground_truth(Prompt(1, (), "7"))


def test_scorers_that_run_answers_as_code_are_refused_and_never_called(verifier, tmp_path):
    prompt = made("string_insertion", size=2).train[0]
    assert "would run answers as Python code" in verifier.check_ground_truth(prompt)
    trace = tmp_path / "trace"
    attack = f"[__import__('os').mkdir({str(trace)!r}) or 'a']"
    assert verifier.grade(attack, prompt).outcome == "unparseable"
    assert not trace.exists()
    # Without the refusal it would have run.
    reasoning_gym.get_score_answer_fn("string_insertion")(attack, prompt.extras[EXTRA]["entry"])
    assert trace.exists()


def test_the_list_of_such_tasks_is_that_of_the_installed_version():
    from reasoning_gym.factory import DATASETS

    runs = re.compile(r"(?<!\.)\b(?:eval|exec)\(|(?:sympy|sp)\.parse_expr\(|(?:sympify|S)\(")
    imported = re.compile(r"from sympy\S* import .*\b(parse_expr|sympify)\b")
    found = set()
    for name, (kind, _) in DATASETS.items():
        scorer = inspect.getsource(kind.score_answer)
        uses_import = imported.search(inspect.getsource(inspect.getmodule(kind))) and "parse_expr(" in scorer
        if uses_import or runs.search(scorer):
            found.add(name)
    # eval of the task's own entry is no danger: number_sorting.
    assert found - {"number_sorting"} == RUN_ANSWERS
