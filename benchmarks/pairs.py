"""Running a row: both tools as processes of their own, rounds in turn (A B A B), results written after each pair."""

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

from machine import load_average, machine, product_hash, today, versions
from workload import Workload

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TOOLS = ("ratchet", "trl")

# Converting a packaged model takes much memory once; done apart, it does not show in a tool's peak.
_CONVERT = "import sys; from ratchet.config import RunConfig; from ratchet.engine.policy import load_chat; "
_CONVERT += "load_chat(RunConfig(model=sys.argv[1]))"


class ToolFailed(Exception):
    """A tool ended or did something else than the row asks for; the message says what."""


class Tool:
    """A measured process. ``details`` is what it said once its model was loaded."""

    def __init__(self, name: str, order: dict[str, Any], threads: int) -> None:
        self.name = name
        read, write = os.pipe()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 # closed with the tool
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / f"{name}_tool.py"), str(write)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            text=True,
            pass_fds=(write,),
            env=_environment(threads),
        )
        os.close(write)
        self._replies = os.fdopen(read)
        self._send(json.dumps(order))
        self.details = self._receive()

    def round(self) -> dict[str, Any]:
        """Have one round done; return what was measured."""
        # A tool that is gone cannot be written to; what it said last is then told by ``_receive``.
        with suppress(BrokenPipeError):
            self._send("go")
        return self._receive()

    def close(self) -> None:
        if self._process.stdin:
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


def _environment(threads: int) -> dict[str, str]:
    """Return the same environment for both. Waiting passively is what Ratchet sets for itself before torch loads."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def conditions(workload: Workload, threads: int) -> dict[str, Any]:
    """Return everything that two rounds of one table must have in common."""
    fixed = {
        "workload": asdict(workload),
        "threads": threads,
        "machine": machine(),
        "versions": versions(),
        "product": product_hash(),
    }
    return json.loads(json.dumps(fixed))  # type: ignore[no-any-return] # as it comes back from a file


def measure(workload: Workload, pairs: int, threads: int, folder: Path, say: Callable[[str], None]) -> None:
    """Bring a row's result up to so many pairs, going on where an earlier call was interrupted."""
    path = folder / f"{workload.name}.json"
    result = _continued(path, conditions(workload, threads), say)
    if len(result["pairs"]) >= pairs:
        say(f"{workload.name}: {len(result['pairs'])} pairs are there, measured {result['date']}.")
        return
    _convert(workload.model)
    result["load_before"] = max(load_average(), result.get("load_before", 0.0))
    with _running(workload, threads) as tools:
        result["details"] = {
            name: {key: value for key, value in tool.details.items() if key != "conversations"}
            for name, tool in tools.items()
        }
        say(f"{workload.name}: both tools are loaded; one round of each to warm up.")
        _pair(workload, tools)
        while len(result["pairs"]) < pairs:
            pair = _pair(workload, tools)
            result["pairs"].append(pair)
            result["date"] = today()
            _write(path, result)
            seconds = ", ".join(f"{name} {pair[name]['seconds']:.2f} s" for name in TOOLS)
            say(f"{workload.name}: pair {len(result['pairs'])} of {pairs}: {seconds}.")


def sweep(workload: Workload, threads: int, folder: Path, say: Callable[[str], None]) -> None:
    """Try each tool's micro-batches, and TRL's gradient checkpointing; keep the better of two rounds of each."""
    path = folder / f"sweep-{workload.name}.json"
    neutral = replace(workload, ratchet_tokens=None, trl_answers=0)
    result = _continued(path, conditions(neutral, threads), say)
    _convert(workload.model)
    variants = [("ratchet", replace(workload, ratchet_tokens=tokens)) for tokens in workload.sweep_ratchet]
    variants += [("trl", replace(workload, trl_answers=answers)) for answers in workload.sweep_trl]
    variants += [("trl", replace(workload, gradient_checkpointing=True))]
    done = {(one["tool"], one["micro_batch"], one["gradient_checkpointing"]) for one in result["pairs"]}
    for name, variant in variants:
        micro_batch = variant.ratchet_tokens if name == "ratchet" else variant.trl_answers
        if (name, micro_batch, variant.gradient_checkpointing) in done:
            continue
        with _running(variant, threads, only=name) as tools:
            rounds = [_checked(variant, tools[name]) for _ in range(2)]
        best = min(rounds, key=lambda one: float(one["seconds"]))
        result["pairs"].append(
            {
                "tool": name,
                "micro_batch": micro_batch,
                "gradient_checkpointing": variant.gradient_checkpointing,
                **best,
                "peak_bytes": rounds[-1]["peak_bytes"],
            }
        )
        result["date"] = today()
        _write(path, result)
        say(f"{workload.name}: {name} with {micro_batch}: {best['seconds']:.2f} s, {_mib(rounds[-1])} MiB.")


@contextmanager
def _running(workload: Workload, threads: int, only: str | None = None) -> Iterator[dict[str, Tool]]:
    """Start Ratchet, then TRL on the very prompts and files that Ratchet named."""
    tools: dict[str, Tool] = {}
    try:
        tools["ratchet"] = Tool("ratchet", {"settings": workload.ratchet_settings()}, threads)
        if only != "ratchet":
            # Taken out of what is stored: where the model lies says nothing of the measurement.
            folder = tools["ratchet"].details.pop("model_folder")
            named = {"model_folder": folder, "conversations": tools["ratchet"].details["conversations"]}
            order = {**asdict(workload), **named}
            tools["trl"] = Tool("trl", order, threads)
            weights = {name: tool.details["trained_weights"] for name, tool in tools.items()}
            if len(set(weights.values())) > 1:
                raise ToolFailed(f"the adapters differ in size: {weights}")
        yield tools
    finally:
        for tool in tools.values():
            tool.close()


def _pair(workload: Workload, tools: dict[str, Tool]) -> dict[str, Any]:
    pair = {name: _checked(workload, tools[name]) for name in TOOLS}
    if pair["ratchet"]["prompts_digest"] != pair["trl"]["prompts_digest"]:
        raise ToolFailed("the tools were given different prompt tokens")
    return pair


def _checked(workload: Workload, tool: Tool) -> dict[str, Any]:
    """Have a round done and refuse it unless it was the whole work: all tokens, and a signal in every group."""
    measured = tool.round()
    wanted = (workload.batch * workload.answer_tokens, workload.prompts)
    found = (measured["answer_tokens"], measured["groups_with_signal"])
    if found != wanted:
        raise ToolFailed(f"{tool.name} did (tokens, groups with a signal) = {found} instead of {wanted}")
    return measured


def _continued(path: Path, fixed: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Return the result to add to: the one on disk, or a new one where that was measured on anything else."""
    if path.exists():
        result: dict[str, Any] = json.loads(path.read_text())
        if result["conditions"] == fixed:
            return result
        changed = ", ".join(key for key in fixed if result["conditions"].get(key) != fixed[key])
        say(f"{path.name} is measured anew: it differs in {changed}.")
    return {"conditions": fixed, "pairs": []}


def _convert(model: str) -> None:
    done = subprocess.run([sys.executable, "-c", _CONVERT, model], capture_output=True, text=True)
    if done.returncode:
        raise ToolFailed(f"the model {model} cannot be used:\n{done.stderr[-1000:]}")


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    temporary.replace(path)


def _mib(measured: dict[str, Any]) -> int:
    return round(measured["peak_bytes"] / 2**20)
