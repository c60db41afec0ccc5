"""What grading with a metric of the user's own costs: processor seconds of 4,000 answers, sandbox included.

``python benchmarks/metric_cost.py [ANSWERS]``. Counts this process and all that the pool started, in total and without
the start of the sandboxes, and prints the wall time beside it. The goal is 6 CPU seconds for 4,000 answers.
"""

import resource
import sys
import time

from ratchet.sandbox.metric_pool import SandboxPool
from ratchet.sandbox.metric_process import MetricLimits, MetricSource

SOURCE = """
import re

def score(answer, reference):
    numbers = re.findall(r"-?\\d+(?:\\.\\d+)?", answer)
    return 1.0 if numbers and abs(float(numbers[-1]) - float(reference)) < 1e-6 else 0.0
"""
ANSWER = "First we add the numbers in each pair, then we multiply the sums. " * 8 + "The result is {}."


def cpu_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def main() -> None:
    answers = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    own, children = cpu_seconds(resource.RUSAGE_SELF), cpu_seconds(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    pool = SandboxPool(MetricSource(SOURCE), MetricLimits(), workers=2)
    scores = pool.score_many([(ANSWER.format(number), str(number)) for number in range(answers)])
    seconds = time.perf_counter() - started
    pool.close()
    own = cpu_seconds(resource.RUSAGE_SELF) - own
    children = cpu_seconds(resource.RUSAGE_CHILDREN) - children
    right = sum(score.value == 1.0 for score in scores)
    print(
        f"{answers} answers, {right} right: {own + children:.2f} CPU s "
        f"({own:.2f} here, {children:.2f} in the sandboxes), "
        f"{1000 * (own + children) / answers:.2f} ms an answer, {seconds:.2f} s on the clock"
    )


if __name__ == "__main__":
    main()
