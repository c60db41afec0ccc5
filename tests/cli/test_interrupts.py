"""Ctrl-C while a command follows what others do, and while it loads its libraries."""

import gc
import os
import signal
import subprocess
import sys
import time
import weakref

import pytest

from ratchet.cli.interrupts import interruptible


class Cycle:
    def __init__(self):
        self.me = self


def press():
    os.kill(os.getpid(), signal.SIGINT)


def raised_in(work):
    with pytest.raises(KeyboardInterrupt):
        work()


def test_a_ctrl_c_is_heard_at_the_next_pause_and_not_before():
    reached = []

    def work():
        with interruptible() as pause:
            pause(0.01)
            press()
            reached.append("after the press")
            pause(60)
            reached.append("after the pause")

    raised_in(work)
    assert reached == ["after the press"]


def test_one_that_comes_in_a_callback_of_the_garbage_collector_is_heard_too():
    """Python prints what is raised there, and forgets it."""

    def work():
        with interruptible() as pause:
            collected = Cycle()
            weakref.finalize(collected, press)
            del collected
            gc.collect()
            pause(60)

    raised_in(work)


def test_it_ends_a_pause_soon():
    with subprocess.Popen(
        [sys.executable, "-c", PAUSING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "pausing\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("heard\n", "", 0)


PAUSING = """
from ratchet.cli.interrupts import interruptible
try:
    with interruptible() as pause:
        print("pausing", flush=True)
        pause(1000)
except KeyboardInterrupt:
    print("heard")
"""


def test_the_second_is_raised_at_once_and_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGINT)

    def work():
        with interruptible():
            press()
            press()
            pytest.fail("it goes on")

    raised_in(work)
    assert signal.getsignal(signal.SIGINT) is before


BROKEN = """
import os, signal, sys
import ratchet.cli as cli

def load(self, ctx, name):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        raise RecursionError("what a library made of it") from None

cli.LazyGroup.get_command = load
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where the tests run in the background
sys.argv = ["ratchet", "runs", "list"]
cli.main()
"""


def test_what_a_library_makes_of_a_ctrl_c_while_it_is_loaded_ends_as_interrupted():
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "")
    assert "Interrupted." in done.stderr
    assert "Traceback" not in done.stderr
