"""Which prompts a trial asks, how large its passes are, and that a pass does what a round does, measured."""

import os

import pytest
import torch

from ratchet.config import RlSettings
from ratchet.engine.estimate import Size
from ratchet.engine.memory import MemoryMeter, device_limit
from ratchet.engine.round_parts import Engine
from ratchet.engine.trial_round import MOST_PROMPTS, PhaseLog, TrialRound, _settings, batch_groups, chosen_prompts
from ratchet.errors import Interrupted
from ratchet.models.footprint import host_memory
from ratchet.run.records import EncodedPrompt

from .scripted import Rounds, prompt


def encoded(lengths):
    return [EncodedPrompt(prompt(number), tuple(range(length))) for number, length in enumerate(lengths, start=1)]


def test_the_longest_prompts_are_among_the_eight_and_the_rest_is_a_seeded_sample():
    prompts = encoded([5, 6, 40, 5, 7, 5, 5, 5, 30, 5, 5, 5, 6, 5, 5, 5])
    chosen = chosen_prompts(prompts, seed=0, count=64)
    assert [one.prompt.id for one in chosen[:2]] == [3, 9]
    assert len({one.prompt.id for one in chosen}) == len(chosen) == MOST_PROMPTS
    assert chosen == chosen_prompts(prompts, seed=0, count=64)
    assert {one.prompt.id for one in chosen} != {one.prompt.id for one in chosen_prompts(prompts, seed=1, count=64)}


@pytest.mark.parametrize(("there", "asked", "expected"), [(1, 64, 1), (3, 64, 3), (16, 4, 4), (16, 1, 1)])
def test_no_more_prompts_are_asked_than_there_are_or_than_a_round_has(there, asked, expected):
    assert len(chosen_prompts(encoded(range(5, 5 + there)), seed=0, count=asked)) == expected


@pytest.mark.parametrize(
    ("prompts", "rows", "answers", "group_tokens", "row_tokens", "expected"),
    [
        (64, 128, 8, 100, 500, 16),  # 16 x 8 answers are the sampler's 128 rows
        (64, 128, 8, 10, 500, 60),  # 1.2 x 500 tokens of the update are 60 groups
        (20, 128, 8, 10, 500, 20),  # but a round has 20
        (64, 4, 8, 1000, 500, 8),  # the eight of the small pass in any case
    ],
)
def test_a_pass_fills_the_samplers_batch_and_a_row_of_the_update(
    prompts, rows, answers, group_tokens, row_tokens, expected
):
    size = Size(rounds=1, prompts=prompts, answers=answers, validation=8, heldout=0, rows=rows)
    assert batch_groups(size, 8, group_tokens, row_tokens) == expected


def test_an_update_takes_several_steps_where_the_full_runs_does():
    rl = RlSettings(prompts_per_round=64, answers_per_prompt=8, batch_size=256)
    assert _settings(rl, 16).batch_size == 64  # two steps of half of the 128 answers
    assert _settings(rl.model_copy(update={"batch_size": 16}), 16).batch_size == 16
    assert _settings(rl.model_copy(update={"batch_size": 512}), 16).batch_size is None
    assert _settings(rl.model_copy(update={"batch_size": None}), 16).batch_size is None


class FewPrompts:
    """Stands for a prepared run: the prompts of a scripted one."""

    def __init__(self, rounds):
        self.config = rounds.config
        self.train = tuple(rounds.task.encoded.values())
        self.validation = tuple(rounds.task.validation)
        self.heldout = ()


def size_of(rounds, rows, prompts=2, validation=4):
    answers = rounds.config.rl.answers_per_prompt
    return Size(rounds=5, prompts=prompts, answers=answers, validation=validation, heldout=0, rows=rows)


def measured(rounds, size, left=1e9, check=lambda: None):
    engine = Engine(rounds.policy, rounds.learner, rounds.sampler)
    log = PhaseLog(MemoryMeter(torch.device("cpu")))
    trial = TrialRound(rounds.config, engine, rounds.task.grader, log, check)
    return trial.measure(FewPrompts(rounds), size, lambda: left), log


MIXED = ["right", "wrong"]


def test_small_and_full_batch_are_measured_cold_and_then_warm_in_the_order_of_a_round():
    rounds = Rounds(training=[MIXED], validation=[["right"]], prompts=12)
    found, log = measured(rounds, size_of(rounds, rows=24, prompts=12, validation=16))
    order = [call for call in rounds.calls if isinstance(call, str) and call != "update"]
    assert order == ["validate", *["sample", "rest", "validate"] * 4]
    sampled = [len(requests) for requests in rounds.sampler.requests]
    assert sampled == [4, 8, 4, 12, 16, 8, 4, 12, 16]  # validation of round 0, then training and validation in turn
    assert (found.small.groups, found.large.groups, found.is_rough) == (8, 12, False)
    assert (found.large.sampling.answers, found.large.validation.answers) == (24, 16)
    assert (found.validation_prompts, len(found.groups)) == (4, 8)
    assert (found.informative, found.sampled_groups) == (40, 40)
    assert set(log.phases) == {"validation", "sampling", "grading", "update"}


def test_the_longest_prompts_are_in_the_batch_that_tells_memory_and_not_in_the_one_that_tells_time():
    rounds = Rounds(training=[MIXED], validation=[["right"]], prompts=12)
    rounds.prompts[4] = EncodedPrompt(rounds.prompts[4].prompt, tuple(range(9, 39)))
    rounds.prompts[7] = EncodedPrompt(rounds.prompts[7].prompt, tuple(range(9, 29)))
    measured(rounds, size_of(rounds, rows=24, prompts=12))
    small, full, again, timed = (
        [len(request.prompt_token_ids) for request in requests]
        for requests in rounds.sampler.requests
        if requests[0].random_key
    )
    assert small == again == [30, 20, *[4] * 6]
    assert full == [30, 20, *[4] * 10]
    assert timed == [4] * 12


def test_copies_of_a_prompt_draw_answers_of_their_own():
    rounds = Rounds(training=[MIXED], validation=[["right"]], prompts=2)
    measured(rounds, size_of(rounds, rows=24, prompts=12))
    keys = [request.random_key for requests in rounds.sampler.requests for request in requests if request.random_key]
    assert len(set(keys)) == len(keys)


def test_groups_without_a_signal_are_learned_from_too_since_they_cost_the_same():
    rounds = Rounds(training=[["right", "right"]], validation=[["right"]])
    found, _ = measured(rounds, size_of(rounds, rows=4))
    assert "update" in rounds.calls
    assert found.informative == 0


def test_without_time_for_a_full_batch_the_small_pass_stands_for_it_and_that_is_said():
    rounds = Rounds(training=[MIXED], validation=[["right"]], prompts=12)
    found, _ = measured(rounds, size_of(rounds, rows=24, prompts=12, validation=16), left=0.0)
    assert found.is_rough
    assert found.small is found.large
    assert rounds.calls.count("sample") == 1


def test_where_the_small_pass_is_as_large_as_a_round_it_is_measured_twice():
    rounds = Rounds(training=[MIXED], validation=[["right"]], prompts=3)
    found, _ = measured(rounds, size_of(rounds, rows=4, prompts=3))
    assert not found.is_rough
    assert [len(requests) for requests in rounds.sampler.requests] == [4, 3, 4, 3, 4]
    assert found.small is found.large


def test_a_phase_that_is_given_up_leaves_no_numbers_and_those_before_it_stay():
    def check():
        if rounds.calls.count("update"):
            raise Interrupted("over", "time_limit")

    rounds = Rounds(training=[MIXED], validation=[["right"]])
    log = PhaseLog(MemoryMeter(torch.device("cpu")))
    trial = TrialRound(
        rounds.config, Engine(rounds.policy, rounds.learner, rounds.sampler), rounds.task.grader, log, check
    )
    with pytest.raises(Interrupted):
        trial.measure(FewPrompts(rounds), size_of(rounds, rows=4), lambda: 1e9)
    assert list(log.phases)[:3] == ["validation", "sampling", "grading"]
    rounds.calls.clear()


@pytest.mark.skipif(MemoryMeter(torch.device("cpu")).base is None, reason="the system does not tell a process's memory")
def test_the_meter_sees_what_came_and_went_since_it_was_told_to_begin():
    meter = MemoryMeter(torch.device("cpu"))
    meter.begin()
    before = meter.peak().host
    block = bytearray(200 << 20)
    block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])  # every page is touched
    del block
    assert meter.peak().host - before > 150 << 20
    meter.begin()
    assert meter.peak().host - before < 100 << 20
    assert (meter.peak().device, meter.peak().device_reserved) == (None, None)


def test_the_limit_of_the_host_is_no_more_than_its_memory():
    assert 1 << 20 < host_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert device_limit(torch.device("cpu")) is None
