"""GSM8K: school problems in words, with the columns question and answer.

The ground truth is what follows the last ``####`` of the answer, without thousands separators. What precedes it is
the demonstration, in the form that is asked for; the dataset's notes for a calculator (``<<48/2=24>>``), which are not
meant to be read, are left out. The few-shot examples are our own and not taken from the dataset.
"""

import re
from collections.abc import Mapping
from typing import Any

from ratchet.config import FormatKind, Gsm8kData, WorkedExample
from ratchet.datasets import row_columns
from ratchet.datasets.dataset import Dataset, in_form, tags_request
from ratchet.datasets.readers import BadRow
from ratchet.datasets.splits import read_splits
from ratchet.run.records import Prompt

_MARK = "####"
_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")

# Question, steps that end with the final number, final number.
_EXAMPLES = (
    (
        "A baker fills 6 trays with 12 rolls each and sells 50 of the rolls. How many rolls are left?",
        "The trays hold 6 * 12 = 72 rolls. After the sale 72 - 50 = 22 rolls are left, so the answer is 22",
        "22",
    ),
    (
        "Nadia reads 15 pages on each school day and 40 pages on each day of the weekend. How many pages does she "
        "read in a week?",
        "On five school days she reads 5 * 15 = 75 pages. On the weekend she reads 2 * 40 = 80 pages. Together that "
        "is 75 + 80 = 155, so the answer is 155",
        "155",
    ),
    (
        "A jacket costs $80 and is sold at a quarter off. Tom pays with a $100 note. How many dollars does he get "
        "back?",
        "A quarter of 80 is 80 / 4 = 20, so the jacket costs 80 - 20 = 60 dollars. He gets back 100 - 60 = 40, so the "
        "answer is 40",
        "40",
    ),
    (
        "Three friends pick apples. Ola picks 18, Ben picks twice as many as Ola, and Kim picks 6 fewer than Ben. How "
        "many apples do they pick altogether?",
        "Ben picks 2 * 18 = 36 apples. Kim picks 36 - 6 = 30 apples. Together they pick 18 + 36 + 30 = 84, so the "
        "answer is 84",
        "84",
    ),
    (
        "A pump fills a tank of 900 liters at 45 liters a minute. It has been running for 8 minutes. How many more "
        "minutes does it need?",
        "So far it has pumped 8 * 45 = 360 liters. There are 900 - 360 = 540 liters to go, which take 540 / 45 = 12 "
        "minutes, so the answer is 12",
        "12",
    ),
    (
        "A class of 28 pupils goes to the theatre with 2 teachers. Pupils pay $7 and teachers pay $11. What do the "
        "tickets cost in dollars?",
        "The pupils pay 28 * 7 = 196 dollars. The teachers pay 2 * 11 = 22 dollars. Together that is 196 + 22 = 218, "
        "so the answer is 218",
        "218",
    ),
    (
        "A rope of 5 meters is cut into pieces of 40 centimeters. How many whole pieces are there?",
        "The rope is 5 * 100 = 500 centimeters long. 500 / 40 = 12.5, which makes whole pieces only up to 12, so the "
        "answer is 12",
        "12",
    ),
    (
        "Lena is 4 years older than her brother. In 6 years their ages will add up to 30. How old is Lena now?",
        "In 6 years both are 6 years older, so now their ages add up to 30 - 2 * 6 = 18. Without the 4 years more "
        "they would share 18 - 4 = 14, which is 14 / 2 = 7 for the brother. Lena is 7 + 4 = 11, so the answer is 11",
        "11",
    ),
)


def load(data: Gsm8kData, *, validation_prompts: int, format_kind: FormatKind) -> Dataset:
    """Read the rows and split them.

    Raises:
        IncompatibleData: the data is not there, or has rows that cannot be used.
    """
    splits = read_splits(data, validation_prompts, lambda number, row: prompt(number, row, format_kind))
    return Dataset(
        train=splits.train,
        validation=splits.validation,
        heldout=(),
        instruction=instruction(format_kind),
        examples=tuple(
            WorkedExample(user=question, assistant=in_form(steps, final, format_kind))
            for question, steps, final in _EXAMPLES
        ),
        notes=splits.notes,
    )


def instruction(format_kind: FormatKind) -> str:
    """The default system prompt."""
    if format_kind == "tags":
        return f"Solve the problem. {tags_request('the final number')}"
    if format_kind == "boxed":
        return "Solve the problem step by step and give the final number inside \\boxed{}."
    return "Solve the problem step by step and end with the final number."


def prompt(number: int, row: Mapping[str, Any], format_kind: FormatKind) -> Prompt:
    """A row as a prompt, its demonstration in the form that is asked for.

    Raises:
        BadRow: it cannot be used.
    """
    question, answer = row_columns.text(row, "question"), row_columns.text(row, "answer")
    steps, mark, final = answer.rpartition(_MARK)
    if not mark:
        raise BadRow(f"the column answer has no {_MARK}")
    if not final.strip():
        raise BadRow(f"the column answer has nothing after the last {_MARK}")
    truth = _THOUSANDS.sub("", final.strip())
    steps = _CALCULATOR.sub("", steps).strip()
    if format_kind not in ("tags", "boxed"):
        steps = f"{steps}\n{_MARK} {truth}".strip()  # as the dataset ends it
    return Prompt(
        id=number,
        messages=({"role": "user", "content": question},),
        ground_truth=truth,
        extras=row_columns.extras(row),
        demonstration=in_form(steps, truth, format_kind),
    )
