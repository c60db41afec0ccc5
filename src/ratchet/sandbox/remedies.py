"""What to do about a sandbox that does not start: from the words of bwrap or the kernel to a remedy.

Those for Docker and for Ubuntu's AppArmor come from their documentation and from reports of others; the rest was tried.
"""

from ratchet.errors import SandboxUnavailable

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


def unavailable(complaint: str) -> SandboxUnavailable:
    """Return the fault for what bwrap, the kernel or the self-test said, with the remedy that belongs to it."""
    words = complaint.strip()
    found = words.lower()
    remedy = next((remedy for sign, remedy in _REMEDIES if sign in found), "")
    return SandboxUnavailable(words if words.endswith(".") else f"{words}.", remedy)
