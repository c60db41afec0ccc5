"""One sandbox: a process that sees /usr, what it was given, and nothing else of the machine.

    choom      the kernel's out-of-memory killer takes the sandbox before anything else
    setpriv    when started as root: an unused user, since root's processes are not limited in number
    bwrap      namespaces of its own (files, processes, network, users), no privileges, a filter on system calls
    prlimit    memory, files, processes; inside, so that it counts the sandbox alone
    python     the system's, without the user's environment

There is no /proc (the first process there holds the environment it was started with, and containers often cannot mount
it), no /etc, no /home, no /tmp unless asked for, no network but an empty loopback. The environment is empty from the
start. Files are handed in as contents, not as paths: so the sandbox's user need not be able to reach the folder that
they came from, and no folder that untrusted code could write is ever bound.

Not protected from: holes in the kernel that a user namespace can reach, and timing. Memory held by several processes
together is not counted here; what cannot be counted is denied (``tools``).
"""

import fcntl
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from ratchet.errors import SandboxUnavailable
from ratchet.sandbox.tools import Tools, find_tools, seccomp_filter, unavailable

# An unused user and group, below the 65,536 ids that rootless containers have.
SANDBOX_ID = 64999
# How long bwrap may take to set up; 5 ms are usual, a busy machine with a cold disk takes far longer.
START_SECONDS = 30.0
PACKAGES = "/pkgs"  # where the metric environment is seen inside

_END_SECONDS = 5.0
_MOST_INFO_BYTES = 4096
_MOST_COMPLAINT_BYTES = 4096
_ENVIRONMENT = {
    "PATH": "/usr/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the order of a set of texts must not change a score from one process to the next
    # Libraries that start a thread for every core would meet the limit on processes.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Limits:
    """What each process in a sandbox may use, in bytes and seconds; ``processes`` counts all of them, threads too.

    ``cpu_seconds`` None leaves processor time unlimited, for a process that lives long and limits its children.
    """

    address_space: int = 512 << 20
    cpu_seconds: int | None = None
    file_size: int = 16 << 20
    open_files: int = 64
    processes: int = 32
    stack: int = 8 << 20

    def arguments(self) -> list[str]:
        """Return them as options of prlimit; no core files in any case."""
        options = [
            f"--as={self.address_space}",
            f"--fsize={self.file_size}",
            f"--nofile={self.open_files}",
            f"--nproc={self.processes}",
            f"--stack={self.stack}",
            "--core=0",
        ]
        return options if self.cpu_seconds is None else [*options, f"--cpu={self.cpu_seconds}"]


@dataclass(frozen=True)
class Contents:
    """What is seen inside besides /usr.

    ``files`` maps absolute paths inside to contents, read-only. ``scratch`` maps folders that may be written to their
    size in bytes; they live in memory and die with the sandbox. ``packages`` is a folder of Python packages, seen at
    /pkgs. ``environment`` is added to the few variables that every sandbox has.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    scratch: Mapping[str, int] = field(default_factory=dict)
    packages: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def python_command(path: str, *arguments: str) -> list[str]:
    """The command that runs a file inside: the system's Python, without site and without the folder it is in.

    Not ``-I``: that would make it deaf to PYTHONHASHSEED, and nothing else is in the environment to be deaf to.
    """
    return [find_tools().python, "-P", "-s", "-S", "-B", path, *arguments]


class Sandbox:
    """A running sandbox, from its construction to ``kill`` or the end of a ``with`` block.

    ``stdin``, ``stdout`` and ``stderr`` are pipes, as raw file descriptors; whoever reads them sets the limits on how
    much and how long. What is written to ``stderr`` before the command runs is bubblewrap's own.

    The command is process 1 inside: what it starts cannot kill or stop it, and dies with it.

    It dies with the **thread** that started it (the kernel's parent-death signal goes by thread), so start one where
    it is used. It dies with the process in any case. One thread uses it; only ``stop`` may come from any.

    Args:
        command: What runs inside, with absolute paths; ``python_command`` makes one.
        contents: What it sees.
        limits: What it may use.

    Raises:
        SandboxUnavailable: a program is missing, or bubblewrap could not start. A sandbox that cannot be set up may
            also show itself later, by ending at once with a complaint: see ``complaint``.
    """

    def __init__(self, command: Sequence[str], contents: Contents | None = None, limits: Limits | None = None) -> None:
        self._closing = threading.Lock()  # the race: ``stop`` from another thread while the handle is being closed
        self._child: int | None = None  # a handle on the first process inside
        try:
            self._process, read_info = _launched(command, contents or Contents(), limits or Limits())
        except OSError as error:  # no descriptor, process or memory left
            raise SandboxUnavailable(f"A sandbox cannot be started: {error.strerror}.") from error
        self.stdin, self.stdout, self.stderr = (stream.fileno() for stream in self._streams())
        try:
            self._child = _handle_on_child(read_info)
        except SandboxUnavailable as error:
            complaint = self.complaint()
            self.kill()
            if complaint:
                raise unavailable(complaint) from error
            raise
        finally:
            os.close(read_info)

    @property
    def process_id(self) -> int:
        """The process outside (bwrap) of which all processes inside are descendants."""
        return self._process.pid

    def wait(self, seconds: float) -> int | None:
        """Wait until it has ended; return its status (128 + the signal that ended it), or None after the time given."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def complaint(self) -> str:
        """What is waiting in ``stderr``: for a sandbox that did not start, the words of bwrap or the kernel."""
        os.set_blocking(self.stderr, False)
        with suppress(OSError, ValueError):
            return os.read(self.stderr, _MOST_COMPLAINT_BYTES).decode(errors="replace").strip()
        return ""

    def stop(self) -> None:
        """End every process inside, from any thread. Whoever uses the pipes sees their end, and then calls ``kill``."""
        with self._closing, suppress(OSError):  # it has ended meanwhile
            if self._child is not None:
                signal.pidfd_send_signal(self._child, signal.SIGKILL)

    def kill(self) -> None:
        """End every process inside, wait until they are gone, and close the pipes. Does nothing the second time.

        The first process inside is killed, not bwrap: that would leave a zombie to the machine's first process,
        which in a container may be the trainer itself. For the same reason the command is the first process inside
        (``--as-pid-1``): bwrap's own would be left behind by a command that exits on its own.
        """
        # Also where bwrap has ended: killed while it sets up, it leaves a child that waits for a word from it for ever.
        self.stop()
        if self._process.returncode is None:
            if self._child is None:
                self._process.kill()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        with self._closing:
            if self._child is not None:
                os.close(self._child)
                self._child = None
        for stream in self._streams():
            stream.close()

    def _streams(self) -> list[IO[bytes]]:
        return [stream for stream in (self._process.stdin, self._process.stdout, self._process.stderr) if stream]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()


def arguments(tools: Tools, contents: Contents, files: Mapping[str, int], filter_fd: int, info_fd: int) -> list[str]:
    """The command line up to and with bwrap's ``--``; what follows runs inside.

    Args:
        tools: Where the programs are.
        contents: What is seen inside.
        files: Path inside -> descriptor from which its contents are read.
        filter_fd: Descriptor of the system-call filter.
        info_fd: Descriptor to which bwrap writes the id of the first process inside.
    """
    argv = [tools.choom, "-n", "1000", "--"]
    if tools.setpriv:
        user = str(SANDBOX_ID)
        argv += [tools.setpriv, "--reuid", user, "--regid", user, "--clear-groups", "--"]
    argv += [tools.bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv"]
    argv += ["--as-pid-1", "--cap-drop", "ALL", "--hostname", "sbx", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib64"):
        argv += ["--symlink", f"usr/{name}", f"/{name}"]
    # A shared map of /dev/zero is memory that nobody counts; /dev/null has no maps.
    argv += ["--dev", "/dev", "--dev-bind", "/dev/null", "/dev/zero"]
    if contents.packages is not None:
        argv += ["--ro-bind", str(contents.packages), PACKAGES]
    for path, descriptor in files.items():
        argv += ["--ro-bind-data", str(descriptor), path]
    for path, size in contents.scratch.items():
        argv += ["--size", str(size), "--tmpfs", path]
    argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
    for name, value in {**_ENVIRONMENT, **contents.environment}.items():
        argv += ["--setenv", name, value]
    return [*argv, "--seccomp", str(filter_fd), "--info-fd", str(info_fd), "--"]


def _launched(command: Sequence[str], contents: Contents, limits: Limits) -> tuple[subprocess.Popen[bytes], int]:
    """Start the programs; return the first of them, and the descriptor from which bwrap's message can be read."""
    tools, program = find_tools(), seccomp_filter()
    read_info, write_info = os.pipe()
    handed = [write_info]
    try:
        handed.append(_in_memory(program))
        files = {}
        for path, text in contents.files.items():
            files[path] = _in_memory(text)
            handed.append(files[path])
        process = subprocess.Popen(
            [
                *arguments(tools, contents, files, filter_fd=handed[1], info_fd=write_info),
                *(tools.prlimit, *limits.arguments(), "--", *command),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={},
            start_new_session=True,  # Ctrl-C in the terminal is for the trainer to understand
            cwd="/",
            pass_fds=handed,
        )
    except BaseException:
        os.close(read_info)
        raise
    finally:
        for descriptor in handed:
            os.close(descriptor)
    return process, read_info


def _in_memory(content: bytes) -> int:
    """A descriptor from which the content can be read to its end."""
    descriptor = os.memfd_create("sandbox")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _handle_on_child(read_info: int) -> int | None:
    """Read bwrap's message to its closing brace, which may come in pieces; return a handle on the process it names.

    None stands for a process that has ended already.

    Raises:
        SandboxUnavailable: bwrap ended before it could tell, or took too long.
    """
    fcntl.fcntl(read_info, fcntl.F_SETFL, os.O_NONBLOCK)
    waiting = select.poll()
    waiting.register(read_info, select.POLLIN)
    deadline, message = time.monotonic() + START_SECONDS, b""
    while b"}" not in message and len(message) < _MOST_INFO_BYTES:
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise SandboxUnavailable(f"bubblewrap did not start within {START_SECONDS:g} s.")
        piece = os.read(read_info, _MOST_INFO_BYTES)
        if not piece:
            raise SandboxUnavailable("bubblewrap ended before the sandbox was set up.")
        message += piece
    try:
        return os.pidfd_open(json.loads(message)["child-pid"])
    except ProcessLookupError:
        return None
    except (OSError, ValueError, KeyError) as error:
        raise SandboxUnavailable(f"The first process in the sandbox cannot be followed: {error}.") from error
