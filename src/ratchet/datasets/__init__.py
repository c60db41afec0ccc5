"""Rows of any source as prompts: generated, from files or from a hub. Knows no model, verifier or tokenizer."""

from ratchet.datasets.dataset import Dataset, conversation, worked_examples
from ratchet.datasets.sources import load
from ratchet.datasets.stream import PromptStream

__all__ = ["Dataset", "PromptStream", "conversation", "load", "worked_examples"]
