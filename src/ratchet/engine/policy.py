"""The policy: a frozen base model with a LoRA adapter, its chat template, and what its parts are called on disk.

The reference policy of the KL term is the policy at the start of the run: for a new adapter, whose second factor is
zero, that is the base model alone; for a run that continues an adapter, the base model with a frozen copy of it.
"""

import inspect
import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils.hub import cached_file, extract_commit_hash
from transformers.utils.logging import disable_progress_bar

from ratchet.config import LoraSettings, Loss, RunConfig
from ratchet.engine.chat import Chat
from ratchet.engine.decoder.weights import decoder_weights
from ratchet.engine.memory import is_out_of_memory, out_of_memory_as, shape_of
from ratchet.engine.quantization import (
    compute_dtype,
    is_quantized,
    load_keywords,
    make_trainable,
    refuse_other_quantization,
)
from ratchet.engine.starting_adapter import StartAdapter, read_start
from ratchet.engine.text_part import text_keywords
from ratchet.engine.third_party import from_files, lightly, load_bitsandbytes, without_load_report
from ratchet.errors import ModelUnavailable, RatchetError
from ratchet.models.adapter_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from ratchet.models.footprint import Load
from ratchet.models.model_files import (
    EXPERT_COUNTS,
    SMOLLM2,
    ModelFiles,
    conversion_path,
    in_folder,
    locate,
    model_config,
    towers_in,
)
from ratchet.readiness.device_checks import choose_device
from ratchet.readiness.model_checks import refuse_experts
from ratchet.run.display import counted

# Bars of several libraries would run through each other; what a run shows is decided by its surface.
disable_progress_bar()

ADAPTER = "default"
_WEIGHTS_NAMED = 3
# Of a second factor's numbers, times its scale: enough to move log-probabilities far more than rounding does, and too
# little to change how a model's activations behave.
_WORKING_DEVIATION = 0.02
# What the sampler knows how to copy from a prompt to its answers. A type that inherits from these may keep more.
_CACHE_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)


@dataclass
class Policy:
    """Base model, adapter and chat template on one device. ``identity`` pins the base model's files.

    ``start`` holds frozen copies of ``parameters`` as the run started, none where the adapter was new.
    """

    model: PeftModel
    chat: Chat
    device: torch.device
    files: ModelFiles
    identity: str
    is_reference: bool = False
    start: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        # Our own decoder over the same weights, where the model is of a kind that it knows.
        self.decoder = decoder_weights(self.model)
        # Found once: walking through all modules of a model takes longer than a small step of its update.
        self._weights = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The adapter's weights, in a fixed order."""
        return list(self._weights.values())

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """The adapter's weights with their names, in a fixed order."""
        return list(self._weights.items())

    @property
    def cache_argument(self) -> str:
        """What this version of transformers calls the key/value cache in a model's forward pass."""
        known = inspect.signature(type(self.model.get_base_model()).forward).parameters
        return "cache" if "cache" in known else "past_key_values"

    def adapter_state(self) -> dict[str, Tensor]:
        """Return copies of the adapter's tensors on the CPU, under PEFT's names, sorted."""
        # "auto" would ask the hub, each time, whether the base model's vocabulary was resized.
        state = get_peft_model_state_dict(self.model, adapter_name=ADAPTER, save_embedding_layers=False)
        return {name: state[name].detach().to("cpu", copy=True).contiguous() for name in sorted(state)}

    def load_adapter_state(self, state: dict[str, Tensor]) -> None:
        """Put tensors from ``adapter_state`` back."""
        with lightly():
            set_peft_model_state_dict(self.model, state, adapter_name=ADAPTER)

    def adapter_files(self, state: dict[str, Tensor]) -> dict[str, bytes]:
        """Return the files of an adapter folder in PEFT layout. The same tensors give the same bytes."""
        settings = self.model.peft_config[ADAPTER].to_dict()
        # Names of modules and parameters are sets, in no fixed order.
        settings = {key: sorted(value) if isinstance(value, set) else value for key, value in settings.items()}
        settings["base_model_name_or_path"] = self.files.source
        settings["revision"] = None if self.identity.startswith("sha256:") else self.identity
        settings["inference_mode"] = True
        config = json.dumps(settings, indent=2, sort_keys=True).encode()
        return {ADAPTER_CONFIG: config, ADAPTER_WEIGHTS: save(state, metadata={"format": "pt"})}

    @property
    def merged_bytes(self) -> int:
        """What ``merged`` needs besides the model: a second copy of every weight that the adapter is added into."""
        return sum(_adapted_weight(layer).nbytes for layer in _mergeable_layers(self.model))

    def memory_load(self, longest_prompt: int, longest_answer: int, *, own_decoder: bool = False) -> Load:
        """What a run of this policy asks of its device; lengths in tokens.

        ``own_decoder``: its update runs through our own decoder.
        """
        adapter_weights = sum(weight.numel() for weight in self.parameters)
        return Load(
            shape=shape_of(self.model.config, self.model.dtype, own_decoder=own_decoder),
            # As it is in memory: quantized weights count with their few bits.
            weight_bytes=int(self.model.get_base_model().get_memory_footprint()) - 4 * adapter_weights,
            merged_bytes=self.merged_bytes,
            adapter_weights=adapter_weights,
            longest_prompt=longest_prompt,
            longest_answer=longest_answer,
        )

    @contextmanager
    def merged(self) -> Iterator[None]:
        """Add the adapter into the base weights for the block; afterwards the very same base weights are back.

        The originals are set aside, not recomputed: subtracting what was added would leave rounding behind. Nothing can
        be added into quantized weights: there the adapter goes on working beside them.
        """
        layers = _mergeable_layers(self.model)
        originals: list[tuple[LoraLayer, torch.nn.Parameter, Tensor]] = []
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                for layer in layers:
                    weight = _adapted_weight(layer)
                    originals.append((layer, weight, weight.data))
                    weight.data = weight.data + layer.get_delta_weight(ADAPTER).to(weight.dtype)
                    layer.merged_adapters.append(ADAPTER)
            yield
        finally:
            for layer, weight, original in originals:
                weight.data = original
                layer.merged_adapters.clear()
            self.model.train(was_training)

    @contextmanager
    def with_working_adapter(self) -> Iterator[None]:
        """Give weights of the adapter that are all zero some numbers for the block, the same each time.

        A new adapter's second factors are zero, so it moves no output and its first factors have no gradient: whoever
        tries out a way to compute the policy would not see that it has the adapter wrong.
        """
        settings = self.model.peft_config[ADAPTER]
        deviation = _WORKING_DEVIATION * settings.r / settings.lora_alpha
        generator = torch.Generator().manual_seed(0)
        zero = [weight for weight in self.parameters if not bool(weight.detach().any())]
        try:
            with torch.no_grad():
                for weight in zero:
                    weight.copy_(torch.randn(weight.shape, generator=generator) * deviation)
            yield
        finally:
            with torch.no_grad():
                for weight in zero:
                    weight.zero_()

    def hold_as_start(self) -> None:
        """Keep a frozen copy of the adapter as it is now: the run starts from it, and it is the reference."""
        self.start = tuple(weight.detach().clone() for weight in self.parameters)

    @property
    def is_base_alone(self) -> bool:
        """Whether the adapter takes no part just now: the policy is the reference, and that has none."""
        return self.is_reference and not self.start

    @contextmanager
    def as_reference(self) -> Iterator[None]:
        """Make the policy, for the block, the one the run started from. No gradients may be asked for inside."""
        self.is_reference = True
        try:
            with self._start_weights() if self.start else self.model.disable_adapter():
                yield
        finally:
            self.is_reference = False

    @contextmanager
    def _start_weights(self) -> Iterator[None]:
        """Let the adapter's weights be, for the block, those it started with.

        The very same tensors are back afterwards: a graph that was built over them before goes on to its gradients.
        """
        now = [(weight, weight.data) for weight in self.parameters]
        try:
            for (weight, _), start in zip(now, self.start, strict=True):
                weight.data = start
            yield
        finally:
            for weight, data in now:
                weight.data = data


def _mergeable_layers(model: PeftModel) -> list[LoraLayer]:
    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    return [layer for layer in layers if not is_quantized(_adapted_weight(layer))]


def _adapted_weight(layer: LoraLayer) -> torch.nn.Parameter:
    """What a part of the adapter adds to: a linear layer's weight, or the stacked weights of experts."""
    weight: torch.nn.Parameter = layer.get_param() if isinstance(layer, ParamWrapper) else layer.get_base_layer().weight
    return weight


def chosen_device(setting: str) -> torch.device:
    """Return the device of a setting; auto takes the first GPU there is.

    Raises:
        InvalidSetting: that device is not there.
    """
    return torch.device(choose_device(setting, torch.cuda.device_count(), torch.backends.mps.is_available()))


def device_name(setting: str) -> str:
    """Return the device of a setting as people know it, such as ``cuda:0 (NVIDIA H200)``."""
    device = chosen_device(setting)
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({counted(torch.get_num_threads(), 'thread')})" if device.type == "cpu" else str(device)


def pinned_commit(hub_id: str, revision: str) -> str:
    """Return the commit that a hub id's revision means, the revision itself where the cache does not tell.

    The model's configuration was loaded a moment ago, so it is in the cache; transformers 5.24 no longer says from
    which commit it came.
    """
    path = cached_file(hub_id, "config.json", revision=revision, _raise_exceptions_for_missing_entries=False)
    return str(extract_commit_hash(path, None) or revision)


def load_chat(config: RunConfig) -> tuple[Chat, ModelFiles]:
    """Find the model and load its tokenizer, which takes a second, not its weights, which may take minutes.

    Raises:
        ModelUnavailable: nothing usable is there, or it has no text part.
    """
    files = locate(config.model)
    # Reading GGUF takes most of a minute each time, and cannot be followed by quantizing at once.
    if files.gguf_file and (files.name == SMOLLM2 or config.quantization != "none"):
        files = _converted(files)
    towers_in(files.name, model_config(files, config.revision))
    keywords = _load_keywords(files, config)
    with _unavailable(files):
        tokenizer = from_files(AutoTokenizer, files.source, **keywords)
        generation = _end_ids(files, keywords)
    end_ids = generation | ({tokenizer.eos_token_id} - {None})
    if not end_ids:
        raise ModelUnavailable(f"{files.name} names no end-of-sequence token, so its answers could never end.")
    return Chat(tokenizer, frozenset(end_ids), config.prompt.template_options), files


def load_policy(config: RunConfig, chat: Chat, files: ModelFiles) -> Policy:
    """Load the base model and put an adapter on it: the one to start from, or a new one that depends on the seed alone.

    float32 on the CPU (bfloat16 is many times slower there), bfloat16 on a GPU; the adapter is float32 everywhere.

    Raises:
        ModelUnavailable: the weights cannot be read or are of a kind that cannot be trained here.
        NotFound, Conflict: the adapter to start from is not there, or not what it was.
        InvalidSetting: the loss or the quantization does not go with the model.
        OutOfMemory: they do not fit.
    """
    start = read_start(config.start_from)
    device = chosen_device(config.device)
    dtype = compute_dtype(device)
    stored = model_config(files, config.revision)
    if config.quantization != "none" or "quantization_config" in stored:
        load_bitsandbytes()
    keywords = _load_keywords(files, config)
    keywords |= load_keywords(config.quantization, device, stored)
    if files.gguf_file:
        keywords["quantization_config"] = GgufConfig(dequantize=True)
    if towers_in(files.name, stored):
        with _unavailable(files):
            keywords |= text_keywords(files.name, files.source, _load_keywords(files, config))
    with out_of_memory_as("loading"), _unavailable(files), without_load_report(), lightly():
        model, report = from_files(
            AutoModelForCausalLM,
            files.source,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **keywords,
        )
    _refuse_incomplete(files, report)
    _refuse_other_tokenizer(files, model.get_input_embeddings().num_embeddings, chat)
    refuse_other_quantization(model, files.name, config.quantization)
    with _unavailable(files):
        refuse_mixture_of_experts(model.config, config.ratio_loss)
        layers = DynamicCache(config=model.config).layers
    if any(type(layer) not in _CACHE_LAYERS for layer in layers):
        raise ModelUnavailable(
            f"{files.name} keeps more than keys and values between tokens (a recurrent state), which several answers "
            "cannot share here. Choose a model with attention in every layer."
        )
    identity = files.identity or pinned_commit(files.source, config.revision)
    with out_of_memory_as("loading"), lightly():
        if start is None:
            peft_model = with_new_adapter(model, config.lora, config.seed)
        else:
            peft_model = with_start_adapter(model, start)
        if config.quantization == "none":
            peft_model.to(device)
        else:  # there already
            make_trainable(peft_model, device)
    peft_model.eval()
    policy = Policy(peft_model, chat, device, files, identity)
    if start is not None:
        policy.hold_as_start()
    return policy


def _refuse_incomplete(files: ModelFiles, report: dict[str, Any]) -> None:
    """Refuse a model some of whose weights are not in its files: transformers fills them with random numbers."""
    absent = set(report["missing_keys"]) | {name for name, *_ in report["mismatched_keys"]}
    if absent:
        named = ", ".join(sorted(absent)[:_WEIGHTS_NAMED]) + (" and others" if len(absent) > _WEIGHTS_NAMED else "")
        raise ModelUnavailable(
            f"The base model {files.name} cannot be loaded: {len(absent)} of its weights are not in its files, or are "
            f"of another shape there: {named}. Check that the files are whole and that config.json belongs to them."
        )


def _refuse_other_tokenizer(files: ModelFiles, embeddings: int, chat: Chat) -> None:
    """Refuse a tokenizer that is of another model: its own tokens, without added ones, must all have an embedding."""
    if chat.tokenizer.vocab_size > embeddings:
        raise ModelUnavailable(
            f"The tokenizer of {files.name} has {chat.tokenizer.vocab_size} tokens, but the model knows {embeddings}: "
            "they do not belong together. Take tokenizer and weights from the same place."
        )


def refuse_mixture_of_experts(model_config: Any, loss: Loss | None) -> None:
    """Refuse losses with a ratio per token for a mixture-of-experts model.

    Raises:
        InvalidSetting: the model is one and the loss is not gspo.
    """
    refuse_experts(experts_of(model_config.get_text_config(decoder=True)), loss)


def experts_of(text_config: Any) -> int:
    """How many experts a layer of the model chooses from, 0 or 1 where it is no mixture of them."""
    return max(getattr(text_config, name, None) or 0 for name in EXPERT_COUNTS)


def with_new_adapter(model: Any, lora: LoraSettings, seed: int) -> PeftModel:
    """Put a LoRA adapter on all linear layers of the trunk: first factor random by the seed, second zero."""
    settings = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return _with_adapter(model, settings, seed)


def with_start_adapter(model: Any, start: StartAdapter) -> PeftModel:
    """Put an adapter that was trained before on the layers that it has weights for.

    Raises:
        ModelUnavailable: it does not fit the model, or changes its first or last layer.
    """
    try:
        peft_model = _with_adapter(model, start.settings, seed=0)
    except ValueError as error:  # no layer is called so
        raise ModelUnavailable(f"The adapter {start.path} does not fit the base model: {_reason(error)}") from error
    if any(isinstance(layer, LoraLayer) for layer in (model.get_input_embeddings(), model.get_output_embeddings())):
        raise ModelUnavailable(
            f"The adapter {start.path} changes the base model's embeddings or output layer. Ratchet continues "
            "adapters on the layers between them."
        )
    start.refuse_misfit(get_peft_model_state_dict(peft_model, adapter_name=ADAPTER, save_embedding_layers=False))
    set_peft_model_state_dict(peft_model, dict(start.state), adapter_name=ADAPTER)
    return peft_model


def _with_adapter(model: Any, settings: LoraConfig, seed: int) -> PeftModel:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # PEFT 0.21 reads an attribute that transformers 5.24 renames; nothing of ours can avoid it.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        torch.manual_seed(seed)
        return get_peft_model(model, settings, adapter_name=ADAPTER)


def _load_keywords(files: ModelFiles, config: RunConfig) -> dict[str, Any]:
    keywords: dict[str, Any] = {}
    if files.gguf_file:
        keywords["gguf_file"] = files.gguf_file
    if files.is_on_hub:
        keywords["revision"] = config.revision
    return keywords


def _end_ids(files: ModelFiles, keywords: dict[str, Any]) -> frozenset[int]:
    """Return every end-of-sequence id of the generation configuration and of the model's own configuration."""
    found: set[int] = set()
    for source in (AutoConfig, GenerationConfig):
        try:
            ids = from_files(source, files.source, **keywords).eos_token_id
        except (OSError, AttributeError, TypeError):
            continue  # a model without a generation configuration
        found |= set(ids) if isinstance(ids, list | tuple) else {ids}
    return frozenset(found - {None})


@contextmanager
def _unavailable(files: ModelFiles) -> Iterator[None]:
    """Turn whatever a damaged model makes transformers raise, which is of any type, into ModelUnavailable."""
    try:
        yield
    except RatchetError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = _reason(error)
        advice = " Without a network, give a local folder." if files.is_on_hub else ""
        raise ModelUnavailable(f"The base model {files.name} cannot be loaded: {reason}{advice}") from error


def _reason(error: Exception) -> str:
    """Return the first line that says something; where it only announces the next one, that one too."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].endswith(":"):
        lines[0] = " ".join(lines[:2])
    speaks_for_itself = isinstance(error, OSError | ValueError | ImportError | RuntimeError | SafetensorError)
    parts = [*([] if speaks_for_itself and lines else [type(error).__name__]), *lines[:1]]
    return ": ".join(parts)[:300]


def _converted(files: ModelFiles) -> ModelFiles:
    """Convert a GGUF file to a folder of safetensors in float32, once; return that folder."""
    target = conversion_path(files)
    if (target / "config.json").is_file():
        return in_folder(files.name, target)
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    with _unavailable(files):
        from_files(AutoTokenizer, files.source, gguf_file=files.gguf_file).save_pretrained(temporary)
        model, report = from_files(
            AutoModelForCausalLM,
            files.source,
            gguf_file=files.gguf_file,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
        )
        _refuse_incomplete(files, report)
        model.save_pretrained(temporary)
        temporary.rename(target)
    return in_folder(files.name, target)
