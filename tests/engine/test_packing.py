"""Packed rows: what is in them, worked by hand, and that a budget only moves answers between rows."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratchet.engine import packing
from ratchet.engine.packing import PackedAnswer, PackedGroup, common_prefix, pack

from .models import random_ids

CPU = torch.device("cpu")
# Prompt (1, 2, 3) with two answers, prompt (4, 5) with one of a single token.
ANSWERS = [
    PackedAnswer((1, 2, 3), (10, 11, 12), 7),
    PackedAnswer((1, 2, 3), (20, 21), 8),
    PackedAnswer((4, 5), (30,), 9),
]


def test_a_row_worked_by_hand():
    (row,) = pack(ANSWERS, 100, device=CPU, plain=False)
    # The last token of each answer predicts nothing, so it is a target alone.
    assert row.input_ids.tolist() == [1, 2, 3, 10, 11, 20, 4, 5]
    assert row.position_ids.tolist() == [0, 1, 2, 3, 4, 3, 0, 1]
    assert row.prefix_length == 0
    assert row.groups == (PackedGroup((0, 3), ((3, 2), (5, 1))), PackedGroup((6, 2), ((8, 0),)))
    assert row.sources.tolist() == [2, 3, 4, 2, 5, 7]
    assert row.targets.tolist() == [10, 11, 12, 20, 21, 30]
    assert row.places.tolist() == [0, 1, 2, 3, 4, 5]
    assert row.answer_index.tolist() == [0, 0, 0, 1, 1, 2]
    assert row.numbers == (7, 8, 9)
    assert not row.is_plain


def test_a_token_sees_its_prompt_and_its_own_answer_so_far():
    (row,) = pack(ANSWERS, 100, device=CPU, plain=False)
    mask = row.attention_mask(torch.float32)
    assert mask.shape == (1, 1, 8, 8)
    assert (mask[0, 0] == 0).int().tolist() == [
        #    1  2  3 10 11 20  4  5
        [1, 0, 0, 0, 0, 0, 0, 0],  # 1
        [1, 1, 0, 0, 0, 0, 0, 0],  # 2
        [1, 1, 1, 0, 0, 0, 0, 0],  # 3
        [1, 1, 1, 1, 0, 0, 0, 0],  # 10
        [1, 1, 1, 1, 1, 0, 0, 0],  # 11
        [1, 1, 1, 0, 0, 1, 0, 0],  # 20, in the second answer
        [0, 0, 0, 0, 0, 0, 1, 0],  # 4, the next prompt
        [0, 0, 0, 0, 0, 0, 1, 1],  # 5
    ]
    assert mask.min() == torch.finfo(torch.float32).min


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_mask_is_of_the_models_dtype_and_finite_in_it(dtype):
    (row,) = pack(ANSWERS, 100, device=CPU, plain=False)
    mask = row.attention_mask(dtype)
    assert mask.dtype == dtype
    assert mask.isfinite().all()


def test_plain_rows_hold_one_answer_each():
    rows = pack(ANSWERS, 100, device=CPU, plain=True)
    assert [row.input_ids.tolist() for row in rows] == [[1, 2, 3, 10, 11], [1, 2, 3, 20], [4, 5]]
    assert [row.sources.tolist() for row in rows] == [[2, 3, 4], [2, 3], [1]]
    assert [row.answer_index.tolist() for row in rows] == [[0, 0, 0], [0, 0], [0]]
    assert all(row.is_plain for row in rows)


@pytest.mark.parametrize(
    ("budget", "numbers"),
    [
        (11, [(7, 8, 9)]),  # 3 + 3 + 2, then 2 + 1
        (10, [(7, 8), (9,)]),
        (8, [(7, 8), (9,)]),
        (7, [(7,), (8,), (9,)]),  # alone the second answer brings its prompt along: 3 + 2, so 2 + 1 is too much
        (5, [(7,), (8,), (9,)]),  # the first alone is longer than this
        (1, [(7,), (8,), (9,)]),
    ],
)
def test_rows_are_filled_up_to_the_budget_in_order(budget, numbers):
    assert [row.numbers for row in pack(ANSWERS, budget, device=CPU, plain=False)] == numbers


def test_each_row_has_the_whole_budget_anew():
    # 3 + 5 + 5 = 13 twice
    answers = [PackedAnswer((1, 2, 3), (number,) * 5, number) for number in range(4)]
    assert [row.numbers for row in pack(answers, 13, device=CPU, plain=False)] == [(0, 1), (2, 3)]


def test_the_same_prompt_after_another_one_is_a_group_of_its_own():
    back = [*ANSWERS, PackedAnswer((1, 2, 3), (40, 41), 10)]
    (row,) = pack(back, 100, device=CPU, plain=False)
    assert [group.prompt for group in row.groups] == [(0, 3), (6, 2), (8, 3)]
    assert row.groups[2].answers == ((11, 1),)
    assert row.sources.tolist()[-2:] == [10, 11]


def test_answers_that_are_alike_are_computed_once():
    twice = [*ANSWERS[:2], PackedAnswer((1, 2, 3), (10, 11, 12), 5), PackedAnswer((4, 5), (10, 11, 12), 6)]
    (row,) = pack(twice, 100, device=CPU, plain=False)
    # After another prompt the same tokens are another answer.
    assert row.input_ids.tolist() == [1, 2, 3, 10, 11, 20, 4, 5, 10, 11]
    assert row.groups == (PackedGroup((0, 3), ((3, 2), (5, 1))), PackedGroup((6, 2), ((8, 2),)))
    assert row.sources.tolist() == [2, 3, 4, 2, 5, 7, 8, 9]
    assert row.targets.tolist() == [10, 11, 12, 20, 21, 10, 11, 12]
    assert row.places.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7]
    assert row.answer_index.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3]
    assert row.numbers == (7, 8, 5, 6)


def test_an_answer_that_is_there_already_takes_nothing_of_the_budget():
    answers = [PackedAnswer((1, 2), (3, 4, 5), number) for number in range(6)]
    assert [row.numbers for row in pack(answers, 5, device=CPU, plain=False)] == [tuple(range(6))]
    assert len(pack(answers, 5, device=CPU, plain=True)) == 6


BEGIN = tuple(range(50, 59))


def test_a_row_with_a_common_prefix_worked_by_hand():
    answers = [
        PackedAnswer((*BEGIN, 1, 2), (10, 11), 0),
        PackedAnswer((*BEGIN, 1, 2), (12,), 1),
        PackedAnswer((*BEGIN, 3), (13, 14, 15), 2),
    ]
    (row,) = pack(answers, 100, device=CPU, plain=False)
    assert row.prefix_length == 9
    assert row.input_ids.tolist() == [*BEGIN, 1, 2, 10, 3, 13, 14]
    assert row.position_ids.tolist() == [*range(9), 9, 10, 11, 9, 10, 11]
    assert row.groups == (PackedGroup((9, 2), ((11, 1), (12, 0))), PackedGroup((12, 1), ((13, 2),)))
    assert row.sources.tolist() == [10, 11, 10, 12, 13, 14]
    visible = (row.attention_mask(torch.float32)[0, 0] == 0).int()
    assert torch.equal(visible[:, :9], torch.ones(15, 9).tril().int())
    assert visible[9:, 9:].tolist() == [
        [1, 0, 0, 0, 0, 0],  # 1
        [1, 1, 0, 0, 0, 0],  # 2
        [1, 1, 1, 0, 0, 0],  # 10
        [0, 0, 0, 1, 0, 0],  # 3, the other prompt
        [0, 0, 0, 1, 1, 0],  # 13
        [0, 0, 0, 1, 1, 1],  # 14
    ]


@pytest.mark.parametrize(
    ("prompts", "shared"),
    [
        ([], 0),
        ([(*BEGIN, 1)] * 3, 0),  # one prompt alone is its own prefix
        ([BEGIN, (*BEGIN, 1)], 8),  # each keeps a token of its own
        ([BEGIN[:8], (*BEGIN[:8], 1)], 0),  # 7 are too few
        ([(*BEGIN, 1), (*BEGIN, 2), (*BEGIN, 3, 4)], 9),
        ([(*BEGIN, 1), (*BEGIN, 2), (*BEGIN[:8], 0, 4)], 8),
        ([(*BEGIN, 1), (*BEGIN[:7], 0, 9)], 0),
    ],
)
def test_what_prompts_have_in_common(prompts, shared):
    assert common_prefix(prompts) == shared


@pytest.mark.parametrize(
    ("budget", "numbers"),
    [
        (19, [(0, 1, 2)]),  # 9 + 2 + 2 + 1, then 1 + 3: 18 tokens; 19 leaves room
        (18, [(0, 1, 2)]),
        (17, [(0, 1), (2,)]),
    ],
)
def test_what_is_shared_is_counted_once(budget, numbers):
    answers = [
        PackedAnswer((*BEGIN, 1, 2), (10, 11), 0),
        PackedAnswer((*BEGIN, 1, 2), (12,), 1),
        PackedAnswer((*BEGIN, 3), (13, 14, 15), 2),
    ]
    assert [row.numbers for row in pack(answers, budget, device=CPU, plain=False)] == numbers


def test_nothing_to_pack_is_no_row():
    assert pack([], 100, device=CPU, plain=False) == []


IDS = st.lists(st.integers(0, 9), min_size=1, max_size=6).map(tuple)


PROMPTS = [(1, 2), (3,), (4, 5, 6, 7), (*BEGIN, 1), (*BEGIN, 2, 3), BEGIN]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(PROMPTS), IDS), max_size=12),
    st.integers(1, 60),
    st.booleans(),
)
def test_every_answer_token_is_a_target_once_and_follows_its_source(pairs, budget, plain):
    answers = [PackedAnswer(prompt, ids, number) for number, (prompt, ids) in enumerate(pairs)]
    rows = pack(answers, budget, device=CPU, plain=plain)
    assert [number for row in rows for number in row.numbers] == list(range(len(answers)))
    for row in rows:
        length = len(row.input_ids)
        answer_tokens = sum(n for group in row.groups for _, n in group.answers)
        # The last token of an answer is not in the row, but counts.
        assert length - answer_tokens + len(row.targets) <= budget or len(row.numbers) == 1
        if row.groups[0].parents is None:
            assert len(row.targets) == sum(n + 1 for group in row.groups for _, n in group.answers)
        assert len(row.places) == sum(len(answers[number].token_ids) for number in row.numbers)
        visible = row.attention_mask(torch.float32)[0, 0] == 0
        for index, number in enumerate(row.numbers):
            own = (row.answer_index == index).nonzero()[:, 0]
            own = row.places[own]
            assert tuple(row.targets[own].tolist()) == answers[number].token_ids
            whole = answers[number].prompt_token_ids + answers[number].token_ids
            for place, source in enumerate(row.sources[own].tolist()):
                # What the source may look at is the prompt and the answer so far, in order, at their own positions.
                seen = visible[source].nonzero()[:, 0]
                end = len(answers[number].prompt_token_ids) + place
                assert tuple(row.input_ids[seen].tolist()) == whole[:end]
                assert row.position_ids[seen].tolist() == list(range(end))


def test_answers_that_begin_alike_form_a_tree_worked_by_hand():
    answers = [
        PackedAnswer((1, 2), ids, number) for number, ids in enumerate([(7, 8, 9), (7, 8, 5, 6), (7, 4), (7, 8, 9)])
    ]
    (row,) = pack(answers, 100, device=CPU, plain=False)
    # 7 and 8 once; 9, 6 and 4 end their answers, so nothing is predicted from them.
    assert row.input_ids.tolist() == [1, 2, 7, 8, 5]
    assert row.position_ids.tolist() == [0, 1, 2, 3, 4]
    assert row.groups == (PackedGroup((0, 2), ((2, 3),), (-1, 0, 1)),)
    assert row.targets.tolist() == [7, 8, 9, 5, 6, 4]
    assert row.sources.tolist() == [1, 2, 3, 3, 4, 2]
    assert row.places.tolist() == [0, 1, 2, 0, 1, 3, 4, 0, 5, 0, 1, 2]
    assert row.answer_index.tolist() == [0] * 3 + [1] * 4 + [2] * 2 + [3] * 3


@pytest.mark.parametrize(
    ("shared", "own", "is_tree"),
    [(1, 9, False), (3, 9, True)],  # 19 of 20 tokens are left, which is not worth a tree; 21 of 24
)
def test_a_tree_must_save_a_tenth_of_the_tokens(shared, own, is_tree):
    begin = tuple(range(100, 100 + shared))
    answers = [PackedAnswer((1,), (*begin, *[number] * own), number) for number in (5, 6)]
    (row,) = pack(answers, 1000, device=CPU, plain=False)
    assert (row.groups[0].parents is not None) == is_tree


def test_a_tree_is_not_larger_than_its_mask_is_worth(monkeypatch):
    answers = [PackedAnswer((1,), (*range(9), number), number) for number in (50, 60)]
    for largest, is_tree in ((11, True), (10, False)):
        monkeypatch.setattr(packing, "_LARGEST_TREE", largest)
        (row,) = pack(answers, 1000, device=CPU, plain=False)
        assert (row.groups[0].parents is not None) == is_tree


# --- rows that will be padded ----------------------------------------------------------------------------------------


def uneven(lengths):
    return [PackedAnswer((1, 2, 3), random_ids(n, seed=k), k) for k, n in enumerate(lengths)]


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([50, 50, 50, 50], 1),
        ([*[2] * 8, 40], 2),  # 9 * 40 places and 3 of the prompt for 56 + 3 tokens: more than 6 a token
        ([40, *[2] * 7], 1),  # 8 * 40 + 3 for 54 + 3
        ([40, *[2] * 8], 2),
        ([40, 2, 40, 2, 2], 1),
    ],
)
def test_a_padded_row_ends_before_answers_of_too_uneven_lengths(lengths, rows):
    answers = uneven(lengths)
    packed = pack(answers, 1 << 20, device=CPU, plain=False, padded=True)
    assert len(packed) == rows
    assert [number for row in packed for number in row.numbers] == list(range(len(lengths)))
    assert len(pack(answers, 1 << 20, device=CPU, plain=False)) == 1


def test_an_answer_that_is_there_already_takes_no_place():
    long, short = uneven([40, 2])
    answers = [long, *[PackedAnswer(short.prompt_token_ids, short.token_ids, k) for k in range(1, 30)]]
    assert len(pack(answers, 1 << 20, device=CPU, plain=False, padded=True)) == 1
