"""The leak guard on pairs whose answer is known beforehand: planted, worked out by hand, or counted by an oracle."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.datasets.leak_guard import NEAR_JACCARD, Leak, Leaks, RowText, canonical, find_leaks, jaccard

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("n", "r", "sk", "lt")]
GSM8K = Path(__file__).parents[3] / "shared/data/gsm8k"


def words(count, seed):
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def rows(split, *texts):
    return [RowText(split, number, text) for number, text in enumerate(texts, start=1)]


def find(train, validation=(), test=(), benchmarks=()):
    data = [*rows("training", *train), *rows("validation", *validation), *rows("test", *test)]
    return find_leaks(data, benchmarks)


def are_equal(one, other):
    return find([one], [other]).exact == (Leak("training", 1, "validation", 1),)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is two plus three?", "what is TWO plus three"),
        ("What is two\n plus\tthree?", "  What is two plus three ?  "),
        ("He said, \u201cGo!\u201d", 'he said "go".'),
        ("a caf\u00e9 bill", "a cafe\u0301 bill"),
        ("full width \uff11\uff12", "full width 12"),
        ("a\u00a0b", "a b"),
        ("soft\u00adhyphen and zero\u200bwidth", "softhyphen and zerowidth"),
        ("5 \u2212 3", "5 - 3"),
        ("2 + 3 = ?", "2+3=?"),
        ("STRASSE", "straße"),
    ],
)
def test_texts_that_differ_in_writing_alone_are_equal(one, other):
    assert are_equal(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2+3=?", "3+2=?"),
        ("2+3=?", "2-3=?"),
        ("6*3", "6/3"),
        ("3.5", "35"),
        ("1,200", "1 200"),
        ("(2+3)*4", "2+3*4"),
        ("5!", "5"),
        ("the ratio 3 : 4", "the ratio 3 4"),
        ("1 2 3", "12 3"),
        ("x\u00b2 + 1", "x2 + 1"),
        ("\u00bd of it", "1/2 of it"),
        ("What is 20% of 50?", "What is 20 of 50?"),
    ],
)
def test_texts_that_ask_something_else_are_not(one, other):
    assert find([one], [other]) == Leaks((), (), {})


@given(st.text())
@settings(deadline=None)
def test_the_canonical_form_has_nothing_left_to_change(text):
    once = canonical(text)
    assert canonical(once.upper()) == canonical(once.upper().lower())
    assert once == " ".join(once.split())
    assert find([text], [f"  {text}\n"]).exact


def test_every_kind_of_pair_is_named_by_split_and_number():
    one, two, three = (words(12, seed) for seed in range(3))
    found = find(
        [one, two, words(12, 9)],
        [words(12, 10), one.upper()],
        [two + ".", three],
        [rows("bench", three, words(12, 11), two.title()), rows("other", words(12, 10))],
    )
    assert found.exact == (
        Leak("training", 1, "validation", 2),
        Leak("training", 2, "test", 1),
        Leak("training", 2, "bench", 3),  # the test row that is in it too is no leak
        Leak("validation", 1, "other", 1),
    )
    assert found.near == ()


def test_repeats_inside_a_split_are_counted_and_no_leak():
    found = find(["Ask once.", "ask once", "Ask twice", "ASK ONCE!"], ["ask thrice", "Ask thrice?"])
    assert found == Leaks((), (), {"training": 2, "validation": 1})


# --- nearly the same -------------------------------------------------------------------------------------------------


def replaced(text, place):
    changed = text.split()
    changed[place] = "zzz"
    return " ".join(changed)


def test_one_word_changed_in_forty_is_nearly_the_same():
    # 38 shingles each, 3 of them with the changed word: 35 shared of 41 in all, 0.854.
    text = words(40, 0)
    assert find([text], test=[replaced(text, 20)]).near == (Leak("training", 1, "test", 1),)


def test_a_sentence_that_was_added_is_nearly_the_same():
    # 38 shingles of 50: 0.76.
    text = words(40, 1)
    found = find([f"{text}. {words(12, 2)}."], benchmarks=[rows("bench", words(40, 3), text)])
    assert found == Leaks((), (Leak("training", 1, "bench", 2),), {})


def test_the_threshold_is_where_it_is_said_to_be():
    # 28 shingles each. Changed words far apart cost 3 each: 25 of 31 is 0.806, 22 of 34 is 0.647.
    text = words(30, 4)
    once = replaced(text, 5)
    assert find([text], [once]).near
    assert not find([text], [replaced(once, 20)]).near


def test_below_thirty_words_nothing_is_nearly_the_same():
    for count, expected in [(29, 0), (30, 1)]:
        text = words(count, 5)
        assert len(find([text], [replaced(text, count - 1)]).near) == expected
    assert find(["2+3=?", "the sum of 2 and 3"], ["3+2=?", "the sum of 3 and 2"]) == Leaks((), (), {})


def test_rows_of_one_split_are_not_compared_with_one_another_nor_test_rows_with_benchmarks():
    text = words(40, 6)
    assert find([text, replaced(text, 9)], [words(40, 7)]).near == ()
    assert find([words(40, 8)], test=[text], benchmarks=[rows("bench", replaced(text, 9))]).near == ()
    found = find([words(40, 8)], [text], benchmarks=[rows("bench", replaced(text, 9))])
    assert found.near == (Leak("validation", 1, "bench", 1),)


def test_exactly_equal_rows_are_not_told_a_second_time():
    text = words(40, 9)
    found = find([text], [text.upper()])
    assert (len(found.exact), found.near) == (1, ())
    # Validation and test are equal too, which the training row says of both.
    assert find([text], [text], [text]).near == ()


def test_a_repeated_row_is_told_once():
    text = words(40, 10)
    assert find([text, text.upper()], test=[replaced(text, 9)]).near == (Leak("training", 1, "test", 1),)


# --- what all rows have in common ------------------------------------------------------------------------------------

PREAMBLE = "Solve the following problem with care, show all of your steps in order, and write down the final answer "
PREAMBLE += "on a line of its own at the very end of what you write. Never leave out a unit. The problem:"
ENDING = "Remember that the answer is one number, and that it stands on the last line alone."


@pytest.mark.parametrize("count", [10, 60])
def test_an_instruction_around_every_question_makes_no_near_duplicates(count):
    # 8 of 60 words are a question's own: without the removal all would be nearly the same.
    train = [f"{PREAMBLE} {words(8, seed)} {ENDING}" for seed in range(count)]
    held = [f"{PREAMBLE} {words(8, seed)} {ENDING}" for seed in range(500, 520)]
    assert jaccard(set(train[0].split()), set(held[0].split())) > NEAR_JACCARD
    assert find(train, held, held[:0]) == Leaks((), (), {})


def test_an_instruction_between_the_words_of_a_question_does_not_count_either():
    train = [f"{words(4, seed)} {PREAMBLE} {words(4, seed + 1000)}" for seed in range(30)]
    held = [f"{words(4, seed)} {PREAMBLE} {words(4, seed + 1000)}" for seed in range(500, 530)]
    assert find(train, held) == Leaks((), (), {})


def test_around_equal_questions_it_hides_nothing():
    asked = words(8, 0)
    train = [f"{PREAMBLE} {text} {ENDING}" for text in (asked, *(words(8, seed) for seed in range(1, 20)))]
    bench = [words(9, 50), f"{asked.upper()}?", *(words(9, seed) for seed in range(60, 80))]
    found = find(train, [words(7, 90)], benchmarks=[rows("bench", *bench)])
    assert found.exact == ()  # one row of validation without the instruction: it is not common to the whole set
    found = find(train, [f"{PREAMBLE} {words(7, 90)} {ENDING}"], benchmarks=[rows("bench", *bench)])
    assert found.exact == (Leak("training", 1, "bench", 2),)
    long = words(40, 91)
    train[0] = f"{PREAMBLE} {long} {ENDING}"
    found = find(train, benchmarks=[rows("bench", replaced(long, 3), *bench)])
    assert found.near == (Leak("training", 1, "bench", 1),)


def test_a_few_words_left_without_the_instruction_are_no_evidence():
    train = [f"What is {number} + 3?" for number in range(20)]
    assert find(train, benchmarks=[rows("bench", "5", "+ 3", "7 + 3")]) == Leaks((), (), {})


def test_rows_that_are_all_the_same_are_repeats_and_have_nothing_in_common():
    text = words(40, 0)
    found = find([text] * 30, [text])
    assert found.exact == (Leak("training", 1, "validation", 1),)
    assert found.repeats == {"training": 29}


# --- against an oracle ---------------------------------------------------------------------------------------------


def near_by_counting(train, held):
    """All pairs by the definition, without hashing: shingles of three words, shared by all."""

    def shingles(text):
        split = canonical(text).split()
        return {tuple(split[start : start + 3]) for start in range(len(split) - 2)}

    return {
        (number, other)
        for number, one in enumerate(train, start=1)
        for other, two in enumerate(held, start=1)
        if min(len(one.split()), len(two.split())) >= 30
        and canonical(one) != canonical(two)
        and len(shingles(one) & shingles(two)) >= 0.7 * len(shingles(one) | shingles(two))
    }


def test_it_finds_what_counting_all_pairs_finds():
    rng = random.Random(0)
    train = [words(rng.randint(25, 80), seed) for seed in range(150)]
    held = []
    for number, text in enumerate(train):
        changed = text.split()
        for _ in range(rng.randint(0, 9)):
            changed[rng.randrange(len(changed))] = rng.choice(WORDS)
        if rng.random() < 0.3:
            changed += words(rng.randint(1, 20), 1000 + number).split()
        held.append(" ".join(changed))
    expected = near_by_counting(train, held)
    assert 30 < len(expected) < 120  # some of them, not all
    found = find(train, test=held)
    assert {(pair.number, pair.other_number) for pair in found.near} == expected
    assert find(train, test=held) == found


def test_no_finding_holds_the_text_of_a_row():
    text = words(40, 0)
    found = find([text, "quokka"], [replaced(text, 3), "QUOKKA"])
    assert found.exact
    assert found.near
    assert "quokka" not in repr(found).lower()
    assert WORDS[0] not in repr(found)


@pytest.mark.skipif(not (GSM8K / "train.jsonl").is_file(), reason="GSM8K is not here")
def test_gsm8k_raises_no_false_alarm():
    # Its two files share no question. Measured: at a threshold of 0.5 one pair would be told, at 0.6 none.
    train, test = (
        [json.loads(line)["question"] for line in (GSM8K / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "test")
    )
    planted = replaced(test[7], 5)
    found = find([*train, planted, test[9].upper()], benchmarks=[rows("GSM8K test", *test)])
    assert found.exact == (Leak("training", len(train) + 2, "GSM8K test", 10),)
    assert found.near == (Leak("training", len(train) + 1, "GSM8K test", 8),)
    assert found.repeats == {}
