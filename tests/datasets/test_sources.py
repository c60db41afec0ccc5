"""The sources through ``load``: GSM8K's real rows, ground truths, instructions and worked examples."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from ratchet.config import BoxedData, Data, DeepMathData, FormatKind, Gsm8kData, MathPairsData
from ratchet.datasets import load
from ratchet.datasets.sources import SOURCES
from ratchet.errors import IncompatibleData

GSM8K = Path(__file__).parents[3] / "shared/data/gsm8k"
needs_gsm8k = pytest.mark.skipif(not GSM8K.is_dir(), reason="the GSM8K rows are not beside this checkout")


@pytest.fixture
def gsm8k_file(tmp_path):
    def write(*answers):
        rows = [{"question": f"q{number}", "answer": answer} for number, answer in enumerate(answers)]
        (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return Gsm8kData(path=str(tmp_path))

    return write


def test_every_source_of_the_settings_has_a_function():
    sources = {variant.model_fields["source"].default for variant in get_args(get_args(Data)[0])}
    assert sources == SOURCES.keys()


@needs_gsm8k
def test_gsm8k_gives_all_7473_rows_and_every_ground_truth_is_a_plain_number():
    dataset = load(Gsm8kData(path=str(GSM8K)), validation_prompts=1024, format_kind="tags")
    assert (len(dataset.train), len(dataset.validation)) == (6726, 747)
    assert dataset.notes == ("Validation sample is 1,024, but only 747 rows exist for it: all are used.",)
    prompts = (*dataset.train, *dataset.validation)
    assert sorted(prompt.id for prompt in prompts) == list(range(1, 7474))
    assert all(re.fullmatch(r"-?\d+(\.\d+)?", prompt.ground_truth) for prompt in prompts)


@needs_gsm8k
def test_the_worked_examples_are_not_rows_of_gsm8k():
    dataset = load(Gsm8kData(path=str(GSM8K)), validation_prompts=1024, format_kind="tags")
    questions = {prompt.messages[0]["content"] for prompt in (*dataset.train, *dataset.validation)}
    assert not questions & {example.user for example in dataset.examples}


@pytest.mark.parametrize(
    ("answer", "ground_truth"),
    [
        ("steps\n#### 72", "72"),
        ("#### 5 then\n####1,234,567", "1234567"),
        ("#### -3.50 ", "-3.50"),
        ("#### 1,2", "1,2"),
        ("#### 12,3456", "12,3456"),
    ],
)
def test_the_gold_follows_the_last_mark_without_thousands_separators(gsm8k_file, answer, ground_truth):
    data = gsm8k_file(answer, answer)
    assert load(data, validation_prompts=1, format_kind="tags").train[0].ground_truth == ground_truth


def test_gsm8k_rows_without_a_gold_answer_are_named(gsm8k_file):
    data = gsm8k_file("#### 1", "seven", "#### ", "8 ### 8")
    with pytest.raises(IncompatibleData) as refused:
        load(data, validation_prompts=1, format_kind="tags")
    assert "rows 2, 4: the column answer has no ####; row 3: the column answer has nothing after the last ####" in str(
        refused.value
    )


@pytest.mark.parametrize("format_kind", ["off", "tags", "boxed", "pattern"])
def test_gsm8k_examples_are_right_and_end_with_the_final_number(gsm8k_file, format_kind):
    examples = load(gsm8k_file("#### 1", "#### 2"), validation_prompts=1, format_kind=format_kind).examples
    assert len(examples) == 8
    for example in examples:
        for sides in re.findall(r"([\d.]+(?: [-+*/] [\d.]+)+) = ([\d.]*\d)", example.assistant):
            assert eval(sides[0]) == float(sides[1])
        numbers = re.findall(r"\d+", example.assistant)
        steps = example.assistant.partition("</think>")[0].partition("\n\\boxed")[0]
        assert numbers[-1] == re.findall(r"\d+", steps)[-1]
        if format_kind == "tags":
            assert re.fullmatch(r"<think>.*</think>\n<answer>\d+</answer>", example.assistant)


@pytest.mark.parametrize(
    "data", [BoxedData(path="?"), DeepMathData(path="?"), Gsm8kData(path="?")], ids=lambda data: data.source
)
@pytest.mark.parametrize("format_kind", get_args(FormatKind))
def test_instructions_ask_for_the_place_of_the_answer(tmp_path, data, format_kind):
    rows = [
        {"question": f"q{n}", "answer": "#### 1", "prompt": f"q{n}", "ground_truth": "1", "solution": "1"}
        for n in (1, 2)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    dataset = load(data.model_copy(update={"path": str(file)}), validation_prompts=1, format_kind=format_kind)
    asked = dataset.instruction
    assert ("<think></think>" in asked) == ("<answer></answer>" in asked) == (format_kind == "tags")
    assert ("\\boxed{}" in asked) == (data.source != "gsm8k" or format_kind == "boxed")
    assert (len(dataset.examples) == 8) == (data.source == "gsm8k")
    assert dataset.heldout == ()


def test_math_pairs_through_the_same_door():
    dataset = load(MathPairsData(), validation_prompts=16, format_kind="tags")
    assert (len(dataset.train), len(dataset.validation), len(dataset.heldout)) == (256, 16, 512)


def test_the_hugging_face_library_is_loaded_for_hub_ids_only():
    code = "import sys, ratchet.datasets; print({'datasets', 'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
