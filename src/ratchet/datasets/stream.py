"""The order in which training prompts are used: a fresh shuffle per pass, resumable from a few numbers."""

import random
from collections.abc import Collection, Sequence
from typing import Any

from ratchet.errors import IncompatibleData
from ratchet.run.records import Prompt


class PromptStream:
    """Hands out prompts for ever, each of them once per pass over the data.

    A prompt that comes up in a new pass although this round has had it already is put back: it is the first to be
    handed out in a later round, still in that pass. So no pass loses a prompt or holds one twice.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        self._prompts = {prompt.id: prompt for prompt in prompts}
        if not prompts or len(self._prompts) < len(prompts):
            raise ValueError("prompts must be at least one, with ids that differ")
        self._seed = seed
        self._deferred: list[int] = []
        self._begin(0)

    def take(self, count: int, exclude: Collection[int] = ()) -> list[Prompt]:
        """The next ``count`` prompts, or fewer when there are no more that this round has not had.

        Args:
            count: How many are wanted.
            exclude: Ids that this round has had from earlier calls; they are not returned.
        """
        had = set(exclude) & self._prompts.keys()
        taken: list[int] = []
        for one in tuple(self._deferred):
            if len(taken) < count and one not in had:
                self._deferred.remove(one)
                taken.append(one)
                had.add(one)
        while len(taken) < count and len(had) < len(self._prompts):
            if self._position == len(self._order):
                self._begin(self._pass + 1)
            one = self._order[self._position]
            self._position += 1
            (self._deferred if one in had else taken).append(one)
            had.add(one)
        return [self._prompts[one] for one in taken]

    def state(self) -> dict[str, Any]:
        """The position of the stream, as plain JSON."""
        return {
            "prompts": len(self._prompts),
            "pass": self._pass,
            "position": self._position,
            "deferred": list(self._deferred),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved position of a stream over the same prompts with the same seed.

        Raises:
            IncompatibleData: the prompts are not those of the saved stream. Nothing has changed then.
        """
        if state["prompts"] != len(self._prompts) or not self._prompts.keys() >= set(state["deferred"]):
            raise IncompatibleData(
                f"The training prompts are not those of the saved run: it had {state['prompts']:,}, the data gives "
                f"{len(self._prompts):,}. Restore the data, or start a new run."
            )
        self._begin(state["pass"])
        self._position = state["position"]
        self._deferred = list(state["deferred"])

    def _begin(self, number: int) -> None:
        self._pass = number
        self._position = 0
        self._order = list(self._prompts)
        random.Random(f"prompts {self._seed} {number}").shuffle(self._order)
