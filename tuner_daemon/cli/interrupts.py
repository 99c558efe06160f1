"""Ctrl-C in the foreground: the first one ends the work in order, the second one ends it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tuner_daemon.errors import JobInterruptedError

NUMBERS = (signal.SIGINT, signal.SIGTERM)
_HINT = b"\ntunerd: stopping when the candidate that runs now has been measured; once more ends at once\n"


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """The event that the first SIGINT or SIGTERM sets; the second raises JobInterruptedError in the block."""
    stop = threading.Event()

    def handle(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        os.write(2, _HINT)  # print() may be at work in the code that this interrupts

    before = {number: signal.signal(number, handle) for number in NUMBERS}
    try:
        yield stop
    except KeyboardInterrupt as error:
        raise JobInterruptedError("ended at once; the batch that was being measured is not in the log") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
