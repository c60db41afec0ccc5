"""RESULTS.md, made of what lies in results/."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import startup
from workload import ROWS

Measured = dict[str, Any]

_MIB = 2**20


def render(folder: Path) -> str:
    """Return the whole page."""
    results = {name: json.loads(path.read_text()) for name in ROWS if (path := folder / f"{name}.json").exists()}
    results = {name: result for name, result in results.items() if result["pairs"]}
    sweeps = {name: json.loads(path.read_text()) for name in ROWS if (path := folder / f"sweep-{name}.json").exists()}
    parts = ["# Benchmarks: results", "Made by `python benchmarks/rounds.py`; how to read it is in `README.md`."]
    if results:
        parts += ["## One training round", _summary(results)]
        parts += [_row(name, result, sweeps.get(name)) for name, result in results.items()]
    if startup.PATH.exists() and folder == startup.PATH.parent:
        result = json.loads(startup.PATH.read_text())
        parts += ["## Start of the command line", startup.line(result)]
        parts += [f"{result['date']}, {_machine(result['machine'])}. Command: `python benchmarks/startup.py`."]
    return "\n\n".join(parts) + "\n"


def _summary(results: dict[str, Any]) -> str:
    """Return one line a row: how many times as long, and as much memory, TRL takes."""
    lines = []
    for name, result in results.items():
        pairs = result["pairs"]
        ratios = [
            f"{_ratio(pairs, seconds)[0]:.1f}x" for seconds in (_seconds, lambda one: one["sampling"], _update_seconds)
        ]
        memory = _peak(pairs, "trl") / _peak(pairs, "ratchet")
        target = f"at least {result['conditions']['workload']['target']:g}x"
        lines.append([name, f"**{ratios[0]}**", target, *ratios[1:], f"{memory:.1f}x", str(len(pairs))])
    return _table(["row", "round", "target", "sampling", "update", "peak memory", "pairs"], lines)


def _row(name: str, result: Measured, sweep: Measured | None) -> str:
    fixed, pairs, details = result["conditions"], result["pairs"], result["details"]
    row = fixed["workload"]
    batch = row["prompts"] * row["answers"]
    prompt_tokens = median(details["ratchet"]["prompt_tokens"])
    lines = [
        _line("seconds a round", pairs, _seconds),
        _line("of these, sampling", pairs, lambda one: one["sampling"]),
        _line("of these, update and the rest", pairs, _update_seconds),
        _line("answers a second", pairs, lambda one: batch / one["seconds"], rate=True),
        _line("sampled tokens a second", pairs, lambda one: one["answer_tokens"] / one["seconds"], rate=True),
        ["tokens of an answer", *(f"{pairs[-1][t]['answer_tokens'] / batch:g}" for t in ("ratchet", "trl")), ""],
        ["groups with a signal", *(f"{pairs[-1][t]['groups_with_signal']} of {row['prompts']}" for t in _BOTH), ""],
        _memory_line("peak resident memory, MiB", [_peak(pairs, tool) for tool in _BOTH]),
        _memory_line("of it before the first round, MiB", [details[tool]["loaded_bytes"] for tool in _BOTH]),
        ["micro-batch", f"{details['ratchet']['micro_batch']} tokens", f"{details['trl']['micro_batch']} answers", ""],
    ]
    busy = ", ".join(f"{_BOTH[tool]} {_cores(pairs, tool):.1f}" for tool in _BOTH)
    versions = ", ".join(f"{package} {version}" for package, version in fixed["versions"].items())
    parts = [
        f"### {name}: {row['prompts']} prompts of {prompt_tokens:g} tokens, {row['answers']} answers of "
        f"{row['answer_tokens']} tokens each",
        _table(["", *_BOTH.values(), "TRL / Ratchet"], lines),
        f"Measured {result['date']}; medians, least and most in brackets; alternating pairs: {len(pairs)}; threads of "
        f"each tool: {fixed['threads']}. {_machine(fixed['machine'])}; cores kept busy: {busy}; load before the start "
        f"{result['load_before']:g}. {versions}; source {fixed['product']}.",
        f"Command: `python benchmarks/rounds.py row {name} --pairs {len(pairs)} --threads {fixed['threads']}`",
    ]
    return "\n\n".join(parts + ([_sweep(name, sweep)] if sweep and sweep["pairs"] else []))


_BOTH = {"ratchet": "Ratchet", "trl": "TRL"}


def _sweep(name: str, sweep: Measured) -> str:
    lines = []
    for one in sweep["pairs"]:
        unit = "tokens" if one["tool"] == "ratchet" else "answers"
        note = ", gradient checkpointing" if one["gradient_checkpointing"] else ""
        micro_batch = f"{one['micro_batch']} {unit}{note}"
        lines.append([_BOTH[one["tool"]], micro_batch, f"{one['seconds']:.2f}", f"{one['peak_bytes'] / _MIB:,.0f}"])
    table = _table(["tool", "micro-batch", "seconds a round", "peak resident memory, MiB"], lines)
    command = f"`python benchmarks/rounds.py sweep {name} --threads {sweep['conditions']['threads']}`"
    return f"Micro-batches tried, the better of two rounds each ({sweep['date']}, {command}):\n\n{table}"


def _seconds(one: Measured) -> float:
    return float(one["seconds"])


def _update_seconds(one: Measured) -> float:
    return float(one["seconds"] - one["sampling"])


def _ratio(pairs: Sequence[Measured], value: Callable[[Measured], float]) -> tuple[float, float, float]:
    """Return median, least and most of the pairs' own ratios, TRL's value over ours."""
    ratios = [value(pair["trl"]) / value(pair["ratchet"]) for pair in pairs]
    return median(ratios), min(ratios), max(ratios)


def _line(
    label: str, pairs: Sequence[Measured], value: Callable[[Measured], float], *, rate: bool = False
) -> list[str]:
    cells = []
    for tool in _BOTH:
        values = [value(pair[tool]) for pair in pairs]
        shape = ".1f" if min(values) >= 10 else ".2f"
        cells.append(f"{median(values):{shape}} ({min(values):{shape}} to {max(values):{shape}})")
    middle, least, most = _ratio(pairs, value)
    ratio = f"{middle:.2f}" if rate else f"{middle:.1f} ({least:.1f} to {most:.1f})"
    return [label, *cells, ratio]


def _memory_line(label: str, amounts: Sequence[float]) -> list[str]:
    ours, theirs = amounts
    return [label, f"{ours / _MIB:,.0f}", f"{theirs / _MIB:,.0f}", f"{theirs / ours:.1f}"]


def _peak(pairs: Sequence[Measured], tool: str) -> float:
    return float(max(pair[tool]["peak_bytes"] for pair in pairs))


def _cores(pairs: Sequence[Measured], tool: str) -> float:
    return median(pair[tool]["busy_cores"] for pair in pairs)


def _machine(machine: Measured) -> str:
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))
