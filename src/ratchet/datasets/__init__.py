"""Rows of any source as prompts: generated, from files or from a hub. Knows no model, verifier or tokenizer."""

from ratchet.datasets.dataset import Dataset, conversation, few_shot_examples
from ratchet.datasets.sources import load
from ratchet.datasets.stream import PromptStream

__all__ = ["Dataset", "PromptStream", "conversation", "few_shot_examples", "load"]
