"""Whether the best found is faster than the baseline, on samples that did not choose it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.result import Verdict

RESAMPLES = 2000
CONFIDENCE = 0.95
SMALLEST_FLOOR = 0.005  # differences under half a per cent are never called real


@dataclass(frozen=True)
class Interval:
    """A median and its bootstrap percentile interval (Efron & Tibshirani 1993, ch. 13)."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Judgement:
    """``winner`` and ``ties`` are positions in the finalists; None where the baseline itself stands."""

    verdict: Verdict
    reason: str
    winner: int | None
    speedup: Interval
    winner_s: Interval
    baseline_s: Interval
    ties: tuple[int, ...]
    noise_floor: float


def judge(baseline_s: NDArray[np.float64], twin_s: NDArray[np.float64], finalists_s: NDArray[np.float64]) -> Judgement:
    """Judges interleaved, paired samples.

    baseline_s, twin_s: (blocks,) seconds of the baseline under two names: their spread is the noise floor.
    finalists_s: (finalists, blocks) seconds. The winner is chosen on even blocks and reported on odd ones, since
    the best of many is otherwise overstated (winner's curse).
    """
    choose, report = slice(0, None, 2), slice(1, None, 2)
    reported_baseline = baseline_s[report]
    floor = noise_floor(baseline_s, twin_s)
    if not len(finalists_s):
        return _baseline_stands(Verdict.SAME, "no other configuration gave right results", reported_baseline, floor)
    ratios = np.log(baseline_s / finalists_s)  # (finalists, blocks): positive is faster
    winner = int(np.argmax(np.median(ratios[:, choose], axis=1)))
    gain = interval(ratios[winner, report])
    speedup = Interval(*(float(np.exp(x)) for x in (gain.median, gain.low, gain.high)))
    if gain.low <= 0 or gain.median <= floor:
        same = abs(gain.low) <= floor and abs(gain.high) <= floor
        verdict = Verdict.SAME if same or gain.high <= 0 else Verdict.UNDECIDED
        return _baseline_stands(verdict, _why_not(verdict, speedup, floor), reported_baseline, floor)
    versus = [interval(ratios[winner, report] - row[report]) for row in ratios]
    ties = tuple(i for i, v in enumerate(versus) if i != winner and (v.low <= 0 or v.median <= floor))
    return Judgement(
        Verdict.FASTER,
        f"{speedup.median:.2f}x the baseline, {CONFIDENCE:.0%} interval {speedup.low:.2f} to {speedup.high:.2f}, "
        f"on {len(reported_baseline)} blocks that did not choose it",
        winner,
        speedup,
        interval(finalists_s[winner, report]),
        interval(reported_baseline),
        ties,
        floor,
    )


def noise_floor(a_s: NDArray[np.float64], b_s: NDArray[np.float64]) -> float:
    """Relative difference that the same binary shows against itself, as the far end of its interval."""
    twin = interval(np.log(a_s / b_s))
    return max(SMALLEST_FLOOR, abs(twin.low), abs(twin.high))


def interval(samples: NDArray[np.float64]) -> Interval:
    """Median of (n,) samples with its percentile bootstrap interval; the resampling is seeded."""
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(samples), size=(RESAMPLES, len(samples)))
    medians = np.median(samples[picks], axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(np.median(samples)), float(low), float(high))


def _baseline_stands(verdict: Verdict, reason: str, baseline_s: NDArray[np.float64], floor: float) -> Judgement:
    own = interval(baseline_s)
    return Judgement(verdict, reason, None, Interval(1.0, 1.0, 1.0), own, own, (), floor)


def _why_not(verdict: Verdict, speedup: Interval, floor: float) -> str:
    seen = f"the best candidate re-measured at {speedup.median:.3f}x ({speedup.low:.3f} to {speedup.high:.3f})"
    if verdict is Verdict.SAME:
        return f"{seen}: not faster than the baseline (noise floor {floor:.1%})"
    return f"{seen}: cannot be told from the baseline (noise floor {floor:.1%}); the baseline is published"
