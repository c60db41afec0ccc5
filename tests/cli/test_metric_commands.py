"""``ratchet metric``: versions of metrics, and what a metric makes of rows."""

import json

import pytest

from ratchet.config.config_text import build
from ratchet.errors import Conflict, InvalidSetting, NotFound, SandboxUnavailable
from ratchet.sandbox.metric_pool import MetricPool
from ratchet.service.verification import user_metrics

GOOD = "def score(answer, reference):\n    return 1.0 if answer.strip() == reference else 0.25\n"
RAISES = "def score(answer, reference):\n    return 1 / len(answer)\n"


def works():
    try:
        return bool(MetricPool(GOOD).engine)
    except SandboxUnavailable:
        return False


pytestmark = pytest.mark.skipif(not works(), reason="metrics cannot run on this machine")


@pytest.fixture
def source(tmp_path):
    def write(content, name="exact.py"):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return write


def last(done):
    return json.loads(done.stdout.splitlines()[-1])


def test_versions_are_added_shown_listed_and_archived(called, source):
    assert called("metric", "add", source(GOOD), "--name", "exact").stdout == "Added exact@1\n"
    assert called("metric", "add", source(GOOD), "--name", "exact").stdout == "Already there: exact@1\n"
    added = last(called("metric", "add", source(GOOD + "# other\n"), "--name", "exact", "--json"))
    assert (added["version"], added["state"], added["is_new"]) == (2, "active", True)
    assert last(called("metric", "archive", "exact", "--json"))["version"] == 2
    assert [one["state"] for one in last(called("metric", "list", "--json"))["metrics"]] == ["active", "archived"]
    shown = last(called("metric", "show", "exact", "--json"))
    assert (shown["version"], shown["source"]) == (1, GOOD)
    again = called("metric", "archive", "exact@2")
    assert (again.returncode, again.stderr) == (3, "Error: Version 2 of metric exact is archived already.\n")


def test_an_archived_version_is_refused_for_new_runs(source):
    user_metrics.add(source(GOOD), "exact")
    user_metrics.add(source(GOOD + "#"), "exact")
    assert user_metrics.for_run("exact", None).version == 2
    user_metrics.archive("exact@2")
    assert user_metrics.for_run("exact", None).version == 1
    with pytest.raises(Conflict, match="Version 2 of metric exact is archived and cannot be used in new runs"):
        user_metrics.for_run("exact", 2)
    user_metrics.archive("exact")
    with pytest.raises(Conflict, match="is archived"):
        user_metrics.for_run("exact", None)
    with pytest.raises(NotFound):
        user_metrics.for_run("other", None)


def custom(**settings):
    return build({"verifier": {"kind": "custom", **settings}})


def test_a_run_is_saved_with_version_and_source(source):
    user_metrics.add(source(GOOD), "exact")
    user_metrics.add(source(RAISES), "exact")
    newest = user_metrics.with_source(custom(metric="exact")).verifier
    assert (newest.version, newest.source) == (2, RAISES)
    user_metrics.archive("exact@2")
    with pytest.raises(Conflict, match="is archived and cannot be used in new runs"):
        user_metrics.with_source(custom(metric="exact", version=2, source=RAISES))
    first = user_metrics.with_source(custom(metric="exact")).verifier
    assert (first.version, first.source) == (1, GOOD)
    assert user_metrics.with_source(custom(metric="exact", version=1, source=GOOD)).verifier == first
    with pytest.raises(InvalidSetting, match="is not its version 1"):
        user_metrics.with_source(custom(metric="exact", version=1, source=RAISES))


def test_a_source_that_the_settings_bring_needs_no_metric_here():
    for given in (custom(metric="elsewhere", version=3, source=GOOD), custom(source=GOOD), build({})):
        assert user_metrics.with_source(given) == given
    with pytest.raises(NotFound, match="no metric elsewhere"):
        user_metrics.with_source(custom(metric="elsewhere", version=3))


def test_answers_and_data_are_graded_with_a_stored_metric_also_an_archived_one(called, source, tmp_path):
    user_metrics.add(source(GOOD), "exact")
    user_metrics.archive("exact@1")
    rows = tmp_path / "answers.jsonl"
    rows.write_text('{"answer": "5", "ground_truth": "5"}\n{"answer": "6", "ground_truth": "5"}\n')
    named = ("--verifier", "custom", "--verifier.metric", "exact")
    part = "[{verifier: {kind: custom, metric: exact}}, {verifier: {kind: qa}}]"
    for flags in (named, (*named[:3], "exact@1"), ("--verifier", "composite", "--verifier.parts", part)):
        done = called("grade", *flags, rows)
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["correctness"] for line in done.stdout.splitlines()] == [1.0, 0.25]
    assert called("grade", *named[:3], "exact@2", rows).returncode == 3
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"q{n}", "answer": str(n)}) + "\n" for n in range(20)))
    called("data", "add", data, "--name", "mine")
    assert called("data", "check", "mine", *named).stdout == "mine@1 is fit with the verifier custom.\n"


@pytest.mark.parametrize("kind", ["custom", "composite"])
def test_a_source_of_a_settings_file_that_is_no_metric_grades_nothing_and_fits_no_data(called, tmp_path, kind):
    custom = "{kind: custom, metric: mine, source: 'def score(answer): return 1.0'}"
    composite = f"{{kind: composite, parts: [{{verifier: {custom}}}, {{verifier: {{kind: qa}}}}]}}"
    settings, rows, data = (tmp_path / name for name in ("run.yaml", "answers.jsonl", "rows.jsonl"))
    settings.write_text(f"verifier: {custom if kind == 'custom' else composite}\n")
    rows.write_text('{"answer": "5", "ground_truth": "5"}\n')
    done = called("grade", "--config", settings, rows)
    refusal = "Metric mine is refused: its score(answer) cannot be called with (answer, reference)."
    assert (done.returncode, done.stdout, done.stderr.strip()) == (4, "", f"Error: {refusal}")
    data.write_text("".join(json.dumps({"prompt": f"q{n}", "answer": str(n)}) + "\n" for n in range(20)))
    called("data", "add", data, "--name", "mine")
    checked = called("data", "check", "mine", "--config", settings, "--json")
    assert checked.returncode == 2
    assert last(checked)["problems"] == [refusal]


def test_a_name_with_a_version_and_another_version_are_refused(source):
    user_metrics.add(source(GOOD), "exact")
    assert user_metrics.with_source(custom(metric="exact@1", version=1)).verifier.metric == "exact"
    with pytest.raises(InvalidSetting, match="Metric exact@1 and version 2 are two versions"):
        user_metrics.with_source(custom(metric="exact@1", version=2))


def test_trying_a_metric_prints_scores_in_order(called, source, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"answer": a, "reference": "x"}) + "\n" for a in ("ab", "", "abcd")))
    done = called("metric", "try", source(RAISES), "--rows", rows, "--json")
    assert done.returncode == 0, done.stderr
    assert last(done) == [
        {"score": 0.5, "outcome": "graded", "failure": None},
        {"score": 0.0, "outcome": "failed", "failure": "execution"},
        {"score": 0.25, "outcome": "graded", "failure": None},
    ]
    assert called("metric", "list").stdout.startswith("No metrics yet")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("def scor(answer, reference): pass", "is refused"),
        ("import nothing_of_that_name\n" + GOOD, "is refused"),
        (GOOD + "#" * 32_000, "the limit is 32,000"),
        ("#" * 200_000, "limit of 32,000"),
        (b"# \xff\n" + GOOD.encode(), "is not valid UTF-8"),
    ],
    ids=["no function", "does not load", "long", "very long", "bytes"],
)
def test_what_is_no_metric_is_refused_in_one_sentence_with_the_metrics_code(called, source, tmp_path, content, reason):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"answer": "a", "reference": "a"}\n')
    for arguments in (["try", source(content), "--rows", rows], ["add", source(content), "--name", "bad"]):
        done = called("metric", *arguments, "--json")
        assert done.returncode == 4
        assert reason in last(done)["error"]["message"]
        assert done.stderr.count("\n") == 1
    assert called("metric", "list").stdout.startswith("No metrics yet")


def test_rows_and_files_that_cannot_be_read_are_the_datas_fault(called, source, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"answer": "xyzzy"}\n{"answer": 7, "reference": "xyzzy"}\n')
    done = called("metric", "try", source(GOOD), "--rows", rows)
    assert done.returncode == 2
    assert "row 1: the column reference is missing or not text; row 2: the column answer" in done.stderr
    assert "xyzzy" not in done.stderr
    assert called("metric", "try", source(GOOD), "--rows", tmp_path / "none.jsonl").returncode == 2
    assert called("metric", "add", tmp_path / "none.py", "--name", "x").returncode == 2
    assert called("metric", "show", "nothing").returncode == 3
