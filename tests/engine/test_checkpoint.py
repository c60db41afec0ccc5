"""The checkpoint: bit-exact round trips, the same bytes after going on, and refusals in words."""

import pytest
import torch
from safetensors.torch import save

from ratchet.config import OptimizerSettings, RlSettings, RunConfig
from ratchet.engine import checkpoint
from ratchet.engine.checkpoint import Progress
from ratchet.engine.logprobs import PLAIN
from ratchet.engine.update import Learner, new_optimizer, update
from ratchet.errors import Conflict
from ratchet.run.records import Learned, RoundRecord, Seconds, Validation

from .models import group_of, random_ids, tiny_policy


def learner_of(policy):
    settings = RunConfig(rl=RlSettings(answers_per_prompt=2, prompts_per_round=1, max_answer_tokens=16)).resolved().rl
    return Learner(policy, settings, new_optimizer(policy, 1e-2, OptimizerSettings()), 1.0, 512, forward=PLAIN)


def take_round(learner, number):
    group = group_of(random_ids(4, number), [random_ids(3, 50 + number), random_ids(6, 90 + number)], (1.0, 0.0))
    update(learner, [group], lambda: None)


def record_of(number):
    return RoundRecord(
        round=number,
        validation=Validation(prompts=3, accuracy=1 / 3, reward=0.1 + 0.2, outcomes={"graded": 2, "cut_off": 1}),
        best_round=min(number, 1),
        best_accuracy=1 / 3,
        seconds=Seconds(total=0.1),
        learned=Learned(steps=1, loss=-1e-17) if number else None,
    )


def progress_of(policy, rounds=2, best=None):
    state = {"cursor": 5, "order": [3, 1, 2], "pass": 0}
    return Progress([record_of(n) for n in range(rounds + 1)], best or policy.adapter_state(), state, 1)


@pytest.fixture
def stored(tmp_path):
    """A run after two rounds: policy, learner, progress, and its checkpoint on disk."""
    policy = tiny_policy()
    learner = learner_of(policy)
    take_round(learner, 1)
    best = policy.adapter_state()
    take_round(learner, 2)
    progress = progress_of(policy, best=best)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(checkpoint.packed(progress, policy, learner.optimizer, 12.345678901234567))
    return policy, learner, progress, path


def assert_same_bits(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype for name in ours)


def test_what_was_stored_comes_back_bit_for_bit(stored):
    policy, learner, progress, path = stored
    other = tiny_policy(seed=7)
    fresh = learner_of(other)
    restored, seconds = checkpoint.restore(path, other, fresh.optimizer)
    assert seconds == 12.345678901234567
    assert_same_bits(other.adapter_state(), policy.adapter_state())
    assert_same_bits(restored.best_state, progress.best_state)
    assert any(
        (a != b).any() for a, b in zip(restored.best_state.values(), other.adapter_state().values(), strict=True)
    )
    assert restored.records == progress.records
    assert restored.stream_state == progress.stream_state
    assert (restored.rounds_done, restored.best_round, restored.skipped_in_a_row) == (2, 1, 1)
    ours, theirs = (learner.optimizer.state_dict() for learner in (fresh, learner))
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["state"].keys() == theirs["state"].keys()
    for index, moments in theirs["state"].items():
        assert moments["step"] == 2
        assert_same_bits(ours["state"][index], moments)


def test_going_on_gives_the_same_bytes_as_not_interrupting(stored):
    policy, learner, _, path = stored
    other = tiny_policy(seed=7)
    # The base model comes from its files, not from the checkpoint.
    weights = {name: weight for name, weight in policy.model.state_dict().items() if "lora_" not in name}
    other.model.load_state_dict(weights, strict=False)
    resumed = learner_of(other)
    checkpoint.restore(path, other, resumed.optimizer)
    for number in (3, 4):
        take_round(learner, number)
        take_round(resumed, number)
    one, two = (
        checkpoint.packed(progress_of(some.policy, 4, best={}), some.policy, some.optimizer, 1.0)
        for some in (learner, resumed)
    )
    assert one == two


def test_the_same_state_gives_the_same_bytes(stored):
    policy, learner, progress, path = stored
    assert checkpoint.packed(progress, policy, learner.optimizer, 12.345678901234567) == path.read_bytes()


def test_it_is_a_copy_that_later_rounds_do_not_reach(stored):
    _, learner, progress, _ = stored
    before = {name: tensor.clone() for name, tensor in progress.best_state.items()}
    take_round(learner, 3)
    assert_same_bits(progress.best_state, before)


def test_a_checkpoint_of_round_0_has_no_moments_yet(tmp_path):
    policy = tiny_policy(fresh=True)
    learner = learner_of(policy)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(checkpoint.packed(progress_of(policy, rounds=0), policy, learner.optimizer, 1.0))
    other = learner_of(tiny_policy(seed=7))
    restored, _ = checkpoint.restore(path, other.policy, other.optimizer)
    assert restored.rounds_done == 0
    assert not other.optimizer.state
    take_round(other, 1)


def cut(content):
    return content[: len(content) // 2]


def cut_header(content):
    return content[:20]


def empty(content):
    return b""


def other_file(content):
    return b"x" * 5000


def spoiled_header(content):
    return content.replace(b'"ratchet"', b'"rotchet"')


def spoiled_json(content):
    return content.replace(b'\\"version\\"', b'\\"version:"')


def spoiled_record(content):
    return content.replace(b'\\"best_accuracy\\": 0.3', b'\\"best_accuracy\\": 0.8')


def spoiled_name(content):
    return content.replace(b'"optimizer.exp_avg.base', b'"optimizer.exp_avg.bade', 1)


def spoiled_number(content):
    """Flip a bit in the middle of the last tensor."""
    return content[:-9] + bytes([content[-9] ^ 64]) + content[-8:]


@pytest.mark.parametrize(
    "damage",
    [cut, cut_header, empty, other_file, spoiled_header, spoiled_json, spoiled_record, spoiled_name, spoiled_number],
    ids=lambda f: f.__name__,
)
def test_a_damaged_file_is_refused_in_words(stored, damage):
    policy, learner, _, path = stored
    content = path.read_bytes()
    assert damage(content) != content
    path.write_bytes(damage(content))
    before = policy.adapter_state()
    with pytest.raises(Conflict, match=r"checkpoint .* cannot be read .* best adapter so far is in adapter/") as caught:
        checkpoint.restore(path, policy, learner.optimizer)
    assert str(path) in str(caught.value)
    assert_same_bits(policy.adapter_state(), before)


def test_a_missing_file_is_refused_in_words(tmp_path):
    policy = tiny_policy()
    with pytest.raises(Conflict, match="cannot be read"):
        checkpoint.restore(tmp_path / "none", policy, learner_of(policy).optimizer)


def test_a_file_of_another_version_is_refused_by_its_number(stored):
    policy, learner, _, path = stored
    path.write_bytes(save({"odd": torch.zeros(3)}, metadata={"ratchet": '{"version": 99}'}))
    with pytest.raises(Conflict, match="version 99; this Ratchet reads 1"):
        checkpoint.restore(path, policy, learner.optimizer)


@pytest.mark.parametrize("other", [{"rank": 2}, {"architecture": "phi"}], ids=["rank", "model"])
def test_a_checkpoint_of_another_adapter_is_refused(stored, other):
    policy = tiny_policy(**other)
    before = policy.adapter_state()
    with pytest.raises(Conflict, match="does not belong to this run's model"):
        checkpoint.restore(stored[3], policy, learner_of(policy).optimizer)
    assert_same_bits(policy.adapter_state(), before)
