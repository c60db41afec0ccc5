"""The self-test inside a sandbox: tries what untrusted code must not be able to do. Standard library only."""

import functools
import json
import mmap
import os
import signal
import socket
import sys
from collections.abc import Callable

_ALLOWED_VARIABLES = {"PATH", "LANG", "LC_CTYPE", "PYTHONHASHSEED", "PWD"}


def main() -> None:
    """Say hello, read what is to be hidden, and tell what was found."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in every sandbox, see ``metric_worker``
    _tell({"hello": True})
    asked = json.loads(sys.stdin.readline())
    weak = [f"{path} can be read" for path in asked["hidden"] if _can(functools.partial(open, path))]
    variables = {name for name in os.environ if not name.endswith("_NUM_THREADS")} - _ALLOWED_VARIABLES
    if variables:
        weak.append("the environment is not empty")
    if os.path.exists("/proc/self") or os.path.exists("/etc/passwd"):
        weak.append("/proc or /etc is there")
    if os.getuid() == 0:
        weak.append("it runs as root")
    for what, attempt in (
        ("files can be written", functools.partial(open, "/canary", "w")),
        ("the system-call filter is not in force", lambda: os.memfd_create("canary")),
        ("the network can be reached", lambda: socket.socket(socket.AF_INET)),
        # Asked for, never touched: a machine without the limit would be busy with filling it.
        ("memory can be held that is not counted", lambda: mmap.mmap(-1, mmap.PAGESIZE)),
        ("zeros can be mapped and shared", lambda: mmap.mmap(os.open("/dev/zero", os.O_RDWR), mmap.PAGESIZE)),
        ("memory is not limited", lambda: mmap.mmap(-1, 1 << 31, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)),
    ):
        if _can(attempt):
            weak.append(what)
    if _forks(2 * asked["processes"]) >= asked["processes"]:
        weak.append("the number of processes is not limited")
    _tell({"weak": weak})


def _tell(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _can(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, MemoryError):
        return False
    return True


def _forks(most: int) -> int:
    """How many children could be started; they wait until all of them are ended."""
    children: list[int] = []
    try:
        while len(children) < most:
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(children)


if __name__ == "__main__":
    main()
