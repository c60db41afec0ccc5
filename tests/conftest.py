"""What every test runs under: folders of its own, no network, and the command line as a process."""

import fcntl
import gc
import importlib.util
import itertools
import os
import signal
import socket
import subprocess
import sys

import hypothesis
import pytest

import ratchet.cli  # and with it ratchet, before any test imports torch: it sets how OpenMP waits

from . import forks
from .buckets import _bucket_process, bucket_server, each_storage  # noqa: F401 - fixtures
from .databases import each_database, postgres_server, postgres_url  # noqa: F401 - fixtures

# Read by libraries when they are imported, which is before any fixture runs; subprocesses inherit it. Models this small
# gain nothing from a second thread, and on a busy machine two threads that wait for each other take ten times longer.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    OMP_NUM_THREADS="1",
)


# So many times as many examples does Hypothesis try in ``make test-long`` as otherwise.
EXAMPLES_IN_LONG = 4


gc.disable()  # collecting tests imports a million objects and makes no garbage


def pytest_collection_finish():
    """What is imported is not searched for garbage either while the tests run."""
    gc.enable()
    gc.freeze()


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="all repetitions, and the tests marked long (make test-long)")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        for test in {getattr(item, "function", None) for item in items}:
            if settings := getattr(test, "_hypothesis_internal_use_settings", None):
                examples = min(settings.max_examples, max(20, settings.max_examples // EXAMPLES_IN_LONG))
                test._hypothesis_internal_use_settings = hypothesis.settings(settings, max_examples=examples)
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in set(long)]


@pytest.fixture(scope="session")
def repeats(request):
    """Return a function that chooses how often a test repeats itself: ``repeats(full, few)``, full by test-long."""
    return lambda full, few: full if request.config.getoption("--long") else few


def pytest_configure(config):
    """Processes of the command line and of workers are forked, see ``forks.py``; one server for all of a session."""
    if not hasattr(config, "workerinput"):
        config.add_cleanup(forks.Server().close)
    forks.install(any_session=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Tests marked ``alone`` measure time or memory: of the session's processes no other tests meanwhile."""
    place = os.path.dirname(os.environ[forks.VARIABLE])
    is_alone = item.get_closest_marker("alone") is not None
    with open(f"{place}/door", "w") as door, open(f"{place}/room", "w") as room:
        # One after the other through the door; whoever wants the room for itself stands in it until the room is empty.
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # also where a fork that lives on has it open


@pytest.fixture
def cold_processes(monkeypatch):
    """For tests of what a process imports, or of how long or how much memory it takes: none is forked."""
    monkeypatch.delenv(forks.VARIABLE)


_connect = socket.socket.connect


def _connect_here_only(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError("tests have no network")
    return _connect(self, address)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", _connect_here_only)


@pytest.fixture(autouse=True)
def _own_folders(request, monkeypatch):
    """Keep every file out of the user's folders, also in subprocesses: in ``tmp_path`` of tests that have one."""
    if "tmp_path" in request.fixturenames:
        place = request.getfixturevalue("tmp_path")
    else:  # cheaper: pytest looks through all folders that there are before it makes another
        place = request.getfixturevalue("_folders_of_others") / str(next(_numbers))
        place.mkdir()
    monkeypatch.setenv("RATCHET_HOME", str(place / "home"))
    monkeypatch.setenv("HF_HOME", str(place / "hub"))
    for name in ("FORCE_COLOR", "RATCHET_DATABASE", "RATCHET_ARTIFACTS"):
        monkeypatch.delenv(name, raising=False)


_numbers = itertools.count()


@pytest.fixture(scope="session")
def _folders_of_others(tmp_path_factory):
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(scope="session", autouse=True)
def _fonts(tmp_path_factory):
    """Let matplotlib build its list of fonts once for all processes, not in the user's folder."""
    os.environ["MPLCONFIGDIR"] = str(tmp_path_factory.mktemp("matplotlib"))


@pytest.fixture(scope="session", autouse=True)
def _self_checks_once():
    """Let a model and its trial answers be tried once a session: half of what a small run takes is its self-checks."""
    if importlib.util.find_spec("torch") is None:  # as in the environment of test_ordinary_user.py
        yield
        return
    from ratchet.engine import build

    known = {}

    def once(check):
        def checked(policy, *trials, tell):
            key = (check, policy.files.identity, str(policy.model.dtype), repr(policy.model), repr(trials))
            if key not in known:
                lines = []
                known[key] = (check(policy, *trials, tell=lines.append), lines)
            found, lines = known[key]
            for line in lines:
                tell(line)
            return found

        return checked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "chosen_forward", once(build.chosen_forward))
        patch.setattr(build, "chosen_kind", once(build.chosen_kind))
        yield


@pytest.fixture(scope="session")
def conducted_adapter(tmp_path_factory):
    """An adapter that faked runs take copies of, see ``conducted.py``."""
    from .conducted import make_adapter

    return make_adapter(tmp_path_factory.mktemp("adapter") / "adapter")


@pytest.fixture
def stage(conducted_adapter):
    """Loops and experiments whose jobs are faked, see ``conducted.py``."""
    from .conducted import Stage

    stage = Stage(conducted_adapter)
    yield stage
    stage.close()


@pytest.fixture
def ratchet_command(monkeypatch, capsys):
    """Return a function that runs the command line in this process: exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ratchet", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            ratchet.cli.main()
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


@pytest.fixture
def called(ratchet_command):
    """Return a function that runs ``ratchet ARGS`` in this process: CompletedProcess with texts."""
    return lambda *arguments: subprocess.CompletedProcess(arguments, *ratchet_command(*arguments))


@pytest.fixture
def start_cli():
    """Return a function that starts ``ratchet ARGS`` and returns the process; all of them end with the test."""
    started = []

    def start(*arguments, **options):
        process = subprocess.Popen(
            [sys.executable, "-m", "ratchet", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def cli(start_cli):
    """Return a function that runs ``ratchet ARGS`` to its end: CompletedProcess with texts."""

    def run(*arguments, timeout=250, **options):
        process = start_cli(*arguments, **options)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return run
