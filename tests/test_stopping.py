"""A search ends when what is left to gain is lost in the noise, and not before."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.learning_tasks import measured, tiled_task
from tuner_daemon.records.measurement import Measurement, Proposal, Timing
from tuner_daemon.records.space import Config
from tuner_daemon.records.task import Task
from tuner_daemon.stopping import LEAST_FLOOR, expected_gain, noise_floor, why_stop


class Mute:
    """A cost model that cannot tell how wrong it is."""

    version = ""

    def fit(self, task: Task, history: Sequence[Measurement]) -> None: ...

    def predict(self, task: Task, configs: Sequence[Config]) -> NDArray[np.float32]:
        return np.zeros(len(configs), dtype=np.float32)


class Certain(Mute):
    """Says that it may be wrong by ``error``."""

    def __init__(self, error: float) -> None:
        self.error = error

    def spread(self, task: Task, configs: Sequence[Config]) -> NDArray[np.float32]:
        return np.full(len(configs), self.error, dtype=np.float32)


def decide(error: float, behind: float, *, after: int = 8) -> str:
    """On 24 measurements and candidates that are predicted to be slower than the best by ``behind`` (log seconds)."""
    task = tiled_task()
    history = measured(task, task.space.all()[:24])
    best = min(math.log(row.ran.median_s) for row in history if isinstance(row.ran, Timing))
    proposals = [Proposal(config, "uniform", best + behind) for config in task.space.all()[24:80]]
    return why_stop(task, history, Certain(error), proposals, batch=8, after=after)


def test_a_sure_model_ends_the_search_when_everything_left_is_slower() -> None:
    assert decide(0.01, 0.1).startswith("stopped early: after 24 of ")


@pytest.mark.parametrize(("error", "behind"), [(0.2, 0.1), (0.01, -0.02), (math.nan, 0.1)])
def test_a_search_goes_on_where_there_may_be_something_to_gain(error: float, behind: float) -> None:
    """The model is unsure, or predicts better, or has nothing to go by yet."""
    assert decide(error, behind) == ""


def test_a_search_goes_on_before_enough_was_measured() -> None:
    assert decide(0.01, 0.1, after=25) == ""


def test_a_model_that_cannot_tell_how_wrong_it_is_ends_nothing() -> None:
    task = tiled_task()
    history = measured(task, task.space.all()[:24])
    proposals = [Proposal(task.space.all()[30], "uniform", 99.0)]
    assert why_stop(task, history, Mute(), proposals, batch=8, after=8) == ""
    assert why_stop(task, history, Certain(0.01), proposals, batch=8, after=8) != ""


def test_the_expected_gain_of_a_coin_toss_is_that_of_half_a_normal() -> None:
    gain = expected_gain(0.0, np.zeros(1), np.full(1, 0.1), 1)
    assert gain == pytest.approx(math.expm1(0.1 / math.sqrt(2 * math.pi)))
    assert expected_gain(0.0, np.zeros(4), np.full(4, 0.1), 4) > 3 * gain
    assert expected_gain(0.0, np.zeros(0), np.zeros(0), 8) == 0.0


def test_noise_is_read_from_the_samples() -> None:
    config = tiled_task().space.first()
    times = 1e-3 * (1 + 0.05 * np.random.default_rng(0).normal(size=15))
    noisy, quiet = Timing(config, tuple(times.tolist()), None, 0.0), Timing(config, (1e-3,) * 15, None, 0.0)
    few = Timing(config, (1e-3, 2e-3), None, 0.0)
    assert 0.01 < noise_floor([noisy]) < 0.08
    assert noise_floor([quiet]) == noise_floor([few]) == noise_floor([]) == LEAST_FLOOR
