"""The system calls that code in the sandbox may not make, as a filter for the kernel.

Namespaces, read-only binds and resource limits do the confining. The filter takes away what gets round them (System V
memory that no limit counts, files in memory) and the parts of the kernel in which holes are found: nested namespaces,
mounts, io_uring, bpf, keys, ptrace. What is not named is allowed, since Python with numpy uses a great deal; the named
calls fail with EPERM. Calls of another architecture than the machine's own (32-bit, x32) end the process.
"""

import functools
import os
import tempfile
from errno import ENOSYS, EPERM

from ratchet.errors import SandboxUnavailable

# Calls from number 424 on have the same number on every architecture, so that a libseccomp which is older than the
# call can still deny it.
_NEWER = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "open_tree_attr": 467,
}
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
    iopl ioperm personality lookup_dcookie nfsservctl migrate_pages move_pages
"""

_NEW_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # types into the terminal, as if its user had
_LOW_32_BITS = 0xFFFFFFFF


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
    try:
        rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        for name in _DENIED.split():
            rules.add_rule(denied, name)
        for number in _NEWER.values():
            rules.add_rule(denied, number)
        for flag in _NEW_NAMESPACES:
            rules.add_rule(denied, "clone", pyseccomp.Arg(_clone_flags(), pyseccomp.MASKED_EQ, flag, flag))
        # The flags of clone3 lie behind a pointer, which no filter can follow. glibc then falls back to clone.
        rules.add_rule(pyseccomp.ERRNO(ENOSYS), 435)
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


def _clone_flags() -> int:
    """Which argument of clone holds the flags: the second on s390, the first elsewhere."""
    return 1 if os.uname().machine.startswith("s390") else 0
