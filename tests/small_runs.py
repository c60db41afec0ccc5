"""Settings of runs of the shipped tiny model that take seconds, and what tests compare of them."""

import json
import re

from ratchet.config.config_text import build

SMALL = {
    "model": "tiny",
    "data": {"source": "math_pairs", "prompts": 32, "heldout": 6},
    "prompt": {"system_prompt": ""},
    "reward": {"format_bonus": "off"},
    "rl": {
        "rounds": 3,
        "prompts_per_round": 4,
        "answers_per_prompt": 4,
        "max_answer_tokens": 32,
        "validation_prompts": 6,
    },
    "learning_rate": 2e-3,
}


def small(**changes):
    """Return the settings of a small run with some of them changed, by their dotted or short names."""
    return build(SMALL, {name.replace("__", "."): str(value) for name, value in changes.items()})


def trained(path, **changes):
    """Work on a small run with some of its settings replaced, section by section, to its end; return its folder."""
    from ratchet import worker
    from ratchet.run.run_folder import RunFolder

    folder = RunFolder.create(build({**SMALL, **changes}).resolved(), path)
    worker.run(folder)
    return folder


def flags(**changes):
    """Return the same as flags of the command line."""
    # The report of the verifier is not what these runs are about: whoever starts them says that they have read it.
    found = [
        "--inspected",
        "--system-prompt",
        "",
        "--format-bonus",
        "off",
        "--learning-rate",
        "2e-3",
        "--source",
        "math_pairs",
    ]
    values = {"prompts": 32, "heldout": 6, **SMALL["rl"], **changes}
    for name, value in values.items():
        found += [f"--{name.replace('__', '.').replace('_', '-')}", str(value)]
    return found


def adapter_bytes(folder):
    return (folder.adapter_path / "adapter_model.safetensors").read_bytes()


def events_apart_from_times(folder):
    """Return the journal without times, ids and sessions: what two equal runs have in common."""
    events = []
    for event in journal(folder):
        if event["event"] in ("started", "note"):
            continue
        kept = {key: value for key, value in event.items() if key not in ("at", "seq", "seconds", "run")}
        if "record" in kept:
            kept["record"] = {key: value for key, value in kept["record"].items() if key != "seconds"}
        events.append(kept)
    return events


def log_apart_from_times(folder):
    text = folder.log_path.read_text()
    text = re.sub(r"^\S+ ", "", text, flags=re.MULTILINE)
    return re.sub(r"(sampling|grading|update|validating|seconds)=[0-9.]+", r"\1", text)


def journal(folder):
    """Return the lines of a run's journal as they are written but for their checksums; a torn last one is left out."""
    content = folder.events_path.read_bytes() if folder.events_path.exists() else b""
    events = [json.loads(line) for line in content.split(b"\n")[:-1]]
    return [{name: value for name, value in event.items() if name != "crc"} for event in events]


def records(folder):
    return [event["record"] for event in journal(folder) if event["event"] == "round"]


def rollouts(folder):
    return {path.name: path.read_bytes() for path in folder.rollouts_path.iterdir()}


def ended(folder):
    return [event for event in journal(folder) if event["event"] == "ended"][-1]


def keep_events(folder, wanted):
    """Cut the journal down to the events for which ``wanted`` holds, as if the others had never been written."""
    kept = (event for event in journal(folder) if wanted(event))
    events = [{**event, "seq": number} for number, event in enumerate(kept, 1)]
    folder.events_path.write_text("".join(json.dumps(event) + "\n" for event in events))
