"""When a search ends before its budget: nothing that is left is expected to be faster by more than can be told."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.interfaces import CostModel, Uncertain
from tuner_daemon.records.measurement import Measurement, Proposal, Timing
from tuner_daemon.records.task import Task

LEAST_FLOOR = 0.0025
"""Relative; the final round does not resolve less either."""

SIGMA_OF_MAD = 1.4826


def why_stop(
    task: Task,
    history: Sequence[Measurement],
    model: CostModel,
    proposals: Sequence[Proposal],
    *,
    batch: int,
    after: int,
) -> str:
    """Why none of the proposals, which carry predictions, is worth measuring; empty if one may be, or if fewer than
    ``after`` were measured, or if the model cannot tell how wrong it is."""
    timings = [row.ran for row in history if isinstance(row.ran, Timing)]
    if not isinstance(model, Uncertain) or len(history) < after or not timings or not proposals:
        return ""
    predicted = np.array([p.predicted_log_s for p in proposals], dtype=np.float64)
    best_log_s = math.log(min(timing.median_s for timing in timings))
    gain = expected_gain(best_log_s, predicted, model.spread(task, [p.config for p in proposals]), batch)
    floor = noise_floor(timings)
    if not gain < floor:  # NaN: nothing known
        return ""
    return (
        f"stopped early: after {len(history)} of {task.spec.budget.measurements} measurements the next {batch} were "
        f"expected to improve on the best by {gain:.2%}, which is below the noise of {floor:.2%}"
    )


def noise_floor(timings: Sequence[Timing]) -> float:
    """Relative error of a median: of the samples' spread, the middle one over candidates with at least five samples."""
    errors = [_relative_error(timing.times_s) for timing in timings if len(timing.times_s) >= 5]
    return max(2.0 * float(np.median(errors)), LEAST_FLOOR) if errors else LEAST_FLOOR


def expected_gain(
    best_log_s: float, predicted_log_s: NDArray[np.floating], spread: NDArray[np.floating], batch: int
) -> float:
    """Relative improvement of the best to expect of the ``batch`` most promising candidates, at most: the sum of their
    expected improvements (Jones et al. 1998), which overlap. NaN where nothing is known of the spread."""
    sigma = np.maximum(spread.astype(np.float64), 1e-9)
    z = (best_log_s - predicted_log_s.astype(np.float64)) / sigma
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1.0 + np.array([math.erf(value / math.sqrt(2.0)) for value in z.tolist()]))
    gains = sigma * (z * below + density)
    return float(np.expm1(np.sort(gains)[::-1][:batch].sum())) if len(gains) else 0.0


def _relative_error(times_s: Sequence[float]) -> float:
    times = np.asarray(times_s)
    median = float(np.median(times))
    deviation = SIGMA_OF_MAD * float(np.median(np.abs(times - median)))
    return 1.2533 * deviation / math.sqrt(len(times)) / median  # of a median of normal samples
