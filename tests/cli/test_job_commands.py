"""``ratchet loop``, ``experiment``, ``replicate`` and ``compare`` in this process: what is told, and how they end."""

import json
from contextlib import ExitStack

import pytest

from ratchet.supervisor.scheduler import SchedulerHome

from ..conducted import (
    CONFIRMED,
    enter_experiment,
    enter_loop,
    find_experiment,
    find_loop,
    list_experiments,
    list_loops,
    pairs,
    stop_loop,
)
from ..small_runs import flags

NO_SCHEDULER = "The scheduler is not running. Start it: ratchet serve"


@pytest.fixture
def loop(stage):
    """A loop that has reached its target in its first round."""
    id = enter_loop({"project": "sums"}, name="mine [bold]", target_percent=60.0).id
    stage.shares = {"0": 0.4, "1": 0.6}
    return stage.until_ended(lambda: find_loop(id))


@pytest.fixture
def experiment(stage):
    """An experiment that is done."""
    id = enter_experiment(changes={"project": "sums"}, name="mine [bold]").id
    stage.shares = {"start": 0.3, "score": 0.8}
    return stage.until_ended(lambda: find_experiment(id))


def job(one, step):
    return one.steps.last(step).id


def last(text):
    return json.loads(text.splitlines()[-1])


# --- loops -----------------------------------------------------------------------------------------------------------


def test_a_loop_is_left_to_the_scheduler_and_says_where_none_is_running(ratchet_command, loop, stage):
    run = job(loop, "1/train")
    start = ("loop", "start", run, "-b", "pairs", "--queue")
    code, out, _ = ratchet_command(*start, "--target", "90", "--give-up-after", "3")
    assert (code, out.splitlines()[-1]) == (0, NO_SCHEDULER)
    assert "is queued." in out
    with SchedulerHome().held():
        code, out, _ = ratchet_command(*start, "--target", "90", "--max-rounds", "3", "--json", "--from-adapter")
        assert NO_SCHEDULER not in out
    told = last(out)
    assert (code, told["status"], told["max_rounds"], told["target_percent"]) == (0, "queued", 3, 90)
    assert find_loop(told["loop"]).spec.config.start_from.adapter == run
    assert find_loop(told["loop"]).spec.source_run == run
    assert find_loop(told["loop"]).spec.confirmation == CONFIRMED


@pytest.mark.slow
def test_a_loop_starts_from_flags_and_from_a_file_alone(ratchet_command, tmp_path, stage):
    pairs()
    start = ("loop", "start", "-b", "pairs", "--queue", "--json")
    code, out, err = ratchet_command(*start, "--model", "tiny", *flags(rounds=2), "--split-seed", "4")
    assert code == 0, err
    plan = find_loop(last(out)["loop"]).spec
    assert (plan.settings.seed, plan.config.rl.rounds, plan.source_run) == (4, 2, None)
    assert plan.confirmation
    file = tmp_path / "settings.json"
    file.write_text(plan.config.model_dump_json())
    code, out, err = ratchet_command(*start, file, "--inspected", "--rounds", "3", "--keep-merged")
    assert code == 0, err
    plan = find_loop(last(out)["loop"]).spec
    assert (plan.config.rl.rounds, plan.settings.reclaims_storage) == (3, False)


def test_a_loop_is_shown_listed_and_written_to_a_page(ratchet_command, loop, tmp_path):
    code, out, _ = ratchet_command("loop", "show", loop.stored.id)
    assert code == 0
    for words in ("mine [bold]", "target reached", "60.0% (round 1, +20.0 points over the start)", "1 of at most 8"):
        assert words in out
    assert "Round 1 is within the noise of the start" in " ".join(out.split())
    page, chart = tmp_path / "loop.html", tmp_path / "loop.png"
    code, out, _ = ratchet_command("loop", "show", loop.stored.id, "--json", "--report", page, "--chart", chart)
    told = json.loads(out.splitlines()[0])
    assert (code, told["status"], told["best"], told["report"]["best"]) == (0, "target_reached", 1, 1)
    assert [one["percent"] for one in told["rounds"]] == pytest.approx([40, 60])
    assert told["rounds"][1]["run"] == job(loop, "1/train")
    assert told["rounds"][1]["evaluation"] == job(loop, "1/score")
    assert "mine [bold]" in page.read_text()
    assert chart.read_bytes().startswith(b"\x89PNG")
    code, out, _ = ratchet_command("loop", "list", "--project", "sums", "--json")
    assert [one["loop"] for one in json.loads(out)["loops"]] == [loop.stored.id]
    code, out, _ = ratchet_command("loop", "list")
    assert (code, loop.stored.id in out, "target reached" in out) == (0, True, True)
    assert ratchet_command("loop", "list", "--project", "none")[1] == "None.\n"


def test_a_loop_without_a_verdict_claims_nothing_in_the_terminal(ratchet_command, stage):
    id = enter_loop(target_percent=50.0, max_rounds=1).id
    stage.ungraded = {"0/score": 0.4, "1/score": 0.4}
    stage.until_ended(lambda: find_loop(id))
    code, out, _ = ratchet_command("loop", "show", id)
    marked = [line for line in out.splitlines() if line.rstrip().endswith("no verdict")]
    assert (code, len(marked), "BEST" in out, "target reached" in out) == (0, 2, False, False)
    assert "none: no verdict was given" in out
    assert "so no gain over it can be claimed: The verifier failed on 8 of 20 answers" in " ".join(out.split())


def test_without_loops_it_is_said_how_to_start_one(ratchet_command):
    assert ratchet_command("loop", "list")[1] == "No loops yet. Start one with ratchet loop start.\n"
    assert ratchet_command("experiment", "list")[1].startswith("No experiments yet.")


def test_a_loop_is_stopped_and_gone_on_with(ratchet_command, loop, stage):
    run = job(loop, "1/train")
    started = ratchet_command("loop", "start", run, "-b", "pairs", "--queue", "--json")[1]
    id = last(started)["loop"]
    code, out, _ = ratchet_command("loop", "stop", id, "--json")
    assert (code, json.loads(out)) == (0, {"loop": id, "stop": "asked"})
    stage.pass_()
    code, out, _ = ratchet_command("loop", "resume", id, "--target", "70", "--queue")
    assert (code, NO_SCHEDULER in out) == (0, True)
    found = find_loop(id)
    assert (found.stored.status, found.spec.settings.target_percent, found.spec.settings.max_rounds) == (
        "queued",
        70,
        8,
    )
    code, _, err = ratchet_command("loop", "resume", loop.stored.id)
    assert (code, "Start a new loop from its best adapter" in err) == (3, True)
    code, _, err = ratchet_command("loop", "stop", loop.stored.id)
    assert (code, "has already ended (target reached)" in err) == (3, True)


def test_a_loop_with_settings_that_cannot_be_is_refused_and_not_entered(ratchet_command, loop):
    count = len(list_loops())
    for given, words in (
        (("--target", "0"), "target"),
        (("--target", "101"), "target"),
        (("--target", "much"), "target"),
        (("--give-up-after", "0"), "Patience"),
        (("--max-rounds", "0"), "Max rounds"),
        (("--split-seed", "-1"), "seed"),
        (("--score-column", "style"), "Score column is style"),
        (("--score-column", "format"), "Score column is format"),
        (("-b", "nothing"), "nothing"),
    ):
        code, out, err = ratchet_command("loop", "start", job(loop, "1/train"), "-b", "pairs", "--queue", *given)
        assert code in (2, 3), (given, out)
        assert words.casefold() in err.casefold(), given
    assert len(list_loops()) == count


def test_sources_that_are_none_are_refused(ratchet_command, loop):
    code, _, err = ratchet_command("loop", "start", "nothing", "-b", "pairs", "--queue")
    assert (code, "There is no run nothing" in err) == (3, True)
    code, _, err = ratchet_command("loop", "start", "-b", "pairs", "--queue", "--from-adapter")
    assert (code, "--from-adapter goes with a run" in err) == (2, True)
    code, _, err = ratchet_command("loop", "start", job(loop, "0/score"), "-b", "pairs", "--queue")
    assert (code, "is an evaluation, not a full run" in err) == (3, True)
    code, _, err = ratchet_command("loop", "start", job(loop, "1/train"), "--queue")
    assert (code, "--benchmark" in err) == (2, True)
    for name in ("show", "stop", "resume"):
        code, _, err = ratchet_command("loop", name, "nothing")
        assert (code, "There is no loop nothing" in err) == (3, True)
        code, _, err = ratchet_command("experiment", name, "nothing")
        assert (code, "There is no experiment nothing" in err) == (3, True)


def test_a_command_that_follows_a_scheduler_takes_over_where_that_ends(ratchet_command, loop, stage, monkeypatch):
    """The scheduler may be another command that works only until its own loop has ended."""
    started = ratchet_command("loop", "start", job(loop, "1/train"), "-b", "pairs", "--queue", "--json")[1]
    id = last(started)["loop"]
    held = ExitStack()
    held.enter_context(SchedulerHome().held())
    served = []

    def serve(*, show, until_ended):
        served.append(until_ended)
        stop_loop(until_ended)
        stage.pass_()

    monkeypatch.setattr("ratchet.cli.interrupts.time.sleep", lambda seconds: held.close())
    monkeypatch.setattr("ratchet.cli.job_commands.serve_runs", serve)
    stop_loop(id)
    stage.pass_()
    code, out, _ = ratchet_command("loop", "resume", id)
    assert (code, served) == (0, [id])
    assert "The scheduler does the work" in out
    assert "this command does the work" in out
    assert "Status     stopped" in out


# --- experiments -----------------------------------------------------------------------------------------------------


def test_an_experiment_is_left_to_the_scheduler(ratchet_command, experiment):
    run, baseline = job(experiment, "train/0"), job(experiment, "start/0")
    start = ("experiment", "start", run, "-b", "pairs", "--queue")
    code, out, _ = ratchet_command(*start, "--seeds", "2", "--reuse-baseline", baseline, "--experiment-name", "two")
    assert (code, out.splitlines()[-1]) == (0, NO_SCHEDULER)
    code, out, _ = ratchet_command(*start, "--adapter-of", run, "--json")
    told = last(out)
    assert (code, told["status"]) == (0, "measuring")
    assert [(step["step"], step["state"], step["job"]) for step in told["steps"]] == [
        ("start/0", "none", None),
        ("score/0/0", "none", None),
    ]
    (two,) = [one for one in list_experiments() if one.stored.name == "two"]
    assert (two.spec.seeds, list(two.spec.baselines.values())) == ((0, 1), [baseline])
    code, out, _ = ratchet_command("replicate", run, "-b", "pairs", "--queue", "--json")
    told = last(out)
    assert (code, told["kind"], len(told["steps"])) == (0, "replication", 7)


def test_an_experiment_is_shown_listed_and_written_to_a_page(ratchet_command, experiment, tmp_path):
    id = experiment.stored.id
    code, out, _ = ratchet_command("experiment", "show", id)
    assert (code, "mine [bold]" in out) == (0, True)
    assert "RL is better than base by 50.0 points" in " ".join(out.split())
    for step in experiment.all_steps:
        assert job(experiment, step.name) in out
    page, chart = tmp_path / "page.html", tmp_path / "chart.png"
    code, out, _ = ratchet_command("experiment", "show", id, "--json", "--report", page, "--chart", chart)
    told = json.loads(out.splitlines()[0])
    assert (code, told["status"], told["message"]) == (0, "done", told["report"]["sentence"])
    assert "RL is better than base" in page.read_text()
    assert chart.read_bytes().startswith(b"\x89PNG")
    listed = json.loads(ratchet_command("experiment", "list", "--project", "sums", "--json")[1])["experiments"]
    assert [one["experiment"] for one in listed] == [id]
    assert "3 / 3" in ratchet_command("experiment", "list")[1]


def test_an_experiment_is_stopped_and_gone_on_with(ratchet_command, experiment, stage):
    run = job(experiment, "train/0")
    id = last(ratchet_command("experiment", "start", run, "-b", "pairs", "--queue", "--json")[1])["experiment"]
    code, _, err = ratchet_command("experiment", "show", id, "--report", "page.html")
    assert (code, "there is nothing to report yet" in err) == (3, True)
    code, out, _ = ratchet_command("experiment", "stop", id, "--json")
    assert (code, json.loads(out)) == (0, {"experiment": id, "stop": "asked"})
    stage.pass_()
    assert find_experiment(id).stored.status == "stopped"
    assert ratchet_command("experiment", "resume", id, "--queue")[0] == 0
    code, _, err = ratchet_command("experiment", "resume", experiment.stored.id, "--queue")
    assert (code, "has ended (done). Nothing is left to do" in err) == (3, True)


def test_an_experiment_with_settings_that_cannot_be_is_refused(ratchet_command, experiment):
    count = len(list_experiments())
    for command, given, words in (
        ("start", ("--seeds", "0"), "--seeds"),
        ("start", ("--seeds", "21"), "--seeds"),
        ("start", ("--answers", "0"), "--answers"),
        ("start", ("--answers", "65"), "--answers"),
        ("start", ("-b", "nothing"), "nothing"),
        ("start", ("--adapter-of", "nothing"), "There is no run nothing"),
        ("start", ("--reuse-baseline", "nothing"), "nothing"),
        ("replicate", ("--seeds", "1"), "--seeds"),
        ("replicate", ("--seeds", "21"), "--seeds"),
    ):
        names = ("replicate",) if command == "replicate" else ("experiment", "start")
        code, out, err = ratchet_command(*names, job(experiment, "train/0"), "-b", "pairs", "--queue", *given)
        assert code in (2, 3), (given, out)
        assert words in err, given
    assert len(list_experiments()) == count


# --- compare ---------------------------------------------------------------------------------------------------------


def test_evaluations_are_compared_as_text_json_page_and_chart(ratchet_command, experiment, tmp_path):
    base, after = job(experiment, "start/0"), job(experiment, "score/0/0")
    code, out, _ = ratchet_command("compare", f"before={base}", f"after={after}")
    assert (code, "after is better than before by 50.0 points" in " ".join(out.split())) == (0, True)
    page, chart = tmp_path / "page.html", tmp_path / "chart.png"
    code, out, _ = ratchet_command("compare", base, after, "--json", "--report", page, "--chart", chart)
    told = json.loads(out.splitlines()[0])
    assert (code, told["comparisons"][0]["main"]["verdict"]) == (0, "better")
    assert "is better than" in page.read_text()
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_compared_is_refused_in_words(ratchet_command, experiment, loop):
    base, half = job(experiment, "start/0"), job(loop, "0/score")
    code, _, err = ratchet_command("compare", base)
    assert (code, "Name two evaluations or more" in err) == (2, True)
    code, _, err = ratchet_command("compare", base, f"again={base}")
    assert (code, "is named twice" in err) == (2, True)
    code, _, err = ratchet_command("compare", base, "nothing")
    assert (code, "nothing" in err) == (3, True)
    code, _, err = ratchet_command("compare", base, half)
    assert (code, "cannot be compared" in err) == (3, True)
    code, _, err = ratchet_command("compare", base, job(experiment, "train/0"))
    assert (code, "is not an evaluation" in err) == (3, True)
