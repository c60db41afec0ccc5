"""What the programs of transformers and TRL share: the same model and adapter, as PEFT builds them. Loads no TRL."""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from workload import LORA_ALPHA, LORA_RANK


def base_model(folder: str, dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def lora() -> LoraConfig:
    return LoraConfig(
        r=LORA_RANK, lora_alpha=LORA_ALPHA, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def policy_model(folder: str, *, merged: bool, dtype: torch.dtype = torch.float32) -> Any:
    """Return the model with its adapter, ready to generate answers that no token ends."""
    base = base_model(folder, dtype)
    # ``generate`` falls back to the model's own where it is given none.
    base.generation_config.eos_token_id = None
    model = get_peft_model(base, lora()).eval()
    return model.merge_and_unload() if merged else model
