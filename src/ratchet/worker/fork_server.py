"""A process that has imported what a worker needs and forks one for each run, so that a run starts without importing.

``python -m ratchet.worker.fork_server SOCKET``, started by ``supervisor/warm_start.py``, which sends it requests on
the open file SOCKET. It ends when that is closed. It never works on a run, touches no device and has no second thread:
where a library has started one as it was imported, nothing is forked, and workers are started cold.

A worker becomes a child of whoever asked for it: it is forked by a process that ends at once, while the asker takes
processes without a parent (PR_SET_CHILD_SUBREAPER). So its exit status is read as a cold worker's is, and nothing
happens to it when this process ends.
"""

import contextlib
import gc
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch

from ratchet.worker import __main__ as worker

_MOST_BYTES = 1 << 20
_FILES = 3  # the run's lock, the log, and where the worker says which process it is
_PARENT_SECONDS = 5.0


def serve(connection: socket.socket) -> int:
    """Fork for each request until the connection is closed; return the exit code, in a worker the worker's."""
    _end_other_threads()
    gc.freeze()  # the workers share these pages as long as nobody writes to them
    connection.sendall(b"ready" if _may_fork() else b"no")
    while True:
        request, files, *_ = socket.recv_fds(connection, _MOST_BYTES, _FILES)
        if not request:
            return 0
        if _may_fork():
            starter = os.fork()
            if starter == 0:
                if os.fork() != 0:
                    os._exit(0)  # the worker's parent is now whoever asked
                connection.close()
                return _work(json.loads(request), *files)
            os.waitpid(starter, 0)
        for file in files:
            os.close(file)


def _work(request: dict[str, Any], lock: int, log: int, answer: int) -> int:
    """Become the worker: a session, environment, directory and log of its own."""
    # A library that looked for GPUs as it was imported has spoilt them for forks.
    if torch.cuda._is_in_bad_fork() or not _is_child_of(request["asker"]):
        return 1
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for file, place in ((null, 0), (log, 1), (log, 2)):
        os.dup2(file, place)
    os.close(null)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    try:
        os.write(answer, str(os.getpid()).encode())
    except OSError:
        return 1  # nobody waits for this worker any more
    os.close(answer)
    sys.argv = [worker.__file__, request["folder"], str(lock)]
    return worker.main(sys.argv[1:])


def _is_child_of(asker: int) -> bool:
    end = time.monotonic() + _PARENT_SECONDS
    while os.getppid() != asker:
        if time.monotonic() > end or os.getppid() == 1:
            return False
        time.sleep(0.001)
    return True


def _end_other_threads() -> None:
    """Fork once for nothing: OpenBLAS, which starts threads when it is loaded, ends them before a fork."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _may_fork() -> bool:
    return len(list(Path("/proc/self/task").iterdir())) == 1 and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    with contextlib.closing(socket.socket(fileno=int(sys.argv[1]))) as connection:
        code = serve(connection)
    sys.exit(code)
