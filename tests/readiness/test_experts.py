"""Mixture-of-experts models: gspo by itself where no loss was chosen, and no other one."""

import json

import pytest

from ratchet.config.config_text import build
from ratchet.errors import InvalidSetting
from ratchet.readiness import check

from ..engine.models import character_tokenizer, tiny_model


@pytest.fixture
def mixture(tmp_path):
    folder = tmp_path / "mixture"
    character_tokenizer().save_pretrained(folder)
    config = tiny_model("mixtral").config.to_dict()
    (folder / "config.json").write_text(json.dumps(config, default=str))
    return str(folder)


def checked(model, **flags):
    settings = {"model": model, "data": {"source": "math_pairs"}, "device": "cpu"}
    report = check(build({**settings, "rl": {"max_answer_tokens": 16}, "window_tokens": 256}, flags))
    report.close()
    return report


def test_gspo_is_taken_where_no_loss_was_chosen_with_its_own_bounds(mixture):
    report = checked(mixture)
    rl = report.config.rl
    assert (rl.loss, rl.clip_low, rl.clip_high) == ("gspo", 3e-4, 4e-4)
    assert not [fault for fault in report.faults if "experts" in str(fault)]
    assert [note for note in report.notes if "4 experts" in note and "experimental" in note]


def test_another_loss_is_refused(mixture):
    report = checked(mixture, loss="grpo")
    refused = [fault for fault in report.faults if isinstance(fault, InvalidSetting) and fault.field == "rl.loss"]
    assert len(refused) == 1
    assert "Choose gspo" in str(refused[0])


def test_other_models_keep_their_loss():
    report = checked("tiny")
    assert report.config.rl.loss == "grpo"
    assert not [note for note in report.notes if "experts" in note]
