"""Math Pairs: right products, splits disjoint by class, exact counts, no leak through the worked examples."""

import re
from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.config import MathPairsData
from ratchet.datasets import math_pairs_source
from ratchet.datasets.math_pairs_source import problem_class, solve, unused_problems
from ratchet.errors import InvalidSetting

ONE_TO_FIVE = MathPairsData(smallest=1, largest=5)
HUGE = MathPairsData(pairs=6, smallest=1, largest=999, prompts=2_000, heldout=1_000)


def load(data, validation_prompts=128, format_kind="tags"):
    return math_pairs_source.load(data, validation_prompts=validation_prompts, format_kind=format_kind)


def texts(prompts):
    return [prompt.messages[0]["content"] for prompt in prompts]


def class_of(text):
    """The class, computed without the code under test."""
    numbers = [int(digits) for digits in re.findall(r"\d+", text)]
    return frozenset(Counter(tuple(sorted(numbers[i : i + 2])) for i in range(0, len(numbers), 2)).items())


def distinct_training_problems(data):
    """How many the refusal says there are."""
    with pytest.raises(InvalidSetting) as refused:
        load(data.model_copy(update={"prompts": 100_000}))
    assert refused.value.field == "data.prompts"
    return int(re.search(r"to train on is ([\d,]+)\.", str(refused.value))[1].replace(",", ""))


@st.composite
def spaces(draw):
    smallest = draw(st.integers(0, 20))
    return MathPairsData(
        pairs=draw(st.integers(1, 3)),
        smallest=smallest,
        largest=smallest + draw(st.integers(1, 3)),
        prompts=8,
        heldout=draw(st.integers(0, 60)),
        seed=draw(st.integers(0, 2**31 - 1)),
    )


@settings(max_examples=40, deadline=None)
@given(spaces())
def test_every_split_is_right_distinct_and_disjoint_by_class(data):
    exist = distinct_training_problems(data)
    if exist < 8:
        return
    dataset = load(data.model_copy(update={"prompts": exist}))
    splits = [texts(split) for split in (dataset.train, dataset.validation, dataset.heldout)]
    assert len(splits[0]) == exist
    assert splits[1]
    for prompt in (*dataset.train, *dataset.validation, *dataset.heldout):
        assert prompt.ground_truth == str(eval(prompt.messages[0]["content"]))
        assert prompt.messages[0]["role"] == "user"
    for split in splits:
        assert len(set(split)) == len(split)
    seen = [set(map(class_of, split)) for split in (*splits, [example.user for example in dataset.examples])]
    assert sum(map(len, seen)) == len(set().union(*seen))


@pytest.mark.parametrize(
    "space", [{"pairs": 1, "largest": 9}, {"largest": 4}, {"pairs": 3, "smallest": 0, "largest": 2}], ids=str
)
def test_the_shares_and_the_examples_hold_every_problem_of_the_space(space):
    data = MathPairsData(**space, prompts=8, heldout=10_000)
    dataset = load(data, 1024)
    held = len(dataset.validation) + len(dataset.heldout) + distinct_training_problems(data)
    examples = {class_of(example.user) for example in dataset.examples}
    flats = product(range(data.smallest, data.largest + 1), repeat=2 * data.pairs)
    listed = [" * ".join(f"({a} + {b})" for a, b in zip(flat[::2], flat[1::2], strict=True)) for flat in flats]
    assert examples
    assert held == sum(class_of(text) not in examples for text in listed)


def test_asking_for_one_problem_too_many_is_refused_with_the_count():
    exist = distinct_training_problems(ONE_TO_FIVE)
    assert len(load(ONE_TO_FIVE.model_copy(update={"prompts": exist})).train) == exist
    with pytest.raises(InvalidSetting, match=f"is {exist + 1}, but .* is {exist}. Choose {exist} or less"):
        load(ONE_TO_FIVE.model_copy(update={"prompts": exist + 1}))


def test_a_space_of_three_classes_is_refused_without_offering_a_forbidden_number():
    with pytest.raises(InvalidSetting, match=r"train on is 1\. Choose more pairs or a wider range"):
        load(MathPairsData(pairs=1, smallest=1, largest=2, prompts=8))


@pytest.mark.parametrize("seed", range(5))
def test_numbers_one_to_five_hold_out_a_quarter_of_625_problems(seed):
    data = ONE_TO_FIVE.model_copy(update={"seed": seed})
    dataset = load(data, 1024)
    assert 145 <= len(dataset.heldout) <= 165
    assert len(set(map(class_of, texts(dataset.heldout)))) == 30
    assert len(set(map(class_of, texts(dataset.validation)))) == 18
    assert len(dataset.examples) == 16
    assert f"Held-out prompts is 512, but only {len(dataset.heldout)} problems" in dataset.notes[1]
    assert f"Validation sample is 1,024, but only {len(dataset.validation)} problems" in dataset.notes[0]


def test_each_class_comes_once_before_any_comes_twice():
    dataset = load(ONE_TO_FIVE.model_copy(update={"prompts": 150}))
    classes = [class_of(text) for text in texts(dataset.train)]
    assert len(set(classes[:56])) == 56
    assert len(set(classes)) == 56


def test_the_default_settings_give_what_they_ask_for():
    dataset = load(MathPairsData())
    assert (len(dataset.train), len(dataset.validation), len(dataset.heldout)) == (256, 128, 512)
    assert [prompt.id for prompt in dataset.heldout] == list(range(1, 513))
    assert dataset.notes == ()


@pytest.mark.parametrize("data", [MathPairsData(), HUGE], ids=["listed", "drawn"])
def test_the_seed_decides_and_more_prompts_only_add(data):
    first, again = load(data), load(data)
    assert first == again
    assert load(data.model_copy(update={"seed": 1})).train != first.train
    more = load(data.model_copy(update={"prompts": data.prompts + 50, "heldout": 0}))
    assert more.train[: data.prompts] == first.train
    assert more.validation == first.validation
    assert more.heldout == ()


def test_the_default_problems_are_the_same_on_every_machine():
    assert texts(load(MathPairsData()).train)[:3] == ["(3 + 5) * (9 + 6)", "(8 + 1) * (6 + 6)", "(2 + 6) * (9 + 9)"]


def test_a_huge_space_is_drawn_in_shares_without_listing_it():
    dataset = load(HUGE, 500)
    assert (len(dataset.train), len(dataset.validation), len(dataset.heldout)) == (2_000, 500, 1_000)
    splits = [set(map(problem_class, texts(split))) for split in (dataset.train, dataset.validation, dataset.heldout)]
    splits.append({problem_class(example.user) for example in dataset.examples})
    assert sum(map(len, splits)) == len(set().union(*splits)) == 3_516
    assert all(prompt.ground_truth == str(eval(prompt.messages[0]["content"])) for prompt in dataset.train[:50])
    numbers = [int(digits) for text in texts(dataset.train) for digits in re.findall(r"\d+", text)]
    assert (min(numbers), max(numbers)) == (1, 999)


def test_drawn_training_problems_keep_clear_of_the_worked_examples(monkeypatch):
    monkeypatch.setattr(math_pairs_source, "MOST_LISTED_CLASSES", 0)
    dataset = load(MathPairsData(prompts=550, heldout=100))  # of about 620 classes: a clash would be all but certain
    trained = set(map(class_of, texts(dataset.train)))
    assert len(trained) == 550
    assert not trained & {class_of(example.user) for example in dataset.examples}


def test_hashed_shares_are_near_60_15_25():
    classes = list(math_pairs_source._all_classes(MathPairsData(smallest=1, largest=15)))
    shares = Counter(math_pairs_source._hashed_split(one, 0) for one in classes)
    assert {split: round(number / len(classes), 2) for split, number in shares.items()} == pytest.approx(
        {"train": 0.60, "validation": 0.15, "heldout": 0.25}, abs=0.02
    )


def test_unused_problems_are_all_orderings_of_classes_in_no_split():
    data = MathPairsData()
    dataset, unused = load(data), unused_problems(data, 128)
    used = {class_of(text) for split in (dataset.train, dataset.validation, dataset.heldout) for text in texts(split)}
    everything = [f"({a} + {b}) * ({c} + {d})" for a, b, c, d in product(range(1, 10), repeat=4)]
    assert sorted(unused) == sorted(text for text in everything if class_of(text) not in used)
    assert len(set(map(class_of, unused))) == 392


def test_unused_problems_of_a_huge_space_cannot_be_listed():
    with pytest.raises(ValueError, match="too many to list"):
        unused_problems(HUGE, 128)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(3 + 4) * (2 + 6)", 56),
        (" (3+4)*(2 + 6)\n", 56),
        ("(3 + 4)", 7),
        ("(1 + 1) * (0 + 3) * (2 + 2)", 24),
        ("(3 - 4) * (2 + 6)", None),
        ("(3 + 4) * (2 + 6", None),
        ("3 + 4", None),
        ("(3 + 4 + 1) * (2 + 6)", None),
        ("", None),
        ("(٣ + 4)", None),
    ],
)
def test_solve_reads_problems_and_nothing_else(text, value):
    assert solve(text) == value
    assert (problem_class(text) is None) == (value is None)


def test_a_class_ignores_order_within_pairs_and_of_pairs_only():
    assert problem_class("(3 + 4) * (2 + 6)") == problem_class("(6 + 2) * (4 + 3)") == ((2, 6), (3, 4))
    assert problem_class("(3 + 2) * (4 + 6)") != problem_class("(3 + 4) * (2 + 6)")


@pytest.mark.parametrize(
    ("text", "format_kind", "assistant"),
    [
        ("(2 + 5) * (5 + 2)", "off", "2 + 5 = 7, 5 + 2 = 7, 7 * 7 = 49"),
        ("(2 + 5) * (5 + 2)", "tags", "<think>2 + 5 = 7, 5 + 2 = 7, 7 * 7 = 49</think>\n<answer>49</answer>"),
        ("(2 + 5) * (5 + 2)", "boxed", "2 + 5 = 7, 5 + 2 = 7, 7 * 7 = 49\n\\boxed{49}"),
        ("(2 + 5) * (5 + 2) * (1 + 2)", "off", "2 + 5 = 7, 5 + 2 = 7, 1 + 2 = 3, 7 * 7 = 49, 49 * 3 = 147"),
        ("(2 + 5)", "pattern", "2 + 5 = 7"),
    ],
)
def test_worked_examples_show_every_step_in_the_asked_form(text, format_kind, assistant):
    assert math_pairs_source.worked_example(text, format_kind).assistant == assistant


def test_a_worked_example_of_something_else_is_our_bug():
    with pytest.raises(ValueError, match="not a Math Pairs problem"):
        math_pairs_source.worked_example("2 + 2", "off")


@pytest.mark.parametrize(
    ("format_kind", "words"),
    [("tags", "<answer></answer>"), ("boxed", "\\boxed{}"), ("off", "end with the final number")],
)
def test_the_instruction_asks_for_the_form(format_kind, words):
    assert words in load(MathPairsData(), format_kind=format_kind).instruction
