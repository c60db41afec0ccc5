"""The processes behind the math verifier: they are killed in time, replaced, shared by threads, and never left behind."""

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratchet.config import MathVerifier
from ratchet.run.records import Grade, Prompt
from ratchet.verifiers import make_verifier

RIGHT, WRONG = Grade(1.0, "graded"), Grade(0.0, "graded")
# Nested so that sympy neither refuses nor finishes it.
ENDLESS = r"\boxed{\int_0^1 \sin(x^{x^x}) e^{-x^7} dx}"
# Ten million multiplications of integers that keep growing: one long run inside C, holding the interpreter's lock.
ENDLESS_IN_C = r"\boxed{\prod_{n=1}^{10000000} n}"


def prompt(ground_truth):
    return Prompt(id=1, messages=({"role": "user", "content": "?"},), ground_truth=ground_truth)


@pytest.fixture(scope="module")
def verifier():
    built = make_verifier(MathVerifier(limit_seconds=5))
    yield built
    built.close()


@pytest.fixture(scope="module")
def hasty():
    """A verifier with a limit that hangs reach soon and ordinary answers do not, even on a busy machine."""
    built = make_verifier(MathVerifier(limit_seconds=1.5))
    yield built
    built.close()


def children(process_id):
    """Return the ids of the living children of a process, zombies left out."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == process_id and state != "Z":
            found.append(int(stat.parent.name))
    return found


def is_gone(process_id, seconds=60.0):
    """Tell whether a process is gone, or a zombie nobody has collected, within the time of a busy machine."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("endless", [ENDLESS, ENDLESS_IN_C])
def test_an_answer_that_hangs_is_killed_at_its_limit_and_the_next_one_graded(hasty, endless):
    assert hasty.grade(r"\boxed{7}", prompt("7")) == RIGHT
    started = time.monotonic()
    assert hasty.grade(endless, prompt("5")) == Grade(0.0, "failed", failure="time")
    assert time.monotonic() - started < 20
    assert hasty.grade(r"\boxed{8}", prompt("7")) == WRONG


def test_one_hanging_answer_does_not_hold_up_the_others(hasty):
    hasty.grade(r"\boxed{7}", prompt("7"))
    with ThreadPoolExecutor(8) as threads:
        grades = list(threads.map(lambda text: hasty.grade(text, prompt("7")), [ENDLESS] + [r"\boxed{7}"] * 30))
    assert grades == [Grade(0.0, "failed", failure="time")] + [RIGHT] * 30


def test_many_threads_share_the_workers_without_mixing_answers_up(verifier):
    with ThreadPoolExecutor(16) as threads:
        grades = list(
            threads.map(lambda n: verifier.grade(rf"\boxed{{{n}+x}}", prompt(f"x+{n if n % 2 else n + 1}")), range(60))
        )
    assert grades == [RIGHT if n % 2 else WRONG for n in range(60)]


def test_answers_are_graded_from_asyncio(verifier):
    async def grade_all():
        direct = verifier.grade(r"\boxed{7}", prompt("7"))
        in_threads = await asyncio.gather(
            *(asyncio.to_thread(verifier.grade, rf"\boxed{{{n}}}", prompt("7")) for n in range(10))
        )
        return direct, in_threads

    direct, in_threads = asyncio.run(grade_all())
    assert direct == RIGHT
    assert in_threads == [RIGHT if n == 7 else WRONG for n in range(10)]


def test_a_worker_outlives_the_thread_that_started_it():
    verifier = make_verifier(MathVerifier())
    starter = threading.Thread(target=verifier.grade, args=(r"\boxed{7}", prompt("7")))
    before = children(os.getpid())
    starter.start()
    starter.join()
    (worker,) = set(children(os.getpid())) - set(before)
    assert not is_gone(worker, seconds=1)
    assert verifier.grade(r"\boxed{7}", prompt("7")) == RIGHT
    assert worker in children(os.getpid())
    verifier.close()


def in_forked_child(verifier, results):
    results.put([verifier.grade(rf"\boxed{{{n}}}", prompt("7")).correctness for n in range(6, 9)])
    verifier.close()


def test_a_forked_process_gets_workers_of_its_own(verifier):
    assert verifier.grade(r"\boxed{7}", prompt("7")) == RIGHT
    forking = multiprocessing.get_context("fork")
    results = forking.Queue()
    child = forking.Process(target=in_forked_child, args=(verifier, results))
    child.start()
    mine = [verifier.grade(rf"\boxed{{{n}}}", prompt("7")).correctness for n in range(6, 9)]
    assert results.get(timeout=30) == mine == [0.0, 1.0, 0.0]
    child.join()
    assert verifier.grade(r"\boxed{7}", prompt("7")) == RIGHT  # the child's close did not end the parent's workers


def test_a_worker_that_dies_in_the_middle_fails_that_answer_alone():
    verifier = make_verifier(MathVerifier(limit_seconds=30))
    before = children(os.getpid())
    verifier.grade(r"\boxed{7}", prompt("7"))
    (worker,) = set(children(os.getpid())) - set(before)
    threading.Timer(0.5, os.kill, (worker, signal.SIGKILL)).start()
    assert verifier.grade(ENDLESS, prompt("5")) == Grade(0.0, "failed", failure="execution")
    assert verifier.grade(r"\boxed{7}", prompt("7")) == RIGHT
    verifier.close()


def test_a_worker_that_died_while_idle_is_replaced_unnoticed():
    verifier = make_verifier(MathVerifier())
    before = children(os.getpid())
    verifier.grade(r"\boxed{7}", prompt("7"))
    (worker,) = set(children(os.getpid())) - set(before)
    os.kill(worker, signal.SIGKILL)
    assert is_gone(worker)
    time.sleep(0.5)  # its leading thread is gone; let the others follow
    assert verifier.grade(r"\boxed{7}", prompt("7")) == RIGHT
    verifier.close()


GREEDY = """
import io, json, resource, sys
from ratchet.verifiers import math_worker
taken = int(math_worker._peak_bytes())
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**30, taken + 2**30))
def find(text, ground_truth, require_boxed):
    block = b"x" * int(text)
    return {"outcome": "graded", "is_correct": ground_truth == "right"}
def line(size, ground_truth):
    answer = {"text": str(size), "ground_truth": ground_truth, "require_boxed": False, "limit_seconds": 9}
    return json.dumps(answer).encode()
findings = io.BytesIO()
sizes = [(100, "wrong"), (2**40, "wrong"), (2**28 + 2**27, "wrong"), (100, "right")]
math_worker.serve(find, [line(*size) for size in sizes], findings, memory_bytes=taken + 2**30)
print(findings.getvalue().decode(), end="")
"""


def test_a_no_that_took_a_large_part_of_the_memory_is_not_believed():
    """Sympy catches MemoryError and goes on; what it says then is unknown, not wrong. A yes is proved all the same."""
    done = subprocess.run([sys.executable, "-c", GREEDY], check=True, capture_output=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"outcome": "graded", "is_correct": False},
        {"failure": "memory", "retire": True},
        {"failure": "memory", "retire": True},
        {"outcome": "graded", "is_correct": True, "retire": True},
    ]


def test_the_memory_of_a_large_parent_is_not_taken_for_the_worker_s_own():
    # ru_maxrss starts at what the parent held; a worker beside a loaded model would never be seen to swell.
    code = "from ratchet.verifiers import math_worker; print(math_worker._peak_bytes())"
    parent = f"import subprocess, sys; block = b'x' * 2**29; subprocess.run([sys.executable, '-c', {code!r}])"
    done = subprocess.run([sys.executable, "-c", parent], check=True, capture_output=True, text=True)
    assert float(done.stdout) < 2**28


def test_close_leaves_no_process_and_later_answers_fail():
    verifier = make_verifier(MathVerifier())
    before = children(os.getpid())
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: verifier.grade(rf"\boxed{{{n}}}", prompt("7")), range(8)))
    assert set(children(os.getpid())) > set(before)
    verifier.close()
    verifier.close()
    assert children(os.getpid()) == before
    assert verifier.grade(r"\boxed{7}", prompt("7")) == Grade(0.0, "failed", failure="execution")


def test_close_ends_an_answer_under_way():
    verifier = make_verifier(MathVerifier(limit_seconds=60))
    verifier.grade(r"\boxed{7}", prompt("7"))
    threading.Timer(0.5, verifier.close).start()
    started = time.monotonic()
    assert verifier.grade(ENDLESS, prompt("5")) == Grade(0.0, "failed", failure="execution")
    assert time.monotonic() - started < 10


PARENT = r"""
import sys
from ratchet.config import MathVerifier
from ratchet.verifiers import make_verifier
from ratchet.verifiers.base import Prompt
verifier = make_verifier(MathVerifier())
assert verifier.grade(r"\boxed{7}", Prompt(1, (), "7")).correctness == 1
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_process_that_ends_without_closing_leaves_no_worker():
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=-1, stdout=-1)
    process.stdout.readline()
    (worker,) = children(process.pid)
    process.communicate()
    assert process.returncode == 0
    assert is_gone(worker)


def grade_until_killed(answer, is_ready):
    verifier = make_verifier(MathVerifier(limit_seconds=3))
    assert verifier.grade(r"\boxed{7}", prompt("7")) == RIGHT
    is_ready.set()
    if answer:
        verifier.grade(answer, prompt("7"))
    time.sleep(600)


@pytest.mark.parametrize("answer", [None, ENDLESS, ENDLESS_IN_C], ids=["idle", "computing in Python", "computing in C"])
def test_a_killed_process_leaves_no_worker(answer):
    forking = multiprocessing.get_context("fork")
    is_ready = forking.Event()
    process = forking.Process(target=grade_until_killed, args=(answer, is_ready))
    process.start()
    assert is_ready.wait(60)
    time.sleep(0.5)
    (worker,) = children(process.pid)
    process.kill()
    process.join()
    assert is_gone(worker)


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" + r"\frac{1}{2}+" * 8_400 + "1}",
        "$" + r"\alpha+" * 14_300 + "1$",
        r"\boxed{" + r"\sqrt{" * 300 + "2" + "}" * 300 + "}",
        r"\boxed{" + "(" * 900 + "2" + ")" * 900 + "}",
        r"\boxed{" + "x+" * 950 + "1}",
        r"\boxed{" + "9" * 1_990 + "}",
        r"\boxed{" + "9^" * 900 + "9}",
        "9**9**9",
        r"\boxed{9**9**9}",
        r"\boxed{10^{10^{10^{10}}}}",
        r"\boxed{0^{-1}}",
        r"\boxed{\begin{pmatrix}" + "1&" * 600 + r"1\end{pmatrix}}",
        "1" * 200_000,
        "\0\ud800\udfff\N{MINUS SIGN}",
        r"\boxed{\ud800}",
        r'\boxed{__import__("os").system("touch /tmp/owned")}',
    ],
    ids=lambda text: repr(text[:20]),
)
def test_hostile_answers_come_back_within_the_limit_and_are_not_right(verifier, text):
    started = time.monotonic()
    grade = verifier.grade(text, prompt("5"))
    assert grade.correctness == 0
    assert time.monotonic() - started < 30


def test_a_hostile_answer_is_not_executed(verifier, tmp_path):
    target = tmp_path / "owned"
    for text in (f'__import__("pathlib").Path("{target}").touch()', f'open("{target}", "w")'):
        verifier.grade(rf"\boxed{{{text}}}", prompt("5"))
        verifier.grade(text, prompt("5"))
    assert not target.exists()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text() | st.text(st.sampled_from("\\boxed{}frac12sqrtpi+-*/^_()[],=<>$ x.i!|&")).map(r"\boxed{{{}}}".format)
)
def test_any_text_gets_a_grade(verifier, text):
    grade = verifier.grade(text, prompt(r"\frac{1}{2}"))
    assert grade.outcome in ("graded", "unparseable", "failed")
    assert grade.correctness in (0.0, 1.0)


@pytest.mark.parametrize(
    ("ground_truth", "problem"),
    [
        ("7", None),
        (r"\frac{1}{2}", None),
        ("$x^2$", None),
        (r"so \boxed{7}", None),
        ("no solution", None),
        ("", "not an expression"),
        (" ", "not an expression"),
        (r"\frac{1", "not an expression"),
        ("1" * 3_000, "not an expression"),
    ],
)
def test_a_reference_must_be_right_when_given_as_the_answer(verifier, ground_truth, problem):
    said = verifier.check_ground_truth(prompt(ground_truth))
    assert (problem in said) if problem else said is None


def test_an_ungradable_reference_makes_no_answer_wrong(verifier):
    assert verifier.grade(r"\boxed{7}", prompt("")).outcome == "unparseable"


def test_a_worker_that_cannot_start_is_reported_and_not_waited_for(monkeypatch, caplog):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    verifier = make_verifier(MathVerifier())
    started = time.monotonic()
    assert verifier.grade(r"\boxed{7}", prompt("7")) == Grade(0.0, "failed", failure="execution")
    assert "could not start" in verifier.check_ground_truth(prompt("7"))
    assert time.monotonic() - started < 20
    assert "did not start" in caplog.text
    verifier.close()


@pytest.fixture
def ctrl_c_raises():
    """Tests that run side by side ignore Ctrl-C, which is the first process's to understand."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_waiting_does_not_mix_up_the_next_answer(ctrl_c_raises):
    verifier = make_verifier(MathVerifier(limit_seconds=20))
    verifier.grade(r"\boxed{7}", prompt("7"))
    threading.Timer(0.5, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        verifier.grade(ENDLESS, prompt("5"))
    assert verifier.grade(r"\boxed{7}", prompt("7")) == RIGHT
    verifier.close()
