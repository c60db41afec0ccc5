"""The shipped tiny model is what its script and card say: size, checksum, and how well it solves Math Pairs."""

import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from ratchet.config import MathPairsData, RunConfig
from ratchet.datasets import load
from ratchet.datasets.math_pairs_source import problem_class, unused_problems
from ratchet.engine.distribution import GREEDY, SamplingSettings
from ratchet.engine.policy import load_chat, load_policy
from ratchet.engine.sampler import SampleRequest
from ratchet.engine.sampler.in_process import InProcessSampler

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "src" / "ratchet" / "assets" / "tiny"


def script():
    spec = importlib.util.spec_from_file_location("make_tiny_model", ROOT / "scripts" / "make_tiny_model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recipe():
    return script().Recipe()


def share_right(folder: Path, settings: SamplingSettings, answers: int) -> float:
    """Share of answers to the 512 held-out problems whose last number is the product."""
    config = RunConfig(model=str(folder))
    chat, files = load_chat(config)
    policy = load_policy(config, chat, files)
    prompts = load(config.data, validation_prompts=128, format_kind="off").heldout
    requests = [SampleRequest(chat.encode(p.messages), answers, (7, 0, p.id)) for p in prompts]
    assert len(requests) == 512
    right = 0
    for sampled in InProcessSampler(policy, 1 << 17).sample(requests, settings, 32, lambda: None):
        numbers = re.findall(r"\d+", sampled.completion.text)
        right += bool(numbers) and numbers[-1] == prompts[sampled.request].ground_truth
    return right / (len(requests) * answers)


def test_it_is_small_and_matches_the_checksum_on_its_card(recipe):
    weights = (SHIPPED / "model.safetensors").read_bytes()
    card = (SHIPPED / "README.md").read_text()
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) <= recipe.most_bytes
    assert f"`{hashlib.sha256(weights).hexdigest()}`" in card


def test_its_card_holds_the_settings_of_the_script(recipe):
    card = (SHIPPED / "README.md").read_text()
    stored = json.loads(card[card.index("```json") + 7 : card.rindex("```")])["recipe"]
    assert stored == json.loads(json.dumps(recipe.__dict__))


def test_it_solves_the_held_out_problems_within_its_bands(recipe):
    assert recipe.greedy_band == (0.30, 0.45)
    assert recipe.sampled_band == (0.20, 0.45)
    assert 0.30 <= share_right(SHIPPED, GREEDY, 1) <= 0.45
    assert 0.20 <= share_right(SHIPPED, SamplingSettings(), 2) <= 0.45


def test_it_was_taught_on_problems_that_no_split_uses():
    taught = {problem_class(text) for text in unused_problems(MathPairsData(), validation_prompts=128)}
    dataset = load(MathPairsData(), validation_prompts=128, format_kind="off")
    splits = [{problem_class(p.messages[0]["content"]) for p in s} for s in (dataset.train, dataset.validation)]
    splits.append({problem_class(p.messages[0]["content"]) for p in dataset.heldout})
    for number, one in enumerate(splits):
        assert not one & taught
        for other in splits[number + 1 :]:
            assert not one & other


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_making_it_again_gives_a_model_within_the_same_bands(tmp_path, recipe):
    script().make(tmp_path, recipe)
    assert 0.30 <= share_right(tmp_path, GREEDY, 1) <= 0.45
    assert 0.20 <= share_right(tmp_path, SamplingSettings(), 2) <= 0.45
