"""What the baseline takes between two of its timings."""

from __future__ import annotations

import numpy as np
import pytest

from tuner_daemon.drift import Track


def track(levels: np.ndarray[tuple[int], np.dtype[np.float64]], noise: float, seed: int = 0) -> Track:
    """One re-timing of five samples a second; ``levels`` in log seconds."""
    rng, found = np.random.default_rng(seed), Track()
    for at_s, level in enumerate(levels):
        found.add(float(at_s), np.exp(level + noise * rng.standard_normal(5)).tolist())
    return found


def error(found: Track, levels: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(np.std(np.log(found.seconds(np.arange(len(levels), dtype=float))) - levels))


def test_between_two_timings_it_is_interpolated_and_beyond_them_constant() -> None:
    found = track(np.log([1.0, 1.1]), noise=1e-6)
    assert found.seconds([0.0, 0.5, 1.0]) == pytest.approx([1.0, 1.05, 1.1], rel=2e-3)
    assert found.seconds([-9.0, 9.0]) == pytest.approx([1.0, 1.1], rel=1e-3)
    assert found.now_s() == pytest.approx(1.1, rel=1e-3)
    assert found.first_s == pytest.approx(1.0, rel=1e-3)


def test_drift_that_stands_out_is_followed() -> None:
    swing = 0.03 * np.sin(np.arange(25) / 4)
    assert error(track(swing, noise=0.002), swing) < 0.1 * float(np.std(swing))


def test_noise_without_drift_is_averaged() -> None:
    """The negative control of following: each timing's own median would be off by a fortieth of the noise's mean."""
    still = np.zeros(25)
    found = track(still, noise=0.05)
    own = np.log([float(np.median(s)) for s in found.samples])
    assert error(found, still) < 0.3 * float(np.std(own))


def test_a_jump_is_told_with_the_error_that_noise_gives_it() -> None:
    found = track(np.array([0.0, 0.0, 0.0, 0.02]), noise=0.001)
    assert found.jump == pytest.approx(0.02, abs=0.003)
    assert found.jump > 5 * found.jump_error
    noisy = track(np.zeros(4), noise=0.05)
    assert noisy.jump < 3 * noisy.jump_error


def test_a_single_sample_each_is_enough() -> None:
    found = Track()
    for at_s in range(3):
        found.add(float(at_s), [2.0])
    assert found.seconds([0.5]) == pytest.approx([2.0])
