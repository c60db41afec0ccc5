"""Forked processes are what cold ones are: processes of their own, with their directory, files, signals and exit status."""

import os
import signal
import subprocess
import sys

import pytest

from .forks import CODE

IS_FORKED = f"{CODE}\nprint(open('/proc/self/cmdline').read().split('\\0')[1] == '-m')"


def python(code, **options):
    return subprocess.Popen([sys.executable, "-c", f"{CODE}\n{code}"], stdout=subprocess.PIPE, text=True, **options)


def test_a_process_has_its_directory_its_session_and_ends_by_a_signal(tmp_path):
    code = "import os, time\nprint(os.getcwd(), os.getsid(0) == os.getpid(), flush=True)\ntime.sleep(100)"
    with python(code, cwd=tmp_path) as process:
        assert process.stdout.readline() == f"{tmp_path} True\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == process.poll() == -signal.SIGKILL


def test_a_process_has_the_files_that_it_is_given_and_its_own_exit_code():
    ours, theirs = os.pipe()
    code = f"import os, sys\nos.write({theirs}, b'x')\nsys.exit('why')"
    process = python(code, pass_fds=[theirs], stderr=subprocess.PIPE)
    os.close(theirs)
    assert os.read(ours, 2) == b"x"
    os.close(ours)
    assert process.communicate() == ("", "why\n")
    assert process.returncode == 1


def test_a_command_is_run_as_a_cold_one_would():
    done = subprocess.run([sys.executable, "-m", "ratchet", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout[:8], done.stderr) == (0, "ratchet ", "")


@pytest.mark.parametrize(("variable", "is_forked"), [("PYTHONHASHSEED", False), ("RATCHET_HOME", True)])
def test_what_a_fork_cannot_make_good_starts_cold(variable, is_forked):
    command = [sys.executable, "-c", IS_FORKED]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, variable: "1"})
    assert done.stdout == f"{is_forked}\n"


@pytest.mark.usefixtures("cold_processes")
def test_a_test_may_ask_for_cold_ones():
    assert subprocess.run([sys.executable, "-c", IS_FORKED], capture_output=True, text=True).stdout == "False\n"
