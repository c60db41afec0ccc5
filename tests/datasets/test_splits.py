"""Which rows are trained on and which validate: duplicates, shares, rows and sample."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.config import BoxedData
from ratchet.datasets.splits import split
from ratchet.errors import IncompatibleData
from ratchet.run.records import Prompt

DATA = BoxedData(path="x")


def prompt(number, text=None, truth="1"):
    return Prompt(id=number, messages=({"role": "user", "content": text or f"q{number}"},), ground_truth=truth)


def rows(count):
    return [prompt(number) for number in range(1, count + 1)]


def ids(prompts):
    return [one.id for one in prompts]


def settings_with(**changes):
    return DATA.model_copy(update=changes)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), min_size=1, max_size=60), st.integers(0, 3))
def test_no_prompt_is_in_both_splits_or_twice_in_one_and_none_is_lost(letters, seed):
    table = [prompt(number, text) for number, text in enumerate(letters, start=1)]
    if len(set(letters)) < 2:
        with pytest.raises(IncompatibleData, match="at least two different prompts"):
            split(table, None, settings_with(seed=seed), 1024)
        return
    splits = split(table, None, settings_with(seed=seed), 1024)
    kept = [one.messages[0]["content"] for one in (*splits.train, *splits.validation)]
    assert sorted(kept) == sorted(set(letters))
    assert len(splits.validation) == max(1, len(set(letters)) // 10)


@pytest.mark.parametrize(("count", "validation"), [(2, 1), (19, 1), (40, 4), (20_000, 1_000)])
def test_a_tenth_but_at_least_one_and_at_most_a_thousand_rows_validate(count, validation):
    splits = split(rows(count), None, DATA, 1024)
    assert (len(splits.train), len(splits.validation)) == (count - validation, validation)


def test_duplicates_differ_in_case_and_spacing_only_and_the_first_is_kept():
    table = [
        prompt(1, "What  is\nX?"),
        prompt(2, " what is x? ", truth="2"),
        prompt(3, "What is X ?"),
        prompt(4, "What is X?"),
    ]
    splits = split(table, None, DATA, 128)
    assert sorted(ids((*splits.train, *splits.validation))) == [1, 3]
    assert splits.notes[0] == (
        "2 rows left out because an earlier row has the same prompt, 1 of them with another ground truth."
    )


def test_a_given_validation_split_is_kept_and_what_it_shares_with_train_leaves_train():
    given = [prompt(1, "q2"), prompt(2, "q2"), prompt(3, "other")]
    splits = split(rows(3), given, DATA, 3)
    assert ids(splits.train) == [1, 3]
    assert list(splits.validation) == given
    assert splits.notes == ("1 row left out of training because the validation split has the same prompt.",)


def test_a_train_split_wholly_inside_the_validation_split_is_refused():
    with pytest.raises(IncompatibleData, match="Of 2 rows none is left to train on"):
        split(rows(2), rows(2), DATA, 3)


def test_the_first_rows_or_a_seeded_sample_of_them_are_used():
    whole = split(rows(100), None, DATA, 128).train
    first = split(rows(100), None, settings_with(rows=10), 128).train
    sample = split(rows(100), None, settings_with(rows=10, pick="sample"), 128).train
    assert first == whole[:10]
    assert sample != first
    assert ids(sample) == sorted(set(ids(sample)) & set(ids(whole)))
    assert len(sample) == 10
    assert sample == split(rows(100), None, settings_with(rows=10, pick="sample"), 128).train


def test_more_rows_or_validation_prompts_than_exist_are_noted():
    splits = split(rows(20), None, settings_with(rows=50), 128)
    assert splits.notes == (
        "Rows used is 50, but only 18 are there to train on: all are used.",
        "Validation sample is 128, but only 2 rows exist for it: all are used.",
    )


def test_the_seed_decides_split_and_validation_sample_and_rows_used_does_not_move_it():
    first = split(rows(500), None, DATA, 8)
    assert first == split(rows(500), None, DATA, 8)
    assert len(first.validation) == 8
    assert split(rows(500), None, settings_with(rows=10), 8).validation == first.validation
    assert split(rows(500), None, settings_with(seed=1), 8).validation != first.validation
    assert ids(first.validation) == sorted(ids(first.validation))
