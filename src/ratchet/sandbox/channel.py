"""JSON lines to and from the process in a sandbox, bounded in length and time. What comes back is not trusted."""

import json
import os
import select
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from ratchet.sandbox.launcher import Sandbox

MOST_LINE_BYTES = 8192
_PIECE_BYTES = 65_536


class Broken(Exception):
    """The process inside is gone, or what it wrote is no line of the protocol."""


class Channel:
    """One sandbox's standard input and output, used by one thread.

    ``send`` only puts a message in the queue: it is written while ``receive`` waits, so that neither side can block the
    other, however long the messages.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._to, self._from = sandbox.stdin, sandbox.stdout
        self._outgoing: deque[memoryview] = deque()
        self._incoming = b""
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue one message."""
        self._outgoing.append(memoryview(json.dumps(message).encode() + b"\n"))

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next message.

        Raises:
            TimeoutError: there was none within the time given.
            Broken: the process ended, or wrote a line that is too long or no JSON object.
        """
        deadline = time.monotonic() + seconds
        while b"\n" not in self._incoming:
            if len(self._incoming) > MOST_LINE_BYTES:
                raise Broken("a line is too long")
            self._exchange(deadline - time.monotonic())
        line, _, self._incoming = self._incoming.partition(b"\n")
        try:
            message = json.loads(line) if len(line) <= MOST_LINE_BYTES else None
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise Broken("a line is no message")
        return message

    def _exchange(self, seconds: float) -> None:
        """Wait until something can be written or read, and do it once."""
        waiting = select.poll()
        waiting.register(self._from, select.POLLIN)
        if self._outgoing:
            waiting.register(self._to, select.POLLOUT)
        ready = dict(waiting.poll(max(0.0, seconds) * 1000)) if seconds > 0 else {}
        if not ready:
            raise TimeoutError
        if self._from in ready:
            piece = os.read(self._from, _PIECE_BYTES)
            if not piece:
                raise Broken("the process is gone")
            self._incoming += piece
        elif self._to in ready:
            self._write()

    def _write(self) -> None:
        try:
            written = os.write(self._to, self._outgoing[0])
        except OSError as error:
            raise Broken("the process reads no more") from error
        if written == len(self._outgoing[0]):
            self._outgoing.popleft()
        else:
            self._outgoing[0] = self._outgoing[0][written:]
