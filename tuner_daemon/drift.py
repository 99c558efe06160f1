"""The baseline's time as it drifts: re-timed now and then, and known in between.

A device changes by a few per cent while it warms up or shares its power. What is compared within a job is therefore the
ratio of a candidate's time to what the baseline took at that moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WINDOW = 64  # re-timings that are looked at; older ones say nothing of now
_STEPS = (0.0, *np.geomspace(1e-8, 1e-3, 11))
"""Candidates for the variance, in log seconds squared, that drift gains between two re-timings."""

_VAGUE = 1.0  # prior variance of the level
_MEDIAN_VARIANCE = math.pi / 2  # of a median of n normal samples, in units of that of their mean
_LEAST_NOISE = 1e-4  # relative; clocks are no better


@dataclass
class Track:
    """Log seconds of the baseline over time: Brownian drift seen through noise (Rasmussen & Williams 2006, ch. 2), its
    rate by maximum likelihood (ch. 5). So noisy re-timings are averaged, and drift that stands out is followed."""

    at_s: list[float] = field(default_factory=list)
    samples: list[tuple[float, ...]] = field(default_factory=list)  # seconds
    _weights: Floats | None = None
    _rate: float = 0.0
    _level: float = 0.0
    _now_s: float = 0.0

    def add(self, at_s: float, times_s: Sequence[float]) -> None:
        """``times_s``: samples taken around ``at_s``, which does not decrease from call to call."""
        self.at_s.append(at_s)
        self.samples.append(tuple(times_s))
        self._weights = None

    def __len__(self) -> int:
        return len(self.at_s)

    def seconds(self, at_s: Floats | Sequence[float]) -> Floats:
        """The baseline's time at each of (n,) moments: interpolated, and constant beyond the ends."""
        if self._weights is None:
            self._fit()
        known = np.array(self.at_s[-WINDOW:])
        asked = np.clip(np.asarray(at_s, dtype=np.float64), known[0], known[-1])
        covariance = _VAGUE + self._rate * (np.minimum(asked[:, None], known) - known[0])
        seconds: Floats = np.exp(self._level + covariance @ self._weights)
        return seconds

    def now_s(self) -> float:
        """The baseline's time at the last re-timing."""
        if self._weights is None:
            self._fit()
        return self._now_s

    @cached_property
    def first_s(self) -> float:
        return float(np.median(self.samples[0]))

    @property
    def jump(self) -> float:
        """Relative change between the last two re-timings."""
        earlier, later = (float(np.median(samples)) for samples in self.samples[-2:])
        return abs(math.log(later / earlier))

    @property
    def jump_error(self) -> float:
        """Standard error that noise alone gives the jump."""
        return math.sqrt(float(self._variances()[-2:].sum()))

    def _variances(self) -> Floats:
        recent = self.samples[-WINDOW:]
        deviations = np.concatenate([np.abs(np.log(s) - np.log(np.median(s))) for s in recent if len(s) > 2] or [[0.0]])
        noise = max(1.4826 * float(np.median(deviations)), _LEAST_NOISE)
        return np.array([_MEDIAN_VARIANCE * noise**2 / len(s) for s in recent])

    def _fit(self) -> None:
        at_s = np.array(self.at_s[-WINDOW:])
        log_s = np.log([float(np.median(s)) for s in self.samples[-WINDOW:]])
        self._level = float(np.median(log_s))
        values, noise = log_s - self._level, np.diag(self._variances())
        elapsed = np.minimum.outer(at_s, at_s) - at_s[0]
        pace = max(float(at_s[-1] - at_s[0]) / max(len(at_s) - 1, 1), 1e-9)
        covariances = [(step / pace, _VAGUE + step / pace * elapsed + noise) for step in _STEPS]
        self._rate, covariance = max(covariances, key=lambda pair: _log_likelihood(pair[1], values))
        self._weights = np.linalg.solve(covariance, values)
        self._now_s = float(np.exp(self._level + (covariance - noise)[-1] @ self._weights))


def _log_likelihood(covariance: Floats, values: Floats) -> float:
    _, log_determinant = np.linalg.slogdet(covariance)
    return -0.5 * (float(values @ np.linalg.solve(covariance, values)) + float(log_determinant))
