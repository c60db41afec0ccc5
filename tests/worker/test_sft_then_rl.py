"""SFT on demonstrations, then RL from its adapter: round 0 is where SFT ended."""

import pytest

from ratchet import service
from ratchet.config.config_text import build
from ratchet.run.run_folder import RunFolder

from ..small_runs import records
from .test_tuning_runs import SFT, run_of

ROWS = {"source": "math_pairs", "prompts": 200, "heldout": 64}
ANSWERS = {"max_answer_tokens": 32, "validation_prompts": 64}


@pytest.mark.slow
def test_rl_from_the_adapter_of_sft_begins_at_the_score_of_sft(ratchet_command, tmp_path):
    taught, result = run_of(
        {**SFT, "data": ROWS, "rl": ANSWERS, "sft": {"epochs": 1, "evaluations": 2}}, tmp_path / "sft"
    )
    assert result.best_accuracy > result.start_accuracy
    rl = {"rounds": 1, "prompts_per_round": 8, "answers_per_prompt": 4, **ANSWERS}
    settings = {**SFT, "objective": "rl", "data": ROWS, "rl": rl, "start_from": str(taught.path)}
    asked = lambda report: service.Consent("python", "the test looks at round 0 alone")  # noqa: E731
    gone_on = service.create_and_train(build(settings), tmp_path / "rl", ask=asked)
    assert gone_on.start_accuracy == result.best_accuracy
    assert records(RunFolder(tmp_path / "rl"))[0]["validation"]["accuracy"] == result.best_accuracy
    assert taught.run_id in ratchet_command("runs", "show", tmp_path / "rl")[1]
