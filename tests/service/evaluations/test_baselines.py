"""The baseline of a run: an evaluation of its data that supplies verifier and metric where the run names none."""

import json
import shutil

import pytest

from ratchet import service, worker
from ratchet.config import (
    FinalNumberVerifier,
    MathPairsVerifier,
    QaVerifier,
    RewardSettings,
    StructuredJsonVerifier,
)
from ratchet.config.config_text import build
from ratchet.datasets import benchmark_folders
from ratchet.errors import Conflict, InvalidSetting, NotFound
from ratchet.run.run_folder import RunFolder
from ratchet.service.data import datasets
from ratchet.service.data.datasets import with_version
from ratchet.service.evaluations import benchmarks, evaluation_catalogue, evaluations
from ratchet.service.evaluations.benchmarks import Choices
from ratchet.service.evaluations.evaluations import evaluate
from ratchet.service.runs.start_checks import with_baseline
from ratchet.service.verification.report_gate import Consent

from ...small_evaluations import few, request
from ...small_runs import SMALL, flags, small


def add_rows(place, name, answer=lambda truth: truth):
    """Add a dataset of Math Pairs problems, all splits filled; add it again for a new version."""
    few("source", 44)
    _, prompts = benchmark_folders.read(benchmarks.find_benchmark("source").content_hash)
    rows = [{"prompt": one.messages[-1]["content"], "answer": answer(one.ground_truth)} for one in prompts]
    folder = place / name
    folder.mkdir(parents=True)
    for split, lines in (("train", rows[:32]), ("validation", rows[32:40]), ("test", rows[40:])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    datasets.add(str(folder), name)
    benchmarks.remove("source")  # it has the same questions as the rows to train on


@pytest.fixture
def measured(tmp_path):
    """Return a function that evaluates the test rows of a new dataset with a verifier; returns the evaluation's id."""

    def measure(verifier, main=None, name="mine", answer=lambda truth: truth, **choices):
        add_rows(tmp_path, name, answer)
        benchmarks.add_dataset(f"{name}-test", name, verifier, Choices(main=main, **choices))
        return evaluate(request(benchmark=f"{name}-test")).id

    return measure


def settings(baseline, name="mine", **changes):
    """Return settings of a run on a dataset that name a baseline and, if they are not given, no verifier."""
    rl = {**SMALL["rl"], "rounds": 1, "validation_prompts": 4}
    return build(
        {
            "model": "tiny",
            "data": {"source": "dataset", "name": name},
            "prompt": {"system_prompt": ""},
            "rl": rl,
            "learning_rate": 2e-3,
            "baseline": baseline,
            **changes,
        }
    )


def filled(config):
    return with_baseline(with_version(config))


def test_without_a_baseline_nothing_changes():
    config = small()
    assert with_baseline(config) is config


@pytest.mark.parametrize(
    ("verifier", "main", "metric"),
    [
        (QaVerifier(), "token_f1", "token_f1"),
        (QaVerifier(), None, "normalized_exact_match"),
        (QaVerifier(metric="token_f1"), None, "token_f1"),
        (QaVerifier(metric="token_f1"), "normalized_exact_match", "normalized_exact_match"),
    ],
)
def test_what_was_measured_is_what_is_trained_on(measured, verifier, main, metric):
    config = filled(settings(measured(verifier, main)))
    assert (config.verifier.kind, config.verifier.metric) == ("qa", metric)


def test_a_metric_of_structured_answers_is_taken_over_with_its_schema(measured):
    verifier = StructuredJsonVerifier(schema={"type": "object"})
    baseline = measured(verifier, "json_exact_match", answer=lambda truth: json.dumps({"sum": int(truth)}))
    found = filled(settings(baseline)).verifier
    assert (found.kind, found.metric, found.json_schema) == ("structured_json", "json_exact_match", {"type": "object"})


def test_reading_and_form_are_those_that_were_measured_unless_the_run_says_otherwise(measured):
    baseline = measured(FinalNumberVerifier(read="answer_tag"), reward=RewardSettings(format_bonus="tags"))
    config = filled(settings(baseline))
    assert (config.verifier.read, config.reward.format_bonus) == ("answer_tag", "tags")
    assert filled(settings(baseline, reward={"format_bonus": "off"})).reward.format_bonus == "off"


def test_the_verifier_of_the_run_itself_wins(measured):
    baseline = measured(QaVerifier(), "token_f1")
    own = settings(baseline, verifier={"kind": "final_number"})
    assert filled(own).verifier == own.verifier


@pytest.mark.parametrize(
    ("verifier", "main", "choices"),
    [
        (QaVerifier(), "answered", {}),
        (FinalNumberVerifier(), "format", {"reward": RewardSettings(format_bonus="tags")}),
        (MathPairsVerifier(), "accuracy_strict", {}),
    ],
)
def test_a_main_metric_that_cannot_be_a_reward_gives_no_default(measured, verifier, main, choices):
    baseline = measured(verifier, main, **choices)
    with pytest.raises(InvalidSetting, match=f"main metric, {main}, cannot be a reward") as refused:
        filled(settings(baseline))
    assert refused.value.field == "verifier.kind"
    own = settings(baseline, verifier={"kind": "qa"})
    assert filled(own).verifier.kind == "qa"


@pytest.mark.parametrize("changes", [{"seed": 5}, {"largest": 8}, {"pairs": 3}])
def test_math_pairs_of_other_numbers_or_another_seed_are_other_data(changes):
    few()
    baseline = evaluate(request()).id
    data = {"source": "math_pairs", "prompts": 32, "heldout": 6}
    assert with_baseline(build({**SMALL, "data": data, "baseline": baseline})).verifier.kind == "math_pairs"
    with pytest.raises(InvalidSetting, match="Choose a baseline of the same data"):
        with_baseline(build({**SMALL, "data": {**data, **changes}, "baseline": baseline}))


def test_a_baseline_of_other_data_is_refused(measured, tmp_path):
    baseline = measured(QaVerifier())
    add_rows(tmp_path, "other", lambda truth: f"{truth}.")
    with pytest.raises(InvalidSetting, match=r"made from mine@1, not from this run's data \(other@1\)") as refused:
        filled(settings(baseline, "other"))
    assert refused.value.field == "baseline"
    with pytest.raises(InvalidSetting, match=r"not from this run's data \(math_pairs: 2 pairs"):
        with_baseline(small(baseline=baseline))
    shutil.rmtree(tmp_path / "mine")
    add_rows(tmp_path, "mine", lambda truth: f"{truth}!")
    with pytest.raises(InvalidSetting, match=r"made from mine@1, not from this run's data \(mine@2\)"):
        filled(settings(baseline))
    assert filled(settings(baseline, data={"source": "dataset", "name": "mine", "version": 1})).verifier.kind == "qa"


def test_a_built_in_baseline_is_of_its_own_source_and_no_other(tmp_path):
    few()
    pairs = evaluate(request()).id
    assert with_baseline(small(baseline=pairs)).verifier.kind == "math_pairs"
    boxed = tmp_path / "gsm8k: boxed"  # a name that holds those of sources
    boxed.mkdir()
    (boxed / "train.jsonl").write_text('{"problem": "1 + 1", "solution": "\\\\boxed{2}"}\n')
    with pytest.raises(InvalidSetting, match=r"not from this run's data \(boxed\)"):
        with_baseline(build({"data": {"source": "boxed", "path": str(boxed)}, "baseline": pairs}))
    (boxed / "test.jsonl").write_text('{"question": "1 + 1?", "answer": "so #### 2"}\n')
    benchmarks.add_built_in("gsm8k", path=str(boxed))
    school = evaluate(request(benchmark="gsm8k")).id
    assert with_baseline(build({"data": {"source": "gsm8k"}, "baseline": school})).verifier.kind == "final_number"
    with pytest.raises(InvalidSetting, match=r"not from this run's data \(boxed\)"):
        with_baseline(build({"data": {"source": "boxed", "path": str(boxed)}, "baseline": school}))


def test_a_baseline_must_be_there_and_completed():
    few()
    with pytest.raises(NotFound):
        with_baseline(small(baseline="nobody"))
    waiting = evaluations.queue_evaluation(request())
    with pytest.raises(Conflict, match=f"Baseline {waiting.run} is queued: only a completed evaluation"):
        with_baseline(small(baseline=waiting.run))


def test_a_run_is_no_baseline(tmp_path):
    folder = RunFolder.create(small().resolved(), tmp_path / "run")
    with pytest.raises(Conflict, match="is not an evaluation"):
        with_baseline(small(baseline=str(folder.path)))


# --- where it ends up ------------------------------------------------------------------------------------------------


def test_the_check_of_a_run_shows_what_its_baseline_supplies(measured, ratchet_command):
    baseline = measured(QaVerifier(), "token_f1")
    given = [word for word in flags(rounds=1, validation_prompts=4, baseline=baseline) if word != "--inspected"]
    given = [word.replace("math_pairs", "dataset") for word in given]
    for option in ("--prompts", "--heldout"):
        place = given.index(option)
        del given[place : place + 2]
    code, out, err = ratchet_command("train", *given, "--data.name", "mine", "--check", "--json")
    assert code == 0, err
    told = json.loads(out.splitlines()[-1])
    assert told["ready"] is True
    assert (told["config"]["verifier"]["kind"], told["config"]["verifier"]["metric"]) == ("qa", "token_f1")
    assert told["config"]["baseline"] == baseline
    assert told["notes"][0] == f"Verifier and metric are taken from the baseline {baseline}."
    code, out, err = ratchet_command(
        "train", *given, "--data.name", "mine", "--verifier.kind", "final_number", "--check", "--json"
    )
    assert json.loads(out.splitlines()[-1])["notes"][0].startswith("The verifier is this run's own"), err
    code, out, err = ratchet_command(
        "train", *given, "--data.name", "mine", "--baseline", "nobody", "--check", "--json"
    )
    assert (code, "There is no run nobody" in err) == (3, True), err
    assert json.loads(out.splitlines()[-1])["error"]["message"] in err


@pytest.mark.slow
def test_a_run_is_trained_on_what_was_measured_and_keeps_it_without_its_baseline(measured, tmp_path):
    baseline = measured(QaVerifier(), "token_f1")
    out = tmp_path / "run"
    service.create_and_train(settings(baseline), out, ask=lambda report: Consent("api", override="no more than a test"))
    folder = RunFolder(out)
    config = folder.read_config()
    assert (config.verifier.kind, config.verifier.metric, config.baseline) == ("qa", "token_f1", baseline)
    graded = [answer for row in folder.read_rollouts(1) for answer in row["answers"]]
    assert any(0 < answer["correctness"] < 1 for answer in graded)  # by shares of words, not by whole answers
    shutil.rmtree(evaluation_catalogue.find_evaluation(baseline).folder)
    again = RunFolder.create(config, tmp_path / "again")
    worker.run(again)
    assert again.read_rollouts(1) == folder.read_rollouts(1)
