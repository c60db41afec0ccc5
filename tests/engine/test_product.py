"""Products with a frozen weight: fused ones against plain arithmetic in float64, with and without oneDNN."""

import pytest
import torch

from ratchet.engine.decoder import weights as product_module
from ratchet.engine.decoder.weights import laid_out, product, product_plus, product_times, silu_product
from ratchet.engine.logprobs import chosen_forward
from ratchet.engine.sampler.choice import chosen_kind

from .models import random_ids, tiny_policy
from .ways import DECODER, answers_of


@pytest.fixture(params=["as it is", "without oneDNN"])
def _routine(request, monkeypatch):
    if request.param != "as it is":
        monkeypatch.setattr(product_module, "_onednn", None)
        monkeypatch.setattr(product_module, "_lay_out", None)


def given(rows, dtype):
    generator = torch.Generator().manual_seed(rows)
    inputs, weight, other = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in ((rows, 24), (40, 24), (rows, 40))
    )
    return inputs, weight, other


def expected_of(inputs, weight, other):
    whole = inputs.double() @ weight.double().t()
    return {"product": whole, "silu": whole * whole.sigmoid(), "times": whole * other.double(), "plus": whole + other}


@pytest.fixture(autouse=True)
def _whatever_the_size(monkeypatch):
    """Small weights go to torch's own product; here they stand for large ones."""
    monkeypatch.setattr(product_module, "_SMALL", 0)


@pytest.mark.usefixtures("_routine")
@pytest.mark.parametrize("rows", [1, 5, 64, 100])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)], ids=["f32", "f64"])
@pytest.mark.parametrize("is_laid_out", [False, True])
def test_products_are_those_of_plain_arithmetic(rows, dtype, tolerance, is_laid_out):
    inputs, weight, other = given(rows, dtype)
    expected = expected_of(inputs, weight, other)
    kept = [tensor.clone() for tensor in (inputs, weight, other)]
    used = laid_out(weight, 64) if is_laid_out else weight
    results = {
        "product": product(inputs, used),
        "silu": silu_product(inputs, used),
        "times": product_times(inputs, used, other),
        "plus": product_plus(inputs, used, other),
    }
    for name, result in results.items():
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), expected[name], atol=tolerance, rtol=0)
    assert all(torch.equal(a, b) for a, b in zip(kept, (inputs, weight, other), strict=True))


@pytest.mark.usefixtures("_routine")
def test_weights_and_inputs_that_are_views():
    inputs, weight, _ = given(6, torch.float32)
    wide = torch.cat([inputs, inputs], dim=1)
    torch.testing.assert_close(product(wide[:, :24], weight), inputs @ weight.t(), atol=1e-4, rtol=0)
    turned = weight.t().contiguous()
    torch.testing.assert_close(product(inputs, turned.t()), inputs @ weight.t(), atol=1e-4, rtol=0)
    torch.testing.assert_close(product(inputs, weight[8:24]), inputs @ weight[8:24].t(), atol=1e-4, rtol=0)


def test_a_weight_that_is_laid_out_is_a_copy():
    # What it was made from belongs to the model; sampling must not write to it or move with it.
    _, weight, _ = given(1, torch.float32)
    before = weight.clone()
    ready = laid_out(weight, 64)
    inputs = torch.eye(24)
    torch.testing.assert_close(product(inputs, ready), before.t(), atol=1e-6, rtol=0)
    assert torch.equal(weight, before)


@pytest.mark.usefixtures("_routine")
def test_the_decoder_is_right_with_either_routine():
    policy = tiny_policy("qwen2")
    assert chosen_forward(policy, answers_of(prefix=9)) == DECODER
    assert chosen_kind(policy, [random_ids(9, seed=n) for n in range(2)]) == "decoder"


def test_without_onednn_it_is_not_called(monkeypatch):
    monkeypatch.setattr(product_module, "_onednn", None)
    monkeypatch.setattr(product_module, "_lay_out", None)
    inputs, weight, _ = given(3, torch.float32)
    assert laid_out(weight, 64) is weight
    assert torch.equal(product(inputs, weight), torch.nn.functional.linear(inputs, weight))


@pytest.mark.skipif(product_module._onednn is None, reason="this torch has no oneDNN")
def test_a_routine_that_refuses_leaves_the_choice_to_the_ways_without_it(monkeypatch):
    # Its interface is torch's own and may change with any version.
    def changed(*_):
        raise TypeError("poison: expected other arguments")

    monkeypatch.setattr(product_module, "_onednn", changed)
    policy = tiny_policy()
    way = chosen_forward(policy, answers_of(prefix=9))
    assert (way.rows, way.head) == ("packed", "whole")
    assert chosen_kind(policy, [random_ids(9, seed=n) for n in range(2)]) == "transformers"


def test_small_weights_are_left_to_torchs_own_product_unless_they_were_laid_out(monkeypatch):
    called = []
    monkeypatch.setattr(product_module, "_SMALL", 1 << 18)
    monkeypatch.setattr(product_module, "_onednn", lambda *_: called.append(1))
    inputs, weight, _ = given(3, torch.float32)
    assert torch.equal(product(inputs, weight), torch.nn.functional.linear(inputs, weight))
    assert not called
