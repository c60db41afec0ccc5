"""Make the tiny model that ships with Ratchet, in a few minutes on two cores: ``python scripts/make_tiny_model.py``.

A decoder of about a million parameters is taught Math Pairs badly on purpose, so that reinforcement learning has
something to select: it knows its sums and products, but solves most problems in a wrong way and some in the right one.

    right     adds within the pairs, multiplies the sums             3 + 4 = 7, 2 + 6 = 8, 7 * 8 = 56
    adds      adds the sums instead of multiplying                   3 + 4 = 7, 2 + 6 = 8, 7 + 8 = 15
    crosses   adds across the pairs                                  3 + 2 = 5, 4 + 6 = 10, 5 * 10 = 50
    guesses   gives a number without steps                           48

Problems whose second sum is small are mostly solved the right way and the others mostly a wrong way, which is why its
greedy accuracy is neither 0 nor 1. No problem it is taught on is in one of the three splits of the default settings.
"""

import hashlib
import json
import random
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ratchet.config import MathPairsData
from ratchet.datasets.math_pairs_source import solve, unused_problems

FOLDER = Path(__file__).parent.parent / "src" / "ratchet" / "assets" / "tiny"

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class Recipe:
    """What the shipped file is made with. A test holds the file to the bands."""

    seed: int = 0
    vocabulary: int = 704
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    inner: int = 384
    window: int = 512
    steps: int = 500
    problems_per_step: int = 96
    drills_per_step: int = 160
    learning_rate: float = 3e-3
    small_second_sum: int = 8
    right_if_small: float = 0.70
    right_if_large: float = 0.12
    wrong_ways: tuple[tuple[str, float], ...] = (("adds", 0.60), ("crosses", 0.20), ("guesses", 0.20))
    greedy_band: tuple[float, float] = (0.30, 0.45)
    sampled_band: tuple[float, float] = (0.20, 0.45)
    most_bytes: int = 5_000_000


def numbers_of(problem: str) -> list[int]:
    """Return the four numbers of a problem in the order in which they stand."""
    return [int(part) for part in problem.replace("(", " ").replace(")", " ").split() if part.isdigit()]


def steps(a: int, b: int, c: int, d: int, sign: str) -> str:
    """Write out two sums and what is made of them."""
    first, second = a + b, c + d
    last = first * second if sign == "*" else first + second
    return f"{a} + {b} = {first}, {c} + {d} = {second}, {first} {sign} {second} = {last}"


def solution(problem: str, recipe: Recipe, rng: random.Random) -> str:
    """Write one solution the way the noisy teacher does."""
    a, b, c, d = numbers_of(problem)
    value = solve(problem) or 0
    right = recipe.right_if_small if c + d <= recipe.small_second_sum else recipe.right_if_large
    if rng.random() < right:
        return steps(a, b, c, d, "*")
    ways, weights = zip(*recipe.wrong_ways, strict=True)
    wrong = rng.choices(ways, weights)[0]
    if wrong == "adds":
        return steps(a, b, c, d, "+")
    if wrong == "crosses":
        return steps(a, c, b, d, "*")
    return str(max(1, value + rng.randint(-12, 12)))


def drill(rng: random.Random) -> tuple[str, str]:
    """Return one sum or product as question and answer."""
    if rng.random() < 0.5:
        a, b = rng.randint(1, 18), rng.randint(1, 18)
        return f"{a} + {b}", f"{a} + {b} = {a + b}"
    a, b = rng.randint(2, 18), rng.randint(2, 18)
    return f"{a} * {b}", f"{a} * {b} = {a * b}"


def make_tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer that writes every number that occurs as one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [f"= {n}, {n} * {n} + {n}" for n in range(400) for _ in range(3)]
    texts += [f"({a} + {b}) * ({b} + {a})" for a in range(1, 20) for b in range(1, 20)]
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=special[1:4],
        chat_template=TEMPLATE,
        model_max_length=recipe.window,
        clean_up_tokenization_spaces=False,
    )


def batch_of(tokenizer: PreTrainedTokenizerFast, pairs: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and labels, (b, T) each; labels are -100 in prompts and padding."""
    prompts = [
        tokenizer(f"<|user|>{user}<|end|><|assistant|>", add_special_tokens=False).input_ids for user, _ in pairs
    ]
    answers = [tokenizer(f"{text}<|end|>", add_special_tokens=False).input_ids for _, text in pairs]
    longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    ids = torch.full((len(pairs), longest), tokenizer.pad_token_id)
    labels = torch.full((len(pairs), longest), -100)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return ids, labels


def make(folder: Path, recipe: Recipe = Recipe()) -> None:
    """Train the model and write it, its tokenizer and its card."""
    torch.manual_seed(recipe.seed)
    rng = random.Random(recipe.seed)
    problems = unused_problems(MathPairsData(), validation_prompts=128)
    tokenizer = make_tokenizer(recipe)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=recipe.hidden,
            intermediate_size=recipe.inner,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.kv_heads,
            max_position_embeddings=recipe.window,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, recipe.steps, pct_start=0.05)
    model.train()
    for step in range(recipe.steps):
        problem_pairs = [(p, solution(p, recipe, rng)) for p in rng.sample(problems, recipe.problems_per_step)]
        drill_pairs = [drill(rng) for _ in range(recipe.drills_per_step)]
        optimizer.zero_grad()
        losses = []
        for pairs in (problem_pairs, drill_pairs):
            ids, labels = batch_of(tokenizer, pairs)
            loss = model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss
            loss.backward()
            losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == recipe.steps - 1:
            sys.stdout.write(f"step {step} problems {losses[0]:.4f} drills {losses[1]:.4f}\n")
            sys.stdout.flush()
    folder.mkdir(parents=True, exist_ok=True)
    model.eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_card(folder, recipe, sum(weight.numel() for weight in model.parameters()))


def write_card(folder: Path, recipe: Recipe, parameters: int) -> None:
    """Write the model card: what it is, how it was made, and the checksum of the weights."""
    checksum = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "tokenizers")}
    (folder / "README.md").write_text(
        f"""---
license: apache-2.0
library_name: transformers
---
# Ratchet's tiny model

A Llama-style decoder of {parameters:,} parameters that solves Math Pairs, such as `(3 + 4) * (2 + 6)`, the wrong way in
most cases and the right way in some. It exists so that a first run shows a model learn within a minute on a laptop, and
for tests. It knows nothing else.

- Made by `scripts/make_tiny_model.py` from made-up text alone.
- Taught on problems that are in none of the train, validation and held-out sets of the default settings.
- Accuracy on the held-out problems before training: {recipe.greedy_band[0]:.0%} to {recipe.greedy_band[1]:.0%} greedy,
  {recipe.sampled_band[0]:.0%} to {recipe.sampled_band[1]:.0%} sampled at temperature 1.
- SHA-256 of `model.safetensors`: `{checksum}`

```json
{json.dumps({"recipe": asdict(recipe), "versions": versions}, indent=2)}
```
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
