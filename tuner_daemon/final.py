"""The final round: the best few and the baseline, twice, in interleaved blocks on fresh data, until it is clear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.errors import TuningError
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Ran, Timing
from tuner_daemon.verdict import CHOOSE, REPORT, behind, interval, leader

PRECISE = 0.0025  # relative half-width of the reported interval at which more blocks are no use
MOST_HEATS = 12
MOST_DISTURBED = 6  # heats; then the job fails rather than publish

Race = Callable[[Sequence[Artifact], int], list[Ran]]


@dataclass(frozen=True)
class Final:
    """Paired samples of the baseline under two names and of the finalists that stood, equally many each."""

    baseline: Timing
    twin: Timing
    finalists: tuple[Timing, ...]
    disturbed: int  # heats that were dropped and repeated

    def times_s(self) -> NDArray[np.float64]:
        """(finalists, blocks)"""
        return np.array([t.times_s for t in self.finalists]).reshape(len(self.finalists), len(self.baseline.times_s))


def run_final(
    baseline: Artifact,
    finalists: Sequence[Artifact],
    race: Race,
    *,
    blocks: int,
    heats: int,
    may_go_on: Callable[[], bool],
    must_end: Callable[[], bool] = lambda: False,
) -> Final:
    """At least ``blocks`` blocks that were not disturbed, in heats of ``blocks / heats``; more heats while the reported
    interval is wide and ``may_go_on()``. Only the width decides that, never where the interval lies: looking at the
    verdict before stopping would call too many pairs different.

    Once ``must_end()``, it ends with what there is; the verdict knows how little that may be worth.
    After each heat the finalists that are clearly behind, on the blocks that choose, leave. Raises TuningError if the
    baseline fails, or the device does not come to rest.
    """
    size = -(-blocks // heats)
    entrants, results, disturbed = [baseline, baseline, *finalists], list[Ran](), 0
    while True:
        heat = race(entrants, size)
        if any(isinstance(ran, Failure) and ran.outcome is Outcome.DISTURBED for ran in heat[:2]):
            disturbed += 1
            if disturbed > MOST_DISTURBED:
                raise TuningError(f"the device was disturbed throughout the final round: {_detail(heat)}")
            continue
        results = [joined(*pair) for pair in zip(results, heat, strict=True)] if results else heat
        _check_baseline(results[:2])
        staying = _staying(results)
        entrants, results = [entrants[i] for i in staying], [results[i] for i in staying]
        own, twin, *others = (ran for ran in results if isinstance(ran, Timing))
        final = Final(own, twin, tuple(others), disturbed)
        taken = len(own.times_s)
        if must_end() or (taken >= blocks and (taken >= MOST_HEATS * size or is_precise(final) or not may_go_on())):
            return final


def is_precise(final: Final) -> bool:
    """Whether the leader's reported speed-up is known to PRECISE."""
    if not final.finalists:
        return True
    gains = np.log(np.array(final.baseline.times_s) / final.times_s())
    reported = interval(gains[leader(gains[:, CHOOSE]), REPORT])
    return (reported.high - reported.low) / 2 <= PRECISE


def joined(first: Ran, second: Ran) -> Ran:
    """Two heats of one entrant; a failure in either is its result."""
    if isinstance(first, Failure) or isinstance(second, Failure):
        return first if isinstance(first, Failure) else second
    return first.followed_by(second)


def _staying(results: Sequence[Ran]) -> list[int]:
    """Places of the baseline, its twin and those of the others that neither failed nor are clearly behind."""
    alive = [i for i, ran in enumerate(results) if i > 1 and isinstance(ran, Timing)]
    if not alive:
        return [0, 1]
    times_s = np.array([ran.times_s for i in alive if isinstance(ran := results[i], Timing)])
    return [0, 1, *(i for i, lost in zip(alive, behind(times_s), strict=True) if not lost)]


def _check_baseline(results: Sequence[Ran]) -> None:
    for ran in results:
        if isinstance(ran, Failure):
            raise TuningError(f"the baseline failed in the final round: {ran.outcome}: {ran.detail}")


def _detail(heat: Sequence[Ran]) -> str:
    return next(ran.detail for ran in heat if isinstance(ran, Failure))
