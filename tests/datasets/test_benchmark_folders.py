"""Folders of benchmarks: what was kept is read back, damage is found, and only what is measured decides the hash."""

import hashlib
import json
import os
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratchet.config import FinalNumberVerifier, StructuredJsonVerifier, WorkedExample
from ratchet.datasets import benchmark_folders
from ratchet.datasets.reference_sets import ReferenceSet, texts
from ratchet.errors import Conflict, NotFound
from ratchet.evaluation.benchmark import BenchmarkSpec, Harness
from ratchet.run.records import Prompt

PROMPTS = (
    Prompt(7, ({"role": "system", "content": "s"}, {"role": "user", "content": "a\u2028b\rc"}), "1", {"difficulty": 2}),
    Prompt(9, ({"role": "user", "content": "ß?"},), "", {"tests": ["assert f() == 1"], "tools": [{"name": "t"}]}),
)


def spec_of(content, **changes):
    usual = {
        "name": "mine",
        "source": "bundle",
        "origin": "/somewhere",
        "harness": Harness(worked_examples=(WorkedExample(user="q", assistant="a"),)),
        "verifier": StructuredJsonVerifier(schema={"type": "object"}),
        "questions": 2,
        "questions_sha256": hashlib.sha256(content).hexdigest(),
    }
    return BenchmarkSpec(**{**usual, **changes})


@pytest.fixture
def kept():
    questions = benchmark_folders.written(PROMPTS)
    return benchmark_folders.keep(spec_of(questions), questions)


def folder(content_hash):
    return benchmark_folders.benchmarks_home() / content_hash


def test_what_was_kept_is_read_back_numbered_from_1(kept):
    spec, prompts = benchmark_folders.read(kept)
    assert spec == spec_of(benchmark_folders.written(PROMPTS))
    assert kept == spec.content_hash
    assert [prompt.id for prompt in prompts] == [1, 2]
    for read, one in zip(prompts, PROMPTS, strict=True):
        assert (read.messages, read.ground_truth, read.extras) == (one.messages, one.ground_truth, one.extras)
    assert [row.text for row in texts(ReferenceSet("b", benchmark_folders.questions_file(kept)))] == [
        "a\u2028b\rc",
        "ß?",
    ]


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.text(min_size=1), st.text()), min_size=1, max_size=5))
def test_any_text_comes_back(pairs):
    prompts = [Prompt(1, ({"role": "user", "content": text},), truth) for text, truth in pairs]
    questions = benchmark_folders.written(prompts)
    content_hash = benchmark_folders.keep(spec_of(questions, questions=len(prompts)), questions)
    _, read = benchmark_folders.read(content_hash)
    assert [(prompt.messages[0]["content"], prompt.ground_truth) for prompt in read] == pairs


def test_only_the_owner_can_read_it_and_nothing_else_is_left(kept):
    home = benchmark_folders.benchmarks_home()
    assert [path.name for path in home.iterdir()] == [kept]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (home, folder(kept), *folder(kept).iterdir())}
    assert modes == {"benchmarks": 0o700, kept: 0o700, "benchmark.json": 0o600, "questions.jsonl": 0o600}


def test_name_origin_and_description_decide_nothing_and_the_last_ones_are_kept(kept):
    questions = benchmark_folders.written(PROMPTS)
    assert benchmark_folders.keep(spec_of(questions, name="other", origin="/x", description="d"), questions) == kept
    assert benchmark_folders.read_spec(kept).name == "other"
    changed = [
        spec_of(questions, verifier=FinalNumberVerifier()),
        spec_of(questions, harness=Harness(system_prompt="s")),
        spec_of(questions, score_columns=("answered", "accuracy")),
        spec_of(questions, max_answer_tokens=64),
        spec_of(b"", questions=0),
    ]
    assert len({kept, *(spec.content_hash for spec in changed)}) == len(changed) + 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "questions.jsonl").write_bytes((folder / "questions.jsonl").read_bytes()[:-1]),
        lambda folder: (folder / "questions.jsonl").unlink(),
        lambda folder: (folder / "benchmark.json").write_text("{"),
        lambda folder: (folder / "benchmark.json").write_text("[]"),
        lambda folder: (folder / "benchmark.json").write_text(
            (folder / "benchmark.json").read_text().replace('"questions": 2', '"questions": 3')
        ),
    ],
)
def test_damage_is_found_and_adding_again_brings_it_back(kept, damage):
    damage(folder(kept))
    with pytest.raises(Conflict, match="is not as it was when the benchmark was added"):
        benchmark_folders.read(kept)
    questions = benchmark_folders.written(PROMPTS)
    assert benchmark_folders.keep(spec_of(questions), questions) == kept
    assert len(benchmark_folders.read(kept)[1]) == 2
    assert os.listdir(benchmark_folders.benchmarks_home()) == [kept]


def test_what_is_not_there_is_not_found(kept):
    benchmark_folders.discard(kept)
    with pytest.raises(NotFound, match=f"The benchmark {kept[:12]} is not in"):
        benchmark_folders.read(kept)
    benchmark_folders.discard(kept)


def test_a_setting_that_a_later_version_brings_makes_no_benchmark_another_one(kept):
    """A file of a version that knew fewer settings: its hash is of what it holds, not of what is read in it."""
    file = folder(kept) / "benchmark.json"
    record = json.loads(file.read_text())
    del record["difficulty"], record["reward"]["overlong_buffer_tokens"]
    older = benchmark_folders._hash_of(record)
    os.rename(folder(kept), folder(older))
    (folder(older) / "benchmark.json").write_text(json.dumps(record))
    spec, prompts = benchmark_folders.read(older)
    assert (spec.difficulty, len(prompts)) == ("none", 2)
    assert spec.content_hash != older
