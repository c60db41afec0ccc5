"""Loops as the conductor carries them out, over faked jobs: what is started, on which questions, and how it ends."""

import json
import shutil
from contextlib import closing

import pytest

from ratchet.errors import Conflict, DiskFull, IncompatibleData, InvalidSetting, NotFound
from ratchet.evaluation.evaluation_files import EvaluationFiles
from ratchet.evaluation.loop import LoopReport
from ratchet.evaluation.loop_decisions import real_gains
from ratchet.files import ratchet_home
from ratchet.run.endings import AT_WORK
from ratchet.run.run_folder import RunFolder
from ratchet.service.jobs import loops
from ratchet.service.jobs.loops import Loop, create_loop
from ratchet.service.runs import scheduling
from ratchet.store import Database, RunStore
from tests.conducted import (
    QUESTIONS,
    enter_loop,
    find_loop,
    list_loops,
    loop_spec,
    pairs,
    resume_loop,
    spec_of,
    start_of,
    stop_loop,
)
from tests.repeated import matrix


def start(changes=None, **settings):
    """Enter a loop on a benchmark of few questions; return its id."""
    return enter_loop(changes, **settings).id


def ended(stage, id):
    return stage.until_ended(lambda: find_loop(id))


def scored(number):
    return [f"{number}/train", f"{number}/score"]


def jobs(stage, id):
    return stage.steps(f"loop/{id}")


def asked(run):
    """Return the numbers of the questions that a job has answered."""
    return tuple(one.question for one in EvaluationFiles(RunFolder(run.folder)).questions())


# --- what is done ----------------------------------------------------------------------------------------------------


def test_each_round_is_on_top_of_the_best_and_the_held_out_half_is_evaluated_once_for_start_and_winner(stage):
    id = start({"seed": 5}, target_percent=80)
    stage.shares = {"0": 0.4, "1": 0.6, "2": 0.5, "3": 0.9, "0/sealed": 0.45, "3/sealed": 0.8}
    one = ended(stage, id)
    assert stage.order == ["0/score", *scored(1), *scored(2), *scored(3), "0/sealed", "3/sealed"]
    found = {step: run for step, (run,) in jobs(stage, id).items()}
    selection, held_out = one.spec.halves()
    assert sorted(selection + held_out) == list(range(1, QUESTIONS + 1))
    for step, run in found.items():
        if "train" not in step:
            assert asked(run) == spec_of(run).only == (held_out if "sealed" in step else selection)
    for number, best in ((1, ""), (2, found["1/train"].id), (3, found["1/train"].id)):
        run = found[f"{number}/train"]
        assert (start_of(run), run.source_run or "", run.config.seed) == (best, best, 5 + number)
        assert run.config.data.heldout == 0  # the benchmark scores it
        assert spec_of(found[f"{number}/score"]).subject.run == run.id
        assert spec_of(found[f"{number}/score"]).subject.sha256 == run.adapter_sha256
    assert {spec_of(found[step]).subject.kind for step in ("0/score", "0/sealed")} == {"base"}
    assert spec_of(found["3/sealed"]).subject.run == found["3/train"].id
    assert len({json.dumps(spec_of(run).setup) for step, run in found.items() if "train" not in step}) == 1
    stored = one.stored
    assert stored.status == "target_reached"
    report = LoopReport.model_validate(stored.report)
    assert (report.best, report.chosen_from, report.target_on_selection, report.target_on_held_out) == (
        3,
        4,
        True,
        True,
    )
    assert (report.selection_best.value, report.held_out.start.value, report.held_out.best.value) == (0.9, 0.45, 0.8)
    assert "The target of 80 % was reached by round 3." in stored.message
    assert "Round 3 is better than the start: 80.0 % against 45.0 %" in stored.message
    assert [view.percent for view in one.view.rounds] == [pytest.approx(share) for share in (40, 60, 50, 90)]
    assert [view.on_top_of for view in one.view.rounds] == [None, 0, 1, 1]
    assert one.run_of(0) is None
    assert one.evaluation_of(3).id == found["3/score"].id


def test_a_start_that_is_good_enough_trains_nothing(stage):
    id = start(target_percent=50)
    stage.shares = {"0": 0.5}
    one = ended(stage, id)
    assert stage.order == ["0/score", "0/sealed"]
    assert (one.stored.status, one.report.best, one.report.held_out) == ("target_reached", 0, None)
    assert "reached by the start, before any training" in one.stored.message
    assert "No round was trained and scored, so there is no gain to report." in one.stored.message


def test_the_status_says_what_is_at_work(stage):
    id = start(target_percent=60)
    stage.shares = {"0": 0.4, "1": 0.6}
    seen = [find_loop(id).stored.status]
    for _ in range(6):
        stage.pass_()
        seen.append(find_loop(id).stored.status)
        stage.pass_()  # a pass while a job is at work changes nothing
        assert find_loop(id).stored.status == seen[-1]
        stage.work()
    assert seen == ["queued", "benchmarking", "training", *["benchmarking"] * 3, "target_reached"]
    assert [line.split(": ")[1].split(". ")[0] for line in stage.said] == [
        "benchmarking.",
        "training.",
        "benchmarking.",
        "target reached",
    ]


@pytest.mark.parametrize("half", ["selection", "held_out"])
def test_a_loop_that_spends_its_rounds_or_is_no_better_is_reported_too(stage, half):
    id = start(max_rounds=1)
    stage.shares = {"0": 0.4, "1": 0.6} if half == "selection" else {"0": 0.4, "1": 0.3}
    one = ended(stage, id)
    best = 1 if half == "selection" else 0
    assert (one.stored.status, one.report.best) == ("rounds_spent", best)
    assert stage.order[-1] == f"{best}/sealed"
    assert sum("sealed" in step for step in stage.order) == best + 1


def test_a_plateau_ends_a_loop_and_the_held_out_half_says_what_the_best_is_worth(stage):
    id = start(patience=1)
    stage.shares = {"0": 0.5, "1": 0.4}
    one = ended(stage, id)
    assert (one.stored.status, one.report.best) == ("plateaued", 0)
    assert "1 round without gain" in one.stored.message


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_run_that_stopped_early_with_an_adapter_is_benchmarked(stage):
    id = start(target_percent=60)
    stage.shares, stage.ends = {"0": 0.4, "1": 0.6}, {"1/train": ["early"]}
    one = ended(stage, id)
    assert (one.stored.status, one.run_of(1).status) == ("target_reached", "stopped_early")


def test_an_evaluation_that_fails_is_begun_once_more_and_then_the_round_is_unscored(stage):
    id = start(target_percent=60)
    stage.shares, stage.ends = {"0": 0.4, "2": 0.6}, {"1/score": ["failed", "failed"], "2/score": ["failed"]}
    one = ended(stage, id)
    assert stage.order == [
        *("0/score", "1/train", "1/score", "1/score", "2/train", "2/score", "2/score", "0/sealed", "2/sealed")
    ]
    assert [view.state for view in one.view.rounds] == ["scored", "unscored", "scored"]
    assert start_of(one.run_of(2)) == ""  # on top of the best one that has a score
    assert (one.stored.status, one.report.best, one.report.chosen_from) == ("target_reached", 2, 2)


def test_a_start_that_cannot_be_benchmarked_fails_the_loop(stage):
    id = start()
    stage.ends = {"0/score": ["failed", "failed"]}
    one = ended(stage, id)
    assert (one.stored.status, stage.order) == ("failed", ["0/score", "0/score"])
    assert "The start could not be evaluated in 2 tries." in one.stored.message


def test_a_held_out_half_that_cannot_be_asked_is_said_and_nothing_is_claimed(stage):
    id = start(target_percent=50)
    stage.ends = {"0/sealed": ["failed", "failed"]}
    one = ended(stage, id)
    assert (one.stored.status, one.report, stage.order) == ("target_reached", None, ["0/score"] + ["0/sealed"] * 2)
    assert one.stored.message.endswith("The held-out half of the benchmark could not be evaluated.")


def test_a_start_whose_answers_could_not_be_graded_is_nothing_to_gain_over(stage):
    id = start(max_rounds=2)
    stage.shares = {"0": 0.6, "1": 0.9, "2": 0.4, "0/sealed": 0.4, "1/sealed": 0.9}
    stage.ungraded = {"0/score": 0.4}
    one = ended(stage, id)
    assert [bool(entry.withheld) for entry in one.history] == [True, False, False]
    assert real_gains(one.spec.settings, one.history) == {}
    assert [view.best for view in one.view.rounds] == [False, True, False]
    assert "No verdict is given on the start, so no gain over it can be claimed: The verifier failed on 8 of 20 an" in (
        one.stored.message
    )
    assert (one.report.best, one.report.held_out.verdict, one.report.selection_bias) == (1, "better", None)


def test_a_round_whose_answers_could_not_be_graded_reaches_no_target_and_is_not_trained_on(stage):
    id = start(target_percent=60, max_rounds=2)
    stage.shares, stage.ungraded = {"0": 0.4, "1": 0.8, "2": 0.5}, {"1/score": 0.2}
    one = ended(stage, id)
    assert (one.stored.status, one.report.best, one.report.chosen_from) == ("rounds_spent", 2, 2)
    assert start_of(one.run_of(2)) == ""
    assert "No verdict is given on round 1: The verifier failed on 4 of 20 answers" in one.stored.message
    assert one.view.rounds[1].withheld


def test_nothing_is_claimed_of_a_held_out_half_that_could_not_be_graded(stage):
    id = start(target_percent=60)
    stage.shares, stage.ungraded = {"0": 0.1, "1": 0.9}, {"0/sealed": 0.2, "1/sealed": 0.2}
    one = ended(stage, id)
    report = one.report
    assert (one.stored.status, report.held_out.verdict, report.target_on_held_out, report.selection_bias) == (
        "target_reached",
        "withheld",
        None,
        None,
    )
    assert "No verdict: The verifier failed on 4 of 20" in one.stored.message


def test_two_failed_runs_in_a_row_fail_a_loop_and_one_does_not(stage):
    id = start(max_rounds=9)
    stage.shares = {"0": 0.4, "2": 0.6}
    stage.ends = {step: ["failed"] for step in ("1/train", "3/train", "4/train")}
    one = ended(stage, id)
    assert stage.order == ["0/score", "1/train", *scored(2), "3/train", "4/train"]
    assert [view.state for view in one.view.rounds] == ["scored", "failed", "scored", "failed", "failed"]
    assert start_of(one.run_of(4)) == one.run_of(2).id
    assert (one.stored.status, one.report) == ("failed", None)
    assert "The runs of rounds 3 and 4 both ended without an adapter." in one.stored.message
    assert "The held-out half of the benchmark was not evaluated." in one.stored.message


def test_what_nobody_has_foreseen_ends_one_loop_in_words_and_the_others_go_on(stage, monkeypatch):
    broken, sound = start(), create_loop(loop_spec(pairs(), target_percent=50)).id
    real = loops.decide

    def decide(settings, history, *, stop_requested):
        if settings.target_percent is None:
            raise ZeroDivisionError("zebrafish")
        return real(settings, history, stop_requested=stop_requested)

    monkeypatch.setattr(loops, "decide", decide)
    ended(stage, sound)
    stored = find_loop(broken).stored
    assert (stored.status, find_loop(sound).stored.status) == ("failed", "target_reached")
    assert stored.message == "Internal error (ZeroDivisionError); see the scheduler's log."
    assert "zebrafish" not in str(stage.said)
    assert any(stored.message in line for line in stage.said)


def test_a_step_that_cannot_be_started_ends_the_loop_in_the_words_of_its_fault(stage):
    id = start(target_percent=60)
    stage.pass_()
    shutil.rmtree(ratchet_home() / "benchmarks")
    stage.pass_()
    with closing(Database()) as database:
        stored = RunStore(database).loops.get(id)
    assert stored.status == "failed"
    assert "Add it again" in stored.message


def test_what_is_at_work_is_asked_to_stop_where_a_loop_ends_by_a_fault(stage, monkeypatch):
    id = start(target_percent=60)
    stage.pass_()

    def broken(*arguments, **options):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(loops, "decide", broken)
        stage.pass_()
    assert find_loop(id).stored.status == "failed"
    assert not stage.store.all(statuses=["queued", *AT_WORK])
    resume_loop(id)
    stage.shares = {"0": 0.4, "1": 0.6}
    assert ended(stage, id).stored.status == "target_reached"
    assert len(jobs(stage, id)["0/score"]) == 1


@pytest.mark.parametrize("fault", [DiskFull("The disk is full."), Conflict("It is taken."), OSError(5, "broken")])
def test_what_is_of_the_moment_is_said_once_and_waited_for(stage, monkeypatch, fault):
    id = start(target_percent=50)

    def refused(request):
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(loops, "queue_evaluation", refused)
        stage.pass_()
        stage.pass_()
    assert len([line for line in stage.said if "waits: " in line]) == 1
    assert find_loop(id).stored.ended_at is None
    assert ended(stage, id).stored.status == "target_reached"


def test_a_conflict_that_does_not_pass_ends_the_loop_in_its_words(stage):
    id = start(target_percent=90)
    stage.shares = {"0": 0.4, "1": 0.6}
    for _ in range(3):
        stage.pass_()
        stage.work()
    weights = find_loop(id).run_of(1).folder / "adapter/adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x3f")
    clock = [0.0]
    stage.conductor.now = lambda: clock[0]
    for at in (0, 599):
        clock[0] = at
        stage.pass_()
        assert find_loop(id).stored.ended_at is None
    clock[0] = 600
    stage.pass_()
    stored = find_loop(id).stored
    assert stored.status == "failed"
    assert "It was changed or damaged since." in stored.message
    assert len([line for line in stage.said if "waits: " in line]) == 1


def test_a_loop_whose_answers_are_gone_fails_in_words_and_hides_no_other_one(stage, caplog):
    broken = start(target_percent=90)
    sound = create_loop(loop_spec(target_percent=50)).id
    stage.shares = {"0": 0.5}
    ended(stage, sound)
    (job,) = jobs(stage, broken)["0/score"]
    if job.status == "queued":
        stage.work()
    shutil.rmtree(job.folder)
    stage.pass_()
    with pytest.raises(NotFound, match=f"The answers of evaluation {job.id} are no longer in"):
        find_loop(broken)
    assert [one.stored.id for one in list_loops()] == [sound]
    assert broken in caplog.text
    stored = stage.store.loops.get(broken)
    assert (stored.status, "its round has no score" in stored.message) == ("failed", True)


def test_loops_of_another_home_are_left_alone(stage):
    spec = loop_spec().model_copy(update={"home": "/somewhere/else"})
    id = create_loop(spec).id
    stage.pass_()
    assert (find_loop(id).stored.status, jobs(stage, id)) == ("queued", {})


# --- stop and resume -------------------------------------------------------------------------------------------------


def test_a_loop_that_was_stopped_before_anything_began_has_nothing_and_goes_on_later(stage):
    id = start(target_percent=50)
    stop_loop(id)
    stage.pass_()
    stored = find_loop(id).stored
    assert (stored.status, jobs(stage, id)) == ("stopped", {})
    assert "Stopped on request" in stored.message
    resume_loop(id)
    one = ended(stage, id)
    assert (one.stored.status, stage.order) == ("target_reached", ["0/score", "0/sealed"])


# Every step, and every state of a step; all of both in the long tests.
STOPPED_AT = [
    *matrix(
        ("0/score", "1/train", "1/score", "0/sealed", "1/sealed"),
        ("queued", "begun"),
        ci=lambda step, begun: begun == ("begun" if step in ("1/train", "0/sealed") else "queued"),
    ),
    ("1/train", "with adapter"),
]


@pytest.mark.parametrize(("step", "begun"), STOPPED_AT)
def test_a_loop_that_is_stopped_goes_on_with_the_same_jobs(stage, step, begun):
    id = start(target_percent=60)
    stage.shares = {"0": 0.4, "1": 0.6}
    for _ in range(20):
        stage.pass_()
        if step in jobs(stage, id):
            break
        stage.work()
    while begun != "queued" and jobs(stage, id)[step][0].status == "queued":
        run = stage.begin()
        if run.owner.startswith(f"loop/{id}/{step}/"):
            break
        stage.finish(run)
    if begun == "with adapter":
        stage.first_round(stage.store.get(jobs(stage, id)[step][0].id))
    stop_loop(id)
    before = {name: [run.id for run in found] for name, found in jobs(stage, id).items()}
    for _ in range(4):
        stage.pass_()
        stage.stop_at_work()
    one = find_loop(id)
    assert (one.stored.status, one.report) == ("stopped", None)
    assert "Stopped on request" in one.stored.message
    assert not stage.store.all(statuses=["queued", *AT_WORK])
    assert {name: [run.id for run in found] for name, found in jobs(stage, id).items()} == before
    stage.pass_()
    assert find_loop(id).stored == one.stored
    if begun == "with adapter":
        assert one.run_of(1).adapter_sha256
    resume_loop(id)
    assert find_loop(id).stored.status == "queued"
    done = ended(stage, id)
    assert (done.stored.status, done.report.best) == ("target_reached", 1)
    after = {name: [run.id for run in found] for name, found in jobs(stage, id).items()}
    assert {name: ids for name, ids in after.items() if name in before} == before
    assert sorted(after) == sorted(["0/score", "1/train", "1/score", "0/sealed", "1/sealed"])


def to_the_held_out_half(stage, id):
    """Take a loop to where both evaluations on its held-out half wait."""
    while "0/sealed" not in jobs(stage, id):
        stage.pass_()
        if "0/sealed" not in jobs(stage, id):
            stage.work()


def stopped_by_wish(stage, id):
    stop_loop(id)
    for _ in range(3):
        stage.pass_()
        stage.stop_at_work()
    return find_loop(id)


def test_a_wish_to_stop_that_comes_after_both_held_out_answers_is_too_late(stage):
    id = start(target_percent=60)
    stage.shares = {"0": 0.4, "1": 0.6}
    to_the_held_out_half(stage, id)
    assert stage.work()
    assert stage.work()
    one = stopped_by_wish(stage, id)
    assert (one.stored.status, one.report.best) == ("target_reached", 1)
    assert "Stopped on request" not in one.stored.message
    with pytest.raises(Conflict, match="already revealed; continuing would select on test data"):
        resume_loop(id, {"target_percent": 90.0})
    with pytest.raises(Conflict, match="already revealed; continuing would select on test data"):
        resume_loop(id)


@pytest.mark.parametrize("answered", [0, 1])
def test_a_loop_that_is_stopped_while_its_held_out_half_is_asked_resumes_to_the_same_winner_alone(stage, answered):
    id = start(target_percent=60)
    stage.shares = {"0": 0.4, "1": 0.6}
    to_the_held_out_half(stage, id)
    for _ in range(answered):
        assert stage.work()
    one = stopped_by_wish(stage, id)
    assert (one.stored.status, one.report) == ("stopped", None)
    assert "Stopped on request" in one.stored.message
    assert one.stored.message.endswith("was not fully evaluated. Resume to finish it.")
    with pytest.raises(Conflict, match=f"its winner is fixed.*ratchet loop resume {id}"):
        resume_loop(id, {"target_percent": 90.0})
    assert find_loop(id).stored == one.stored
    resume_loop(id, {"target_percent": 60.0})  # as it is
    done = ended(stage, id)
    assert (done.stored.status, done.report.best) == ("target_reached", 1)
    assert stage.order[-2:] == ["0/sealed", "1/sealed"]
    assert {step: len(found) for step, found in jobs(stage, id).items()} == {
        step: 1 for step in ("0/score", *scored(1), "0/sealed", "1/sealed")
    }


def test_no_round_is_tried_anew_once_the_held_out_half_was_asked(stage):
    """The last round failed: without the held-out half it would be begun again."""
    id = start(max_rounds=2)
    stage.shares, stage.ends = {"0": 0.4, "1": 0.6, "2": 0.9}, {"2/train": ["failed"]}
    to_the_held_out_half(stage, id)
    before = {step: [run.id for run in found] for step, found in jobs(stage, id).items()}
    assert stopped_by_wish(stage, id).stored.status == "stopped"
    resume_loop(id)
    one = ended(stage, id)
    assert (one.stored.status, one.report.best) == ("rounds_spent", 1)
    assert {step: [run.id for run in found] for step, found in jobs(stage, id).items()} == before


def test_a_process_that_is_gone_while_it_resumes_leaves_a_loop_that_can_be_gone_on_with(stage, monkeypatch):
    """The evaluations are in the queue again and the loop is stopped still: they end, and it closes as it would have."""
    id = start(target_percent=60)
    stage.shares = {"0": 0.4, "1": 0.6}
    to_the_held_out_half(stage, id)
    stopped_by_wish(stage, id)

    class Gone(BaseException):
        pass

    def gone(*arguments, **options):
        raise Gone

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "repeated_runs", gone)
        with pytest.raises(Gone):
            resume_loop(id)
    while stage.work():
        pass
    stage.pass_()
    assert find_loop(id).stored.status == "stopped"
    with pytest.raises(Conflict, match="its winner is fixed"):
        resume_loop(id, {"max_rounds": 20})
    resume_loop(id)
    one = ended(stage, id)
    assert (one.stored.status, one.report.best) == ("target_reached", 1)
    assert stage.order.count("1/sealed") == 1


def test_a_loop_does_not_end_while_what_it_asked_to_stop_is_at_work(stage):
    id = start(target_percent=50)
    stage.pass_()
    stage.work()
    stage.pass_()
    stage.begin()  # the held-out half
    stop_loop(id)
    stage.pass_()
    assert find_loop(id).stored.ended_at is None
    stage.stop_at_work()
    stage.pass_()
    assert find_loop(id).stored.status == "stopped"


def test_a_run_that_somebody_stopped_and_that_was_built_upon_is_not_gone_on_with(stage):
    id = start(target_percent=90)
    stage.shares = {"0": 0.4, "1": 0.6, "2": 0.9}
    for _ in range(2):
        stage.pass_()
        if "1/train" not in jobs(stage, id):
            stage.work()
    run = stage.begin()
    stage.first_round(run)
    scheduling.stop(run.id)  # the user stops the run, not the loop
    stage.stop_at_work()
    stage.pass_()
    stage.work()  # benchmarked
    stage.pass_()  # and the next one begins
    stop_loop(id)
    stage.pass_()
    stage.pass_()
    assert find_loop(id).stored.status == "stopped"
    before = stage.store.get(run.id)
    resume_loop(id)
    assert stage.store.get(run.id) == before
    one = ended(stage, id)
    assert (one.stored.status, [view.percent for view in one.view.rounds][1]) == ("target_reached", pytest.approx(60))


def test_what_failed_is_forgotten_when_a_failed_loop_goes_on(stage):
    id = start(target_percent=60, max_rounds=9)
    stage.shares = {"0": 0.4, "1": 0.6}
    stage.ends = {step: ["failed"] for step in ("1/train", "2/train")}
    one = ended(stage, id)
    lost = [one.run_of(number).id for number in (1, 2)]
    resume_loop(id)
    assert {stage.store.get(run).owner for run in lost} == {None}
    again = find_loop(id)
    assert (again.stored.status, again.stored.message, again.stored.report) == ("queued", "", None)
    assert (again.stored.ended_at, len(again.view.rounds)) == (None, 1)
    done = ended(stage, id)
    assert (done.stored.status, done.run_of(1).status) == ("target_reached", "completed")
    assert done.run_of(1).id not in lost
    assert len([run for run in stage.store.all() if run.kind == "full"]) == 3


def test_a_start_that_could_not_be_benchmarked_is_tried_anew(stage):
    id = start(target_percent=50)
    stage.ends = {"0/score": ["failed", "failed"]}
    ended(stage, id)
    resume_loop(id)
    assert ended(stage, id).stored.status == "target_reached"


def test_a_loop_that_has_come_to_its_end_is_not_gone_on_with_and_it_is_said_why(stage):
    id = start(target_percent=50)
    ended(stage, id)
    with pytest.raises(Conflict, match=r"already revealed.*Start a new loop from its best adapter"):
        resume_loop(id, {"max_rounds": 20})
    with pytest.raises(Conflict, match=r"has already ended \(target reached\)"):
        stop_loop(id)


def test_a_loop_that_is_open_is_not_resumed(stage):
    id = start()
    with pytest.raises(Conflict, match="it continues by itself while ratchet serve runs"):
        resume_loop(id)


def test_a_loop_goes_on_with_the_limits_that_are_given(stage):
    id = start(target_percent=90, max_rounds=3)
    stop_loop(id)
    stage.pass_()
    resume_loop(id, {"target_percent": 50.0, "max_rounds": 4})
    settings = find_loop(id).spec.settings
    assert (settings.target_percent, settings.max_rounds) == (50, 4)
    assert ended(stage, id).stored.status == "target_reached"


def test_what_is_not_there_is_said():
    for do in (find_loop, stop_loop, resume_loop):
        with pytest.raises(NotFound, match="There is no loop nothing"):
            do("nothing")


# --- what a loop is entered with -------------------------------------------------------------------------------------


def test_a_loop_has_a_name_and_a_column_and_is_listed_by_its_project(stage):
    first, second = start({"project": "sums"}), create_loop(loop_spec(pairs(), name="mine")).id
    assert [one.stored.id for one in list_loops()] == [first, second]
    assert [one.stored.id for one in list_loops("sums")] == [first]
    names = [one.stored.name for one in list_loops()]
    assert names == ["pairs, tiny", "mine"]
    assert find_loop(first).spec.settings.score_column == "accuracy"


def test_a_column_that_the_benchmark_has_not_and_a_benchmark_that_is_not_there_are_refused():
    with pytest.raises(InvalidSetting, match="Score column is style, but benchmark pairs has accuracy"):
        start(score_column="style")
    with pytest.raises(NotFound):
        create_loop(loop_spec("0" * 64))
    assert list_loops() == []


def test_a_loop_whose_rows_are_questions_of_the_benchmark_is_refused_before_anything_is_measured():
    of_few_numbers = pairs(largest=3, heldout=8, seed=2)
    with pytest.raises(IncompatibleData, match=r"questions are rows that the run would be trained or selected on"):
        create_loop(loop_spec(of_few_numbers, {"data__largest": 3, "data__prompts": 12, "validation_prompts": 4}))
    assert list_loops() == []


def test_a_loop_whose_start_was_trained_on_questions_of_the_benchmark_is_refused(stage):
    few = {"data__largest": 3, "data__prompts": 12, "validation_prompts": 4}
    first = start(few, target_percent=60)
    stage.shares = {"0": 0.4, "1": 0.6}
    run = ended(stage, first).run_of(1)
    RunFolder(run.folder).write_row_keys([])  # as a worker does, of its rows; Math Pairs are made anew besides
    count, of_few_numbers = len(list_loops()), pairs("few", largest=3, heldout=8, seed=2)  # kept later than the run
    elsewhere = {"start_from": run.id, "data__smallest": 4}
    with pytest.raises(
        IncompatibleData, match=rf"of the 8 questions are rows that run {run.id} was trained or selected on.*"
    ) as told:
        create_loop(loop_spec(of_few_numbers, elsewhere))
    assert str(told.value).endswith("Or start from another adapter, or from the base model.")
    assert len(list_loops()) == count
    assert create_loop(loop_spec(pairs(), {"start_from": run.id})).status == "queued"


def test_a_benchmark_of_one_question_has_no_two_halves():
    with pytest.raises(InvalidSetting, match=r"Benchmark pairs has 1 question\. A loop needs 2 at least"):
        create_loop(loop_spec(pairs(heldout=1)))


def test_a_column_that_no_answer_of_these_settings_has_is_refused():
    """Without a form that is asked for, no answer is scored by its form."""
    with pytest.raises(InvalidSetting, match="Score column is format"):
        start(score_column="format")


def test_a_loop_may_begin_with_an_adapter_and_by_another_column(stage):
    first = start(target_percent=60)
    stage.shares = {"0": 0.4, "1": 0.6}
    run = ended(stage, first).run_of(1)
    stage.order.clear()
    id = create_loop(
        loop_spec(pairs(), {"start_from": run.id}, target_percent=100.0, score_column="answered", seed=1)
    ).id
    one = ended(stage, id)
    assert stage.order == ["0/score", "0/sealed"]  # every answer is one
    (job,) = jobs(stage, id)["0/score"]
    assert (spec_of(job).subject.run, spec_of(job).subject.sha256) == (run.id, run.adapter_sha256)
    assert one.report.held_out_score.name == "answered"
    assert one.spec.halves() != find_loop(first).spec.halves()


@pytest.mark.slow
def test_merged_exports_of_rounds_that_are_not_the_best_are_removed_and_adapters_never(stage):
    for keeps in (False, True):
        stage.order.clear()
        id = create_loop(loop_spec(pairs(), target_percent=60, reclaims_storage=not keeps)).id
        stage.shares = {"0": 0.4, "1": 0.5, "2": 0.6}
        for _ in range(5):
            stage.pass_()
            stage.work()
        folders = [find_loop(id).run_of(number).folder for number in (1, 2)]
        for folder in folders:
            (folder / "merged").mkdir()
        ended(stage, id)
        assert [(folder / "merged").exists() for folder in folders] == [keeps, True]
        assert all((folder / "adapter").is_dir() for folder in folders)
