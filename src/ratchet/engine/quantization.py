"""A base model in 8 or 4 bits, by bitsandbytes: what that asks of a run, and what its layers need to be trained.

4 bits are NF4 with double quantization (Dettmers et al. 2023, arXiv:2305.14314, section 3), 8 bits the weights of
LLM.int8 (Dettmers et al. 2022, arXiv:2208.07339, section 2.1): a code of -127..127 a number, a scale a row. Adapter,
output layer, embeddings and norms stay as they are.

Left out on purpose: PEFT's ``prepare_model_for_kbit_training``. It freezes the base model, which putting the adapter on
does too; turns gradient checkpointing on, which is a setting here; and copies every weight that was left in bfloat16
to float32, the largest of which, embeddings and output layer, would then take twice the room. Models that are not
quantized train in bfloat16 with those very weights.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import BitsAndBytesConfig

from ratchet.config import Quantization
from ratchet.errors import InvalidSetting

_INT8_MOST = 127
_WORDS: dict[Quantization, str] = {"none": "unquantized", "8bit": "in 8 bits", "4bit": "in 4 bits"}


def load_keywords(quantization: Quantization, device: torch.device, stored: dict[str, Any]) -> dict[str, Any]:
    """What ``from_pretrained`` is given beside the rest to load a model quantized, nothing for "none".

    At once to the device: quantized weights are not moved. A model that is ``stored`` quantized says itself how.
    """
    if quantization == "none":
        return {}
    keywords: dict[str, Any] = {"device_map": {"": device}}
    if "quantization_config" in stored:
        return keywords
    if quantization == "8bit":
        settings = BitsAndBytesConfig(load_in_8bit=True)
    else:
        settings = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=compute_dtype(device),
        )
    return {**keywords, "quantization_config": settings}


def compute_dtype(device: torch.device) -> torch.dtype:
    """What a model computes in: bfloat16 on a GPU, else float32 (bfloat16 is many times slower on a CPU)."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def refuse_other_quantization(model: Any, name: str, quantization: Quantization) -> None:
    """Refuse a model that was loaded in other bits than the setting says, since its files hold them so.

    Raises:
        InvalidSetting: another value of the setting, or another model, is needed.
    """
    if not getattr(model, "is_quantized", False):
        return
    loaded: Quantization = "none"
    if getattr(model, "is_loaded_in_8bit", False):
        loaded = "8bit"
    elif getattr(model, "is_loaded_in_4bit", False):
        loaded = "4bit"
    if loaded == quantization != "none":
        return
    if loaded == "none":
        raise InvalidSetting(
            f"The base model {name} is stored quantized, by another method than bitsandbytes, and cannot be trained "
            "so. Choose the model it was made from.",
            "model",
        )
    raise InvalidSetting(
        f"Quantization is {quantization}, but the base model {name} is stored {_WORDS[loaded]}. Choose {loaded}, or "
        "the model it was made from.",
        "quantization",
    )


def make_trainable(model: Any, device: torch.device) -> None:
    """Have the layers of bitsandbytes compute the same in sampling and in the update, and pass gradients on.

    In 8 bits LLM.int8 also rounds the activations, except for columns that hold an outlier in any row of the batch. An
    answer would then depend on its neighbours, and its log-probability would be another one in the update: by 1.3
    nats at worst on SmolLM2-135M. So the weights are kept as LLM.int8 has them, and activations as they are.

    In 4 bits, on processors with AVX512-BF16, a layer that is not in training mode re-packs its weights for a kernel in
    bfloat16 without a backward pass, and gradients are silently zero from then on. A model here is never in training
    mode, so that no dropout acts; these layers, which have none, are.
    """
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    for module in model.modules():
        if isinstance(module, Linear8bitLt):
            module.forward = partial(_dequantized_product, module)
        elif isinstance(module, Linear4bit):
            module.compute_dtype = compute_dtype(device)  # a model that is stored quantized brings one of its own
            if device.type == "cpu":
                module.register_forward_pre_hook(_in_training_mode)


def _in_training_mode(layer: torch.nn.Module, inputs: Any) -> None:
    layer.training = True


def _dequantized_product(layer: Any, x: Tensor) -> Tensor:
    """Stand in for the forward pass of a Linear8bitLt: (..., K) -> (..., N)."""
    if layer.weight.CB is not None:
        layer.init_8bit_state()
    # torch's own functions carry no types.
    product: Tensor = _Int8Product.apply(  # type: ignore[no-untyped-call]
        x, layer.state.CB, layer.state.SCB / _INT8_MOST
    )
    return product if layer.bias is None else product + layer.bias.to(product.dtype)


class _Int8Product(torch.autograd.Function):
    """``x @ (codes * scales).T`` for (..., K), (N, K) in int8 and (N,), keeping the codes alone for the backward pass.

    Codes of at most 127 are exact in bfloat16 too, so the float32 scales go to the product and round no weight.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
        ctx.save_for_backward(codes, scales)
        return (torch.nn.functional.linear(x, codes.to(x.dtype)) * scales).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        codes, scales = ctx.saved_tensors
        (gradient,) = gradients
        return (gradient * scales).to(gradient.dtype) @ codes.to(gradient.dtype), None, None


def is_quantized(weight: torch.Tensor) -> bool:
    """Whether a weight holds codes, not numbers: nothing can be added to it."""
    return not weight.is_floating_point()
