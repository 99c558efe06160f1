"""How well predicted times order configurations."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """(n,) ranks from 0, ties averaged."""
    _, inverse, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    averaged: NDArray[np.float64] = (last - (counts + 1) / 2.0)[inverse]
    return averaged


def rank_correlation(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Spearman's rho; 0 where either side is constant or has fewer than two values."""
    a, b = ranks(predicted), ranks(measured)
    if a.size < 2 or a.std() == 0.0 or b.std() == 0.0:
        return 0.0
    return float(np.mean((a - a.mean()) * (b - b.mean())) / (a.std() * b.std()))


def top_k_regret(predicted_log_s: ArrayLike, measured_log_s: ArrayLike, k: int) -> float:
    """Relative loss of measuring only the k predicted to be fastest: 0 where the best is among them.

    ``measured_log_s`` is NaN for a configuration that failed; inf is returned if all of the k failed.
    """
    predicted, measured = np.asarray(predicted_log_s, dtype=np.float64), np.asarray(measured_log_s, dtype=np.float64)
    chosen = measured[np.argsort(predicted, kind="stable")[:k]]
    if np.isnan(chosen).all():
        return float("inf")
    return float(np.expm1(np.nanmin(chosen) - np.nanmin(measured)))
