"""Adapters made and saved by PEFT itself, with weights that matter, and run folders around them that no run made."""

import json
import warnings
from contextlib import contextmanager
from pathlib import Path

import ratchet.engine  # before PEFT and transformers: of these it loads what is used

# isort: split
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from ratchet.files import write_atomically
from ratchet.models.adapter_files import ADAPTER_CONFIG, weights_sha256
from ratchet.models.model_files import locate
from ratchet.run.events import RunEnded, RunStarted
from ratchet.run.run_folder import RunFolder

TINY = Path(ratchet.__file__).parent / "assets" / "tiny"


@contextmanager
def peft_about_itself():
    """Ignore what PEFT 0.21 says of itself: about fused experts, and an attribute that transformers 5.24 renamed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys", category=RuntimeWarning)
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        yield


def adapted(model, rank=4, seed=0, **settings):
    """Put an adapter on a model by PEFT, none of whose weights is zero."""
    settings = {"target_modules": "all-linear", "lora_alpha": 2 * rank, **settings}
    with torch.random.fork_rng(devices=[]), peft_about_itself():
        torch.manual_seed(seed)
        found = get_peft_model(model, LoraConfig(r=rank, task_type="CAUSAL_LM", **settings)).eval()
        with torch.no_grad():
            for name, weight in found.named_parameters():
                if "lora_B" in name:
                    weight.normal_(std=0.05)
    return found


def by_peft(model, path):
    """Load an adapter as PEFT does."""
    with peft_about_itself():
        return PeftModel.from_pretrained(model, str(path)).eval()


def save(model, path):
    """Save an adapter as PEFT does; return where."""
    model.save_pretrained(str(path), save_embedding_layers=False)
    return path


def tiny_adapter(path, rank=4, **settings):
    """Save an adapter of the shipped tiny model; return where."""
    model = AutoModelForCausalLM.from_pretrained(TINY)
    model.name_or_path = str(TINY)
    return save(adapted(model, rank, **settings), path)


def change_settings(path, **changes):
    """Change what an adapter's own settings say."""
    file = path / ADAPTER_CONFIG
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def finished_run(config, path, adapter, ending="all_rounds", status="completed", **record):
    """Make the folder of a run that has ended with an adapter; nothing was trained."""
    folder = RunFolder.create(config, path)
    fixed = {"model_identity": locate(config.model).identity}
    folder.write_run({**folder.read_run(), "fixed": fixed, **record})
    folder.append_event(RunStarted(run=folder.run_id, resumed=False))
    folder.adapter_path.mkdir()
    for file in Path(adapter).iterdir():
        if file.suffix != ".md":
            write_atomically(folder.adapter_path / file.name, file.read_bytes())
    end = {"status": status, "ending": ending, "message": "Ended.", "best_round": 2, "best_accuracy": 0.5}
    folder.append_event(RunEnded(**end, adapter_sha256=weights_sha256(folder.adapter_path)))
    return folder
