"""Base models in 8 and 4 bits by the real bitsandbytes, against the same model with its weights dequantized."""

import json
import logging
import sys

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from peft import PeftModel
from peft.tuners.lora.layer import LoraLayer
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from ratchet.config import RlSettings, RunConfig
from ratchet.config.config_text import build
from ratchet.engine import quantization
from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.logprobs import PLAIN, RowForward, answer_logprobs, chosen_forward
from ratchet.engine.memory import recompute_layers
from ratchet.engine.packing import PackedAnswer, pack
from ratchet.engine.policy import load_chat, load_policy
from ratchet.engine.prepare import prepare
from ratchet.engine.quantization import is_quantized, load_keywords
from ratchet.engine.sampler import SampleRequest
from ratchet.engine.sampler.in_process import InProcessSampler
from ratchet.errors import InvalidSetting
from ratchet.readiness.device_checks import refuse_impossible_quantization

KINDS = ["8bit", "4bit"]
LAYERS = {"8bit": Linear8bitLt, "4bit": Linear4bit}
CPU = torch.device("cpu")


def loaded(model="tiny", **settings):
    config = RunConfig(model=str(model), device="cpu", **settings)
    return load_policy(config, *load_chat(config))


def with_adapter(policy):
    """Give the adapter's second factor random numbers, so that it matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.05, generator=generator)
    return policy


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def policy(kind):
    return with_adapter(loaded(quantization=kind))


def dequantized(layer):
    if isinstance(layer, Linear8bitLt):
        weight, state = layer.weight, layer.state
        codes, scales = (weight.CB, weight.SCB) if weight.CB is not None else (state.CB, state.SCB)
        return codes.float() * scales[:, None] / 127
    return dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()


@pytest.fixture
def plain(policy):
    """The model that is not quantized, with the quantized one's weights written out and the same adapter."""
    other = loaded()
    layers = dict(policy.model.get_base_model().named_modules())
    with torch.no_grad():
        for name, module in other.model.get_base_model().named_modules():
            if isinstance(module, LoraLayer):
                module.get_base_layer().weight.copy_(dequantized(layers[name].get_base_layer()))
    other.load_adapter_state(policy.adapter_state())
    return other


def prompts_of(policy):
    texts = ["(3 + 4) * (2 + 6)", "(9 + 1) * (1 + 1)", "(5 + 5) * (7 + 8)"]
    return [policy.chat.encode([{"role": "user", "content": text}]) for text in texts]


def sampled(policy, prompts, answers=3):
    requests = [SampleRequest(prompt, answers, (7, number)) for number, prompt in enumerate(prompts)]
    stream = InProcessSampler(policy, 1 << 14).sample(requests, SamplingSettings.of(RlSettings()), 16, lambda: None)
    return {(one.request, one.answer): one.completion for one in stream}


def answers_of(prompts, completions):
    return [
        PackedAnswer(prompts[request], completions[request, answer].token_ids, number)
        for number, (request, answer) in enumerate(sorted(completions))
    ]


def logits_of(policy):
    with torch.no_grad():
        return policy.model(input_ids=torch.tensor([prompts_of(policy)[0]])).logits


def gradients(policy, answers, *, plain=False):
    for weight in policy.parameters:
        weight.grad = None
    for row in pack(answers, 1 << 20, device=CPU, plain=plain):
        answer_logprobs(policy, row, 1.0, PLAIN).sum().backward()
    return [weight.grad for weight in policy.parameters]


# --- what is computed ------------------------------------------------------------------------------------------------


def test_the_trunk_is_quantized_and_takes_less_memory(policy, kind):
    layers = [module for module in policy.model.modules() if isinstance(module, LoraLayer)]
    assert len(layers) == 4 * 7
    assert all(isinstance(layer.get_base_layer(), LAYERS[kind]) for layer in layers)
    assert all(weight.dtype == torch.float32 for weight in policy.parameters)
    assert policy.model.get_base_model().lm_head.weight.dtype == torch.float32
    whole = loaded().memory_load(1, 1)
    trunk = sum(weight.numel() for weight in whole_trunk())
    saved = whole.weight_bytes - policy.memory_load(1, 1).weight_bytes
    assert saved >= trunk * {"8bit": 2.99, "4bit": 3.45}[kind]


def whole_trunk():
    model = loaded().model.get_base_model()
    return [module.get_base_layer().weight for module in model.modules() if isinstance(module, LoraLayer)]


def test_it_computes_with_the_dequantized_weights(policy, plain):
    torch.testing.assert_close(logits_of(policy), logits_of(plain), atol=2e-4, rtol=0)
    assert not torch.allclose(logits_of(policy), logits_of(with_adapter(loaded())), atol=1e-2)


def test_gradients_pass_through_after_sampling_too(policy, plain):
    # Where a processor has AVX512-BF16, a pass without gradients outside of training mode would end them in 4 bits.
    prompts = prompts_of(policy)
    answers = answers_of(prompts, sampled(policy, prompts))
    for ours, theirs in zip(gradients(policy, answers), gradients(plain, answers), strict=True):
        assert theirs.abs().max() > 1e-3
        torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-3)


def test_an_answer_depends_on_nothing_else_in_the_batch(policy):
    prompts = prompts_of(policy)
    together = sampled(policy, prompts)
    alone = sampled(policy, prompts[:1], answers=1)
    assert alone[0, 0].token_ids == together[0, 0].token_ids
    torch.testing.assert_close(
        torch.tensor(alone[0, 0].logprobs), torch.tensor(together[0, 0].logprobs), atol=1e-4, rtol=0
    )


def test_sampler_and_trainer_agree_in_packed_and_plain_rows(policy):
    prompts = prompts_of(policy)
    completions = sampled(policy, prompts)
    answers = answers_of(prompts, completions)
    expected = torch.cat([torch.tensor(completions[key].full_logprobs) for key in sorted(completions)])
    with torch.no_grad():
        for as_plain in (False, True):
            rows = pack(answers, 1 << 20, device=CPU, plain=as_plain)
            ours = torch.cat([answer_logprobs(policy, row, 1.0, PLAIN) for row in rows])
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)
    assert chosen_forward(policy, answers) == RowForward("packed", "chunked")


def test_recomputed_layers_give_the_same_gradients(policy):
    prompts = prompts_of(policy)
    answers = answers_of(prompts, sampled(policy, prompts))
    kept = gradients(policy, answers)
    recompute_layers(policy.model)
    for ours, theirs in zip(gradients(policy, answers), kept, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_nothing_is_merged_into_codes_and_the_adapter_goes_on_working(policy):
    codes = [w.clone() for w in policy.model.parameters() if is_quantized(w)]
    outside = logits_of(policy)
    assert policy.merged_bytes == 0
    with policy.merged():
        assert torch.equal(logits_of(policy), outside)
    assert all(torch.equal(a, b) for a, b in zip(codes, filter(is_quantized, policy.model.parameters()), strict=True))
    assert torch.equal(logits_of(policy), outside)


def test_the_reference_is_the_quantized_base_model(policy, kind):
    with policy.as_reference():
        reference = logits_of(policy)
    torch.testing.assert_close(reference, logits_of(loaded(quantization=kind)), atol=1e-5, rtol=0)
    assert not torch.allclose(reference, logits_of(policy), atol=1e-2)


def test_nothing_is_logged_at_each_pass(kind, caplog):
    with caplog.at_level(logging.WARNING, logger="bitsandbytes"):
        policy = loaded(quantization=kind)
        sampled(policy, prompts_of(policy))
    assert not [record for record in caplog.records if record.name.startswith("bitsandbytes")]


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT 0.21 itself
def test_the_adapter_loads_on_the_unquantized_base_by_plain_peft(policy, tmp_path):
    for name, content in policy.adapter_files(policy.adapter_state()).items():
        (tmp_path / name).write_bytes(content)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    base = AutoModelForCausalLM.from_pretrained(settings["base_model_name_or_path"], dtype=torch.float32)
    other = PeftModel.from_pretrained(base, str(tmp_path)).eval()
    unquantized = loaded()
    unquantized.load_adapter_state(policy.adapter_state())
    with torch.no_grad():
        logits = other(input_ids=torch.tensor([prompts_of(policy)[0]])).logits
    torch.testing.assert_close(logits, logits_of(unquantized), atol=1e-5, rtol=0)


@pytest.fixture
def stored(kind, tmp_path):
    """A model that is stored quantized, with a compute dtype that would be slow here."""
    settings = {"8bit": {"load_in_8bit": True}, "4bit": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}}[kind]
    if kind == "4bit":
        settings |= {"bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": torch.bfloat16}
    keywords = load_keywords("none", CPU, {}) | {"quantization_config": BitsAndBytesConfig(**settings)}
    chat, files = load_chat(RunConfig())
    model = AutoModelForCausalLM.from_pretrained(files.source, dtype=torch.float32, **keywords)
    model.save_pretrained(tmp_path)
    chat.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_model_that_is_stored_quantized_is_the_one_quantized_here(stored, kind):
    policy = loaded(stored, quantization=kind)
    torch.testing.assert_close(logits_of(policy), logits_of(loaded(quantization=kind)), atol=1e-5, rtol=0)


def test_a_model_that_is_stored_quantized_needs_the_setting_to_say_so(stored, kind):
    with pytest.raises(InvalidSetting, match=rf"Quantization is none, but .* is stored in {kind[0]} bits.*{kind}"):
        loaded(stored)


# --- refusals --------------------------------------------------------------------------------------------------------


def test_it_is_off_unless_asked_for():
    assert RunConfig().quantization == "none"
    assert load_keywords("none", CPU, {}) == {}


def test_without_bitsandbytes_the_install_command_is_named(monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(InvalidSetting, match=rf"Quantization is {kind}, .*not installed. Run: pip install") as caught:
        prepare(build({"quantization": kind}))
    assert caught.value.field == "quantization"
    refuse_impossible_quantization("none", "cpu")


def test_an_apple_gpu_is_refused(monkeypatch, kind):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(InvalidSetting, match=rf"Quantization is {kind}, .*Apple GPU.*Choose none, or Device cpu"):
        prepare(build({"quantization": kind, "device": "mps"}))
    refuse_impossible_quantization("none", "mps")


def test_another_value_is_refused_with_those_there_are():
    with pytest.raises(InvalidSetting, match=r"Quantization \(quantization\) is \"2bit\".*'none', '8bit' or '4bit'"):
        build({"quantization": "2bit"})


def test_on_a_cpu_it_is_said_that_no_time_is_saved(kind):
    settings = {"quantization": kind, "rl": {"max_answer_tokens": 32}, "device": "cpu"}
    assert any("saves memory but no time" in note for note in prepare(build(settings)).notes)
    assert not any("saves memory" in note for note in prepare(build({**settings, "quantization": "none"})).notes)


# --- the product of 8 bits -------------------------------------------------------------------------------------------


def product(x, codes, scales):
    return quantization._Int8Product.apply(x, codes, scales)


def test_a_product_with_codes_worked_by_hand():
    # Rows (1, -2) * 0.5 and (127, 0) * 0.1.
    codes, scales = torch.tensor([[1, -2], [127, 0]], dtype=torch.int8), torch.tensor([0.5, 0.1])
    x = torch.tensor([[3.0, 1.0]], requires_grad=True)
    torch.testing.assert_close(product(x, codes, scales), torch.tensor([[0.5, 38.1]]))
    product(x, codes, scales).backward(torch.tensor([[1.0, 10.0]]))
    torch.testing.assert_close(x.grad, torch.tensor([[0.5 + 127.0, -1.0]]))


def test_in_sixteen_bits_the_product_is_as_near_as_sixteen_bits_are():
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(-127, 128, (64, 128), generator=generator, dtype=torch.int8)
    scales = torch.rand(64, generator=generator) + 0.01
    x = torch.randn((5, 128), generator=generator).bfloat16()
    exact = x.double() @ (codes.double() * scales.double()[:, None]).T
    ours = product(x, codes, scales)
    assert ours.dtype == torch.bfloat16
    # Two roundings of at most a relative 2 ** -8 each.
    torch.testing.assert_close(ours.double(), exact, rtol=2**-7, atol=1e-6)
