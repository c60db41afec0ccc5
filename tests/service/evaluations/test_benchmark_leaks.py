"""The leak guard and the user's benchmarks: what is asked there may not be trained on, and is named once."""

import json

import pytest

from ratchet.config import FinalNumberVerifier
from ratchet.config.config_text import build
from ratchet.datasets import benchmark_folders
from ratchet.datasets.importing import ImportSettings
from ratchet.datasets.math_pairs_source import problem_class
from ratchet.datasets.version_folders import versions_home
from ratchet.errors import IncompatibleData
from ratchet.service import check_run
from ratchet.service.data import datasets
from ratchet.service.evaluations import benchmarks

POISON = "zyzzyva"


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def asks(*texts):
    return [{"prompt": f"{POISON} {text}", "ground_truth": "1"} for text in texts]


def checked(data):
    """Return the faults and warnings of a run, as texts; none of them may hold the text of a row."""
    report = check_run(
        build(
            {
                "data": data,
                "model": "tiny",
                "device": "cpu",
                "verifier": {"kind": "final_number"},
                "window_tokens": 500,
                "rl": {"max_answer_tokens": 16, "validation_prompts": 2, "prompts_per_round": 2},
            }
        )
    )
    report.close()
    told = [*map(str, report.faults), *report.warnings]
    assert POISON not in str(told)
    leaks = [
        str(fault) for fault in report.faults if isinstance(fault, IncompatibleData) and "two splits" in str(fault)
    ]
    return leaks, list(report.warnings)


@pytest.fixture
def on_rows(tmp_path):
    """Return the settings of data with four rows to train on, read from files."""
    write(tmp_path / "run/train.jsonl", asks("a", "b", "c", "d"))
    write(tmp_path / "run/validation.jsonl", asks("v", "w"))
    return {"source": "boxed", "path": str(tmp_path / "run")}


@pytest.fixture
def bundle(tmp_path):
    def add(*texts, folder="bundle", name="own"):
        place = tmp_path / folder
        write(place / "q.jsonl", asks(*texts))
        (place / "benchmark.yaml").write_text("name: own\ndata: q.jsonl\nverifier: {kind: final_number}\n")
        return benchmarks.add_bundle(place, name)

    return add


def test_questions_of_a_benchmark_may_not_be_trained_on(on_rows, bundle):
    assert checked(on_rows)[0] == []
    bundle("x", "C!", "W")
    [leak] = checked(on_rows)[0]
    assert leak.startswith("2 rows appear in two splits")
    assert "training row 3 and benchmark own row 2; validation row 2 and benchmark own row 3." in leak
    benchmarks.remove("own")
    assert checked(on_rows)[0] == []


def test_a_benchmark_beside_the_data_is_compared_all_the_same(on_rows, bundle):
    bundle("b", folder="run")
    [leak] = checked(on_rows)[0]
    assert "training row 2 and benchmark own row 1" in leak


def test_a_benchmark_whose_questions_are_gone_is_told_and_stops_no_run(on_rows, bundle):
    added = bundle("c")
    benchmark_folders.discard(added.benchmark.content_hash)
    bundle("unlike", folder="another", name="another")
    leaks, warnings = checked(on_rows)
    assert leaks == []
    assert any("could not be compared with benchmark own rows" in warning for warning in warnings)


def test_a_benchmark_of_a_dataset_is_named_once(on_rows, tmp_path):
    write(tmp_path / "d/train.jsonl", asks("o"))
    write(tmp_path / "d/test.jsonl", asks("x", "d"))
    datasets.add(str(tmp_path / "d"), "other")
    benchmarks.add_dataset("others", "other", FinalNumberVerifier())
    [leak] = checked(on_rows)[0]
    assert leak.startswith("1 row appears")
    assert "training row 4 and test of dataset other@1 row 2." in leak
    # The dataset's own folder is gone, the benchmark is still here.
    [version] = [path for path in versions_home().iterdir() if (path / "test.jsonl").is_file()]
    (version / "test.jsonl").unlink()
    [leak] = checked(on_rows)[0]
    assert "training row 4 and benchmark others row 2." in leak


def test_a_benchmark_of_the_runs_own_test_rows_is_named_once(tmp_path):
    write(tmp_path / "d/train.jsonl", asks("a", "b", "c"))
    write(tmp_path / "d/validation.jsonl", asks("v"))
    write(tmp_path / "d/test.jsonl", asks("x", "B"))
    datasets.add(str(tmp_path / "d"), "mine")
    data = {"source": "dataset", "name": "mine"}
    before = checked(data)
    assert before[0][0].startswith("1 row appears")
    assert "training row 2 and test row 2." in before[0][0]
    benchmarks.add_dataset("own", "mine", FinalNumberVerifier())
    assert checked(data) == before


def test_a_benchmark_of_another_version_of_the_runs_data_is_as_that_version_is(tmp_path):
    file = write(tmp_path / "rows.jsonl", asks(*map(str, range(40))))
    datasets.add(str(file), "mine")
    datasets.add(str(file), "mine", ImportSettings(seed=1))
    benchmarks.add_dataset("second", "mine@2", FinalNumberVerifier())
    assert checked({"source": "dataset", "name": "mine@1"})[0] == []
    assert checked({"source": "boxed", "path": str(file)})[0] == []


def test_gsm8k_test_rows_beside_the_train_rows_and_as_a_benchmark_are_named_once(tmp_path):
    def rows(*texts):
        return [{"question": f"{POISON} {text}", "answer": "so\n#### 7"} for text in texts]

    folder = tmp_path / "gsm8k"
    write(folder / "train.jsonl", rows("a", "b", "c", "d", "e", "f"))
    write(folder / "test.jsonl", rows("x", "B"))
    benchmarks.add_built_in("gsm8k", path=str(folder))
    [leak] = checked({"source": "gsm8k", "path": str(folder)})[0]
    assert leak.startswith("1 row appears")
    assert "row 2 and test row 2." in leak
    # Read from elsewhere, the benchmark is what is left to be compared with.
    copy = write(tmp_path / "copy/train.jsonl", rows("a", "b", "c", "d", "e", "f"))
    [leak] = checked({"source": "gsm8k", "path": str(copy)})[0]
    assert "row 2 and benchmark gsm8k row 2." in leak


# --- math pairs ------------------------------------------------------------------------------------------------------


def pairs_of(**data):
    return {"source": "math_pairs", "prompts": 40, "heldout": 8, **data}


def test_math_pairs_of_the_same_numbers_and_seed_share_nothing_with_the_benchmark_whatever_their_size():
    benchmarks.find_benchmark("math-pairs")
    assert checked(pairs_of())[0] == []
    assert checked(pairs_of(prompts=600, heldout=0))[0] == []


def test_math_pairs_of_another_seed_that_are_questions_of_a_benchmark_refuse_the_run():
    found = benchmarks.find_benchmark("math-pairs")
    _, asked = benchmark_folders.read(found.content_hash)
    report = check_run(build({"data": pairs_of(seed=1), "rl": {"max_answer_tokens": 16, "validation_prompts": 2}}))
    read = [*report.rows.dataset.train, *report.rows.dataset.validation]
    report.close()
    classes = {problem_class(prompt.messages[0]["content"]) for prompt in read}
    shared = [prompt.id for prompt in asked if problem_class(prompt.messages[0]["content"]) in classes]
    [leak] = checked(pairs_of(seed=1))[0]
    assert leak.startswith(f"{len(shared)} rows appear in two splits that must not overlap, the same problem up to the")
    assert len(shared) > 1
    assert f"and benchmark math-pairs row {shared[0]};" in leak
    assert "remove the benchmark (ratchet bench remove)" in leak


def test_math_pairs_are_compared_as_problems_with_benchmarks_of_any_kind(tmp_path):
    report = check_run(build({"data": pairs_of(), "rl": {"max_answer_tokens": 16}}))
    first = report.rows.dataset.train[0].messages[0]["content"]
    report.close()
    (a, b), *others = problem_class(first)
    turned = " * ".join(f"({y} + {x})" for x, y in [*others, (a, b)])
    write(tmp_path / "b/q.jsonl", [{"prompt": "no problem", "answer": "1"}, {"prompt": turned, "answer": "1"}])
    (tmp_path / "b/benchmark.yaml").write_text("name: own\ndata: q.jsonl\nverifier: {kind: final_number}\n")
    benchmarks.add_bundle(tmp_path / "b")
    [leak] = checked(pairs_of())[0]
    assert "1 row appears in two splits" in leak
    assert "training row 1 and benchmark own row 2." in leak
    # Of a dataset too, whose test rows are not compared otherwise.
    benchmarks.remove("own")
    write(tmp_path / "d/train.jsonl", asks("o"))
    write(tmp_path / "d/test.jsonl", [{"prompt": turned, "ground_truth": "1"}])
    datasets.add(str(tmp_path / "d"), "pairs")
    assert checked(pairs_of())[0] == []
    benchmarks.add_dataset("of-pairs", "pairs", FinalNumberVerifier())
    [leak] = checked(pairs_of())[0]
    assert "training row 1 and benchmark of-pairs row 1." in leak
