"""Workers in sandboxes and whether this machine can have them: started, spoken to, and tried by a self-test.

What fails before a worker's first line is the machine's fault, with a reason and a remedy. Nothing then runs in a
weaker way.
"""

import json
import os
import select
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import SandboxUnavailable
from ratchet.sandbox.launcher import START_SECONDS, Contents, Limits, Sandbox, python_command
from ratchet.sandbox.tools import unavailable

# Names the folder of packages that metrics may import; seen inside, read-only.
METRIC_ENV = "RATCHET_METRIC_ENV"
_WORKER = "/w.py"  # where its file is seen inside
MOST_LINE_BYTES = 8192
_PIECE_BYTES = 65_536
_LOOK_SECONDS = 0.05

_WEAK = (
    "Run Ratchet where these protections hold: Linux 5.14 or newer, outside of a container that replaces the kernel's "
    "own."
)


@dataclass(frozen=True)
class Probe:
    """Whether the sandbox works; if not, why, and what to do."""

    ok: bool
    reason: str = ""
    remedy: str = ""

    def require(self) -> None:
        """Raise SandboxUnavailable unless the sandbox works."""
        if not self.ok:
            raise SandboxUnavailable(self.reason, self.remedy)


_lock = threading.Lock()  # the race: two threads that both find nothing known yet
_known: list[Probe] = []


def probe(*, refresh: bool = False) -> Probe:
    """What this process knows of the machine, finding it out the first time and whenever ``refresh`` is set."""
    with _lock:
        if refresh or not _known:
            _known[:] = [_tried()]
        return _known[0]


def metric_packages() -> Path | None:
    """The folder of packages for metrics, None where none is set.

    Raises:
        SandboxUnavailable: it is set to something that is no folder.
    """
    named = os.environ.get(METRIC_ENV)
    if not named:
        return None
    folder = Path(named).absolute()
    if not folder.is_dir():
        raise SandboxUnavailable(
            f"{METRIC_ENV} is {folder}, which is no folder.",
            "Make one with /usr/bin/python3 -m pip install --target FOLDER PACKAGES, or unset the variable.",
        )
    return folder


class Broken(Exception):
    """The process inside is gone, or what it wrote is no line of the protocol."""


class Channel:
    """JSON to one sandbox's standard input, JSON lines from its standard output. What comes back is not trusted.

    ``send`` only puts a message in the queue: it is written while ``receive`` waits, so that neither side can block the
    other, however long the messages. One thread uses it.

    Args:
        sandbox: Whose pipes these are.
        most_line_bytes: How long a line may be that comes back.
        look: Called about every 50 ms while waiting; what it raises ends the wait.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        most_line_bytes: int = MOST_LINE_BYTES,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._to, self._from = sandbox.stdin, sandbox.stdout
        self._most_line_bytes, self._look, self._looked_at = most_line_bytes, look, time.monotonic()
        self._outgoing: deque[memoryview] = deque()
        self._incoming = b""
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)

    def send(self, message: Any, *, in_line: bool = True) -> None:
        """Queue one message: as a line, or after eight bytes that hold its length."""
        text = json.dumps(message).encode()
        self._outgoing.append(memoryview(text + b"\n" if in_line else len(text).to_bytes(8, "big") + text))

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next message.

        Raises:
            TimeoutError: there was none within the time given.
            Broken: the process ended, or wrote a line that is too long or no JSON object.
        """
        deadline = time.monotonic() + seconds
        while b"\n" not in self._incoming:
            if len(self._incoming) > self._most_line_bytes:
                raise Broken("a line is too long")
            self._exchange(deadline - time.monotonic())
        line, _, self._incoming = self._incoming.partition(b"\n")
        try:
            message = json.loads(line) if len(line) <= self._most_line_bytes else None
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise Broken("a line is no message")
        return message

    def _exchange(self, seconds: float) -> None:
        """Wait for a moment until something can be written or read, and do it once."""
        if seconds <= 0:
            raise TimeoutError
        if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
            self._look()
            self._looked_at = time.monotonic()
        waiting = select.poll()
        waiting.register(self._from, select.POLLIN)
        if self._outgoing:
            waiting.register(self._to, select.POLLOUT)
        ready = dict(waiting.poll(1000 * min(_LOOK_SECONDS, seconds)))
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
        except BlockingIOError:
            return
        except OSError as error:
            raise Broken("the process reads no more") from error
        if written == len(self._outgoing[0]):
            self._outgoing.popleft()
        else:
            self._outgoing[0] = self._outgoing[0][written:]


def sandbox_file(name: str) -> bytes:
    """A file of this package that is handed into sandboxes."""
    return Path(__file__).with_name(name).read_bytes()


def start_worker(
    script: str, limits: Limits, watch: Callable[[Sandbox], None] = lambda sandbox: None
) -> tuple[Sandbox, Channel]:
    """Start one of this package's scripts in a sandbox and wait for its first line, which says hello.

    Whatever goes wrong before it is the machine's fault, since no untrusted code has run yet.

    Args:
        script: Name of the file.
        limits: What it may use.
        watch: Receives the sandbox before the wait, to be able to stop it.

    Raises:
        SandboxUnavailable: no hello came.
    """
    contents = Contents(files={_WORKER: sandbox_file(script)}, packages=metric_packages())
    sandbox = Sandbox(python_command(_WORKER), contents, limits)
    try:
        watch(sandbox)
        channel = Channel(sandbox)
        if channel.receive(START_SECONDS) != {"hello": True}:
            raise Broken("no hello")
    except (Broken, TimeoutError, OSError) as error:
        complaint = sandbox.complaint()
        status = sandbox.wait(1.0)
        sandbox.kill()
        ended = f"the first process ended with status {status}" if status is not None else "nothing came back in time"
        raise unavailable(complaint or f"The sandbox did not respond: {ended}") from error
    except BaseException:
        sandbox.kill()
        raise
    return sandbox, channel


def _tried() -> Probe:
    try:
        with tempfile.NamedTemporaryFile(prefix="ratchet-canary-") as canary:
            os.chmod(canary.name, 0o644)  # only what the sandbox hides may hide it
            weak = _self_test([canary.name, str(Path(__file__).resolve())])
    except SandboxUnavailable as error:
        return Probe(False, error.reason, error.remedy)
    except OSError as error:
        return Probe(False, f"The self-test could not be made: {error.strerror}.", "Free disk space and try again.")
    if weak:
        return Probe(False, f"The sandbox starts but does not isolate: {'; '.join(weak)}.", _WEAK)
    return Probe(True)


def _self_test(hidden: list[str]) -> list[str]:
    """What untrusted code could do inside but must not be able to."""
    sandbox, channel = start_worker("probe_worker.py", Limits())
    with sandbox:
        channel.send({"hidden": hidden, "processes": Limits().processes})
        try:
            found = channel.receive(START_SECONDS)
        except Broken as error:
            return [f"the self-test did not finish ({error})"]
        except TimeoutError as error:
            raise unavailable(f"The sandbox's self-test took longer than {START_SECONDS:g} s") from error
        weak = found.get("weak")
        return [str(item) for item in weak] if isinstance(weak, list) else [f"an odd finding: {json.dumps(found)}"]
