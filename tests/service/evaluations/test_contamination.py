"""Has an adapter been trained on the questions that it is evaluated on? A verdict is given only where it has not."""

import json
import re
import shutil

import pytest

from ratchet import worker
from ratchet.config.config_text import build
from ratchet.datasets import benchmark_folders, load
from ratchet.errors import InvalidSetting
from ratchet.readiness.start_adapter import with_start
from ratchet.run.run_folder import RunFolder
from ratchet.service.data import datasets
from ratchet.service.evaluations import benchmarks, evaluation_catalogue
from ratchet.service.evaluations.evaluation_setup import Request
from ratchet.service.evaluations.evaluations import evaluate
from ratchet.service.runs.start_checks import check_run

from ...small_evaluations import few, files_of, made, request
from ...small_runs import SMALL, journal, small, trained

NARROW = {"source": "math_pairs", "prompts": 20, "heldout": 6, "pairs": 2, "smallest": 1, "largest": 4}


def of_one_round(place, data, **changes):
    return trained(place, data=data, rl={**SMALL["rl"], "rounds": 1}, **changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of one round on problems of small numbers, which repeat soon; tests only read it."""
    home = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_HOME", str(home / "home"))
        return of_one_round(home / "run", NARROW)


def problem(text):
    """Return a Math Pairs problem as pairs of numbers without their order: an independent reading of it."""
    return tuple(sorted(tuple(sorted(map(int, pair))) for pair in re.findall(r"\((\d+) \+ (\d+)\)", text)))


def narrow(name, seed):
    """Keep a benchmark of the run's kind of problems by another seed; return its questions' problems by number."""
    settings = {key: NARROW[key] for key in ("pairs", "smallest", "largest")}
    benchmarks.add_built_in("math-pairs", {**settings, "heldout": 10, "seed": seed}, name=name)
    _, prompts = benchmark_folders.read(benchmarks.find_benchmark(name).content_hash)
    return {prompt.id: problem(prompt.messages[-1]["content"]) for prompt in prompts}


def problems_of(run):
    config = run.read_config()
    rows = load(config.data, validation_prompts=config.rl.validation_prompts, format_kind="off")
    return {problem(prompt.messages[-1]["content"]) for prompt in (*rows.train, *rows.validation)}


def spec_of(asked):
    return files_of(made(asked)).spec()


def said_numbers(withheld):
    return [int(number) for number in re.search(r"\(([\d, ]+)\)", withheld)[1].split(",")]


def copy_of(run, place, **record):
    """Return a copy of a run as a run of its own, with other things in its record."""
    folder = RunFolder(shutil.copytree(run.path, place))
    record["id"] = f"{run.run_id[:-4]}{len(place.name):04x}"
    folder.run_path.write_text(json.dumps({**json.loads(folder.run_path.read_bytes()), **record}))
    return folder


def apples(file, rows):
    """Keep rows as the next version of the dataset apples."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return datasets.add(str(file), "apples")


APPLES = [{"prompt": f"What do {n} apples and one more apple make?", "answer": str(n + 1)} for n in range(30)]


def test_questions_that_came_later_than_the_run_are_compared_with_its_rows_and_allow_no_verdict(run):
    questions = narrow("later", 3)
    expected = [number for number, one in questions.items() if one in problems_of(run)]
    assert 0 < len(expected) < len(questions)
    evaluation = evaluate(request(str(run.path), "later"))
    withheld = evaluation.scores.withheld
    assert said_numbers(withheld) == expected
    assert withheld.startswith(
        f"{len(expected)} of the 10 questions are rows that run {run.run_id} was trained or selected on"
    )
    assert any(event.get("text") == withheld for event in journal(RunFolder.at(evaluation.folder)))
    base = evaluate(request(str(run.path), "later", of_start=True))
    assert base.scores.withheld == ""
    table, _ = evaluation_catalogue.compare_evaluations([base.id, evaluation.id])
    (difference,) = (one.main for one in table.comparisons)
    assert difference.verdict == "withheld"
    assert withheld in difference.sentence


def test_a_benchmark_of_the_same_problems_shares_none_with_the_run(run):
    narrow("same", 0)
    assert spec_of(request(str(run.path), "same")).withheld == ""
    assert spec_of(request(str(run.path), "same")).notes == ()


def test_only_what_is_asked_counts(run):
    questions = narrow("later", 3)
    known = problems_of(run)
    clean = tuple(number for number, one in questions.items() if one not in known)
    first = next(number for number, one in questions.items() if one in known)
    assert spec_of(request(str(run.path), "later", only=clean)).withheld == ""
    one = spec_of(request(str(run.path), "later", only=(*clean, first))).withheld
    assert one.startswith(f"1 of the {len(clean) + 1} questions is a row that run")
    assert said_numbers(one) == [first]


def test_other_versions_of_the_runs_own_data_are_compared_too(tmp_path):
    """The check before a run leaves them out: they share rows by nature."""
    first = apples(tmp_path / "apples.jsonl", APPLES)
    apples(tmp_path / "apples.jsonl", [{**row, "prompt": row["prompt"].upper()} for row in APPLES[::-1]])
    data = {"source": "dataset", "name": "apples", "version": 1, "content_hash": first.content_hash}
    verifier = {"kind": "final_number"}
    eater = of_one_round(tmp_path / "eater", data, verifier=verifier)
    benchmarks.add_dataset("apples-test", "apples@2", build({"verifier": verifier}).verifier)
    check_run(build({**SMALL, "data": data, "verifier": verifier})).close()
    spec = spec_of(request(str(eater.path), "apples-test"))
    _, prompts = benchmark_folders.read(spec.benchmark_hash)
    known = load(eater.read_config().data, validation_prompts=6, format_kind="off")
    texts = {prompt.messages[-1]["content"].upper() for prompt in (*known.train, *known.validation)}
    expected = [prompt.id for prompt in prompts if prompt.messages[-1]["content"] in texts]
    assert expected
    assert said_numbers(spec.withheld) == expected


def test_what_a_run_has_read_is_known_after_its_data_has_changed(tmp_path):
    rows = [{"prompt": row["prompt"], "ground_truth": row["answer"]} for row in APPLES]
    file = tmp_path / "data" / "train.jsonl"
    file.parent.mkdir()
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    eater = of_one_round(tmp_path / "eater", {"source": "boxed", "path": str(file.parent), "seed": 0})
    apples(tmp_path / "apples.jsonl", APPLES)
    benchmarks.add_dataset("apples-test", "apples", build({"verifier": {"kind": "final_number"}}).verifier)
    before = spec_of(request(str(eater.path), "apples-test")).withheld
    assert "are rows that run" in before
    file.write_text(json.dumps({"prompt": "1 + 1", "ground_truth": "2"}) + "\n")
    assert spec_of(request(str(eater.path), "apples-test")).withheld == before
    assert "apples" not in eater.row_keys_path.read_bytes().decode("latin-1")


def test_the_runs_that_an_adapter_comes_from_count_as_well(run, tmp_path):
    narrow("later", 3)
    wide = {"source": "math_pairs", "prompts": 32, "heldout": 6, "smallest": 50, "largest": 90}
    config = small(rounds=1, start_from=str(run.path)).model_copy(update={"data": build({"data": wide}).data})
    follower = RunFolder.create(with_start(config).config, tmp_path / "follower")
    worker.run(follower)
    shutil.rmtree(follower.rollouts_path)
    spec = spec_of(request(str(follower.path), "later"))
    assert f"run {run.run_id} was trained or selected on" in spec.withheld
    assert follower.run_id not in spec.withheld
    assert spec.withheld == spec_of(request(str(run.path), "later")).withheld


def test_the_start_of_a_run_is_judged_by_what_that_was_trained_on(run, tmp_path):
    narrow("later", 3)
    config = small(rounds=1, start_from=str(run.path))
    follower = RunFolder.create(with_start(config).config, tmp_path / "follower")
    of_start = spec_of(Request(str(follower.path), "later", of_start=True))
    assert f"run {run.run_id} was trained or selected on" in of_start.withheld
    assert follower.run_id not in of_start.withheld
    again = RunFolder.create(
        with_start(small(rounds=1, start_from=str(follower.start_path))).config, tmp_path / "again"
    )
    assert again.read_run()["start"]["run"] == run.run_id


def test_what_cannot_be_told_is_said(run, tmp_path):
    few()
    imported = spec_of(request(str(shutil.copytree(run.adapter_path, tmp_path / "sums")), changes={"model": "tiny"}))
    assert imported.withheld == ""
    assert imported.notes == (
        "What the adapter sums was trained on is unknown, so contamination by these questions cannot be excluded.",
    )
    gone = {"sha256": "0" * 64, "folder": str(tmp_path / "gone" / "adapter"), "run": "r260101-000000-abcd"}
    orphan = copy_of(run, tmp_path / "orphan", start=gone)
    (note,) = spec_of(request(str(orphan.path))).notes
    assert note.startswith("Cannot check whether run r260101-000000-abcd was trained on these questions: ")
    forgetful = copy_of(run, tmp_path / "forgetful")
    forgetful.row_keys_path.unlink()
    (note,) = spec_of(request(str(forgetful.path))).notes
    assert note.startswith(f"Cannot check whether run {forgetful.run_id} was trained on these questions: ")
    evaluation = evaluate(request(str(forgetful.path)))
    assert note in evaluation.scores.warnings
    forgetful.row_keys_path.write_bytes(b"torn")
    (note,) = spec_of(request(str(forgetful.path))).notes
    assert "damaged" in note


def test_settings_that_play_no_part_are_refused_by_name():
    few()
    with pytest.raises(InvalidSetting, match=r"^learning_rate, rl\.rounds play no part in an evaluation") as caught:
        made(request(changes={"rounds": "3", "learning_rate": "1e-3", "temperature": "0.5"}))
    assert caught.value.field == "learning_rate"
