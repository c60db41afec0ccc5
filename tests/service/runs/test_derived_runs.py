"""New runs from old ones: what a state allows, whose settings they have, and drafts that start nothing."""

import json
from contextlib import closing

import pytest

from ratchet.config.changes import with_changes
from ratchet.config.config_text import build
from ratchet.errors import Conflict, InvalidSetting, NotFound
from ratchet.run.events import RunEnded, RunStarted
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs import derived_runs
from ratchet.service.runs.registry import Origin, new_run
from ratchet.service.runs.runs import possible, refuse
from ratchet.store import Database, RunStore

from ...small_runs import adapter_bytes, ended, journal, records, small


@pytest.mark.parametrize(
    ("status", "ending", "kind", "actions"),
    [
        ("draft", None, "full", ("launch", "duplicate", "drop")),
        ("queued", None, "full", ("stop", "duplicate")),
        ("training", None, "full", ("stop", "duplicate")),
        ("interrupted", None, "full", ("resume", "duplicate")),
        ("completed", "all_rounds", "full", ("continue", "duplicate")),
        ("completed", "all_rounds", "trial", ("duplicate",)),
        ("stopped_early", "stopped", "full", ("resume", "continue", "duplicate")),
        ("stopped_early", "time_limit", "full", ("continue", "duplicate")),
        ("failed", "error", "full", ("resume", "retry", "duplicate")),
        ("failed", "no_learning_signal", "full", ("retry", "duplicate")),
        ("cancelled", "stopped", "full", ("retry", "duplicate")),
    ],
)
def test_what_can_be_done_follows_from_the_state(status, ending, kind, actions):
    assert possible(status, ending, kind) == actions
    for action in ("stop", "resume", "retry", "duplicate", "continue", "launch", "drop"):
        if action in actions:
            refuse(action, "r1", status, ending, kind)
        else:
            with pytest.raises(Conflict) as caught:
                refuse(action, "r1", status, ending, kind)
            assert status.replace("_", " ") in str(caught.value)
            assert "ratchet runs duplicate r1" in str(caught.value)


def run_that(folder, status, ending, config=None):
    made = RunFolder.create(config or small(rounds=1).resolved(), folder)
    made.append_event(RunStarted(run=made.run_id, resumed=False))
    made.append_event(RunEnded(status=status, ending=ending, message="m", best_round=None))
    return made


def drafts():
    with closing(Database()) as database:
        return RunStore(database).all(statuses=["draft"])


def test_a_failed_run_is_retried_with_its_very_settings_and_others_are_not(tmp_path):
    failed = run_that(tmp_path / "failed", "failed", "error")
    made = derived_runs.retry(str(failed.path))
    assert made.config == failed.read_config()
    assert made.origin == Origin(failed.run_id, "retry")
    done = run_that(tmp_path / "done", "completed", "all_rounds")
    with pytest.raises(Conflict, match=r"completed \(all rounds\), so it cannot be retried"):
        derived_runs.retry(str(done.path))


@pytest.mark.slow
def test_a_retry_is_a_new_run_from_round_1_that_names_its_source(cli, tmp_path):
    failed = run_that(tmp_path / "failed", "cancelled", "stopped")
    done = cli("runs", "retry", failed.path, "--out", tmp_path / "again", "--inspected", "--json")
    assert done.returncode == 0, done.stderr
    again = RunFolder(tmp_path / "again")
    assert [record["round"] for record in records(again)] == [0, 1]
    assert ended(again)["ending"] == "all_rounds"
    assert again.read_run()["source"] == {"run": failed.run_id, "relation": "retry"}
    assert adapter_bytes(again)
    assert [event["event"] for event in journal(failed)] == ["started", "ended"]  # the old one stays what it was


def test_a_continuation_starts_from_the_adapter_with_changes_with_changes(tmp_path):
    done = run_that(tmp_path / "done", "completed", "all_rounds")
    with pytest.raises(Conflict, match="no longer in"):
        derived_runs.continued(str(done.path), {})
    done.adapter_path.mkdir()
    made = derived_runs.continued(str(done.path), {"rounds": "7"})
    assert (made.config.start_from.adapter, made.config.rl.rounds) == (done.run_id, 7)
    assert made.origin == Origin(done.run_id, "continue")
    failed = run_that(tmp_path / "failed", "failed", "error")
    with pytest.raises(Conflict, match="retry"):
        derived_runs.continued(str(failed.path), {})


def test_a_trial_is_not_continued(tmp_path):
    trial = run_that(tmp_path / "trial", "completed", "all_rounds")
    trial.write_run({**trial.read_run(), "kind": "trial"})
    with pytest.raises(Conflict, match="is a trial"):
        derived_runs.continued(str(trial.path), {})


def test_a_draft_is_saved_launched_and_used_up(tmp_path):
    done = run_that(tmp_path / "done", "completed", "all_rounds")
    draft = derived_runs.duplicate(str(done.path), {"seed": "5"})
    assert [one.id for one in drafts()] == [draft.id]
    assert drafts()[0].folder is None
    assert draft.config.seed == 5
    again = derived_runs.duplicate(draft.id, {"seed": "6"})
    assert again.config.seed == 6
    made = derived_runs.launching(draft.id)
    launched = new_run(made.config, tmp_path / "launched", origin=made.origin)
    assert [one.id for one in drafts()] == [again.id]
    assert launched.read_run()["source"] == {"run": done.run_id, "relation": "duplicate"}
    with pytest.raises(Conflict, match="launched or dropped meanwhile"):
        new_run(made.config, tmp_path / "again", origin=made.origin)
    assert not (tmp_path / "again").exists()
    with pytest.raises(NotFound):
        derived_runs.launching(draft.id)
    derived_runs.drop(again.id)
    assert drafts() == []


def test_only_a_draft_is_launched_or_dropped(tmp_path):
    done = run_that(tmp_path / "done", "completed", "all_rounds")
    for action in (derived_runs.launching, derived_runs.drop):
        with pytest.raises(Conflict, match="only a draft can be"):
            action(str(done.path))


def test_a_draft_that_could_not_start_is_not_saved(tmp_path):
    done = run_that(tmp_path / "done", "completed", "all_rounds")
    with pytest.raises(InvalidSetting, match="Max answer tokens"):
        derived_runs.duplicate(str(done.path), {"max_answer_tokens": "600"})
    assert drafts() == []


def test_what_followed_from_a_setting_that_changes_follows_the_new_one():
    stored = small().resolved()
    assert with_changes(stored, {}).resolved() == stored
    dapo = with_changes(stored, {"loss": "dapo"}).resolved().rl
    assert (dapo.clip_high, dapo.dynamic_sampling) == (0.28, "refill")
    kept = with_changes(small(clip_high=0.5).resolved(), {"loss": "dapo"}).resolved().rl
    assert kept.clip_high == 0.5
    usual = build({"data": {"source": "math_pairs"}}).resolved()
    assert with_changes(usual, {"objective": "sft"}).rate == 2e-4
    assert with_changes(usual, {"objective": "sft", "learning_rate": "1e-3"}).rate == 1e-3
    other = with_changes(usual, {"data.source": "reasoning_gym", "data.task": "basic_arithmetic"}).resolved()
    assert (other.data.source, other.verifier.kind) == ("reasoning_gym", "reasoning_gym")
    numeric = with_changes(usual, {"verifier.kind": "numeric"}).resolved()
    assert (numeric.verifier.kind, numeric.reward.format_bonus) == ("numeric", "off")


def test_the_commands_speak_to_machines(ratchet_command, tmp_path):
    done = run_that(tmp_path / "done", "completed", "all_rounds")
    code, out, _ = ratchet_command("runs", "duplicate", done.path, "--rounds", "2", "--json")
    told = json.loads(out)
    assert (code, told["status"], told["config"]["rl"]["rounds"]) == (0, "draft", 2)
    assert ratchet_command("runs", "drop", told["run"], "--json")[0] == 0
    code, out, _ = ratchet_command("runs", "drop", told["run"], "--json")
    assert (code, json.loads(out)["error"]["code"]) == (3, "not_found")
    code, out, _ = ratchet_command("runs", "retry", done.path, "--json")
    assert (code, json.loads(out)["error"]["code"]) == (3, "conflict")


def test_a_length_or_a_preset_that_changes_takes_the_place_of_the_other():
    stored = build({}).resolved()
    assert (with_changes(stored, {"max_steps": "10"}).rl.max_steps, stored.rl.rounds) == (10, 20)
    hosted = with_changes(stored, {"preset": "hosted_steps"}).resolved()
    assert (hosted.preset, hosted.rl.max_steps, hosted.rl.prompts_per_round, hosted.rate) == (
        "hosted_steps",
        100,
        1,
        1e-6,
    )
    assert with_changes(hosted, {"objective": "sft"}).rate == 2e-4
    assert with_changes(hosted, {"rounds": "3"}).rl.max_steps is None
