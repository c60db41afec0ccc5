"""Records of made-up rounds for the tests of health: from the cases of ``data/cases_health.json``, or drawn."""

import json
import random
from math import exp, sqrt
from pathlib import Path

from ratchet.config import QaVerifier, RlSettings, RunConfig
from ratchet.run.records import Learned, RoundRecord, Seconds, Validation

CASES = json.loads((Path(__file__).parent / "data" / "cases_health.json").read_text(encoding="utf-8"))


def config_of(case):
    rl = RlSettings(
        prompts_per_round=case["prompts"], answers_per_prompt=case["answers"], loss=case.get("loss", "grpo")
    )
    return RunConfig(rl=rl, watch=QaVerifier()).resolved()


def records_of(case):
    """Return the records of a case: round 0 and one for each value of its curves."""
    curves, answers = case["curves"], case["prompts"] * case["answers"]
    records, best = [], (0, -1.0)
    for number, accuracy in enumerate(curves["validation"]):
        best = max(best, (number, accuracy), key=lambda one: one[1])
        watch = curves["validation_watch"][number] if "validation_watch" in curves else None
        validation = Validation(
            prompts=case["checked"],
            accuracy=accuracy,
            reward=accuracy,
            outcomes={"graded": case["checked"]},
            watch=watch,
        )
        fields = {} if number == 0 else trained(case, curves, number - 1, answers)
        records.append(
            RoundRecord(
                round=number,
                validation=validation,
                best_round=best[0],
                best_accuracy=best[1],
                seconds=Seconds(),
                **fields,
            )
        )
    return records


def trained(case, curves, place, answers):
    bad = {name: round(curves[name][place] * answers) for name in ("cut_off", "unparseable", "failed")}
    return {
        "reward": curves["reward"][place],
        "accuracy": curves["accuracy"][place],
        "groups": case["prompts"],
        "informative_groups": round(curves["signal"][place] * case["prompts"]),
        "outcomes": {"graded": answers - sum(bad.values()), **bad},
        "answer_tokens": curves["tokens"][place],
        "entropy": curves["entropy"][place],
        "watch": curves["watch"][place] if "watch" in curves else None,
        "learned": Learned(
            steps=1,
            loss=0.01,
            gradient_norm=curves["norm"][place],
            clip_fraction=curves["clip"][place],
            importance_mean=curves["importance_mean"][place] if "importance_mean" in curves else None,
            importance_capped=curves["importance_capped"][place] if "importance_capped" in curves else None,
        ),
    }


def healthy_run(seed):
    """Draw a healthy noisy run: it learns a little or much, or not at all, with the noise that its size gives.

    Noise of the rounds is independent, and on top of it every curve wanders, as those of real runs do.
    """
    draw = random.Random(seed)
    rounds = draw.choice((10, 20, 20, 30, 60))
    prompts, answers, checked = draw.choice(((4, 4, 16), (8, 8, 32), (16, 8, 64), (64, 8, 128), (128, 16, 256)))
    start, gain = draw.uniform(0.1, 0.6), draw.choice((0.0, 0.05, 0.2, 0.35))
    middle = draw.uniform(0.2, 0.6)
    true = [start + gain / (1 + exp(-9 * (n / rounds - middle))) for n in range(rounds + 1)]
    less = draw.uniform(0.3, 0.9)  # of the entropy, what is left at the end

    def wander(values, step, low=0.0, high=1.0):
        offset, found = 0.0, []
        for value in values:
            offset = 0.7 * offset + draw.gauss(0, step)
            found.append(min(high, max(low, value + offset)))
        return found

    def noisy(values, count):
        return [min(1.0, max(0.0, v + draw.gauss(0, sqrt(v * (1 - v) / count)))) for v in values]

    real = prompts * sqrt(answers)
    accuracy = noisy(wander(true, 0.01), real)[1:]
    shares = {name: draw.uniform(0, most) for name, most in (("cut_off", 0.3), ("unparseable", 0.02))}
    curves = {
        "accuracy": accuracy,
        "reward": accuracy,
        "validation": [round(v * checked) / checked for v in noisy(wander(true, 0.01), checked)],
        "watch": noisy(wander([0.6 * v + 0.1 for v in true], 0.01), real)[1:],
        "validation_watch": noisy(wander([0.6 * v + 0.1 for v in true], 0.01), checked),
        "entropy": wander([1 - (1 - less) * n / rounds for n in range(rounds)], 0.05, low=0.02, high=9),
        "tokens": wander([100.0] * rounds, 4, low=10, high=500),
        "clip": wander([draw.uniform(0, 0.1)] * rounds, 0.01),
        "norm": [0.4 * exp(draw.gauss(0, 0.4)) for _ in range(rounds)],
        "signal": noisy([min(0.9, 3 * v * (1 - v)) for v in true[1:]], prompts),
        **{name: noisy([share] * rounds, prompts * answers) for name, share in shares.items()},
        "failed": [0.0] * rounds,
    }
    return {"prompts": prompts, "answers": answers, "checked": checked, "curves": curves}
