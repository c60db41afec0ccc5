"""Work of an event loop on a thread of its own, whose reports an ordinary generator hands on.

Requests continue while the caller grades the answers, and none is left under way when the caller stops.
"""

import asyncio
import queue
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any, TypeVar

_Report = TypeVar("_Report")
# How long an answer to "stop" takes at most before the work is cancelled.
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class _End:
    error: BaseException | None = None


def in_background(
    work: Callable[[Callable[[_Report], None]], Coroutine[Any, Any, None]], check: Callable[[], None]
) -> Generator[_Report]:
    """Run a coroutine on a thread of its own; yield what it reports, in that order, until it ends.

    However the generator ends, the coroutine has ended before, cancelled if need be, and its thread is gone. Close it
    when you leave early.

    Args:
        work: Makes the coroutine; it is given the function to report with.
        check: Called before every report and while there is none; raises to give up.

    Raises:
        BaseException: what the coroutine or ``check`` raised; of several at once the first.
    """
    reports: queue.SimpleQueue[_Report | _End] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()
    task = loop.create_task(work(reports.put))
    thread = Thread(target=_run, args=(loop, task, reports), name="ratchet-endpoint", daemon=True)
    thread.start()
    try:
        while not isinstance(report := _next(reports, check), _End):
            yield report
        if report.error is not None:
            raise report.error
    finally:
        with suppress(RuntimeError):  # the loop is closed: the work has ended
            loop.call_soon_threadsafe(task.cancel)
        thread.join()


def _next(reports: "queue.SimpleQueue[_Report | _End]", check: Callable[[], None]) -> _Report | _End:
    while True:
        check()
        with suppress(queue.Empty):
            return reports.get(timeout=_POLL_SECONDS)


def _run(
    loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]", reports: "queue.SimpleQueue[_Report | _End]"
) -> None:
    end = _End()
    try:
        loop.run_until_complete(task)
    except asyncio.CancelledError:
        pass  # by whoever takes the reports
    except BaseException as error:
        end = _End(error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        reports.put(end)
