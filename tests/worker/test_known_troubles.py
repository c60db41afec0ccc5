"""Troubles that users of other tools report in public, K6 to K15, and the tests that show what becomes of each here.

Kinds: K6 out of memory, K7 NaN or collapse, K8 resume, K9 sampler and trainer disagree, K10 arithmetic of settings, K11
hang, K12 best checkpoint and evaluation, K13 prompt length, K14 continuing an adapter, K15 logs, disk, comfort. Tests
that no other file has are at the end of this one.
"""

import ast
import gc
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from ratchet import worker
from ratchet.engine.distribution import GREEDY, SamplingSettings
from ratchet.engine.sampler import SampleRequest
from ratchet.engine.sampler.in_process import InProcessSampler
from ratchet.run.run_folder import RunFolder

from ..engine.models import random_ids, tiny_policy
from ..scripted_worker import MIXED, NONE_RIGHT, ScriptedRun
from ..small_runs import records, small

TESTS = Path(__file__).parents[1]
SELF = "worker/test_known_troubles.py"

# Kind, what users met, and the tests that would fail if it came true here.
TROUBLES = [
    (
        "K6",
        "out of memory at the engine's start or first rollout, from the share of vLLM: the message names the knob",
        [
            "engine/test_sampler_choice.py::test_a_share_that_does_not_fit_is_refused_by_its_own_name",
            "engine/test_sampler_choice.py::test_auto_stays_in_process_where_the_memory_share_does_not_fit",
            "vllm/test_vllm_dead_engine.py::test_an_engine_that_does_not_start_is_said_in_words",
            "worker/test_endings.py::test_out_of_memory_on_a_gpu_simulated_at_the_allocator",
        ],
    ),
    (
        "K6",
        "out of memory right after validation; model or optimizer not let go of on some steps",
        [
            f"{SELF}::test_memory_does_not_grow_from_round_to_round",
            f"{SELF}::test_resting_and_sampling_fifty_times_keep_neither_memory_nor_change_an_answer",
            "worker/test_endings_for_real.py::test_out_of_memory_under_a_real_limit",
        ],
    ),
    (
        "K7",
        "runs die with a NaN gradient, then infinite or NaN probabilities, without a warning",
        [
            "worker/test_endings.py::test_not_finite_twice_in_a_row_and_once_is_skipped",
            "engine/test_update.py::test_a_step_that_is_not_finite_changes_nothing_and_a_second_one_ends_the_run",
            "engine/test_sampler.py::test_output_that_is_not_finite_is_said_in_words",
        ],
    ),
    (
        "K7",
        "NaN where a micro-batch is larger than the batch",
        [f"{SELF}::test_a_micro_batch_larger_than_the_batch_changes_nothing"],
    ),
    (
        "K7",
        "a stock notebook with loss 0 and a NaN gradient",
        [
            "engine/test_update.py::test_a_wanted_kind_of_token_is_learned_at_temperature_1",
            "engine/test_continuous_batching.py::test_refilled_rows_write_what_they_write_together_and_alone",
            "engine/test_quantization.py::test_gradients_pass_through_after_sampling_too",
        ],
    ),
    (
        "K7",
        "the reward collapses late in the run",
        ["worker/test_endings.py::test_all_rounds_keep_the_best_one_also_when_the_last_ones_collapse"],
    ),
    (
        "K8",
        "a resume samples skipped batches again; the place in the epoch is not kept",
        [
            f"{SELF}::test_a_resumed_run_samples_no_round_twice_and_sees_every_prompt_as_often_as_another",
            "engine/test_rounds.py::test_a_resumed_run_does_only_the_rounds_that_are_left_on_the_prompts_that_are_left",
        ],
    ),
    (
        "K8",
        "prompts are lost across restores, those with long answers more often",
        [f"{SELF}::test_a_resumed_run_samples_no_round_twice_and_sees_every_prompt_as_often_as_another"],
    ),
    (
        "K8",
        "a resume starts at rollout 0; optimizer masters overwrite the adapter; NaN a step later",
        [
            "engine/test_checkpoint.py::test_what_was_stored_comes_back_bit_for_bit",
            "engine/test_checkpoint.py::test_going_on_gives_the_same_bytes_as_not_interrupting",
            "worker/test_worker.py::test_a_run_killed_between_two_writes_resumes_to_the_same_result",
        ],
    ),
    (
        "K8",
        "a resume repeats the last batch: one optimizer step too many",
        [f"{SELF}::test_the_optimizer_has_stepped_as_often_as_the_records_say_also_after_a_resume"],
    ),
    (
        "K9",
        "rollouts ignore the updated adapter, and the policy never moves: found with a toy reward for length",
        [
            "engine/test_update.py::test_longer_is_better_is_learned_at_a_low_temperature_with_a_nucleus",
            "engine/test_sampler.py::test_what_is_sampled_follows_the_adapter",
            "vllm/test_vllm_learning.py::test_longer_is_better_is_learned",
        ],
    ),
    (
        "K9",
        "the importance ratio is wrong at another temperature than 1, or with top-p or top-k",
        [
            "engine/test_sampler.py::test_reported_log_probabilities_are_the_trainers",
            "engine/test_update.py::test_against_the_untruncated_distribution_the_same_sampler_would_seem_to_differ",
            "vllm/test_vllm_adapters.py::test_log_probabilities_are_the_trainers_over_twelve_adapter_swaps",
        ],
    ),
    (
        "K9",
        "a merged or reloaded adapter behaves unlike training",
        [
            "engine/test_policy.py::test_merged_weights_give_the_policys_logits",
            "engine/test_policy.py::test_the_adapter_folder_loads_in_plain_peft_with_the_same_logits",
            "engine/test_quantization.py::test_the_adapter_loads_on_the_unquantized_base_by_plain_peft",
        ],
    ),
    (
        "K10",
        "a batch that the group does not divide; the message is wrong",
        [
            "config/test_config.py::test_a_batch_that_does_not_go_with_the_group_is_refused_with_the_nearest_that_do",
            "config/test_config.py::test_every_suggested_batch_size_is_accepted",
        ],
    ),
    (
        "K10",
        "LoRA at a learning rate for all weights learns nothing",
        [
            "readiness/test_check.py::test_an_unusual_rate_is_remarked_on_for_a_large_model_by_its_files",
            "config/test_presets.py::test_a_preset_comes_with_the_advice_on_its_rate_once",
        ],
    ),
    (
        "K11",
        "a silent hang after hours",
        [
            "worker/test_watchdog.py::test_a_worker_that_hangs_in_native_code_is_closed_from_outside_and_its_process_ends",
            "worker/test_watchdog.py::test_a_run_that_stands_still_for_its_limit_is_ended",
            "worker/test_endings.py::test_stalled_where_the_main_thread_answers_ends_in_good_order",
        ],
    ),
    (
        "K11",
        "one lost rollout of 512 blocks the run for ever without a log",
        ["worker/test_endings.py::test_a_lost_answer_ends_the_round_and_hangs_nothing"],
    ),
    (
        "K12",
        "the best model is chosen by the loss, or by anything but the task",
        [
            "engine/test_rounds.py::test_correctness_without_shaping_decides_and_not_the_reward",
            "engine/test_rounds.py::test_ties_go_to_the_earlier_round_and_only_a_higher_value_replaces_the_best",
        ],
    ),
    (
        "K12",
        "evaluation answers each prompt as often as training does, and is slow",
        [f"{SELF}::test_validation_answers_each_prompt_once_and_its_time_is_shown"],
    ),
    (
        "K13",
        "a prompt longer than the window crashes the run hundreds of steps in",
        ["readiness/test_check.py::test_rows_that_do_not_fit_are_told_for_each_split_beside_ungradable_ones"],
    ),
    (
        "K12",
        "a reward of 1.0 while accuracy falls: a task metric apart from the reward is wanted",
        [
            "worker/test_watch.py::test_planted_reward_hacking_is_diagnosed_in_a_real_run_with_both_curves",
            "run/test_health.py::test_reward_hacking_names_both_curves_with_first_and_last_values",
        ],
    ),
    (
        "K14",
        "an adapter that is gone on from, reloaded or merged behaves unlike training",
        [
            "worker/test_start_runs.py::test_greedy_outputs_in_training_reloaded_and_merged_are_the_same",
            "worker/test_start_runs.py::test_round_0_is_the_sources_best_round_in_every_number",
        ],
    ),
    (
        "K15",
        "answers are logged elsewhere only, or the wrong ones, or so many that they slow the run",
        [
            "worker/test_endings.py::test_samples_are_kept_as_asked_and_the_record_says_from_where",
            "worker/test_endings.py::test_samples_are_kept_up_to_a_size_and_those_of_the_last_round_always",
        ],
    ),
    (
        "K15",
        "checkpoints fill the disk",
        [
            f"{SELF}::test_a_run_takes_no_more_room_for_its_state_after_many_rounds_than_after_few",
            "worker/test_endings.py::test_a_full_disk_at_any_write_of_a_round",
            "worker/test_endings_for_real.py::test_the_end_is_written_down_on_a_disk_that_has_no_room_at_all",
            "worker/test_worker.py::test_a_disk_that_fills_up_during_a_run_ends_it_with_the_best_adapter_and_it_goes_on_later",
        ],
    ),
    (
        "K15",
        "a fast trainer was measured to be slower: timings are published by phase",
        ["test_benchmarks.py::test_every_row_asks_for_settings_that_ratchet_takes"],
    ),
]


def functions_of(file):
    """Return the tests of a file, without importing it: some need packages that are not installed everywhere."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("trouble", TROUBLES, ids=[f"{kind} {what}" for kind, what, _ in TROUBLES])
def test_every_trouble_has_tests_that_are_there(trouble):
    _, _, tests = trouble
    assert tests
    for test in tests:
        file, name = test.split("::")
        assert name in functions_of(file), test


def test_every_kind_is_in_the_table():
    assert {kind for kind, _, _ in TROUBLES} == {f"K{number}" for number in range(6, 16)}


def live_bytes():
    gc.collect()
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]  # isinstance asks what warns
    return sum(one.nbytes for one in found if one.device.type == "cpu")


@pytest.mark.slow
def test_memory_does_not_grow_from_round_to_round(tmp_path):
    after = []

    def on_event(event):
        if event.event == "round":
            after.append(live_bytes())

    worker.run(
        RunFolder.create(small(heldout=0, rounds=5), tmp_path / "run"), listeners=[worker.Listener(on_event=on_event)]
    )
    # Moments of the optimizer come with the first step; from then on nothing may.
    assert max(after[3:]) <= max(after[1:3]) + 4096


def test_resting_and_sampling_fifty_times_keep_neither_memory_nor_change_an_answer():
    policy = tiny_policy(fresh=True)
    sampler = InProcessSampler(policy, budget_tokens=4096)
    requests = [SampleRequest(random_ids(6, seed=n), answers=2, random_key=(0, 1, n)) for n in range(2)]
    first, before = None, 0
    for time in range(50):
        stream = sampler.sample(requests, SamplingSettings(temperature=1.0, top_p=1.0, top_k=0), 8, lambda: None)
        answers = sorted((one.request, one.answer, one.completion.token_ids) for one in stream)
        sampler.rest()
        first = first or answers
        assert answers == first
        if time == 2:
            before = live_bytes()
    assert live_bytes() <= before
    greedy = list(sampler.sample(requests, GREEDY, 8, lambda: None))
    assert len(greedy) == 4


def test_a_micro_batch_larger_than_the_batch_changes_nothing(tmp_path, monkeypatch):
    learned = []
    for number, tokens in enumerate((64, 1_000_000)):
        run = ScriptedRun(tmp_path / str(number), monkeypatch, rounds=2, batch_size=2, micro_batch_tokens=tokens)
        run.run()
        learned.append([record["learned"] for record in records(run.folder)[1:]])
    for small_one, large_one in zip(*learned, strict=True):
        assert large_one["steps"] == small_one["steps"] == 2
        assert large_one["loss"] == pytest.approx(small_one["loss"], abs=1e-6)
        assert large_one["gradient_norm"] == pytest.approx(small_one["gradient_norm"], rel=1e-4)


def killed_and_resumed(tmp_path, monkeypatch, **changes):
    """Run eight rounds, killed within the third and within the sixth; return the run and the calls for answers."""
    run = ScriptedRun(tmp_path, monkeypatch, rounds=8, no_signal_rounds=99, **changes)
    calls = []

    class Killed(BaseException):
        pass

    def on_progress(phase, done, total):
        if phase == "sampling" and done == 0:
            calls.append(len(records(run.folder)))
        if phase == "updating" and Counter(calls)[calls[-1]] == 1 and calls[-1] in (3, 6):
            raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            run.run(on_progress)
    run.run(on_progress)
    return run, calls


def test_a_resumed_run_samples_no_round_twice_and_sees_every_prompt_as_often_as_another(tmp_path, monkeypatch):
    run, calls = killed_and_resumed(tmp_path, monkeypatch)
    # Rounds 3 and 6 were lost and are sampled again; no finished round is.
    assert Counter(calls) == {number: 2 if number in (3, 6) else 1 for number in range(1, 9)}
    seen = Counter(prompt for record in records(run.folder) for prompt in record["prompt_ids"])
    assert seen == {row: 2 for row in range(1, 9)}  # eight rounds of two prompts over eight rows


def test_the_optimizer_has_stepped_as_often_as_the_records_say_also_after_a_resume(tmp_path, monkeypatch):
    run, _ = killed_and_resumed(tmp_path, monkeypatch, batch_size=2)
    with safe_open(run.folder.checkpoint_path, framework="pt") as file:
        steps = {float(file.get_tensor(name)) for name in file.keys() if name.startswith("optimizer.step")}  # noqa: SIM118
    assert steps == {float(sum(record["learned"]["steps"] for record in records(run.folder)[1:]))} == {16.0}


def test_validation_answers_each_prompt_once_and_its_time_is_shown(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, training=[MIXED], validation=[NONE_RIGHT], rounds=1)
    asked = []
    sample = run.sampler.sample

    def noted(requests, settings, longest, check):
        if settings.greedy:
            asked.append([request.answers for request in requests])
        return sample(requests, settings, longest, check)

    run.sampler.sample = noted
    run.run()
    assert asked == [[1] * 4, [1] * 4]
    for record in records(run.folder):
        assert 0 < record["seconds"]["validation"] <= record["seconds"]["total"]
    assert "validating=" in run.folder.log_path.read_text()


def test_a_run_takes_no_more_room_for_its_state_after_many_rounds_than_after_few(tmp_path, monkeypatch):
    sizes = {}
    run = ScriptedRun(tmp_path, monkeypatch, rounds=9)

    def after_round(number):
        kept = [path for path in run.folder.path.rglob("*.safetensors") if path.is_file()]
        sizes[number] = (len(kept), sum(path.stat().st_size for path in kept))

    run.after_round = after_round
    run.run()
    assert {number: files for number, (files, _) in sizes.items()} == dict.fromkeys(range(10), 2)  # best and last
    assert sizes[9][1] < sizes[2][1] * 1.1
