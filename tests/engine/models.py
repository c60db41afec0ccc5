"""Random tiny models of several architectures, and policies over them. Nothing here reads a file or a network."""

import string
import warnings
from functools import partial

# isort: split
import numpy as np
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ratchet.config import LoraSettings
from ratchet.engine.chat import Chat
from ratchet.engine.policy import Policy, with_new_adapter
from ratchet.models.model_files import ModelFiles
from ratchet.run.records import Completion, Grade, Group, Prompt, Rollout

PAD, BOS, EOS, TURN, UNKNOWN = range(5)
SPECIAL = ["<pad>", "<bos>", "<eos>", "<turn>", "<unk>"]
CHARACTERS = string.ascii_lowercase + string.digits + "QASU \n:.,+-*/()<>=?!'|_"
VOCABULARY = len(SPECIAL) + len(CHARACTERS)

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Ten times the usual deviation: attention must matter to the logits, or a wrong mask would not show.
    "initializer_range": 0.2,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
_WINDOW = 6
ARCHITECTURES = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
    "gemma": ("GemmaConfig", {"head_dim": 8}),
    "phi": ("PhiConfig", {"partial_rotary_factor": 0.5}),
    "phi3": ("Phi3Config", {}),
    "gpt_neox": ("GPTNeoXConfig", {"hidden_dropout": 0.0}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    # The following look back over a window in some layers; the last logits of Gemma 2 are capped.
    "mistral": ("MistralConfig", {"sliding_window": _WINDOW}),
    "gemma2": ("Gemma2Config", {"head_dim": 8, "sliding_window": _WINDOW, "query_pre_attn_scalar": 8}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "head_dim": 8,
            "sliding_window": _WINDOW,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}


def tiny_model(architecture="llama", seed=0, dtype=torch.float32, **settings):
    """Build a model with random weights. In float64 it computes in float64 but for the routers of its experts."""
    name, own = ARCHITECTURES[architecture]
    config = getattr(transformers, name)(**{**_SHAPE, **own, **settings})
    # The fused experts know float32 and bfloat16 only.
    experts = {"experts_implementation": "eager"} if architecture == "mixtral" and dtype == torch.float64 else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, **experts).to(dtype).eval()
    if dtype == torch.float64:
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = partial(_norm, module)
    return model


def _norm(module, hidden):
    """Compute a root mean square norm in the dtype given: transformers' own do it in float32 whatever the model's."""
    is_gemma = hasattr(module, "_norm")
    offset = module.eps if is_gemma else module.variance_epsilon
    normed = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + offset)
    return normed * (1 + module.weight if is_gemma else module.weight)


def character_tokenizer(**settings):
    """One token a character; the special tokens are written as they are called."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{**special, "extra_special_tokens": ["<turn>"], **settings}
    )


def tiny_policy(architecture="llama", seed=0, dtype=torch.float32, end_ids=(EOS,), rank=4, fresh=False, **settings):
    """Put an adapter on a tiny model; unless ``fresh``, its second factor is random, so that the adapter matters."""
    base = tiny_model(architecture, seed, dtype, **settings)
    with warnings.catch_warnings():
        # PEFT 0.21 prepares for fused experts being targeted, which "all-linear" does not do, and warns about itself.
        warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys", category=RuntimeWarning)
        model = with_new_adapter(base, LoraSettings(rank=rank, alpha=2 * rank), seed).to(dtype).eval()
    if not fresh:
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight.normal_(std=0.1, generator=generator)
    chat = Chat(character_tokenizer(), frozenset(end_ids), {})
    files = ModelFiles("random", "/nowhere/random", None, "sha256:0")
    return Policy(model, chat, torch.device("cpu"), files, files.identity)


def random_ids(length, seed=0):
    """Return token ids that are neither special nor an end."""
    generator = np.random.default_rng(seed)
    return tuple(int(token) for token in generator.integers(len(SPECIAL), VOCABULARY, length))


def group_of(prompt_token_ids, answers, rewards, number=1, full_logprobs=None):
    """Make a group of bare answers: their tokens and what they earned."""
    rollouts = []
    for position, (token_ids, reward) in enumerate(zip(answers, rewards, strict=True)):
        sampled = full_logprobs[position] if full_logprobs else (0.0,) * len(token_ids)
        completion = Completion(tuple(token_ids), tuple(sampled), tuple(sampled), "", "stop")
        rollouts.append(Rollout(completion, Grade(reward, "graded"), format=0.0, reward=reward))
    return Group(Prompt(number, (), ""), tuple(prompt_token_ids), tuple(rollouts))
