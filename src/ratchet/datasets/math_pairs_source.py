"""Math Pairs: synthetic problems such as ``(3 + 4) * (2 + 6)`` with the product as ground truth.

Two problems are of the same class when they differ only in the order within pairs or of pairs. The splits are
disjoint as sets of classes, so no validation or held-out problem is a training problem in disguise. Where the
classes are few enough to list they are dealt in exact shares (60 percent train, 15 validation, 25 held-out). A larger
space is never listed: problems are drawn at random and a hash of the class says which split they belong to. A few
classes of the train share become the few-shot examples and are used nowhere else.

Only ``random.Random`` seeded by text is used: its streams are the same on every machine.
"""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import combinations_with_replacement, cycle, permutations, product
from math import comb, factorial, prod
from typing import Literal, NamedTuple

from ratchet.config import FormatKind, MathPairsData, WorkedExample
from ratchet.datasets.dataset import Dataset, in_form, tags_request
from ratchet.errors import InvalidSetting
from ratchet.run.records import Prompt

Pair = tuple[int, int]
ProblemClass = tuple[Pair, ...]  # smaller number first in each pair, pairs in rising order

# Up to so many classes are listed and dealt exactly. Above, every share exceeds what can be asked for (100,000
# training prompts of 120,000 classes or more), so that drawing with rejection comes to an end quickly.
MOST_LISTED_CLASSES = 200_000
MOST_EXAMPLES = 16

_PROBLEM = re.compile(r"\(\s*[0-9]{1,9}\s*\+\s*[0-9]{1,9}\s*\)(?:\s*\*\s*\(\s*[0-9]{1,9}\s*\+\s*[0-9]{1,9}\s*\))*")
_Split = Literal["train", "validation", "heldout"]
# One turn of dealing: 12 train, 3 validation and 5 held-out of 20 are 60, 15 and 25 percent. The first three differ,
# since the smallest space has three classes.
_DEAL = "TVHTTHTTTVTHTTHTTVTH"
_LETTERS: dict[str, _Split] = {"T": "train", "V": "validation", "H": "heldout"}


class _Texts(NamedTuple):
    """The chosen problems as text, per split, and those of the few-shot examples."""

    train: list[str]
    validation: list[str]
    heldout: list[str]
    examples: list[str]


def load(data: MathPairsData, *, validation_prompts: int, format_kind: FormatKind) -> Dataset:
    """Make the problems. The same settings give the same problems, and more prompts only add to them.

    Raises:
        InvalidSetting: more training prompts were asked for than there are; the message says how many there are.
    """
    texts = _choose(data, validation_prompts)
    return Dataset(
        train=_prompts(texts.train, format_kind),
        validation=_prompts(texts.validation, format_kind),
        heldout=_prompts(texts.heldout, format_kind),
        instruction=instruction(format_kind),
        examples=tuple(worked_example(text, format_kind) for text in texts.examples),
        notes=(
            *_shortfall("Validation sample", validation_prompts, len(texts.validation)),
            *_shortfall("Held-out prompts", data.heldout, len(texts.heldout)),
        ),
    )


def solve(text: str) -> int | None:
    """The product of the sums, or None if the text is no Math Pairs problem."""
    pairs = _read(text)
    return None if pairs is None else prod(sum(pair) for pair in pairs)


def problem_class(text: str) -> ProblemClass | None:
    """The class that all reorderings of a problem share, or None if the text is no Math Pairs problem."""
    pairs = _read(text)
    return None if pairs is None else _class_of(pairs)


def unused_problems(data: MathPairsData, validation_prompts: int) -> list[str]:
    """Every problem, in all its orderings, whose class none of the three splits uses, in rising order.

    The few-shot examples count as unused: they are in no split.

    Raises:
        ValueError: the classes are too many to list.
    """
    if class_count(data) > MOST_LISTED_CLASSES:
        raise ValueError(f"{class_count(data):,} classes of problems are too many to list")
    texts = _choose(data, validation_prompts)
    used = {problem_class(text) for text in (*texts.train, *texts.validation, *texts.heldout)}
    return [_write(pairs) for one in _all_classes(data) if one not in used for pairs in _orderings(one)]


def class_count(data: MathPairsData) -> int:
    """The number of classes: multisets of pairs, each pair a multiset of two numbers."""
    numbers = data.largest - data.smallest + 1
    return comb(comb(numbers + 1, 2) + data.pairs - 1, data.pairs)


def instruction(format_kind: FormatKind) -> str:
    """The default system prompt."""
    task = "Work out the value of the expression: add the two numbers in each pair of brackets"
    task += ", then multiply the sums one after another."
    if format_kind == "tags":
        return f"{task} {tags_request('the final number')}"
    if format_kind == "boxed":
        return f"{task} Show each step, then give the final number inside \\boxed{{}}."
    return f"{task} Show each step and end with the final number."


def worked_example(text: str, format_kind: FormatKind) -> WorkedExample:
    """Solve one problem in steps: ``2 + 5 = 7, 5 + 2 = 7, 7 * 7 = 49``.

    Raises:
        ValueError: the text is no Math Pairs problem.
    """
    pairs = _read(text)
    if pairs is None:
        raise ValueError("not a Math Pairs problem")
    steps = [f"{a} + {b} = {a + b}" for a, b in pairs]
    value = sum(pairs[0])
    for pair in pairs[1:]:
        steps.append(f"{value} * {sum(pair)} = {value * sum(pair)}")
        value *= sum(pair)
    return WorkedExample(user=text, assistant=in_form(", ".join(steps), str(value), format_kind))


def _choose(data: MathPairsData, validation_prompts: int) -> _Texts:
    listed = class_count(data) <= MOST_LISTED_CLASSES
    return _deal(data, validation_prompts) if listed else _draw(data, validation_prompts)


def _deal(data: MathPairsData, validation_prompts: int) -> _Texts:
    """Deal all classes to the splits and write out problems of each share."""
    shares = _shares(data)
    # A quarter of the train share at most, so that a small space still has something to train on.
    examples = min(MOST_EXAMPLES, len(shares["train"]) // 4)
    trained = shares["train"][examples:]
    available = sum(_ordering_count(one) for one in trained)
    if data.prompts > available:
        raise InvalidSetting(
            f"Training prompts is {data.prompts:,}, but with pairs {data.pairs} and numbers from {data.smallest} to "
            f"{data.largest} the number of distinct problems to train on is {available:,}. "
            + (f"Choose {available:,} or less, " if available >= 8 else "Choose ")
            + "more pairs or a wider range of numbers.",
            field="data.prompts",
        )
    return _Texts(
        train=_write_out(trained, data.prompts, _random(data, "train")),
        validation=_write_out(shares["validation"], validation_prompts, _random(data, "validation")),
        heldout=_write_out(shares["heldout"], data.heldout, _random(data, "heldout")),
        examples=_write_out(shares["train"][:examples], examples, _random(data, "examples")),
    )


def _shares(data: MathPairsData) -> dict[_Split, list[ProblemClass]]:
    """The classes of each split, in random order.

    Classes are dealt in turn from those with few orderings to those with many, so that the shares hold as much of
    all problems as of all classes, and the same mix of them. The seed decides among classes alike in this.
    """
    rng = _random(data, "shares")
    classes = list(_all_classes(data))
    rng.shuffle(classes)
    classes.sort(key=_ordering_count)
    shares: dict[_Split, list[ProblemClass]] = {"train": [], "validation": [], "heldout": []}
    for one, letter in zip(classes, cycle(_DEAL), strict=False):
        shares[_LETTERS[letter]].append(one)
    for share in shares.values():
        rng.shuffle(share)
    return shares


def _write_out(classes: list[ProblemClass], limit: int, rng: random.Random) -> list[str]:
    """Up to ``limit`` distinct problems: one random ordering of each class, then a second of each, ..."""
    texts: list[str] = []
    seen: set[str] = set()
    done = 0  # orderings written of every class that is still in ``classes``
    while classes and len(texts) < limit:
        for one in classes[: limit - len(texts)]:
            texts.append(_new_ordering(one, seen, rng))
            seen.add(texts[-1])
        done += 1
        classes = [one for one in classes if _ordering_count(one) > done]
    return texts


def _new_ordering(one: ProblemClass, seen: Collection[str], rng: random.Random) -> str:
    """A random ordering that is not among ``seen``; there must be one."""
    while True:
        pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in one]
        rng.shuffle(pairs)
        text = _write(pairs)
        if text not in seen:
            return text


def _draw(data: MathPairsData, validation_prompts: int) -> _Texts:
    """Draw random problems of a space too large to list; every class is used at most once."""
    examples = _draw_split(data, "train", "examples", MOST_EXAMPLES, exclude=frozenset())
    reserved = frozenset(map(problem_class, examples))
    return _Texts(
        train=_draw_split(data, "train", "train", data.prompts, exclude=reserved),
        validation=_draw_split(data, "validation", "validation", validation_prompts, exclude=frozenset()),
        heldout=_draw_split(data, "heldout", "heldout", data.heldout, exclude=frozenset()),
        examples=examples,
    )


def _draw_split(
    data: MathPairsData, split: _Split, stream: str, limit: int, *, exclude: frozenset[ProblemClass | None]
) -> list[str]:
    rng = _random(data, stream)
    texts: list[str] = []
    seen: set[ProblemClass | None] = set(exclude)
    while len(texts) < limit:
        pairs = [(_number(data, rng), _number(data, rng)) for _ in range(data.pairs)]
        one = _class_of(pairs)
        if one not in seen and _hashed_split(one, data.seed) == split:
            seen.add(one)
            texts.append(_write(pairs))
    return texts


def _hashed_split(one: ProblemClass, seed: int) -> _Split:
    """Assign a class to a split by a stable hash, in the shares of ``_DEAL``."""
    digest = hashlib.blake2b(f"{seed}: {_write(one)}".encode(), digest_size=8).digest()
    return _LETTERS[_DEAL[int.from_bytes(digest) % len(_DEAL)]]


def _all_classes(data: MathPairsData) -> Iterator[ProblemClass]:
    pairs = combinations_with_replacement(range(data.smallest, data.largest + 1), 2)
    return combinations_with_replacement(pairs, data.pairs)


def _orderings(one: ProblemClass) -> list[ProblemClass]:
    flipped = product(*(sorted({pair, pair[::-1]}) for pair in one))
    return sorted({ordering for pairs in flipped for ordering in permutations(pairs)})


def _ordering_count(one: ProblemClass) -> int:
    """``len(_orderings(one))`` without listing them.

    The places of the pairs (a multinomial, since equal pairs are alike) times two ways to write each pair of unequal
    numbers, at each of its places.
    """
    places = factorial(len(one)) // prod(factorial(repeats) for repeats in Counter(one).values())
    return places * int(2 ** sum(a != b for a, b in one))


def _random(data: MathPairsData, stream: str) -> random.Random:
    return random.Random(f"math pairs {data.seed} {stream}")


def _number(data: MathPairsData, rng: random.Random) -> int:
    return rng.randint(data.smallest, data.largest)


def _class_of(pairs: Collection[Pair]) -> ProblemClass:
    return tuple(sorted((min(pair), max(pair)) for pair in pairs))


def _read(text: str) -> ProblemClass | None:
    """The pairs in the order of the text, or None if it is no problem."""
    if _PROBLEM.fullmatch(text.strip()) is None:
        return None
    numbers = [int(digits) for digits in re.findall("[0-9]+", text)]
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _write(pairs: Collection[Pair]) -> str:
    return " * ".join(f"({a} + {b})" for a, b in pairs)


def _prompts(texts: list[str], format_kind: FormatKind) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(
            id=number,
            messages=({"role": "user", "content": text},),
            ground_truth=str(solve(text)),
            demonstration=worked_example(text, format_kind).assistant,
        )
        for number, text in enumerate(texts, start=1)
    )


def _shortfall(label: str, asked: int, found: int) -> list[str]:
    if found >= asked:
        return []
    return [f"{label} is {asked:,}, but only {found:,} problems exist in that share: all of them are used."]
