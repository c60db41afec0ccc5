"""Starting from an adapter: the policy is what PEFT makes of it, and the reference stays what it was."""

import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from ratchet.config import OptimizerSettings, RlSettings, StartSettings
from ratchet.engine.chat import Chat
from ratchet.engine.logprobs import PLAIN, RowForward, answer_logprobs
from ratchet.engine.packing import PackedAnswer, pack
from ratchet.engine.policy import Policy, with_start_adapter
from ratchet.engine.starting_adapter import read_start
from ratchet.engine.update import Learner, new_optimizer, update
from ratchet.errors import Conflict, ModelUnavailable, NotFound
from ratchet.models.adapter_files import ADAPTER_WEIGHTS, weights_sha256
from ratchet.models.model_files import ModelFiles

from ..adapters import adapted, by_peft, peft_about_itself, save
from .models import EOS, character_tokenizer, group_of, random_ids, tiny_model, tiny_policy

IDS = torch.tensor([random_ids(9)])
PROMPT = random_ids(8, seed=1)
ANSWERS = [(*random_ids(5, seed=2), EOS), (*random_ids(3, seed=3), EOS), (*random_ids(4, seed=4), EOS)]


@pytest.fixture(autouse=True)
def _peft_about_itself():
    with peft_about_itself():
        yield


def start_of(path):
    return StartSettings(adapter=str(path), sha256=weights_sha256(path))


def started(path, architecture="llama", dtype=torch.float32):
    model = with_start_adapter(tiny_model(architecture), read_start(start_of(path))).to(dtype).eval()
    chat = Chat(character_tokenizer(), frozenset({EOS}), {})
    files = ModelFiles("random", "/nowhere/random", None, "sha256:0")
    policy = Policy(model, chat, torch.device("cpu"), files, files.identity)
    policy.hold_as_start()
    return policy


def logits_of(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


KINDS = {
    "all linear layers": {},
    "some": {"target_modules": ["q_proj", "v_proj"]},
    "a pattern": {"target_modules": r".*\.1\.mlp\..*_proj"},
    "one layer": {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1]},
    "all but some": {"exclude_modules": ["k_proj"]},
    "rank-stabilized": {"use_rslora": True},
    "dropout": {"lora_dropout": 0.3},
    "other alpha": {"lora_alpha": 3},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_policy_has_the_logits_that_plain_peft_has(kind, tmp_path):
    original = adapted(tiny_model(), **KINDS[kind])
    save(original, tmp_path)
    policy = started(tmp_path)
    assert torch.equal(logits_of(policy.model), logits_of(by_peft(tiny_model(), tmp_path)))
    assert torch.equal(logits_of(policy.model), logits_of(original))
    assert not torch.allclose(logits_of(policy.model), logits_of(tiny_model()), atol=1e-3)
    with policy.merged():
        torch.testing.assert_close(logits_of(policy.model), logits_of(original), atol=1e-4, rtol=0)


@pytest.mark.parametrize("architecture", ["qwen2", "gemma", "phi3", "gpt_neox", "mixtral"])
def test_so_it_has_on_other_architectures(architecture, tmp_path):
    save(adapted(tiny_model(architecture)), tmp_path)
    policy = started(tmp_path, architecture)
    assert torch.equal(logits_of(policy.model), logits_of(by_peft(tiny_model(architecture), tmp_path)))


def test_what_is_saved_of_it_is_what_it_was(tmp_path):
    policy = tiny_policy()
    files = policy.adapter_files(policy.adapter_state())
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    again = started(tmp_path)
    assert again.adapter_files(again.adapter_state()) == files
    assert [name for name, _ in again.named_parameters()] == [name for name, _ in policy.named_parameters()]


def test_sixteen_bits_are_trained_in_thirty_two(tmp_path):
    save(adapted(tiny_model()), tmp_path)
    file = tmp_path / ADAPTER_WEIGHTS
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    policy = started(tmp_path)
    assert {weight.dtype for weight in policy.parameters} == {torch.float32}
    assert torch.equal(logits_of(policy.model), logits_of(by_peft(tiny_model(), tmp_path)))


# --- what is refused as it loads -------------------------------------------------------------------------------------


def test_a_changed_byte_and_a_missing_folder_are_refused(tmp_path):
    save(adapted(tiny_model()), tmp_path / "a")
    start = start_of(tmp_path / "a")
    content = bytearray((tmp_path / "a" / ADAPTER_WEIGHTS).read_bytes())
    content[-3] ^= 1
    (tmp_path / "a" / ADAPTER_WEIGHTS).write_bytes(content)
    with pytest.raises(Conflict, match=f"should be {start.sha256[:12]}"):
        read_start(start)
    with pytest.raises(NotFound, match=r"has no adapter_config.json"):
        read_start(start.model_copy(update={"adapter": str(tmp_path / "nowhere")}))
    with pytest.raises(ValueError, match="not resolved"):
        read_start(StartSettings(adapter=str(tmp_path / "a")))
    assert read_start(StartSettings()) is None


def test_a_number_that_is_not_finite_is_refused(tmp_path):
    save(adapted(tiny_model()), tmp_path)
    state = load_file(tmp_path / ADAPTER_WEIGHTS)
    next(iter(state.values()))[0, 0] = torch.nan
    save_file(state, tmp_path / ADAPTER_WEIGHTS)
    with pytest.raises(ModelUnavailable, match="not finite"):
        read_start(start_of(tmp_path))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"architecture": "gpt_neox"}, "does not fit the base model"),
        ({"hidden_size": 64}, "weights are missing there, or of another shape"),
        ({"num_hidden_layers": 1}, "weights are missing there, or of another shape"),
    ],
    ids=str,
)
def test_another_model_is_refused(model, said, tmp_path):
    save(adapted(tiny_model()), tmp_path)
    with pytest.raises(ModelUnavailable, match=said):
        with_start_adapter(tiny_model(**model), read_start(start_of(tmp_path)))


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_an_adapter_on_the_first_or_last_layer_is_refused(target, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT on tied weights and on saving embeddings
        save(adapted(tiny_model(), target_modules=["q_proj", target]), tmp_path)
    with pytest.raises(ModelUnavailable, match=r"output layer|no factor"):
        with_start_adapter(tiny_model(), read_start(start_of(tmp_path)))


# --- the reference ---------------------------------------------------------------------------------------------------

DECODER = RowForward("decoder", "chunked")
PACKED = RowForward("packed", "chunked")


def logprobs_of(policy, way):
    packed = [PackedAnswer(PROMPT, answer, number) for number, answer in enumerate(ANSWERS)]
    rows = pack(packed, 1 << 20, device=policy.device, plain=way.is_plain)
    return torch.cat([answer_logprobs(policy, row, 1.0, way) for row in rows])


@pytest.mark.parametrize("way", [DECODER, PACKED, PLAIN], ids=str)
def test_the_reference_is_the_starting_adapter_whatever_was_learned_since(way, tmp_path):
    save(adapted(tiny_model()), tmp_path)
    policy = started(tmp_path)
    before = logprobs_of(policy, way).detach()
    with torch.no_grad(), policy.as_reference():
        assert torch.equal(logprobs_of(policy, way), before)
    with torch.no_grad():
        for weight in policy.parameters:
            weight.mul_(1.5)
        learned = logprobs_of(policy, way)
        assert not torch.allclose(learned, before, atol=1e-2)
        with policy.as_reference():
            torch.testing.assert_close(logprobs_of(policy, way), before, atol=1e-6, rtol=0)
        assert torch.equal(logprobs_of(policy, way), learned)
    base = tiny_policy(fresh=True)
    assert not torch.allclose(logprobs_of(base, way), before, atol=1e-2)


@pytest.mark.parametrize("way", [DECODER, PACKED, PLAIN], ids=str)
def test_asking_the_reference_in_between_leaves_gradients_as_they_are(way, tmp_path):
    save(adapted(tiny_model()), tmp_path)
    policy = started(tmp_path)
    with torch.no_grad():
        for weight in policy.parameters:
            weight.mul_(1.5)
    expected = torch.autograd.grad(logprobs_of(policy, way).sum(), policy.parameters)
    logprobs = logprobs_of(policy, way)
    with torch.no_grad(), policy.as_reference():
        logprobs_of(policy, way)
    found = torch.autograd.grad(logprobs.sum(), policy.parameters)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_policy_is_itself_again_after_a_fault_as_reference(tmp_path):
    save(adapted(tiny_model()), tmp_path)
    policy = started(tmp_path)
    with torch.no_grad():
        policy.parameters[1].add_(1)
    before = [weight.data_ptr() for weight in policy.parameters]
    with pytest.raises(KeyError), policy.as_reference():
        raise KeyError
    assert [weight.data_ptr() for weight in policy.parameters] == before
    assert not policy.is_reference


@pytest.mark.parametrize("way", [DECODER, PACKED, PLAIN], ids=str)
def test_the_divergence_from_the_starting_adapter_is_zero_at_first_and_then_not(way, tmp_path):
    save(adapted(tiny_model()), tmp_path)
    policy = started(tmp_path)
    settings = RlSettings(
        prompts_per_round=1, answers_per_prompt=3, max_answer_tokens=16, beta=0.1, clip_low=0.2, clip_high=0.2
    )
    learner = Learner(
        policy=policy,
        settings=settings,
        optimizer=new_optimizer(policy, 1e-2, OptimizerSettings()),
        gradient_norm_limit=1.0,
        micro_batch_tokens=1 << 20,
        forward=way,
        importance_cap=None,
    )
    group = group_of(PROMPT, ANSWERS, [1.0, 0.0, 0.0])
    start = [weight.clone() for weight in policy.start]
    first, second = (update(learner, [group], lambda: None) for _ in range(2))
    assert first.kl == 0
    assert second.kl > 1e-4
    assert all(torch.equal(one, other) for one, other in zip(policy.start, start, strict=True))
    # The base model alone is another reference.
    policy.start = ()
    assert update(learner, [group], lambda: None).kl != pytest.approx(second.kl, rel=0.1)
