"""Tests against a real vLLM engine. They run where vLLM is installed (``make test-vllm``) and are skipped elsewhere."""

import os
import warnings
from dataclasses import replace
from importlib.util import find_spec

import pytest

from ratchet.engine.sampler.vllm import VllmSampler
from ratchet.models.model_files import ModelFiles

from ..engine.models import tiny_model, tiny_policy

IS_INSTALLED = find_spec("vllm") is not None

if IS_INSTALLED:
    with warnings.catch_warnings():
        # A third party's, many of them, all of them while it is imported.
        warnings.simplefilter("ignore")
        import vllm  # noqa: F401

# vLLM's kernels know heads of 32 and more.
SHAPE = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
LONGEST_PROMPT, LONGEST = 14, 20


def pytest_collection_modifyitems(items):
    here = os.path.dirname(__file__)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.vllm)
            # Warnings of vLLM and of what it brings along; our own modules are not named here.
            for module in ("vllm", "torch", "numba", "transformers", "multiprocessing", "importlib"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore:::{module}"))
            if not IS_INSTALLED:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed here: make test-vllm installs and runs"))


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Return a function that saves a tiny base model of an architecture once and returns its folder."""
    folders = {}

    def save(architecture="llama"):
        if architecture not in folders:
            folders[architecture] = tmp_path_factory.mktemp(architecture)
            tiny_model(architecture, **SHAPE).save_pretrained(folders[architecture])
        return folders[architecture]

    return save


@pytest.fixture
def policy_of(saved):
    """Return a function that makes a policy over a saved tiny model; the adapter matters unless ``fresh``."""

    def make(architecture="llama", **settings):
        policy = tiny_policy(architecture, **SHAPE, **settings)
        return replace(policy, files=ModelFiles("random", str(saved(architecture)), None, "sha256:0"))

    return make


@pytest.fixture
def sampler_of():
    """Return a function that makes a sampler; all of them are closed at the end of the test."""
    made = []

    def make(policy, window=LONGEST_PROMPT + LONGEST, **settings):
        made.append(VllmSampler(policy, 0.3, 1 << 14, window, **settings))
        return made[-1]

    yield make
    for sampler in made:
        sampler.close()
