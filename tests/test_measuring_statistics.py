"""Whether what a job publishes can be believed: search, final round and verdict on a device whose truth is known.

Each limit has a negative control: the same figure without the measure that it is about. ``python -m
benchmarks.statistics`` prints them all.
"""

from __future__ import annotations

import pytest

from benchmarks.statistics import (
    FIXED,
    NOISES,
    THIRTY,
    called_different,
    dropped,
    error,
    jobs,
    mean,
    saved,
    tuned,
)
from tests.fakes_device import CONFIGURATIONS, FakeDevice, Weather

PAIRS = 500
MOST_CALLED = 0.05
MOST_BIAS = 0.002
MOST_REGRET = 0.005
LEAST_SAVED = 0.6

at_every_noise = pytest.mark.parametrize("noise", NOISES)


@at_every_noise
def test_a_configuration_is_seldom_told_from_itself(noise: float) -> None:
    assert called_different(PAIRS, noise) <= MOST_CALLED


def test_timed_at_another_moment_it_would_be() -> None:
    assert called_different(60, 0.005, paired=False) > 0.5


def test_a_verdict_is_not_blind() -> None:
    assert called_different(60, 0.02, change=0.02) > 0.9


@pytest.mark.parametrize(
    ("noise", "repeats"),
    [(0.005, 5), (0.02, 30), (0.05, 60), pytest.param(0.05, 400, marks=pytest.mark.slow)],
)
def test_what_is_published_is_not_too_good(noise: float, repeats: int) -> None:
    found = jobs(repeats, noise)
    for name in ("bias", "seconds_bias"):
        assert error(found, name) < MOST_BIAS / 2, "too few repeats to tell"
        assert abs(mean(found, name)) <= MOST_BIAS, name


def test_the_best_number_of_the_search_would_be() -> None:
    found = jobs(15, 0.05)
    assert mean(found, "search_bias") - 2 * error(found, "search_bias") > MOST_BIAS


@pytest.mark.parametrize(("noise", "repeats"), [(0.005, 5), (0.02, 20), (0.05, 30)])
def test_the_winner_is_as_good_as_the_best(noise: float, repeats: int) -> None:
    found = jobs(repeats, noise)
    assert all(job.measured == CONFIGURATIONS for job in found)
    assert mean(found, "regret") + 2 * error(found, "regret") <= MOST_REGRET


def test_the_winner_of_single_samples_would_not_be() -> None:
    found = jobs(15, 0.05, spread=0.05)
    assert mean(found, "first_regret") - 2 * error(found, "first_regret") > MOST_REGRET


@at_every_noise
def test_samples_are_spent_on_the_good(noise: float) -> None:
    """All are counted: the search's, those of the baseline between candidates, and the final round's."""
    found = jobs(3, noise)
    assert saved(found) >= LEAST_SAVED
    fixed = tuned(FakeDevice(0, Weather(noise), adaptive=False), THIRTY)
    assert saved([fixed]) < 0
    assert fixed.samples >= FIXED * CONFIGURATIONS


def test_following_the_drift_takes_few_samples() -> None:
    found = jobs(3, 0.005)
    assert 3 <= mean(found, "retimings") <= CONFIGURATIONS / 8


def test_throttled_spans_are_dropped_and_what_they_hit_is_measured_again() -> None:
    found = jobs(5, 0.005, throttled=0.2)
    assert dropped(found) == 1.0
    assert all(job.disturbed > 0 for job in found)
    assert mean(found, "measured") > 0.95 * CONFIGURATIONS
    assert mean(found, "regret") <= MOST_REGRET


def test_a_device_that_ignores_the_flag_drops_none() -> None:
    assert dropped(jobs(2, 0.005, throttled=0.2, flagged=False)) < 1.0
