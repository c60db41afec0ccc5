"""Adapter folders read without torch: what PEFT writes is understood, and what training cannot continue from is refused."""

import json
from dataclasses import replace

import pytest
from peft import LoraConfig

from ratchet.errors import Conflict, ModelUnavailable, NotFound
from ratchet.models.adapter_files import (
    ADAPTER_WEIGHTS,
    AdapterFiles,
    FactorPair,
    holds_adapter,
    read_adapter,
    refuse_misfit,
    refuse_unsupported,
)
from ratchet.models.model_files import find, tensor_shapes

from ..adapters import TINY, change_settings, tiny_adapter


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_adapter(tmp_path_factory.mktemp("adapter"))


@pytest.fixture
def files(folder):
    return read_adapter(folder)


def test_what_peft_writes_is_read_and_fits_its_model(folder, files):
    assert holds_adapter(folder)
    assert not holds_adapter(folder.parent)
    assert (files.rank, files.alpha) == (4, 8)
    pairs = files.pairs()
    assert len(pairs) == 4 * 7
    assert pairs["model.layers.0.mlp.down_proj"] == FactorPair((4, 384), (128, 4))
    refuse_unsupported(files)
    refuse_misfit(files, tensor_shapes(find("tiny")), "tiny")


def test_every_default_of_the_installed_peft_is_one_that_can_be_gone_on_from(files):
    settings = {**LoraConfig().to_dict(), "target_modules": ["q_proj"]}
    refuse_unsupported(replace(files, settings={**settings, "r": 4, "lora_alpha": 8}))


SUPPORTED = [
    {"use_rslora": True}, {"lora_dropout": 0.1}, {"init_lora_weights": "gaussian"}, {"init_lora_weights": False},
    {"layers_to_transform": [1, 2]}, {"target_modules": r".*\.q_proj"}, {"r": 4.0},
]  # fmt: skip


@pytest.mark.parametrize("settings", SUPPORTED, ids=str)
def test_what_the_engine_goes_on_from_exactly_is_let_through(settings, files):
    refuse_unsupported(replace(files, settings={**files.settings, **settings}))


UNSUPPORTED = [
    ({"peft_type": "IA3"}, "its kind is IA3"),
    ({"bias": "all"}, "bias is all"),
    ({"use_dora": True}, "it uses use_dora"),
    ({"rank_pattern": {"q_proj": 2}}, "it uses rank_pattern"),
    ({"alpha_pattern": {"q_proj": 2}}, "it uses alpha_pattern"),
    ({"modules_to_save": ["lm_head"]}, "it uses modules_to_save"),
    ({"trainable_token_indices": [3]}, "it uses trainable_token_indices"),
    ({"layer_replication": [[0, 2], [1, 3]]}, "it uses layer_replication"),
    ({"lora_bias": True}, "it uses lora_bias"),
    ({"use_qalora": True}, "it uses use_qalora"),
    ({"megatron_config": {"a": 1}}, "it uses megatron_config"),
    ({"something_of_a_later_peft": 1}, "it uses something_of_a_later_peft"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is pissa"),
    ({"init_lora_weights": "olora"}, "init_lora_weights is olora"),
    ({"r": 0}, "its r is 0"),
    ({"r": "8"}, "its r is 8"),
    ({"r": True}, "its r is True"),
    ({"lora_alpha": 16.5}, "its lora_alpha is 16.5"),
    ({"lora_alpha": None}, "its lora_alpha is None"),
]


@pytest.mark.parametrize(("settings", "said"), UNSUPPORTED, ids=str)
def test_what_cannot_be_gone_on_from_is_refused_by_name(settings, said, files):
    with pytest.raises(ModelUnavailable, match=said):
        refuse_unsupported(replace(files, settings={**files.settings, **settings}))


def shaped(files, changes):
    shapes = {**files.shapes, **changes}
    return replace(files, shapes={name: shape for name, shape in shapes.items() if shape})


LAYER = "base_model.model.model.layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({f"{LAYER}.lora_A.weight": None}, "only one of the two factors of model.layers.0.mlp.down_proj"),
        ({f"{LAYER}.lora_A.weight": (8, 384)}, r"its rank is 4, but its factors of .* are \[8, 384\]"),
        ({f"{LAYER}.lora_magnitude_vector": (128,)}, "lora_magnitude_vector .* no factor"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": (4, 674)}, "lora_embedding_A .* no factor"),
        (
            {
                "base_model.model.lm_head.lora_A.weight": (4, 128),
                "base_model.model.lm_head.lora_B.weight": (674, 4),
            },
            "changes the output layer lm_head",
        ),
    ],
)
def test_tensors_that_are_not_what_the_settings_say_are_refused(changes, said, files):
    with pytest.raises(ModelUnavailable, match=said):
        refuse_unsupported(shaped(files, changes))


def test_an_adapter_without_tensors_is_refused(files):
    with pytest.raises(ModelUnavailable, match="holds no tensors"):
        refuse_unsupported(replace(files, shapes={}))


def test_a_model_with_other_shapes_or_fewer_layers_is_refused_with_both_shapes(files):
    shapes = tensor_shapes(find("tiny"))
    name = "model.layers.0.mlp.down_proj.weight"
    with pytest.raises(ModelUnavailable, match=r"\[128, 384\], and the model has it as \[64, 384\]"):
        refuse_misfit(files, {**shapes, name: (64, 384)}, "small")
    fewer = {name: shape for name, shape in shapes.items() if ".layers.3." not in name}
    with pytest.raises(ModelUnavailable, match="the model has no such layer"):
        refuse_misfit(files, fewer, "small")


def test_a_model_whose_layers_go_by_other_names_is_left_to_the_engine(files):
    refuse_misfit(files, {}, "hub/id")
    refuse_misfit(files, {"transformer.h.0.weight": (3, 3)}, "renamed")


def test_a_subset_of_the_layers_fits(tmp_path):
    files = read_adapter(tiny_adapter(tmp_path, target_modules=["q_proj", "v_proj"]))
    refuse_unsupported(files)
    refuse_misfit(files, tensor_shapes(find(str(TINY))), "tiny")
    assert len(files.pairs()) == 8


def test_missing_and_damaged_files_are_named(folder, tmp_path):
    for file in folder.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    whole = (tmp_path / ADAPTER_WEIGHTS).read_bytes()
    (tmp_path / ADAPTER_WEIGHTS).write_bytes(whole[:500])
    with pytest.raises(Conflict, match=r"adapter_model.safetensors cannot be read .*damaged"):
        read_adapter(tmp_path)
    (tmp_path / ADAPTER_WEIGHTS).unlink()
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(NotFound, match=r"has no adapter_model.safetensors. Its weights are pickled"):
        read_adapter(tmp_path)
    (tmp_path / ADAPTER_WEIGHTS).write_bytes(whole)
    (tmp_path / "adapter_config.json").write_text("[")
    with pytest.raises(Conflict, match=r"adapter_config.json cannot be read"):
        read_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps([1]))
    with pytest.raises(Conflict, match=r"adapter_config.json cannot be read"):
        read_adapter(tmp_path)


def test_the_checksum_is_of_the_weights_alone(folder, tmp_path):
    before = read_adapter(folder).sha256
    for file in folder.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    change_settings(tmp_path, lora_dropout=0.5)
    assert read_adapter(tmp_path).sha256 == before
    content = bytearray((tmp_path / ADAPTER_WEIGHTS).read_bytes())
    content[-1] ^= 1
    (tmp_path / ADAPTER_WEIGHTS).write_bytes(content)
    assert read_adapter(tmp_path).sha256 != before


def test_reading_needs_no_torch(folder):
    import subprocess
    import sys

    code = (
        "import sys\nfrom pathlib import Path\nfrom ratchet.models.adapter_files import read_adapter, refuse_unsupported\n"
        f"refuse_unsupported(read_adapter(Path({str(folder)!r})))\n"
        "print([name for name in ('torch', 'peft', 'safetensors', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"]


def test_a_pair_is_two_shapes():
    only = AdapterFiles(TINY, "", {"r": 2, "lora_alpha": 4}, {"base_model.model.a.lora_A.weight": (2, 3), "base_model.model.a.lora_B.weight": (5, 2)})  # fmt: skip
    assert only.pairs() == {"a": FactorPair((2, 3), (5, 2))}
