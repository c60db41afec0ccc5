"""Real runs that go on from an adapter: round 0 is the source's score, nothing depends on the source afterwards."""

import json
import os
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ratchet import service, worker
from ratchet.errors import Conflict
from ratchet.files import ratchet_home
from ratchet.models.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_adapter, weights_sha256
from ratchet.readiness.start_adapter import with_start
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.run_files import list_adapters, show_adapter
from ratchet.worker import Listener

from ..adapters import TINY, by_peft, finished_run, tiny_adapter
from ..small_runs import adapter_bytes, ended, flags, records, rollouts, small


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of ours catches it."""


def train(path, source=None, listener=None, **changes):
    """Work on a run to its end, from another run's adapter if one is given; return its folder."""
    config = small(**changes)
    if source is not None:
        config = with_start(small(start_from=str(source), **changes)).config
    folder = RunFolder.create(config, path)
    worker.run(folder, listeners=[listener] if listener else [])
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run that got better, shared by tests that only read it."""
    home = tmp_path_factory.mktemp("source")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_HOME", str(home / "home"))
        folder = train(home / "run")
    assert ended(folder)["best_round"] > 0
    return folder


@pytest.fixture(scope="module")
def followed(source, tmp_path_factory):
    """A run that went on from it, held to it by a KL term."""
    home = tmp_path_factory.mktemp("followed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_HOME", str(home / "home"))
        return train(home / "run", source.path, rounds=2, beta=0.05)


@pytest.fixture
def copy(source, tmp_path):
    """A copy of the source that a test may spoil."""
    return RunFolder(shutil.copytree(source.path, tmp_path / "source"))


def state(folder):
    return {file: (os.stat(file).st_mtime_ns, file.read_bytes()) for file in folder.path.rglob("*") if file.is_file()}


def best(folder):
    return records(folder)[ended(folder)["best_round"]]


# --- round 0 ---------------------------------------------------------------------------------------------------------


def test_round_0_is_the_sources_best_round_in_every_number(source, followed):
    assert records(followed)[0]["validation"] == best(source)["validation"]
    assert ended(followed)["start_accuracy"] == ended(source)["best_accuracy"]


def test_so_it_is_where_the_adapter_is_on_some_layers_and_our_own_decoder_knows_it_not(tmp_path):
    some = tiny_adapter(tmp_path / "some", rank=8, target_modules=["q_proj", "v_proj"])
    first = train(tmp_path / "first", some, rounds=1)
    assert first.read_run()["fixed"]["batches"] != "decoder"
    second = train(tmp_path / "second", first.path, rounds=1)
    assert records(second)[0]["validation"] == best(first)["validation"]
    assert second.read_heldout_before() == first.read_heldout()
    layers = read_adapter(second.adapter_path).pairs()
    assert {name.rpartition(".")[2] for name in layers} == {"q_proj", "v_proj"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["8bit", "4bit"])
def test_so_it_is_on_a_quantized_model(kind, source, tmp_path):
    first = train(tmp_path / "first", source.path, rounds=1, quantization=kind)
    second = train(tmp_path / "second", first.path, rounds=1, quantization=kind, beta=0.05)
    assert records(second)[0]["validation"] == best(first)["validation"]
    assert second.read_heldout_before() == first.read_heldout()
    assert records(second)[1]["learned"]["kl"] == 0


def test_greedy_outputs_in_training_reloaded_and_merged_are_the_same(source, followed):
    """K14: a continued or merged adapter must write what it wrote as it was trained."""
    trained, reloaded = source.read_heldout(), followed.read_heldout_before()
    assert reloaded == trained
    assert ended(followed)["heldout_before"] == ended(source)["heldout_after"]
    merged = by_peft(AutoModelForCausalLM.from_pretrained(TINY), source.adapter_path).merge_and_unload()
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    for row in trained:
        ids = tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            written = merged.generate(**ids, do_sample=False, max_new_tokens=32, pad_token_id=0)
        text = tokenizer.decode(written[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
        assert text == row["answers"][0]["text"]


# --- learning --------------------------------------------------------------------------------------------------------


def test_the_divergence_from_the_start_is_zero_in_the_first_step_and_grows(followed):
    first, second = (record["learned"] for record in records(followed)[1:])
    assert (first["steps"], second["steps"]) == (1, 1)
    assert first["kl"] == 0
    assert second["kl"] > 0


def test_a_run_that_gains_nothing_ends_with_its_starting_adapter(source, tmp_path):
    folder = train(tmp_path / "run", source.path, rounds=1, learning_rate=1e-8)
    end = ended(folder)
    assert end["best_round"] == 0
    assert end["adapter_sha256"] == ended(source)["adapter_sha256"]
    assert "no gain" in end["message"]
    for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
        assert (folder.adapter_path / name).read_bytes() == (source.adapter_path / name).read_bytes()


def test_the_source_is_as_it_was_to_the_byte_and_the_minute(copy, tmp_path):
    before = state(copy)
    train(tmp_path / "run", copy.path, rounds=1)
    assert state(copy) == before


# --- resume ----------------------------------------------------------------------------------------------------------


def test_a_killed_run_goes_on_to_the_same_result_when_its_source_is_gone(followed, copy, tmp_path):
    def kill(event):
        if event.event == "round" and event.record.round == 1:
            raise Killed

    with pytest.raises(Killed):
        train(tmp_path / "run", copy.path, listener=Listener(on_event=kill), rounds=2, beta=0.05)
    shutil.rmtree(copy.path)
    folder = RunFolder(tmp_path / "run")
    worker.run(folder)
    assert adapter_bytes(folder) == adapter_bytes(followed)
    assert rollouts(folder) == rollouts(followed)
    assert [{**one, "seconds": 0} for one in records(folder)] == [{**one, "seconds": 0} for one in records(followed)]


def test_a_run_whose_own_copy_was_changed_does_not_go_on(copy, tmp_path):
    config = with_start(small(start_from=str(copy.path))).config
    folder = RunFolder.create(config, tmp_path / "run")
    file = folder.start_path / ADAPTER_WEIGHTS
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(Conflict, match=f"The adapter in {folder.start_path} is not the one that was meant"):
        worker.run(folder)


def test_a_source_that_changed_after_the_checks_makes_no_folder(copy, tmp_path):
    config = with_start(small(start_from=str(copy.path))).config
    (copy.adapter_path / ADAPTER_WEIGHTS).write_bytes(b"else")
    with pytest.raises(Conflict, match="is not the one that was meant"):
        RunFolder.create(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- ancestry --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chain(source, tmp_path_factory):
    """Three runs, each from the one before; the database knows the last two."""
    home = tmp_path_factory.mktemp("chain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_HOME", str(home / "home"))
        second = train(home / "second", source.path, rounds=1)
        third = train(home / "third", second.path, rounds=1)
        for one in (second, third):
            service.find_run(str(one.path))
        return source, second, third


def test_a_chain_of_three_names_all_that_came_before(chain, ratchet_command):
    first, second, third = chain
    ancestors = list(service.summary(str(third.path)).start.line())
    assert [one.run for one in ancestors] == [second.run_id, first.run_id]
    assert [one.sha256 for one in ancestors] == [ended(folder)["adapter_sha256"] for folder in (second, first)]
    assert [one.round for one in ancestors] == [ended(folder)["best_round"] for folder in (second, first)]
    assert ancestors[0].model == first.read_run()["fixed"]["model_identity"]
    assert service.summary(str(first.path)).start is None
    code, out, _ = ratchet_command("runs", "show", third.path)
    assert code == 0
    assert f"from run {second.run_id} (rl), " in out
    assert f"from run {first.run_id} (rl), round {ended(first)['best_round']}, sha256 {ancestors[1].sha256[:12]}" in out
    code, out, _ = ratchet_command("runs", "show", third.path, "--json")
    told = json.loads(out)["start"]
    assert (told["run"], told["start"]["run"], told["start"]["start"]) == (second.run_id, first.run_id, None)
    # Known from the run's own folder, whatever became of the others.
    second.path.rename(second.path.with_name("elsewhere"))
    try:
        assert list(service.summary(str(third.path)).start.line()) == ancestors
    finally:
        second.path.with_name("elsewhere").rename(second.path)


def test_an_import_names_its_folder_and_checksum(source, tmp_path, ratchet_command):
    imported = shutil.copytree(source.adapter_path, tmp_path / "imported")
    folder = RunFolder.create(with_start(small(start_from=str(imported))).config, tmp_path / "run")
    start = service.summary(str(folder.path)).start
    assert (start.run, start.folder, start.sha256) == ("", str(imported), weights_sha256(imported))
    _, out, _ = ratchet_command("runs", "show", folder.path)
    assert f"from the imported adapter {imported}, sha256 {start.sha256[:12]}" in out


# --- ratchet adapters ------------------------------------------------------------------------------------------------


def test_adapters_of_finished_runs_are_listed_and_shown(chain, ratchet_command, tmp_path, monkeypatch):
    _, second, third = chain
    monkeypatch.setenv("RATCHET_HOME", str(second.path.with_name("home")))
    RunFolder.create(small(), tmp_path / "not begun")
    trial = finished_run(small(), tmp_path / "trial", third.adapter_path, kind="trial")
    assert {one.run for one in list_adapters()} == {second.run_id, third.run_id}
    code, out, _ = ratchet_command("adapters", "list")
    assert code == 0
    assert all(text in out for text in (second.run_id, third.run_id, "tiny", ended(third)["adapter_sha256"][:12]))
    assert trial.run_id not in out
    code, out, _ = ratchet_command("adapters", "list", "--json")
    assert next(one for one in json.loads(out)["adapters"] if one["run"] == third.run_id) == {
        "run": third.run_id,
        "folder": str(third.adapter_path),
        "ended_at": ended(third)["at"],
        "base_model": "tiny",
        "revision": third.read_run()["fixed"]["model_identity"],
        "rank": 8,
        "alpha": 16,
        "objective": "rl",
        "round": ended(third)["best_round"],
        "accuracy": ended(third)["best_accuracy"],
        "sha256": ended(third)["adapter_sha256"],
        "start": third.read_run()["start"],
    }
    code, out, _ = ratchet_command("adapters", "show", third.run_id)
    assert code == 0
    assert f"sha256 {ended(third)['adapter_sha256']}, as the run ended with" in out
    assert "rank 8, alpha 16, on 28 layers" in out
    assert f"ratchet train CONFIG --start-from {third.run_id}" in out
    code, out, _ = ratchet_command("adapters", "show", third.run_id, "--json")
    assert (json.loads(out)["is_whole"], json.loads(out)["layers"]) == (True, 28)


def test_a_damaged_run_is_left_out_of_the_list_and_named_in_the_log(copy, tmp_path, caplog):
    RunFolder.create(small(), tmp_path / "whole")
    broken = finished_run(small(), tmp_path / "broken", copy.adapter_path)
    service.find_run(str(broken.path))
    broken.events_path.write_text("{\n")
    assert list_adapters() == []
    assert caplog.messages
    assert all(str(broken.events_path) in line for line in caplog.messages)


def test_showing_a_changed_adapter_fails_with_its_checksums(copy, ratchet_command):
    was = ended(copy)["adapter_sha256"]
    content = bytearray((copy.adapter_path / ADAPTER_WEIGHTS).read_bytes())
    content[-1] ^= 1
    (copy.adapter_path / ADAPTER_WEIGHTS).write_bytes(content)
    code, _, err = ratchet_command("adapters", "show", copy.path)
    assert code == 3
    assert f"should be {was[:12]}" in err


def test_without_runs_there_are_no_adapters(ratchet_command):
    code, out, _ = ratchet_command("adapters", "list")
    assert (code, out.startswith("No adapters yet.")) == (0, True)
    code, _, err = ratchet_command("adapters", "show", "r000000-000000-0000")
    assert code == 3
    assert "There is no run" in err


# --- the report of the verifier --------------------------------------------------------------------------------------


def inspected(**changes):
    return service.inspect(small(**changes))


def started(path, **changes):
    """Start a run for which nobody can be asked."""
    service.create_and_train(small(rounds=1, **changes), path)


def test_a_report_shows_the_adapter_that_the_run_starts_from(source, tmp_path, ratchet_command):
    base, own = inspected(), inspected(start_from=str(source.path))
    assert own.key != base.key
    assert own.card.made_with.start == ended(source)["adapter_sha256"]
    assert base.card.made_with.start == ""
    assert [one.rewards for one in own.card.scores] != [one.rewards for one in base.card.scores]
    assert ended(source)["adapter_sha256"] in own.page.read_text()
    # Confirmed for itself, it lets no run on the base model start.
    service.confirm(own, service.Consent("flag"))
    started(tmp_path / "own", start_from=str(source.path))
    with pytest.raises(Conflict, match="no confirmed report"):
        started(tmp_path / "base")


def test_a_confirmed_report_on_the_base_model_serves_runs_that_go_on_and_that_is_said(source, tmp_path):
    service.confirm(inspected(), service.Consent("flag"))
    told = []
    service.create_and_train(small(rounds=1, start_from=str(source.path)), tmp_path / "run", on_launch=told.append)
    assert "it shows the base model without the adapter" in told[0].report


def test_the_report_that_a_source_had_serves_the_run_that_goes_on(source, tmp_path):
    service.confirm(inspected(start_from=str(source.path)), service.Consent("flag"))
    started(tmp_path / "second", start_from=str(source.path))
    started(tmp_path / "third", start_from=str(tmp_path / "second"))
    key = RunFolder(tmp_path / "second").read_run()["report"]["key"]
    assert RunFolder(tmp_path / "third").read_run()["report"]["key"] == key
    with pytest.raises(Conflict, match="no confirmed report"):
        started(tmp_path / "other", start_from=str(tmp_path / "second"), data__seed=5)


# --- the command line ------------------------------------------------------------------------------------------------


def test_the_command_line_trains_from_a_run_and_says_so_beforehand(copy, ratchet_command, tmp_path):
    arguments = (*flags(rounds=1), "--start-from", copy.path)
    code, out, _ = ratchet_command("train", *arguments, "--check")
    assert code == 0
    assert f"Starts from       {copy.run_id}" in out
    code, out, _ = ratchet_command("train", *arguments, "--out", tmp_path / "run", "--json")
    assert code == 0
    stored = RunFolder(tmp_path / "run").read_config()
    assert stored.start_from.sha256 == ended(copy)["adapter_sha256"]
    assert (stored.start_from.run, stored.start_from.adapter) == (copy.run_id, str(copy.adapter_path))


@pytest.mark.parametrize("what", ["trial", "revision", "tampered", "rank", "nowhere"])
def test_refusals_end_with_the_code_of_their_owner_before_anything_loads(what, copy, ratchet_command, monkeypatch):
    import ratchet.engine.prepare

    monkeypatch.setattr(ratchet.engine.prepare, "prepare", lambda *arguments: pytest.fail("something was loaded"))
    further = ()
    if what == "trial":
        copy.write_run({**copy.read_run(), "kind": "trial"})
    elif what == "revision":
        copy.write_run({**copy.read_run(), "fixed": {"model_identity": "f" * 40}})
    elif what == "tampered":
        (copy.adapter_path / ADAPTER_WEIGHTS).write_bytes(b"else")
    elif what == "rank":
        further = ("--lora.rank", "4")
    name = "r000000-000000-0000" if what == "nowhere" else copy.path
    code, _, err = ratchet_command("train", *flags(), "--start-from", name, *further)
    said, status = {
        "trial": ("it is a trial", 3),
        "revision": (f"tiny ({'f' * 19}), but this run's is tiny (sha256:", 2),
        "tampered": ("is damaged", 3),
        "rank": ("LoRA rank is 4, but the adapter that the run starts from has 8", 2),
        "nowhere": ("There is no adapter to start from at r000000-000000-0000", 3),
    }[what]
    assert said in err
    assert code == status
    assert not (ratchet_home() / "runs").exists()


def test_show_adapter_finds_the_files(copy):
    adapter, files = show_adapter(str(copy.path))
    assert adapter.origin.sha256 == files.sha256
