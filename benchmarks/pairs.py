"""Running rows: tools as processes of their own, rounds in turn (A B A B), results written after each turn."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from machine import content_hash, load_average, machine, product_hash, today, versions
from rows import GrowthRow, OverheadRow, PairRow, Row
from work import SHAPES

HERE = Path(__file__).parent
RESULTS = HERE / "results"
# How OpenMP waits, for every tool alike: a bounded spin, then sleep. Measured: small operations five times as fast as
# with no spin on idle cores, nothing lost on busy ones, where endless spinning is ruinous.
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
# What Ratchet says when it is ready for the other tools alone: too long to store, or of this machine.
_NOT_STORED = ("model_folder", "conversations", "prompts")
_SHARED_SCRIPTS = ("channel.py", "workload.py", "ratchet_parts.py", "peers.py", "trl_parts.py")

# A round in which a group had no signal is not counted and done again, so many times in all.
_TRIES = 3

# Converting a packaged model takes much memory once; done apart, it does not show in a tool's peak.
_CONVERT = "import sys; from ratchet.config import RunConfig; from ratchet.engine.policy import load_chat; "
_CONVERT += "load_chat(RunConfig(model=sys.argv[1]))"

Say = Callable[[str], None]
Result = dict[str, Any]


class ToolFailed(Exception):
    """A tool ended or did something else than the row asks for; the message says what."""


class Tool:
    """A measured process. ``details`` is what it said once its model was loaded."""

    def __init__(self, name: str, script: str, order: dict[str, Any], threads: int) -> None:
        self.name = name
        read, write = os.pipe()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 # closed with the tool
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / script), str(write)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            text=True,
            pass_fds=(write,),
            env=environment(threads),
        )
        os.close(write)
        self._replies = os.fdopen(read)
        try:
            self._send(json.dumps(order))
            self.details = self._receive()
        except BaseException:
            self.close()
            raise

    def round(self) -> dict[str, Any]:
        """Have one round done; return what was measured."""
        # A tool that is gone cannot be written to; what it said last is then told by ``_receive``.
        with suppress(BrokenPipeError):
            self._send("go")
        return self._receive()

    def close(self) -> None:
        if self._process.stdin:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()
        self._replies.close()
        self._log.close()

    def _send(self, line: str) -> None:
        if self._process.stdin is None:
            raise ToolFailed(f"{self.name} has no input")
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        line = self._replies.readline()
        if line:
            received: dict[str, Any] = json.loads(line)
            return received
        self._process.wait()
        self._log.seek(0)
        raise ToolFailed(f"{self.name} ended by itself; the end of what it printed:\n{self._log.read()[-4000:]}")


def environment(threads: int) -> dict[str, str]:
    """Return the same environment for every tool."""
    return {
        **os.environ,
        **WAITING,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def conditions(row: Row, threads: int) -> dict[str, Any]:
    """Return everything that two rounds of one table must have in common."""
    fixed = {
        "workload": asdict(row),
        "threads": threads,
        "waiting": WAITING,
        "machine": machine(),
        "versions": versions(),
        "product": product_hash(),
        "programs": content_hash(HERE / name for name in (*_SHARED_SCRIPTS, *row.scripts.values())),
    }
    return json.loads(json.dumps(fixed))  # type: ignore[no-any-return] # as it comes back from a file


def measure(row: Row, threads: int, folder: Path, say: Say) -> None:
    """Bring a row's result up to its size, going on where an earlier call was interrupted."""
    if isinstance(row, PairRow):
        _measure_pairs(row, threads, folder, say)
    elif isinstance(row, GrowthRow):
        _measure_growth(row, threads, folder, say)
    elif isinstance(row, OverheadRow):
        _measure_overhead(row, threads, folder, say)


def _measure_pairs(row: PairRow, threads: int, folder: Path, say: Say) -> None:
    path = folder / f"{row.name}.json"
    # The number of pairs is not a condition: more of them are added to those that are there.
    result = continued(path, conditions(replace(row, pairs=0), threads), "pairs", say)
    if len(result["pairs"]) >= row.pairs:
        say(f"{row.name}: {len(result['pairs'])} pairs are there, measured {result['date']}.")
        return
    _convert(row.model)
    _note_load(result)
    with _running(row, threads) as tools:
        result["details"] = {name: _stored(tool.details) for name, tool in tools.items()}
        say(f"{row.name}: all tools are loaded; one round of each to warm up.")
        _turn(row, tools)
        while len(result["pairs"]) < row.pairs:
            pair = _turn(row, tools)
            result["pairs"].append(pair)
            save(path, result)
            seconds = ", ".join(f"{name} {measured['seconds']:.2f} s" for name, measured in pair.items())
            say(f"{row.name}: pair {len(result['pairs'])} of {row.pairs}: {seconds}.")


def _measure_growth(row: GrowthRow, threads: int, folder: Path, say: Say) -> None:
    path = folder / f"{row.name}.json"
    result = continued(path, conditions(row, threads), "points", say)
    done = {tuple(one["point"].values()) for one in result["points"]}
    missing = [point for point in row.points if tuple(asdict(point).values()) not in done]
    if not missing:
        say(f"{row.name}: all {len(result['points'])} sizes are there, measured {result['date']}.")
        return
    _note_load(result)
    with tempfile.TemporaryDirectory() as model:
        _run([str(HERE / "random_model.py"), model], threads)
        for point in missing:
            tool = Tool("ratchet", row.scripts["ratchet"], row.order(point, model), threads)
            try:
                _check_shape(row, tool)
                # One round more, which warms up.
                rounds = [tool.round() for _ in range(row.repeats + 1)][1:]
            finally:
                tool.close()
            result["points"].append({"point": asdict(point), "details": _stored(tool.details), "rounds": rounds})
            save(path, result)
            best = min(float(one["seconds"]) for one in rounds)
            say(f"{row.name}: {_named(asdict(point))}: {best:.2f} s, {_mib(rounds[-1])} MiB.")


def _measure_overhead(row: OverheadRow, threads: int, folder: Path, say: Say) -> None:
    path = folder / f"{row.name}.json"
    result = continued(path, conditions(row, threads), "runs", say)
    if result["runs"]:
        say(f"{row.name}: a run is there, measured {result['date']}.")
        return
    _convert(row.model)
    _note_load(result)
    tool = Tool("ratchet", row.scripts["ratchet"], asdict(row), threads)
    try:
        result["runs"].append(tool.round())
    finally:
        tool.close()
    save(path, result)
    say(f"{row.name}: {len(result['runs'][0]['rounds'])} rounds are measured.")


def measure_limits(threads: int, folder: Path, say: Say, *, models: tuple[str, ...] = tuple(SHAPES)) -> None:
    """Measure what the machine can do at most: multiply-adds at the models' own shapes, and memory bandwidth."""
    path = folder / "limits.json"
    fixed = {
        "threads": threads,
        "waiting": WAITING,
        "machine": machine(),
        "torch": versions()["torch"],
        "shapes": {name: asdict(SHAPES[name]) for name in models},
        "programs": content_hash([HERE / "limits_tool.py"]),
    }
    result = continued(path, json.loads(json.dumps(fixed)), "measured", say)
    if result["measured"]:
        say(f"limits: measured {result['date']}.")
        return
    _note_load(result)
    tool = Tool("limits", "limits_tool.py", {"shapes": fixed["shapes"]}, threads)
    try:
        result["measured"].append(tool.round())
    finally:
        tool.close()
    save(path, result)
    say("limits: measured.")


def sweep(row: PairRow, threads: int, folder: Path, say: Say) -> None:
    """Try what could be each tool's best; keep the better of two rounds of each."""
    path = folder / f"sweep-{row.name}.json"
    result = continued(path, conditions(row.without_settings(), threads), "variants", say)
    _convert(row.model)
    done = {(one["tool"], one["label"]) for one in result["variants"]}
    for name, label, variant in row.variants():
        if (name, label) in done:
            continue
        with _running(variant, threads, only=name) as tools:
            details = tools["ratchet"].details
            rounds = [_checked(variant, tools[name], details) for _ in range(2)]
        best = min(rounds, key=lambda one: float(one["seconds"]))
        result["variants"].append({"tool": name, "label": label, **best, "peak_bytes": rounds[-1]["peak_bytes"]})
        save(path, result)
        say(f"{row.name}: {name}, {label}: {best['seconds']:.2f} s, {_mib(rounds[-1])} MiB.")


@contextmanager
def _running(row: PairRow, threads: int, only: str | None = None) -> Iterator[dict[str, Tool]]:
    """Start Ratchet, then the others on the very prompts and files that Ratchet named."""
    tools: dict[str, Tool] = {}
    try:
        ratchet = Tool("ratchet", row.scripts["ratchet"], row.first_order(), threads)
        tools["ratchet"] = ratchet
        _check_shape(row, ratchet)
        for name, script in row.scripts.items():
            if name != "ratchet" and only in (None, name):
                tools[name] = Tool(name, script, row.order(name, ratchet.details), threads)
        weights = {name: tool.details.get("trained_weights") for name, tool in tools.items()}
        if len({number for number in weights.values() if number is not None}) > 1:
            raise ToolFailed(f"the adapters differ in size: {weights}")
        yield tools
    finally:
        for tool in tools.values():
            tool.close()


def _turn(row: PairRow, tools: dict[str, Tool]) -> dict[str, Any]:
    return {name: _checked(row, tool, tools["ratchet"].details) for name, tool in tools.items()}


def _checked(row: PairRow, tool: Tool, ratchet: dict[str, Any]) -> dict[str, Any]:
    """Have a round done and refuse it unless it was the whole work: all tokens of the right prompts, all signals."""
    wanted = row.wanted(tool.name, ratchet)
    for _ in range(_TRIES):
        measured = tool.round()
        found = {name: measured[name] for name in wanted}
        if found == wanted:
            return measured
        # By chance all answers to a prompt may be alike, and the tools differ in what they then skip.
        if {**found, "groups_with_signal": wanted.get("groups_with_signal")} != wanted:
            break
    raise ToolFailed(f"{row.name}: {tool.name} did {found} instead of {wanted}")


def _check_shape(row: Row, tool: Tool) -> None:
    """Refuse a model that is not the one whose multiply-adds are counted."""
    if tool.details["model_shape"] != asdict(SHAPES[row.model]):
        raise ToolFailed(f"{row.model} has the shape {tool.details['model_shape']}, not {SHAPES[row.model]}")


def continued(path: Path, fixed: dict[str, Any], what: str, say: Say) -> Result:
    """Return the result to add to: the one on disk, or a new one where that was measured on anything else."""
    if path.exists():
        result: Result = json.loads(path.read_text())
        if result["conditions"] == fixed and what in result:
            return result
        changed = ", ".join(key for key in fixed if result["conditions"].get(key) != fixed[key])
        say(f"{path.name} is measured anew: it differs in {changed or 'form'}.")
    return {"conditions": fixed, what: []}


def save(path: Path, result: Result) -> None:
    result["date"] = today()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    temporary.replace(path)


def _stored(details: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in details.items() if key not in _NOT_STORED}


def _note_load(result: Result) -> None:
    result["load_before"] = max(load_average(), result.get("load_before", 0.0))


def _convert(model: str) -> None:
    if model in ("tiny", "random-3m"):
        return
    done = subprocess.run([sys.executable, "-c", _CONVERT, model], capture_output=True, text=True)
    if done.returncode:
        raise ToolFailed(f"the model {model} cannot be used:\n{done.stderr[-1000:]}")


def _run(arguments: list[str], threads: int) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment(threads))
    if done.returncode:
        raise ToolFailed(f"{Path(arguments[0]).name} failed:\n{done.stderr[-1000:]}")


def _named(values: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())


def _mib(measured: dict[str, Any]) -> int:
    return round(measured["peak_bytes"] / 2**20)
