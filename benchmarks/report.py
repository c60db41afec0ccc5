"""RESULTS.md, made of what lies in results/. A result of a row that has changed since is left out."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import startup
import work
from pairs import RESULTS
from rows import ROWS, GrowthRow, OverheadRow, PairRow, Point, RoundRow, Row, SamplerRow, UpdateRow

Measured = dict[str, Any]
# A value of a tool's round.
Value = Callable[[str, Measured], float]

_MIB = 2**20
_NAMES = {"ratchet": "Ratchet", "trl": "TRL", "generate": "generate", "continuous": "continuous batching"}


class Results:
    """What was measured of the rows as they are now."""

    def __init__(self, folder: Path, rows: Iterable[Row] = tuple(ROWS.values())) -> None:
        self.folder = folder
        self.rows = {row.name: row for row in rows if self._of(row, row.name)}
        self.by_name = {name: self._of(row, name) for name, row in self.rows.items()}
        limits = self._read("limits")
        self.limits: Measured | None = limits["measured"][0] if limits and limits["measured"] else None
        self.limits_made: Measured | None = limits

    def of_kind(self, kind: type[Row]) -> dict[str, tuple[Any, Measured]]:
        return {name: (row, self.by_name[name]) for name, row in self.rows.items() if isinstance(row, kind)}

    def sweep(self, row: Row) -> Measured | None:
        return self._of(row.without_settings(), f"sweep-{row.name}") if isinstance(row, PairRow) else None

    def _of(self, row: Row, name: str) -> Measured:
        result = self._read(name)
        measured = any(result.get(what) for what in ("pairs", "points", "runs", "variants"))
        return result if measured and _same_row(result["conditions"]["workload"], row) else {}

    def _read(self, name: str) -> Measured:
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else {}  # type: ignore[no-any-return]


def _same_row(stored: Measured, row: Row) -> bool:
    without_pairs = replace(row, pairs=0) if isinstance(row, PairRow) else row
    now = json.loads(json.dumps(asdict(without_pairs)))
    return {**stored, "pairs": 0} == {**now, "pairs": 0}


def render(results: Results) -> str:
    """Return the whole page."""
    parts = [
        "# Benchmarks: results",
        "Made by `python benchmarks/rounds.py`; how to read it is in `README.md`. CPU alone: no GPU was at hand; "
        "`gpu.sh` is what to run on one.",
        *_rounds(results),
        *_updates(results),
        *_samplers(results),
        *_growth(results),
        *_overhead(results),
        *_startup(results),
        *_limits(results),
        *_bounds(results),
        *_sweeps(results),
        *_how(results),
    ]
    return "\n\n".join(parts) + "\n"


# --- one full round --------------------------------------------------------------------------------------------------


def _rounds(results: Results) -> list[str]:
    rows = results.of_kind(RoundRow)
    if not rows:
        return []
    lines = []
    for name, (row, result) in rows.items():
        pairs = result["pairs"]
        ratios = [_ratio(pairs, _per_answer(row, part), "trl") for part in (_seconds, _sampling, _update_seconds)]
        memory = _peak(pairs, "trl") / _peak(pairs, "ratchet")
        verdict = _verdict(ratios[0][0], row.target)
        cells = [f"**{ratios[0][0]:.1f}x**", f"at least {row.target:g}x: {verdict}"]
        lines.append([name, *cells, *(f"{one[0]:.1f}x" for one in ratios[1:]), f"{memory:.1f}x", str(len(pairs))])
    head = ["row", "round", "target", "sampling", "update", "peak memory", "pairs"]
    return ["## One training round, against TRL", _table(head, lines), *(_round(*one) for one in rows.values())]


def _round(row: RoundRow, result: Measured) -> str:
    pairs, details = result["pairs"], result["details"]
    both = ("ratchet", "trl")
    lines = [
        _line("seconds a round", pairs, _seconds, _per_answer(row, _seconds)),
        _line("of these, sampling", pairs, _sampling, _per_answer(row, _sampling)),
        _line("of these, update and the rest", pairs, _update_seconds, _per_answer(row, _update_seconds)),
        _line("answers a second", pairs, lambda tool, one: row.answers_of(tool) / one["seconds"]),
        _line("sampled tokens a second", pairs, lambda tool, one: one["answer_tokens"] / one["seconds"]),
        ["answers of a round", *(str(row.answers_of(tool)) for tool in both), ""],
        ["groups with a signal", *(f"{pairs[-1][t]['groups_with_signal']} of {row.prompts_of(t)}" for t in both), ""],
        _memory_line("peak resident memory, MiB", [_peak(pairs, tool) for tool in both]),
        _memory_line("of it before the first round, MiB", [details[tool]["loaded_bytes"] for tool in both]),
        ["micro-batch", *(str(details[tool]["micro_batch"]) for tool in both), ""],
    ]
    tokens = median(details["ratchet"]["prompt_tokens"])
    common = details["ratchet"]["common_tokens"]
    title = (
        f"### {row.name}: {row.prompts} prompts of {tokens:g} tokens ({common} common to all), {row.answers} answers "
        f"of {row.answer_tokens} tokens each"
    )
    note = [f"TRL did {row.trl_prompts} of the prompts; ratios of seconds are per answer."] if row.trl_prompts else []
    return "\n\n".join([title, *note, _table(["", "Ratchet", "TRL", "TRL / Ratchet"], lines)])


def _per_answer(row: RoundRow, value: Value) -> Value:
    return lambda tool, one: value(tool, one) / row.answers_of(tool)


# --- the parts alone -------------------------------------------------------------------------------------------------


def _updates(results: Results) -> list[str]:
    rows = results.of_kind(UpdateRow)
    if not rows:
        return []
    lines = []
    for name, (row, result) in rows.items():
        pairs = result["pairs"]
        rates = [_middle(pairs, tool, lambda _, one, row=row: row.useful_tokens / one["seconds"]) for tool in _TRL]
        faster = _ratio(pairs, _seconds, "trl")
        peaks = [_peak(pairs, tool) for tool in _TRL]
        memory = peaks[1] / peaks[0]
        lines.append(
            [
                name,
                *(f"{rate:,.0f}" for rate in rates),
                f"**{faster[0]:.1f}x** ({faster[1]:.1f} to {faster[2]:.1f})",
                "" if row.target is None else f"at least {row.target:g}x: {_verdict(faster[0], row.target)}",
                *(f"{peak / _MIB:,.0f}" for peak in peaks),
                f"{memory:.1f}x",
                ""
                if row.memory_target is None
                else f"at least {row.memory_target:g}x: {_verdict(memory, row.memory_target)}",
                str(len(pairs)),
            ]
        )
    head = ["row", "Ratchet, tokens/s", "TRL, tokens/s", "faster", "target", "Ratchet, MiB", "TRL, MiB", "less memory"]
    text = (
        "One optimizer step on given answers of 128 tokens; the row's name says how long the prompts are and how many "
        "answers each has. Tokens are counted for both as TRL must compute them, each answer with its own prompt. "
        "Memory is the peak of a process that does nothing else."
    )
    return ["## The update alone, against TRL", text, _table([*head, "target", "pairs"], lines), *_plot("update")]


_TRL = ("ratchet", "trl")


def _samplers(results: Results) -> list[str]:
    rows = results.of_kind(SamplerRow)
    if not rows:
        return []
    lines = []
    for name, (row, result) in rows.items():
        pairs = result["pairs"]
        cells = []
        for tool in row.scripts:
            rate = _middle(pairs, tool, lambda _, one: one["answer_tokens"] / one["seconds"])
            cells.append(f"{rate:,.0f} ({_peak(pairs, tool) / _MIB:,.0f} MiB)")
        for tool, target in (("generate", row.target_generate), ("continuous", row.target_continuous)):
            middle, least, most = _ratio(pairs, _seconds, tool)
            goal = "" if target is None else f", at least {target:g}x: {_verdict(middle, target)}"
            cells.append(f"**{middle:.1f}x** ({least:.1f} to {most:.1f}){goal}")
        lengths = row.lengths
        size = f"{len(lengths)} of {sum(lengths) / len(lengths):.0f} on average, {max(lengths)} at most"
        lines.append([name, size, *cells, str(len(pairs))])
    head = ["row", "answers", "Ratchet", "generate", "continuous batching", "over generate", "over continuous batching"]
    text = "Tokens a second, and in brackets the peak memory; every tool writes exactly the same number of tokens."
    return ["## The sampler alone", text, _table([*head, "pairs"], lines), *_plot("sampler")]


def _growth(results: Results) -> list[str]:
    parts: list[str] = []
    for row, result in results.of_kind(GrowthRow).values():
        measured = points_measured(result)
        targets = dict(row.target_exponents)
        for series, points in row.series:
            found = [(point, measured[point]) for point in points if point in measured]
            if len(found) < 2:
                continue
            lines = [
                [
                    str(growing(series, point)),
                    f"{one['seconds']:.2f}",
                    f"{one['sampling']:.2f}",
                    f"{one['seconds'] - one['sampling']:.2f}",
                    f"{one['peak_bytes'] / _MIB:,.0f}",
                ]
                for point, one in found
            ]
            sizes, values = ([growing(series, p) for p, _ in found], [one["seconds"] for _, one in found])
            exponent = fitted_exponent(sizes, values)
            goal = f" (at most {targets[series]:g}: {_verdict(targets[series], exponent)})" if series in targets else ""
            text = f"Seconds grow with {series} to the power of **{exponent:.2f}**{goal}."
            if series == "answers":
                text += f" {_memory_growth(row, [one for _, one in found])}"
            head = [series, "seconds a round", "sampling", "update", "peak memory, MiB"]
            parts += [text, _table(head, lines)]
    if not parts:
        return []
    text = (
        "Ratchet alone on a random Llama of three million weights: a round of sampling and one update, the best of "
        "the rounds of each size, each size in a process of its own. The exponent is the slope of a straight line "
        "through the logarithms, by least squares."
    )
    return ["## As the work grows", text, *parts, *_plot("growth")]


def _memory_growth(row: GrowthRow, found: Sequence[Measured]) -> str:
    share = found[-1]["peak_bytes"] / found[0]["peak_bytes"] - 1
    verdict = _verdict(row.target_memory_growth, share)
    limit = f"at most {row.target_memory_growth:.0%}: {verdict}"
    return f"Peak memory grows by {share:.1%} from the first to the last ({limit})."


def points_measured(result: Measured) -> dict[Point, Measured]:
    """Return the best round of each size, with the peak memory of its process."""
    found = {}
    for one in result.get("points", ()):
        best = min(one["rounds"], key=lambda measured: float(measured["seconds"]))
        found[Point(**one["point"])] = {**best, "peak_bytes": one["rounds"][-1]["peak_bytes"]}
    return found


def growing(series: str, point: Point) -> int:
    """Return the size that a series varies."""
    sizes = {
        "answers": point.prompts * point.answers,
        "prompt length": point.prompt_tokens,
        "group size": point.answers,
    }
    return sizes[series]


def fitted_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of log(value) over log(size) by least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def _overhead(results: Results) -> list[str]:
    lines = []
    for name, (row, result) in results.of_kind(OverheadRow).items():
        rounds = result["runs"][0]["rounds"]
        rest = [one["seconds"] - inside(one) for one in rounds]
        share = sum(rest) / sum(one["seconds"] for one in rounds)
        cells = [str(len(rounds)), f"{median(one['seconds'] for one in rounds):.2f}", f"{1000 * median(rest):.1f}"]
        lines.append([name, *cells, f"**{share:.2%}**", f"at most {row.target:.0%}: {_verdict(row.target, share)}"])
    if not lines:
        return []
    text = (
        "A real run through the worker. What is counted is the time of a round that is not sampling, grading, update "
        "or validation: journal, rollouts, checkpoint, adapter file and bookkeeping."
    )
    head = ["row", "rounds", "seconds a round", "overhead, ms a round", "share", "target"]
    return ["## Overhead outside model and grading", text, _table(head, lines)]


def inside(one: Measured) -> float:
    """Return the seconds of a round that are the model's or the grader's."""
    return sum(float(one[part]) for part in ("sampling", "grading", "update", "validation"))


def _startup(results: Results) -> list[str]:
    if results.folder != RESULTS or not startup.PATH.exists():
        return []
    result = json.loads(startup.PATH.read_text())
    made = f"{result['date']}, {_machine(result['machine'])}. Command: `python benchmarks/startup.py`."
    return ["## Starts", startup.line(result), made]


# --- what could be reached -------------------------------------------------------------------------------------------


def _limits(results: Results) -> list[str]:
    if results.limits is None or results.limits_made is None:
        return []
    made = results.limits_made
    names = list(results.limits["models"])
    lines = []
    for tokens in work.PASS_TOKENS:
        cells = []
        for name in names:
            one = results.limits["models"][name][str(tokens)]
            cells.append(f"{2e-9 * one['trunk_rate']:,.1f} / {2e-9 * one['output_rate']:,.1f}")
        lines.append([str(tokens), *cells])
    text = (
        "GFLOP/s (a multiply-add is two) of `torch.nn.functional.linear` over all layers of each model and, after the "
        f"stroke, of its output layer, by the tokens of a pass. Memory is copied at "
        f"{results.limits['copy_bytes_per_second'] / 1e9:.1f} GB/s. {_machine(made['conditions']['machine'])}, "
        f"threads: {made['conditions']['threads']}; {made['date']}, load before the start {made['load_before']:g}."
    )
    return ["## What the machine can do", text, _table(["tokens of a pass", *names], lines)]


def _bounds(results: Results) -> list[str]:
    """Return each row's multiply-adds and, where the limits are measured, how far Ratchet is from their bound."""
    lines = []
    for name, (row, result) in results.of_kind(PairRow).items():
        phases = work.of_pair_row(row, result["details"]["ratchet"])
        parts: dict[str, Value] = {"sampling": _sampling, "update": _update_seconds}
        for phase, amount in phases.items():
            value = parts[phase] if len(phases) > 1 else _seconds
            lines.append(_bound(results, name, row.model, phase, amount, _middle(result["pairs"], "ratchet", value)))
    for name, (row, result) in results.of_kind(GrowthRow).items():
        for point, one in points_measured(result).items():
            label = f"{name}: {point.prompts} x {point.answers}, prompts of {point.prompt_tokens}"
            seconds = {"sampling": one["sampling"], "update": one["seconds"] - one["sampling"]}
            for phase, amount in work.of_point(row, point).items():
                lines.append(_bound(results, label, row.model, phase, amount, seconds[phase]))
    if not lines:
        return []
    text = (
        "The least multiply-adds of each row (`work.py` says what is counted), the time that they alone take at the "
        "rates above, and Ratchet's median. In a full round the update's figure includes grading and bookkeeping."
    )
    head = ["row", "phase", "multiply-adds, 1e9", "at least, s", "Ratchet, s", "times the bound"]
    return ["## Multiply-adds and lower bounds", text, _table(head, lines)]


def _bound(results: Results, name: str, model: str, phase: str, amount: work.Work, seconds: float) -> list[str]:
    cells = [name, phase, f"{amount.total / 1e9:,.1f}"]
    if results.limits is None or model not in results.limits["models"]:
        return [*cells, "", f"{seconds:.2f}", ""]
    least = amount.seconds(results.limits["models"][model])
    return [*cells, f"{least:.2f}", f"{seconds:.2f}", f"{seconds / least:.1f}"]


def _sweeps(results: Results) -> list[str]:
    lines = []
    for row in ROWS.values():
        sweep = results.sweep(row)
        for one in sweep["variants"] if sweep else ():
            cells = [_NAMES[one["tool"]], one["label"], f"{one['seconds']:.2f}", f"{one['peak_bytes'] / _MIB:,.0f}"]
            lines.append([row.name, *cells])
    if not lines:
        return []
    text = "What `python benchmarks/rounds.py sweep ROW` tried for each tool; the better of two rounds each."
    return ["## Settings tried", text, _table(["row", "tool", "variant", "seconds", "peak memory, MiB"], lines)]


def _how(results: Results) -> list[str]:
    """Return when, on what and of what each row was measured."""
    lines, places = [], {}
    for name, result in results.by_name.items():
        fixed = result["conditions"]
        versions = ", ".join(f"{package} {version}" for package, version in fixed["versions"].items())
        place = f"{_machine(fixed['machine'])}; {versions}"
        number = places.setdefault(place, len(places) + 1)
        busy = ", ".join(f"{_NAMES[tool]} {cores:.1f}" for tool, cores in _busy_cores(result).items())
        lines.append(
            [
                name,
                result["date"],
                str(fixed["threads"]),
                f"{result['load_before']:g}",
                busy,
                fixed["product"],
                str(number),
                f"`python benchmarks/rounds.py row {name}`",
            ]
        )
    if not lines:
        return []
    text = (
        "Medians of alternating rounds, least and most in brackets; one round of each tool before them is not counted. "
        "Every tool had the same environment and number of threads."
    )
    head = ["row", "date", "threads", "load before", "cores kept busy", "source", "place", "command"]
    numbered = [f"{number}. {place}" for place, number in places.items()]
    return ["## How it was measured", text, _table(head, lines), "Places:\n\n" + "\n".join(numbered)]


def _busy_cores(result: Measured) -> dict[str, float]:
    if result.get("pairs"):
        return {tool: median(pair[tool]["busy_cores"] for pair in result["pairs"]) for tool in result["pairs"][0]}
    rounds = result.get("runs") or [one for point in result["points"] for one in point["rounds"]]
    return {"ratchet": median(one["busy_cores"] for one in rounds)}


# --- numbers and tables ----------------------------------------------------------------------------------------------


def _seconds(tool: str, one: Measured) -> float:
    return float(one["seconds"])


def _sampling(tool: str, one: Measured) -> float:
    return float(one["sampling"])


def _update_seconds(tool: str, one: Measured) -> float:
    return float(one["seconds"] - one["sampling"])


def _middle(pairs: Sequence[Measured], tool: str, value: Value) -> float:
    return median(value(tool, pair[tool]) for pair in pairs)


def _ratio(pairs: Sequence[Measured], value: Value, tool: str) -> tuple[float, float, float]:
    """Return median, least and most of the pairs' own ratios, the tool's value over ours."""
    ratios = [value(tool, pair[tool]) / value("ratchet", pair["ratchet"]) for pair in pairs]
    return median(ratios), min(ratios), max(ratios)


def _verdict(reached: float, wanted: float) -> str:
    return "met" if reached >= wanted else "missed"


def _line(label: str, pairs: Sequence[Measured], value: Value, compared: Value | None = None) -> list[str]:
    """Return both tools' values and the ratio of what is compared; of the same values where nothing else is given."""
    cells = []
    for tool in _TRL:
        values = [value(tool, pair[tool]) for pair in pairs]
        shape = ".1f" if min(values) >= 10 else ".2f"
        cells.append(f"{median(values):{shape}} ({min(values):{shape}} to {max(values):{shape}})")
    middle, least, most = _ratio(pairs, compared or value, "trl")
    ratio = f"{middle:.2f}" if compared is None else f"{middle:.1f} ({least:.1f} to {most:.1f})"
    return [label, *cells, ratio]


def _memory_line(label: str, amounts: Sequence[float]) -> list[str]:
    ours, theirs = amounts
    return [label, f"{ours / _MIB:,.0f}", f"{theirs / _MIB:,.0f}", f"{theirs / ours:.1f}"]


def _peak(pairs: Sequence[Measured], tool: str) -> float:
    return float(max(pair[tool]["peak_bytes"] for pair in pairs))


def _machine(machine: Measured) -> str:
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB"


def _plot(name: str) -> list[str]:
    return [f"![{name}](plots/{name}.png)"]


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))
