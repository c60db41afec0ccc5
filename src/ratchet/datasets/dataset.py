"""What every source of rows delivers: splits of prompts, and how to ask for an answer."""

from dataclasses import dataclass

from ratchet.config import WorkedExample
from ratchet.run.records import Prompt


@dataclass(frozen=True)
class Dataset:
    """The prompts of one run. ``validation`` is already the fixed sample; ``heldout`` may be empty.

    ``instruction`` is the source's default system prompt and ``examples`` its own worked examples, at most 16.
    ``notes`` are whole sentences worth telling the user; they hold numbers, never a row's content.
    """

    train: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]
    instruction: str
    examples: tuple[WorkedExample, ...]
    notes: tuple[str, ...]
