"""Where a benchmark's questions come from: each source with real rows or rows of its form, the hub without a network."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ratchet.config import MathPairsData
from ratchet.datasets import load, questions
from ratchet.datasets.importing import ImportSettings, import_data
from ratchet.datasets.math_pairs_source import problem_class, solve
from ratchet.datasets.questions import Questions
from ratchet.datasets.readers import table
from ratchet.errors import IncompatibleData, InvalidSetting, NotFound
from ratchet.run.records import Prompt

GSM8K = Path(__file__).parents[3] / "shared/data/gsm8k"
needs_gsm8k = pytest.mark.skipif(not GSM8K.is_dir(), reason="the GSM8K rows are not beside this checkout")
POISON = "zyzzyva"

# Rows of the form of MATH-500, written for this test.
MATH_ROWS = [
    {"problem": "What is $1 + 1$?", "solution": "It is \\boxed{2}.", "answer": "2", "subject": "Algebra", "level": 1, "unique_id": "a/1.json"},
    {"problem": "Halve $x$.", "solution": "\\boxed{\\frac{x}{2}}", "answer": "\\frac{x}{2}", "subject": "Algebra", "level": 5, "unique_id": "a/2.json"},
]  # fmt: skip


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def hub(monkeypatch, commit=None, **splits):
    """Stand in for the hub's library: the same calls, with these splits."""
    asked = []

    class Split(list):
        features = "Value"

    def load_dataset(path, config, revision):
        asked.append((path, config, revision))
        return {name: Split(rows) for name, rows in splits.items()}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr("ratchet.datasets.questions.hub_commit", lambda path, revision: commit)
    return asked


def texts(found):
    return [prompt.messages[-1]["content"] for prompt in found.prompts]


@needs_gsm8k
def test_gsm8k_gives_its_1319_test_rows_and_none_of_its_train_rows():
    found = questions.of_gsm8k(str(GSM8K))
    rows = [json.loads(line) for line in (GSM8K / "test.jsonl").read_text().splitlines()]
    assert texts(found) == [row["question"] for row in rows]
    assert [prompt.id for prompt in found.prompts] == list(range(1, 1320))
    assert found.prompts[0].ground_truth == "18"
    assert {prompt.demonstration for prompt in found.prompts} == {None}
    assert (found.origin, found.difficulty) == (str(GSM8K), "none")
    assert questions.of_gsm8k(str(GSM8K / "test.jsonl")).prompts == found.prompts


def test_gsm8k_on_the_hub_is_asked_for_its_main_configuration_at_a_commit(monkeypatch):
    asked = hub(
        monkeypatch,
        "abc",
        train=[{"question": POISON, "answer": "#### 1"}],
        test=[{"question": "q", "answer": "so\n#### 1,200"}],
    )
    found = questions.of_gsm8k()
    assert asked == [("openai/gsm8k", "main", "abc")]
    assert (texts(found), found.prompts[0].ground_truth) == (["q"], "1200")
    assert found.origin == "openai/gsm8k at abc"


def test_math_500_has_levels_as_difficulty(tmp_path, monkeypatch):
    found = questions.of_math_500(str(write(tmp_path / "test.jsonl", MATH_ROWS).parent))
    assert (texts(found), found.difficulty) == (["What is $1 + 1$?", "Halve $x$."], "number")
    assert [prompt.ground_truth for prompt in found.prompts] == ["2", "\\frac{x}{2}"]
    assert found.prompts[1].extras == {"id": "a/2.json", "difficulty": 5}
    assert found.prompts[1].demonstration is None
    asked = hub(monkeypatch, test=MATH_ROWS)
    assert questions.of_math_500(revision="v1").prompts == found.prompts
    assert asked == [("HuggingFaceH4/MATH-500", None, "v1")]
    words = [{**row, "level": f"Level {row['level']}"} for row in MATH_ROWS]
    assert questions.of_math_500(str(write(tmp_path / "words.jsonl", words))).prompts == found.prompts


def test_a_folder_or_hub_dataset_without_a_test_split_is_refused(tmp_path, monkeypatch):
    write(tmp_path / "train.jsonl", MATH_ROWS)
    with pytest.raises(IncompatibleData, match=r"has no split named test\. Give a folder with test\.jsonl"):
        questions.of_math_500(str(tmp_path))
    hub(monkeypatch, train=MATH_ROWS)
    with pytest.raises(IncompatibleData, match="has no split named test"):
        questions.of_math_500()


def test_bad_rows_are_named_by_number_without_their_texts(tmp_path):
    write(tmp_path / "test.jsonl", [MATH_ROWS[0], {**MATH_ROWS[1], "answer": None, "problem": POISON}])
    with pytest.raises(IncompatibleData, match="row 2: the column answer is missing") as refused:
        questions.of_math_500(str(tmp_path))
    assert POISON not in str(refused.value)
    with pytest.raises(InvalidSetting, match="is no hub dataset"):
        questions.of_math_500(str(tmp_path), "v1")


def test_math_pairs_are_the_held_out_problems_of_runs_with_the_same_numbers_whatever_their_size():
    data = MathPairsData(pairs=2, smallest=1, largest=9, seed=3, heldout=40, prompts=8)
    found = questions.of_math_pairs(data)
    run = load(data.model_copy(update={"prompts": 300}), validation_prompts=64, format_kind="boxed")
    assert texts(found) == [prompt.messages[0]["content"] for prompt in run.heldout]
    assert [int(prompt.ground_truth) for prompt in found.prompts] == [solve(text) for text in texts(found)]
    trained = {problem_class(prompt.messages[0]["content"]) for prompt in (*run.train, *run.validation)}
    assert not trained & set(map(problem_class, texts(found)))
    assert found.origin == "math_pairs: 2 pairs of numbers from 1 to 9, seed 3"
    with pytest.raises(InvalidSetting, match="Held-out prompts is 0"):
        questions.of_math_pairs(data.model_copy(update={"heldout": 0}))


def test_a_dataset_gives_its_test_rows_by_their_numbers_in_the_source(tmp_path):
    rows = [{"prompt": f"q{n}", "answer": str(n), "difficulty": n % 3} for n in range(1, 41)]
    version = import_data(str(write(tmp_path / "rows.jsonl", rows)), ImportSettings())
    found = questions.of_dataset(version.content_hash, "mine@1")
    assert len(found.prompts) == 4
    assert [f"q{prompt.id}" for prompt in found.prompts] == texts(found)
    assert [prompt.extras["difficulty"] for prompt in found.prompts] == [prompt.id % 3 for prompt in found.prompts]
    assert (found.origin, found.difficulty) == ("mine@1", "number")


def test_a_dataset_without_test_rows_makes_no_benchmark(tmp_path):
    write(tmp_path / "d/train.jsonl", [{"prompt": "a", "answer": "1"}])
    write(tmp_path / "d/validation.jsonl", [{"prompt": "b", "answer": "1"}])
    version = import_data(str(tmp_path / "d"), ImportSettings())
    with pytest.raises(IncompatibleData, match=r"mine@1 has no test rows.*--set-aside test"):
        questions.of_dataset(version.content_hash, "mine@1")
    with pytest.raises(NotFound):
        questions.of_dataset("0" * 64, "mine@2")


def test_a_table_is_read_by_a_map_of_columns(tmp_path):
    rows = [{"frage": "a?", "loesung": 7, "how": "so 7"}, {"frage": "b?", "loesung": 8, "how": "so 8"}]
    mapped = {"prompt": "frage", "ground_truth": "loesung", "completion": "how"}
    found = questions.of_table(table([write(tmp_path / "q.jsonl", rows)]), mapped, "here")
    assert texts(found) == ["a?", "b?"]
    assert [(prompt.ground_truth, prompt.demonstration) for prompt in found.prompts] == [("7", "so 7"), ("8", "so 8")]
    with pytest.raises(IncompatibleData, match="has no column question, which prompt was mapped to"):
        questions.of_table(table([tmp_path / "q.jsonl"]), {"prompt": "question"}, "here")


def test_what_cannot_be_written_is_named_by_row(tmp_path):
    file = tmp_path / "q.jsonl"
    file.write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "answer": "1", "difficulty": NaN}\n')
    with pytest.raises(IncompatibleData, match="row 2: what is in difficulty cannot be written as JSON"):
        questions.of_table(table([file]), {}, "here")


@pytest.mark.parametrize(
    ("given", "kind", "kept"),
    [
        ([], "none", [None, None]),
        ([1, 2.5], "number", [1, 2.5]),
        (["3", " 4.0 "], "number", [3, 4]),
        (["easy", "hard "], "label", ["easy", "hard"]),
        (["easy", 4], "label", ["easy", "4"]),
        ([1, None], "number", [1, None]),
        (["easy", ""], "label", ["easy", None]),
        ([[1], 2], "none", [None, None]),
        ([True, 2], "none", [None, None]),
        (["nan", "1"], "label", ["nan", "1"]),
    ],
)
def test_difficulties_are_all_numbers_or_all_words(given, kind, kept):
    extras = [{"difficulty": value} for value in given] or [{}, {}]
    prompts = [Prompt(n, ({"role": "user", "content": "q"},), "1", extra) for n, extra in enumerate(extras, start=1)]
    found = Questions.of(prompts, "here")
    assert found.difficulty == kind
    assert [prompt.extras.get("difficulty") for prompt in found.prompts] == kept
