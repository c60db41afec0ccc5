"""Models that also read images: their language model is trained, equal to that of the whole, without the rest."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from transformers import CLIPVisionConfig, Gemma3Config, LlamaConfig, LlavaConfig, Qwen2_5_VLConfig

from ratchet.config.config_text import build
from ratchet.engine.policy import load_chat, load_policy
from ratchet.errors import ModelUnavailable
from ratchet.models.model_files import find, towers_in

VOCABULARY = 704
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
}
EYES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
MODELS = {
    "gemma3": lambda: Gemma3Config(text_config=TEXT, vision_config=EYES, mm_tokens_per_image=4),
    "llava": lambda: LlavaConfig(text_config=LlamaConfig(**TEXT), vision_config=CLIPVisionConfig(**EYES)),
}


def saved(path, config):
    torch.manual_seed(0)
    whole = transformers.AutoModelForImageTextToText.from_config(config).eval()
    whole.save_pretrained(path)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (path / file).write_bytes((Path(find("tiny").source) / file).read_bytes())
    return whole


def loaded(path):
    config = build({"model": str(path), "device": "cpu"}).resolved()
    return load_policy(config, *load_chat(config))


@pytest.mark.parametrize("name", MODELS)
def test_the_text_part_writes_what_the_whole_model_writes_and_has_the_adapter_to_itself(name, tmp_path, capfd):
    whole = saved(tmp_path, MODELS[name]())
    capfd.readouterr()
    policy = loaded(tmp_path)
    assert "UNEXPECTED" not in "".join(capfd.readouterr())
    ids = torch.randint(0, VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(policy.model(input_ids=ids).logits, whole(input_ids=ids).logits, atol=1e-5, rtol=0)
    assert not [part for part, _ in policy.model.named_modules() if "vision" in part or "projector" in part]
    assert len(policy.parameters) == 2 * 7 * TEXT["num_hidden_layers"]


def test_a_text_part_that_is_no_language_model_by_itself_is_refused(tmp_path):
    text = {**TEXT, "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}}
    eyes = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32}
    saved(tmp_path, Qwen2_5_VLConfig(text_config=text, vision_config=eyes))
    with pytest.raises(ModelUnavailable, match="vision model whose text part does not load as a language model"):
        loaded(tmp_path)


def test_a_text_part_with_a_weight_missing_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    saved(tmp_path, MODELS["llava"]())
    weights = load_file(tmp_path / "model.safetensors")
    [name] = [name for name in weights if name.endswith("layers.1.mlp.up_proj.weight") and "vision" not in name]
    del weights[name]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnavailable, match="1 of its weights are not in its files"):
        loaded(tmp_path)


def test_what_is_beside_the_text_part_is_named(tmp_path):
    assert towers_in("m", {}) == ""
    assert towers_in("m", {"vision_config": {}, "text_config": {"a": 1}}) == "vision"
    assert towers_in("m", {"vision_config": {}, "audio_config": {}, "text_config": {"a": 1}}) == "vision and audio"
    with pytest.raises(ModelUnavailable, match="m is a model for audio without a text part"):
        towers_in("m", json.loads('{"audio_config": {}}'))
