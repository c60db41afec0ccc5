"""Does the fast way learn the same? The tiny demo over several seeds, by our own decoder and by transformers.

python benchmarks/same_learning.py [--seeds 5]     prints held-out accuracy of each run and the mean difference

Everything else is the same: settings, seeds, prompts, verifier. By transformers means packed rows under a mask with all
logits at once, and sampling by the model's own forward pass: what Ratchet did before it had a decoder. Also holds the
answers sampled in the first round against both: their log-probabilities given each token before them.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch
from scipy import stats

from ratchet.config import RunConfig
from ratchet.datasets import PromptStream
from ratchet.engine.build import EngineBudgets, new_engine
from ratchet.engine.grading import Grader
from ratchet.engine.logprobs import RowForward, answer_logprobs
from ratchet.engine.packing import pack
from ratchet.engine.policy import load_policy
from ratchet.engine.prepare import prepare
from ratchet.engine.round_parts import Task, score
from ratchet.engine.rounds import train
from ratchet.engine.update import packed_answers
from ratchet.service.runs.demo_presets import demo_settings

RESULT = Path(__file__).parent / "results" / "same_learning.json"
BY_TRANSFORMERS = RowForward("packed", "whole")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    rows = []
    for seed in seeds:
        ours, gap = learn(seed, by_transformers=False)
        theirs, _ = learn(seed, by_transformers=True)
        rows.append({"seed": seed, "decoder": ours, "transformers": theirs, "largest_logprob_gap": gap})
        print(f"seed {seed}: decoder {ours:.1%}, transformers {theirs:.1%}, largest gap {gap:.1e}", flush=True)
    differences = [row["decoder"] - row["transformers"] for row in rows]
    half = float(stats.t.ppf(0.975, len(rows) - 1) * stats.sem(differences))
    print(f"mean difference {mean(differences):+.2%}, 95 % interval of it +- {half:.2%} (paired, {len(rows)} seeds)")
    result = {"runs": rows, "mean_difference": mean(differences), "interval_half_width": half}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


def learn(seed: int, *, by_transformers: bool) -> tuple[float, float]:
    """Return held-out accuracy of a run's best adapter, and how far the two ways are apart on its first answers."""
    prepared = prepare(RunConfig.model_validate({**demo_settings(), "seed": seed}))
    config = prepared.config
    policy = load_policy(config, prepared.chat, prepared.files)
    plan = EngineBudgets.fitted(prepared, policy)
    if by_transformers:
        plan = replace(plan, forward=BY_TRANSFORMERS, batches="transformers")
    engine = new_engine(prepared, policy, plan)
    grader = Grader(prepared.verifier, config.reward, config.rl.max_answer_tokens, prepared.chat.prefilled_think, 2)
    stream = PromptStream([one.prompt for one in prepared.train], config.seed)
    task = Task(stream, {one.prompt.id: one for one in prepared.train}, prepared.validation, grader)
    best, gaps = {}, []

    def report(record, groups, progress):
        best["state"] = progress.best_state
        if groups and not gaps:
            gaps.append(gap(policy, groups, config.rl.temperature, plan))

    train(config, engine, task, report, lambda when: None)
    policy.load_adapter_state(best["state"])
    summary, _ = score(engine.sampler, grader, prepared.heldout, config.rl.max_answer_tokens, lambda: None)
    prepared.verifier.close()
    return summary.accuracy, gaps[0]


def gap(policy, groups, temperature, plan) -> float:
    """Return the largest difference of an answer token's log-probability between the two ways."""
    with torch.no_grad():
        both = [
            torch.cat([answer_logprobs(policy, row, temperature, forward) for row in rows])
            for forward in (plan.forward, BY_TRANSFORMERS)
            for rows in [pack(packed_answers(groups), 512, device=policy.device, plain=False)]
        ]
    return float((both[0] - both[1]).abs().max())


if __name__ == "__main__":
    main()
