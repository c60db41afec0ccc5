"""What grading mathematics costs: seconds for 1,000 answers graded by two threads, as in a run of two worker processes.

``python benchmarks/grading_cost.py [ANSWERS]``. The answers are those of ``tests/data/cases_math.json`` in turn. Every
time through, the numbers in answer and ground truth are raised by one, so that nothing is graded twice. The hostile
ones (towers of powers, factorials of factorials, integrals, 100 kB of LaTeX), of which some take all of their limit,
come the first time alone: 16 in 1,000. The goal is 20 seconds on two free cores, and that no answer takes longer than
its limit and a moment to end its process and start another. On a busy machine look at the processor seconds.
"""

import itertools
import json
import re
import resource
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ratchet.config import MathVerifier
from ratchet.run.records import Grade, Prompt
from ratchet.verifiers import make_verifier

CASES = Path(__file__).parents[1] / "tests" / "data" / "cases_math.json"
QUESTION = ({"role": "user", "content": "?"},)
THREADS = 2
# An answer at its limit has its process killed and the next one's started, which imports sympy.
MOMENT_SECONDS = 2.0
_SMALL_NUMBER = re.compile(r"(?<!\d)\d{1,6}(?!\d)")


def raised(text: str, by: int) -> str:
    return _SMALL_NUMBER.sub(lambda digits: str(int(digits[0]) + by), text)


def answers(count: int) -> list[tuple[str, str, Prompt]]:
    """Return name, answer and prompt of each."""
    rows = json.loads(CASES.read_text(encoding="utf-8"))
    ordinary = [row for row in rows if "failed" not in row.get("outcome_any", ())]
    found = []
    for by in itertools.count():
        for row in ordinary if by else rows:
            if len(found) == count:
                return found
            pieces = row["answer_parts"] if "answer_parts" in row else [row["answer"]]
            text = "".join(piece if isinstance(piece, str) else piece[0] * piece[1] for piece in pieces)
            truth = raised(row["ground_truth"], by)
            found.append((row["name"], raised(text, by), Prompt(len(found) + 1, QUESTION, truth)))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    settings = MathVerifier()
    verifier = make_verifier(settings)
    asked = answers(count)

    def graded(one: tuple[str, str, Prompt]) -> tuple[Grade, float]:
        started = time.perf_counter()
        grade = verifier.grade(one[1], one[2])
        return grade, time.perf_counter() - started

    started = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(graded, asked))
    seconds = time.perf_counter() - started
    verifier.close()

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    times = [took for _, took in found]
    outcomes = {name: sum(grade.outcome == name for grade, _ in found) for name in ("graded", "unparseable", "failed")}
    print(
        f"{count} answers, {THREADS} threads: {seconds:.1f} s, {1e3 * statistics.median(times):.1f} ms in the middle, "
        f"{cpu:.1f} CPU s in the workers"
    )
    print(", ".join(f"{number} {name}" for name, number in outcomes.items()))
    slowest = sorted(zip(times, asked, strict=True), key=lambda pair: -pair[0])[:8]
    print("slowest: " + "; ".join(f"{took:.2f} s {name}" for took, (name, _, _) in slowest))
    limit = settings.limit_seconds
    beyond = sum(took > limit + MOMENT_SECONDS for took in times)
    print(f"longer than the limit of {limit:g} s and {MOMENT_SECONDS:g} s: {beyond}")


if __name__ == "__main__":
    main()
