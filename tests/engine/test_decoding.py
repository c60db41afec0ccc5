"""Our decoder writing token after token, against transformers' forward pass over each whole row."""

import gc
import logging
import weakref

import numpy as np
import pytest
import torch

from ratchet.config import OptimizerSettings
from ratchet.engine.decoder import decoding
from ratchet.engine.decoder.decoding import DecoderBatch, MergedDecoder
from ratchet.engine.distribution import GREEDY, SamplingSettings
from ratchet.engine.sampler import SampleRequest, choice, in_process
from ratchet.engine.sampler.choice import DecoderBatches, batches_of, chosen_kind
from ratchet.engine.sampler.in_process import InProcessSampler
from ratchet.engine.sampler.transformers_batch import TransformersBatches
from ratchet.engine.update import new_optimizer
from ratchet.errors import OutOfMemory

from .models import ARCHITECTURES, EOS, TURN, VOCABULARY, random_ids, tiny_policy

OURS = ["llama", "qwen2", "qwen3"]
END_IDS = (EOS, TURN, 10, 20, 30, 40)


class Walk:
    """A batch under random orders. Each row's logits are kept and compared when it leaves, by one pass over it."""

    def __init__(self, policy, prefix, seed=0, tolerance=1e-9):
        self.policy, self.tolerance = policy, tolerance
        self.prefix = random_ids(prefix, seed=5)
        self.random = np.random.default_rng(seed)
        self.batch = DecoderBatch(MergedDecoder(policy.decoder), self.prefix, 64)
        self.rows = []  # tokens, and logits after each from the prompt's last one on
        self.compared = 0

    def prompt(self, length):
        return self.prefix + tuple(int(token) for token in self.random.integers(5, VOCABULARY, length))

    def _look(self, rows):
        assert self.batch.logits.shape == (len(self.rows), VOCABULARY)
        for tokens, seen, logits in rows:
            seen.append((len(tokens) - 1, logits.clone()))

    def admit(self, lengths, owners):
        prompts = [self.prompt(length) for length in lengths]
        computed = self.batch.prefill(prompts)
        self.admit_computed(computed, prompts, owners)
        return computed, prompts

    def admit_computed(self, computed, prompts, owners):
        self.batch.admit(computed, owners)
        self.rows += [(list(prompts[owner]), []) for owner in owners]
        # Those that were there are read again: they draw from them.
        self._look([(*row, logits) for row, logits in zip(self.rows, self.batch.logits, strict=True)])

    def keep(self, staying):
        gone = [row for at, row in enumerate(self.rows) if at not in staying]
        self.batch.keep(torch.tensor(staying, dtype=torch.long))
        self.rows = [(list(tokens), list(seen)) for tokens, seen in (self.rows[at] for at in staying)]
        self.compare(gone)

    def advance(self):
        tokens = self.random.integers(5, VOCABULARY, len(self.rows))
        self.batch.advance(torch.from_numpy(tokens))
        for (row, _), token in zip(self.rows, tokens, strict=True):
            row.append(int(token))
        self._look([(*row, logits) for row, logits in zip(self.rows, self.batch.logits, strict=True)])

    @torch.no_grad()
    def compare(self, rows):
        for tokens, seen in rows:
            logits = self.policy.model(input_ids=torch.tensor([tokens])).logits[0]
            places = torch.tensor([place for place, _ in seen])
            ours = torch.stack([one for _, one in seen])
            torch.testing.assert_close(ours, logits[places], atol=self.tolerance, rtol=0)
            self.compared += len(seen)

    def wander(self, steps):
        """Do anything that the sampler may do, in any order."""
        computed = None
        for _ in range(steps):
            doing = self.random.choice(["admit", "again", "keep", "branch", "advance", "advance", "advance"])
            if not self.rows or doing == "admit":
                lengths = self.random.integers(1, 12, self.random.integers(1, 4)).tolist()
                computed = self.admit(lengths, self.random.integers(0, len(lengths), self.random.integers(1, 5)))
            elif doing == "again":
                self.admit_computed(*computed, self.random.integers(0, len(computed[1]), 2).tolist())
            elif doing == "keep" or len(self.rows) > 12:
                self.keep(np.flatnonzero(self.random.random(len(self.rows)) < 0.6).tolist())
            elif doing == "branch":
                chosen = np.sort(self.random.integers(0, len(self.rows), len(self.rows))).tolist()
                self.keep(chosen)
                self.advance()
            else:
                self.advance()
        self.keep([])


@pytest.mark.parametrize("prefix", [0, 12])
@pytest.mark.parametrize("architecture", OURS)
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_doings_gives_the_logits_of_transformers(architecture, prefix, seed):
    walk = Walk(tiny_policy(architecture, dtype=torch.float64), prefix, seed)
    walk.wander(60)
    assert walk.compared > 60


@pytest.mark.parametrize("prefix", [0, 12])
@pytest.mark.parametrize("architecture", OURS)
def test_in_float32_they_agree_up_to_rounding(architecture, prefix):
    walk = Walk(tiny_policy(architecture), prefix, 7, tolerance=2e-4)
    walk.wander(40)
    assert walk.compared > 40


@pytest.mark.parametrize("prefix", [0, 9])
def test_answers_that_outgrow_their_room_and_rows_that_come_late(prefix):
    walk = Walk(tiny_policy(dtype=torch.float64), prefix)
    walk.admit([3, 9], [0, 0, 1, 1, 1])
    for _ in range(decoding._BLOCK + 10):
        walk.advance()
    walk.keep([0, 4])
    walk.advance()
    assert walk.batch._slots.tolist() == [0, 1]  # moved together
    walk.admit([1, 40], [1, 0, 0])
    for _ in range(decoding._BLOCK):
        walk.advance()
    walk.keep([])
    assert walk.compared > 5 * decoding._BLOCK


def test_a_slot_is_used_again_without_what_it_held():
    walk = Walk(tiny_policy(dtype=torch.float64), 0)
    walk.admit([20], [0] * 8)
    for _ in range(5):
        walk.advance()
    buffer = walk.batch._keys[0]
    walk.keep([0, 1, 2, 4, 5, 6, 7])
    walk.admit([2], [0])  # shorter than what was there, and no more rows than slots
    assert walk.batch._keys[0] is buffer
    for _ in range(3):
        walk.advance()
    walk.keep([])


def test_rows_that_stay_twice_before_others_come():
    walk = Walk(tiny_policy(dtype=torch.float64), 0)
    walk.admit([3, 5, 4, 2], [0, 1, 2, 3])
    walk.advance()
    walk.keep([1, 2, 3])
    walk.keep([1, 2])
    walk.admit([6], [0])
    walk.advance()
    walk.keep([])


def test_a_prompt_longer_than_all_columns():
    walk = Walk(tiny_policy(dtype=torch.float64), 0)
    walk.admit([2], [0, 0])
    walk.advance()
    walk.admit([50], [0])
    walk.advance()
    walk.keep([0])
    walk.advance()
    walk.keep([])


def test_long_prompts_after_a_long_prefix():
    walk = Walk(tiny_policy(dtype=torch.float64, max_position_embeddings=512), 120)
    walk.admit([110, 2], [0, 1, 1])  # both branches of the attention within a segment
    for _ in range(4):
        walk.advance()
    walk.keep([])


def test_columns_that_no_row_needs_are_left_out():
    walk = Walk(tiny_policy(), 0, tolerance=2e-4)
    for _ in range(30):
        walk.admit([3], [0, 0, 0])
        for _ in range(8):
            walk.advance()
        walk.keep(list(range(max(0, len(walk.rows) - 6), len(walk.rows))))
    assert walk.batch._keys[0].shape[2] <= 2 * (3 + 24 + decoding._BLOCK)


# --- batches of the sampler ------------------------------------------------------------------------------------------


def requests_of(prefix=0, answers=6):
    return [
        SampleRequest(random_ids(prefix, seed=99) + random_ids(length, seed=number), answers, (7, number))
        for number, length in enumerate([3, 9, 5, 1, 14])
    ]


def sampled(policy, batches, sampling=SamplingSettings(0.6, top_p=0.9), prefix=0):  # noqa: B008 - frozen
    stream = InProcessSampler(policy, 1 << 20, batches).sample(requests_of(prefix), sampling, 20, lambda: None)
    return {(one.request, one.answer): one.completion for one in stream}


@pytest.mark.parametrize("prefix", [0, 30])
@pytest.mark.parametrize("architecture", OURS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=["f64", "f32"])
def test_answers_are_those_of_transformers(architecture, prefix, dtype, tolerance, monkeypatch):
    policy = tiny_policy(architecture, dtype=dtype, end_ids=END_IDS)
    expected = sampled(policy, TransformersBatches(policy), prefix=prefix)
    for rows in (256, 7):
        monkeypatch.setattr(in_process, "_MOST_ROWS", {"cpu": rows})
        ours = sampled(policy, DecoderBatches(policy), prefix=prefix)
        assert ours.keys() == expected.keys()
        for key, completion in ours.items():
            assert completion.token_ids == expected[key].token_ids
            assert completion.logprobs == pytest.approx(expected[key].logprobs, abs=tolerance)
            assert completion.full_logprobs == pytest.approx(expected[key].full_logprobs, abs=tolerance)


def everything(policy):
    return {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}


def test_weights_stay_bit_for_bit():
    policy = tiny_policy(end_ids=END_IDS)
    before = everything(policy)
    batches = DecoderBatches(policy)
    sampled(policy, batches)
    batches.rest()
    after = everything(policy)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_merged_weights_are_kept_while_the_adapter_stays_and_made_anew_after_a_step():
    policy = tiny_policy(dtype=torch.float64)
    batches, prompt = DecoderBatches(policy), random_ids(5)

    def logits():
        with batches.batch((), 8) as batch:
            return batch._merged, batch.prefill([prompt]).logits[0]

    def expected():
        with torch.no_grad():
            return policy.model(input_ids=torch.tensor([prompt])).logits[0, -1]

    first, ours = logits()
    torch.testing.assert_close(ours, expected(), atol=1e-9, rtol=0)
    assert logits()[0] is first
    optimizer = new_optimizer(policy, 0.05, OptimizerSettings())
    policy.model(input_ids=torch.tensor([prompt])).logits.sum().backward()
    optimizer.step()
    second, ours = logits()
    assert second is not first
    torch.testing.assert_close(ours, expected(), atol=1e-9, rtol=0)
    policy.load_adapter_state({name: 0.3 * tensor for name, tensor in policy.adapter_state().items()})
    third, ours = logits()
    assert third is not second
    torch.testing.assert_close(ours, expected(), atol=1e-9, rtol=0)


def test_at_rest_the_merged_weights_are_gone():
    policy = tiny_policy()
    batches = DecoderBatches(policy)
    with batches.batch((), 8) as batch:
        held = weakref.ref(batch._merged)
        del batch
    gc.collect()
    assert held() is not None
    InProcessSampler(policy, 1 << 20, batches).rest()
    gc.collect()
    assert held() is None
    with batches.batch((), 8) as batch:  # and can be had again
        assert batch.prefill([random_ids(3)]).logits.shape == (1, VOCABULARY)


def test_merged_weights_of_an_older_adapter_are_gone_before_the_new_ones_are_made(monkeypatch):
    policy = tiny_policy()
    batches = DecoderBatches(policy)
    with batches.batch((), 8) as batch:
        held = weakref.ref(batch._merged)
        del batch
    with torch.no_grad():
        policy.parameters[0].add_(1)
    seen = []

    def merging(weights):
        gc.collect()
        seen.append(held())
        return MergedDecoder(weights)

    monkeypatch.setattr(choice, "MergedDecoder", merging)
    with batches.batch((), 8):
        pass
    assert seen == [None]


def test_a_model_that_is_not_ours_has_no_such_batches():
    policy = tiny_policy("phi")
    with pytest.raises(ValueError, match="no decoder"):
        batches_of("decoder", policy)
    assert isinstance(batches_of("transformers", policy), TransformersBatches)


# --- the choice ------------------------------------------------------------------------------------------------------

PROMPTS = [random_ids(9, seed=3) + random_ids(4), random_ids(9, seed=3) + random_ids(7, seed=1)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_our_decoder_samples_where_it_agrees(architecture, caplog):
    with caplog.at_level(logging.INFO, "ratchet"):
        kind = chosen_kind(tiny_policy(architecture), PROMPTS)
    assert kind == ("decoder" if architecture in OURS else "transformers")
    if kind == "decoder":
        assert "sampling batches=decoder gap=" in caplog.text


def wrong_scale(patch):
    attended = DecoderBatch._attended
    patch.setattr(DecoderBatch, "_attended", lambda self, query, *rest: attended(self, query * 1.02, *rest))


def ignored_mask(patch):
    attended = DecoderBatch._attended
    patch.setattr(DecoderBatch, "_attended", lambda self, *given: attended(self, *given[:-1], None))


def wrong_rotation(patch):
    patch.setattr(decoding, "rotate_", lambda vectors, cosine, sine: None)


def forgotten_adapter(patch):
    patch.setattr("ratchet.engine.decoder.weights.Stacked.merged", lambda self: self.weight.clone())


def forgotten_prefix(patch):
    patch.setattr(decoding, "attend_path", lambda output, logsumexp, *_: (output, logsumexp))


def not_a_number(patch):
    patch.setattr(decoding, "inverse_rms", lambda hidden, _: torch.full_like(hidden[..., :1], torch.nan))


def refused(patch):
    def failing(*_):
        raise RuntimeError("poison: no such operator")

    patch.setattr(decoding, "product", failing)


@pytest.mark.parametrize(
    "spoil",
    [wrong_scale, ignored_mask, wrong_rotation, forgotten_adapter, forgotten_prefix, not_a_number, refused],
)
def test_a_decoder_that_computes_something_else_does_not_sample(spoil, monkeypatch, caplog):
    spoil(monkeypatch)
    with caplog.at_level(logging.INFO, "ratchet"):
        assert chosen_kind(tiny_policy(), PROMPTS) == "transformers"
    assert "sampling batches=decoder" in caplog.text
    assert "poison" not in caplog.text


def test_too_little_memory_for_the_trial_is_said(monkeypatch):
    def failing(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(decoding, "product", failing)
    with pytest.raises(OutOfMemory) as caught:
        chosen_kind(tiny_policy(), PROMPTS)
    assert caught.value.stage == "sampling"


def test_greedy_answers_of_both_kinds():
    policy = tiny_policy(end_ids=END_IDS)
    ours, theirs = (sampled(policy, batches_of(kind, policy), GREEDY) for kind in ("decoder", "transformers"))
    assert {key: one.token_ids for key, one in ours.items()} == {key: one.token_ids for key, one in theirs.items()}
