"""Which sampler a run gets: what is there decides, and a sentence says why."""

import sys

import pytest
import torch

from ratchet.config import SamplerSettings
from ratchet.engine.sampler.choice import choose
from ratchet.errors import InvalidSetting
from ratchet.models.model_files import ModelFiles
from ratchet.readiness import device_checks
from ratchet.readiness.device_checks import refuse_missing_sampler

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps")
FOLDER = ModelFiles("m", "/models/m", None, "sha256:0")
GGUF = ModelFiles("m", "/models", "m.gguf", "sha256:0")
GIB = 2**30


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package of that name where Python looks for packages; nothing may import it."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "vllm", raising=False)


@pytest.fixture
def absent(monkeypatch):
    """No package of that name, also where there is one."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    find_spec = device_checks.find_spec
    monkeypatch.setattr(device_checks, "find_spec", lambda name: None if name == "vllm" else find_spec(name))


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 80 GiB, so many of them free."""

    def free(gib):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (gib * GIB, 80 * GIB))

    free(70)
    return free


def chosen(device, files=FOLDER, **settings):
    found = choose(SamplerSettings(**settings), device, files, "none")
    return found.backend, found.why


def test_auto_takes_vllm_where_it_is_installed_and_a_gpu_is_there(installed, gpu):
    assert chosen(CUDA) == ("vllm", "vLLM and a CUDA GPU are there.")
    assert chosen(torch.device("cuda"))[0] == "vllm"


@pytest.mark.parametrize("device", [CPU, MPS], ids=str)
def test_auto_stays_in_process_without_a_cuda_gpu(installed, device):
    backend, why = chosen(device)
    assert backend == "in_process"
    assert device.type in why


def test_auto_stays_in_process_where_vllm_is_not_installed(absent, gpu):
    backend, why = chosen(CUDA)
    assert backend == "in_process"
    assert "not installed" in why


def test_auto_stays_in_process_where_the_memory_share_does_not_fit(installed, gpu):
    gpu(23)  # .3 of 80 GiB are 24
    backend, why = chosen(CUDA)
    assert backend == "in_process"
    assert "Memory share of vLLM is 0.3, which is 24.0 GiB of 80.0, but only 23.0 GiB are free" in why
    gpu(24)
    assert chosen(CUDA)[0] == "vllm"
    assert chosen(CUDA, gpu_memory_share=0.31)[0] == "in_process"


@pytest.mark.parametrize(
    ("device", "files", "reason"),
    [
        (MPS, FOLDER, "vLLM does not run on mps"),
        (torch.device("cuda", 1), FOLDER, "Set CUDA_VISIBLE_DEVICES=1"),
        (CUDA, GGUF, "the GGUF file m.gguf"),
    ],
)
def test_vllm_that_was_asked_for_and_cannot_be_had_is_refused_with_what_to_do(installed, gpu, device, files, reason):
    with pytest.raises(InvalidSetting, match=reason) as caught:
        choose(SamplerSettings(backend="vllm"), device, files, "none")
    assert caught.value.field == "sampler.backend"
    assert "in_process" in str(caught.value)
    if device.type == "cuda":
        assert reason in chosen(device, files)[1]


def test_a_quantized_base_model_is_not_sampled_by_an_engine_that_would_load_it_unquantized(installed, gpu):
    found = choose(SamplerSettings(), CUDA, FOLDER, "4bit")
    assert (found.backend, "Quantization is 4bit" in found.why) == ("in_process", True)
    with pytest.raises(InvalidSetting, match=r"Choose Quantization none, or Generation backend in_process"):
        choose(SamplerSettings(backend="vllm"), CPU, FOLDER, "8bit")


def test_a_share_that_does_not_fit_is_refused_by_its_own_name(installed, gpu):
    gpu(10)
    with pytest.raises(InvalidSetting, match="smaller share") as caught:
        choose(SamplerSettings(backend="vllm"), CUDA, FOLDER, "none")
    assert caught.value.field == "sampler.gpu_memory_share"


def test_vllm_that_was_asked_for_runs_on_a_cpu_too(installed):
    assert chosen(CPU, backend="vllm") == ("vllm", "Generation backend is vllm.")


def test_in_process_is_in_process_whatever_is_there(installed, gpu):
    assert chosen(CUDA, backend="in_process") == ("in_process", "Generation backend is in_process.")


def test_vllm_that_is_not_installed_is_refused_at_once_with_how_to_install_it(absent):
    for call in (lambda s: refuse_missing_sampler(s), lambda s: choose(s, CPU, FOLDER, "none")):
        with pytest.raises(
            InvalidSetting, match=r"pip install 'ratchet-rl\[vllm\]', or choose Generation backend in_process"
        ):
            call(SamplerSettings(backend="vllm"))
    refuse_missing_sampler(SamplerSettings())
    refuse_missing_sampler(SamplerSettings(backend="in_process"))
