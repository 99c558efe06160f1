"""How many samples a candidate is worth: successive halving (Jamieson & Talwalkar 2016) against a time to beat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

DOUBT = 0.0625
"""Probability with which a median is allowed to lie below the lower end that is compared."""


def sampled(
    sample: Callable[[int], float],
    steps: Sequence[int],
    *,
    drop_above_s: float = math.inf,
    beat_s: float = math.inf,
    may_go_on: Callable[[], bool] = lambda: True,
) -> list[float]:
    """Samples, in order: one if it is above ``drop_above_s``; then as many as the next of ``steps``, as long as the
    median may be at most ``beat_s``. ``sample`` is called with the number of the sample."""
    times_s = [sample(0)]
    if times_s[0] > drop_above_s:
        return times_s
    for step in steps:
        while len(times_s) < step:
            if not may_go_on():
                return times_s
            times_s.append(sample(len(times_s)))
        if lower_end(times_s) > beat_s:
            break
    return times_s


def lower_end(times_s: Sequence[float]) -> float:
    """The largest order statistic that the median is below with probability DOUBT at most (at least the smallest
    sample); no shape of the distribution is assumed."""
    n, below, rank = len(times_s), 0.5 ** len(times_s), 0
    while below + math.comb(n, rank + 1) * 0.5**n <= DOUBT:
        rank += 1
        below += math.comb(n, rank) * 0.5**n
    return sorted(times_s)[rank]
