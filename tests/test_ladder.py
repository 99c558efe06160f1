"""How many samples a candidate gets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tuner_daemon.interfaces import Effort
from tuner_daemon.worker.ladder import DOUBT, lower_end, sampled


def taken(time_s: float, drop_above_s: float = math.inf, beat_s: float = math.inf) -> int:
    steps = Effort(samples=30).steps
    return len(sampled(lambda _: time_s, steps, drop_above_s=drop_above_s, beat_s=beat_s))


def test_without_limits_all_samples_are_taken() -> None:
    assert taken(1.0) == 30


def test_what_is_hopeless_costs_one_sample() -> None:
    assert taken(3.1, drop_above_s=3.0, beat_s=1.0) == 1


def test_what_cannot_be_the_best_any_more_costs_three() -> None:
    assert taken(1.1, drop_above_s=3.0, beat_s=1.05) == 3


def test_what_may_be_the_best_gets_all() -> None:
    assert taken(1.0, drop_above_s=3.0, beat_s=1.05) == 30


def test_a_candidate_that_comes_close_climbs_until_it_is_clear() -> None:
    times_s = [1.0, 1.3, 1.3, 1.3, 0.9, 1.3, 1.3, *[1.3] * 23]
    assert len(sampled(times_s.__getitem__, (3, 7, 15, 30), beat_s=1.05)) == 15


def test_when_time_is_up_what_was_taken_stands() -> None:
    left = iter([True, True, False])
    assert sampled(lambda n: float(n + 1), (7,), may_go_on=lambda: next(left)) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("n", [7, 15, 30])
def test_a_median_lies_seldom_below_its_lower_end(n: int) -> None:
    rng = np.random.default_rng(0)
    below = np.mean([lower_end(rng.lognormal(0.0, 1.0, n).tolist()) > 1.0 for _ in range(4000)])
    assert below < DOUBT + 0.015


def test_of_few_samples_the_least_is_the_lower_end() -> None:
    assert lower_end([3.0, 1.0, 2.0]) == 1.0
    assert lower_end([math.pi]) == math.pi


def test_an_effort_climbs_its_ladder_to_its_samples() -> None:
    assert Effort(samples=15).steps == (3, 7, 15)
    assert Effort(samples=5).steps == (3, 5)
    assert Effort(samples=1).steps == (1,)
    assert Effort(samples=9, ladder=()).steps == (9,)
