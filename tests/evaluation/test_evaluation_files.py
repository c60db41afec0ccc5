"""The files of an evaluation: a column is read once, and again when files have changed."""

import pytest

from ratchet.config.config_text import build
from ratchet.errors import Conflict
from ratchet.evaluation.evaluation_files import EvaluationFiles
from ratchet.run.run_folder import RunFolder

from ..evaluation_samples import questions


@pytest.fixture
def files(tmp_path):
    return EvaluationFiles(RunFolder.create(build({}).resolved(), tmp_path / "job", kind="evaluation"))


def test_a_column_is_that_of_all_questions_in_their_order(files):
    first, second = questions(0.5, 10), questions(0.9, 6)
    files.write_part(1, first)
    files.write_part(2, second)
    assert files.column("accuracy") == tuple(one.correctness for one in (*first, *second))
    assert files.column("answered") == (1.0,) * 16


def test_files_that_stay_as_they_are_are_read_once(files, monkeypatch):
    files.write_part(1, questions(0.5, 10))
    before = files.column("accuracy")
    read = []
    monkeypatch.setattr(EvaluationFiles, "questions", lambda self: read.append(self) or [])
    assert files.column("accuracy") == before
    assert read == []


def test_what_changes_is_read_again(files):
    assert files.column("accuracy") == ()
    files.write_part(1, questions(1.0, 4))
    assert files.column("accuracy") == (1.0,) * 4
    files.write_part(1, questions(0.0, 4))
    assert files.column("accuracy") == (0.0,) * 4
    files.write_part(2, questions(1.0, 2))
    assert files.column("accuracy") == (0.0,) * 4 + (1.0,) * 2
    files._part(2).write_text("{")
    with pytest.raises(Conflict):
        files.column("accuracy")
