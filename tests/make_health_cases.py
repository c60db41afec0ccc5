"""Make tests/data/cases_health.json: made-up curves of runs, each labelled with what is wrong with it, if anything.

    python tests/make_health_cases.py

A case holds the curves of a run by round, with the noise that its number of answers gives, the diagnoses that must be
found (``expected``) and those that may be (``may``, where the same curves show more than what they were drawn for).
The labels say what the shapes were drawn to be; no threshold of ``ratchet/run/health.py`` is used here.
"""

import json
import random
from math import exp, sqrt
from pathlib import Path

OUT = Path(__file__).parent / "data" / "cases_health.json"


def line(start, end, rounds):
    return [start + (end - start) * place / max(1, rounds - 1) for place in range(rounds)]


def s_curve(start, end, rounds, middle=0.4, steep=10):
    return [
        start + (end - start) / (1 + exp(-steep * (place / max(1, rounds - 1) - middle))) for place in range(rounds)
    ]


def flat(level, rounds):
    return [level] * rounds


def then(*pieces):
    return [value for piece in pieces for value in piece]


class Maker:
    """Adds noise to shapes, as a run of that many prompts, answers and validation prompts would have it."""

    def __init__(self):
        self.cases = []

    def add(self, name, expected=(), may=(), *, rounds=20, prompts=16, answers=8, checked=128, loss="grpo", **shapes):
        draw = random.Random(name)

        def share(values, count):
            return [min(1.0, max(0.0, v + draw.gauss(0, sqrt(max(v * (1 - v), 0) / count)))) for v in values]

        def around(values, spread):
            return [v * exp(draw.gauss(0, spread)) for v in values]

        accuracy = shapes.get("accuracy") or s_curve(0.3, 0.7, rounds)
        rounds = len(accuracy)
        # Answers to one prompt are alike: they count for fewer than they are.
        real = prompts * sqrt(answers)
        noisy = share(accuracy, real)
        reward = share(shapes["reward"], real) if "reward" in shapes else noisy
        validation = shapes.get("validation") or [accuracy[0], *accuracy]
        lengths, entropy = shapes.get("tokens") or flat(120, rounds), shapes.get("entropy") or line(0.9, 0.6, rounds)
        curves = {
            "reward": reward,
            "accuracy": noisy,
            "validation": [round(v * checked) / checked for v in share(validation, checked)],
            "entropy": around(entropy, 0.08),
            "tokens": around(lengths, 0.06),
            "clip": around(shapes.get("clip") or flat(0.02, rounds), 0.3),
            "norm": around(shapes.get("norm") or flat(0.4, rounds), 0.35),
            "signal": share(shapes.get("signal") or [min(0.9, 4 * a * (1 - a)) for a in accuracy], prompts),
            "cut_off": share(shapes.get("cut_off") or flat(0.01, rounds), real),
            "unparseable": share(shapes.get("unparseable") or flat(0.005, rounds), prompts * answers),
            "failed": flat(shapes.get("failed", 0.0), rounds),
        }
        for name_of, sized in (("watch", real), ("validation_watch", checked)):
            if name_of in shapes:
                curves[name_of] = share(shapes[name_of], sized)
        for name_of in ("importance_mean", "importance_capped"):
            if name_of in shapes:
                curves[name_of] = around(shapes[name_of], 0.02)
        case = {"name": name, "expected": sorted(expected), "may": sorted(may)}
        case |= {"prompts": prompts, "answers": answers, "checked": checked, "loss": loss}
        case["curves"] = {key: [round(value, 4) for value in values] for key, values in curves.items()}
        self.cases.append(case)


def healthy(m):
    for rounds in (8, 12, 20, 40, 100):
        m.add(f"learns in {rounds} rounds", accuracy=s_curve(0.3, 0.85, rounds))
    for prompts, answers, checked in ((4, 4, 16), (4, 4, 6), (8, 4, 32), (64, 8, 128), (128, 16, 512)):
        m.add(f"learns, {prompts} x {answers}, {checked} checked", prompts=prompts, answers=answers, checked=checked)
    m.add("gains nothing, small", prompts=4, answers=4, checked=16, accuracy=flat(0.4, 30))
    m.add("gains nothing, large", prompts=64, accuracy=flat(0.4, 30))
    m.add("plateau for long", accuracy=then(s_curve(0.3, 0.6, 15), flat(0.6, 45)))
    m.add("slow", accuracy=line(0.3, 0.4, 40))
    m.add("entropy falls as it learns", accuracy=s_curve(0.3, 0.95, 20), entropy=line(1.0, 0.15, 20))
    m.add("entropy falls to little, all but solved", accuracy=s_curve(0.3, 0.97, 30), entropy=s_curve(1.0, 0.05, 30))
    m.add(
        "little entropy, solved for long",
        accuracy=then(s_curve(0.3, 0.96, 15), flat(0.96, 25)),
        entropy=s_curve(1.0, 0.04, 40, 0.2),
        signal=flat(0.3, 40),
    )
    m.add(
        "entropy falls by half, plateau", accuracy=then(s_curve(0.3, 0.6, 15), flat(0.6, 15)), entropy=line(1, 0.5, 30)
    )
    m.add("longer and better", accuracy=line(0.2, 0.7, 24), tokens=line(120, 260, 24))
    m.add("a little longer, no better", accuracy=flat(0.5, 20), tokens=line(120, 132, 20))
    m.add("shorter and better", accuracy=s_curve(0.3, 0.8, 20), tokens=line(300, 120, 20))
    m.add("watch rises too", watch=s_curve(0.2, 0.6, 20), validation_watch=s_curve(0.2, 0.6, 21))
    m.add("watch stays", watch=flat(0.4, 20), validation_watch=flat(0.4, 21))
    m.add("watch stays, noisy", prompts=4, answers=4, checked=16, watch=flat(0.4, 30), validation_watch=flat(0.4, 31))
    m.add("watch falls with the reward", accuracy=line(0.5, 0.4, 20), watch=line(0.5, 0.4, 20))
    m.add("validation wobbles", checked=16, accuracy=flat(0.5, 30))
    m.add("validation lags behind training", accuracy=s_curve(0.3, 0.9, 30), validation=s_curve(0.3, 0.7, 31))
    m.add("some cut off", cut_off=line(0.3, 0.1, 20))
    m.add("few unparseable", unparseable=flat(0.015, 30), prompts=8, answers=4)
    m.add("unparseable at first", unparseable=then([0.3, 0.15, 0.06], flat(0.005, 17)))
    m.add("gradient spikes", norm=then(flat(0.4, 9), [4.0], flat(0.4, 10)))
    m.add("clips some", clip=flat(0.1, 20))
    m.add("gspo clips more", clip=flat(0.2, 20), loss="gspo")
    m.add("sampler a little off", importance_mean=flat(1.01, 20), importance_capped=flat(0.004, 20))
    m.add("nearly solved, little signal", accuracy=s_curve(0.6, 0.96, 20), signal=line(0.6, 0.2, 20))
    m.add("one bad round", accuracy=then(flat(0.6, 10), [0.3], flat(0.6, 9)))
    m.add("five rounds", accuracy=s_curve(0.3, 0.5, 5))


def entropy_collapse(m):
    collapse = ("entropy_collapse",)
    stuck = then(s_curve(0.3, 0.5, 10), flat(0.5, 10))
    m.add("entropy gone, stuck at half", collapse, accuracy=stuck, entropy=s_curve(0.9, 0.04, 20, 0.3))
    m.add("entropy gone at once", collapse, accuracy=flat(0.35, 20), entropy=[0.9 * 0.7**n + 0.01 for n in range(20)])
    m.add(
        "entropy gone in a long run", collapse, accuracy=then(stuck, flat(0.5, 60)), entropy=s_curve(1.2, 0.03, 80, 0.2)
    )
    m.add(
        "entropy gone, getting worse",
        collapse,
        accuracy=line(0.5, 0.3, 24),
        entropy=s_curve(0.8, 0.05, 24),
        may=("validation_collapse",),
    )
    m.add(
        "entropy gone, small run",
        collapse,
        prompts=4,
        answers=4,
        checked=16,
        accuracy=flat(0.4, 24),
        entropy=s_curve(0.7, 0.03, 24),
        signal=flat(0.4, 24),
    )
    m.add("entropy gone, dapo", collapse, loss="dapo", accuracy=stuck, entropy=s_curve(0.9, 0.06, 20, 0.3))


def length_creep(m):
    creep = ("length_creep",)
    m.add("twice as long, no better", creep, accuracy=flat(0.5, 20), tokens=line(120, 240, 20))
    m.add("half as long again, no better", creep, accuracy=flat(0.4, 30), tokens=line(200, 320, 30))
    m.add(
        "longer and worse", creep, accuracy=line(0.55, 0.4, 20), tokens=line(100, 260, 20), may=("validation_collapse",)
    )
    m.add(
        "longer after it had learned",
        creep,
        accuracy=then(s_curve(0.3, 0.7, 20), flat(0.7, 40)),
        tokens=then(flat(120, 20), line(120, 300, 40)),
    )
    m.add(
        "longer, small run", creep, prompts=4, answers=4, checked=16, accuracy=flat(0.5, 24), tokens=line(60, 150, 24)
    )
    m.add("longer in spite of dr_grpo", creep, loss="dr_grpo", accuracy=flat(0.5, 20), tokens=line(120, 260, 20))


def ratio_blow_up(m):
    ratio = ("ratio_blow_up",)
    m.add("half of the tokens clipped", ratio, clip=line(0.1, 0.55, 20))
    m.add("clipped from the start", ratio, clip=flat(0.5, 12), accuracy=flat(0.3, 12))
    m.add("gradient grows tenfold", ratio, norm=[0.3 * 10 ** (n / 19) for n in range(20)])
    m.add("gradient explodes", ratio, norm=then(flat(0.4, 10), [0.8, 2, 5, 9, 20, 45, 80, 90, 120, 200]))
    m.add("sampler far off", ratio, importance_mean=line(1.0, 1.6, 20), importance_capped=line(0.01, 0.1, 20))
    m.add("many ratios capped", ratio, importance_mean=flat(1.02, 20), importance_capped=flat(0.12, 20))


def dead_signal(m):
    dead = ("dead_signal",)
    none = flat(0.0, 12)
    m.add("all wrong", dead, accuracy=flat(0.0, 12), signal=none)
    m.add("all right", dead, accuracy=flat(1.0, 12), signal=none)
    m.add("alike, half right", dead, accuracy=flat(0.5, 12), signal=none, answers=2)
    m.add("all cut off", (*dead, "mostly_cut_off"), accuracy=flat(0.0, 12), signal=none, cut_off=flat(1.0, 12))
    m.add("all unparseable", (*dead, "parse_failures"), accuracy=flat(0.0, 12), signal=none, unparseable=flat(0.99, 12))
    m.add(
        "signal dries up, solved",
        dead,
        accuracy=then(s_curve(0.3, 1.0, 16), flat(1.0, 8)),
        signal=then(line(0.8, 0.2, 16), flat(0.0, 8)),
    )
    m.add(
        "signal dries up, stuck",
        dead,
        accuracy=then(line(0.3, 0.5, 10), flat(0.5, 14)),
        signal=then(line(0.8, 0.2, 10), flat(0.0, 14)),
    )
    m.add("three rounds, never a signal", dead, accuracy=flat(0.0, 3), signal=flat(0.0, 3))


def reward_hacking(m):
    hack = ("reward_hacking",)
    m.add("watch falls", hack, watch=line(0.5, 0.1, 20), validation_watch=line(0.5, 0.1, 21))
    m.add(
        "watch falls to nothing",
        hack,
        accuracy=s_curve(0.2, 0.98, 20),
        watch=s_curve(0.45, 0.01, 20),
        signal=flat(0.5, 20),
    )
    m.add("watch falls slowly in a long run", hack, accuracy=line(0.3, 0.8, 80), watch=line(0.5, 0.35, 80))
    m.add("watch rises first", hack, accuracy=line(0.2, 0.9, 60), watch=then(line(0.3, 0.5, 25), line(0.5, 0.2, 35)))
    m.add(
        "watch falls, small run",
        hack,
        prompts=4,
        answers=8,
        checked=16,
        accuracy=s_curve(0.2, 0.9, 24),
        watch=s_curve(0.6, 0.1, 24),
    )
    m.add(
        "watch falls in validation alone",
        hack,
        validation=line(0.3, 0.8, 25),
        accuracy=line(0.3, 0.8, 24),
        watch=flat(0.4, 24),
        validation_watch=line(0.5, 0.2, 25),
    )
    m.add(
        "reward of the form alone",
        hack,
        reward=line(0.3, 0.6, 24),
        accuracy=line(0.35, 0.15, 24),
        may=("validation_collapse", "overfitting"),
    )


def mostly_cut_off(m):
    cut = ("mostly_cut_off",)
    m.add("two of three cut off", cut, cut_off=flat(0.67, 12), accuracy=flat(0.2, 12))
    m.add(
        "more and more cut off",
        cut,
        cut_off=line(0.1, 0.8, 20),
        accuracy=line(0.4, 0.2, 20),
        may=("validation_collapse", "length_creep"),
    )
    m.add("nearly all cut off, small", cut, cut_off=flat(0.9, 8), prompts=4, answers=4, accuracy=flat(0.1, 8))
    m.add(
        "cut off at the end",
        cut,
        cut_off=then(flat(0.02, 15), flat(0.7, 5)),
        accuracy=then(flat(0.5, 15), flat(0.3, 5)),
        may=("validation_collapse",),
    )
    m.add("three rounds, mostly cut off", cut, cut_off=flat(0.8, 3), accuracy=flat(0.2, 3))


def parse_failures(m):
    parse = ("parse_failures",)
    m.add("a tenth unparseable", parse, unparseable=flat(0.1, 20))
    m.add("half unparseable", parse, unparseable=flat(0.5, 12), accuracy=flat(0.3, 12))
    m.add("more and more unparseable", parse, unparseable=line(0.0, 0.2, 20))
    m.add("a third unparseable, small", parse, unparseable=flat(0.33, 8), prompts=4, answers=4, accuracy=flat(0.3, 8))
    m.add("six percent unparseable, large", parse, unparseable=flat(0.06, 20), prompts=128, answers=8)


def validation_collapse(m):
    fall = ("validation_collapse",)
    down = then(s_curve(0.3, 0.8, 16), line(0.6, 0.1, 6), flat(0.1, 4))
    m.add("everything collapses", fall, accuracy=down, may=("entropy_collapse",))
    m.add("collapses to nothing", fall, accuracy=then(s_curve(0.3, 0.7, 15), flat(0.02, 5)))
    m.add("collapses at once and stays", fall, accuracy=then(flat(0.6, 12), flat(0.2, 12)), checked=64)
    m.add("slides down from its peak", fall, accuracy=then(s_curve(0.3, 0.8, 12), line(0.8, 0.35, 18)))
    m.add(
        "validation collapses, training does not",
        fall,
        accuracy=s_curve(0.3, 0.8, 24),
        validation=then(s_curve(0.3, 0.7, 15), line(0.6, 0.15, 10)),
        may=("overfitting",),
    )


def overfitting(m):
    over = ("overfitting",)
    m.add(
        "overfits",
        over,
        accuracy=line(0.3, 0.95, 40),
        validation=then(line(0.3, 0.6, 13), line(0.6, 0.4, 28)),
        may=("validation_collapse",),
    )
    m.add(
        "overfits from the start",
        over,
        accuracy=line(0.3, 0.95, 30),
        validation=line(0.5, 0.3, 31),
        may=("validation_collapse",),
    )
    m.add(
        "overfits, many prompts",
        over,
        accuracy=line(0.4, 0.95, 40),
        validation=then(line(0.4, 0.6, 16), line(0.6, 0.48, 25)),
        prompts=64,
        checked=512,
    )
    m.add(
        "overfits, few prompts",
        over,
        accuracy=line(0.2, 1.0, 40),
        prompts=8,
        checked=64,
        validation=then(line(0.3, 0.6, 11), line(0.6, 0.25, 30)),
        may=("validation_collapse",),
    )
    m.add(
        "overfits late",
        over,
        accuracy=line(0.3, 0.9, 60),
        validation=then(line(0.3, 0.65, 36), line(0.65, 0.45, 25)),
        may=("validation_collapse",),
    )


def main():
    m = Maker()
    healthy(m)
    for one in (entropy_collapse, length_creep, ratio_blow_up, dead_signal, reward_hacking, mostly_cut_off):
        one(m)
    for one in (parse_failures, validation_collapse, overfitting):
        one(m)
    lines = ",\n".join(json.dumps(case) for case in m.cases)
    OUT.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
