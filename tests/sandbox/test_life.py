"""How sandboxes live and die: nothing is left of one, whoever ends it and however."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from ratchet.sandbox.launcher import Contents, Sandbox, python_command
from ratchet.sandbox.metric_process import MetricScore

from .processes import is_of_another_test

DAEMON = b"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv("/usr/bin/sleep", ["sleep", "600"])
    os._exit(0)
print("ready", flush=True)
time.sleep(600)
"""


def gone_within(seconds, is_gone):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_gone():
            return True
        time.sleep(0.02)
    return is_gone()


def test_a_daemon_dies_with_its_sandbox(bwraps):
    before = bwraps()
    with Sandbox(python_command("/w.py"), Contents({"/w.py": DAEMON})) as sandbox:
        assert os.read(sandbox.stdout, 10) == b"ready\n"
        time.sleep(0.2)
        assert len(bwraps().keys() - before.keys()) >= 3
    assert bwraps().keys() <= before.keys()


def test_forty_kills_leave_no_process_and_no_zombie(bwraps):
    before = bwraps()
    for _ in range(40):
        Sandbox(["/usr/bin/sleep", "600"]).kill()
    assert bwraps().keys() <= before.keys()


def test_a_command_that_ends_by_itself_leaves_no_zombie(bwraps):
    before, orphans = bwraps(), zombies_of_others()
    for _ in range(5):
        with Sandbox(["/usr/bin/true"]) as sandbox:
            assert sandbox.wait(20.0) == 0
    assert bwraps().keys() <= before.keys()
    assert zombies_of_others() <= orphans


def zombies_of_others():
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                name, _, rest = (folder / "stat").read_text().partition(") ")
                if rest.startswith("Z") and "bwrap" in name and not is_of_another_test(int(folder.name)):
                    found.add(folder.name)
            except OSError:
                continue
    return found


def test_killing_twice_does_no_harm():
    sandbox = Sandbox(["/usr/bin/sleep", "600"])
    sandbox.kill()
    sandbox.stop()
    sandbox.kill()
    assert sandbox.wait(0) is not None


def test_out_of_memory_takes_the_sandbox_first(bwraps):
    before = bwraps()
    with Sandbox(["/usr/bin/sleep", "600"]):
        started = bwraps().keys() - before.keys()
        assert started
        assert {Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in started} == {"1000"}


def test_ctrl_c_in_the_terminal_does_not_reach_it(bwraps):
    before = bwraps()
    with Sandbox(["/usr/bin/sleep", "600"]):
        assert all(os.getsid(pid) != os.getsid(0) for pid in bwraps().keys() - before.keys())


def test_a_sandbox_ends_with_the_thread_that_started_it():
    started = []
    thread = threading.Thread(target=lambda: started.append(Sandbox(["/usr/bin/sleep", "600"])))
    thread.start()
    thread.join()
    assert gone_within(60.0, lambda: started[0].wait(0) is not None)
    started[0].kill()


def test_a_bwrap_that_was_killed_while_it_set_up_leaves_nothing(monkeypatch):
    # As bwrap does between telling of its child and letting it run: the child waits for a word that never comes.
    with tempfile.TemporaryDirectory(prefix="ratchet-life-") as folder:
        script = Path(folder) / "bwrap"
        script.write_text(
            "#!/usr/bin/python3 -IS\n"
            "import os, signal, sys\n"
            "info = int(sys.argv[sys.argv.index('--info-fd') + 1])\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    signal.pause()\n"
            "os.write(info, b'{ \"child-pid\": %d }' % child)\n"
        )
        os.chmod(folder, 0o755)
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        sandbox = Sandbox(["/usr/bin/true"])
        assert sandbox.wait(20.0) == 0
        left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if folder in command_line(pid)]
        assert len(left) == 1
        sandbox.kill()
        assert gone_within(60.0, lambda: not runs(left[0]))


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_nothing_outlives_a_trainer_that_was_killed():
    code = (
        "import time, sys\n"
        "from ratchet.sandbox.metric_pool import MetricPool\n"
        "pool = MetricPool('def score(a, r): return 1.0', workers=2)\n"
        "pool.score_many([('a', 'b')] * 50)\n"
        "import subprocess, os\n"
        "print(*[p for p in subprocess.run(['ps', '-eo', 'pid=,ppid='], capture_output=True, text=True).stdout.split('\\n')"
        " if p.split()[1:] == [str(os.getpid())] and int(p.split()[0])], sep=';', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as trainer:
        line = trainer.stdout.readline()
        children = [int(item.split()[0]) for item in line.split(";")]
        families = {pid for child in children for pid in descendants(child)}
        os.kill(trainer.pid, signal.SIGKILL)
    assert len(families) >= 2
    assert gone_within(60.0, lambda: not any(runs(pid) for pid in families))


def descendants(pid):
    found = {pid}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found |= descendants(int(child))
    except OSError:
        pass
    return found


def runs(pid):
    try:
        return (Path(f"/proc/{pid}") / "stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_closing_a_pool_ends_what_it_is_at(pool_of, bwraps):
    before = bwraps()
    pool = pool_of("import time\ndef score(answer, reference):\n    time.sleep(50)\n", answer_seconds=60.0)
    found = []
    thread = threading.Thread(target=lambda: found.extend(pool.score_many([("a", "b")] * 3)))
    thread.start()
    assert gone_within(60.0, lambda: len(bwraps()) > len(before) + 2)
    started = time.monotonic()
    pool.close()
    thread.join(20.0)
    assert time.monotonic() - started < 10.0
    assert found == [MetricScore(None, "execution", "the pool was closed")] * 3
    assert pool.score("a", "b") == MetricScore(None, "execution", "the pool was closed")
    assert bwraps().keys() <= before.keys()


def test_a_pool_that_is_forgotten_ends_its_processes(bwraps):
    import gc

    from ratchet.sandbox.metric_pool import MetricPool

    before = bwraps()
    pool = MetricPool("def score(answer, reference): return 0.5", workers=2)
    assert pool.score("a", "b").value == 0.5
    assert bwraps().keys() - before.keys()
    del pool
    gc.collect()
    assert gone_within(60.0, lambda: bwraps().keys() <= before.keys())


def test_a_forked_child_starts_processes_of_its_own(pool_of):
    pool = pool_of("def score(answer, reference): return 0.5")
    assert pool.score("a", "b").value == 0.5
    child = os.fork()
    if child == 0:
        try:
            is_right = pool.score("a", "b").value == 0.5
            pool.close()
            os._exit(0 if is_right else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.score("a", "b").value == 0.5
