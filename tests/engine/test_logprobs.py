"""Log-probabilities of packed rows against plain ones, values and gradients, on every architecture."""

import pytest
import torch

from ratchet.engine.logprobs import answer_logprobs, can_pack, row_logits
from ratchet.engine.packing import PackedAnswer, pack
from ratchet.errors import OutOfMemory

from .models import ARCHITECTURES, random_ids, tiny_policy

WINDOWED = ["mistral", "gemma2", "gemma3"]
FULL = [name for name in ARCHITECTURES if name not in WINDOWED]
# (prompt length, answer lengths): one-token answers, uneven lengths, a prompt of one token, a group of one.
GROUPS = [(9, (1, 6, 3)), (1, (4, 1)), (5, (7,)), (12, (2, 2, 5, 1))]


def answers_of(groups=GROUPS):
    return [
        PackedAnswer(
            random_ids(prompt, seed=number), random_ids(length, seed=100 * number + place), 10 * number + place
        )
        for number, (prompt, lengths) in enumerate(groups)
        for place, length in enumerate(lengths)
    ]


def by_answer(policy, rows, temperature=1.0):
    """Return log-probabilities by answer number."""
    return {
        number: logprobs[row.answer_index == index]
        for row in rows
        for logprobs in [answer_logprobs(policy, row, temperature)]
        for index, number in enumerate(row.numbers)
    }


def gradients(policy, rows, weights):
    """Sum the gradients of weighted log-probabilities over the rows, as the update does."""
    for weight in policy.parameters:
        weight.grad = None
    for row in rows:
        logprobs = answer_logprobs(policy, row, 1.0)
        factors = [weights[number] for number in row.numbers]
        (logprobs * torch.tensor(factors, dtype=logprobs.dtype)[row.answer_index]).sum().backward()
    return [weight.grad for weight in policy.parameters]


@pytest.mark.parametrize("architecture", FULL)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=["f64", "f32"])
def test_packed_rows_have_the_log_probabilities_and_gradients_of_plain_ones(architecture, dtype, tolerance):
    policy = tiny_policy(architecture, dtype=dtype)
    if architecture == "mixtral" and dtype == torch.float64:
        tolerance = 1e-6  # its router computes in float32 whatever the model's dtype
    answers = answers_of()
    weights = {answer.number: (-1.0) ** place * (place + 1) / 5 for place, answer in enumerate(answers)}
    plain = pack(answers, 1, device=policy.device, plain=True)
    with torch.no_grad():
        expected = by_answer(policy, plain)
    expected_gradients = gradients(policy, plain, weights)
    assert all(gradient.abs().max() > 1e-3 for gradient in expected_gradients)
    for budget in (1 << 20, 30, 1):  # one row; several groups in some and a group cut in two; one answer each
        rows = pack(answers, budget, device=policy.device, plain=False)
        with torch.no_grad():
            packed = by_answer(policy, rows)
        assert packed.keys() == expected.keys()
        for number, logprobs in packed.items():
            torch.testing.assert_close(logprobs, expected[number], atol=tolerance, rtol=0)
        for ours, theirs in zip(gradients(policy, rows, weights), expected_gradients, strict=True):
            torch.testing.assert_close(ours, theirs, atol=tolerance * 10, rtol=tolerance)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_plain_rows_have_the_log_probabilities_of_a_plain_forward_pass(architecture):
    policy = tiny_policy(architecture, dtype=torch.float64)
    answers = answers_of()
    rows = pack(answers, 1, device=policy.device, plain=True)
    with torch.no_grad():
        ours = by_answer(policy, rows, temperature=0.6)
        for answer in answers:
            ids = torch.tensor([answer.prompt_token_ids + answer.token_ids])
            logits = policy.model(input_ids=ids).logits[0, len(answer.prompt_token_ids) - 1 : -1] / 0.6
            expected = logits.log_softmax(-1).gather(-1, torch.tensor(answer.token_ids)[:, None])[:, 0]
            tolerance = 1e-6 if architecture == "mixtral" else 1e-9  # its router computes in float32
            torch.testing.assert_close(ours[answer.number], expected, atol=tolerance, rtol=0)


def test_logits_are_computed_for_answer_tokens_alone():
    policy = tiny_policy()
    (row,) = pack(answers_of(), 1 << 20, device=policy.device, plain=False)
    assert row_logits(policy, row).shape == (sum(sum(lengths) for _, lengths in GROUPS), policy.model.config.vocab_size)


def test_answers_of_a_row_do_not_see_one_another():
    policy = tiny_policy(dtype=torch.float64)
    answers = answers_of()
    changed = list(answers)
    changed[1] = PackedAnswer(answers[1].prompt_token_ids, random_ids(6, seed=999), answers[1].number)
    with torch.no_grad():
        before, after = (
            by_answer(policy, pack(some, 1 << 20, device=policy.device, plain=False)) for some in (answers, changed)
        )
    for number, logprobs in before.items():
        assert torch.equal(logprobs, after[number]) == (number != answers[1].number)


@pytest.mark.parametrize("architecture", FULL)
def test_models_with_full_attention_are_packed(architecture):
    assert can_pack(tiny_policy(architecture), answers_of())


@pytest.mark.parametrize("architecture", WINDOWED)
def test_models_that_look_back_over_a_window_are_not_packed(architecture):
    # Not even when the answers tried are shorter than the window.
    assert not can_pack(tiny_policy(architecture, sliding_window=200), answers_of())


@pytest.mark.parametrize("kind", ["linear_attention", "chunked_attention", "conv"])
def test_models_with_layers_of_another_kind_are_not_packed(monkeypatch, kind):
    policy = tiny_policy()
    monkeypatch.setattr(policy.model.config, "layer_types", ["full_attention", kind], raising=False)
    assert not can_pack(policy, answers_of())


def test_too_little_memory_for_the_trial_is_not_taken_for_a_refusal(monkeypatch):
    policy = tiny_policy()
    forward = policy.model.forward

    def failing(**inputs):
        if inputs["attention_mask"] is not None:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(**inputs)

    monkeypatch.setattr(policy.model, "forward", failing)
    with pytest.raises(OutOfMemory) as caught:
        can_pack(policy, answers_of())
    assert caught.value.stage == "update"


@pytest.mark.parametrize("ignored", ["attention_mask", "position_ids"])
def test_a_model_that_ignores_what_packing_relies_on_is_not_packed(monkeypatch, ignored):
    policy = tiny_policy()
    forward = policy.model.forward
    monkeypatch.setattr(policy.model, "forward", lambda **inputs: forward(**{**inputs, ignored: None}))
    assert not can_pack(policy, answers_of())


def test_a_model_that_cannot_take_a_mask_of_ours_is_not_packed(monkeypatch):
    policy = tiny_policy()
    forward = policy.model.forward

    def picky(**inputs):
        if inputs["attention_mask"] is not None and inputs["attention_mask"].ndim != 2:
            raise ValueError("expected a mask of (batch, length)")
        return forward(**inputs)

    monkeypatch.setattr(policy.model, "forward", picky)
    assert not can_pack(policy, answers_of())


def test_a_model_whose_numbers_are_not_finite_is_not_packed(monkeypatch):
    policy = tiny_policy()
    with torch.no_grad():
        policy.parameters[0].fill_(float("nan"))
    assert not can_pack(policy, answers_of())


def test_trying_whether_to_pack_leaves_no_gradient():
    policy = tiny_policy()
    can_pack(policy, answers_of())
    assert all(weight.grad is None for weight in policy.parameters)
