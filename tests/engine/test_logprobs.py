"""Log-probabilities of every way to compute rows against plain ones, values and gradients, and the choice of a way."""

import logging
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from ratchet.engine import logprobs as logprobs_module
from ratchet.engine.decoder import attention, layer
from ratchet.engine.distribution import SamplingSettings, sampling_logprobs
from ratchet.engine.logprobs import (
    PLAIN,
    RowForward,
    answer_logprobs,
    chosen_forward,
    drawn_logprobs,
    policy_head,
    row_logits,
)
from ratchet.engine.packing import PackedAnswer, pack
from ratchet.engine.sampler.choice import chosen_kind
from ratchet.errors import OutOfMemory

from ..repeated import matrix
from .models import ARCHITECTURES, random_ids, tiny_policy
from .ways import DECODER, GROUPS, LONG, PACKED, PACKED_WHOLE, PLAIN_CHUNKED, answers_of

WINDOWED = ["mistral", "gemma2", "gemma3"]
FULL = [name for name in ARCHITECTURES if name not in WINDOWED]
OURS = ["llama", "qwen2", "qwen3"]
RECOMPUTED = RowForward("decoder", "chunked", recompute=True)
# Every architecture with the ways that it allows.
PAIRS = [
    (architecture, way)
    for architecture in FULL
    for way in (DECODER, RECOMPUTED, PACKED, PACKED_WHOLE, PLAIN_CHUNKED)
    if way.rows != "decoder" or architecture in OURS
]


def rows_of(policy, answers, way, budget=1 << 20):
    return pack(answers, budget, device=policy.device, plain=way.is_plain)


def by_answer(policy, rows, temperature=1.0, way=PLAIN):
    """Return log-probabilities by answer number."""
    return {
        number: logprobs[row.answer_index == index]
        for row in rows
        for logprobs in [answer_logprobs(policy, row, temperature, way)]
        for index, number in enumerate(row.numbers)
    }


def gradients(policy, rows, weights, way=PLAIN, temperature=1.0):
    """Sum the gradients of weighted log-probabilities over the rows, as the update does."""
    for weight in policy.parameters:
        weight.grad = None
    for row in rows:
        logprobs = answer_logprobs(policy, row, temperature, way)
        factors = [weights[number] for number in row.numbers]
        (logprobs * torch.tensor(factors, dtype=logprobs.dtype)[row.answer_index]).sum().backward()
    return [weight.grad for weight in policy.parameters]


def weights_for(answers):
    return {answer.number: (-1.0) ** place * (place + 1) / 5 for place, answer in enumerate(answers)}


def assert_as_plain(policy, answers, way, budgets, tolerance, temperature=0.8):
    weights = weights_for(answers)
    plain = rows_of(policy, answers, PLAIN)
    with torch.no_grad():
        expected = by_answer(policy, plain, temperature)
    expected_gradients = gradients(policy, plain, weights, temperature=temperature)
    assert all(gradient.abs().max() > 1e-3 for gradient in expected_gradients)
    for budget in budgets:
        rows = rows_of(policy, answers, way, budget)
        with torch.no_grad():
            ours = by_answer(policy, rows, temperature, way)
        assert ours.keys() == expected.keys()
        for number, logprobs in ours.items():
            torch.testing.assert_close(logprobs, expected[number], atol=tolerance, rtol=0)
        own = gradients(policy, rows, weights, way, temperature)
        for one, other in zip(own, expected_gradients, strict=True):
            torch.testing.assert_close(one, other, atol=tolerance * 10, rtol=tolerance)


DTYPES = [(torch.float64, 1e-9), (torch.float32, 1e-4)]


@pytest.mark.parametrize(
    ("architecture", "way", "dtype", "tolerance", "prefix"),
    matrix(
        PAIRS,
        DTYPES,
        [0, 11],
        # Every pair exactly and with a prefix; without one, and in float32, those of one architecture.
        ci=lambda architecture, way, dtype, _, prefix: (
            (dtype == torch.float64 and prefix == 11)
            or (architecture == "llama" and (dtype == torch.float64 or prefix == 0))
        ),
    ),
    ids=str,
)
def test_every_way_has_the_log_probabilities_and_gradients_of_plain_rows(architecture, way, dtype, tolerance, prefix):
    policy = tiny_policy(architecture, dtype=dtype)
    if architecture == "mixtral" and dtype == torch.float64:
        tolerance = 1e-6  # its router computes in float32 whatever the model's dtype
    # One row; several groups in some and a group cut in two; for one architecture also one answer each.
    budgets = (1 << 20, 54 + prefix)[: 2 if dtype == torch.float64 else 1] + ((1,) if architecture == "llama" else ())
    answers = answers_of(prefix=prefix)
    if way != PLAIN_CHUNKED:
        assert {row.prefix_length for row in rows_of(policy, answers, way)} == {prefix}
    assert_as_plain(policy, answers, way, budgets, tolerance)


def test_a_budget_cuts_a_group_in_two():
    for prefix in (0, 11):
        cut = [row.numbers for row in rows_of(tiny_policy(), answers_of(prefix=prefix), DECODER, 54 + prefix)]
        assert cut == [(0, 1, 2, 10, 11, 20, 30, 31), (32, 33)]


@pytest.mark.parametrize(
    ("architecture", "dtype", "tolerance", "prefix"),
    matrix(
        OURS,
        DTYPES,
        [0, 11, 130],
        ci=lambda architecture, dtype, _, prefix: dtype == torch.float64 and (architecture == "llama" or prefix == 130),
    ),
    ids=str,
)
def test_long_segments_in_our_decoder(architecture, dtype, tolerance, prefix):
    policy = tiny_policy(architecture, dtype=dtype, max_position_embeddings=1024)
    lengths = [n for prompt, answers in LONG for n in (prompt, *answers)]
    assert min(lengths) < attention._SHORT < max(lengths)
    assert_as_plain(policy, answers_of(LONG, prefix), DECODER, (1 << 20, 300), tolerance)


@pytest.mark.parametrize("groups", [[(5, (1, 1, 1))], [(3, (1,)), (4, (1, 1))], [(2, (2,))], [(97, (1,)), (98, (98,))]])
def test_rows_that_lack_a_level(groups):
    # Answers of one token have no segment: their prompt's last token predicts them.
    policy = tiny_policy(dtype=torch.float64)
    for prefix in (0, 9):
        assert_as_plain(policy, answers_of(groups, prefix), DECODER, (1 << 20,), 1e-9)


@pytest.mark.parametrize(
    "settings", [{"attention_bias": True}, {"tie_word_embeddings": True}, {"head_dim": 4}], ids=str
)
def test_other_shapes_of_the_family(settings):
    # A bias of the output projection is not in our decoder; those of queries, keys and values alone are Qwen 2's.
    policy = tiny_policy(dtype=torch.float64, **settings)
    assert (policy.decoder is None) == ("attention_bias" in settings)
    way = PACKED if policy.decoder is None else DECODER
    assert_as_plain(policy, answers_of(prefix=9), way, (1 << 20,), 1e-9)


def test_biases_that_are_not_zero():
    policy = tiny_policy("qwen2", dtype=torch.float64)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(generator=torch.Generator().manual_seed(3))
    assert_as_plain(policy, answers_of(prefix=9), DECODER, (1 << 20,), 1e-9)


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_norms_whose_weights_are_not_1(architecture):
    policy = tiny_policy(architecture, dtype=torch.float64)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.3, 2, generator=torch.Generator().manual_seed(len(name)))
    assert_as_plain(policy, answers_of(prefix=9), DECODER, (1 << 20,), 1e-9)


@pytest.mark.parametrize("way", [DECODER, PACKED, PACKED_WHOLE, PLAIN_CHUNKED], ids=str)
def test_answers_that_are_alike_each_have_a_gradient(way):
    policy = tiny_policy(dtype=torch.float64)
    answers = answers_of(prefix=9)
    answers += [PackedAnswer(one.prompt_token_ids, one.token_ids, one.number + 500) for one in answers[-2:]]
    assert_as_plain(policy, answers, way, (1 << 20, 1), 1e-9)


@pytest.mark.parametrize("architecture", OURS)
@pytest.mark.parametrize("way", [DECODER, PACKED], ids=str)
def test_the_reference_is_the_base_model(architecture, way):
    policy, bare = (tiny_policy(architecture, dtype=torch.float64, fresh=fresh) for fresh in (False, True))
    answers = answers_of(prefix=9)
    (row,) = rows_of(policy, answers, way)
    with torch.no_grad():
        before = answer_logprobs(policy, row, 0.7, way)
        with policy.as_reference():
            reference = answer_logprobs(policy, row, 0.7, way)
        after = answer_logprobs(policy, row, 0.7, way)
        expected = answer_logprobs(bare, row, 0.7, PACKED_WHOLE)
    torch.testing.assert_close(reference, expected, atol=1e-9, rtol=0)
    assert torch.equal(before, after)
    assert (before - reference).abs().max() > 0.01
    assert not policy.is_reference


def test_a_reference_that_fails_leaves_the_policy_as_it_was():
    policy = tiny_policy()
    with suppress(KeyError), policy.as_reference():
        assert policy.is_reference
        raise KeyError
    assert not policy.is_reference


def test_a_changed_adapter_changes_the_numbers_at_once():
    # The decoder holds the adapters' factors joined; an optimizer writes into the parameters themselves.
    policy = tiny_policy(dtype=torch.float64)
    answers = answers_of(prefix=9)
    assert_as_plain(policy, answers, DECODER, (1 << 20,), 1e-9)
    optimizer = torch.optim.AdamW(policy.parameters, lr=0.05)
    optimizer.step()
    assert_as_plain(policy, answers, DECODER, (1 << 20,), 1e-9)
    policy.load_adapter_state({name: 0.5 * tensor for name, tensor in policy.adapter_state().items()})
    assert_as_plain(policy, answers, DECODER, (1 << 20,), 1e-9)


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


@pytest.mark.parametrize("way", [DECODER, PACKED, PACKED_WHOLE, PLAIN_CHUNKED], ids=str)
@pytest.mark.parametrize("settings", [SamplingSettings(0.6, top_p=0.9), SamplingSettings(top_k=5)], ids=str)
def test_log_probabilities_under_the_sampling_distribution(way, settings):
    policy = tiny_policy(dtype=torch.float64)
    answers = answers_of(prefix=9)
    expected = {}
    for row in rows_of(policy, answers, PLAIN):
        with torch.no_grad():
            expected[row.numbers[0]] = sampling_logprobs(row_logits(policy, row), row.targets, settings)
    for row in rows_of(policy, answers, way):
        ours = drawn_logprobs(policy, row, settings, way)
        assert not ours.requires_grad
        for index, number in enumerate(row.numbers):
            torch.testing.assert_close(ours[row.answer_index == index], expected[number], atol=1e-9, rtol=0)


def test_logits_are_computed_for_answer_tokens_alone():
    policy = tiny_policy()
    (row,) = pack(answers_of(), 1 << 20, device=policy.device, plain=False)
    assert row_logits(policy, row).shape == (sum(sum(lengths) for _, lengths in GROUPS), policy.model.config.vocab_size)


@pytest.mark.parametrize("way", [DECODER, PACKED, PACKED_WHOLE], ids=str)
@pytest.mark.parametrize("prefix", [0, 9])
def test_answers_of_a_row_do_not_see_one_another(way, prefix):
    policy = tiny_policy(dtype=torch.float64)
    answers = answers_of(prefix=prefix)
    changed = list(answers)
    changed[1] = PackedAnswer(answers[1].prompt_token_ids, random_ids(6, seed=999), answers[1].number)
    with torch.no_grad():
        before, after = (by_answer(policy, rows_of(policy, some, way), way=way) for some in (answers, changed))
    for number, logprobs in before.items():
        assert torch.equal(logprobs, after[number]) == (number != answers[1].number)


# --- the choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", FULL)
def test_models_with_full_attention_are_packed_and_those_we_know_computed_by_our_decoder(architecture):
    expected = DECODER if architecture in OURS else PACKED
    assert chosen_forward(tiny_policy(architecture), answers_of(prefix=9)) == expected


@pytest.mark.parametrize("architecture", WINDOWED)
def test_models_that_look_back_over_a_window_are_not_packed(architecture):
    # Not even when the answers tried are shorter than the window.
    way = chosen_forward(tiny_policy(architecture, sliding_window=200), answers_of())
    # The logits of Gemma 2 are capped, which the chunked output layer knows nothing of.
    assert way == (PLAIN if architecture == "gemma2" else PLAIN_CHUNKED)


@pytest.mark.parametrize("kind", ["linear_attention", "chunked_attention", "conv"])
def test_models_with_layers_of_another_kind_are_not_packed(monkeypatch, kind):
    policy = tiny_policy("gpt_neox")
    monkeypatch.setattr(policy.model.config, "layer_types", ["full_attention", kind], raising=False)
    assert chosen_forward(policy, answers_of()).is_plain


def broken_scale(patch):
    patch.setattr(layer, "attend", lambda joint, at, scale: attention.attend(joint, at, scale * 1.01))


def broken_mask(patch):
    """Let every token of a short segment see the later ones too."""

    def all_weights(query, key, mask, scale):
        scores = torch.bmm(query, key.transpose(1, 2)) * scale
        return scores.softmax(dim=-1), scores.logsumexp(dim=-1)

    patch.setattr(attention, "_own_weights", all_weights)


def broken_path(patch):
    """Leave out what comes before a segment."""
    patch.setattr(attention, "attend_path", lambda output, logsumexp, *_: (output, logsumexp))


def broken_path_mask(patch):
    """Let a query see the padding of the paths."""
    whole = attention.attend_path

    def without(output, logsumexp, query, key, value, mask, scale):
        return whole(output, logsumexp, query, key, value, None, scale)

    patch.setattr(attention, "attend_path", without)


def broken_gradient(patch):
    """Values stay right."""
    patch.setattr(layer, "attend_backward", lambda *given: attention.attend_backward(*given) * 1.05)


def broken_norm_gradient(patch):
    patch.setattr(layer, "_norm_backward", lambda gradient, hidden, inverse, weight: gradient * weight * inverse)


def broken_path_gradient(patch):
    """What is shared gets no gradient from those who share it."""
    patch.setattr(attention, "_to_path", lambda levels, gradient: None)


def refused(patch):
    def failing(*_):
        raise RuntimeError("poison: no such operator")

    patch.setattr(logprobs_module, "run_layers", failing)


@pytest.mark.parametrize(
    "spoil",
    [
        broken_scale,
        broken_mask,
        broken_path,
        broken_path_mask,
        broken_gradient,
        broken_norm_gradient,
        broken_path_gradient,
        refused,
    ],
)
def test_a_decoder_that_computes_something_else_is_not_used(spoil, monkeypatch, caplog):
    policy = tiny_policy()
    spoil(monkeypatch)
    with caplog.at_level(logging.INFO, "ratchet"):
        assert chosen_forward(policy, answers_of(prefix=9)) == PACKED
    (ours,) = [line for line in caplog.messages if "rows=decoder" in line]
    assert ("refused error=RuntimeError" if spoil is refused else "gradient_gap=") in ours
    assert "poison" not in caplog.text
    assert any("rows=packed head=chunked gap=" in line for line in caplog.messages)


def test_an_output_layer_with_more_than_a_weight_is_computed_whole(monkeypatch):
    policy = tiny_policy("gpt_neox")
    forward = policy.model.forward

    def capped(**inputs):
        result = forward(**inputs)
        result.logits = 3 * torch.tanh(result.logits / 3)
        return result

    monkeypatch.setattr(policy.model, "forward", capped)
    assert chosen_forward(policy, answers_of()) == PACKED_WHOLE


@pytest.mark.parametrize("stage", ["run_layers", "row_logits"])
def test_too_little_memory_for_the_trial_is_not_taken_for_a_refusal(monkeypatch, stage):
    policy = tiny_policy()

    def failing(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(logprobs_module, stage, failing)
    with pytest.raises(OutOfMemory) as caught:
        chosen_forward(policy, answers_of())
    assert caught.value.stage == "update"


def spoil_inputs(policy, monkeypatch, change):
    """Change what transformers' model is given for packed rows."""
    inputs = logprobs_module._inputs

    def spoiled(policy, row):
        given = inputs(policy, row)
        return given if given["attention_mask"] is None else change(given)

    monkeypatch.setattr(logprobs_module, "_inputs", spoiled)


@pytest.mark.parametrize("ignored", ["attention_mask", "position_ids"])
def test_a_model_that_ignores_what_packing_relies_on_is_not_packed(monkeypatch, ignored):
    policy = tiny_policy("phi")
    spoil_inputs(policy, monkeypatch, lambda given: {**given, ignored: None})
    assert chosen_forward(policy, answers_of()) == PLAIN_CHUNKED


def test_a_model_that_cannot_take_a_mask_of_ours_is_not_packed(monkeypatch, caplog):
    policy = tiny_policy("phi")

    def picky(given):
        raise ValueError("expected a mask of (batch, length)")

    spoil_inputs(policy, monkeypatch, picky)
    with caplog.at_level(logging.INFO, "ratchet"):
        assert chosen_forward(policy, answers_of()) == PLAIN_CHUNKED
    assert sum("refused error=ValueError" in line for line in caplog.messages) == 2


@pytest.mark.parametrize("architecture", ["llama", "phi"])
def test_a_model_whose_numbers_are_not_finite_is_computed_plainly(architecture):
    policy = tiny_policy(architecture)
    with torch.no_grad():
        policy.parameters[0].fill_(float("nan"))
    assert chosen_forward(policy, answers_of()) == PLAIN


@pytest.mark.parametrize("architecture", ["llama", "phi"])
def test_trying_the_ways_leaves_no_gradient(architecture):
    policy = tiny_policy(architecture)
    chosen_forward(policy, answers_of())
    assert all(weight.grad is None for weight in policy.parameters)


def test_an_adapter_that_has_learned_nothing_yet_is_tried_too():
    # Its second factors are zero, so the first ones have no gradient.
    assert chosen_forward(tiny_policy(fresh=True), answers_of()) == DECODER


def test_a_wrong_gradient_of_first_factors_shows_with_a_new_adapter_too(monkeypatch):
    whole = layer._linear_backward

    def halved(gradient, inputs, stack, **keywords):
        grad_inputs, factors = whole(gradient, inputs, stack, **keywords)
        return grad_inputs, [factor / 2 if place % 2 == 0 else factor for place, factor in enumerate(factors)]

    monkeypatch.setattr(layer, "_linear_backward", halved)
    assert chosen_forward(tiny_policy(fresh=True), answers_of()) == PACKED


def test_a_decoder_that_would_sample_with_half_of_the_adapter_is_not_used():
    policy = tiny_policy(fresh=True)
    stack = policy.decoder.layers[0].gate_up
    stack.adapters = tuple(replace(factors, scale=factors.scale / 2) for factors in stack.adapters)
    assert chosen_kind(policy, [random_ids(9, seed=number) for number in range(2)]) == "transformers"


@pytest.mark.parametrize("architecture", ["llama", "mixtral", "phi"])
def test_an_adapter_works_for_a_block_and_is_then_what_it_was(architecture):
    policy = tiny_policy(architecture, fresh=True)
    before = policy.adapter_state()
    with suppress(RuntimeError), policy.with_working_adapter():
        assert all(weight.any() for weight in policy.parameters)
        raise RuntimeError
    after = policy.adapter_state()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


# --- the output layer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "phi"])  # Phi's has a bias
@pytest.mark.parametrize("chunk", [1, 3 * 64, 1 << 20])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_the_output_layer_in_chunks_has_right_values_and_derivatives(monkeypatch, architecture, chunk, temperature):
    monkeypatch.setattr("ratchet.engine.logprobs._CHUNK_NUMBERS", chunk)
    head = policy_head(tiny_policy(architecture, dtype=torch.float64))
    assert (head.bias is None) == (architecture == "llama")
    if head.bias is not None:
        head.bias.normal_(generator=torch.Generator().manual_seed(1))
    hidden = torch.randn(7, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    targets = torch.tensor([0, 63, 5, 5, 17, 40, 1])
    ours = head.logprobs(hidden, targets, temperature)
    logits = hidden @ head.weight.t() + (0 if head.bias is None else head.bias)
    expected = (logits / temperature).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(head.logprobs(hidden.detach(), targets, temperature), expected, atol=1e-12, rtol=0)
    assert torch.autograd.gradcheck(lambda states: head.logprobs(states, targets, temperature), hidden)


def test_logits_far_apart_neither_overflow_nor_vanish():
    head = policy_head(tiny_policy())
    hidden = torch.full((2, 32), 200.0, requires_grad=True)
    targets = torch.tensor([3, 4])
    ours = head.logprobs(hidden, targets, 1.0)
    expected = (hidden.double() @ head.weight.double().t()).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(ours.double(), expected, atol=1e-3, rtol=1e-5)
