"""``ratchet bench``: benchmarks made, listed, shown and removed, and options that do not go together."""

import json

import pytest

ROWS = [{"prompt": f"What is {n} + 0?", "answer": str(n), "difficulty": n} for n in range(1, 4)]


@pytest.fixture
def command(ratchet_command):
    """Return a function that runs ``ratchet bench ARGS`` in this process: exit code, stdout, stderr."""
    return lambda *arguments: ratchet_command("bench", *arguments)


@pytest.fixture
def dataset(tmp_path, ratchet_command):
    for split, rows in (("train", [{"prompt": "t", "answer": "1"}]), ("test", ROWS)):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert ratchet_command("data", "add", tmp_path, "--name", "mine")[0] == 0
    return "mine"


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "benchmark.yaml").write_text("name: sums\ndata: q.jsonl\nverifier: {kind: final_number}\n")
    return folder


def last(out):
    return json.loads(out.splitlines()[-1])


def test_a_dataset_is_added_listed_shown_and_removed(command, dataset):
    words = ("--verifier", "final_number", "--system-prompt", "Add [them].", "--max-answer-tokens", "64")
    examples = ("--few-shot-examples", "[{user: 1 + 1, assistant: '2'}]")
    code, out, _ = command("add", dataset, "--name", "sums", *words, *examples)
    assert code == 0
    assert out == "Added sums  3 questions of mine@1\nScores accuracy, format, answered\n"
    assert command("add", dataset, "--name", "sums", *words, *examples)[1].startswith(
        "Already there: sums  3 questions"
    )
    code, out, _ = command("list")
    assert "sums" in out
    assert "final_number" in out
    assert "Built in, made when first used: math-pairs, gsm8k, math-500." in out
    [listed] = last(command("list", "--json")[1])["benchmarks"]
    assert (listed["name"], listed["questions"], listed["max_answer_tokens"]) == ("sums", 3, 64)
    assert listed["harness"] == {
        "system_prompt": "Add [them].",
        "worked_examples": [{"user": "1 + 1", "assistant": "2"}],
    }
    code, out, _ = command("show", "sums", "--questions", "1")
    assert "System prompt     Add [them]." in out
    assert "Examples          1 of its own" in out
    assert "Max answer tokens 64" in out
    assert "3; bands of their numbers" in out
    assert "user: What is 1 + 0?" in out
    assert "expected: 1" in out
    assert "What is 2" not in out
    shown = last(command("show", "sums", "--questions", "2", "--json")[1])
    assert shown["content_hash"] == listed["content_hash"]
    assert [one["question"] for one in shown["first_questions"]] == [1, 2]
    assert shown["first_questions"][1]["difficulty"] == 2
    assert command("remove", "sums")[1] == "Removed sums.\n"
    assert last(command("list", "--json")[1])["benchmarks"] == []
    code, _, err = command("show", "sums")
    assert (code, "There is no benchmark sums" in err) == (3, True)


def test_a_bundle_and_a_built_in_are_added(command, bundle):
    told = last(command("add", bundle, "--json")[1])
    assert (told["name"], told["source"], told["is_new"], told["notes"]) == ("sums", "bundle", True, [])
    arguments = ("add", "math-pairs", "--set", "pairs=3", "--set", "heldout=5", "--name", "three", "--json")
    told = last(command(*arguments)[1])
    assert (told["name"], told["source"], told["questions"]) == ("three", "built_in", 5)
    out = command("show", "three")[1]
    assert "as the evaluated model's own run, else: Work out the value" in out
    assert "Made of           math_pairs: 3 pairs of numbers from 1 to 9, seed 0 (built-in)" in out


def test_verifier_and_prompt_may_come_from_a_runs_settings(command, dataset, tmp_path):
    (tmp_path / "run.yaml").write_text(
        "verifier: {kind: qa, metric: token_f1}\nprompt: {system_prompt: Be short.}\nrl: {rounds: 3}\n"
    )
    told = last(command("add", dataset, "--name", "a", "--config", tmp_path / "run.yaml", "--json")[1])
    assert (told["verifier"]["metric"], told["verifier"]["read"]) == ("token_f1", None)
    assert told["harness"]["system_prompt"] == "Be short."
    assert told["score_columns"] == ["accuracy", "normalized_exact_match", "answered"]
    main = ("--verifier", "qa", "--main", "token_f1", "--reward.format-bonus", "tags")
    told = last(command("add", dataset, "--name", "b", *main, "--json")[1])
    assert told["score_columns"] == ["token_f1", "accuracy", "format", "answered"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mine"], "Give --name"),
        (["mine", "--name", "x"], "needs a verifier: set verifier.kind"),
        (["mine", "--name", "x", "--verifier", "qa", "--path", "p"], "--path does not go with a dataset"),
        (
            ["mine", "--name", "x", "--verifier", "qa", "--few-shot-examples", "3"],
            "--few-shot-examples is a number; list",
        ),
        (["mine", "--name", "x", "--verifier", "qa", "--main", "bleu"], "no score column bleu"),
        (["math-pairs", "--verifier", "qa"], "--verifier.kind does not go with a built-in benchmark"),
        (["math-pairs", "--main", "format"], "--main does not go with a built-in benchmark"),
        (["math-pairs", "--set", "pairs"], "write it as KEY=VALUE"),
        (["math-pairs", "--set", "pairs=many", "--name", "x"], 'Pairs (data.pairs) is "many"'),
        (["math-pairs", "--set", "pairs=3"], "With other settings, choose another name"),
        (["bundle.zip", "--max-answer-tokens", "64"], "--max-answer-tokens does not go with a bundle"),
        (["bundle.zip", "--set", "a=1"], "--set does not go with a bundle"),
        (["bundle.zip"], "There is no file or folder bundle.zip"),
    ],
)
def test_what_does_not_go_together_is_refused(command, dataset, arguments, said):
    code, _, err = command("add", *arguments)
    assert code == 2
    assert said in err
    assert last(command("list", "--json")[1])["benchmarks"] == []


def test_faults_keep_their_exit_codes(command, dataset, bundle):
    assert command("add", bundle)[0] == 0
    code, out, err = command("add", dataset, "--name", "sums", "--verifier", "qa", "--json")
    assert (code, last(out)["error"]["code"]) == (3, "conflict")
    assert "Choose another name" in err
    assert command("remove", "other")[0] == 3


def test_a_damaged_benchmark_is_listed_with_the_reason(command, bundle, tmp_path):
    told = last(command("add", bundle, "--json")[1])
    (tmp_path / "home/benchmarks" / told["content_hash"] / "benchmark.json").write_text("")
    assert "is not as it was when the benchmark was added" in command("list")[1]
    [listed] = last(command("list", "--json")[1])["benchmarks"]
    assert listed["name"] == "sums"
    assert "is not as it was" in listed["problem"]


def test_questions_act_on_no_terminal(command, bundle):
    (bundle / "q.jsonl").write_text(json.dumps({"prompt": "[red]a\x1b[2J", "answer": "1"}))
    command("add", bundle)
    out = command("show", "sums", "--questions", "1")[1]
    assert "user: [red]a\N{REPLACEMENT CHARACTER}[2J" in out
