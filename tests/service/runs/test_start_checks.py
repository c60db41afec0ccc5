"""What ``ratchet train --check`` makes of names that stand for nothing: a fault each, in words, and no crash."""

import pytest

from ratchet.config.config_text import build
from ratchet.errors import NotFound
from ratchet.service import check_run


def checked(verifier, **data):
    settings = {"data": {"source": "dataset", **data}, "verifier": verifier, "rl": {"max_answer_tokens": 16}}
    report = check_run(build(settings))
    report.close()
    return report


def test_a_dataset_that_is_not_there_is_the_one_fault():
    report = checked({"kind": "qa"}, name="absent")
    assert [type(fault) for fault in report.faults] == [NotFound]
    assert str(report.faults[0]).startswith("There is no dataset absent.")
    assert report.rows is None
    with pytest.raises(NotFound):
        report.raise_faults()


def test_a_metric_that_is_not_there_either_is_told_beside_it():
    report = checked({"kind": "custom", "metric": "missing"}, name="absent")
    assert [str(fault).split(".")[0] for fault in report.faults] == [
        "There is no dataset absent",
        "There is no metric missing",
    ]


def test_a_run_to_start_from_that_is_not_there_is_said_once():
    report = check_run(build({"start_from": "r000000-000000-0000", "rl": {"max_answer_tokens": 64}}))
    report.close()
    [fault] = report.faults
    assert str(fault).startswith("There is no adapter to start from at r000000-000000-0000")
