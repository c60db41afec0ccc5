"""The in-process sampler: the same tokens as ``model.generate``, the trainer's log-probabilities, and clean endings."""

import gc
from dataclasses import replace

import pytest
import torch

from ratchet.engine.chat import Chat
from ratchet.engine.distribution import GREEDY, SamplingSettings, sampling_logprobs
from ratchet.engine.logprobs import PLAIN, answer_logprobs, row_logits
from ratchet.engine.packing import PackedAnswer, pack
from ratchet.engine.sampler import SampleRequest, transformers_batch
from ratchet.engine.sampler.in_process import InProcessSampler
from ratchet.errors import Interrupted, NotFinite, OutOfMemory

from ..repeated import matrix
from .models import ARCHITECTURES, EOS, PAD, TURN, character_tokenizer, random_ids, tiny_policy

LENGTHS = [3, 9, 5, 1, 14]
# Several end ids of 64, so that answers of very different lengths occur within 20 tokens.
END_IDS = (EOS, TURN, 10, 20, 30, 40)
LONGEST = 20
SAMPLING = [
    SamplingSettings(),
    SamplingSettings(temperature=0.6, top_p=0.9),
    SamplingSettings(top_k=20),
    SamplingSettings(temperature=1.3, top_k=12, top_p=0.8),
]


def requests_of(answers, lengths=LENGTHS):
    return [
        SampleRequest(random_ids(length, seed=number), answers, random_key=(7, 1, number))
        for number, length in enumerate(lengths)
    ]


def sampled(policy, requests, settings, budget_tokens=1 << 20, longest=LONGEST, check=lambda: None):
    """Return completions by (request, answer), in the order in which they came."""
    stream = InProcessSampler(policy, budget_tokens).sample(requests, settings, longest, check)
    return {(one.request, one.answer): one.completion for one in stream}


def tokens_of(completions):
    return {key: completion.token_ids for key, completion in completions.items()}


def base_weights(policy):
    return {name: weight.clone() for name, weight in policy.model.named_parameters() if not weight.requires_grad}


def assert_untouched(policy, before):
    """The base weights are bit for bit those of before, and the adapter is in nobody's weights."""
    after = dict(policy.model.named_parameters())
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert not any(getattr(module, "merged_adapters", []) for module in policy.model.modules())
    assert not any(after[name].requires_grad for name in before)
    assert all(weight.requires_grad for name, weight in after.items() if "lora_" in name)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


# --- against transformers and the trainer ----------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_answers_are_those_of_generate_token_for_token(architecture):
    # The sampler: left-padded prompts together, the adapter merged. Here: one prompt at a time, the adapter apart.
    policy = tiny_policy(architecture, end_ids=END_IDS)
    ours = sampled(policy, requests_of(1), GREEDY)
    assert len(ours) == len(LENGTHS)
    for (number, _), completion in ours.items():
        prompt = torch.tensor([random_ids(LENGTHS[number], seed=number)])
        whole = policy.model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=LONGEST,
            eos_token_id=list(END_IDS),
            pad_token_id=PAD,
        )
        assert completion.token_ids == tuple(whole[0, prompt.shape[1] :].tolist())


@pytest.mark.parametrize(
    ("architecture", "settings"),
    matrix(
        ARCHITECTURES,
        SAMPLING,
        # All three bounds at once with every architecture, each alone with one.
        ci=lambda architecture, settings: settings is SAMPLING[-1] or architecture == "llama",
    ),
)
def test_reported_log_probabilities_are_the_trainers(architecture, settings):
    policy = tiny_policy(architecture, end_ids=END_IDS)
    requests = requests_of(3)
    for (number, _), completion in sampled(policy, requests, settings).items():
        prompt = requests[number].prompt_token_ids
        (row,) = pack([PackedAnswer(prompt, completion.token_ids, 0)], 1, device=policy.device, plain=True)
        with torch.no_grad():
            full = answer_logprobs(policy, row, settings.temperature, PLAIN)
            drawn = sampling_logprobs(row_logits(policy, row), row.targets, settings)
            # And without anything of ours: one forward pass over prompt and answer.
            ids = torch.tensor([prompt + completion.token_ids])
            logits = policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / settings.temperature
        taken = logits.log_softmax(-1).gather(-1, row.targets[:, None])[:, 0]
        close = {"atol": 1e-4, "rtol": 0}
        torch.testing.assert_close(torch.tensor(completion.full_logprobs), full, **close)
        torch.testing.assert_close(torch.tensor(completion.full_logprobs), taken, **close)
        torch.testing.assert_close(torch.tensor(completion.logprobs), drawn, **close)
        assert settings.truncates or completion.logprobs == completion.full_logprobs


def test_what_is_sampled_follows_the_adapter():
    policy, bare = tiny_policy(end_ids=END_IDS), tiny_policy(end_ids=END_IDS, fresh=True)
    requests = requests_of(2)
    assert tokens_of(sampled(policy, requests, GREEDY)) != tokens_of(sampled(bare, requests, GREEDY))


# --- batches change nothing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "settings"),
    matrix(
        ["llama", "gemma2", "mixtral"],
        [SAMPLING[0], SAMPLING[1], GREEDY],
        ci=lambda architecture, settings: architecture == "llama" or settings is SAMPLING[1],
    ),
)
def test_the_budget_changes_no_answer(architecture, settings):
    policy = tiny_policy(architecture, end_ids=END_IDS)
    requests = requests_of(4)
    together = tokens_of(sampled(policy, requests, settings))
    assert len(together) == 4 * len(LENGTHS)
    for budget in (1, 100, 150):  # one row at a time; two to four; up to six
        assert tokens_of(sampled(policy, requests, settings, budget)) == together


def test_an_answer_depends_on_its_own_key_alone():
    policy = tiny_policy(end_ids=END_IDS)
    requests = requests_of(3)
    together = tokens_of(sampled(policy, requests, SAMPLING[0]))
    for number, request in enumerate(requests):
        alone = tokens_of(sampled(policy, [request], SAMPLING[0]))
        assert alone == {(0, answer): together[number, answer] for answer in range(3)}
    backwards = tokens_of(sampled(policy, requests[::-1], SAMPLING[0]))
    assert backwards == {(len(requests) - 1 - number, answer): ids for (number, answer), ids in together.items()}


def test_a_limit_of_its_own_cuts_an_answer_and_changes_no_other_token():
    policy = tiny_policy(end_ids=frozenset())
    requests = requests_of(3)
    whole = tokens_of(sampled(policy, requests, SAMPLING[0]))
    limits = [(1, LONGEST + 5, 3), (2, 2, 2), *[(LONGEST, 1, 4)] * (len(requests) - 2)]
    cut = sampled(policy, [replace(r, longest=own) for r, own in zip(requests, limits, strict=True)], SAMPLING[0])
    assert tokens_of(cut) == {(r, a): ids[: limits[r][a]] for (r, a), ids in whole.items()}
    assert all(len(ids) == LONGEST for ids in whole.values())
    assert {completion.finish for completion in cut.values()} == {"length"}


def test_more_answers_leave_the_first_ones_as_they_were():
    policy = tiny_policy(end_ids=END_IDS)
    few, many = (tokens_of(sampled(policy, requests_of(n), SAMPLING[0])) for n in (2, 5))
    assert few.items() <= many.items()


def test_different_keys_and_different_answers_of_a_key_differ():
    policy = tiny_policy()
    prompt = random_ids(5)
    requests = [SampleRequest(prompt, 4, random_key=(0, 1, 1)), SampleRequest(prompt, 4, random_key=(0, 2, 1))]
    assert len(set(tokens_of(sampled(policy, requests, SAMPLING[0])).values())) == 8


def test_requests_with_the_same_prompt_are_not_mixed_up():
    policy = tiny_policy(end_ids=END_IDS)
    prompt = random_ids(5)
    requests = [SampleRequest(prompt, 2, random_key=(0, 1, key)) for key in (4, 4, 5)]
    ids = tokens_of(sampled(policy, requests, SAMPLING[0]))
    assert ids[0, 0] == ids[1, 0]
    assert ids[0, 0] != ids[2, 0]


def test_answers_come_as_they_finish():
    policy = tiny_policy(end_ids=END_IDS)
    lengths = [len(completion.token_ids) for completion in sampled(policy, requests_of(6), SAMPLING[0]).values()]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_an_answer_is_handed_out_before_the_others_are_written():
    policy = tiny_policy(end_ids=END_IDS)
    steps = []
    stream = InProcessSampler(policy, 1 << 20).sample(
        requests_of(6), SAMPLING[0], LONGEST, lambda: steps.append("check")
    )
    first = next(stream)
    assert len(steps) <= 1 + len(first.completion.token_ids)  # one before the prompts, one before each token
    stream.close()


def test_finished_rows_leave_the_cache(monkeypatch):
    policy = tiny_policy(end_ids=END_IDS)
    rows = []
    forward = policy.model.forward
    monkeypatch.setattr(
        policy.model,
        "forward",
        lambda **inputs: (rows.append(inputs["input_ids"].shape[0]), forward(**inputs))[1],
    )
    completions = sampled(policy, requests_of(6), SAMPLING[0])
    assert rows[0] == len(LENGTHS)  # each prompt once
    assert rows[1] == max(rows)
    lengths = [len(completion.token_ids) for completion in completions.values()]
    live = [sum(length > step for length in lengths) for step in range(1, len(rows))]
    # Up to a quarter of the cache may be dead: re-packing at every end would cost more than it saves.
    assert all(alive <= cached < alive / 0.75 + 1 for alive, cached in zip(live, rows[1:], strict=True))
    assert live != rows[1:]
    assert len(set(rows[1:])) > 4


# --- endings ---------------------------------------------------------------------------------------------------------


def test_each_of_several_end_tokens_ends_an_answer_and_stays_out_of_its_text():
    policy = tiny_policy(end_ids=END_IDS)
    completions = sampled(policy, requests_of(40), SAMPLING[0]).values()
    ended_by = set()
    for completion in completions:
        *written, last = completion.token_ids
        assert not set(written) & set(END_IDS)
        if completion.finish == "stop":
            ended_by.add(last)
        else:
            assert last not in END_IDS
            assert len(completion.token_ids) == LONGEST
            written = completion.token_ids
        assert len(completion.token_ids) == len(completion.logprobs) == len(completion.full_logprobs)
        shown = [token for token in written if token not in (PAD, 1)]  # padding and beginning are never text
        assert completion.text == policy.chat.tokenizer.decode(shown)
    assert ended_by == set(END_IDS)


def test_a_stop_on_the_very_last_token_is_a_stop():
    policy = tiny_policy(end_ids=END_IDS)
    long = sampled(policy, requests_of(6), SAMPLING[0])
    length = next(n for n in range(3, LONGEST) if any(len(c.token_ids) == n for c in long.values()))
    short = sampled(policy, requests_of(6), SAMPLING[0], longest=length)
    for key, completion in short.items():
        assert completion.token_ids == long[key].token_ids[:length]
        assert completion.finish == ("stop" if len(long[key].token_ids) <= length else "length")
    assert {c.finish for c in short.values() if len(c.token_ids) == length} == {"stop", "length"}


def test_answers_of_one_token():
    policy = tiny_policy(end_ids=END_IDS)
    completions = sampled(policy, requests_of(40), SAMPLING[0], longest=1)
    assert len(completions) == 40 * len(LENGTHS)
    assert {len(completion.token_ids) for completion in completions.values()} == {1}
    assert {completion.finish for completion in completions.values()} == {"stop", "length"}


@pytest.mark.parametrize("pad", ["<eos>", None])
def test_padding_that_is_the_end_token_or_missing_changes_nothing(pad):
    policy = tiny_policy(end_ids=END_IDS)
    before = sampled(policy, requests_of(3), SAMPLING[0])
    policy.chat = Chat(character_tokenizer(pad_token=pad), frozenset(END_IDS), {})
    after = sampled(policy, requests_of(3), SAMPLING[0])
    assert tokens_of(after) == tokens_of(before)
    assert {c.finish for c in after.values()} == {"stop", "length"}


def test_nothing_asked_for_is_nothing_written():
    assert sampled(tiny_policy(), [], SAMPLING[0]) == {}


# --- what is left behind ---------------------------------------------------------------------------------------------


def test_sampling_leaves_the_weights_bit_for_bit():
    policy = tiny_policy(end_ids=END_IDS)
    before = base_weights(policy)
    sampled(policy, requests_of(2), SAMPLING[0])
    assert_untouched(policy, before)


@pytest.mark.parametrize("checks", [0, 1, 5])
def test_giving_up_leaves_the_weights_bit_for_bit(checks):
    policy = tiny_policy(end_ids=END_IDS)
    before = base_weights(policy)
    left = [checks]

    def check():
        left[0] -= 1
        if left[0] < 0:
            raise Interrupted("enough")

    with pytest.raises(Interrupted):
        sampled(policy, requests_of(2), SAMPLING[0], check=check)
    assert_untouched(policy, before)


def test_giving_up_comes_before_the_prompts_are_computed(monkeypatch):
    policy = tiny_policy()
    monkeypatch.setattr(policy.model, "forward", lambda **_: pytest.fail("computed"))

    def check():
        raise Interrupted("enough")

    with pytest.raises(Interrupted):
        sampled(policy, requests_of(2), SAMPLING[0], check=check)


@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_a_stream_that_is_not_read_to_its_end_leaves_the_weights_bit_for_bit(how):
    policy = tiny_policy(end_ids=END_IDS)
    before = base_weights(policy)
    stream = InProcessSampler(policy, 1 << 20).sample(requests_of(2), SAMPLING[0], LONGEST, lambda: None)
    next(stream)
    if how == "closed":
        stream.close()
    del stream
    gc.collect()
    assert_untouched(policy, before)


def test_the_reader_of_the_stream_keeps_its_own_gradient_mode():
    policy = tiny_policy(end_ids=END_IDS)
    for _ in InProcessSampler(policy, 1 << 20).sample(requests_of(1), SAMPLING[0], LONGEST, lambda: None):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()


def test_the_policy_can_be_trained_right_after_sampling():
    policy = tiny_policy(end_ids=END_IDS)
    (completion, *_) = sampled(policy, requests_of(1), SAMPLING[0]).values()
    (row,) = pack([PackedAnswer(random_ids(4), completion.token_ids, 0)], 1, device=policy.device, plain=True)
    answer_logprobs(policy, row, 1.0, PLAIN).sum().backward()
    assert all(weight.grad is not None for weight in policy.parameters)


# What PyTorch's allocator for main memory says, word for word.
CPU_ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4398046511104 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError(CPU_ALLOCATOR),
        MemoryError(),
        RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB, max allowed: 9.07 GB)"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=["cuda", "cpu", "python", "mps", "cublas"],
)
@pytest.mark.parametrize("calls", [0, 3])
def test_too_little_memory_is_said_in_words(monkeypatch, error, calls):
    policy = tiny_policy(end_ids=END_IDS)
    before = base_weights(policy)
    forward, left = policy.model.forward, [calls]

    def failing(**inputs):
        left[0] -= 1
        if left[0] < 0:
            raise error
        return forward(**inputs)

    monkeypatch.setattr(policy.model, "forward", failing)
    with pytest.raises(OutOfMemory, match=r"Sampling does not fit .* fewer Answers per prompt") as caught:
        sampled(policy, requests_of(2), SAMPLING[0])
    assert caught.value.stage == "sampling"
    assert_untouched(policy, before)


def test_a_real_allocation_that_fails_is_recognised(monkeypatch):
    policy = tiny_policy()
    monkeypatch.setattr(policy.model, "forward", lambda **_: torch.empty(1 << 50))
    with pytest.raises(OutOfMemory):
        sampled(policy, requests_of(1), GREEDY)


def test_too_little_memory_for_the_merged_weights_is_said_in_words(monkeypatch):
    policy = tiny_policy()
    before = base_weights(policy)
    last = [module for module in policy.model.modules() if hasattr(module, "get_delta_weight")][-1]

    def failing(_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(last, "get_delta_weight", failing)
    with pytest.raises(OutOfMemory):
        sampled(policy, requests_of(1), GREEDY)
    assert_untouched(policy, before)


def test_another_error_stays_what_it_is(monkeypatch):
    policy = tiny_policy()
    before = base_weights(policy)

    def failing(**_):
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(policy.model, "forward", failing)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        sampled(policy, requests_of(1), GREEDY)
    assert_untouched(policy, before)


def test_longer_answers_than_a_block_of_the_cache(monkeypatch):
    policy = tiny_policy()
    expected = tokens_of(sampled(policy, requests_of(2), SAMPLING[0], longest=30))
    monkeypatch.setattr(transformers_batch, "_BLOCK_TOKENS", 4)
    assert tokens_of(sampled(policy, requests_of(2), SAMPLING[0], longest=30)) == expected


@pytest.mark.parametrize("settings", [*SAMPLING, GREEDY], ids=["plain", "nucleus", "top-k", "all three", "greedy"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_output_that_is_not_finite_is_said_in_words(value, settings):
    policy = tiny_policy(end_ids=END_IDS)
    head = policy.model.get_output_embeddings().weight
    with torch.no_grad():
        head[7] = value
    with pytest.raises(NotFinite, match="choose a lower Learning rate"):
        sampled(policy, requests_of(2), settings)
