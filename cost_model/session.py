"""Predictions within one task: the prior, checked against what has been measured, plus a model of what it misses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_model.boosting import xgboost
from cost_model.metrics import rank_correlation
from cost_model.prior import Prior

RESIDUAL_ROUNDS = 60
RESIDUAL = {"objective": "reg:squarederror", "max_depth": 5, "eta": 0.12, "lambda": 1.0, "tree_method": "exact"}
MANY = 128
BINNED = {"tree_method": "hist", "max_bin": 64}
"""From so many rows on: exact splits take longer with every row, and are no better than binned ones by then."""

ERRORS = 32
"""So many of the latest predictions say how wrong the next ones may be."""
FAILURE_QUANTILE, FAILURE_PENALTY = 0.9, 0.7
"""A failure counts as this quantile of the measured log times plus this much (a factor of two)."""

EVIDENCE = 6.0
"""Measurements, at the prior's own spread, that weigh as much as what was believed before the first one."""


class SessionModel:
    """Log seconds within one task. ``trusted``: the prior has seen tasks of this kind.

    A prior that has not is not used at all before it agrees with measurements. ``anchor_log_s``: the task's
    roofline log seconds, NaN if unknown. Cheap to refit: tens of milliseconds on one thread.
    """

    def __init__(
        self, prior: Prior | None, *, trusted: bool, anchor_log_s: float = float("nan"), seed: int = 0, threads: int = 1
    ) -> None:
        self._prior, self._trusted, self._anchor_log_s = prior, trusted, anchor_log_s
        self._seed, self._threads = seed, threads
        self._level = 0.0
        self._slope = 1.0 if trusted else 0.0
        self._residual: xgboost.Booster | None = None
        self._columns: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._fitted = False
        self._seen = 0
        self._history: tuple[NDArray[np.float32], NDArray[np.float64]] | None = None
        self._errors: list[float] = []

    @property
    def slope(self) -> float:
        """Of the aligned prior: 1 as it stands, 0 not used."""
        return self._slope

    def fit(self, x: NDArray[np.float32], log_s: NDArray[np.float64]) -> None:
        """x: (n, d) features of all that was tried in this task; log_s: (n,), NaN for failures."""
        measured = np.isfinite(log_s)
        self._look_back(x, log_s)
        self._residual, self._fitted = None, bool(measured.any())
        if not self._fitted:
            return
        slow = float(np.quantile(log_s[measured], FAILURE_QUANTILE)) + FAILURE_PENALTY
        target = np.where(measured, log_s, slow)
        prior = self._prior_of_history(x)
        self._slope = self._aligned_slope(prior, target)
        self._level = float(np.mean(log_s[measured] - self._slope * prior[measured]))
        self._fit_residual(x, prior, target - self._level - self._slope * prior)

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n,) log seconds from (n, d) features; all equal if there is neither a trusted prior nor a measurement."""
        if not self._fitted:
            return self._prior_log_s(x) if self._trusted else np.zeros(len(x))
        prior = self._prior_log_s(x) if self._slope or self._residual is not None else np.zeros(len(x))
        predicted = self._level + self._slope * prior
        if self._residual is not None:
            predicted = predicted + self._residual.inplace_predict(self._residual_inputs(x, prior))
        return predicted

    @property
    def error(self) -> float:
        """Root mean square of what the latest predictions were wrong by, each made before its row was measured, in log
        seconds; NaN before there are any. With a trusted prior only what was faster than predicted counts: explored
        rows are off by far on the slow side, and say nothing of what may still be gained."""
        if not self._errors:
            return float("nan")
        wrong = np.array(self._errors[-ERRORS:])
        return float(np.sqrt(np.mean(np.square(np.minimum(wrong, 0.0) if self._trusted else wrong))))

    def spread(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n,) deviation to expect of log seconds from predictions; NaN before anything was predicted and measured."""
        own = np.zeros(len(x)) if self._prior is None else self._slope * self._prior.disagreement(x)
        return np.hypot(own, self.error)

    def _look_back(self, x: NDArray[np.float32], log_s: NDArray[np.float64]) -> None:
        """Compares what is new with what was predicted; rows are appended, so new ones are at the end."""
        if self._fitted and len(x) > self._seen:
            fresh, seconds = x[self._seen :], log_s[self._seen :]
            wrong = (seconds - self.predict(fresh))[np.isfinite(seconds)]
            self._errors.extend(wrong.tolist())
        self._seen = len(x)

    def _prior_log_s(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.zeros(len(x)) if self._prior is None else self._prior.log_s(x, self._anchor_log_s)

    def _prior_of_history(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """As :meth:`_prior_log_s`; what was asked the last time is not computed again."""
        if self._history is not None:
            old_x, old = self._history
            if np.array_equal(x[: len(old_x)], old_x, equal_nan=True):
                fresh = x[len(old_x) :]
                prior = np.concatenate([old, self._prior_log_s(fresh)]) if len(fresh) else old
                self._history = x, prior
                return prior
        self._history = x, self._prior_log_s(x)
        return self._history[1]

    def _aligned_slope(self, prior: NDArray[np.float64], target: NDArray[np.float64]) -> float:
        """Ridge regression of measured on predicted, towards what was believed, times a shrunk rank correlation.

        Measurements that the prior called alike say little about it, so evidence counts in units of its variance.
        """
        if self._prior is None:
            return 0.0
        belief = 1.0 if self._trusted else 0.0
        variance = self._prior.deviation**2
        p, t = prior - prior.mean(), target - target.mean()
        evidence = float(p @ p) / variance if variance else 0.0
        slope = (EVIDENCE * belief * variance + float(p @ t)) / max(EVIDENCE * variance + float(p @ p), 1e-12)
        agreement = max(rank_correlation(prior, target), 0.0)
        trust = (EVIDENCE * belief + evidence * agreement) / (EVIDENCE + evidence)
        return max(slope, 0.0) * trust

    def _residual_inputs(self, x: NDArray[np.float32], prior: NDArray[np.float64]) -> NDArray[np.float32]:
        return np.column_stack([x[:, self._columns], prior]).astype(np.float32)

    def _fit_residual(self, x: NDArray[np.float32], prior: NDArray[np.float64], residual: NDArray[np.float64]) -> None:
        if len(x) < 4:
            return
        # What does not vary within the task cannot split it, and costs time.
        self._columns = np.flatnonzero((x != x[0]).any(axis=0) & ~np.isnan(x).all(axis=0))
        matrix = xgboost.DMatrix(self._residual_inputs(x, prior), label=residual, nthread=self._threads)
        parameters = RESIDUAL | (BINNED if len(x) > MANY else {}) | {"nthread": self._threads, "seed": self._seed}
        self._residual = xgboost.train(parameters, matrix, num_boost_round=RESIDUAL_ROUNDS)
