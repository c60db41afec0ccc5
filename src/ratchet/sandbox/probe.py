"""Whether untrusted code can be run on this machine: a sandbox with the usual command line and a self-test inside.

What fails here is the machine's fault, with a reason and a remedy. Nothing then runs in a weaker way.
"""

import json
import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import SandboxUnavailable
from ratchet.sandbox.channel import Broken, Channel
from ratchet.sandbox.launcher import START_SECONDS, Contents, Limits, Sandbox, python_command
from ratchet.sandbox.tools import unavailable

# Names the folder of packages that metrics may import; seen inside, read-only.
METRIC_ENV = "RATCHET_METRIC_ENV"
WORKER = "/w.py"

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
    contents = Contents(files={WORKER: sandbox_file(script)}, packages=metric_packages())
    sandbox = Sandbox(python_command(WORKER), contents, limits)
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
