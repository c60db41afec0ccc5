"""What a code run costs: wall and processor time of one sandbox with a right program in it, median and mean of 20.

python benchmarks/code_cost.py
"""

import resource
import statistics
import time

from ratchet.sandbox.code_run import CodeRunner
from ratchet.sandbox.code_tests import read_tests

RUNS = 20
SUM, ADD = "print(sum(map(int, input().split())))", "def add(a, b): return a + b"
CASES = [
    ("input/output, 1 case", SUM, [{"input": "1 2", "output": "3"}]),
    ("input/output, 20 cases", SUM, [{"input": f"{n} 2", "output": f"{n + 2}"} for n in range(20)]),
    ("3 assertions", ADD, [f"assert add({n}, 3) == {n + 3}" for n in range(3)]),
    ("50 assertions", ADD, [f"assert add({n}, 3) == {n + 3}" for n in range(50)]),
]


def inside_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    runner = CodeRunner()
    for name, program, given in CASES:
        tests, wall = read_tests(given), []
        runner.run(program, tests)
        inside, host = inside_seconds(), time.process_time()
        for _ in range(RUNS):
            started = time.perf_counter()
            result = runner.run(program, tests)
            wall.append(time.perf_counter() - started)
            assert set(result.statuses) == {"passed"}
        inside, host = (inside_seconds() - inside) / RUNS, (time.process_time() - host) / RUNS
        times = f"{1e3 * statistics.median(wall):4.0f} ms, processor {1e3 * inside:4.0f} ms inside"
        print(f"{name:24} {times}, {1e3 * host:.1f} ms host")


if __name__ == "__main__":
    main()
