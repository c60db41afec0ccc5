"""Real runs of the tiny model: the same seed gives the same bytes, and so does a run that was killed and resumed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

import ratchet
from ratchet import service, worker
from ratchet.config import RunConfig
from ratchet.errors import Conflict, DiskFull, InvalidSetting, NoLearningSignal, NotFinite, OutOfMemory, SamplerFailed
from ratchet.run.records import RoundRecord
from ratchet.run.run_folder import RunFolder
from ratchet.worker import Listener

from ..repeated import matrix
from ..small_runs import (
    adapter_bytes,
    ended,
    events_apart_from_times,
    flags,
    journal,
    keep_events,
    log_apart_from_times,
    records,
    rollouts,
    small,
)


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of ours catches it."""


def train(path, config=None, listener=None, now=time.monotonic):
    """Start a run in a folder and work on it to its end; return the folder and the result."""
    folder = RunFolder.create(config or small(), path)
    return folder, worker.run(folder, listeners=[listener] if listener else [], now=now)


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """A small run to its end, shared by all tests that only look at it or work on a copy."""
    home = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_HOME", str(home / "home"))
        return train(home / "run")


@pytest.fixture
def copy(reference, tmp_path):
    """A copy of the reference run that was cut short: no event says that it ended."""
    shutil.copytree(reference[0].path, tmp_path / "copy")
    folder = RunFolder(tmp_path / "copy")
    keep_events(folder, lambda event: event["event"] != "ended")
    return folder


def assert_same_run(folder, other):
    assert adapter_bytes(folder) == adapter_bytes(other)
    assert [{**r, "seconds": None} for r in records(folder)] == [{**r, "seconds": None} for r in records(other)]
    assert rollouts(folder) == rollouts(other)
    assert ended(folder)["adapter_sha256"] == ended(other)["adapter_sha256"]


def test_the_same_seed_gives_the_same_bytes_journal_and_log_apart_from_times(reference, tmp_path):
    folder, result = train(tmp_path / "again")
    assert_same_run(folder, reference[0])
    assert events_apart_from_times(folder) == events_apart_from_times(reference[0])
    assert log_apart_from_times(folder) == log_apart_from_times(reference[0])
    apart = {"run": "", "folder": "", "adapter": "", "seconds": 0}
    assert result.model_copy(update=apart) == reference[1].model_copy(update=apart)


def test_another_seed_gives_another_run(reference, tmp_path):
    folder, _ = train(tmp_path / "other", small(seed=1))
    assert records(folder)[1]["prompt_ids"] != records(reference[0])[1]["prompt_ids"]
    assert adapter_bytes(folder) != adapter_bytes(reference[0])


def test_a_run_ends_with_an_adapter_that_plain_peft_reads(reference):
    folder, result = reference
    assert (result.status, result.ending, result.rounds_done) == ("completed", "all_rounds", 3)
    config = json.loads((folder.adapter_path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"]) == ("LORA", 8)
    assert result.best_accuracy == max(record["validation"]["accuracy"] for record in records(folder))
    assert result.heldout_before is not None
    assert result.heldout_after is not None
    assert len(folder.read_heldout()) == 6


def test_a_round_is_written_as_rollouts_then_checkpoint_then_event(tmp_path, monkeypatch):
    order = []
    replace = os.replace

    def note(source, target):
        order.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", note)
    watch = Listener(on_event=lambda event: order.append(event.event))
    train(tmp_path / "run", small(rounds=1), watch)
    tail = order[order.index("round-001.jsonl") :]
    written = [name for name in tail if not name.startswith("adapter_")]
    assert written[:3] == ["round-001.jsonl", "checkpoint.safetensors", "round"]
    assert tail[-2:] == ["heldout", "ended"]
    before = order[: order.index("round-001.jsonl")]
    assert before[:3] == ["config.json", "run.json", "started"]
    assert before[-2:] == ["checkpoint.safetensors", "round"]


def test_a_resume_appends_records_that_the_journal_lacks_and_drops_what_the_checkpoint_does_not_know(copy, reference):
    keep_events(copy, lambda event: event["event"] != "round" or event["record"]["round"] < 2)
    shutil.copy(copy.rollouts_file(1), copy.rollouts_file(4))
    shutil.rmtree(copy.adapter_path)
    seen = []
    result = worker.run(copy, listeners=[Listener(on_event=seen.append)])
    assert [event.record.round for event in seen if event.event == "round"] == [2, 3]
    assert not copy.rollouts_file(4).exists()
    assert (result.ending, result.rounds_done) == ("all_rounds", 3)
    assert_same_run(copy, reference[0])


def test_a_torn_event_is_made_good_by_a_resume(copy, reference):
    content = copy.events_path.read_bytes()
    copy.events_path.write_bytes(content[:-40])
    worker.run(copy)
    assert_same_run(copy, reference[0])


def killed_at(step, monkeypatch, path):
    """Run until a step of round 2 is about to be taken, and end there as a kill would."""
    folder = RunFolder.create(small(), path)
    seen = []

    def watch_event(event):
        if event.event == "round":
            seen.append(event.record.round)
            if step == "callback" and seen[-1] == 2:
                raise Killed

    functions = {"replace": os.replace, "rename": Path.rename, "fsync": os.fsync}
    name, _, target = step.partition(" ")
    if target:
        original = functions[name]

        def fail(*arguments):
            if seen[-1:] == [1] and any(target in str(argument) for argument in arguments):
                raise Killed
            return original(*arguments)

        monkeypatch.setattr(os if name != "rename" else Path, name, fail)
    if step == "append":
        append = RunFolder.append_event

        def append_event(self, event):
            if event.event == "round" and event.record.round == 2:
                raise Killed
            return append(self, event)

        monkeypatch.setattr(RunFolder, "append_event", append_event)
    with pytest.raises(Killed):
        worker.run(folder, listeners=[Listener(on_event=watch_event)])
    monkeypatch.undo()
    return folder


@pytest.mark.parametrize(
    "step",
    ["replace round-002", "replace checkpoint", "append", "callback"],
    ids=["before rollouts", "rollouts and no checkpoint", "checkpoint and no event", "event"],
)
def test_a_run_killed_between_two_writes_resumes_to_the_same_result(step, reference, tmp_path, monkeypatch):
    home = os.environ["RATCHET_HOME"]
    folder = killed_at(step, monkeypatch, tmp_path / "run")
    monkeypatch.setenv("RATCHET_HOME", home)
    assert service.summary(str(folder.path)).status == "interrupted"
    worker.run(folder)
    assert_same_run(folder, reference[0])


def stop_after(number, kind=signal.SIGTERM):
    def on_event(event):
        if event.event == "round" and event.record.round == number:
            os.kill(os.getpid(), kind)

    return Listener(on_event=on_event)


def test_a_stopped_run_keeps_its_best_adapter_and_goes_on_to_the_same_result(reference, tmp_path):
    folder, result = train(tmp_path / "run", listener=stop_after(1))
    assert (result.status, result.ending, result.rounds_done) == ("stopped_early", "stopped", 1)
    assert result.message.startswith("Stopped as asked. 1 of 3 rounds done.")
    assert adapter_bytes(folder)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert worker.run(folder).ending == "all_rounds"
    assert_same_run(folder, reference[0])


def test_a_second_interrupt_ends_at_once_and_the_run_can_be_resumed(reference, tmp_path):
    folder = RunFolder.create(small(), tmp_path / "run")

    def on_event(event):
        if event.event == "round" and event.record.round == 1:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        worker.run(folder, listeners=[Listener(on_event=on_event)])
    assert service.summary(str(folder.path)).status == "interrupted"
    worker.run(folder)
    assert_same_run(folder, reference[0])


def test_a_run_stopped_before_round_zero_is_cancelled_and_says_where_it_was(tmp_path):
    def on_progress(phase, done, total):
        if phase == "loading":
            os.kill(os.getpid(), signal.SIGINT)

    folder, result = train(tmp_path / "run", listener=Listener(on_progress=on_progress))
    assert (result.status, result.ending, result.adapter) == ("cancelled", "stopped", None)
    assert "Stopped while scoring the held-out problems" in result.message
    assert not folder.adapter_path.exists()


class Clock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


def test_the_time_limit_between_rounds_starts_no_round_that_would_not_fit(tmp_path):
    clock = Clock()

    def on_event(event):
        if event.event == "round" and event.record.round == 2:
            clock.seconds = 7200 - 180 - 120 + 1

    _, result = train(tmp_path / "run", listener=Listener(on_event=on_event), now=clock)
    assert (result.status, result.ending, result.rounds_done) == ("stopped_early", "time_limit", 2)
    assert result.message.startswith("The time limit came near. 2 of 3 rounds done.")
    assert result.heldout_after is not None  # closing work has its own time


def test_the_time_limit_within_a_round_costs_that_round_alone(tmp_path):
    clock = Clock()
    done = []

    def on_progress(phase, count, total):
        if phase == "updating":
            done.append(phase)
            clock.seconds = 7200 - 180 if len(done) == 2 else 0.0

    folder, result = train(tmp_path / "run", listener=Listener(on_progress=on_progress), now=clock)
    assert (result.ending, result.rounds_done) == ("time_limit", 1)
    assert not folder.rollouts_file(2).exists()


@pytest.mark.parametrize(
    ("phase", "named"), [("loading", "loading the model took 9000 of"), ("scoring", "scoring the held-out problems")]
)
def test_running_out_of_time_before_round_zero_fails_and_names_what_took_it(phase, named, tmp_path):
    clock = Clock()

    def on_progress(now, done, total):
        if now == phase:
            clock.seconds = 9000.0

    _, result = train(tmp_path / "run", listener=Listener(on_progress=on_progress), now=clock)
    assert (result.status, result.ending, result.adapter) == ("failed", "time_limit", None)
    assert named in result.message
    assert "Raise Time limit" in result.message


def test_active_seconds_add_up_over_sessions_and_the_pause_between_is_free(tmp_path):
    clock = Clock()

    def on_event(event):
        if event.event == "round":
            clock.seconds += 100
            os.kill(os.getpid(), signal.SIGTERM)

    folder, first = train(tmp_path / "run", listener=Listener(on_event=on_event), now=clock)
    assert first.seconds == 100
    clock.seconds = 1e6
    second = worker.run(folder, listeners=[Listener(on_event=on_event)], now=clock)
    assert second.seconds == 200


def test_the_first_round_starts_whatever_the_time_also_after_a_resume(tmp_path):
    clock = Clock()

    def on_event(event):
        if event.event == "round" and event.record.round == 0:
            clock.seconds = 7200 - 180 - 1
            os.kill(os.getpid(), signal.SIGTERM)

    folder, _ = train(tmp_path / "run", listener=Listener(on_event=on_event), now=clock)
    result = worker.run(folder, now=Clock())
    assert (result.ending, result.rounds_done) == ("time_limit", 1)


def raising_in_round(number, error):
    sampled = []

    def on_progress(phase, done, total):
        if phase == "sampling" and done == 0:
            sampled.append(phase)
            if len(sampled) == number:
                raise error

    return Listener(on_progress=on_progress)


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (SamplerFailed("The engine failed twice."), "sampler_failed"),
        (NotFinite("NaN twice."), "not_finite"),
    ],
)
def test_a_fault_after_round_zero_ends_early_with_the_best_adapter_and_its_reason(error, ending, tmp_path):
    folder, result = train(tmp_path / "run", listener=raising_in_round(2, error))
    assert (result.status, result.ending, result.rounds_done) == ("stopped_early", ending, 1)
    assert result.message.startswith(f"{error} 1 of 3 rounds done.")
    assert adapter_bytes(folder)
    assert ended(folder)["message"] == result.message


def test_a_fault_before_round_zero_fails_the_run(tmp_path):
    def on_progress(phase, done, total):
        if phase == "scoring":
            raise OutOfMemory("Too large.", "sampling")

    folder = RunFolder.create(small(), tmp_path / "run")
    with pytest.raises(OutOfMemory):
        worker.run(folder, listeners=[Listener(on_progress=on_progress)])
    assert (ended(folder)["status"], ended(folder)["ending"]) == ("failed", "out_of_memory")


needs_no_vllm = pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed: tests/vllm runs it")


@needs_no_vllm
def test_vllm_that_is_not_installed_is_refused_before_anything_loads(tmp_path):
    with pytest.raises(InvalidSetting, match=r"vLLM is not installed. Run pip install 'ratchet-rl\[vllm\]'") as caught:
        train(tmp_path / "run", small(backend="vllm"))
    assert caught.value.field == "sampler.backend"


def with_sampler(folder, sampler):
    """Change which sampler a run was fixed to."""
    record = folder.read_run()
    fixed = {key: value for key, value in record["fixed"].items() if key != "sampler"}
    folder.write_run({**record, "fixed": {**fixed, **({"sampler": sampler} if sampler else {})}})


@needs_no_vllm
def test_a_run_that_vllm_sampled_does_not_go_on_without_it(copy):
    assert copy.read_run()["fixed"]["sampler"]["backend"] == "in_process"
    with_sampler(copy, {"backend": "vllm", "why": "It was there."})
    with pytest.raises(Conflict, match=r"sampled by vLLM, which cannot go on here: vLLM is not installed"):
        worker.run(copy)


def test_no_learning_signal_fails_the_run_and_cannot_be_resumed(tmp_path):
    # The tiny model has never seen six pairs.
    config = small(data__pairs=6, no_signal_rounds=1)
    folder = RunFolder.create(config, tmp_path / "run")
    with pytest.raises(NoLearningSignal):
        worker.run(folder)
    assert (ended(folder)["status"], ended(folder)["ending"]) == ("failed", "no_learning_signal")
    with pytest.raises(Conflict, match="no learning signal"):
        worker.run(folder)


def test_an_unforeseen_error_is_told_by_place_and_not_by_its_text(tmp_path):
    folder = RunFolder.create(small(), tmp_path / "run")
    with pytest.raises(RuntimeError):
        worker.run(folder, listeners=[raising_in_round(1, RuntimeError("poison"))])
    assert (ended(folder)["status"], ended(folder)["ending"]) == ("failed", "error")
    assert "RuntimeError" in ended(folder)["message"]
    assert "test_worker.py" in folder.log_path.read_text()
    assert "poison" not in folder.log_path.read_text() + folder.events_path.read_text()


def test_a_completed_run_cannot_be_resumed_and_stays_completed(reference):
    events = list(journal(reference[0]))
    with pytest.raises(Conflict, match=r"is completed \(all rounds\)"):
        worker.run(reference[0])
    assert list(journal(reference[0])) == events


def test_a_run_is_worked_on_by_one_process_alone(copy):
    with copy.locked(), pytest.raises(Conflict, match="another process"):
        worker.run(copy)


def rows_of(numbers):
    return "".join(
        json.dumps({"prompt": f"({n} + 1) * (2 + {n})", "ground_truth": str((n + 1) * (n + 2))}) + "\n" for n in numbers
    )


@pytest.fixture
def on_files(tmp_path):
    """A run over files and a folder with a model, stopped after its first round."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text(rows_of(range(1, 7)))
    (tmp_path / "rows" / "validation.jsonl").write_text(rows_of(range(7, 10)))
    shutil.copytree(Path(ratchet.__file__).parent / "assets" / "tiny", tmp_path / "model")
    settings = {
        "model": str(tmp_path / "model"),
        "data": {"source": "boxed", "path": str(tmp_path / "rows")},
        "verifier": {"kind": "final_number"},
        "prompt": {"system_prompt": ""},
        "reward": {"format_bonus": "off"},
        "rl": {"rounds": 2, "prompts_per_round": 2, "answers_per_prompt": 2, "max_answer_tokens": 32},
    }
    folder, result = train(tmp_path / "run", RunConfig.model_validate(settings), stop_after(1))
    assert result.ending == "stopped"
    return folder


def edit_rows(tmp_path):
    (tmp_path / "rows" / "train.jsonl").write_text(rows_of([1, 2, 3, 4, 5, 8]))


def edit_model(tmp_path):
    (tmp_path / "model" / "generation_config.json").write_text('{"eos_token_id": 4, "do_sample": true}')


@pytest.mark.parametrize(("edit", "what"), [(edit_rows, "data"), (edit_model, "base model")])
def test_a_run_whose_data_or_model_changed_is_refused_and_stays_what_it_was(edit, what, on_files, tmp_path):
    edit(tmp_path)
    events = list(journal(on_files))
    with pytest.raises(Conflict, match=f"The run's {what} was .* cannot go on to the same result"):
        worker.run(on_files)
    assert list(journal(on_files)) == events
    assert service.summary(str(on_files.path)).status == "stopped_early"


def test_a_run_whose_rows_are_gone_is_refused_and_stays_what_it_was(on_files, tmp_path):
    shutil.rmtree(tmp_path / "rows")
    with pytest.raises(Exception, match="no file or folder"):
        worker.run(on_files)
    assert service.summary(str(on_files.path)).status == "stopped_early"


def test_a_damaged_checkpoint_is_refused_and_says_where_the_best_adapter_is(on_files):
    content = on_files.checkpoint_path.read_bytes()
    on_files.checkpoint_path.write_bytes(content[: len(content) // 2])
    with pytest.raises(Conflict, match="adapter/"):
        worker.run(on_files)
    assert service.summary(str(on_files.path)).status == "stopped_early"
    assert adapter_bytes(on_files)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 40 MB where root can mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", place], capture_output=True)
    yield place if mounted.returncode == 0 else None
    if mounted.returncode == 0:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(place):
    with (place / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))


def test_a_disk_that_fills_up_during_a_run_ends_it_with_the_best_adapter_and_it_goes_on_later(
    small_disk, reference, tmp_path
):
    if small_disk is None:
        pytest.skip("no disk can be mounted here; see the next test")

    def on_event(event):
        if event.event == "round" and event.record.round == 1:
            fill(small_disk)

    folder, result = train(small_disk / "run", listener=Listener(on_event=on_event))
    assert (result.status, result.ending, result.rounds_done) == ("stopped_early", "disk_full", 1)
    assert "is full. Free some space" in result.message
    assert json.loads((folder.adapter_path / "adapter_config.json").read_text())["r"] == 8
    assert result.best_round in (0, 1)
    assert not folder.rollouts_file(2).exists() or len(folder.read_rollouts(2)) == 4
    (small_disk / "filler").unlink()
    assert worker.run(folder).ending == "all_rounds"
    assert_same_run(folder, reference[0])


LIMITED = """# forked
import resource, sys
from pathlib import Path
from ratchet.config import RunConfig
from ratchet.run.run_folder import RunFolder
from ratchet import worker

def on_event(event):
    if event.event == "round" and event.record.round == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

folder = RunFolder(Path(sys.argv[1]))
result = worker.run(folder, listeners=[worker.Listener(on_event=on_event)])
print(result.model_dump_json())
"""


@pytest.mark.slow
def test_files_that_may_not_grow_end_a_run_like_a_full_disk(tmp_path):
    folder = RunFolder.create(small(), tmp_path / "run")
    command = [sys.executable, "-W", "error", "-c", LIMITED, str(folder.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["status"], result["ending"], result["rounds_done"]) == ("stopped_early", "disk_full", 1)
    assert adapter_bytes(folder)


def start_train(start_cli, path, **changes):
    return start_cli("train", *flags(**changes), "--out", path, "--json")


def wait_for(condition, process, seconds=200):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it took too long"
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def has_round(folder, number):
    return lambda: (
        folder.events_path.exists()
        and any(event["event"] == "round" and event["record"]["round"] >= number for event in journal(folder))
    )


@pytest.mark.parametrize("kind", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_to_a_real_process_ends_it_with_its_best_adapter(kind, start_cli, tmp_path):
    folder = RunFolder(tmp_path / "run")
    process = start_train(start_cli, folder.path, rounds=500)
    wait_for(has_round(folder, 1), process)
    process.send_signal(kind)
    out, _ = process.communicate(timeout=200)
    result = json.loads(out.splitlines()[-1])
    assert process.returncode == 0
    assert (result["status"], result["ending"]) == ("stopped_early", "stopped")
    assert result["rounds_done"] >= 1
    assert adapter_bytes(folder)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory):
    """The run that the killed ones must equal, made by a process like theirs."""
    home = tmp_path_factory.mktemp("uninterrupted")
    environment = {**os.environ, "RATCHET_HOME": str(home / "home")}
    command = [sys.executable, "-m", "ratchet", "train", *flags(rounds=5), "--out", home / "run"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return RunFolder(home / "run")


# Signals the process just before a call that touches the disk: the call's name, part of its argument, how many such
# calls are let through, and the signals.
KILLER = """# forked
import os, signal, sys
from pathlib import Path

name, part, left, numbers = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].split(",")
owner = Path if name == "rename" else os
original = getattr(owner, name)

def call(*arguments, **keywords):
    global left
    if part in " ".join(map(str, arguments)):
        if left == 0:
            for number in numbers:
                os.kill(os.getpid(), int(number))
        left -= 1
    return original(*arguments, **keywords)

setattr(owner, name, call)
sys.argv = ["ratchet", *sys.argv[5:]]
from ratchet.cli import main
main()
"""
MOMENTS = {
    "start-up: run.json just written": ("replace", "run.json", 1),
    "round 0: adapter staged, no checkpoint": ("replace", "checkpoint", 0),
    "round 0: checkpoint, adapter not in place": ("rename", ".adapter.tmp", 0),
    "round 1: rollouts written, no checkpoint": ("replace", "checkpoint", 1),
    "round 2: before its rollouts": ("replace", "round-002", 0),
    "round 3: checkpoint, before the folder is synced": ("fsync", "", 39),
    "after the last round: held-out rows": ("replace", "heldout", 0),
}


def signalled_at_call(name, part, left, signals, folder):
    """Train until a call is about to be made and send the process these signals there; return its exit status."""
    moment = [name, part, str(left), ",".join(str(int(number)) for number in signals)]
    command = [sys.executable, "-c", KILLER, *moment, "train", *flags(rounds=5), "--out", str(folder.path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250).returncode


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_killed_at_a_write_resumes_to_the_same_result(moment, cli, uninterrupted, tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert signalled_at_call(*MOMENTS[moment], [signal.SIGKILL], folder) == -signal.SIGKILL
    resume_to_the_end(folder, cli, uninterrupted)


@pytest.mark.slow
def test_a_second_interrupt_exits_130_and_the_run_resumes_to_the_same_result(cli, uninterrupted, tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert signalled_at_call("replace", "round-002", 0, [signal.SIGINT, signal.SIGINT], folder) == 130
    resume_to_the_end(folder, cli, uninterrupted)


def resume_to_the_end(folder, cli, uninterrupted):
    resumed = cli("resume", folder.path, "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout.splitlines()[-1])["rounds_done"] == 5
    prompts = [record["prompt_ids"] for record in records(folder)]
    assert prompts == [record["prompt_ids"] for record in records(uninterrupted)]
    assert_same_run(folder, uninterrupted)


# How far a run has come, and which share of a round it is left alone for: meanwhile it samples, updates or validates.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "share"),
    matrix([(0, 0.3), (1, 0.15), (1, 0.5), (1, 0.85), (2, 0.4), (3, 0.7)], ci=lambda number, _: number in (0, 2)),
)
def test_a_run_killed_at_some_time_resumes_to_the_same_result(number, share, start_cli, cli, uninterrupted, tmp_path):
    folder = RunFolder(tmp_path / "run")
    process = start_train(start_cli, folder.path, rounds=5)
    wait_for(has_round(folder, number), process)
    time.sleep(share * records(folder)[-1]["seconds"]["total"])
    assert process.poll() is None
    process.kill()
    process.communicate()
    resume_to_the_end(folder, cli, uninterrupted)


@pytest.mark.slow
def test_a_run_killed_again_and_again_comes_to_the_same_result(start_cli, cli, uninterrupted, tmp_path):
    folder = RunFolder(tmp_path / "run")
    for number in range(4):
        words = ("train", *flags(rounds=5), "--out", folder.path) if number == 0 else ("resume", folder.path)
        process = start_cli(*words)
        wait_for(has_round(folder, number), process)
        process.kill()
        process.communicate()
    resume_to_the_end(folder, cli, uninterrupted)


def test_a_record_reads_back_as_it_was_reported(reference):
    assert [RoundRecord.model_validate(record).round for record in records(reference[0])] == [0, 1, 2, 3]


def test_a_resume_on_a_disk_that_is_still_full_keeps_ending_and_adapter(on_files, monkeypatch):
    before = adapter_bytes(on_files)

    def full(*_):
        raise DiskFull("full")

    monkeypatch.setattr(RunFolder, "stage_adapter", full)
    monkeypatch.setattr(RunFolder, "write_rollouts", full)
    result = worker.run(on_files)
    assert (result.status, result.ending) == ("stopped_early", "disk_full")
    assert adapter_bytes(on_files) == before


def test_an_adapter_that_differs_and_cannot_be_written_ends_a_resume_like_a_full_disk(on_files, monkeypatch):
    def full(*_):
        raise DiskFull("full")

    (on_files.adapter_path / "adapter_model.safetensors").write_bytes(b"")
    monkeypatch.setattr(RunFolder, "stage_adapter", full)
    result = worker.run(on_files)
    assert (result.status, result.ending) == ("stopped_early", "disk_full")


def test_a_run_too_short_to_be_failed_for_want_of_a_signal_says_that_there_was_none(tmp_path):
    # The tiny model has never seen six pairs.
    result = train(tmp_path / "run", small(data__pairs=6, rounds=1))[1]
    assert (result.status, result.ending) == ("completed", "all_rounds")
    assert "no gain" in result.message
    assert "There was no learning signal in rounds 1 to 1" in result.message
