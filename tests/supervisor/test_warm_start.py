"""Workers that are forked by a process that has the libraries: they are processes like cold ones, and end like them."""

import os
import signal
import threading
import time

import pytest

from ratchet.run.run_folder import RunFolder
from ratchet.supervisor.executors import ended
from ratchet.supervisor.warm_start import WarmExecutor

from ..small_runs import adapter_bytes, small, trained

VARIABLES = {"CUDA_VISIBLE_DEVICES": ""}


class NoColdStart:
    """Stands for what starts workers cold where none may be."""

    started = 0

    def start(self, folder, environment):
        self.started += 1


@pytest.fixture(scope="module")
def warm():
    with pytest.MonkeyPatch.context() as patch, WarmExecutor(NoColdStart()) as warm:
        patch.setattr("ratchet.supervisor.warm_start._START_SECONDS", 120)  # importing takes long on a busy machine
        yield warm


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(small(rl__rounds="1"), tmp_path / "run", {"key": "confirmed elsewhere"})


def exit_code(worker, seconds=120):
    end = time.monotonic() + seconds
    while (code := ended(worker)) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    return code


def until(is_so, seconds=60):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_forked_worker_trains_to_the_bytes_of_any_other(warm, run, tmp_path):
    assert exit_code(warm.start(run, VARIABLES)) == 0
    assert '"all_rounds"' in run.worker_log_path.read_text()
    assert adapter_bytes(run) == adapter_bytes(trained(tmp_path / "here", rl=small(rl__rounds="1").rl.model_dump()))


def test_a_forked_worker_is_a_process_of_its_own(warm, run):
    worker = warm.start(run, {"CUDA_VISIBLE_DEVICES": "7"})
    assert run.is_locked()
    assert (os.getpgid(worker.pid), os.getsid(worker.pid)) == (worker.pid, worker.pid)
    os.kill(worker.pid, signal.SIGKILL)
    assert exit_code(worker) == -signal.SIGKILL
    assert not run.is_locked()


def test_without_a_fork_server_workers_start_cold(run, monkeypatch):
    monkeypatch.setattr("ratchet.supervisor.warm_start._COMMAND", ("false",))
    cold = NoColdStart()
    with WarmExecutor(cold) as warm:
        warm.start(run, VARIABLES)
        assert cold.started == 1
        assert not run.is_locked()


def test_other_variables_ask_for_another_fork_server():
    with WarmExecutor() as warm:
        one = warm.prepare({"CUDA_VISIBLE_DEVICES": "0"})
        assert warm.prepare({"CUDA_VISIBLE_DEVICES": "1"}) is one
        assert warm.prepare({"OMP_NUM_THREADS": "7"}) is not one


def test_a_process_with_other_threads_does_not_fork():
    from ratchet.worker import fork_server

    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert not fork_server._may_fork()
    over.set()
    thread.join()


# The last one: it takes the shared fork server away.
def test_a_worker_goes_on_without_the_process_that_forked_it(warm, run):
    worker = warm.start(run, VARIABLES)
    server = warm.prepare(VARIABLES)
    os.kill(server._process.pid, signal.SIGKILL)
    assert exit_code(worker) == 0
    until(lambda: server.is_gone)
    assert warm._cold.started == 0
