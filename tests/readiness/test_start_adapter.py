"""What a run may start from, found out before anything loads: every refusal in words, and what is pinned."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from ratchet.config import LoraSettings
from ratchet.errors import Conflict, InvalidSetting, ModelUnavailable, NotFound
from ratchet.models.adapter_files import ADAPTER_WEIGHTS, weights_sha256
from ratchet.readiness import check
from ratchet.readiness.start_adapter import with_start
from ratchet.run.events import RunEnded, RunStarted
from ratchet.service import find_run
from ratchet.service.runs.storage_paths import with_source_found

from ..adapters import TINY, change_settings, finished_run, tiny_adapter
from ..small_runs import small


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """An adapter of the tiny model with rank 8 and alpha 16, as runs make them, saved by PEFT."""
    return tiny_adapter(tmp_path_factory.mktemp("weights") / "adapter", rank=8)


@pytest.fixture
def run(weights, tmp_path):
    return find_run(str(finished_run(small(), tmp_path / "source", weights).path))  # and the database knows it


@pytest.fixture
def imported(weights, tmp_path):
    return shutil.copytree(weights, tmp_path / "imported")


def found_start(config):
    """Do what every check of a run does: find the source, through the database if need be, and check it."""
    return with_start(with_source_found(config))


def start(source, **settings):
    return found_start(small(start_from=str(source), **settings))


def change_run(folder, **changes):
    folder.write_run({**folder.read_run(), **changes})


# --- what is found, and pinned ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("called", ["id", "folder", "adapter folder", "relative"])
def test_a_run_is_found_by_id_and_folder_and_pinned(called, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"id": run.run_id, "folder": run.path, "adapter folder": run.adapter_path, "relative": "source"}
    found = start(names[called])
    settings = found.config.start_from
    assert settings.adapter == str(run.adapter_path)
    assert settings.run == run.run_id
    assert settings.sha256 == weights_sha256(run.adapter_path)
    assert found.notes == ()
    assert found_start(found.config) == found


def test_an_imported_folder_is_pinned_too(imported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = start("imported")
    assert found.config.start_from.adapter == str(imported)
    assert found.config.start_from.run == ""
    assert found.notes == ()
    assert found_start(found.config) == found


def test_a_run_whose_folder_was_moved_is_found_by_its_id(run, tmp_path):
    config = start(run.run_id).config
    run.path.rename(tmp_path / "moved")
    find_run(str(tmp_path / "moved"))
    assert found_start(config).config.start_from.adapter == str(tmp_path / "moved" / "adapter")


def test_without_a_start_nothing_is_read_or_changed():
    assert found_start(small()) == (small(), ())


@pytest.mark.parametrize("source", ["r261130-000000-aaaa", "/nowhere", "some/thing", ".", "a\0b"])
def test_what_is_not_there_is_said(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match="There is no adapter to start from"):
        start(source)


# --- rank and alpha are the source's ---------------------------------------------------------------------------------


def test_rank_and_alpha_are_taken_over_where_they_are_left_out(tmp_path):
    source = tiny_adapter(tmp_path / "a", rank=4, lora_alpha=3)
    assert start(source).config.lora == LoraSettings(rank=4, alpha=3)
    assert start(source, lora__rank=4).config.lora == LoraSettings(rank=4, alpha=3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lora__rank": 16}, "LoRA rank is 16, but the adapter that the run starts from has 8.* or set it to 8"),
        ({"lora__alpha": 8}, "LoRA alpha is 8, but the adapter that the run starts from has 16.* or set it to 16"),
        ({"lora__rank": 8, "lora__alpha": 32}, "LoRA alpha is 32"),
    ],
    ids=str,
)
def test_others_are_refused_with_the_sources(given, said, imported):
    with pytest.raises(InvalidSetting, match=said) as refused:
        start(imported, **given)
    assert refused.value.field == f"lora.{'alpha' if 'alpha' in said else 'rank'}"


def test_a_default_that_was_written_out_is_given(tmp_path):
    source = tiny_adapter(tmp_path / "a", rank=4)
    with pytest.raises(InvalidSetting, match=r"LoRA rank is 8, but .* has 4"):
        start(source, lora__rank=8)


def test_an_adapter_wider_than_any_made_here_is_refused(tmp_path):
    source = tiny_adapter(tmp_path / "a", rank=257, target_modules=["q_proj"], lora_alpha=16)
    with pytest.raises(ModelUnavailable, match="rank 257 and alpha 16; Ratchet trains ranks up to 256"):
        start(source)


# --- runs that cannot be started from --------------------------------------------------------------------------------


def test_a_trial_is_refused_in_words(run):
    change_run(run, kind="trial")
    with pytest.raises(Conflict, match=r"it is a trial, .* Choose a full run"):
        start(run.run_id)


def test_a_run_at_work_is_refused(run):
    with run.locked(), pytest.raises(Conflict, match="still running"):
        start(run.run_id)


def test_a_run_without_an_end_and_one_that_was_resumed_since_are_refused(run):
    run.append_event(RunStarted(run=run.run_id, resumed=True))
    with pytest.raises(Conflict, match=f"has not ended. Resume it first: ratchet resume {run.run_id}"):
        start(run.run_id)
    run.events_path.unlink()
    with pytest.raises(Conflict, match="has not ended"):
        start(run.run_id)


@pytest.mark.parametrize(("status", "ending"), [("failed", "error"), ("cancelled", "stopped")])
def test_a_run_that_ended_without_an_adapter_is_refused(status, ending, run):
    run.append_event(RunEnded(status=status, ending=ending, message=""))
    with pytest.raises(Conflict, match=f"it is {status} and has no adapter"):
        start(run.run_id)


@pytest.mark.parametrize("objective", ["rl", "sft", "dpo"])
@pytest.mark.parametrize("status", ["completed", "stopped_early"])
def test_full_runs_of_every_objective_that_kept_an_adapter_are_taken(objective, status, weights, tmp_path):
    run = finished_run(small(objective=objective), tmp_path / "run", weights, status=status)
    assert start(run.path).config.start_from.run == run.run_id


# --- files that are not what they were -------------------------------------------------------------------------------


def test_a_tampered_adapter_is_refused_by_its_checksum(run):
    file = run.adapter_path / ADAPTER_WEIGHTS
    was = weights_sha256(run.adapter_path)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    now = weights_sha256(run.adapter_path)
    with pytest.raises(Conflict, match=f"checksum is {now[:12]}... and should be {was[:12]}"):
        start(run.run_id)


def test_an_imported_adapter_that_changed_since_the_settings_were_saved_is_refused(imported, tmp_path):
    config = start(imported).config
    other = tiny_adapter(tmp_path / "other", rank=8, seed=1)
    shutil.copy(other / ADAPTER_WEIGHTS, imported)
    with pytest.raises(Conflict, match="is not the one that was meant"):
        found_start(config)


def test_settings_of_the_adapter_that_are_not_its_runs_are_refused(run):
    change_settings(run.adapter_path, lora_alpha=99)
    with pytest.raises(Conflict, match="says rank 8 and alpha 99, but its run was trained with 8 and 16"):
        start(run.run_id)


def test_missing_files_are_named(run):
    (run.adapter_path / ADAPTER_WEIGHTS).unlink()
    with pytest.raises(NotFound, match=r"has no adapter_model\.safetensors"):
        start(run.run_id)


def test_what_the_engine_cannot_go_on_from_is_refused(imported):
    change_settings(imported, use_dora=True)
    with pytest.raises(ModelUnavailable, match="it uses use_dora"):
        start(imported)


def test_an_adapter_of_another_shape_is_refused(imported, tmp_path):
    base = shutil.copytree(TINY, tmp_path / "base")
    change_settings(imported, base_model_name_or_path="/gone")
    config = json.loads((base / "config.json").read_text())
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**config, "num_hidden_layers": 1}))
    model.save_pretrained(base)
    with pytest.raises(ModelUnavailable, match=r"changes model\.layers\.1\..*, and the model has no such layer"):
        start(imported, model=str(base))


# --- the same base model and revision --------------------------------------------------------------------------------


@pytest.fixture
def other_model(tmp_path):
    """A copy of the tiny model of which a byte differs."""
    path = shutil.copytree(TINY, tmp_path / "other")
    settings = json.loads((path / "generation_config.json").read_text())
    (path / "generation_config.json").write_text(json.dumps({**settings, "temperature": 0.5}))
    return path


def test_a_copy_of_the_same_model_is_the_same_model(run, imported, tmp_path):
    copy = shutil.copytree(TINY, tmp_path / "copy")
    assert start(run.run_id, model=str(copy)).config.start_from.run == run.run_id
    assert start(imported, model=str(copy)).notes == ()


def test_another_model_is_refused_with_both_fingerprints(run, imported, other_model):
    identity = run.read_run()["fixed"]["model_identity"]
    for source, name in ((run.run_id, "tiny"), (imported, str(TINY))):
        with pytest.raises(InvalidSetting, match="was trained on the base model") as refused:
            start(source, model=str(other_model))
        assert f"{name} ({identity[:19]})" in str(refused.value)
        assert f"{other_model} (sha256:" in str(refused.value)
        assert refused.value.field == "start_from.adapter"


@pytest.mark.parametrize("base", ["/gone/model", "someone/else", None])
def test_an_import_whose_base_model_cannot_be_compared_is_taken_and_that_is_said(base, imported):
    change_settings(imported, base_model_name_or_path=base)
    (note,) = start(imported).notes
    assert (base or "does not say which base model") in note
    assert "only the shapes of its weights were checked" in note


COMMITS = "a" * 40, "b" * 40


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub cache with two revisions of a model: main, and the older one."""
    cache = tmp_path / "hub" / "hub"
    home = cache / "models--someone--small"
    (home / "refs").mkdir(parents=True)
    for name, commit in zip(("main", "older"), COMMITS, strict=True):
        (home / "refs" / name).write_text(commit)
        (home / "snapshots" / commit).mkdir(parents=True)
        for file in TINY.iterdir():
            (home / "snapshots" / commit / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))


def on_hub(source, **settings):
    return start(source, model="someone/small", **settings)


@pytest.mark.usefixtures("hub")
def test_a_run_on_a_hub_model_needs_the_commit_that_its_source_had(run):
    change_run(run, fixed={"model_identity": COMMITS[0]})
    assert on_hub(run.run_id).config.start_from.run == run.run_id
    assert on_hub(run.run_id, revision=COMMITS[0]).config.start_from.run == run.run_id
    with pytest.raises(InvalidSetting, match=rf"tiny \({'a' * 19}\), but this run's is someone/small \({'b' * 19}\)"):
        on_hub(run.run_id, revision="older")


@pytest.mark.usefixtures("hub")
def test_an_import_for_a_hub_model_needs_its_id_and_the_revision_that_it_names(imported):
    change_settings(imported, base_model_name_or_path="someone/small", revision=COMMITS[0])
    assert on_hub(imported).notes == ()
    with pytest.raises(InvalidSetting, match=rf"someone/small \({'a' * 19}\), but this run's is .*{'b' * 19}"):
        on_hub(imported, revision="older")
    change_settings(imported, revision="older")
    assert on_hub(imported, revision=COMMITS[1]).notes == ()
    with pytest.raises(InvalidSetting, match="Choose the same model and revision"):
        on_hub(imported)
    change_settings(imported, revision=None)
    assert "does not say which revision of someone/small" in on_hub(imported).notes[0]
    change_settings(imported, base_model_name_or_path="someone/large")
    with pytest.raises(InvalidSetting, match="base model someone/large, but this run's is someone/small"):
        on_hub(imported)


def test_a_hub_model_whose_commit_cannot_be_told_is_refused(run):
    with pytest.raises(ModelUnavailable, match="Neither the hub nor its cache says which commit revision main"):
        on_hub(run.run_id)


# --- as part of all checks -------------------------------------------------------------------------------------------


def test_all_checks_tell_of_it_beside_what_else_is_wrong(run, imported):
    change_run(run, kind="trial")
    report = check(small(start_from=str(run.path), window_tokens=9999))
    report.close()
    assert [type(fault) for fault in report.faults] == [Conflict, InvalidSetting]
    change_settings(imported, base_model_name_or_path=None)
    report = check(small(start_from=str(imported)))
    report.close()
    assert not report.faults
    assert report.config.start_from.sha256 == weights_sha256(imported)
    assert "does not say which base model" in report.notes[0]
    assert report.rows.config == report.config


def test_another_quantization_than_the_sources_is_said(run):
    (note,) = start(run.run_id, quantization="8bit").notes
    assert "trained with quantization none, and this run has 8bit" in note


def test_the_source_is_only_read(run, imported):
    def state(path):
        return {file: (os.stat(file).st_mtime_ns, file.read_bytes()) for file in path.rglob("*") if file.is_file()}

    before = state(run.path), state(imported)
    start(run.run_id), start(imported)
    assert (state(run.path), state(imported)) == before


def test_the_checks_load_no_torch(run):
    code = (
        "import sys\nfrom ratchet.config.config_text import build\nfrom ratchet.readiness.start_adapter import with_start\n"
        "from ratchet.service.runs.storage_paths import with_source_found\n"
        f"config = with_start(with_source_found(build({{'model': 'tiny', 'start_from': {run.run_id!r}}}))).config\n"
        "print(config.start_from.run, [n for n in ('torch', 'transformers', 'peft', 'safetensors') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [run.run_id, "[]"]
