"""PromptStream: whole passes, no prompt twice in a round, exact resume."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.datasets import PromptStream
from ratchet.errors import IncompatibleData
from ratchet.run.records import Prompt


def prompts(count):
    return [
        Prompt(id=number, messages=({"role": "user", "content": "?"},), ground_truth="1")
        for number in range(1, count + 1)
    ]


def ids(taken):
    return [prompt.id for prompt in taken]


# A round: sizes of its takes, each of which excludes what the round has had.
rounds = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=30)


def play(stream, sizes):
    had = []
    for size in sizes:
        had += ids(stream.take(size, exclude=had))
    return had


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 12), st.integers(0, 5), rounds)
def test_every_pass_holds_each_prompt_once_and_no_round_one_twice(count, seed, rounds):
    stream = PromptStream(prompts(count), seed)
    used = []
    for sizes in rounds:
        had = play(stream, sizes)
        assert len(set(had)) == len(had) == min(sum(sizes), count)
        used += had
    for start in range(0, len(used) - count + 1, count):
        assert sorted(used[start : start + count]) == list(range(1, count + 1))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), rounds, st.integers(0, 30))
def test_a_restored_stream_goes_on_as_if_nothing_had_happened(count, rounds, cut):
    unbroken, saved = PromptStream(prompts(count), 3), PromptStream(prompts(count), 3)
    for sizes in rounds[:cut]:
        play(unbroken, sizes)
        play(saved, sizes)
    resumed = PromptStream(prompts(count), 3)
    resumed.restore(json.loads(json.dumps(saved.state())))
    for sizes in rounds[cut:]:
        assert play(resumed, sizes) == play(unbroken, sizes)
    assert resumed.state() == unbroken.state()


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 8), st.lists(st.tuples(st.integers(1, 8), st.frozensets(st.integers(1, 8))), max_size=20))
def test_any_exclusion_is_honoured_and_costs_no_prompt_its_turn(count, takes):
    stream = PromptStream(prompts(count), 0)
    used = []
    for size, exclude in takes:
        taken = ids(stream.take(size, exclude=exclude))
        assert not exclude.intersection(taken)
        assert len(taken) == min(size, count - len(exclude.intersection(range(1, count + 1))))
        used += taken
    state = stream.state()
    turns = [used.count(one) + state["deferred"].count(one) for one in range(1, count + 1)]
    assert sum(turns) == state["pass"] * count + state["position"]
    assert max(turns) - min(turns) <= 1


def test_passes_differ_and_the_seed_decides():
    first, other = PromptStream(prompts(50), 0), PromptStream(prompts(50), 1)
    order = ids(first.take(50))
    assert order == ids(PromptStream(prompts(50), 0).take(50))
    assert order != ids(first.take(50))
    assert order != ids(other.take(50))


def test_a_take_larger_than_the_data_gives_each_prompt_once():
    stream = PromptStream(prompts(5), 0)
    assert sorted(ids(stream.take(64))) == [1, 2, 3, 4, 5]
    assert stream.take(1, exclude=[1, 2, 3, 4, 5]) == []


def test_a_prompt_met_again_at_the_turn_of_a_pass_comes_first_in_the_next_round():
    stream = PromptStream(prompts(3), 0)
    first = ids(stream.take(2))
    second = ids(stream.take(3))
    assert sorted(second) == [1, 2, 3]
    third = ids(stream.take(1))
    assert sorted(first + second + third) == [1, 1, 2, 2, 3, 3]


def test_the_state_is_small():
    stream = PromptStream(prompts(10_000), 0)
    stream.take(9_990)
    stream.take(64)
    assert len(json.dumps(stream.state())) < 300


def test_restoring_over_other_data_is_refused_and_changes_nothing():
    stream = PromptStream(prompts(4), 0)
    before = stream.state()
    with pytest.raises(IncompatibleData, match="it had 5, the data gives 4"):
        stream.restore(PromptStream(prompts(5), 0).state())
    assert stream.state() == before


@pytest.mark.parametrize("given", [[], prompts(2) + prompts(1)], ids=["none", "an id twice"])
def test_prompts_that_cannot_be_told_apart_are_our_bug(given):
    with pytest.raises(ValueError, match="ids that differ"):
        PromptStream(given, 0)
