"""What a candidate's time was spent on."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

Note = Callable[[int, str], None]
"""Called with the candidate's number and what is about to be done to it."""


class Stages:
    """Passes on what is about to be done, and keeps how long each took. Stages that differ only in what follows a colon
    are one."""

    def __init__(self, note: Note, clock: Callable[[], float] = time.perf_counter) -> None:
        self._note, self._clock = note, clock
        self._stage, self._began_s = "", 0.0
        self._spent_s: defaultdict[str, float] = defaultdict(float)

    def __call__(self, candidate: int, stage: str) -> None:
        self._end()
        self._stage, self._began_s = stage.partition(":")[0], self._clock()
        self._note(candidate, stage)

    def spent_s(self) -> dict[str, float]:
        """Seconds by stage, up to now."""
        self._end()
        return {stage.replace(" ", "_"): spent_s for stage, spent_s in self._spent_s.items()}

    def _end(self) -> None:
        if self._stage:
            now_s = self._clock()
            self._spent_s[self._stage] += now_s - self._began_s
            self._began_s = now_s
