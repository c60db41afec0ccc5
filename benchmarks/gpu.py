"""What is to be seen on a GPU, in one short run on a bare machine: is it right there, and how fast is it?

benchmarks/gpu.sh                                   everything, in under eight minutes
benchmarks/gpu.sh --device cpu --tiny               the same at toy size on a CPU: shows that this script works

Needs torch, transformers and peft and what Ratchet itself imports, not Ratchet installed and not TRL. The baseline is
written out below: what TRL's GRPOTrainer does with transformers generation, without TRL: ``generate`` with the
unmerged PEFT adapter, then padded micro-batches, the output layer in tiles. Every part is tried on its own; what
fails is named in the JSON file, which is written anew after each part.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from generate_tool import generated
from peers import policy_model
from ratchet_parts import Loaded, group, loaded
from rows import run_settings
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from workload import LEARNING_RATE, answer_lengths, made_up_groups, reward

from ratchet import worker
from ratchet.config.config_text import build
from ratchet.engine.build import new_engine
from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.logprobs import PLAIN
from ratchet.engine.prepare import prepare
from ratchet.engine.round_parts import Engine
from ratchet.engine.sampler import SampleRequest
from ratchet.engine.sampler.in_process import InProcessSampler
from ratchet.engine.sampler.transformers_batch import TransformersBatches
from ratchet.engine.update import update
from ratchet.files import models_home
from ratchet.run.events import Event, RoundDone
from ratchet.run.records import Completion, Group
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs import demo_presets

SMOLLM2 = "smollm2-135m"
GGUF = "smollm2.gguf"
_MIB = 2**20
_TILE_TOKENS = 1024


@dataclass(frozen=True)
class Size:
    """How much is done. ``micro_batch`` is the baseline's, in answers."""

    model: str
    prompts: int
    answers: int
    answer_tokens: int
    rounds: int
    update_prompt_tokens: int
    update_answer_tokens: int
    longest: int
    micro_batch: int
    demo_rounds: int


FULL = Size(SMOLLM2, 16, 8, 48, 5, 512, 128, 128, 32, 8)
TOY = Size("tiny", 2, 4, 16, 1, 24, 16, 16, 4, 1)


def main() -> None:
    chosen = _arguments()
    size = TOY if chosen.tiny else FULL
    report: dict[str, Any] = {"device": _device_report(chosen.device), "size": size.__dict__, "parts": {}}
    started = time.perf_counter()
    _convert(size.model)
    machine = Machine(torch.device(chosen.device), size)
    for name in chosen.parts:
        elapsed = time.perf_counter() - started
        if elapsed > chosen.seconds:
            report["parts"][name] = {"skipped": f"after {elapsed:.0f} of {chosen.seconds:.0f} seconds"}
            continue
        try:
            report["parts"][name] = PARTS[name](machine)
        except Exception:
            report["parts"][name] = {"failed": traceback.format_exc(limit=6)}
        report["seconds"] = round(time.perf_counter() - started, 1)
        Path(chosen.out).write_text(json.dumps(report, indent=1) + "\n")
        print(json.dumps({name: report["parts"][name]}), flush=True)
    failed = [name for name, part in report["parts"].items() if "failed" in part]
    sys.exit(f"Failed: {', '.join(failed)}" if failed else 0)


class Machine:
    """The device with the engine on it, which the parts share."""

    def __init__(self, device: torch.device, size: Size) -> None:
        self.device = device
        self.size = size
        self.ratchet = self.load(size.model)
        self.prompts = [one.token_ids for one in self.ratchet.prepared.train[: size.prompts]]

    def load(self, model: str) -> Loaded:
        rl = {
            "prompts_per_round": self.size.prompts,
            "answers_per_prompt": self.size.answers,
            "max_answer_tokens": max(self.size.answer_tokens, self.size.longest),
        }
        prompt = {"prompt": {}} if model == SMOLLM2 else {}
        data = {"source": "math_pairs", "prompts": max(8, self.size.prompts), "heldout": 0}
        return loaded({**run_settings(model, data=data, rl=rl, **prompt), "device": self.device.type})

    def timed(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """What some work returns, and its seconds, those of the device included."""
        self.wait()
        started = time.perf_counter()
        result = work()
        self.wait()
        return result, time.perf_counter() - started

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def forget_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_mib(self) -> float | None:
        """Return the most memory that torch has held on the device since ``forget_peak``; None on a CPU."""
        return round(torch.cuda.max_memory_allocated(self.device) / _MIB, 1) if self.device.type == "cuda" else None


# --- is it right? ----------------------------------------------------------------------------------------------------


def parity(machine: Machine) -> dict[str, Any]:
    """Compare log-probabilities: the sampler's with a plain forward pass, and with the update's, packed and plain."""
    ratchet = machine.load(machine.size.model)
    _disturb(ratchet.engine.policy)
    groups = _sampled_groups(machine, ratchet.engine, machine.size.answer_tokens)
    gaps = torch.cat([_gaps(ratchet, one) for one in groups])
    found: dict[str, Any] = {
        "tokens": len(gaps),
        "dtype": str(ratchet.engine.policy.model.dtype),
        "sampler_against_plain_forward": {"mean": float(gaps.mean()), "most": float(gaps.max())},
        "rows": ratchet.plan.forward.rows,
    }
    state = ratchet.engine.policy.adapter_state()
    for name, forward in (("packed", ratchet.plan.forward), ("plain", PLAIN)):
        ratchet.engine.policy.load_adapter_state(state)
        plan = replace(ratchet.plan, forward=forward)
        engine = new_engine(ratchet.prepared, ratchet.engine.policy, plan)
        learned = update(engine.learner, groups, lambda: None)
        found[name] = {
            "sampler_gap": learned.sampler_gap,
            "gradient_norm": learned.gradient_norm,
        }
    return found


def _disturb(policy: Any) -> None:
    """Make the adapter matter: a new one's second factor is zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.02)


@torch.no_grad()
def _gaps(ratchet: Loaded, one: Group) -> Tensor:
    """Return |difference| of each answer token's log-probability, the adapter not merged, nothing packed, (tokens,)."""
    model = ratchet.engine.policy.model
    gaps = []
    for rollout in one.rollouts:
        ids = torch.tensor([[*one.prompt_token_ids, *rollout.completion.token_ids]], device=model.device)
        length = len(rollout.completion.token_ids)
        logits = model(input_ids=ids).logits[0, -length - 1 : -1].float()
        taken = torch.log_softmax(logits, dim=-1).gather(1, ids[0, -length:, None])[:, 0].cpu()
        gaps.append((taken - torch.tensor(rollout.completion.full_logprobs)).abs())
    return torch.cat(gaps)


def demo(machine: Machine) -> dict[str, Any]:
    """Run the tiny demo through the worker, as ``ratchet demo`` does."""
    settings = demo_presets.demo_settings()
    changes = {"rl.rounds": str(machine.size.demo_rounds), "device": machine.device.type}
    if machine.size is TOY:
        changes |= {"data.heldout": "4", "rl.prompts_per_round": "2", "rl.validation_prompts": "2"}
    prepared = prepare(build(settings, changes))
    rounds: list[float] = []

    def on_event(event: Event) -> None:
        if isinstance(event, RoundDone) and event.record.round:
            rounds.append(event.record.seconds.total)

    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(prepared.config, Path(place) / "run")
        result = worker.run(folder, prepared=prepared, listeners=[worker.Listener(on_event=on_event)])
    return {
        "ending": result.ending,
        "rounds": result.rounds_done,
        "heldout_before": result.heldout_before,
        "heldout_after": result.heldout_after,
        "seconds": result.seconds,
        "seconds_a_round": median(rounds),
    }


# --- how fast is it? -------------------------------------------------------------------------------------------------


class Baseline:
    """GRPO on transformers and PEFT as TRL does it: unmerged adapter, padded micro-batches, output layer in tiles.

    Not TRL: its fused output layer is a kernel of its own, and it does more bookkeeping.
    """

    def __init__(self, machine: Machine) -> None:
        policy = machine.ratchet.engine.policy
        self.model = policy_model(policy.files.source, merged=False, dtype=policy.model.dtype).to(machine.device)
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE)
        self._weights = weights
        self._micro_batch = machine.size.micro_batch

    def sample(self, prompts: Sequence[Sequence[int]], lengths: list[int]) -> list[list[int]]:
        self.model.eval()
        return generated(self.model, [list(prompt) for prompt in prompts], lengths, logprobs=False)

    def update(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], group_size: int) -> None:
        """Take one optimizer step on answers of one length, ``group_size`` of them to each prompt."""
        self.model.train()
        rewards = torch.tensor([reward(ids) for ids in answers]).view(-1, group_size)
        spread = rewards.std(dim=1, keepdim=True) + 1e-4
        advantages = ((rewards - rewards.mean(dim=1, keepdim=True)) / spread).flatten().to(self.model.device)
        self._optimizer.zero_grad()
        for start in range(0, len(answers), self._micro_batch):
            part = slice(start, start + self._micro_batch)
            logprobs = self._logprobs(prompts[part], answers[part])  # (b, T)
            ratio = torch.exp(logprobs - logprobs.detach())
            gain = torch.min(ratio, ratio.clamp(0.8, 1.2)) * advantages[part, None]
            (-gain.mean(dim=1).sum() / len(answers)).backward()
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        self._optimizer.step()

    def _logprobs(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Tensor:
        width, length = max(map(len, prompts)), len(answers[0])
        pairs = list(zip(prompts, answers, strict=True))
        ids = torch.tensor([[*[0] * (width - len(p)), *p, *a] for p, a in pairs], device=self.model.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * (len(p) + length) for p, _ in pairs], device=ids.device)
        causal = self.model.get_base_model()
        hidden = causal.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        hidden, targets = hidden[:, -length - 1 : -1].flatten(0, 1), ids[:, -length:].flatten()
        # In tiles that are computed again in the backward pass, so that all logits never exist at once.
        tiles = [
            checkpoint(_taken_logprobs, causal.get_output_embeddings(), *tile, use_reentrant=False)
            for tile in zip(hidden.split(_TILE_TOKENS), targets.split(_TILE_TOKENS), strict=True)
        ]
        return torch.cat(tiles).view(-1, length)


def _taken_logprobs(output_layer: Any, hidden: Tensor, targets: Tensor) -> Tensor:
    """Return the targets' log-probabilities, (tokens,), of hidden states (tokens, width)."""
    logits = output_layer(hidden).float()
    return logits.gather(1, targets[:, None])[:, 0] - torch.logsumexp(logits, dim=-1)


def rounds(machine: Machine) -> dict[str, Any]:
    """Do full rounds in turn, Ratchet and the baseline, on the same prompts."""
    size, engine = machine.size, machine.ratchet.engine
    baseline = Baseline(machine)
    repeated = [prompt for prompt in machine.prompts for _ in range(size.answers)]
    lengths = [size.answer_tokens] * len(repeated)
    measured: dict[str, list[dict[str, Any]]] = {"ratchet": [], "baseline": []}
    for _ in range(size.rounds + 1):
        machine.forget_peak()
        groups, sampling = machine.timed(lambda: _sampled_groups(machine, engine, size.answer_tokens))
        _, updating = machine.timed(lambda groups=groups: update(engine.learner, groups, lambda: None))
        measured["ratchet"].append({"sampling": sampling, "update": updating, "peak_mib": machine.peak_mib()})
        machine.forget_peak()
        answers, sampling = machine.timed(lambda: baseline.sample(repeated, lengths))
        _, updating = machine.timed(lambda answers=answers: baseline.update(repeated, answers, size.answers))
        measured["baseline"].append({"sampling": sampling, "update": updating, "peak_mib": machine.peak_mib()})
    return _compared({name: one[1:] for name, one in measured.items()}, ("sampling", "update"))


def update_alone(machine: Machine) -> dict[str, Any]:
    """Update on made-up answers to long prompts, in turn. Tokens count each answer with its own prompt."""
    size, engine = machine.size, machine.ratchet.engine
    baseline = Baseline(machine)
    sizes = (2, size.answers, size.update_prompt_tokens, size.update_answer_tokens)
    made_up = made_up_groups(*sizes, engine.policy.model.config.vocab_size)
    groups = [
        group(n, tuple(prompt), [_completion(answer) for answer in answers])
        for n, (prompt, answers) in enumerate(made_up)
    ]
    prompts = [prompt for prompt, answers in made_up for _ in answers]
    answers = [answer for _, group_answers in made_up for answer in group_answers]
    tokens = len(answers) * (size.update_prompt_tokens + size.update_answer_tokens)
    measured: dict[str, list[dict[str, Any]]] = {"ratchet": [], "baseline": []}
    works: dict[str, Callable[[], Any]] = {
        "ratchet": lambda: update(engine.learner, groups, lambda: None),
        "baseline": lambda: baseline.update(prompts, answers, size.answers),
    }
    for _ in range(size.rounds + 1):
        for name, work in works.items():
            machine.forget_peak()
            _, seconds = machine.timed(work)
            measured[name].append({"update": seconds, "peak_mib": machine.peak_mib()})
    found = _compared({name: one[1:] for name, one in measured.items()}, ("update",))
    for name in works:
        found[name]["tokens_a_second"] = tokens / found[name]["update"]
    return found


def sampler_alone(machine: Machine) -> dict[str, Any]:
    """Sample answers of very different length, in turn with ``generate``, its adapter not merged, as TRL does."""
    baseline = Baseline(machine)
    size = machine.size
    lengths = answer_lengths(len(machine.prompts) * size.answers, size.longest, uneven=True)
    repeated = [prompt for prompt in machine.prompts for _ in range(size.answers)]
    measured: dict[str, list[dict[str, Any]]] = {"ratchet": [], "baseline": []}
    works: dict[str, Callable[[], list[int]]] = {
        "ratchet": lambda: _sampled_lengths(machine, machine.ratchet.engine.sampler, lengths),
        "baseline": lambda: [len(ids) for ids in baseline.sample(repeated, lengths)],
    }
    for _ in range(size.rounds + 1):
        for name, work in works.items():
            machine.forget_peak()
            found, seconds = machine.timed(work)
            if found != lengths:
                raise RuntimeError(f"{name} did not keep to the prescribed lengths")
            measured[name].append({"sampling": seconds, "peak_mib": machine.peak_mib()})
    result = _compared({name: one[1:] for name, one in measured.items()}, ("sampling",))
    for name in works:
        result[name]["tokens_a_second"] = sum(lengths) / result[name]["sampling"]
    return result


def cuda_graphs(machine: Machine) -> dict[str, Any]:
    """Compare decoding by a captured graph with the plain one, and whether both draw the same tokens."""
    if machine.device.type != "cuda":
        return {"skipped": "no CUDA device"}
    size, plan = machine.size, machine.ratchet.plan
    lengths = answer_lengths(len(machine.prompts) * size.answers, size.longest, uneven=True)
    found: dict[str, Any] = {}
    tokens: dict[bool, Any] = {}
    for graphs in (False, True):
        policy = machine.ratchet.engine.policy
        sampler = InProcessSampler(policy, plan.budgets.sampling_tokens, TransformersBatches(policy, graphs))
        seconds = []
        for _ in range(size.rounds + 1):
            machine.forget_peak()
            tokens[graphs], taken = machine.timed(lambda sampler=sampler: _sampled(machine, sampler, lengths))
            seconds.append(taken)
        found["graphs" if graphs else "eager"] = {
            "first": seconds[0],
            "sampling": median(seconds[1:]),
            "tokens_a_second": sum(lengths) / median(seconds[1:]),
            "peak_mib": machine.peak_mib(),
        }
    same = sum(tokens[True][key].token_ids == tokens[False][key].token_ids for key in tokens[True])
    return {**found, "same_answers": same, "answers": len(lengths)}


PARTS: dict[str, Callable[[Machine], dict[str, Any]]] = {
    "parity": parity,
    "demo": demo,
    "rounds": rounds,
    "update_alone": update_alone,
    "sampler_alone": sampler_alone,
    "cuda_graphs": cuda_graphs,
}


def _compared(measured: dict[str, list[dict[str, Any]]], parts: Sequence[str]) -> dict[str, Any]:
    """Return medians, the peak, and the median of the pairs' own ratios, baseline over Ratchet."""
    found: dict[str, Any] = {}
    for name, each in measured.items():
        peaks = [one["peak_mib"] for one in each if one["peak_mib"] is not None]
        found[name] = {part: median(one[part] for one in each) for part in parts}
        found[name] |= {"seconds": median(sum(one[part] for part in parts) for one in each)}
        found[name] |= {"peak_mib": max(peaks, default=None)}
    pairs = list(zip(measured["baseline"], measured["ratchet"], strict=True))
    ratios = [sum(b[part] for part in parts) / sum(r[part] for part in parts) for b, r in pairs]
    return {**found, "times_as_fast": median(ratios), "pairs": len(pairs)}


def _sampled_groups(machine: Machine, engine: Engine, tokens: int) -> list[Group]:
    written = _sampled(machine, engine.sampler, [tokens] * (len(machine.prompts) * machine.size.answers))
    return [
        group(n, prompt, [written[n, answer] for answer in range(machine.size.answers)])
        for n, prompt in enumerate(machine.prompts)
    ]


def _sampled_lengths(machine: Machine, sampler: Any, lengths: list[int]) -> list[int]:
    written = _sampled(machine, sampler, lengths)
    return [len(written[key].token_ids) for key in sorted(written)]


def _sampled(machine: Machine, sampler: Any, lengths: list[int]) -> dict[tuple[int, int], Completion]:
    """Return answers of the prescribed lengths by (prompt, answer). The same tokens are drawn each time."""
    answers = machine.size.answers
    requests = [
        SampleRequest(prompt, answers, (0, 1, n), tuple(lengths[n * answers : (n + 1) * answers]))
        for n, prompt in enumerate(machine.prompts)
    ]
    stream = sampler.sample(requests, SamplingSettings(), max(lengths), lambda: None)
    return {(one.request, one.answer): one.completion for one in stream}


def _completion(token_ids: list[int]) -> Completion:
    logprobs = (-10.0,) * len(token_ids)
    return Completion(tuple(token_ids), logprobs, logprobs, text="", finish="length")


def _convert(model: str) -> None:
    """Make the model's folder of the GGUF file that ``gpu.sh --collect`` joined, where it is not there yet."""
    target, gguf = models_home() / SMOLLM2, models_home() / GGUF
    if model != SMOLLM2 or (target / "config.json").is_file() or not gguf.is_file():
        return
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)
    quantization = GgufConfig(dequantize=True)
    base = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=quantization
    )
    base.save_pretrained(target)


def _device_report(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
    }
    if device == "cuda":
        found["name"] = torch.cuda.get_device_name()
        found["memory_gib"] = round(torch.cuda.get_device_properties(0).total_memory / 2**30)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes and the shipped tiny model alone")
    parser.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "gpu.json"), help="the JSON file")
    parser.add_argument("--seconds", type=float, default=400, help="no part starts later than this (400)")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="all unless named")
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device")
    return chosen


if __name__ == "__main__":
    main()
