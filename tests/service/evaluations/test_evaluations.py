"""Evaluations through the service and the worker: who answers, how they are asked, what is kept, and going on."""

import json
import shutil
import stat
from contextlib import closing

import pytest

from ratchet import worker
from ratchet.config import CustomVerifier, FinalNumberVerifier
from ratchet.datasets import benchmark_folders
from ratchet.errors import Conflict, InvalidSetting, NotFound, SandboxUnavailable
from ratchet.evaluation.benchmark import Harness
from ratchet.evaluation.scores import scores_of
from ratchet.files import ratchet_home
from ratchet.models.adapter_files import weights_sha256
from ratchet.readiness.start_adapter import with_start
from ratchet.run.processes import Process
from ratchet.run.run_folder import RunFolder
from ratchet.sandbox.metric_pool import MetricPool
from ratchet.service.data import datasets
from ratchet.service.evaluations import benchmarks, evaluation_catalogue, evaluations
from ratchet.service.evaluations.benchmarks import Choices
from ratchet.service.evaluations.evaluation_catalogue import find_evaluation, questions_of
from ratchet.service.evaluations.evaluation_setup import Request
from ratchet.service.evaluations.evaluations import evaluate, resume_evaluation
from ratchet.service.runs import scheduling
from ratchet.service.verification import user_metrics
from ratchet.store import Database, RunStore
from ratchet.supervisor.executors import LocalExecutor
from ratchet.supervisor.scheduler import Pace, Scheduler
from ratchet.supervisor.slots import Slot
from ratchet.worker import Listener

from ...adapters import TINY
from ...small_evaluations import apart_from_times, few, files_of, killed_worker, made, parts, request, until
from ...small_runs import SMALL, journal, small, trained

PROMPT = "Add each pair, then multiply."


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of ours catches it."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of one round with a prompt, a max answer tokens and a reading of its own; tests only read it."""
    home = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_HOME", str(home / "home"))
        return trained(
            home / "run",
            rl={**SMALL["rl"], "rounds": 1, "max_answer_tokens": 24},
            prompt={"system_prompt": PROMPT, "template_options": {"enable_thinking": False}},
            verifier={"kind": "math_pairs", "read": "after_reasoning"},
        )


def set_up(evaluation, *names):
    return [evaluation.setup[name] for name in names]


OF_A_RUN = ("System prompt", "Max answer tokens", "Chat template options")


# --- who answers, and how they are asked -----------------------------------------------------------------------------


def test_a_model_answers_every_question_once_and_the_scores_are_those_of_its_answers():
    few()
    evaluation = evaluate(request(name="start", project="sums"))
    assert (evaluation.status, evaluation.name, evaluation.project) == ("completed", "start", "sums")
    subject = evaluation.subject
    assert (subject.kind, subject.name, subject.model, subject.run, subject.sha256) == (
        "base",
        "tiny",
        "tiny",
        None,
        "",
    )
    assert subject.identity.startswith("sha256:")
    questions = questions_of(evaluation.id)
    spec, prompts = benchmark_folders.read(evaluation.benchmark_hash)
    assert [(one.question, one.ground_truth) for one in questions] == [(one.id, one.ground_truth) for one in prompts]
    assert all(len(one.answers) == 1 and one.prompt_tokens > 0 for one in questions)
    assert all(answer.tokens and answer.seconds >= 0 for one in questions for answer in one.answers)
    again = scores_of(questions, spec.score_columns, seconds=evaluation.scores.seconds)
    columns = [score for score in again.columns if score.name != "format"]  # no form was asked for
    assert [score for score in evaluation.scores.columns if score.name != "format"] == columns
    right = sum(one.answers[0].text.split()[-1] == one.ground_truth for one in questions)
    assert evaluation.scores.columns[0].value == right / 8
    assert set_up(evaluation, "Max answer tokens", "Sampling", "System prompt") == [32, "greedy", ""]
    assert (evaluation.ended_at is not None, evaluation.scores.pass_at) == (True, [])
    assert "All 8 questions are answered: accuracy " in evaluation.message


def test_what_was_answered_can_be_read_by_its_owner_alone():
    few()
    folder = RunFolder.at(evaluate(request()).folder)
    assert stat.S_IMODE(folder.rollouts_path.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in folder.rollouts_path.iterdir()] == [0o600]
    question = questions_of(str(folder.path))[0]
    for file in folder.path.iterdir():
        if file.is_file():
            text = file.read_text()
            assert question.prompt[-1]["content"] not in text
            assert question.answers[0].text not in text


def test_several_sampled_answers_give_pass_at_k_and_are_the_same_in_the_next_evaluation():
    few()
    first, second = (evaluate(request(answers=4)) for _ in range(2))
    questions = questions_of(first.id)
    assert [len(one.answers) for one in questions] == [4] * 8
    assert any(len({answer.text for answer in one.answers}) > 1 for one in questions)
    assert apart_from_times(questions) == apart_from_times(questions_of(second.id))
    assert [score.name for score in first.scores.pass_at] == ["pass@1", "pass@2", "pass@4"]
    assert first.scores.pass_at[-1].value == sum(
        any(answer.correctness == 1 for answer in one.answers) for one in questions
    ) / len(questions)
    assert first.setup["Sampling"] == {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 0}
    other = evaluate(request(answers=4, changes={"seed": "1"}))
    assert apart_from_times(questions_of(other.id)) != apart_from_times(questions)


def test_greedy_answers_are_the_same_in_the_next_evaluation():
    few()
    first, second = (evaluate(request()) for _ in range(2))
    assert apart_from_times(questions_of(first.id)) == apart_from_times(questions_of(second.id))


def test_the_adapter_of_a_run_is_asked_as_the_run_asked(run):
    few()
    evaluation = evaluate(Request(str(run.path), "few"))
    subject = evaluation.subject
    assert (subject.kind, subject.name, subject.run, subject.model) == ("adapter", run.run_id, run.run_id, "tiny")
    assert subject.sha256 == weights_sha256(run.adapter_path)
    assert set_up(evaluation, *OF_A_RUN) == [PROMPT, 24, {"enable_thinking": False}]
    assert evaluation.setup["Verifier"] == {"kind": "math_pairs", "read": "after_reasoning"}
    assert evaluation.setup["Format"]["form"] == "off"
    assert "format" not in {score.name for score in evaluation.scores.columns}
    copy = RunFolder.at(evaluation.folder).start_path
    assert not copy.exists()  # its work is done


def test_the_start_of_a_run_is_asked_as_the_run_asked_and_compared_with_its_adapter(run):
    few()
    start = evaluate(Request(str(run.path), "few", of_start=True))
    assert (start.subject.kind, start.subject.name, start.subject.sha256) == ("base", "tiny", "")
    end = evaluate(Request(str(run.path), "few"))
    assert start.setup == end.setup
    table, _ = evaluation_catalogue.compare_evaluations([f"before={start.id}", end.id])
    assert table.labels == ["before", run.run_id]
    assert table.comparisons[0].questions == 8


def test_the_start_of_a_run_that_went_on_from_an_adapter_is_that_adapter_even_after_it_is_gone(run, tmp_path):
    few()
    source = RunFolder(shutil.copytree(run.path, tmp_path / "source"))
    config = small(rounds=1, max_answer_tokens=24, start_from=str(source.path))
    folder = RunFolder.create(with_start(config).config, tmp_path / "followed")
    worker.run(folder)
    shutil.rmtree(source.path)
    start = evaluate(Request(str(folder.path), "few", of_start=True))
    assert (start.subject.kind, start.subject.name) == ("adapter", run.run_id)
    assert start.subject.sha256 == weights_sha256(run.adapter_path)
    assert set_up(start, "System prompt", "Max answer tokens") == ["", 24]


def test_changes_win_over_what_the_run_has(run):
    few()
    evaluation = evaluate(Request(str(run.path), "few", changes={"system_prompt": "", "rl.max_answer_tokens": "40"}))
    assert set_up(evaluation, *OF_A_RUN) == ["", 40, {"enable_thinking": False}]


def test_an_adapters_folder_needs_its_model(run, tmp_path):
    few()
    adapter = shutil.copytree(run.adapter_path, tmp_path / "sums")
    with pytest.raises(InvalidSetting, match=r"adapter without its run.*--model NAME"):
        evaluate(Request(str(adapter), "few"))
    evaluation = evaluate(request(str(adapter), changes={"model": "tiny"}))
    assert (evaluation.subject.kind, evaluation.subject.name, evaluation.subject.run) == ("adapter", "sums", None)
    assert evaluation.subject.sha256 == weights_sha256(adapter)
    by_run = evaluate(request(str(run.path)))
    texts = [[answer.text for one in questions_of(each.id) for answer in one.answers] for each in (evaluation, by_run)]
    assert texts[0] == texts[1]


def test_an_adapter_that_changes_before_the_work_begins_does_not_matter(run, tmp_path):
    few()
    source = RunFolder(shutil.copytree(run.path, tmp_path / "source"))
    folder = made(Request(str(source.path), "few"))
    (source.adapter_path / "adapter_model.safetensors").write_bytes(b"other")
    worker.run(folder)
    assert find_evaluation(folder.run_id).status == "completed"


@pytest.mark.parametrize(("is_merged", "kind"), [(True, "merged"), (False, "base")])
def test_a_models_folder_is_evaluated_as_it_lies_there(is_merged, kind, tmp_path):
    few()
    place = shutil.copytree(TINY, tmp_path / "mine")
    evaluation = evaluate(request(str(place), is_merged=is_merged))
    assert (evaluation.subject.kind, evaluation.subject.name, evaluation.subject.model) == (kind, "mine", str(place))
    base = evaluate(request())
    assert evaluation.subject.identity == base.subject.identity
    assert apart_from_times(questions_of(evaluation.id)) == apart_from_times(questions_of(base.id))


def rows_of(tmp_path, count=4, **row):
    """Add a dataset whose test rows are Math Pairs problems."""
    _, prompts = benchmark_folders.read(benchmarks.find_benchmark(few("source", count)).content_hash)
    folder = tmp_path / "rows"
    folder.mkdir()
    test = [{"prompt": one.messages[-1]["content"], "answer": one.ground_truth, **row} for one in prompts]
    train = [{"prompt": f"{n} + 1", "answer": str(n + 1)} for n in range(4)]
    for name, lines in (("train", train), ("validation", train[:2]), ("test", test)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return datasets.add(str(folder), "rows")


def test_what_a_benchmark_says_itself_wins_over_the_run(run, tmp_path):
    rows_of(tmp_path)
    choices = Choices(harness=Harness(system_prompt="By the book."), max_answer_tokens=40)
    verifier = FinalNumberVerifier(read="whole")
    benchmarks.add_dataset("own", "rows", verifier, choices)
    evaluation = evaluate(Request(str(run.path), "own"))
    assert set_up(evaluation, *OF_A_RUN) == ["By the book.", 40, {"enable_thinking": False}]
    assert evaluation.setup["Verifier"]["kind"] == "final_number"
    assert evaluation.setup["Verifier"]["read"] == "whole"


def test_a_part_of_a_benchmark_is_not_compared_with_all_of_it():
    few()
    some, everything = evaluate(request(only=(2, 5, 7))), evaluate(request())
    assert [one.question for one in questions_of(some.id)] == [2, 5, 7]
    assert some.scores.questions == 3
    with pytest.raises(Conflict, match="The questions differ"):
        evaluation_catalogue.compare_evaluations([some.id, everything.id])


@pytest.mark.parametrize(
    ("asked", "kind", "words"),
    [
        (request(answers=0), InvalidSetting, "Answers per question is 0. Choose 1"),
        (request(answers=65), InvalidSetting, "Answers per question is 65"),
        (request(benchmark="none"), NotFound, "no benchmark none"),
        (request("nobody", of_start=True), NotFound, "There is no run nobody"),
        (request(changes={"max_answer_tokens": "100000"}), InvalidSetting, "answer"),
        (request(changes={"model": "tiny", "nonsense": "1"}), InvalidSetting, "nonsense"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_is_made(asked, kind, words):
    few()
    with pytest.raises(kind, match=words):
        evaluate(asked)
    assert not (ratchet_home() / "runs").exists() or not list((ratchet_home() / "runs").iterdir())
    assert evaluation_catalogue.list_evaluations() == []


def test_a_trial_and_an_evaluation_keep_no_adapter_to_evaluate():
    few()
    evaluation = evaluate(request())
    with pytest.raises(Conflict, match="is an evaluation, which keeps no adapter"):
        evaluate(Request(evaluation.id, "few"))


# --- a verifier that fails -------------------------------------------------------------------------------------------

# Right is right; of other answers it fails on those that end in an odd number.
FAILING = """
def score(answer, reference):
    words = answer.replace("=", " ").split()
    if words and words[-1] == reference:
        return 1.0
    if int(words[-1]) % 2:
        raise ValueError(answer)
    return 0.0
"""


def metrics_work():
    try:
        return bool(MetricPool(FAILING).engine)
    except SandboxUnavailable:
        return False


@pytest.mark.skipif(not metrics_work(), reason="metrics cannot run on this machine")
def test_where_the_metric_fails_often_no_verdict_is_given_and_the_range_is_shown(tmp_path):
    rows_of(tmp_path, 16)
    (tmp_path / "failing.py").write_text(FAILING)
    user_metrics.add(tmp_path / "failing.py", "failing")
    benchmarks.add_dataset("own", "rows", CustomVerifier(metric="failing"))
    left, right = (evaluate(request(benchmark="own")) for _ in range(2))
    scores, answers = left.scores, [one.answers[0] for one in questions_of(left.id)]
    odd = [one for one in answers if one.correctness < 1 and int(one.text.split()[-1]) % 2]
    share_right = sum(one.correctness for one in answers) / 16
    assert 0 < len(odd) < 16
    assert {one.outcome for one in odd} == {"failed"}
    assert {one.group for one in odd} == {"failed"}
    assert (scores.failed_share, scores.failures) == (len(odd) / 16, {"execution": len(odd)})
    assert scores.could_be == pytest.approx((share_right, share_right + len(odd) / 16))
    assert f"The verifier failed on {len(odd)} of 16 answers" in scores.withheld
    table, _ = evaluation_catalogue.compare_evaluations([left.id, right.id])
    assert table.comparisons[0].main.verdict == "withheld"
    assert all(one.text not in scores.withheld for one in answers)


# --- comparisons that make no sense ----------------------------------------------------------------------------------


def test_evaluations_that_asked_otherwise_are_not_compared():
    few(), few("others", seed=1)
    base = evaluate(request())
    with pytest.raises(Conflict, match=r"cannot be compared.*The questions differ \(few and others\)"):
        evaluation_catalogue.compare_evaluations([base.id, evaluate(request(benchmark="others")).id])
    prompted = evaluate(request(changes={"system_prompt": PROMPT}))
    with pytest.raises(Conflict, match=r"System prompt: none on the left, 29 characters on the right") as refused:
        evaluation_catalogue.compare_evaluations([base.id, prompted.id])
    assert PROMPT not in str(refused.value)
    shorter = evaluate(request(changes={"max_answer_tokens": "24"}))
    with pytest.raises(Conflict, match="Max answer tokens: 32 on the left, 24 on the right"):
        evaluation_catalogue.compare_evaluations([base.id, shorter.id])
    with pytest.raises(Conflict, match="Answers per question: 1 on the left, 2 on the right"):
        evaluation_catalogue.compare_evaluations([base.id, evaluate(request(answers=2)).id])
    waiting = evaluations.queue_evaluation(request())
    with pytest.raises(Conflict, match="is queued and has no scores"):
        evaluation_catalogue.compare_evaluations([base.id, waiting.run])
    with pytest.raises(InvalidSetting, match="named twice"):
        evaluation_catalogue.compare_evaluations([base.id, base.id])
    with pytest.raises(InvalidSetting, match="two evaluations or more"):
        evaluation_catalogue.compare_evaluations([base.id])
    with pytest.raises(NotFound):
        evaluation_catalogue.compare_evaluations([base.id, "nobody"])


# --- going on --------------------------------------------------------------------------------------------------------

LONG = {"answers": 64}  # two questions a part


def after(done, act):
    """Return a watch that acts once so many questions are answered."""

    def on_event(event):
        if event.event == "answered" and event.done >= done:
            act()

    return Listener(on_event=on_event)


def kill():
    raise Killed


def stopped_short(done=4, act=kill):
    """Return the folder of an evaluation of which so many questions are answered."""
    folder = made(request(**LONG))
    with pytest.raises(Killed):
        worker.run(folder, listeners=[after(done, act)])
    return folder


def test_an_evaluation_that_was_killed_goes_on_to_the_same_answers():
    few()
    whole = evaluate(request(**LONG))
    folder = stopped_short()
    kept = {name: (folder.rollouts_path / name).read_bytes() for name in parts(folder)}
    assert list(kept) == ["part-0001.jsonl", "part-0002.jsonl"]
    assert find_evaluation(folder.run_id).scores is None
    assert len(questions_of(folder.run_id)) == 4
    again = resume_evaluation(folder.run_id)
    assert again.status == "completed"
    assert {name: (folder.rollouts_path / name).read_bytes() for name in kept} == kept
    assert parts(folder) == parts(RunFolder.at(whole.folder))
    assert apart_from_times(questions_of(again.id)) == apart_from_times(questions_of(whole.id))
    assert again.scores.columns == whole.scores.columns
    told = sum(event["seconds"] for event in journal(folder) if event["event"] == "answered")
    assert again.scores.seconds == pytest.approx(told)
    with pytest.raises(Conflict, match="is completed: there is nothing to resume"):
        resume_evaluation(folder.run_id)


def test_an_evaluation_that_is_stopped_keeps_what_is_answered(monkeypatch):
    monkeypatch.setattr("ratchet.worker.session._SECONDS_BETWEEN_LOOKS", 0.0)
    few()
    folder = made(request(**LONG))
    worker.run(folder, listeners=[after(2, lambda: folder.ask_to_stop("test"))])
    found = find_evaluation(str(folder.path))
    assert found.status != "completed"
    assert found.message.startswith("Stopped as asked. ")
    assert "of 8 questions are answered and kept" in found.message
    assert f"ratchet eval resume {folder.run_id}" in found.message
    assert len(questions_of(folder.run_id)) in range(2, 8)
    assert resume_evaluation(folder.run_id).status == "completed"
    assert len(questions_of(folder.run_id)) == 8


def damaged(content):
    return content[: len(content) // 3]


def a_line_less(content):
    return content[: content.index(b"\n") + 1]


def a_line_twice(content):
    return content + a_line_less(content)


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [damaged, a_line_less, a_line_twice, lambda content: b"", lambda content: b"\xff"])
def test_a_part_that_is_not_whole_is_refused_in_words(spoil):
    few()
    folder = stopped_short()
    part = folder.rollouts_path / "part-0001.jsonl"
    whole = part.read_bytes()
    part.write_bytes(spoil(whole))
    with pytest.raises(Conflict) as refused:
        resume_evaluation(folder.run_id)
    assert "part-0001.jsonl" in str(refused.value) or "rollouts" in str(refused.value)
    found = find_evaluation(folder.run_id)
    assert (found.status, found.scores) == ("failed", None)
    part.write_bytes(whole)
    assert resume_evaluation(folder.run_id).scores.questions == 8


def test_what_a_kill_leaves_beside_the_parts_does_no_harm():
    few()
    folder = stopped_short()
    (folder.rollouts_path / ".part-0003.jsonl.x1").write_text("{")
    (folder.rollouts_path / "part-0003.jsonl.tmp").write_text("{")
    assert resume_evaluation(folder.run_id).scores.questions == 8


def test_questions_that_change_meanwhile_are_refused_in_words():
    few()
    folder = stopped_short()
    file = benchmark_folders.questions_file(find_evaluation(folder.run_id).benchmark_hash)
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"+", b"-", 1))
    with pytest.raises(Conflict, match="is not as it was when the benchmark was added"):
        resume_evaluation(folder.run_id)
    file.write_bytes(whole)
    assert resume_evaluation(folder.run_id).status == "completed"


def test_a_benchmark_that_is_removed_meanwhile_is_still_there_for_its_evaluations():
    few()
    folder = stopped_short()
    assert benchmarks.remove("few") is False
    assert resume_evaluation(folder.run_id).status == "completed"


def test_scores_that_are_damaged_are_refused_in_words():
    few()
    evaluation = evaluate(request())
    files_of(evaluation).scores_path.write_text("{")
    with pytest.raises(Conflict, match=r"scores\.json"):
        find_evaluation(evaluation.id)


def test_each_kind_of_job_is_gone_on_with_by_its_own_command(run, ratchet_command):
    few()
    folder = stopped_short()
    code, _, err = ratchet_command("resume", folder.run_id)
    assert (code, f"is an evaluation. Resume it with: ratchet eval resume {folder.run_id}" in err) == (3, True), err
    code, _, err = ratchet_command("eval", "resume", run.path)
    assert (code, f"is a run. Resume it with: ratchet resume {run.run_id}" in err) == (3, True), err
    for command in ("show", "questions"):
        code, _, err = ratchet_command("eval", command, run.path)
        assert code == 3
    code, _, err = ratchet_command("eval", "stop", folder.run_id)
    assert (code, f"ratchet eval resume {folder.run_id}" in err) == (3, True), err


def test_evaluations_are_listed_by_themselves_also_after_the_database_is_lost(ratchet_command):
    few(), few("others", seed=1)
    first, second = evaluate(request(project="a")), evaluate(request(benchmark="others"))
    cut_short = stopped_short()

    def listed(*of):
        return [(one.evaluation.id, one.evaluation.scores) for one in evaluation_catalogue.list_evaluations(*of)]

    before = listed()
    assert {id for id, _ in before} == {first.id, second.id, cut_short.run_id}
    assert dict(before)[cut_short.run_id] is None
    assert listed("others") == [(second.id, second.scores)]
    assert listed(None, "a") == [(first.id, first.scores)]
    with pytest.raises(NotFound):
        listed("nobody")
    code, out, _ = ratchet_command("runs", "list", "--json")
    assert (code, json.loads(out)["runs"]) == (0, [])
    for file in ratchet_home().glob("ratchet.db*"):
        file.unlink()
    assert sorted(listed(), key=str) == sorted(before, key=str)
    assert find_evaluation(first.id) == first


# --- the keeper ------------------------------------------------------------------------------------------------------


class Workers(LocalExecutor):
    """Starts real workers, and knows all that it started, so that they end with the test."""

    def __init__(self):
        super().__init__()
        self.started = []

    def start(self, folder, environment):
        self.started.append(super().start(folder, environment))
        return self.started[-1]

    def close(self):
        for process in self.started:
            if process.poll() is None:
                Process.of(process.pid).signal_group(9)
            process.wait()


class Kept:
    """A keeper over this home's database whose workers are real ones."""

    def __init__(self):
        self.store = RunStore(Database())
        self.said, self.workers = [], Workers()
        self.keeper = self.fresh()

    def fresh(self):
        slot, pace = Slot("cpu0", "cpu", 0, {}), Pace(poll_seconds=0.01)
        return Scheduler(
            store=self.store, executor=self.workers, slots=[slot], host="here", pace=pace, say=self.said.append
        )

    def until(self, is_so):
        def step():
            self.keeper.step()
            return is_so()

        until(step)

    def ended(self, id):
        self.until(lambda: self.store.get(id).ended_at is not None)
        return self.store.get(id)


@pytest.fixture
def kept():
    found = Kept()
    yield found
    found.workers.close()


@pytest.mark.slow
def test_the_keeper_starts_an_evaluation_follows_it_and_starts_it_again_after_a_kill(kept):
    few("many", 24)
    whole = evaluate(request(benchmark="many", **LONG))
    queued = evaluations.queue_evaluation(request(benchmark="many", **LONG))
    assert (queued.ahead, find_evaluation(queued.run).status) == (0, "queued")
    with pytest.raises(Conflict, match="is queued"):
        resume_evaluation(queued.run)
    folder = RunFolder.at(queued.folder)
    kept.until(lambda: files_of(folder).parts_done() >= 1)
    first = folder.holder()
    assert find_evaluation(queued.run).status == "scoring"
    kept.keeper = kept.fresh()  # another keeper finds the worker at work
    kept.until(lambda: files_of(folder).parts_done() >= 2)
    assert folder.holder() == first
    Process.of(first.pid).signal_group(9)
    job = kept.ended(queued.run)
    assert (job.status, job.ending) == ("completed", "all_rounds")
    assert sum(event["event"] == "started" for event in journal(folder)) == 2
    again = find_evaluation(queued.run)
    assert again.scores.columns == whole.scores.columns
    assert apart_from_times(questions_of(again.id)) == apart_from_times(questions_of(whole.id))


@pytest.mark.slow
def test_a_kept_evaluation_is_stopped_and_queued_again(kept):
    few("many", 24)
    queued = evaluations.queue_evaluation(request(benchmark="many", **LONG))
    folder = RunFolder.at(queued.folder)
    kept.until(lambda: files_of(folder).parts_done() >= 1)
    assert scheduling.stop(queued.run) == "asked"
    kept.ended(queued.run)
    done = len(questions_of(queued.run))
    assert f"{done} of 24 questions are answered and kept" in find_evaluation(queued.run).message
    evaluations.queue_evaluation_again(queued.run)
    assert kept.ended(queued.run).status == "completed"
    assert len(questions_of(queued.run)) == 24


def test_an_evaluation_that_waits_is_taken_out_of_the_queue():
    few()
    queued = evaluations.queue_evaluation(request())
    assert scheduling.stop(queued.run) == "cancelled"
    assert find_evaluation(queued.run).status == "cancelled"
    with closing(Database()) as database:
        assert RunStore(database).get(queued.run).kind == "evaluation"


@pytest.mark.slow
def test_a_real_worker_that_is_killed_loses_no_answer():
    few("many", 24)
    whole = evaluate(request(benchmark="many", **LONG))
    folder = made(request(benchmark="many", **LONG))
    killed_worker(folder, 3)
    kept = {name: (folder.rollouts_path / name).read_bytes() for name in parts(folder) if name.endswith(".jsonl")}
    assert 3 <= len(kept) < 12
    again = resume_evaluation(folder.run_id)
    assert {name: (folder.rollouts_path / name).read_bytes() for name in kept} == kept
    assert apart_from_times(questions_of(again.id)) == apart_from_times(questions_of(whole.id))
    assert again.scores.columns == whole.scores.columns


# --- the command line ------------------------------------------------------------------------------------------------

ASKED = ("--system-prompt", "", "--max-answer-tokens", "32")


def test_the_command_line_evaluates_lists_shows_and_writes_what_went_wrong(ratchet_command, tmp_path):
    few()
    code, out, err = ratchet_command("eval", "list")
    assert (code, "No evaluations yet" in out) == (0, True), err
    code, out, err = ratchet_command("eval", "start", "tiny", "-b", "few", *ASKED, "--name", "start", "--json")
    assert code == 0, err
    told = json.loads(out.splitlines()[-1])
    found = find_evaluation(told["id"])
    assert told == found.model_dump(mode="json")
    code, out, _ = ratchet_command("eval", "list", "--benchmark", "few", "--json")
    assert (code, [one["id"] for one in json.loads(out)["evaluations"]]) == (0, [found.id])
    code, out, _ = ratchet_command("eval", "list", "--project", "none")
    assert (code, out.strip()) == (0, "None.")
    for arguments in (("list",), ("show", found.id), ("questions", found.id), ("questions", found.id, "--full")):
        code, out, err = ratchet_command("eval", *arguments)
        assert code == 0, err
        assert out.strip()
    page = tmp_path / "page.html"
    code, out, err = ratchet_command("eval", "show", found.id, "--report", page, "--json")
    assert (code, json.loads(out)["id"], stat.S_IMODE(page.stat().st_mode)) == (0, found.id, 0o600), err
    wrong = [one.question for one in questions_of(found.id) if one.correctness < 1]
    rows = tmp_path / "wrong.jsonl"
    code, out, err = ratchet_command("eval", "questions", found.id, "--failures", rows, "--json")
    assert (code, json.loads(out)["written"], stat.S_IMODE(rows.stat().st_mode)) == (0, len(wrong), 0o600), err
    assert [int(json.loads(line)["id"]) for line in rows.read_text().splitlines()] == wrong
    code, _, err = ratchet_command("eval", "stop", found.id)
    assert (code, "has ended already (completed)" in err) == (3, True), err
    code, _, err = ratchet_command("eval", "resume", found.id)
    assert (code, "nothing to resume" in err) == (3, True), err


def test_the_command_line_queues_stops_and_goes_on(ratchet_command):
    few()
    code, out, err = ratchet_command("eval", "start", "tiny", "-b", "few", *ASKED, "--queue", "--json")
    assert code == 0, err
    queued = json.loads(out.splitlines()[-1])["run"]
    code, _, err = ratchet_command("eval", "resume", queued)
    assert (code, "is queued" in err) == (3, True), err
    code, out, err = ratchet_command("eval", "stop", queued, "--json")
    assert (code, json.loads(out)["stop"]) == (0, "cancelled"), err
    folder = stopped_short()
    code, out, err = ratchet_command("eval", "resume", folder.run_id, "--json")
    assert (code, json.loads(out.splitlines()[-1])["status"]) == (0, "completed"), err


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["start", "tiny", "-b", "none"], 3, "no benchmark none"),
        (["start", "tiny"], 2, "--benchmark"),
        (["start", "tiny", "-b", "few", "--answers", "0"], 2, "--answers"),
        (["start", "tiny", "-b", "few", "--answers", "65"], 2, "--answers"),
        (["start", "nobody", "-b", "few", "--start"], 3, "no run nobody"),
        (["start", "nobody", "-b", "few"], 4, "nobody"),
        (["start", "-b", "few"], 2, "Name what to evaluate"),
        (["start", "tiny", "-b", "few", "--rounds", "x"], 2, "ounds"),
        (["show", "nobody"], 3, "no run nobody"),
        (["questions", "nobody"], 3, "no run nobody"),
        (["resume", "nobody"], 3, "no run nobody"),
        (["stop", "nobody"], 3, "no run nobody"),
        (["list", "--benchmark", "none"], 3, "no benchmark none"),
    ],
)
def test_bad_input_ends_with_a_sentence_and_the_exit_code_of_its_fault(ratchet_command, arguments, status, words):
    few()
    code, out, err = ratchet_command("eval", *arguments, "--json")
    assert (code, words in err) == (status, True), (code, err)
    assert words in json.loads(out.splitlines()[-1])["error"]["message"]
    assert evaluation_catalogue.list_evaluations() == []
