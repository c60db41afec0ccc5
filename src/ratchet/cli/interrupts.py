"""Ctrl-C for commands that only follow what others do: heard at their next pause, and never lost."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_MOST_SECONDS_UNHEARD = 0.1


@contextmanager
def interruptible() -> Iterator[Callable[[float], None]]:
    """Yield a pause of so many seconds, which raises KeyboardInterrupt once Ctrl-C was pressed inside the block.

    Python would raise it wherever the program is: in the middle of loading a library, which is broken from then on, or
    in a callback of the garbage collector, where it is printed and forgotten. A second Ctrl-C is raised at once.
    """
    is_pressed = False  # no Event: its lock may be held by what the signal interrupts

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal is_pressed
        if is_pressed:
            raise KeyboardInterrupt
        is_pressed = True

    def pause(seconds: float) -> None:
        end = time.monotonic() + seconds
        while not is_pressed and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _MOST_SECONDS_UNHEARD))
        if is_pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield pause
    finally:
        signal.signal(signal.SIGINT, before)
