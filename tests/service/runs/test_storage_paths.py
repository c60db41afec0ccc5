"""Relative paths of settings start where they were written, wherever somebody works on them later."""

import shutil
from pathlib import Path

import pytest

from ratchet.config.config_text import build
from ratchet.errors import ModelUnavailable
from ratchet.run.run_folder import RunFolder
from ratchet.service.evaluations.evaluation_setup import Request, put_together
from ratchet.service.jobs.job_settings import source_of_run, source_of_settings
from ratchet.service.runs.storage_paths import anchored, settings_of
from tests.adapters import TINY
from tests.conducted import pairs
from tests.small_runs import SMALL


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """A folder with a model and rows, where the settings are written; the test goes on elsewhere."""
    place = tmp_path / "workshop"
    shutil.copytree(TINY, place / "mod")
    (place / "rows").mkdir()
    monkeypatch.chdir(place)
    return place


def elsewhere(monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


def test_what_is_there_becomes_absolute_and_everything_else_stays(workshop):
    settings = {
        "model": "mod",
        "data": {"source": "boxed", "path": "./rows"},
        "start_from": {"adapter": "../workshop/rows"},
    }
    found = anchored(build(settings))
    assert (found.model, found.data.path) == (str(workshop / "mod"), str(workshop / "rows"))
    assert found.start_from.adapter == str(workshop / "rows")
    for name in ("tiny", "smollm2-135m", "Qwen/Qwen2.5-0.5B-Instruct"):
        assert anchored(build({"model": name})).model == name
    assert anchored(build({"data": {"source": "boxed", "path": "someone/rows"}})).data.path == "someone/rows"
    (workshop / "tiny").mkdir()
    assert anchored(build({"model": "tiny"})).model == "tiny"  # names come first, as where models are found


def test_a_runs_paths_start_where_it_was_made(workshop, tmp_path, monkeypatch):
    run = RunFolder.create(build({**SMALL, "model": "./mod"}).resolved(), tmp_path / "run")
    elsewhere(monkeypatch, tmp_path)
    assert settings_of(run).model == str(workshop / "mod")
    assert source_of_run(str(run.path), {}, from_adapter=False).config.model == str(workshop / "mod")
    start, _ = put_together(Request(str(run.path), pairs(), of_start=True))
    assert Path(start.model) == workshop / "mod"
    shutil.rmtree(workshop / "mod")
    with pytest.raises(ModelUnavailable):
        put_together(Request(str(run.path), pairs(), of_start=True))


@pytest.mark.slow
def test_what_a_loop_or_an_experiment_takes_its_settings_from_has_absolute_paths(workshop):
    """Whoever carries it out does so from another folder."""
    sft = build({**SMALL, "model": "./mod", "objective": "sft"})
    assert source_of_settings(sft, None).config.model == str(workshop / "mod")
