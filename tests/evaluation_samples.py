"""Evaluations and comparisons made by hand, for those who show them: sizes and shares as real ones have."""

import random
from math import sqrt
from statistics import NormalDist

from ratchet.evaluation.comparison import Comparison, Difference, SideBySide
from ratchet.evaluation.evaluation import (
    ANSWER_GROUPS,
    BandScore,
    Evaluation,
    EvaluationScores,
    GivenAnswer,
    QuestionResult,
    Score,
    Subject,
)
from ratchet.evaluation.loop import HeldOutVerdict, LoopReport, LoopView, RoundView, SelectionBias

HOSTILE = (
    "</pre><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7 * 7 }} {% raw %} [red]x[/red] [/] [link=x]y[/link] "
    "\x1b[31mred\x07 \u202eabc &lt; \" ' ]]> <!-- :smile: \x00 $x_{1 \ud800 漢字 " + "long" * 300
)
BANDS = {"easy": 0.3, "medium": 0.0, "hard": -0.3}
SHARES = {"base": 0.37, "SFT": 0.61, "RL": 0.92}
SETUP = {
    "system_prompt": "",
    "worked_examples": [{"prompt": "(2 + 5) * (5 + 2)", "answer": "2 + 5 = 7, 5 + 2 = 7, 7 * 7 = 49"}],
    "verifier": {"kind": "math_pairs", "read": "whole"},
    "format": "off",
    "max_answer_tokens": 64,
    "answers_per_question": 1,
    "sampling": "greedy",
}


def wilson(right, of):
    """Wilson's interval (1927)."""
    z = NormalDist().inv_cdf(0.975)
    share = right / of
    middle, half = share + z * z / (2 * of), z * sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return max(0.0, (middle - half) / (1 + z * z / of)), min(1.0, (middle + half) / (1 + z * z / of))


def score(name, right, of, **changes):
    low, high = wilson(right, of)
    fields = {"name": name, "value": right / of, "low": low, "high": high, "method": "wilson", "of": of}
    return Score(**{**fields, **changes})


def answer(text="56", group="right", **changes):
    right = {"right": 1.0, "partly": 0.5}.get(group, 0.0)
    outcome = {"wrong_format": "unparseable", "cut_off": "cut_off", "failed": "failed"}.get(group, "graded")
    fields = {
        "text": text, "correctness": right, "reward": right, "format": 1.0, "parts": {"accuracy_strict": right},
        "outcome": outcome, "failure": "time" if group == "failed" else None, "tokens": 24, "seconds": 1.5,
        "group": group,
    }  # fmt: skip
    return GivenAnswer(**{**fields, **changes})


def question(number=1, *answers, **changes):
    fields = {
        "question": number, "prompt": [{"role": "user", "content": "(3 + 4) * (2 + 6)"}], "ground_truth": "56",
        "difficulty": "easy", "prompt_tokens": 40, "answers": list(answers) or [answer()],
    }  # fmt: skip
    return QuestionResult(**{**fields, **changes})


def problems(number):
    """Return (prompt, sums, band) of so many Math Pairs."""
    draw = random.Random("problems")
    found = []
    for _ in range(number):
        a, b, c, d = (draw.randint(1, 9) for _ in range(4))
        total = a + b + c + d
        found.append(
            (f"({a} + {b}) * ({c} + {d})", (a + b, c + d), "easy" if total < 16 else "medium" if total < 24 else "hard")
        )
    return found


def questions(share, number=512, seed="luck"):
    """Return questions with answers of a model that has about this share right, the same ones of any smaller share."""
    draw = random.Random(seed)
    made = []
    for place, (prompt, (left, right), band) in enumerate(problems(number), start=1):
        chance = share + BANDS[band] * 4 * share * (1 - share) / 1.5
        luck, kind = draw.random() + draw.gauss(0, 0.04), draw.random()
        given = f"First {left}, then {right}. {left} * {right} = {left * right}"
        if luck < chance:
            told = answer(given)
        elif kind < 0.75:
            told = answer(f"{left} + {right} = {left + right}", "wrong")
        elif kind < 0.9:
            told = answer("I would multiply the sums.", "wrong_format", format=0.0)
        elif kind < 0.97:
            told = answer(f"{given[:10]}, {left}" + f" + {left}" * 40, "cut_off", tokens=64, seconds=4.1)
        else:
            told = answer("I cannot help with that.", "refusal", format=0.0)
        made.append(
            question(
                place,
                told,
                prompt=[{"role": "user", "content": prompt}],
                ground_truth=str(left * right),
                difficulty=band,
            )
        )
    return made


def scores(results, *, bands=True, **changes):
    """Return the scores of questions with one answer each."""
    given = [one.answers[0] for one in results]
    right = sum(one.correctness == 1 for one in given)
    of = len(given)
    fields = {
        "columns": [
            score("accuracy", right, of),
            score("accuracy_strict", max(0, right - of // 50), of),
            score("format", sum(one.format == 1 for one in given), of),
            score("answered", sum(one.group != "cut_off" for one in given), of),
        ],
        "bands": [
            BandScore(band=band, score=score("accuracy", sum(one.correctness == 1 for one in inside), len(inside)))
            for band in BANDS
            if bands and (inside := [one for one in results if one.difficulty == band])
        ],
        "groups": {group: sum(one.group == group for one in given) for group in ANSWER_GROUPS},
        "outcomes": {
            outcome: sum(one.outcome == outcome for one in given)
            for outcome in ("graded", "unparseable", "cut_off", "failed")
        },
        "questions": of, "answers": of, "mean_tokens": 27.3, "median_seconds": 1.5, "seconds": 83.0,
    }  # fmt: skip
    return EvaluationScores(**{**fields, **changes})


def evaluation(label="RL", results=None, **changes):
    results = questions(SHARES.get(label, 0.5)) if results is None else results
    kind = "base" if label == "base" else "adapter"
    fields = {
        "id": f"e-{label.lower()}", "benchmark": "math_pairs_heldout", "benchmark_hash": "b" * 64,
        "questions_sha256": "c" * 64, "main_column": "accuracy",
        "subject": Subject(
            kind=kind, name="tiny" if kind == "base" else f"{label} adapter of run 20261130-101500-ab12", model="tiny",
            identity="sha256:0f3a", run=None if kind == "base" else "20261130-101500-ab12",
            sha256="" if kind == "base" else "d" * 64,
        ),
        "setup": SETUP, "answers_per_question": 1, "status": "completed",
        "created_at": "2026-11-30T10:15:00+00:00", "folder": "/home/ada/.ratchet/runs/e",
        "scores": scores(results),
    }  # fmt: skip
    return Evaluation(**{**fields, **changes})


def difference(left, right, names=("base", "RL"), **changes):
    """Return the main difference of two lists of questions that have one answer each."""
    pairs = [(a.correctness, b.correctness, a.question) for a, b in zip(left, right, strict=True)]
    of = len(pairs)
    fixed = [number for a, b, number in pairs if b > a]
    broken = [number for a, b, number in pairs if b < a]
    seen = (len(fixed) - len(broken)) / of
    half = 1.96 * sqrt(max((len(fixed) + len(broken)) / of - seen * seen, 0) / of)
    verdict = "within_noise" if abs(seen) <= half else "better" if seen > 0 else "worse"
    one, other = (score("accuracy", sum(pair[side] == 1 for pair in pairs), of) for side in (0, 1))
    said = {"within_noise": "is within the noise of", "better": "is better than", "worse": "is worse than"}[verdict]
    more = " About 4,100 questions would decide a difference this large." if verdict == "within_noise" else ""
    fields = {
        "column": "accuracy", "left": one, "right": other, "difference": seen, "low": seen - half, "high": seen + half,
        "test": "mcnemar", "p_value": 0.31 if verdict == "within_noise" else 1e-9, "fixed": fixed, "broken": broken,
        "verdict": verdict, "to_decide": 4100 if verdict == "within_noise" else None,
        "sentence": f"{names[1]} {said} {names[0]}: {other.value:.1%} against {one.value:.1%}, a difference of "
        f"{100 * seen:+.1f} points (95 % interval {100 * (seen - half):+.1f} to {100 * (seen + half):+.1f}).{more}",
    }  # fmt: skip
    return Difference(**{**fields, **changes})


def comparison(left, right, left_results, right_results, names=("base", "RL"), **changes):
    main = changes.pop("main", None) or difference(left_results, right_results, names)
    fields = {"left": left, "right": right, "questions": len(left_results), "main": main, "columns": [main]}
    return Comparison(**{**fields, **changes})


def side_by_side(sides=None, **changes):
    """Return (a table of sides, their questions); ``sides`` maps labels to questions, by default base, SFT and RL."""
    sides = sides or {label: questions(share) for label, share in SHARES.items()}
    labels = list(sides)
    evaluations = [evaluation(label, results) for label, results in sides.items()]
    known = {label: scores(results) for label, results in sides.items()}
    pairs = [(0, n) for n in range(1, len(labels))] + [(n - 1, n) for n in range(2, len(labels))]
    fields = {
        "labels": labels, "evaluations": evaluations,
        "columns": {
            one.name: [known[label].columns[place] for label in labels]
            for place, one in enumerate(known[labels[0]].columns)
        },
        "bands": {
            one.band: [known[label].bands[place].score for label in labels]
            for place, one in enumerate(known[labels[0]].bands)
        },
        "comparisons": [
            comparison(
                evaluations[a], evaluations[b], sides[labels[a]], sides[labels[b]], (labels[a], labels[b])
            )
            for a, b in pairs
        ],
    }  # fmt: skip
    return SideBySide(**{**fields, **changes}), list(sides.values())


def loop_view(percents=(35.2, 61.3, 59.8, None, 84.0, 92.2, 91.8, 92.2), **changes):
    """Return a loop with a start and a round a percentage, None for an unscored one; a real gain is one of 5 points."""
    rounds, best, before = [], None, None
    for number, percent in enumerate(percents):
        on_top_of, gain = (None, None) if number == 0 else (best, None)
        if percent is not None and best is not None and percent >= percents[best] + 5:
            gain = best
        rounds.append(
            RoundView(
                number=number, state="unscored" if percent is None else "scored", on_top_of=on_top_of, percent=percent,
                change=None if percent is None or before is None else percent - before, real_gain_over=gain,
            )
        )  # fmt: skip
        before = before if percent is None else percent
        if percent is not None and (best is None or percent > percents[best]):
            best = number
    top = None if best is None else percents[best]
    fields = {
        "rounds": [one.model_copy(update={"best": one.number == best}) for one in rounds],
        "rounds_used": len(percents) - 1, "max_rounds": 8, "target_percent": 95.0, "best": best, "best_percent": top,
        "gain_over_start": None if top is None or percents[0] is None else top - percents[0],
        "gain_over_first": None if top is None or len(percents) < 2 or percents[1] is None else top - percents[1],
    }  # fmt: skip
    return LoopView(**{**fields, **changes})


def loop_report(**changes):
    start, best = score("accuracy", 88, 256), score("accuracy", 231, 256)
    said = "On the held-out half round 5 is better than the start: 90.2% against 34.4%, +55.9 points."
    fields = {
        "best": 5, "chosen_from": 7, "selection_start": score("accuracy", 92, 256),
        "selection_best": score("accuracy", 236, 256), "held_out_score": best,
        "held_out": HeldOutVerdict(
            start=start, best=best, difference=143 / 256, low=0.49, high=0.62, test="mcnemar", p_value=1e-9,
            verdict="better", sentence=said,
        ),
        "selection_bias": SelectionBias(points=0.004, low=-0.05, high=0.06, expected=0.01, sentence="Little."),
        "target_on_selection": False, "target_on_held_out": False,
        "sentences": [said, "The target of 95.0% was not met.", "The selection half showed 0.4 points more."],
    }  # fmt: skip
    return LoopReport(**{**fields, **changes})
