"""The ways to compute a row, and answers to try them on."""

from ratchet.engine.logprobs import PLAIN, RowForward
from ratchet.engine.packing import PackedAnswer

from .models import random_ids

DECODER = RowForward("decoder", "chunked")
PACKED = RowForward("packed", "chunked")
PACKED_WHOLE = RowForward("packed", "whole")
PLAIN_CHUNKED = RowForward("plain", "chunked")
# Fastest first.
WAYS = [DECODER, PACKED, PACKED_WHOLE, PLAIN_CHUNKED, PLAIN]
# (prompt length, answer lengths): one-token answers, uneven lengths, a prompt of one token, a group of one.
GROUPS = [(9, (1, 6, 3)), (1, (4, 1)), (5, (7,)), (12, (2, 2, 5, 1))]
# Longer than what is multiplied in full, and than what is not worth a prefix.
LONG = [(120, (1, 130, 3)), (2, (110, 1)), (99, (7,))]


def answers_of(groups=GROUPS, prefix=0):
    """Make answers of these lengths to prompts that go on after ``prefix`` tokens that they share."""
    return [
        PackedAnswer(
            random_ids(prefix, seed=99) + random_ids(prompt, seed=number),
            random_ids(length, seed=100 * number + place),
            10 * number + place,
        )
        for number, (prompt, lengths) in enumerate(groups)
        for place, length in enumerate(lengths)
    ]
