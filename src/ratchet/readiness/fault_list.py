"""Faults gathered while checks go on, so that a user hears of all of them at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ratchet.errors import NotReady, RatchetError


class Faults:
    """What was found wrong so far, in the order of the checks.

    Only faults that a user can do something about are gathered; any other exception ends the checks.
    """

    def __init__(self) -> None:
        self.found: list[RatchetError] = []

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Note a fault that ends the block, and go on after it."""
        try:
            yield
        except RatchetError as fault:
            if str(fault) not in map(str, self.found):  # two checks may meet the same one
                self.found.append(fault)

    def raise_any(self) -> None:
        """Raise what was found, if anything."""
        raise_all(self.found)


def raise_all(faults: Sequence[RatchetError]) -> None:
    """Raise a single fault as it is, several of them as one ``NotReady``; nothing if there are none."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise NotReady(faults)
