"""Gradient checkpointing: the same loss and gradients with less kept, for every architecture and kind of row."""

from functools import partial

import pytest
import torch

from ratchet.config import RlSettings
from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.logprobs import PLAIN, answer_logprobs
from ratchet.engine.memory import possible_setting, recompute_layers
from ratchet.engine.packing import PackedAnswer, pack
from ratchet.engine.sampler import SampleRequest
from ratchet.engine.sampler.in_process import InProcessSampler
from ratchet.errors import InvalidSetting

from .models import ARCHITECTURES, random_ids, tiny_policy

# (prompt length, answer lengths): groups that share a row under a mask and positions of ours.
GROUPS = [(9, (1, 6, 3)), (5, (7,)), (12, (2, 5))]
ANSWERS = [
    PackedAnswer(random_ids(prompt, seed=number), random_ids(length, seed=10 * number + place), 10 * number + place)
    for number, (prompt, lengths) in enumerate(GROUPS)
    for place, length in enumerate(lengths)
]


def loss_and_gradients(policy, *, plain, budget=30):
    loss = 0.0
    for number, row in enumerate(pack(ANSWERS, budget, device=policy.device, plain=plain)):
        weighted = (answer_logprobs(policy, row, 0.7, PLAIN) * (-1.0) ** number).sum()
        weighted.backward()
        loss += weighted.item()
    return loss, [weight.grad for weight in policy.parameters]


@pytest.mark.parametrize("plain", [False, True], ids=["packed", "plain"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_and_gradients_are_those_of_kept_activations(architecture, plain):
    policy, other = (tiny_policy(architecture, dtype=torch.float64) for _ in range(2))
    recompute_layers(other.model)
    loss, gradients = loss_and_gradients(policy, plain=plain)
    again, recomputed = loss_and_gradients(other, plain=plain)
    assert again == pytest.approx(loss, abs=1e-9)
    for ours, theirs in zip(recomputed, gradients, strict=True):
        assert theirs.abs().max() > 1e-4
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


def test_a_model_with_dropout_is_recomputed_without_it():
    # transformers' own switch would turn it on: it acts in training mode alone.
    policy, other = (tiny_policy("gpt_neox", hidden_dropout=0.5, attention_dropout=0.5) for _ in range(2))
    recompute_layers(other.model)
    loss, _ = loss_and_gradients(policy, plain=True)
    assert loss_and_gradients(other, plain=True)[0] == loss


def kept_numbers(policy):
    """Count the numbers that one row keeps for its backward pass."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    (row,) = pack(ANSWERS, 1 << 20, device=policy.device, plain=False)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        answer_logprobs(policy, row, 1.0, PLAIN)
    weights = {weight.untyped_storage().data_ptr() for weight in policy.model.parameters()}
    return sum(count for pointer, count in kept.items() if pointer not in weights)


def test_a_layer_keeps_little_more_than_its_input():
    policy, other = (tiny_policy(num_hidden_layers=8) for _ in range(2))
    recompute_layers(other.model)
    assert kept_numbers(other) < kept_numbers(policy) / 3


def test_sampling_is_as_before():
    policy, other = tiny_policy(), tiny_policy()
    recompute_layers(other.model)
    requests = [SampleRequest(random_ids(5), 3, (1, 2))]
    settings = SamplingSettings.of(RlSettings())
    ours, theirs = (
        list(InProcessSampler(one, 1 << 12).sample(requests, settings, 8, lambda: None)) for one in (policy, other)
    )
    assert ours == theirs


def test_a_model_whose_layers_are_not_made_for_it_does_without():
    policy = tiny_policy()
    bare = torch.nn.Linear(2, 2)
    automatic = RlSettings()
    assert possible_setting(automatic, policy.model) is automatic
    assert possible_setting(automatic, bare).gradient_checkpointing == "off"
    with pytest.raises(InvalidSetting, match=r"Gradient checkpointing is on.*Choose off") as caught:
        possible_setting(RlSettings(gradient_checkpointing="on"), bare)
    assert caught.value.field == "rl.gradient_checkpointing"


def test_the_layers_of_every_architecture_allow_it():
    demanding = partial(possible_setting, RlSettings(gradient_checkpointing="on"))
    for architecture in ARCHITECTURES:
        demanding(tiny_policy(architecture).model)
