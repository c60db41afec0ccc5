"""The checks before any weights load: every refusal names rows by number and never their content."""

import json
import re
import shutil
from pathlib import Path

import pytest

import ratchet
from ratchet.config import RunConfig
from ratchet.config.config_text import build
from ratchet.engine.prepare import data_hash, prepare
from ratchet.errors import Conflict, IncompatibleData, InvalidSetting
from ratchet.readiness import advice_on_rate, highest_reward

POISON = "zyzzyva"


def boxed_rows(tmp_path, rows, name="train"):
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(number, truth=None, words=1):
    text = " ".join([POISON] * words)
    return {"prompt": f"{number} {text}", "ground_truth": str(number) if truth is None else truth}


def config_of(tmp_path, rows, validation=None, **settings):
    boxed_rows(tmp_path, rows)
    boxed_rows(tmp_path, validation or [row(n) for n in range(1000, 1004)], "validation")
    verifier = {"kind": "final_number"}
    short = {"rl": {"max_answer_tokens": 16, "prompts_per_round": 2}, "window_tokens": 128}
    data = {"source": "boxed", "path": str(tmp_path), **settings.pop("data", {})}
    return build({"data": data, "verifier": verifier, "prompt": {"system_prompt": ""}, **short, **settings})


def refusal(kind, config, function=None):
    with pytest.raises(kind) as caught:
        prepare(config, function)
    assert POISON not in str(caught.value)
    return str(caught.value)


def test_a_run_that_passes_has_its_prompts_encoded_and_its_settings_complete():
    prepared = prepare(RunConfig.model_validate({"rl": {"max_answer_tokens": 32}}))
    assert len(prepared.train) == 256
    assert all(encoded.token_ids for encoded in prepared.train)
    assert isinstance(prepared.config.prompt.system_prompt, str)
    assert prepared.config.prompt.few_shot_examples == ()
    assert prepared.config == prepared.config.resolved()


def test_checking_a_checked_run_again_changes_nothing():
    once = prepare(RunConfig.model_validate({"rl": {"max_answer_tokens": 32}, "prompt": {"worked_examples": 2}}))
    again = prepare(RunConfig.model_validate_json(once.config.model_dump_json()))
    assert again.config == once.config
    assert [e.token_ids for e in again.train] == [e.token_ids for e in once.train]


def test_the_first_row_that_does_not_fit_the_window_is_named(tmp_path):
    rows = [row(n) for n in range(1, 7)] + [row(7, words=300), row(8, words=400)]
    message = refusal(IncompatibleData, config_of(tmp_path, rows))
    assert "Row 7 of the training rows" in message
    assert "(2 of 8 rows do)" in message
    assert "context length of 128 tokens" in message
    assert "leave_out" in message


def test_a_validation_row_that_does_not_fit_is_named_too(tmp_path):
    message = refusal(IncompatibleData, config_of(tmp_path, [row(1), row(2)], [row(1000), row(1001, words=300)]))
    assert "Row 2 of the validation rows" in message


def test_rows_that_do_not_fit_are_left_out_and_counted_when_asked(tmp_path):
    rows = [row(n) for n in range(1, 7)] + [row(7, words=300), row(8, words=400)]
    prepared = prepare(config_of(tmp_path, rows, data={"overlong": "leave_out"}))
    assert [encoded.prompt.id for encoded in prepared.train] == [1, 2, 3, 4, 5, 6]
    assert "2 over-long training rows are left out." in prepared.notes


def test_when_no_row_fits_leaving_out_is_no_way_out(tmp_path):
    rows = [row(1, words=300), row(2, words=300)]
    message = refusal(IncompatibleData, config_of(tmp_path, rows, data={"overlong": "leave_out"}))
    assert "(2 of 2 rows do)" in message
    assert "leave_out" not in message


def test_a_longest_answer_that_fills_the_window_is_the_settings_fault(tmp_path):
    config = config_of(tmp_path, [row(1), row(2)], rl={"max_answer_tokens": 128})
    message = refusal(InvalidSetting, config)
    assert "Max answer tokens is 128, but the context length is 128 tokens" in message


def test_a_window_beyond_the_models_own_is_refused(tmp_path):
    message = refusal(InvalidSetting, config_of(tmp_path, [row(1), row(2)], window_tokens=100_000))
    assert "Context length is 100000 tokens, but the model's own is 512" in message


def test_ground_truths_that_cannot_be_checked_are_named_up_to_twenty(tmp_path):
    rows = [row(n, truth=POISON if n > 2 else None) for n in range(1, 41)]
    message = refusal(IncompatibleData, config_of(tmp_path, rows))
    assert message.startswith("38 of 40 training rows have a reference that the verifier cannot check: rows 3, 4, 5, ")
    assert ", 21 and 22: contains no number" in message
    assert "23" not in message


def test_validation_ground_truths_are_checked_too(tmp_path):
    message = refusal(IncompatibleData, config_of(tmp_path, [row(1), row(2)], [row(1000, truth=POISON)]))
    assert "1 of 1 validation rows" in message


def test_a_pattern_that_is_no_regular_expression_is_refused(tmp_path):
    config = config_of(tmp_path, [row(1), row(2)], reward={"format_bonus": "pattern", "format_pattern": "("})
    assert "Format pattern" in refusal(InvalidSetting, config)


def test_a_device_that_is_not_there_is_refused_before_anything_is_read(tmp_path):
    config = config_of(tmp_path, [row(1)], device="cuda:31")
    assert "Device is cuda:31, but this machine has" in refusal(InvalidSetting, config)


def test_more_worked_examples_than_the_source_brings_are_refused(tmp_path):
    config = config_of(tmp_path, [row(1), row(2)], prompt={"worked_examples": 3})
    assert "Few-shot examples is 3" in refusal(InvalidSetting, config)


def test_a_run_with_a_function_of_the_users_own_needs_that_function(tmp_path):
    config = config_of(tmp_path, [row(1), row(2)], verifier={"kind": "python", "name": "closeness"})
    assert "verifier=function" in refusal(Conflict, config)


def test_a_function_for_another_kind_of_verifier_is_refused(tmp_path):
    message = refusal(InvalidSetting, config_of(tmp_path, [row(1), row(2)]), function=lambda answer, truth: 1.0)
    assert "final_number" in message


def notes_of(tmp_path, **settings):
    return " ".join(prepare(config_of(tmp_path, [row(1), row(2), row(3)], **settings)).notes)


def test_fewer_prompts_than_a_round_asks_for_is_said(tmp_path):
    notes = notes_of(tmp_path, rl={"prompts_per_round": 8, "max_answer_tokens": 16})
    assert "Prompts per round is 8, but there are 3 training prompts" in notes


def test_the_highest_reachable_reward_is_said_where_there_is_a_bonus(tmp_path):
    assert "A correct answer without it earns 0.91" in notes_of(tmp_path)
    assert "reachable" not in notes_of(tmp_path, reward={"format_bonus": "off"})


def test_the_hash_of_the_data_tells_a_rows_own_columns_apart(tmp_path):
    hashes = set()
    for schema in ({}, {"schema": {"type": "object"}}, {"schema": {"type": "array"}}):
        hashes.add(data_hash(prepare(config_of(tmp_path, [row(1), {**row(2), **schema}]))))
    assert len(hashes) == 3


QA = {"kind": "qa"}


@pytest.mark.parametrize(
    ("settings", "proposed"),
    [
        ({"verifier": QA}, True),
        ({"verifier": {**QA, "read": "after_reasoning"}}, False),
        ({"verifier": {**QA, "read": "answer_tag"}}, False),
        ({"verifier": QA, "reward": {"format_bonus": "tags"}}, False),  # the answer tag is read then
        ({"verifier": QA, "prompt": {"template_options": {"enable_thinking": False}}}, False),
        (
            {
                "verifier": {
                    "kind": "composite",
                    "parts": [{"verifier": {**QA, "read": "answer_tag"}}, {"verifier": QA}],
                }
            },
            True,
        ),
    ],
)
def test_reading_after_the_reasoning_is_proposed_where_the_template_reasons(settings, proposed, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(Path(ratchet.__file__).parent / "assets" / "tiny", model)
    template = model / "chat_template.jinja"
    thinking = "{% if enable_thinking is false %}<think></think>{% else %}<think>{% endif %}"
    template.write_text(template.read_text() + thinking)
    notes = notes_of(tmp_path, model=str(model), **settings)
    assert ("Set verifier.read to after_reasoning" in notes) is proposed


def test_it_is_not_proposed_where_the_template_does_not_reason(tmp_path):
    assert "after_reasoning" not in notes_of(tmp_path, verifier=QA)


def test_a_json_schema_that_cannot_be_used_is_refused(tmp_path):
    verifier = {"kind": "structured_json", "schema": {"type": "strin"}}
    assert "verifier.schema" in refusal(InvalidSetting, config_of(tmp_path, [row(1), row(2)], verifier=verifier))


def test_a_composite_with_a_function_of_the_users_own_needs_that_function(tmp_path):
    verifier = {"kind": "composite", "parts": [{"verifier": QA}, {"verifier": {"kind": "python"}}]}
    assert "verifier=function" in refusal(Conflict, config_of(tmp_path, [row(1), row(2)], verifier=verifier))


@pytest.mark.parametrize(
    ("rate", "parameters", "words"),
    [
        (5e-6, 135_000_000, "5e-06.*135 million.*hardly change"),
        (5e-3, 135_000_000, "0.005.*may collapse"),
    ],
)
def test_an_unusual_rate_for_a_large_model_is_remarked_on(rate, parameters, words):
    assert re.search(words, advice_on_rate(RunConfig(learning_rate=rate), parameters))


@pytest.mark.parametrize(("rate", "parameters"), [(2e-5, 135_000_000), (1e-3, 7_000_000_000), (5e-3, 900_000)])
def test_a_usual_rate_is_not(rate, parameters):
    assert advice_on_rate(RunConfig(learning_rate=rate), parameters) is None


@pytest.mark.parametrize(
    ("bonus", "system_prompt", "examples", "highest"),
    [
        ("off", "", [], 1.0),
        ("tags", "Put it in <answer></answer>.", [], 1.0),
        ("tags", "Just answer.", [], 1 / 1.1),
        ("tags", "", [("2 + 2", "<think>add</think><answer>4</answer>")], 1.0),
        ("boxed", "", [("2 + 2", "so \\boxed{4}")], 1.0),
        ("boxed", "Use <answer>.", [("2 + 2", "4")], 1 / 1.1),
    ],
)
def test_the_highest_reward_counts_the_bonus_only_where_the_prompt_teaches_its_form(
    bonus, system_prompt, examples, highest
):
    worked = [{"user": user, "assistant": assistant} for user, assistant in examples]
    config = build(
        {
            "reward": {"format_bonus": bonus},
            "prompt": {"system_prompt": system_prompt, "worked_examples": worked},
        }
    )
    assert highest_reward(config) == pytest.approx(highest)
