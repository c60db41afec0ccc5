"""All checks of a run at once: what each finds, that none hides another, and that no text of a row is told."""

import json
import pickle
import shutil
from pathlib import Path

import pytest

import ratchet
from ratchet.config import PromptSettings
from ratchet.config.config_text import build
from ratchet.datasets.dataset import offered_tools
from ratchet.datasets.reference_sets import ReferenceSet
from ratchet.datasets.tokens import open_encoder
from ratchet.engine.prepare import prepare
from ratchet.errors import Conflict, IncompatibleData, InvalidSetting, ModelUnavailable, NotReady
from ratchet.models.model_files import find
from ratchet.readiness import check, open_rows
from ratchet.readiness.fault_list import Faults, raise_all
from ratchet.run.records import Prompt

POISON = "zyzzyva"


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(number, truth=None, words=1):
    return {
        "prompt": f"{number} " + " ".join([POISON] * words),
        "ground_truth": str(number) if truth is None else truth,
    }


def config_of(tmp_path, rows=None, validation=None, **settings):
    write(tmp_path / "train.jsonl", rows or [row(n) for n in range(1, 9)])
    write(tmp_path / "validation.jsonl", validation or [row(n) for n in range(1000, 1004)])
    defaults = {
        "verifier": {"kind": "final_number"},
        "prompt": {"system_prompt": "End with the number in <answer></answer>."},
        "rl": {"max_answer_tokens": 16, "prompts_per_round": 2, "validation_prompts": 4},
        "window_tokens": 200,
        "device": "cpu",
    }
    data = {"source": "boxed", "path": str(tmp_path), **settings.pop("data", {})}
    return build({"data": data, **defaults, **settings})


@pytest.fixture
def report_of():
    """Return a function that checks a run; no fault, note or warning may hold the text of a row."""
    reports = []

    def of(config, **options):
        report = check(config, **options)
        reports.append(report)
        told = [*map(str, report.faults), *report.notes, *report.warnings]
        assert not [text for text in told if POISON in text or "\n" in text]
        return report

    yield of
    for report in reports:
        report.close()


def kinds(report):
    return [type(fault) for fault in report.faults]


def test_a_run_that_can_start_says_what_it_would_be(tmp_path, report_of):
    report = report_of(config_of(tmp_path))
    assert (report.faults, report.notes, report.warnings) == ((), (), ())
    assert report.device == "cpu"
    assert report.row_counts == {"training": 8, "validation": 4, "held-out": 0}
    assert report.window == 200
    prepared = prepare(report.config, None, report.rows)
    assert report.longest_prompt == max(len(one.token_ids) for one in (*prepared.train, *prepared.validation))
    assert prepared.config == report.rows.config
    report.raise_faults()


def test_everything_that_is_wrong_is_told_at_once(tmp_path, report_of):
    rows = [row(1), row(2, POISON), row(3, words=400), *(row(n) for n in range(4, 9))]
    validation = [row(1000), row(1001, POISON), row(1002, words=400)]
    wrong = {
        "device": "cuda:31",
        "sampler": {"backend": "vllm"},
        "reward": {"format_bonus": "pattern", "format_pattern": "("},
        "prompt": {"system_prompt": "", "few_shot_examples": 3},
    }
    report = report_of(config_of(tmp_path, rows, validation, **wrong))
    told = [str(fault) for fault in report.faults]
    expected = [
        "Device is cuda:31",
        "vLLM is not installed",
        "Format pattern is not",
        "Few-shot examples is 3",
        "1 of 8 training rows have a reference",
        "1 of 3 validation rows have a reference",
    ]
    assert len(told) == len(expected), told
    assert all(any(part in one for one in told) for part in expected)
    with pytest.raises(NotReady) as caught:
        report.raise_faults()
    assert str(caught.value).startswith("This run cannot start: 6 problems. (1) Device is cuda:31")
    assert caught.value.faults == report.faults


def test_rows_that_do_not_fit_are_told_for_each_split_beside_ungradable_ones(tmp_path, report_of):
    rows = [row(1), row(2, POISON), row(3, words=400)]
    report = report_of(config_of(tmp_path, rows, [row(1000), row(1001, words=400)]))
    told = " ".join(map(str, report.faults))
    assert len(report.faults) == 3
    assert "row 2: " in told
    assert "Row 3 of the training rows has a prompt of" in told
    assert "Row 2 of the validation rows has a prompt of" in told


def test_rows_left_out_are_noted_and_not_counted(tmp_path, report_of):
    rows = [row(1), row(2), row(3, words=400)]
    report = report_of(config_of(tmp_path, rows, data={"overlong": "leave_out"}))
    assert report.row_counts["training"] == 2
    assert report.notes == ("1 over-long training rows are left out.",)


def test_a_model_that_is_not_there_hides_no_fault_of_the_data(tmp_path, report_of):
    report = report_of(config_of(tmp_path, [row(1), row(2, POISON)], model="./none/model"))
    assert kinds(report) == [IncompatibleData, ModelUnavailable]
    assert (report.window, report.longest_prompt) == (None, None)


def test_data_that_is_not_there_hides_no_fault_of_the_settings(tmp_path, report_of):
    report = report_of(config_of(tmp_path, data={"path": str(tmp_path / "none.jsonl")}, window_tokens=100_000))
    assert kinds(report) == [IncompatibleData, InvalidSetting]
    assert report.row_counts == {}
    assert report.rows is None


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"prompt": POISON, "ground_truth": "1", "image": "x.png"}, "row 2: it holds an image"),
        (
            {
                "prompt": [{"role": "user", "content": POISON}, {"role": "assistant", "content": "1"}],
                "ground_truth": "1",
            },
            "row 2: the column prompt does not end with a user message",
        ),
    ],
)
def test_images_and_conversations_without_a_last_user_turn_are_refused_by_number(bad, said, tmp_path, report_of):
    report = report_of(config_of(tmp_path, [row(1), bad]))
    assert said in str(report.faults[0])
    assert kinds(report) == [IncompatibleData]


def model_folder(tmp_path, name="model", **config):
    """Lay the tiny model's small files with another config.json into a folder."""
    from ratchet.models.model_files import find

    path = tmp_path / name
    path.mkdir()
    for file in find("tiny").files:
        if file.suffix in (".json", ".jinja"):
            (path / file.name).write_bytes(file.read_bytes())
    written = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**written, **config}))
    return path


def test_the_models_own_window_is_read_from_its_configuration(tmp_path, report_of):
    nested = {"text_config": {"max_position_embeddings": 90}, "max_position_embeddings": None}
    for number, (config, window) in enumerate([({"max_position_embeddings": 100}, 100), (nested, 90)]):
        model = model_folder(tmp_path, f"model-{number}", **config)
        report = report_of(config_of(tmp_path, model=str(model), window_tokens=None, prompt={"system_prompt": ""}))
        assert report.window == window
        assert report.faults == ()
    short = config_of(tmp_path, model=str(model), window_tokens=None, rl={"max_answer_tokens": 90})
    assert "the model's context length is 90 tokens" in str(report_of(short).faults[0])


def test_a_mixture_of_experts_and_a_vision_model_are_known_before_they_load(tmp_path, report_of):
    experts, rl = str(model_folder(tmp_path, num_experts=8)), {"max_answer_tokens": 16, "prompts_per_round": 2}
    refused = config_of(tmp_path, model=experts, rl={**rl, "loss": "grpo"})
    assert "a mixture of 8 experts" in str(report_of(refused).faults[0])
    assert report_of(config_of(tmp_path, model=experts, rl={**rl, "loss": "gspo"})).faults == ()
    vision = config_of(tmp_path, model=str(model_folder(tmp_path, "eyes", vision_config={"layers": 2})))
    assert "is a model for vision without a text part" in str(report_of(vision).faults[0])
    eyes = model_folder(tmp_path, "both", vision_config={"layers": 2}, text_config={"max_position_embeddings": 128})
    assert "is also a model for vision: only its text part is loaded" in " ".join(
        report_of(config_of(tmp_path, model=str(eyes))).notes
    )


def test_a_template_that_fails_on_a_row_names_the_row(tmp_path, report_of):
    model = model_folder(tmp_path)
    picky = "{% for m in messages %}{% if '7 ' in m.content %}{{ raise_exception(m.content) }}{% endif %}{{ m.content }}{% endfor %}"
    (model / "chat_template.jinja").write_text(picky)
    report = report_of(config_of(tmp_path, model=str(model)))
    assert len(report.faults) == 1
    assert str(report.faults[0]).startswith("Row 7 of the training rows: The model's chat template failed")
    with pytest.raises(InvalidSetting, match="Row 7 of the training rows"):
        prepare(config_of(tmp_path, model=str(model)))


def test_a_gguf_model_is_not_counted_yet_and_that_is_said(tmp_path, report_of):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    report = report_of(config_of(tmp_path, model=str(tmp_path / "a.gguf")))
    assert report.faults == ()
    assert report.longest_prompt is None
    assert "not counted yet" in report.notes[-1]


def test_a_function_of_the_users_own_must_be_given(tmp_path, report_of):
    config = config_of(tmp_path, verifier={"kind": "python", "name": "closeness"})
    assert kinds(report_of(config)) == [Conflict]
    assert report_of(config, function=lambda answer, truth: 1.0).faults == ()


# --- advice ----------------------------------------------------------------------------------------------------------


def warnings_of(report_of, config):
    return " ".join(report_of(config).warnings)


def test_advice_is_given_before_anything_loads(tmp_path, report_of):
    model = model_folder(tmp_path)
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}<think>\n")
    prompt = {"system_prompt": "", "template_options": {"enable_thinking": True}}
    rl = {"max_answer_tokens": 16, "prompts_per_round": 64}
    verifier = {"kind": "math"}
    told = warnings_of(report_of, config_of(tmp_path, model=str(model), prompt=prompt, rl=rl, verifier=verifier))
    for part in (
        "ignores these Chat template options: enable_thinking",
        "chat template opens a reasoning block (<think>)",
        "Set verifier.read to after_reasoning",
        "Nothing in the prompt tells the model where to put its answer",
        "Prompts per round is 64, but there are 8 training prompts",
        "A correct answer without it earns 0.91",
    ):
        assert part in told
    reading = {"kind": "math", "read": "after_reasoning"}
    assert "<think>" not in warnings_of(report_of, config_of(tmp_path, model=str(model), verifier=reading))


def tool_rows(*prompts):
    call = {"name": "weather", "arguments": {}}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    return [{"prompt": one, "ground_truth": json.dumps(call), "tools": tools} for one in prompts]


@pytest.mark.parametrize("parts", [False, True])
def test_prompts_that_name_none_of_their_tools_are_told(parts, tmp_path, report_of):
    call = {"kind": "tool_call"}
    verifier = {"kind": "composite", "parts": [{"verifier": call}, {"verifier": {"kind": "qa"}}]} if parts else call
    rows = tool_rows("Use weather: Rome?", f"{POISON} Oslo?", "Bonn?")
    config = config_of(tmp_path, rows, tool_rows("Paris?"), verifier=verifier)
    [said] = [note for note in report_of(config).notes if "tools" in note]
    assert said.startswith("In 2 of 3 training rows the prompt names none of the row's tools, in row 2 first")
    told = config.model_copy(update={"prompt": config.prompt.model_copy(update={"system_prompt": "Call weather()."})})
    assert not [note for note in report_of(told).notes if "tools" in note]


def test_a_template_that_tells_of_tools_is_given_each_rows_own(tmp_path, report_of):
    shipped = Path(ratchet.__file__).parent / "assets" / "tiny"
    model = shutil.copytree(shipped, tmp_path / "model")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    template = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{{ messages[-1].content }}"
    (model / "chat_template.jinja").unlink(missing_ok=True)
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    rows = tool_rows("Oslo?", "Rome?")
    rows[1]["tools"] = json.dumps([{"name": "weather"}, {"name": "times"}])  # bare, and as JSON text
    config = config_of(tmp_path, rows, tool_rows("Paris?"), verifier={"kind": "tool_call"}, model=str(model))
    config = config.model_copy(update={"prompt": PromptSettings(system_prompt="")})
    report = report_of(config)
    assert not [note for note in report.notes if "tools" in note]
    encoder = open_encoder(find(str(model)), "main", {})
    told = [encoder.encode([{"role": "user", "content": text}]) for text in ("weather Oslo?", "weather times Rome?")]
    assert report.longest_prompt == max(map(len, told))
    tools = offered_tools(Prompt(1, ({"role": "user", "content": "Rome?"},), "", {"tools": rows[1]["tools"]}))
    assert encoder.encode([{"role": "user", "content": "Rome?"}], tools) == told[1]


def safetensors_header(path, shape):
    """Write a file with a header alone: the numbers of so large a model are not needed to count them."""
    size = 2 * shape[0] * shape[1]
    header = json.dumps({"w": {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)


def test_an_unusual_rate_is_remarked_on_for_a_large_model_by_its_files(tmp_path, report_of):
    model = model_folder(tmp_path)
    config = config_of(tmp_path, model=str(model), learning_rate=5e-6)
    assert "Learning rate" not in warnings_of(report_of, config)
    safetensors_header(model / "model.safetensors", [1000, 135_000])
    assert "a model of 135 million parameters" in warnings_of(report_of, config)
    safetensors_header(model / "model.safetensors", [1000, 1_000])
    assert "Learning rate" not in warnings_of(report_of, config)


# --- leaks -----------------------------------------------------------------------------------------------------------

LONG = " ".join(f"{POISON}{number}" for number in range(40))


def asks(*texts):
    return [{"prompt": text, "ground_truth": "1"} for text in texts]


def benchmark(tmp_path, *rows, name="bench"):
    return ReferenceSet(name, write(tmp_path / f"{name}.bench", rows))


def test_rows_that_stand_in_a_benchmark_too_refuse_the_run(tmp_path, report_of):
    config = config_of(tmp_path, asks("alpha?", "beta?", "gamma?"), asks("delta?"))
    layouts = benchmark(
        tmp_path,
        {"question": "none", "answer": "#### 1"},
        {"prompt": [{"role": "system", "content": "alpha"}, {"role": "user", "content": "Beta"}]},
        {"row": 77, "messages": [{"role": "user", "content": "DELTA"}, {"role": "assistant", "content": "1"}]},
        {"problem": "epsilon"},
    )
    report = report_of(config, benchmarks=[layouts])
    assert kinds(report) == [IncompatibleData]
    assert "2 rows appear in two splits" in str(report.faults[0])
    assert "training row 2 and bench row 2; validation row 1 and bench row 77." in str(report.faults[0])


def test_test_rows_of_the_runs_own_data_are_compared_too(tmp_path, report_of):
    config = config_of(tmp_path, asks("alpha?", "beta?"), asks("delta?"))
    own = benchmark(tmp_path, *asks("delta", "alpha"), name="test")
    assert "training row 1 and test row 2" in str(report_of(config, own_test=own).faults[0])


def test_nearly_the_same_rows_warn_and_the_run_is_told(tmp_path, report_of):
    config = config_of(tmp_path, asks("alpha?", LONG), asks("delta?"))
    near = benchmark(tmp_path, {"question": LONG.replace(f"{POISON}20", "another")})
    report = report_of(config.model_copy(update={"window_tokens": None, "model": "tiny"}), benchmarks=[near])
    assert "1 near-duplicate pair of rows" in report.warnings[0]
    assert "training row 2 and bench row 1" in report.warnings[0]
    assert report.warnings[0] in report.rows.notes


def test_more_than_twenty_pairs_are_counted(tmp_path, report_of):
    texts = [f"number {n}" for n in range(30)]
    report = report_of(
        config_of(tmp_path, asks(*texts), asks("delta?")), benchmarks=[benchmark(tmp_path, *asks(*texts))]
    )
    assert "30 rows appear" in str(report.faults[0])
    assert "training row 20 and bench row 20; and 10 more." in str(report.faults[0])


def test_overlap_that_the_source_removed_itself_is_noted_and_refuses_nothing(tmp_path, report_of):
    report = report_of(config_of(tmp_path, asks("alpha?", "beta?", "beta?"), asks("alpha?")))
    assert report.faults == ()
    assert any("left out because an earlier row has the same prompt" in note for note in report.notes)
    assert any("left out of training because the validation split has the same prompt" in note for note in report.notes)


def test_overlap_and_repeats_that_the_source_does_not_see_are_found(tmp_path, report_of):
    report = report_of(config_of(tmp_path, asks("alpha?", "beta?", "beta!", "gamma"), asks("Gamma.")))
    assert "training row 4 and validation row 1" in str(report.faults[0])
    assert "1 training row repeats an earlier one." in report.warnings


def test_a_short_last_turn_is_compared_with_the_turns_before_it(tmp_path, report_of):
    def talk(first):
        turns = [("user", first), ("assistant", "7"), ("user", "And why?")]
        return {"prompt": [{"role": role, "content": text} for role, text in turns], "ground_truth": "1"}

    assert report_of(config_of(tmp_path, [talk("alpha"), talk("beta")], [talk("gamma")])).faults == ()
    assert kinds(report_of(config_of(tmp_path, [talk("alpha"), talk("beta")], [talk("beta!")]))) == [IncompatibleData]


def test_math_pairs_are_never_refused(tmp_path, report_of):
    config = build({"rl": {"max_answer_tokens": 16}, "device": "cpu"})
    texts = [prompt.messages[0]["content"] for prompt in check(config).rows.dataset.train]
    report = report_of(config, benchmarks=[benchmark(tmp_path, *asks(*texts))])
    assert report.faults == ()


def test_math_pairs_are_compared_with_what_was_asked_for(tmp_path, report_of):
    data = {"source": "math_pairs", "prompts": 8, "heldout": 8}
    config = build({"data": data, "rl": {"max_answer_tokens": 16, "validation_prompts": 4}})
    first = report_of(config).rows.dataset.train[0].messages[0]["content"]
    bench = ReferenceSet("bench", write(tmp_path / "bench.jsonl", asks(first)), is_asked_for=True)
    assert "training row" in str(report_of(config, benchmarks=[bench]).faults[0])
    assert report_of(config, benchmarks=[bench._replace(is_asked_for=False)]).faults == ()


@pytest.mark.parametrize(
    "content", [b"{", b"[]\n", b'{"answer": 1}\n', b'{"prompt": 3}\n', b'{"prompt": [{"role": "user"}]}\n', b"\xff\n"]
)
def test_a_benchmark_file_that_holds_no_questions_is_a_fault(content, tmp_path, report_of):
    file = tmp_path / "bench.jsonl"
    file.write_bytes(content)
    report = report_of(config_of(tmp_path), benchmarks=[ReferenceSet("bench", file, is_asked_for=True)])
    assert kinds(report) == [IncompatibleData]
    assert str(file) in str(report.faults[0])
    missing = [ReferenceSet("bench", tmp_path / "none.jsonl", is_asked_for=True)]
    missing = report_of(config_of(tmp_path), benchmarks=missing)
    assert "No such file" in str(missing.faults[0])


def test_a_file_that_nobody_asked_for_stops_no_run(tmp_path, report_of):
    damaged = ReferenceSet("test of another dataset", tmp_path / "none.jsonl")
    config = config_of(tmp_path, asks("alpha?", "beta?"), asks("delta?"))
    report = report_of(config, own_test=damaged, benchmarks=[damaged, benchmark(tmp_path, *asks("alpha"))])
    assert sum("could not be compared with test of another dataset rows" in one for one in report.warnings) == 2
    assert "training row 1 and bench row 1" in str(report.faults[0])


# --- faults ----------------------------------------------------------------------------------------------------------


def test_one_fault_is_raised_as_it_is_and_none_not_at_all():
    raise_all([])
    fault = InvalidSetting("Rounds is 0.", "rl.rounds")
    with pytest.raises(InvalidSetting) as caught:
        raise_all([fault])
    assert caught.value is fault


def test_several_faults_survive_a_pipe_between_processes():
    faults = (InvalidSetting("Rounds is 0.", "rl.rounds"), IncompatibleData("Row 3 is empty."))
    copied = pickle.loads(pickle.dumps(NotReady(faults)))
    assert str(copied) == "This run cannot start: 2 problems. (1) Rounds is 0. (2) Row 3 is empty."
    assert [(type(fault), str(fault)) for fault in copied.faults] == [(type(fault), str(fault)) for fault in faults]
    assert copied.faults[0].field == "rl.rounds"


def test_what_is_not_a_users_fault_ends_the_checks():
    faults = Faults()
    with pytest.raises(ZeroDivisionError), faults.gathered():
        raise ZeroDivisionError
    assert faults.found == []


def test_rows_that_cannot_be_opened_leave_a_fault(tmp_path):
    faults = Faults()
    assert open_rows(config_of(tmp_path, data={"path": str(tmp_path / "none.jsonl")}), None, faults) is None
    assert [type(fault) for fault in faults.found] == [IncompatibleData]
