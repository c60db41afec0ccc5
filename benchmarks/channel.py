"""A measured tool's line to the parent: an order comes in, then one "go" for each round; answers are JSON lines.

Answers go through a pipe of their own, since libraries print to the other streams as they please.
"""

import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Round:
    """One measured round.

    ``sampling`` is a part of ``seconds``, None where the row has no such part. ``busy_cores`` is CPU time over wall
    time; well below the thread count it tells that something else ran. ``groups_with_signal`` is None where nothing is
    graded, ``lengths_kept`` where no lengths are prescribed.
    """

    seconds: float
    busy_cores: float
    answer_tokens: int
    prompts_digest: str
    sampling: float | None = None
    groups_with_signal: int | None = None
    lengths_kept: bool | None = None


class Clock:
    """Wall and CPU seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Return wall seconds, and how many cores this process kept busy meanwhile."""
        wall = time.perf_counter() - self._wall
        return wall, (time.process_time() - self._cpu) / wall


class Channel:
    """The tool's end. Ends the process when the parent closes the line."""

    def __init__(self) -> None:
        self._replies = os.fdopen(int(sys.argv[1]), "w")
        self.order: dict[str, Any] = json.loads(sys.stdin.readline())

    def ready(self, **details: Any) -> None:
        """Tell that the model is loaded and what it was loaded as."""
        self._send({**details, "loaded_bytes": peak_bytes()})

    def wait_for_go(self) -> Clock:
        """Wait until a round may start; return a clock that starts at that moment."""
        if sys.stdin.readline() != "go\n":
            raise SystemExit(0)
        return Clock()

    def done(self, measured: Round) -> None:
        """Report a finished round."""
        self.report(**asdict(measured))

    def report(self, **measured: Any) -> None:
        """Report a finished measurement of any other form."""
        self._send({**measured, "peak_bytes": peak_bytes()})

    def _send(self, message: dict[str, Any]) -> None:
        self._replies.write(json.dumps(message) + "\n")
        self._replies.flush()


def peak_bytes() -> int:
    """Return the most resident memory that this process has had so far."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024
