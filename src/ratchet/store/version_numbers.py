"""Version numbers, which datasets and metrics have alike: from 1 on, none left out."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from ratchet.errors import NotFound


class _Numbered(Protocol):
    @property
    def version(self) -> int: ...


Stored = TypeVar("Stored", bound=_Numbered)


def numbered(found: Sequence[Stored], version: int, what: str) -> Stored:
    """Return the version of that number among all of them, in their order; ``what`` is such as "Dataset sums".

    Raises:
        NotFound: there is none.
    """
    for one in found:
        if one.version == version:
            return one
    raise NotFound(f"{what} has no version {version}: it has 1 to {found[-1].version}.")
