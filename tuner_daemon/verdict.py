"""Whether the best found is faster than the baseline, on samples that did not choose it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.result import Verdict

CONFIDENCE = 0.95
SMALLEST_FLOOR = 0.005  # differences under half a per cent are never called real
FEWEST = 6
"""Reported blocks: the median of fewer has no interval of this confidence."""

CHOOSE, REPORT = slice(0, None, 2), slice(1, None, 2)
"""Blocks that choose the winner, and blocks whose times are published."""

TRIM = 0.25
BEYOND_DOUBT = 4.0  # standard errors behind the leader at which a finalist leaves between two heats


@dataclass(frozen=True)
class Interval:
    """A median and its interval between two order statistics: of a distribution of any shape it contains the median
    with at least the confidence asked for, from six samples on (Conover 1999, section 3.2)."""

    median: float
    low: float
    high: float


ONE = Interval(1.0, 1.0, 1.0)


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
    reported_baseline = baseline_s[REPORT]
    floor = noise_floor(baseline_s, twin_s)
    if len(reported_baseline) < FEWEST:
        reason = f"time allowed {len(baseline_s)} blocks of the final round, of which {2 * FEWEST} are needed to decide"
        return _baseline_stands(Verdict.UNDECIDED, reason, reported_baseline, floor)
    if not len(finalists_s):
        return _baseline_stands(Verdict.SAME, "no other configuration gave right results", reported_baseline, floor)
    ratios = np.log(baseline_s / finalists_s)  # (finalists, blocks): positive is faster
    winner = leader(ratios[:, CHOOSE])
    gain = interval(ratios[winner, REPORT])
    speedup = Interval(*(float(np.exp(x)) for x in (gain.median, gain.low, gain.high)))
    if gain.low <= 0 or gain.median <= floor:
        same = abs(gain.low) <= floor and abs(gain.high) <= floor
        verdict = Verdict.SAME if same or gain.high <= 0 else Verdict.UNDECIDED
        return _baseline_stands(verdict, _why_not(verdict, speedup, floor), reported_baseline, floor)
    versus = [interval(ratios[winner, REPORT] - row[REPORT]) for row in ratios]
    ties = tuple(i for i, v in enumerate(versus) if i != winner and (v.low <= 0 or v.median <= floor))
    return Judgement(
        Verdict.FASTER,
        f"{speedup.median:.2f}x the baseline, {CONFIDENCE:.0%} interval {speedup.low:.2f} to {speedup.high:.2f}, "
        f"on {len(reported_baseline)} blocks that did not choose it",
        winner,
        speedup,
        interval(finalists_s[winner, REPORT]),
        interval(reported_baseline),
        ties,
        floor,
    )


def differs(a_s: NDArray[np.float64], b_s: NDArray[np.float64], floor: float) -> bool:
    """Whether paired samples (n,) of two configurations are told apart, in either direction."""
    gain = interval(np.log(a_s / b_s))
    return abs(gain.median) > floor and (gain.low > 0 or gain.high < 0)


def leader(gains: NDArray[np.float64]) -> int:
    """Which of (n, blocks) log speed-ups is best: the mean of the middle half, which is as safe from outliers as a
    median needs to be and wastes fewer samples."""
    return int(np.argmax(_middle(gains)))


def behind(times_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(n,) which of (n, blocks) paired times are slower than the leader's beyond doubt, on the blocks that choose."""
    logs = np.log(times_s[:, CHOOSE])
    lags = logs - logs[int(np.argmin(_middle(logs)))]
    n = lags.shape[1]
    cut = int(TRIM * n)
    kept = np.clip(np.sort(lags, axis=1), *np.quantile(lags, [TRIM, 1 - TRIM], axis=1)[:, :, None])  # winsorized
    # Standard error of a trimmed mean (Tukey & McLaughlin 1963).
    error = kept.std(axis=1, ddof=1) / ((1 - 2 * TRIM) * np.sqrt(n)) if n > 2 * cut + 1 else np.full(len(lags), np.inf)
    slower: NDArray[np.bool_] = _middle(lags) > BEYOND_DOUBT * error + SMALLEST_FLOOR
    return slower


def _middle(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """Trimmed means along the last axis."""
    cut = int(TRIM * samples.shape[-1])
    means: NDArray[np.float64] = np.sort(samples, axis=-1)[..., cut : samples.shape[-1] - cut].mean(axis=-1)
    return means


def noise_floor(a_s: NDArray[np.float64], b_s: NDArray[np.float64]) -> float:
    """Relative difference that the same binary shows against itself, as the far end of its interval."""
    twin = interval(np.log(a_s / b_s))
    return max(SMALLEST_FLOOR, abs(twin.low), abs(twin.high))


def interval(samples: NDArray[np.float64]) -> Interval:
    """Median of (n,) samples with its interval; of fewer than six, all there is to see."""
    ordered, rank = np.sort(samples), _rank(len(samples))
    return Interval(float(np.median(ordered)), float(ordered[rank]), float(ordered[len(ordered) - 1 - rank]))


@cache
def _rank(n: int) -> int:
    """How many samples may be left out at either end."""
    below, rank = 0.5**n, 0
    while below + math.comb(n, rank + 1) * 0.5**n <= (1 - CONFIDENCE) / 2:
        rank += 1
        below += math.comb(n, rank) * 0.5**n
    return rank


def _baseline_stands(verdict: Verdict, reason: str, baseline_s: NDArray[np.float64], floor: float) -> Judgement:
    own = interval(baseline_s)
    return Judgement(verdict, reason, None, ONE, own, own, (), floor)


def _why_not(verdict: Verdict, speedup: Interval, floor: float) -> str:
    seen = f"the best candidate re-measured at {speedup.median:.3f}x ({speedup.low:.3f} to {speedup.high:.3f})"
    if verdict is Verdict.SAME:
        return f"{seen}: not faster than the baseline (noise floor {floor:.1%})"
    return f"{seen}: cannot be told from the baseline (noise floor {floor:.1%}); the baseline is published"
