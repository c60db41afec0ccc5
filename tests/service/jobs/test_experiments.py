"""Experiments and replications as the conductor carries them out, over faked jobs: steps, tables, verdicts."""

import shutil

import pytest
from safetensors.numpy import load_file, save_file

from ratchet.config import StartSettings
from ratchet.errors import Conflict, IncompatibleData, InvalidSetting, NotFound
from ratchet.files import ratchet_home
from ratchet.service.evaluations.evaluation_catalogue import find_evaluation
from ratchet.service.jobs import experiments
from ratchet.service.jobs.experiments import (
    baselines_of,
    create_experiment,
    first_table,
    refuse_other_baseline,
    replication_of,
)
from tests.adapters import TINY
from tests.conducted import (
    CONFIRMED,
    config,
    enter_experiment,
    experiment_spec,
    find_experiment,
    list_experiments,
    pairs,
    resume_experiment,
    spec_of,
    start_of,
    stop_experiment,
)
from tests.repeated import matrix

SFT = {"objective": "sft", "rl__rounds": 2}


def start(*benchmarks, **given):
    return enter_experiment(*benchmarks, **given).id


def ended(stage, id):
    return stage.until_ended(lambda: find_experiment(id))


def jobs(stage, id):
    return stage.steps(f"experiment/{id}")


def ids(stage, id):
    return {step: [run.id for run in runs] for step, runs in jobs(stage, id).items()}


def trained(stage):
    """Return a run that has ended with an adapter, of an experiment of its own."""
    id = start()
    ended(stage, id)
    stage.order.clear()
    return jobs(stage, id)["train/0"][0]


# --- what is done ----------------------------------------------------------------------------------------------------


def test_rows_of_the_training_or_of_its_sft_stage_that_are_questions_are_refused():
    of_few_numbers = pairs(largest=3, heldout=8, seed=2)
    shared = {"data__largest": 3, "data__prompts": 12, "validation_prompts": 4}
    with pytest.raises(IncompatibleData, match="would be trained or selected on"):
        create_experiment(experiment_spec(of_few_numbers, changes=shared))
    sft = config(**shared, objective="sft")
    with pytest.raises(IncompatibleData, match="would be trained or selected on"):
        create_experiment(experiment_spec(of_few_numbers, changes={"data__smallest": 5}, sft=sft))
    create_experiment(experiment_spec(of_few_numbers, changes={"data__smallest": 5}))


def test_the_start_is_measured_then_a_run_trained_and_scored_and_the_verdict_given(stage):
    id = start()
    stage.shares = {"start": 0.3, "score": 0.8}
    seen = [find_experiment(id).stored.status]
    for _ in range(4):
        stage.pass_()
        seen.append(find_experiment(id).stored.status)
        stage.work()
    one = find_experiment(id)
    assert seen == ["measuring", "measuring", "training", "scoring", "done"]
    assert stage.order == ["start/0", "train/0", "score/0/0"]
    found = {step: run for step, (run,) in jobs(stage, id).items()}
    assert (spec_of(found["start/0"]).subject.kind, spec_of(found["start/0"]).only) == ("base", None)
    assert spec_of(found["score/0/0"]).subject.run == found["train/0"].id
    assert spec_of(found["score/0/0"]).setup == spec_of(found["start/0"]).setup
    (told,) = one.report.benchmarks
    assert (told.table.labels, told.across_seeds) == (["base", "RL"], None)
    (comparison,) = told.table.comparisons
    assert (comparison.main.verdict, comparison.main.difference) == ("better", pytest.approx(0.5))
    assert one.stored.message == one.report.sentence == comparison.main.sentence
    assert one.report.sentence.startswith("RL is better than base by 50.0 points")
    assert one.report.runs == {"train/0": found["train/0"].id}
    table, questions = first_table(one)
    assert (table, [len(side) for side in questions]) == (told.table, [40, 40])


def test_an_sft_stage_comes_first_is_scored_and_gone_on_from(stage):
    id = start(sft=config(**SFT))
    stage.shares = {"start": 0.3, "sft": 0.5, "score": 0.9}
    one = ended(stage, id)
    assert one.stored.status == "done", one.stored.message
    found = {step: run for step, (run,) in jobs(stage, id).items()}
    assert set(found) == {"start/0", "sft", "sft/0", "train/0", "score/0/0"}
    assert stage.order.index("start/0") < stage.order.index("sft") < stage.order.index("train/0")
    assert found["sft"].config.objective == "sft"
    assert start_of(found["train/0"]) == found["sft"].id
    assert spec_of(found["sft/0"]).subject.run == found["sft"].id
    assert len({str(spec_of(found[step]).setup) for step in ("start/0", "sft/0", "score/0/0")}) == 1
    table = one.report.benchmarks[0].table
    assert table.labels == ["base", "SFT", "RL"]
    pairs_told = [(one.left.id, one.right.id) for one in table.comparisons]
    base, sft, rl = (found[step].id for step in ("start/0", "sft/0", "score/0/0"))
    assert pairs_told == [(base, sft), (base, rl), (sft, rl)]
    assert one.report.sentence.count("RL is better than") == 2
    assert one.report.runs == {"train/0": found["train/0"].id, "sft": found["sft"].id}


def test_each_benchmark_has_a_verdict_of_its_own(stage):
    id = start(pairs(), pairs("others", seed=3))
    stage.shares = {"start/0": 0.3, "start/1": 0.9, "score/0/0": 0.8, "score/0/1": 0.2}
    one = ended(stage, id)
    assert sorted(stage.order[:2]) == ["start/0", "start/1"]
    assert stage.order.count("train/0") == 1
    assert [told.benchmark for told in one.report.benchmarks] == ["pairs", "others"]
    assert [told.table.comparisons[0].main.verdict for told in one.report.benchmarks] == ["better", "worse"]
    assert "is better than base" in one.report.sentence


def test_a_start_from_an_adapter_has_the_base_model_beside_it(stage):
    run = trained(stage)
    changes = {"start_from": run.id}
    id = start(changes=changes)
    stage.shares = {"start": 0.5, "base": 0.3, "score": 0.9}
    one = ended(stage, id)
    assert sorted(stage.order[:2]) == ["base/0", "start/0"]
    found = {step: run for step, (run,) in jobs(stage, id).items()}
    assert spec_of(found["start/0"]).subject.sha256 == run.adapter_sha256
    assert spec_of(found["base/0"]).subject.kind == "base"
    assert start_of(found["train/0"]) == run.id
    assert one.report.benchmarks[0].table.labels == ["start", "base", "RL"]
    assert one.report.sentence.startswith("RL is better than start")


@pytest.mark.slow
def test_several_seeds_are_judged_together(stage):
    id = start(seeds=(0, 1, 2))
    stage.shares = {"start": 0.3, "score/0/0": 0.8, "score/1/0": 0.75, "score/2/0": 0.85}
    one = ended(stage, id)
    found = {step: run for step, (run,) in jobs(stage, id).items()}
    assert [found[f"train/{seed}"].config.seed for seed in range(3)] == [0, 1, 2]
    assert len({found[f"train/{seed}"].adapter_sha256 for seed in range(3)}) == 3
    told = one.report.benchmarks[0]
    assert told.table.labels == ["base", "RL seed 0", "RL seed 1", "RL seed 2"]
    assert (told.across_seeds.seeds, told.across_seeds.verdict) == ([0, 1, 2], "learning")
    assert told.across_seeds.gains == pytest.approx([0.5, 0.45, 0.55])
    assert one.stored.message == one.report.sentence == told.across_seeds.sentence
    base = found["start/0"].id
    assert {comparison.left.id for comparison in told.table.comparisons} == {base}  # no seed against another


def test_seeds_after_an_sft_stage_are_judged_by_what_they_add_to_it(stage):
    """The stage is one for all seeds: what it gained is none of theirs."""
    id = start(seeds=(0, 1), sft=config(**SFT))
    stage.shares = {"start": 0.3, "sft/0": 0.9, "score": 0.9}
    report = ended(stage, id).report
    told = report.benchmarks[0]
    assert told.table.labels == ["base", "SFT", "RL seed 0", "RL seed 1"]
    assert (told.across_seeds.verdict, told.across_seeds.gains) == ("no_gain", [0.0, 0.0])
    assert (told.from_start.verdict, told.from_start.gains) == ("learning", pytest.approx([0.6, 0.6]))
    assert report.sentence.startswith("RL after SFT: No gain: over 2 seeds the gain was 0.0 points")
    assert "Both stages against base, with one SFT for all seeds: It learns: " in report.sentence
    base, sft = (jobs(stage, id)[step][0].id for step in ("start/0", "sft/0"))
    seeds = [jobs(stage, id)[f"score/{seed}/0"][0].id for seed in (0, 1)]
    pairs_told = [(one.left.id, one.right.id) for one in told.table.comparisons]
    assert sorted(pairs_told) == sorted([(base, sft), *((side, seed) for side in (base, sft) for seed in seeds)])


def test_seeds_of_which_one_could_not_be_graded_have_no_verdict(stage):
    id = start(seeds=(0, 1))
    stage.shares = {"start": 0.1, "score": 0.9}
    stage.ungraded = {"score/1/0": 0.5}
    told = ended(stage, id).report
    assert told.benchmarks[0].across_seeds.verdict == "withheld"
    assert told.sentence.startswith("No verdict on the seeds together. RL seed 1: ")
    assert [one.main.verdict for one in told.benchmarks[0].table.comparisons] == ["better", "withheld"]


def test_a_replication_repeats_a_run_with_other_seeds(stage):
    run = trained(stage)
    settings = replication_of(run.id, 3, ["pairs"], 1)
    assert (settings.kind, settings.source_run, settings.seeds) == ("replication", run.id, (1, 2, 3))
    assert settings.confirmation == CONFIRMED
    id = create_experiment(settings).id
    stage.shares = {"start": 0.5, "score/1/0": 0.2, "score/2/0": 0.9, "score/3/0": 0.5}
    one = ended(stage, id)
    assert one.report.benchmarks[0].across_seeds.verdict == "luck"
    assert run.id not in [job.id for runs in jobs(stage, id).values() for job in runs]
    with pytest.raises(Conflict, match="is an evaluation, not a full run"):
        replication_of(jobs(stage, id)["start/0"][0].id, 3, ["pairs"], 1)
    with pytest.raises(NotFound):
        replication_of("nothing", 3, ["pairs"], 1)


def test_several_answers_a_question_are_sampled_alike_on_all_sides(stage):
    id = start(answers=4)
    ended(stage, id)
    specs = [spec_of(run) for (run,) in jobs(stage, id).values() if run.kind == "evaluation"]
    assert {one.answers_per_question for one in specs} == {4}
    assert specs[0].setup == specs[1].setup
    assert specs[0].setup["Sampling"]["seed"] == specs[1].setup["Sampling"]["seed"]


# --- what is taken as it is ------------------------------------------------------------------------------------------


def test_a_baseline_and_an_adapter_are_taken_as_they_are(stage):
    first = start()
    stage.shares = {"start": 0.3, "score": 0.8}
    ended(stage, first)
    found = {step: run for step, (run,) in jobs(stage, first).items()}
    stage.order.clear()
    baseline, run = found["start/0"].id, found["train/0"].id
    id = start(baselines=baselines_of([baseline]), adapter_of=run)
    one = ended(stage, id)
    assert stage.order == ["score/0/0"]
    table = one.report.benchmarks[0].table
    assert [evaluation.id for evaluation in table.evaluations] == [baseline, jobs(stage, id)["score/0/0"][0].id]
    assert (one.report.runs, one.stored.status) == ({"train/0": run}, "done")
    stage.order.clear()
    again = start(baselines=baselines_of([baseline]))
    ended(stage, again)
    assert stage.order == ["train/0", "score/0/0"]


def test_a_baseline_of_something_else_is_refused_in_words(stage):
    run = trained(stage)
    first = find_experiment(list_experiments()[0].stored.id)
    of_base, of_adapter = (jobs(stage, first.stored.id)[step][0].id for step in ("start/0", "score/0/0"))
    hash = first.spec.benchmarks[0]
    with pytest.raises(Conflict, match="which is not what this experiment starts from"):
        start(baselines={hash: of_adapter})
    with pytest.raises(Conflict, match="which is not what this experiment starts from"):
        start(baselines={hash: of_base}, changes={"start_from": run.id})
    with pytest.raises(Conflict, match="its Max answer tokens differs"):
        start(baselines={hash: of_base}, changes={"rl__max_answer_tokens": 24})
    with pytest.raises(Conflict, match="on none of this experiment's benchmarks"):
        start(pairs("others", seed=3), baselines={hash: of_base})
    assert start(baselines={hash: of_adapter}, changes={"start_from": run.id})  # it is of that start
    with pytest.raises(NotFound):
        baselines_of(["nothing"])


def test_a_baseline_is_of_the_same_kind_of_subject_and_of_the_same_weights(stage):
    """An endpoint may call its model as the start is called, and a folder may hold other weights by now."""
    trained(stage)
    first = list_experiments()[0].stored.id
    measured = find_evaluation(jobs(stage, first)["start/0"][0].id)
    spec = spec_of(jobs(stage, first)["start/0"][0])
    refuse_other_baseline(measured, spec)
    for changes in ({"kind": "endpoint"}, {"identity": "sha256:other"}, {"sha256": "0" * 64}):
        other = measured.model_copy(update={"subject": measured.subject.model_copy(update=changes)})
        with pytest.raises(Conflict, match="which is not what this experiment starts from"):
            refuse_other_baseline(other, spec)


def test_two_baselines_of_one_benchmark_are_one_too_many(stage):
    ended(stage, start())
    ended(stage, start())
    both = [jobs(stage, one.stored.id)["start/0"][0].id for one in list_experiments()]
    with pytest.raises(InvalidSetting, match=r"are both of benchmark pairs\. Name one baseline for each benchmark"):
        baselines_of(both)
    assert list(baselines_of([both[0], both[0]]).values()) == [both[0]]


def test_an_adapter_is_scored_against_what_it_was_trained_from_and_on_its_own_base_model(stage, tmp_path):
    run = trained(stage)
    other = shutil.copytree(TINY, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    save_file({name: tensor * 1.01 for name, tensor in weights.items()}, other / "model.safetensors")
    with pytest.raises(
        InvalidSetting, match=rf"The adapter of run {run.id} is on tiny .* measures {other} .* other weights"
    ):
        start(adapter_of=run.id, changes={"model": str(other)})
    followed = start(changes={"start_from": run.id})
    ended(stage, followed)
    second = jobs(stage, followed)["train/0"][0]
    with pytest.raises(
        InvalidSetting, match=rf"Run {second.id} was trained from {run.id}, but this experiment measures tiny"
    ):
        start(adapter_of=second.id)
    assert start(adapter_of=second.id, changes={"start_from": run.id})


def test_an_sft_stage_starts_where_the_experiment_does(stage):
    run = trained(stage)
    with pytest.raises(
        InvalidSetting, match=rf"The SFT stage starts from .*{run.id}.*, but the experiment from the base"
    ):
        start(sft=config(**SFT, start_from=run.id))
    with pytest.raises(InvalidSetting, match=r"The SFT stage starts from the base model, but the experiment from"):
        start(sft=config(**SFT), changes={"start_from": run.id})
    with pytest.raises(InvalidSetting, match="The SFT stage trains quantization 4bit, but the experiment"):
        start(sft=config(**SFT, quantization="4bit"))
    id = start(sft=config(**SFT, start_from=run.id), changes={"start_from": run.id})
    assert ended(stage, id).report.benchmarks[0].table.labels == ["start", "base", "SFT", "RL"]
    assert start_of(jobs(stage, id)["sft"][0]) == run.id


def test_what_does_not_go_together_is_refused_before_anything_is_measured(stage):
    run = trained(stage)
    count = len(list_experiments())
    for given, fault, words in (
        ({"seeds": ()}, InvalidSetting, "There are 0 seeds"),
        ({"seeds": tuple(range(21))}, InvalidSetting, "There are 21 seeds"),
        ({"seeds": (1, 1)}, InvalidSetting, "of which 1 differ"),
        ({"answers": 0}, InvalidSetting, "Answers per question is 0"),
        ({"adapter_of": "nothing"}, NotFound, "no run nothing"),
        ({"adapter_of": "tiny"}, NotFound, "no run tiny"),
        ({"adapter_of": run.id, "seeds": (0, 1)}, InvalidSetting, "nothing to train"),
        ({"adapter_of": run.id, "sft": config(**SFT)}, InvalidSetting, "nothing to train"),
    ):
        with pytest.raises(fault, match=words):
            start(**given)
    with pytest.raises(InvalidSetting, match="needs a benchmark"):
        create_experiment(experiment_spec().model_copy(update={"benchmarks": ()}))
    with pytest.raises(NotFound):
        experiments.hashes_of(["nothing"])
    assert len(list_experiments()) == count


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_run_that_stopped_early_with_an_adapter_is_scored(stage):
    id = start()
    stage.ends = {"train/0": ["early"]}
    assert (ended(stage, id).stored.status, stage.order[-1]) == ("done", "score/0/0")


def test_an_evaluation_is_tried_twice(stage):
    id = start()
    stage.ends = {"start/0": ["failed"]}
    assert ended(stage, id).stored.status == "done"
    assert len(jobs(stage, id)["start/0"]) == 2


@pytest.mark.parametrize(("step", "what"), [("start/0", "Evaluation"), ("train/1", "Run"), ("score/0/0", "Evaluation")])
def test_a_step_that_is_lost_for_good_fails_the_experiment_with_the_reason(stage, step, what):
    id = start(seeds=(0, 1))
    stage.ends = {step: ["failed"] * (1 if "train" in step else 2)}
    for _ in range(20):
        stage.pass_()
        stage.stop_at_work()
        if find_experiment(id).stored.ended_at:
            break
        stage.work()
    one = find_experiment(id)
    assert (one.stored.status, one.report) == ("failed", None)
    lost = jobs(stage, id)[step][-1]
    assert one.stored.message == f"{what} {lost.id} of step {step} failed. {lost.message}"
    assert not stage.store.all(statuses=["queued", "starting", "training"])
    with pytest.raises(Conflict, match="is failed: there is nothing to report yet"):
        first_table(one)
    resume_experiment(id)
    assert stage.store.get(lost.id).owner is None
    assert ended(stage, id).stored.status == "done"
    runs = [run for runs in jobs(stage, id).values() for run in runs]
    assert len(runs) == 5
    assert lost.id not in [run.id for run in runs]


def test_what_nobody_has_foreseen_ends_it_in_words(stage, monkeypatch):
    broken = start()
    sound = start(seeds=(5,))
    real = experiments.steps_of_experiment

    def steps(settings):
        if settings.seeds == (0,):
            raise ZeroDivisionError("zebrafish")
        return real(settings)

    monkeypatch.setattr(experiments, "steps_of_experiment", steps)
    ended(stage, sound)
    stored = find_experiment(broken).stored
    assert (stored.status, "ZeroDivisionError" in stored.message, "zebrafish" in str(stage.said)) == (
        "failed",
        True,
        False,
    )


def test_a_step_that_cannot_be_started_ends_it_in_the_words_of_its_fault(stage):
    id = start()
    stage.pass_()
    stage.work()
    shutil.rmtree(ratchet_home() / "benchmarks")
    stage.pass_()  # trains
    stage.work()
    stage.pass_()
    stored = find_experiment(id).stored
    assert stored.status == "failed"
    assert stored.message


# --- stop and resume -------------------------------------------------------------------------------------------------


STOPPED_AT = [
    *matrix(
        ("start/0", "train/0", "score/0/0"),
        ("queued", "begun"),
        ci=lambda step, begun: begun == ("queued" if step == "train/0" else "begun"),
    ),
    ("train/0", "with adapter"),
]


@pytest.mark.parametrize(("step", "begun"), STOPPED_AT)
def test_an_experiment_that_is_stopped_goes_on_with_the_same_jobs(stage, step, begun):
    id = start()
    for _ in range(5):
        stage.pass_()
        if step in jobs(stage, id):
            break
        stage.work()
    if begun != "queued":
        run = stage.begin()
        if begun == "with adapter":
            stage.first_round(run)
    before = ids(stage, id)
    stop_experiment(id)
    for _ in range(3):
        stage.pass_()
        stage.stop_at_work()
    one = find_experiment(id)
    assert (one.stored.status, one.stored.message) == (
        "stopped",
        "Stopped on request. What was measured and trained is kept.",
    )
    assert ids(stage, id) == before
    with pytest.raises(Conflict, match="has already ended"):
        stop_experiment(id)
    resume_experiment(id)
    with pytest.raises(Conflict, match="it continues by itself"):
        resume_experiment(id)
    done = ended(stage, id)
    assert (done.stored.status, set(ids(stage, id))) == ("done", {"start/0", "train/0", "score/0/0"})
    assert all(ids(stage, id)[name] == found for name, found in before.items())
    with pytest.raises(Conflict, match=r"has ended \(done\)\. Nothing is left to do"):
        resume_experiment(id)


def test_an_adapter_that_was_scored_does_not_become_another_one(stage):
    """A user stops the run; its adapter is being scored when the experiment is stopped and gone on with."""
    from ratchet.service.runs import scheduling

    id = start()
    stage.pass_()
    stage.work()
    stage.pass_()
    run = stage.begin()
    stage.first_round(run)
    scheduling.stop(run.id)
    stage.stop_at_work()
    stage.pass_()
    stop_experiment(id)
    stage.pass_()
    stage.pass_()
    assert find_experiment(id).stored.status == "stopped"
    before = stage.store.get(run.id)
    resume_experiment(id)
    assert stage.store.get(run.id) == before
    assert ended(stage, id).stored.status == "done"


def test_experiments_are_listed_by_project_and_have_names(stage):
    first = start(changes={"project": "sums"})
    second = create_experiment(experiment_spec(), name="mine").id
    assert [one.stored.id for one in list_experiments()] == [first, second]
    assert [one.stored.id for one in list_experiments("sums")] == [first]
    assert [one.stored.name for one in list_experiments()] == ["tiny on pairs", "mine"]
    for do in (find_experiment, stop_experiment, resume_experiment):
        with pytest.raises(NotFound, match="There is no experiment nothing"):
            do("nothing")


def test_an_adapter_that_comes_without_a_run_is_a_start_too(stage):
    run = trained(stage)
    imported = stage.adapter
    settings = experiment_spec()
    config = settings.config.model_copy(update={"start_from": StartSettings(adapter=str(imported))})
    one = ended(stage, create_experiment(settings.model_copy(update={"config": config})).id)
    (job,) = jobs(stage, one.stored.id)["start/0"]
    assert (spec_of(job).subject.kind, spec_of(job).subject.run) == ("adapter", None)
    assert spec_of(job).subject.sha256 != run.adapter_sha256
