"""The pool: what it takes, what it refuses, and that a metric or an answer can spoil nothing but its own score."""

import sys
import textwrap
import threading
import time

import pytest

from ratchet.errors import MetricRefused, SandboxUnavailable
from ratchet.sandbox import metric_pool
from ratchet.sandbox.metric_process import MetricScore

EQUAL = "def score(answer, reference):\n    return 1.0 if answer == reference else 0.0\n"


def graded(pool, body, answer="a", reference="b"):
    return pool_source(pool, body).score(answer, reference)


def pool_source(pool_of, body, **limits):
    text = textwrap.indent(textwrap.dedent(body), "    ")
    return pool_of(f"import ctypes, os, signal, sys, time\ndef score(answer, reference):\n{text}\n", **limits)


@pytest.mark.parametrize(
    "text",
    ["", "\0", "\ud800 alone", 'quote " and \\ and \n line \r\n', "\u2028", "é😀", "x" * 1_000_000, "😀" * 100_000],
    ids=["empty", "nul", "surrogate", "quotes and lines", "separator", "wide", "longest", "wide and long"],
)
def test_any_text_arrives_as_it_is(text, pool_of):
    pool = pool_of(EQUAL, answer_seconds=10.0)
    reference = text[:32_000]
    assert pool.score(reference, reference) == MetricScore(1.0)
    assert pool.score(text, "other") == MetricScore(0.0)
    body = "return len(answer) / 2_000_000 if answer.count(answer[:1]) == len(answer) else 0.5"
    if text.startswith(("x", "😀")):
        assert graded_long(pool_of, body, text) == len(text) / 2_000_000


def graded_long(pool_of, body, text):
    return pool_source(pool_of, body, answer_seconds=10.0).score(text, "").value


def test_texts_over_the_limit_fail_with_the_numbers(pool_of):
    pool = pool_of(EQUAL)
    long = pool.score("x" * 5_000_000, "")
    assert (long.failure, long.detail) == ("memory", "the answer has 5,000,000 characters; the limit is 1,000,000")
    assert pool.score("", "x" * 32_001).failure == "memory"
    assert pool.score("x" * 1_000_000, "x" * 32_000) == MetricScore(0.0)


@pytest.mark.parametrize(("returned", "value"), [("1", 1.0), ("0", 0.0), ("0.25", 0.25), ("1e-320", 1e-320)])
def test_a_number_from_0_to_1_is_the_score(returned, value, pool_of):
    assert graded(pool_of, f"return {returned}") == MetricScore(value)


@pytest.mark.parametrize(
    ("returned", "detail"),
    [
        ("float('nan')", "score returned nan, not a number from 0 to 1"),
        ("float('inf')", "score returned inf, not a number from 0 to 1"),
        ("None", "score returned NoneType, not a number from 0 to 1"),
        ("[0.5]", "score returned list, not a number from 0 to 1"),
        ("0.5j", "score returned complex, not a number from 0 to 1"),
        ("-1e-9", "score returned -1e-09, not a number from 0 to 1"),
        ("2", "score returned 2, not a number from 0 to 1"),
        ("-(10 ** 5000)", "score returned a huge number, not a number from 0 to 1"),
        ("answer", "score returned str, not a number from 0 to 1"),
    ],
)
def test_anything_else_is_a_failure_that_says_what_it_was(returned, detail, pool_of):
    assert graded(pool_of, f"return {returned}", "secret answer") == MetricScore(None, "result", detail)


def test_a_float_that_lies_is_no_number(pool_of):
    body = """
        class Liar(float):
            def __le__(self, other): return True
            def __ge__(self, other): return True
            def __repr__(self): return "1.0"
            def __float__(self): return 1.0
        return Liar(7.0)
    """
    assert graded(pool_of, body) == MetricScore(None, "result", "score returned Liar, not a number from 0 to 1")


def test_numpys_numbers_count_as_pythons(pool_of, metric_environment, monkeypatch):
    monkeypatch.setenv("RATCHET_METRIC_ENV", str(metric_environment))
    pool = pool_of("import numpy\ndef score(answer, reference):\n    return eval(answer)\n", load_seconds=60.0)
    returned = ["numpy.float64(0.5)", "numpy.float32(0.5)", "numpy.int64(1)", "numpy.bool_(True)", "numpy.ones(1)"]
    found = pool.score_many([(text, "") for text in returned])
    assert [score.value for score in found] == [0.5, 0.5, 1.0, None, None]
    assert {score.failure for score in found[3:]} == {"result"}


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("sum(range(10**13))", "time"),
        ("for n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass", "time"),
        ("signal.pause()", "time"),
        ("while True: os.write(2, b'x' * 1000)", "output"),
        ("os.write(1, b'x' * 70_000)\nreturn 1.0", "output"),
        ("print('x' * 70_000)\nreturn 1.0", "output"),
        ("os._exit(0)", "execution"),
        ("ctypes.string_at(0)", "execution"),
        ("os.kill(os.getpid(), 9)", "execution"),
        ("os.kill(-1, 9)\ntime.sleep(30)", "execution"),
        ("return len('x' * (1 << 30))", "memory"),
        ("os.close(3)\nwhile True: pass", "execution"),
        ("os.kill(1, 2)\nos.kill(os.getppid(), 2)\ntime.sleep(0.5)\nraise ValueError", "execution"),
        ("os.write(3, b'value 1.0\\n')\nreturn 0.5", "result"),
        ("os.write(3, b'value 1.0\\nvalue 1.0\\n')\nos._exit(0)", "result"),
        ("os.write(3, b'value 1.5\\n')\nos._exit(0)", "result"),
        ("os.write(3, b'value nan\\n')\nos._exit(0)", "result"),
        ("os.write(3, b'{\"value\": 1.0}\\n')\nos._exit(0)", "result"),
        ("while True: os.write(3, b'value 1.0\\n' * 100)", "result"),
        ("os.write(3, b'failure money \\n')\nos._exit(0)", "execution"),
        ("class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E", "execution"),
    ],
)  # fmt: skip
def test_what_a_metric_may_do_ends_as_its_own_failure(body, failure, pool_of):
    pool = pool_source(pool_of, f"if answer != 'BAD':\n    return 1.0\n{body}")
    found = pool.score_many([("BAD" if number == 3 else "fine", "") for number in range(8)])
    assert [score.value for number, score in enumerate(found) if number != 3] == [1.0] * 7
    assert (found[3].value, found[3].failure) == (None, failure)


def test_a_failures_text_never_holds_the_exceptions_words(pool_of):
    found = graded(pool_of, "raise ValueError(answer * 1000)", "secret ")
    assert found == MetricScore(None, "execution", "ValueError on line 3 of the metric")


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ("raise type(answer, (Exception,), {})", MetricScore(None, "execution", "an object on line 3 of the metric")),
        ("return type(answer, (), {})()", MetricScore(None, "result", "score returned an object, not a number from 0 to 1")),
    ],
)  # fmt: skip
def test_a_class_that_is_named_by_the_answer_is_not(pool_of, body, failure):
    for answer in ("secret words", "\x1b[31m", "secret" * 20):
        assert graded(pool_of, body, answer) == failure


def test_every_answer_meets_the_metric_as_it_was_loaded(pool_of):
    source = """
        calls = []
        def score(answer, reference):
            calls.append(answer)
            if len(calls) > 1 or 'fine' in globals():
                return 0.0
            globals()['fine'] = 1
            import builtins, json
            builtins.len = lambda x: 99
            json.dumps = None
            return 1.0
    """
    pool = pool_of(textwrap.dedent(source), workers=2)
    assert {score.value for score in pool.score_many([(str(n), "") for n in range(40)])} == {1.0}


def test_scores_keep_their_order_from_many_threads(pool_of):
    pool = pool_of("def score(answer, reference):\n    return int(answer) / 1000\n", workers=2)
    found = {}

    def ask(first):
        for number in range(first, first + 20):
            found[number] = pool.score(str(number), "").value

    threads = [threading.Thread(target=ask, args=(20 * n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: number / 1000 for number in range(120)}
    assert [s.value for s in pool.score_many([(str(n), "") for n in range(100)])] == [n / 1000 for n in range(100)]


def test_a_hung_answer_holds_up_nobody_but_itself(pool_of):
    pool = pool_of("def score(answer, reference):\n    while answer == 'BAD': pass\n    return 1.0\n", workers=2)
    pool.score_many([("fine", "")] * 16)
    started = time.monotonic()
    found = pool.score_many([("BAD" if number % 10 == 0 else "fine", "") for number in range(40)])
    assert [score.failure for score in found] == [("time" if number % 10 == 0 else None) for number in range(40)]
    assert time.monotonic() - started < 4 * 1.0 + 20.0


def test_a_process_that_stops_listening_is_replaced_and_only_one_answer_is_lost(pool_of):
    # At load time a metric's author has the process itself: a timer that ends it in the middle of a batch.
    source = """
        import os, signal, time
        def score(answer, reference):
            time.sleep(0.02)
            return 1.0
        def end(*_):
            os.kill(os.getpid(), signal.SIGSEGV)
        signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    """
    pool = pool_of(textwrap.dedent(source))
    found = pool.score_many([("a", "")] * 24)
    failed = [score for score in found if score.failure]
    assert {score.failure for score in failed} == {"execution"}
    assert 1 <= len(failed) <= 12
    assert {score.value for score in found if not score.failure} == {1.0}


def test_a_process_that_falls_silent_is_ended_one_second_after_the_limit(pool_of):
    source = """
        import os, signal
        def score(answer, reference):
            return 1.0
        real = os.wait4
        def wait4(*arguments):
            if os.path.exists("/w.py") and silent.pop():
                signal.pause()
            return real(*arguments)
        silent = [False, False, True, False]
        os.wait4 = wait4
    """
    pool = pool_of(textwrap.dedent(source), answer_seconds=0.5)
    started = time.monotonic()
    found = pool.score_many([("a", "")] * 3)
    assert [score.failure for score in found] == [None, "time", None]
    assert 1.5 <= time.monotonic() - started < 1.5 + 20.0


@pytest.mark.parametrize(
    "line",
    [
        '{"batch": 1, "index": 0, "value": 1.0}',
        '{"batch": 1, "index": 2, "value": 1.0}',
        '{"batch": 1, "index": 1, "value": true}',
        '{"batch": 1, "index": 1, "value": NaN}',
        '{"batch": 1, "index": 1, "value": "1"}',
        '{"batch": 1, "index": 1, "value": 1.0, "more": 1}',
        '{"batch": 1, "index": true, "value": 1.0}',
        "[1]",
        "[" * 9000,
        "no json",
    ],
)
def test_a_reply_of_another_form_is_not_believed(line, pool_of):
    # The process that holds the metric is its author's: here it answers for itself.
    source = f"""
        import json
        real, count = json.dumps, [0]
        class Line(str):
            def encode(self): return {line!r}.encode()
        def dumps(message):
            if "value" not in message or message["index"] != 1 or message["batch"] != 1:
                return real(message)
            return Line()
        json.dumps = dumps
        def score(answer, reference): return 0.5
    """
    pool = pool_of(textwrap.dedent(source))
    found = pool.score_many([("a", "")] * 3)
    assert [score.value for score in found] == [0.5, None, 0.5]
    assert found[1].failure == "execution"


REFUSED = {
    "def score(answer): return 1": "its score(answer) cannot be called with (answer, reference).",
    "def score(a, b, c): return 1": "its score(a, b, c) cannot be called with (answer, reference).",
    "async def score(a, b): return 1": "its score is async; make it a plain function that returns a number.",
    "def score(a, b): yield 1": "its score yields; make it a plain function that returns a number.",
    "score = 1": "its score is int, not a function of (answer, reference).",
    "raise ValueError('two\\nlines')": "loading it raised ValueError on line 1 of the metric: two lines.",
    "import absent_module": "it needs the module absent_module, which is not there; put packages for metrics into the "
    "folder that RATCHET_METRIC_ENV names.",
    "import sys\nsys.exit(0)": "loading it raised SystemExit on line 2 of the metric: 0.",
    "print('x' * 100_000)": "it printed more than 64 KB while loading.",
    "while True: print('x' * 1000)": "it printed more than 64 KB while loading.",
    "import os\nos.fork()": "loading it raised BlockingIOError on line 2 of the metric: [Errno 11] Resource temporarily "
    "unavailable.",
    "import os\nos.write(3, b'value 1\\n' * 2)\ndef score(a, b): return 1": "it wrote where only results go while "
    "loading.",
    # What is forged in the trial of the load does not make it load.
    "import os\nif os.getpid() > 1: os.write(3, b'value 1\\n')\nos._exit(0)": "it ended the process while loading.",
    "x = '\0'": "it does not compile: source code string cannot contain null bytes.",
    "x" * 32_001: "its source has 32,001 characters; the limit is 32,000.",
}


@pytest.mark.parametrize("source", REFUSED, ids=range(len(REFUSED)))
def test_a_metric_that_cannot_be_used_is_refused_in_one_sentence(source, pool_of):
    with pytest.raises(MetricRefused) as caught:
        pool_of(source).check()
    assert str(caught.value) == f"Metric tested version 3 is refused: {REFUSED[source]}"


def test_a_metric_cannot_say_of_itself_that_it_was_loaded(pool_of):
    source = """
        import os, time
        if os.getpid() == 1:
            for fd in range(4, 64):
                try: os.write(fd, b'{"loaded": true}\\n')
                except OSError: pass
            time.sleep(60)
        def score(answer, reference): return 1.0
    """
    with pytest.raises(MetricRefused, match="took longer than 1 s to load"):
        pool_of(textwrap.dedent(source), load_seconds=1.0).check()


@pytest.mark.parametrize(
    "source",
    [
        EQUAL,
        "class Score:\n    def __call__(self, answer, reference):\n        return 1\nscore = Score()\n",
        "score = lambda answer, reference, extra=1: 1\n",
        "def score(*texts):\n    return 1\n",
        "import functools\ndef of(kind, answer, reference):\n    return 1\nscore = functools.partial(of, 'kind')\n",
    ],
)
def test_a_function_of_two_texts_is_accepted(source, pool_of):
    pool = pool_of(source)
    pool.check()
    assert pool.score("a", "a") == MetricScore(1.0)


def test_a_metric_that_does_not_load_fails_its_answers_by_that_kind(pool_of):
    found = pool_of("import absent_module\n").score_many([("a", "b")] * 3)
    assert found == [MetricScore(None, "load", "loading it raised ModuleNotFoundError on line 1 of the metric")] * 3


def test_a_machine_that_stops_working_is_not_counted_against_the_metric(pool_of, monkeypatch):
    pool = pool_of("import os\ndef score(answer, reference):\n    return 1.0\n")
    assert pool.score("a", "b") == MetricScore(1.0)
    assert pool.engine == "bubblewrap"

    def cannot_start(*_, **__):
        raise SandboxUnavailable("No space left.", "Free some.")

    pool._choose()[1]._pool._state._running.copy().pop().stop()
    monkeypatch.setattr(metric_pool, "MetricProcess", cannot_start)
    failed = pool.score("a", "b")  # the process was ended under this one
    assert failed.failure == "execution"
    for _ in range(2):
        with pytest.raises(SandboxUnavailable, match="No space left"):
            pool.score("a", "b")


def test_restarts_cost_an_answer_each(pool_of, monkeypatch):
    starts = []
    real = metric_pool.MetricProcess
    monkeypatch.setattr(metric_pool, "MetricProcess", lambda *a, **k: starts.append(1) or real(*a, **k))
    # The process ends at its first answer, since what a child is forked with was broken at load time.
    pool = pool_of("import os\nos.wait4 = lambda *_: os._exit(1)\ndef score(answer, reference):\n    return 1.0\n")
    found = pool.score_many([("a", "b")] * 5)
    assert [score.failure for score in found] == ["execution"] * 5
    assert len(starts) == 5


def test_the_trainers_python_is_not_the_sandboxes(pool_of):
    found = graded(
        pool_of, f"return 1.0 if sys.executable.startswith('/usr/') and {sys.prefix!r} not in sys.path else 0.0"
    )
    assert found == MetricScore(1.0)
