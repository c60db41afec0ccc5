"""The leak guard: do texts of one split come up again in another, or in a benchmark?

It compares texts, and knows nothing of where they come from; rows are named by split and number, never by content.

Exact: equal but for case, whitespace, unicode normal forms, and punctuation that ends a word. Near: texts of 30 words
or more whose sets of three-word shingles have a Jaccard index (shared by all) of at least 0.7. MinHash (Broder 1997,
"On the resemblance and containment of documents", section 4) with locality-sensitive hashing (Leskovec, Rajaraman and
Ullman, "Mining of Massive Datasets", section 3.4) proposes the pairs, and every proposed pair is then counted out, so
that a reported pair is one. The threshold is that of SantaCoder (Allal et al. 2023, arXiv:2301.03988, appendix B) and
StarCoder; their five-word shingles are made for whole files: in a text of 30 words one changed word takes 5 of 26 of
them, which leaves an index of 0.68, and 3 of 28 shingles of three words, which leaves 0.81.

What rows of one source have in common, such as an instruction in front of every question, says nothing about a leak.
It is removed at both ends for the exact comparison, and shingles that many rows share do not count for the near one.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

import rensa

# Below this many words a text says too little for "nearly the same" to mean anything: 2 + 3 and 3 + 2.
NEAR_WORDS = 30
NEAR_JACCARD = 0.7
SHINGLE_WORDS = 3

# 32 bands of 4 rows propose a pair of index 0.7 with a chance of 1 - (1 - 0.7**4)**32 = 0.9998.
_HASHES, _BANDS, _SEED = 128, 32, 0
_SKETCHED_AT_ONCE = 1_000
# A shingle is common text where this many rows have it, and this share of a sample. Fewer rows than that have nothing
# in common that would not be a finding.
_COMMON_ROWS, _COMMON_SHARE, _SAMPLE = 10, 0.1, 1_000
KEY_BYTES = 16
# What is left of a text without the common ends is compared with other sources only from this many words on.
_OWN_WORDS = 4

# Quotation marks, primes and dashes that typesetting makes of those on a keyboard.
_TYPESET = {"'": "\u2018\u2019\u201a\u201b\u2032", '"': "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033"}
_TYPESET["-"] = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_STRAIGHT = str.maketrans({one: plain for plain, typeset in _TYPESET.items() for one in typeset})
_MARKS = re.compile(r"""[.,;:?!"…]+""")
# A space with no word on one side of it.
_LOOSE_SPACE = re.compile(r" (?:(?!\w)|(?<!\w ))")
_KEPT_FORMS = ("<super>", "<sub>", "<fraction>")


class RowText(NamedTuple):
    """One text, with the split it is in and its number there."""

    split: str
    number: int
    text: str


class Leak(NamedTuple):
    """Two rows of different splits; the first is the one in the data to train on."""

    split: str
    number: int
    other_split: str
    other_number: int


@dataclass(frozen=True)
class Leaks:
    """What was found. ``repeats`` counts, for each split, rows whose text an earlier row of that split has."""

    exact: tuple[Leak, ...]
    near: tuple[Leak, ...]
    repeats: dict[str, int]


def find_leaks(
    data: Iterable[RowText],
    benchmarks: Iterable[Iterable[RowText]] = (),
    *,
    unshared: Sequence[str] = ("training", "validation"),
) -> Leaks:
    """Compare the splits of a dataset with one another, and those a run reads with benchmarks.

    The first row of each text in each split represents its repeats. The same rows give the same findings.

    Args:
        data: The rows of all splits, those of a split together.
        benchmarks: The rows of each benchmark; they may share texts with one another and with other splits.
        unshared: The splits that may not share a text with a benchmark: those that a run reads. The first of them is
            the large one, which is compared with everything else and never held as a whole.
    """
    source = _Source.of(data)
    others = [_Source.of(rows) for rows in benchmarks]
    exact, repeated = _exact(source, others, unshared)
    near = _near(source, others, unshared, set(exact), repeated)
    return Leaks(tuple(exact), tuple(near), dict(Counter(source.rows[place].split for place in sorted(repeated))))


def row_keys(rows: Iterable[RowText]) -> set[bytes]:
    """Keys of one source's rows without their texts: hashes of KEY_BYTES bytes."""
    source = _Source.of(rows)
    return {key for place in range(len(source.rows)) for key in source.keys(place)}


def equal_rows(keys: Set[bytes], rows: Iterable[RowText]) -> list[int]:
    """The numbers of the rows that are equal to one of another source, of which only the keys are there."""
    source = _Source.of(rows)
    return [row.number for place, row in enumerate(source.rows) if not keys.isdisjoint(source.keys(place))]


def canonical(text: str) -> str:
    """A text without what does not count: case, spacing, unicode forms, punctuation at the ends of words."""
    if not text.isascii():
        text = _plain_forms(text)
    return " ".join(_MARKS.sub(_inside_words, text.casefold()).split())


def _inside_words(marks: re.Match[str]) -> str:
    """What remains of a run of punctuation: all of it inside a word, at its ends the signs of formulas.

    Factorials (5!) and ratios (3 : 4) keep their marks.
    """
    text, run = marks.string, marks[0]
    before = text[marks.start() - 1] if marks.start() else " "
    after = text[marks.end()] if marks.end() < len(text) else " "
    if not after.isspace():
        return run.lstrip('"') if before.isspace() else run
    if before.isalpha():
        return ""
    return "".join(one for one in run if one == "!" or (one == ":" and before.isspace()))


def jaccard(one: set[str], other: set[str]) -> float:
    """The share of all members of two sets that both have; 0 for two empty ones."""
    return len(one & other) / len(one | other) if one or other else 0.0


@dataclass(frozen=True)
class _Source:
    """The rows of one source in canonical form, and what they have in common."""

    rows: list[RowText]
    texts: list[str]
    head: str
    tail: str
    common: frozenset[str] = field(default=frozenset())

    @classmethod
    def of(cls, rows: Iterable[RowText]) -> "_Source":
        """Read all rows, once."""
        kept = list(rows)
        texts = [canonical(row.text) for row in kept]
        # Repeats of one text would make all of it common.
        distinct = list(dict.fromkeys(texts))
        head, tail = _common_ends(distinct) if len(distinct) >= _COMMON_ROWS else ("", "")
        return cls(kept, texts, head, tail, _common_shingles(distinct))

    def own(self, place: int) -> str:
        """A row's text without the common ends."""
        return f"{self.texts[place]} ".removeprefix(self.head).rstrip().removesuffix(self.tail)

    def keys(self, place: int) -> list[bytes]:
        """Keys that equal texts share: of the whole text, and of its own part if that is long enough."""
        text, own = self.texts[place], self.own(place)
        keys = [_key(text)]
        if own != text and own.count(" ") >= _OWN_WORDS - 1:
            keys.append(_key(own))
        return keys

    def shingles(self, place: int) -> list[str]:
        """The shingles of a row's own text, none where it is too short to be compared by them."""
        own = [one for one in _shingles(self.own(place)) if one not in self.common]
        return own if len(own) > NEAR_WORDS - SHINGLE_WORDS else []


def _exact(source: _Source, others: list[_Source], unshared: Sequence[str]) -> tuple[list[Leak], set[int]]:
    """The pairs that are equal, and the places of rows that repeat an earlier one of their split."""
    first: dict[bytes, RowText] = {}
    pairs: list[Leak] = []
    repeated: set[int] = set()
    for place, row in enumerate(source.rows):
        keys = source.keys(place)
        found = next((first[key] for key in keys if key in first), None)
        for key in keys:
            first.setdefault(key, row)
        if found is not None and found.split == row.split:
            repeated.add(place)
        elif found is not None:
            pairs.append(Leak(found.split, found.number, row.split, row.number))
    for other in others:
        for place, row in enumerate(other.rows):
            found = next((first[key] for key in other.keys(place) if key in first), None)
            if found is not None and found.split in unshared:
                pairs.append(Leak(found.split, found.number, row.split, row.number))
    return pairs, repeated


def _near(
    source: _Source, others: list[_Source], unshared: Sequence[str], exact: set[Leak], repeated: set[int]
) -> Iterator[Leak]:
    """Yield pairs that are nearly equal, in the order of the rows."""
    # What is held: all splits but the large one. Each row of a split to train on is then looked up among them.
    held = [(source, place) for place, row in enumerate(source.rows) if row.split != unshared[0]]
    held += [(other, place) for other in others for place in range(len(other.rows))]
    index = rensa.RMinHashLSH(threshold=NEAR_JACCARD, num_perm=_HASHES, num_bands=_BANDS)
    for number, sketch in _sketches(one.shingles(place) for one, place in held):
        index.insert(number, sketch)
    asking = [place for place, row in enumerate(source.rows) if row.split in unshared and place not in repeated]
    for number, sketch in _sketches(source.shingles(place) for place in asking):
        row, text = source.rows[asking[number]], source.texts[asking[number]]
        candidates = sorted(index.query(sketch))
        shingles = set(source.shingles(asking[number])) if candidates else set()
        for candidate in candidates:
            other, place = held[candidate]
            if other.texts[place] == text or (other is source and other.rows[place].split == row.split):
                continue
            found = Leak(row.split, row.number, other.rows[place].split, other.rows[place].number)
            if found not in exact and jaccard(shingles, set(other.shingles(place))) >= NEAR_JACCARD:
                yield found


def _sketches(shingles: Iterable[list[str]]) -> Iterator[tuple[int, "rensa.RMinHash"]]:
    """Yield a sketch for each list that is not empty, with its place among all."""
    numbered = ((number, one) for number, one in enumerate(shingles) if one)
    while batch := list(islice(numbered, _SKETCHED_AT_ONCE)):
        sketches = rensa.RMinHash.from_token_sets([one for _, one in batch], _HASHES, _SEED)
        yield from zip((number for number, _ in batch), sketches, strict=True)


def _key(text: str) -> bytes:
    """A hash of a canonical text: 16 bytes, so that no two of a million texts collide."""
    return blake2b(_LOOSE_SPACE.sub("", text).encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def _shingles(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[start : start + SHINGLE_WORDS]) for start in range(len(words) - SHINGLE_WORDS + 1)]


def _common_ends(texts: Sequence[str]) -> tuple[str, str]:
    """The whole words with which all texts begin, and those with which they end."""
    head, tail = f"{texts[0]} ", f" {texts[0]}"
    for text in texts:
        while head and not f"{text} ".startswith(head):
            head = f"{words} " if (words := head.rstrip().rpartition(" ")[0]) else ""
        while tail and not f" {text}".endswith(tail):
            tail = f" {words}" if (words := tail.lstrip().partition(" ")[2]) else ""
    return head, tail


def _common_shingles(texts: Sequence[str]) -> frozenset[str]:
    sample = list(islice(texts, 0, None, max(1, len(texts) // _SAMPLE)))
    counts = Counter(shingle for text in sample for shingle in set(_shingles(text)))
    least = max(_COMMON_ROWS, _COMMON_SHARE * len(sample))
    return frozenset(shingle for shingle, count in counts.items() if count >= least)


def _plain_forms(text: str) -> str:
    """A text in one unicode form, with plain quotes and dashes and nothing invisible.

    NFKC, but for what would change a formula: x² is not x2, ½ not 1/2.
    """
    composed = unicodedata.normalize("NFC", text.translate(_STRAIGHT))
    plain = "".join(
        one if one.isascii() or unicodedata.decomposition(one).startswith(_KEPT_FORMS) else _compatible(one)
        for one in composed
    )
    return unicodedata.normalize("NFC", plain)


def _compatible(character: str) -> str:
    return "" if unicodedata.category(character) == "Cf" else unicodedata.normalize("NFKC", character)
