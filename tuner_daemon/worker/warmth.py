"""Whether a device has been at work long enough for its clocks to have risen."""

from __future__ import annotations

import time
from collections.abc import Callable


class Warmth:
    """Clocks rise within milliseconds of work and fall when there is none: all work counts, whichever candidate it was
    for, unless a pause came after it."""

    def __init__(self, warm_up_s: float, pause_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._warm_up_s, self._pause_s, self._clock = warm_up_s, pause_s, clock
        self._since = self._until = -float("inf")

    def begin(self) -> None:
        """Work is about to begin."""
        now = self._clock()
        if now - self._until > self._pause_s:
            self._since = now

    def end(self) -> None:
        self._until = self._clock()

    def left_s(self) -> float:
        """How much longer the device has to work."""
        now = self._clock()
        paused = now - self._until > self._pause_s
        return self._warm_up_s if paused else max(0.0, self._since + self._warm_up_s - now)
