"""Benchmarks as a surface has them: made of each source, tried before they are kept, found again, listed and removed."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from ratchet.config import (
    ClassificationVerifier,
    CodeVerifier,
    CompositePart,
    CompositeVerifier,
    CustomVerifier,
    FinalNumberVerifier,
    MathPairsVerifier,
    MathVerifier,
    NumericVerifier,
    PythonVerifier,
    QaVerifier,
    RewardSettings,
    StructuredJsonVerifier,
)
from ratchet.datasets import benchmark_folders
from ratchet.datasets.importing import ImportSettings
from ratchet.errors import Conflict, IncompatibleData, InvalidSetting, MetricRefused, NotFound, SandboxUnavailable
from ratchet.evaluation.benchmark import Harness
from ratchet.readiness import benchmark_checks as trying
from ratchet.readiness.benchmark_checks import check_questions, reference_solutions, score_columns
from ratchet.run.records import Grade, Prompt
from ratchet.sandbox.metric_pool import MetricPool
from ratchet.service.data import datasets
from ratchet.service.evaluations import benchmarks
from ratchet.service.evaluations.benchmarks import Choices
from ratchet.service.verification import user_metrics
from ratchet.verifiers import earns_format, make_verifier

GSM8K = Path(__file__).parents[4] / "shared/data/gsm8k"
POISON = "zyzzyva"
GOOD = "def score(answer, reference):\n    return 1.0 if answer.strip() == reference else 0.0\n"


def metrics_work():
    try:
        return bool(MetricPool(GOOD).engine)
    except SandboxUnavailable:
        return False


needs_sandbox = pytest.mark.skipif(not metrics_work(), reason="metrics cannot run on this machine")


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def dataset(tmp_path):
    """Return a function that adds a dataset of given test rows."""

    def add(rows, name="mine"):
        folder = tmp_path / name
        write(folder / "train.jsonl", [{"prompt": f"train {n}", "answer": "1"} for n in range(3)])
        write(folder / "test.jsonl", rows)
        return datasets.add(str(folder), name)

    return add


@pytest.fixture
def bundle(tmp_path):
    def make(rows, files=None, **changes):
        folder = tmp_path / "bundle"
        usual = {"name": "own", "data": "q.jsonl"}
        write(folder / "q.jsonl", rows)
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        (folder / "benchmark.yaml").write_text(yaml.safe_dump({**usual, **changes}))
        return folder

    return make


def numbers(count, **more):
    return [{"prompt": f"{POISON} {n}", "answer": str(n), **more} for n in range(1, count + 1)]


def refusal(call, *arguments, kind=IncompatibleData):
    with pytest.raises(kind) as refused:
        call(*arguments)
    assert POISON not in str(refused.value)
    assert benchmarks.list_benchmarks() == []
    home = benchmark_folders.benchmarks_home()
    assert not home.exists() or not list(home.iterdir())
    return str(refused.value)


# --- of a dataset ----------------------------------------------------------------------------------------------------


def test_a_dataset_becomes_a_benchmark_of_its_test_rows(dataset):
    dataset(numbers(3, difficulty=2))
    added = benchmarks.add_dataset("sums", "mine", FinalNumberVerifier())
    assert (added.is_new, added.notes) == (True, ())
    spec = added.benchmark.spec
    assert (spec.name, spec.source, spec.origin, spec.questions) == ("sums", "dataset", "mine@1", 3)
    assert (spec.score_columns, spec.difficulty) == (("accuracy", "format", "answered"), "number")
    assert spec.harness == Harness()
    assert "<answer></answer>" in spec.usual.system_prompt
    assert (spec.usual.worked_examples, spec.verifier.read, spec.reward.format_bonus) == ((), None, None)
    kept, prompts = benchmark_folders.read(added.benchmark.content_hash)
    assert kept == spec
    assert [(prompt.id, prompt.ground_truth) for prompt in prompts] == [(1, "1"), (2, "2"), (3, "3")]


def test_choices_of_the_user_are_kept(dataset):
    dataset(numbers(2))
    choices = Choices(
        harness=Harness(system_prompt="Add."),
        reward=RewardSettings(format_bonus="off"),
        max_answer_tokens=32,
        main="answered",
        description="Sums.",
    )
    spec = benchmarks.add_dataset("sums", "mine@1", FinalNumberVerifier(), choices).benchmark.spec
    assert (spec.harness.system_prompt, spec.max_answer_tokens, spec.description) == ("Add.", 32, "Sums.")
    assert spec.score_columns == ("answered", "accuracy")
    assert spec.usual.system_prompt == ""


def test_a_dataset_needs_a_verifier_that_can_be_kept(dataset):
    dataset(numbers(2))
    assert "needs a verifier" in refusal(benchmarks.add_dataset, "sums", "mine", None, kind=InvalidSetting)
    python = PythonVerifier(module="m", name="f")
    assert "which cannot be stored" in refusal(benchmarks.add_dataset, "sums", "mine", python, kind=InvalidSetting)
    with pytest.raises(NotFound, match="no dataset other"):
        benchmarks.add_dataset("sums", "other", QaVerifier())
    with pytest.raises(NotFound, match="no metric other"):
        benchmarks.add_dataset("sums", "mine", CustomVerifier(metric="other"))
    for name in ("gsm8k", "a b", ""):
        with pytest.raises(InvalidSetting):
            benchmarks.add_dataset(name, "mine", QaVerifier())


def test_rows_that_cannot_be_graded_are_named(dataset):
    dataset([*numbers(3), {"prompt": "q", "answer": POISON}])
    said = refusal(benchmarks.add_dataset, "sums", "mine", FinalNumberVerifier())
    assert said.startswith(
        "1 of 4 questions have a reference that the verifier cannot check: row 4: contains no number"
    )


def test_rows_are_named_by_their_numbers_in_the_source(tmp_path):
    rows = [{"prompt": f"q{n}", "answer": POISON} for n in range(1, 41)]
    datasets.add(str(write(tmp_path / "rows.jsonl", rows)), "mine", ImportSettings(seed=1))
    in_test = [str(row["row"]) for row in datasets.show("mine", rows=40).preview["test"]]
    assert in_test != ["1", "2", "3", "4"]
    said = refusal(benchmarks.add_dataset, "sums", "mine", FinalNumberVerifier())
    assert f"rows {', '.join(in_test[:3])} and {in_test[3]}: contains no number" in said


def test_a_row_without_a_known_right_answer_is_told_and_stops_no_dataset(dataset):
    dataset([{"prompt": "Write f.", "tests": ["assert f(2) == 4"]}])
    added = benchmarks.add_dataset("code", "mine", CodeVerifier())
    assert added.notes == ("No correct answer is known for 1 of 1 questions, so none was tried there.",)
    assert added.benchmark.spec.score_columns == ("accuracy", "all_passed", "answered")


# --- trying answers --------------------------------------------------------------------------------------------------


class Scripted:
    """A verifier that gives what it is told to give, by question."""

    def __init__(self, right, empty=None):
        self._right, self._empty = right, empty or {}

    def check_ground_truth(self, prompt):
        return None

    def grade(self, text, prompt):
        if text:
            return self._right.get(prompt.id, Grade(1.0, "graded"))
        return self._empty.get(prompt.id, Grade(0.0, "unparseable"))

    def close(self):
        pass


def asked(count):
    return [Prompt(n, ({"role": "user", "content": f"{POISON} {n}"},), POISON) for n in range(1, count + 1)]


def tried(verifier, count, solutions=None, must=True):
    return check_questions(verifier, asked(count), solutions or ["x"] * count, must_have_solutions=must)


def test_right_answers_that_do_not_pass_are_named_with_what_happened():
    grades = {
        2: Grade(0.0, "graded"),
        4: Grade(0.5, "graded"),
        5: Grade(0.0, "unparseable"),
        6: Grade(0.0, "failed", failure="time"),
        7: Grade(0.0, "unparseable"),
    }
    with pytest.raises(IncompatibleData) as refused:
        tried(Scripted(grades), 8)
    assert str(refused.value).startswith(
        "5 of 8 reference solutions do not pass: row 2: correctness 0; row 4: correctness 0.5; rows 5, 7: unparseable; "
        "row 6: the verifier failed (time). "
    )


def test_empty_answers_that_pass_are_named():
    with pytest.raises(IncompatibleData) as refused:
        tried(Scripted({}, {1: Grade(1.0, "graded"), 3: Grade(0.6, "graded"), 4: Grade(0.5, "graded")}), 4)
    assert str(refused.value).startswith(
        "The empty answer passes on 2 of 4 questions: row 1: correctness 1; row 3: correctness 0.6. "
    )


def test_what_is_no_fault_is_told():
    failing = {1: Grade(0.0, "failed", failure="execution")}
    notes = tried(Scripted({2: Grade(0.75, "graded")}, failing), 4, must=False)
    assert notes[0] == "1 of 4 reference solutions pass with less than full credit by this verifier."
    assert notes[1].startswith("The verifier fails on the empty answer to 1 of 4 questions (row 1: execution). ")
    assert tried(Scripted({}), 4) == ()


def test_questions_that_come_again_are_told_by_number():
    again = [
        Prompt(n, ({"role": "user", "content": text},), "7")
        for n, text in enumerate(("3 + 4?", "5 + 2?", " 3 +  4 ?", "5 + 2?"), 1)
    ]
    (told,) = check_questions(Scripted({}), again, ["x"] * 4, must_have_solutions=True)
    assert told.startswith("2 questions ask what an earlier one asks (row 3: as row 1; row 4: as row 2). ")


def test_of_many_questions_a_spread_sample_of_200_is_tried_with_right_answers_and_all_with_an_empty_one(monkeypatch):
    assert trying.MOST_REFERENCES == 200
    monkeypatch.setattr(trying, "MOST_REFERENCES", 4)
    seen = []

    class Seen(Scripted):
        def grade(self, text, prompt):
            seen.append((text, prompt.id))
            return super().grade(text, prompt)

    assert tried(Seen({}), 10) == ("Reference solutions of 4 of 10 questions were tried: all pass.",)
    assert sorted(number for text, number in seen if text) == [1, 3, 6, 8]
    assert sorted(number for text, number in seen if not text) == list(range(1, 11))


def test_a_bundle_must_say_how_a_right_answer_looks_where_that_is_not_known():
    with pytest.raises(IncompatibleData, match="known for 2 of 3 questions, the first of them row 2"):
        tried(Scripted({}), 3, ["x", None, None])
    assert tried(Scripted({}), 3, ["x", None, None], must=False)[0].startswith("No correct answer is known for 2 of 3")


WHOLE_TEXT = [
    (NumericVerifier(), "3.5"),
    (QaVerifier(), "the Rhine"),
    (ClassificationVerifier(labels=("yes", "no")), "yes"),
    (StructuredJsonVerifier(), '{"a": 1}'),
]  # a box would be part of what these compare
NUMBERS = [(MathPairsVerifier(), "56"), (FinalNumberVerifier(), "so\n#### 1,234")]
READS = (None, "whole", "after_reasoning", "answer_tag")


@pytest.mark.parametrize(
    ("verifier", "truth", "form", "read"),
    [
        *((*case, form, read) for case in WHOLE_TEXT for form in ("off", "tags") for read in READS),
        *((*case, form, read) for case in NUMBERS for form in ("off", "tags", "boxed") for read in READS),
        *((MathVerifier(require_boxed=True), "\\frac{x}{2}", form, None) for form in ("tags", "boxed")),
        (MathVerifier(require_boxed=False), "7", "off", "after_reasoning"),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_a_reference_solution_passes_wherever_the_verifier_reads_and_whatever_form_is_asked_for(
    verifier, truth, form, read
):
    verifier = verifier.model_copy(update={"read": read})
    prompt = Prompt(1, ({"role": "user", "content": "q"},), truth)
    [solution] = reference_solutions([prompt], verifier, form)
    checking = make_verifier(verifier, prefer_answer_tag=form == "tags")
    assert ("</think>" in solution) == (form == "tags" or read in ("after_reasoning", "answer_tag"))
    assert checking.grade(solution, prompt).correctness == 1
    assert checking.grade("", prompt).correctness == 0
    if form != "off":
        assert earns_format(solution, form)
    checking.close()


def test_how_a_right_answer_looks_is_taken_from_the_first_who_says_so():
    prompt = Prompt(1, (), "7", demonstration="so it is 7")
    verifier = FinalNumberVerifier()
    assert reference_solutions([prompt], verifier, "off", template="<{ground_truth}>") == ["<7>"]
    assert reference_solutions([prompt], verifier, "off", prefers_own=True) == ["so it is 7"]
    assert reference_solutions([prompt], verifier, "off") == ["7"]
    tests_only = Prompt(1, (), "", {"tests": ["assert True"]})
    assert reference_solutions([tests_only], CodeVerifier(), "off") == [None]


@pytest.mark.parametrize(
    ("verifier", "form", "columns"),
    [
        (MathPairsVerifier(), "tags", ("accuracy", "accuracy_strict", "format", "answered")),
        (FinalNumberVerifier(), "off", ("accuracy", "answered")),
        (QaVerifier(), "off", ("accuracy", "token_f1", "answered")),
        (QaVerifier(metric="token_f1"), "off", ("accuracy", "normalized_exact_match", "answered")),
        (CustomVerifier(metric="mine"), "tags", ("accuracy", "format", "answered")),
        (
            CompositeVerifier(
                parts=(
                    CompositePart(verifier=QaVerifier()),
                    CompositePart(verifier=NumericVerifier()),
                    CompositePart(verifier=QaVerifier(metric="token_f1")),
                ),
                correctness_from=1,
            ),
            "off",
            ("accuracy", "qa", "qa_2", "answered"),
        ),
    ],
)
def test_the_usual_columns(verifier, form, columns):
    assert score_columns(verifier, form) == columns


def test_every_part_among_the_columns_is_reported_by_the_verifier():
    prompt = Prompt(1, (), "7")
    parts = (CompositePart(verifier=MathPairsVerifier()), CompositePart(verifier=QaVerifier()))
    for verifier in (MathPairsVerifier(), QaVerifier(), CompositeVerifier(parts=parts)):
        reported = make_verifier(verifier).grade("7", prompt).parts
        assert set(score_columns(verifier, "off")) - {"accuracy", "answered"} <= reported.keys()


def test_columns_that_are_asked_for():
    verifier = MathPairsVerifier()
    assert score_columns(verifier, "tags", main="accuracy_strict")[0] == "accuracy_strict"
    assert score_columns(verifier, "tags", ["accuracy"]) == ("accuracy", "answered")
    assert score_columns(verifier, "tags", ["answered"]) == ("answered", "accuracy")
    assert score_columns(verifier, "tags", ["format", "accuracy"]) == ("format", "accuracy", "answered")
    for asked_for, form in ((["format"], "off"), (["bleu"], "tags")):
        with pytest.raises(InvalidSetting, match="Choose among accuracy, accuracy_strict, "):
            score_columns(verifier, form, asked_for)


# --- built in --------------------------------------------------------------------------------------------------------


def test_math_pairs_are_made_when_they_are_first_asked_for():
    found = benchmarks.find_benchmark("math-pairs")
    assert (found.spec.source, found.spec.questions) == ("built_in", 512)
    assert found.spec.origin == "math_pairs: 2 pairs of numbers from 1 to 9, seed 0"
    assert found.spec.score_columns == ("accuracy", "accuracy_strict", "format", "answered")
    assert found.spec.usual.system_prompt.startswith("Work out the value of the expression")
    assert benchmarks.find_benchmark("math-pairs") == found
    assert [one.name for one in benchmarks.list_benchmarks()] == ["math-pairs"]


def test_math_pairs_of_other_numbers_have_a_name_of_their_own():
    settings = {"pairs": 3, "heldout": 10, "seed": 4}
    for name in (None, "math-pairs", "gsm8k"):
        with pytest.raises(InvalidSetting):
            benchmarks.add_built_in("math-pairs", settings, name=name)
    added = benchmarks.add_built_in("math-pairs", settings, name="three")
    assert (added.benchmark.spec.questions, added.benchmark.spec.name) == (10, "three")
    with pytest.raises(InvalidSetting, match="has no setting prompts"):
        benchmarks.add_built_in("math-pairs", {"prompts": 3}, name="four")
    with pytest.raises(InvalidSetting, match="Smallest number is 9 and Largest number is 2"):
        benchmarks.add_built_in("math-pairs", {"smallest": 9, "largest": 2}, name="four")
    with pytest.raises(InvalidSetting, match="neither path nor revision"):
        benchmarks.add_built_in("math-pairs", path="x")
    with pytest.raises(InvalidSetting, match="has no settings but path and revision"):
        benchmarks.add_built_in("gsm8k", {"seed": 1}, name="other")
    with pytest.raises(NotFound, match="There are math-pairs, gsm8k, math-500"):
        benchmarks.add_built_in("aime")


@pytest.mark.skipif(not GSM8K.is_dir(), reason="the GSM8K rows are not beside this checkout")
def test_gsm8k_of_a_local_folder_passes_all_checks():
    added = benchmarks.add_built_in("gsm8k", path=str(GSM8K))
    assert added.benchmark.spec.questions == 1319
    assert added.benchmark.spec.origin == f"gsm8k: {GSM8K}"
    assert added.notes == ("Reference solutions of 200 of 1,319 questions were tried: all pass.",)
    assert benchmarks.find_benchmark("gsm8k") == added.benchmark
    again = benchmarks.add_built_in("gsm8k", path=str(GSM8K / "test.jsonl"))
    assert (again.is_new, again.benchmark.content_hash) == (False, added.benchmark.content_hash)


MATH_ROWS = [
    {"problem": "Halve x.", "answer": "\\frac{x}{2}", "subject": "Algebra", "level": 5},
    {"problem": "1 + 1", "answer": "2", "subject": "Algebra", "level": 1},
]


def test_math_500_of_a_folder(tmp_path):
    added = benchmarks.add_built_in("math-500", path=str(write(tmp_path / "test.jsonl", MATH_ROWS).parent))
    spec = added.benchmark.spec
    assert (spec.verifier, spec.origin) == (MathVerifier(require_boxed=True), f"math_500: {tmp_path}")
    assert (spec.difficulty, spec.score_columns) == ("number", ("accuracy", "format", "answered"))
    assert "\\boxed{}" in spec.usual.system_prompt


def test_math_500_of_the_hub_is_made_when_it_is_first_asked_for(monkeypatch):
    class Split(list):
        features = "Value"

    library = SimpleNamespace(load_dataset=lambda path, config, revision: {"test": Split(MATH_ROWS)})
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setattr("ratchet.datasets.questions.hub_commit", lambda *_: "abc")
    found = benchmarks.find_benchmark("math-500")
    assert (found.spec.questions, found.spec.origin) == (2, "math_500: HuggingFaceH4/MATH-500 at abc")
    monkeypatch.delitem(sys.modules, "datasets")
    assert benchmarks.find_benchmark("math-500") == found


def test_a_hub_that_cannot_be_reached_says_what_to_do(monkeypatch):
    def load_dataset(*_, **__):
        raise ConnectionError

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr("ratchet.datasets.questions.hub_commit", lambda *_: None)
    with pytest.raises(IncompatibleData, match=r"Cannot create benchmark gsm8k.*add gsm8k --path FOLDER"):
        benchmarks.find_benchmark("gsm8k")


# --- bundles ---------------------------------------------------------------------------------------------------------


def test_a_bundle_is_kept_with_all_that_it_says(bundle):
    folder = bundle(
        numbers(2),
        verifier={"kind": "qa"},
        description="Own.",
        harness={"system_prompt": "Answer.", "worked_examples": [{"user": "u", "assistant": "a"}]},
        max_answer_tokens=64,
        score_columns=["token_f1", "accuracy"],
    )
    spec = benchmarks.add_bundle(folder).benchmark.spec
    assert (spec.name, spec.source, spec.origin, spec.description) == ("own", "bundle", str(folder), "Own.")
    assert (spec.harness.system_prompt, len(spec.harness.worked_examples)) == ("Answer.", 1)
    assert (spec.max_answer_tokens, spec.score_columns) == (64, ("token_f1", "accuracy", "answered"))
    with pytest.raises(Conflict, match="The benchmark own has the same questions, harness and verifier already"):
        benchmarks.add_bundle(folder, "other")
    benchmarks.remove("own")
    assert benchmarks.add_bundle(folder, "other").benchmark.spec.name == "other"


def test_a_bundle_whose_right_answers_do_not_pass_is_refused(bundle):
    rows = [{"prompt": "q", "answer": "7", "completion": "It is 8."}, {"prompt": "r", "answer": "7", "completion": "7"}]
    said = refusal(benchmarks.add_bundle, bundle(rows, verifier={"kind": "final_number"}))
    assert said.startswith("1 of 2 reference solutions do not pass: row 1: correctness 0. ")
    template = bundle(numbers(2), verifier={"kind": "numeric"}, reference_solution="It is {ground_truth}.")
    assert "2 of 2 reference solutions do not pass: rows 1, 2: unparseable" in refusal(benchmarks.add_bundle, template)
    boxed = bundle(numbers(2), verifier={"kind": "qa"}, reward={"format_bonus": "boxed"})
    assert "2 of 2 reference solutions do not pass" in refusal(benchmarks.add_bundle, boxed)
    code = bundle([{"prompt": "Write f.", "tests": ["assert f(2) == 4"]}], verifier={"kind": "code"})
    assert "No reference solution is known for 1 of 1 questions" in refusal(benchmarks.add_bundle, code)


def test_a_code_bundle_proves_itself_by_its_solutions(bundle):
    row = {"prompt": "Write f.", "tests": ["assert f(2) == 4"]}
    right = [{**row, "completion": "```python\ndef f(x):\n    return x * x\n```"}]
    assert benchmarks.add_bundle(bundle(right, verifier={"kind": "code"})).benchmark.spec.questions == 1
    benchmarks.remove("own")
    wrong = [{**row, "completion": "```python\ndef f(x):\n    return 5\n```"}]
    said = refusal(benchmarks.add_bundle, bundle(wrong, verifier={"kind": "code"}))
    assert "row 1: has a reference solution that passes 0 of its" in said


@needs_sandbox
def test_the_metric_of_a_bundle_is_kept_as_a_version_of_a_metric(bundle):
    folder = bundle(numbers(3), {"metric.py": GOOD}, metric="metric.py", name="exact")
    added = benchmarks.add_bundle(folder)
    verifier = added.benchmark.spec.verifier
    assert (verifier.metric, verifier.version, verifier.source) == ("exact", 1, GOOD)
    assert user_metrics.show("exact").source == GOOD
    [entry] = benchmarks.kept_benchmarks()
    assert entry.metric == ("exact", 1)
    again = benchmarks.add_bundle(folder)
    assert (again.is_new, again.benchmark) == (False, added.benchmark)
    assert again.notes == ("Benchmark exact already has this content.",)
    with pytest.raises(Conflict, match="The benchmark exact has other content"):
        benchmarks.add_bundle(bundle(numbers(2), {"metric.py": GOOD}, metric="metric.py", name="exact"))


@needs_sandbox
def test_a_metric_that_loads_the_wrong_way_or_passes_nothing_is_refused_and_not_kept(bundle):
    def refused(source, kind=IncompatibleData):
        folder = bundle(numbers(2), {"metric.py": source}, metric="metric.py")
        return refusal(benchmarks.add_bundle, folder, kind=kind)

    assert "Metric own is refused" in refused("def grade(answer): return 1\n", MetricRefused)
    assert "The empty answer passes on 2 of 2 questions" in refused("def score(a, r): return 1.0\n")
    assert "rows 1, 2: correctness 0" in refused("def score(a, r): return 0.0\n")
    raising = refused("def score(a, r): raise ValueError(a)\n")
    assert "2 of 2 reference solutions do not pass: rows 1, 2: the verifier failed (execution)" in raising
    assert user_metrics.list_metrics() == []


@needs_sandbox
def test_a_metric_that_fails_on_nothing_but_the_empty_answer_is_kept_and_that_is_told(bundle):
    source = "def score(answer, reference):\n    return float(answer.split()[0] == reference)\n"
    added = benchmarks.add_bundle(bundle(numbers(2), {"metric.py": source}, metric="metric.py"))
    assert "fails on the empty answer to 2 of 2 questions (rows 1, 2: execution)" in added.notes[0]


@needs_sandbox
def test_a_kept_metric_checks_a_dataset(dataset, tmp_path):
    dataset(numbers(2))
    (tmp_path / "exact.py").write_text(GOOD)
    user_metrics.add(tmp_path / "exact.py", "exact")
    added = benchmarks.add_dataset("sums", "mine", CustomVerifier(metric="exact"))
    assert (added.benchmark.spec.verifier.version, added.benchmark.spec.verifier.source) == (1, GOOD)
    [entry] = benchmarks.kept_benchmarks()
    assert (entry.dataset, entry.metric) == (("mine", 1), ("exact", 1))


# --- finding, listing, removing --------------------------------------------------------------------------------------


def test_one_name_is_one_content(dataset):
    dataset(numbers(2))
    first = benchmarks.add_dataset("sums", "mine", QaVerifier())
    assert benchmarks.add_dataset("sums", "mine@1", QaVerifier()).is_new is False
    with pytest.raises(Conflict, match=r"The benchmark sums has other content.*Choose another name"):
        benchmarks.add_dataset("sums", "mine", FinalNumberVerifier())
    assert [one.content_hash for one in benchmarks.list_benchmarks()] == [first.benchmark.content_hash]
    assert [path.name for path in benchmark_folders.benchmarks_home().iterdir()] == [first.benchmark.content_hash]


def test_a_benchmark_is_found_by_name_or_hash(dataset):
    dataset(numbers(2))
    added = benchmarks.add_dataset("sums", "mine", QaVerifier()).benchmark
    for reference in ("sums", added.content_hash, added.content_hash[:8]):
        assert benchmarks.find_benchmark(reference) == added
    found, prompts = benchmarks.show("sums", 1)
    assert (found, [prompt.ground_truth for prompt in prompts]) == (added, ["1"])
    for reference in ("other", added.content_hash[:7], "0" * 64):
        with pytest.raises(NotFound):
            benchmarks.find_benchmark(reference)


def test_a_damaged_benchmark_is_listed_with_the_reason_and_can_be_removed(dataset):
    dataset(numbers(2))
    added = benchmarks.add_dataset("sums", "mine", QaVerifier()).benchmark
    (benchmark_folders.benchmarks_home() / added.content_hash / "benchmark.json").write_text("{}")
    [listed] = benchmarks.list_benchmarks()
    assert (listed.name, listed.spec) == ("sums", None)
    assert "is not as it was when the benchmark was added" in listed.problem
    with pytest.raises(Conflict):
        benchmarks.find_benchmark("sums")
    assert benchmarks.remove("sums") is True
    assert benchmarks.list_benchmarks() == []
    with pytest.raises(NotFound, match="no benchmark sums"):
        benchmarks.remove("sums")


def test_questions_stay_while_evaluations_are_on_them(dataset, monkeypatch):
    dataset(numbers(2))
    added = benchmarks.add_dataset("sums", "mine", QaVerifier()).benchmark
    monkeypatch.setattr(
        "ratchet.store.evaluation_rows.EvaluationStore.all", lambda self, content_hash: {"e1": content_hash}
    )
    assert benchmarks.remove("sums") is False
    assert benchmarks.list_benchmarks() == []
    assert benchmarks.find_benchmark(added.content_hash).spec == added.spec


def test_without_benchmarks_no_database_is_opened(tmp_path):
    assert benchmarks.list_benchmarks() == []
    assert not (tmp_path / "home" / "ratchet.db").exists()
