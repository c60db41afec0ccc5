"""Processes of ``python -m ratchet...`` forked from one that has loaded the libraries, instead of cold ones.

A cold worker needs seconds of processor time for its imports before it does anything that a test looks at. While
``RATCHET_TEST_FORKS`` names a socket (``conftest.py`` sets it), ``subprocess.Popen`` has a *fork server* start such
processes: one process for the whole test session that has imported torch, transformers, peft and ratchet, and nothing
else, and forks for each start. What comes out is a real process of its own: with its own pid, session, environment,
directory, pipes, limits and open files, which signals hit and whose exit status ``Popen`` reports.

Forked: ``[sys.executable, "-P"?, "-m", "ratchet" | "ratchet.worker" | "ratchet.tracking" | ..., ...]``, and
``[sys.executable, "-W", "error"?, "-c", code, ...]`` where the code begins with ``# forked``, all of them by
tests, and by ratchet itself where it gives them a session of their own. Everything else starts cold, as do processes
whose environment differs in a variable that is read while a library is imported, those of tests that use
``cold_processes``, and ratchet's own fork server: its workers are handed to its parent, which has to be who started it.
"""

import array
import atexit
import contextlib
import fcntl
import gc
import importlib
import inspect
import io
import json
import logging
import os
import pkgutil
import random
import resource
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from pathlib import Path

VARIABLE = "RATCHET_TEST_FORKS"
CODE = "# forked"
_EARLY = f"{VARIABLE}_EARLY"  # the server's
# Variables that a library or the interpreter reads when it is loaded. What a fork cannot make good starts cold.
_READ_EARLY = ("PYTHON", "LD_", "LC_", "LANG", "OMP_", "GOMP_", "ONEDNN_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH_")
# The last two are set by torch and accelerate in a process that uses them.
_READ_LATE = {"PYTHONUNBUFFERED", "PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR"}
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!i")
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_START_SECONDS = 240


# In the process that starts others


def install(any_session=False):
    """Make ``subprocess.Popen`` of this process ask the fork server where it can.

    With ``any_session`` also for processes that would stay in this one's session; they get one of their own.
    """
    _asking["any_session"] = any_session
    subprocess.Popen._execute_child = _execute_child
    subprocess.Popen._try_wait = _try_wait
    subprocess.Popen._internal_poll = _internal_poll


_asking = {"any_session": False}
_cold_start, _cold_wait, _cold_poll = (
    getattr(subprocess.Popen, name) for name in ("_execute_child", "_try_wait", "_internal_poll")
)
_signature = inspect.signature(_cold_start)


def _execute_child(self, *values):
    given = _signature.bind(self, *values).arguments
    if not ((_asking["any_session"] or given["start_new_session"]) and _ask(self, given)):
        _cold_start(self, *values)


def _try_wait(self, flags):
    if not hasattr(self, "_forked"):
        return _cold_wait(self, flags)
    return _exit_of(self, 0 if flags & os.WNOHANG else None)


def _internal_poll(self, *options, **more):
    if not hasattr(self, "_forked"):
        return _cold_poll(self, *options, **more)
    if self.returncode is None and self._waitpid_lock.acquire(False):
        try:
            pid, status = _exit_of(self, 0) if self.returncode is None else (0, 0)
            if pid:
                self._handle_exitstatus(status)
        finally:
            self._waitpid_lock.release()
    return self.returncode


def _ask(process, given):
    """Have the fork server start a process; false if it has to start cold."""
    path = os.environ.get(VARIABLE)
    command = [os.fspath(word) for word in given["args"]] if isinstance(given["args"], (list, tuple)) else []
    start = _what_starts(command)
    environment = os.environ if given["env"] is None else given["env"]
    environment = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    unusual = given["preexec_fn"] or given["shell"] or given["executable"] or not given["close_fds"]
    other_user = any(given.get(name) is not None for name in ("gid", "gids", "uid")) or given.get("umask", -1) >= 0
    if not (path and start) or unusual or other_user or _early(environment) != os.environ.get(_EARLY):
        return False
    ours = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
    places = [0, 1, 2, *given["pass_fds"]]
    files = [place if file == -1 else file for place, file in zip(places, ours, strict=False)] + list(given["pass_fds"])
    request = {
        **start,
        "command": command,
        "environment": environment,
        "directory": os.path.abspath(os.fspath(given["cwd"] or ".")),
        "places": places,
        "limits": [resource.getrlimit(limit) for limit in _LIMITS],
    }
    if not os.path.isdir(request["directory"]):
        return False  # it fails as it does everywhere
    connection = _connection(path)
    _send(connection, request, files)
    (process.pid,) = _NUMBER.unpack(_received(connection, _NUMBER.size))
    process._child_created = True
    process._forked = connection.detach()  # a bare file, as a pid is: left open without ado
    process._close_pipe_fds(*(given[name] for name in _PIPES))
    return True


def _what_starts(command):
    """The module or the code that a command runs, and its arguments; nothing for one that is not to be forked."""
    if not command or command[0] != sys.executable:
        return None
    words, start = command[1:], {"safe": False, "strict": False}
    if words[:1] == ["-P"]:
        words, start["safe"] = words[1:], True
    if words[:2] == ["-W", "error"]:
        words, start["strict"] = words[2:], True
    if words[:1] == ["-m"] and words[1].split(".")[0] == "ratchet" and words[1] != "ratchet.worker.fork_server":
        return {**start, "module": words[1], "arguments": words[2:]}
    if words[:1] == ["-c"] and words[1].lstrip().startswith(CODE):
        return {**start, "code": words[1], "arguments": words[2:]}
    return None


def _early(environment):
    found = {name: environment[name] for name in environment if name.startswith(_READ_EARLY)}
    return json.dumps({name: found[name] for name in sorted(found) if name not in _READ_LATE})


def _exit_of(process, timeout):
    """The pid and the exit status of a forked process once it has ended; 0 and 0 before."""
    poller = select.poll()  # select knows no file numbers over 1,024
    poller.register(process._forked, select.POLLIN)
    if not poller.poll(None if timeout is None else 1000 * timeout):
        return 0, 0
    with socket.socket(fileno=process._forked) as connection:  # once closed, the fork server lets the pid go
        (status,) = _NUMBER.unpack(_received(connection, _NUMBER.size))
    return process.pid, status


def _connection(path):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return connection


class Server:
    """The fork server of a session. It loads the libraries when it is first asked for a process."""

    def __init__(self):
        self._folder = tempfile.mkdtemp(prefix="forks-")
        self.path = f"{self._folder}/socket"
        os.environ[VARIABLE], os.environ[_EARLY] = self.path, _early(os.environ)
        with open(f"{self._folder}/log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", self.path],
                cwd=Path(__file__).parents[1],
                env={**os.environ, "HF_HOME": f"{self._folder}/hub"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        limit = time.monotonic() + _START_SECONDS
        while not os.path.exists(self.path):
            if self._process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"The fork server did not start: {Path(self._folder, 'log').read_text()}")
            time.sleep(0.01)

    def close(self):
        """End it, and wait for it: its processor time and that of what it forked is this process's children's."""
        shutil.rmtree(self._folder)
        self._process.wait()


def _send(connection, request, files):
    body = json.dumps(request).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
    connection.sendmsg([_LENGTH.pack(len(body))], rights)
    connection.sendall(body)


def _received(connection, count):
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise RuntimeError("The fork server is gone.")
        found += piece
    return found


# In the fork server


def _load():
    """Import what workers and commands import, and be ready to fork."""
    gc.disable()  # see conftest.py
    import ratchet.engine  # before PEFT and transformers: of these it loads what is used

    importlib.import_module("transformers.models.llama.modeling_llama")

    left_out = ("__main__", "vllm", "code_candidate", "code_proxies", "code_harness", "math_worker")
    left_out += ("metric_worker", "probe_worker", "code_values", "migrations")
    for module in pkgutil.walk_packages(ratchet.__path__, "ratchet."):
        if not any(part in module.name for part in left_out):
            importlib.import_module(module.name)
    gc.enable()
    gc.collect()
    gc.freeze()  # what is loaded is not looked through again, nor copied by that
    # What torch would take apart at its end is nobody's concern; it takes longer than many commands.
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    atexit.register(logging.shutdown)
    return True


def serve(path):
    """Fork for each request until the session is over; in a forked process return what it has to run."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(64)
    os.rename(f"{path}.new", path)
    is_loaded = False
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    running, ended = {}, {}  # by a file's number: processes and who started them
    while os.path.exists(path) and os.getppid() != 1:
        for number, _ in poller.poll(200):
            if number == listener.fileno():
                connection = listener.accept()[0]
                request, files = _request(connection)
                is_loaded = is_loaded or _load()
                pid = os.fork()
                if pid == 0:
                    os.setsid()  # before anybody knows the pid: whoever does may signal the whole session
                    _send_number(connection, os.getpid())
                    for other in (listener, connection, *(c for _, c in [*running.values(), *ended.values()])):
                        other.detach()  # its number will be another file's
                    return request, files
                for file in files:
                    os.close(file)
                end = os.pidfd_open(pid)
                running[end] = (pid, connection)
                poller.register(end, select.POLLIN)
                continue
            poller.unregister(number)
            if number in running:
                pid, connection = running.pop(number)
                os.close(number)
                found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                left = found.si_code == os.CLD_EXITED
                _send_number(connection, found.si_status << 8 if left else found.si_status)
                poller.register(connection, select.POLLIN)
                ended[connection.fileno()] = (pid, connection)
            else:  # whoever started it knows, or is gone
                pid, connection = ended.pop(number)
                connection.close()
                os.waitpid(pid, 0)
    os._exit(0)


def _send_number(connection, number):
    with contextlib.suppress(OSError):
        connection.sendall(_NUMBER.pack(number))


def _request(connection):
    head, rights, _, _ = connection.recvmsg(_LENGTH.size, socket.CMSG_SPACE(64 * 4))
    files = array.array("i")
    for _, _, data in rights:
        files.frombytes(data)
    body = _received(connection, _LENGTH.unpack(head)[0])
    return json.loads(body), list(files)


# In a forked process


def become(request, files):
    """Turn a fork of the server into the process that was asked for, up to its first line of code."""
    _take(files, request["places"])
    for limit, values in zip(_LIMITS, request["limits"], strict=True):
        if resource.getrlimit(limit) != tuple(values):
            resource.setrlimit(limit, values)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.path.pop(0)  # the server's directory
    if not request["safe"]:
        sys.path.insert(0, request["directory"] if "module" in request else "")
    sys.orig_argv = request["command"]
    sys.argv = ["-m" if "module" in request else "-c", *request["arguments"]]
    unbuffered = bool(request["environment"].get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    for name, number, errors in (("stdout", 1, sys.stdout.errors), ("stderr", 2, "backslashreplace")):
        raw = open(number, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
        lines = number == 2 or os.isatty(number)
        stream = io.TextIOWrapper(raw, errors=errors, line_buffering=lines, write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    random.seed()
    if request["strict"]:
        warnings.simplefilter("error")


def _take(files, places):
    """Have the files that came with a request at their numbers, and no other open."""
    high = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 500) for file in files]
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in high:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))
    for file, place in zip(high, places, strict=True):
        os.dup2(file, place, inheritable=True)
        os.close(file)


def run(request):
    """Run the module or the code; return the exit code that the interpreter would have."""
    try:
        if "module" in request:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        else:
            module = sys.modules["__main__"] = type(sys)("__main__")
            exec(compile(request["code"], "<string>", "exec"), module.__dict__)
    except SystemExit as exit:
        if exit.code is None or isinstance(exit.code, int):
            return exit.code or 0
        sys.stderr.write(f"{exit.code}\n")
        return 1
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, KeyboardInterrupt) and "code" in request:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    return 0


def leave(code):
    """End as the interpreter does, but leave what is loaded to the system: taking torch apart takes half a second."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


def main(path):
    install()
    request, files = serve(path)
    become(request, files)
    leave(run(request))


if __name__ == "__main__":
    main(sys.argv[1])
