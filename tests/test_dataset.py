"""From rows of the log to what models learn from, and training as a whole."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.learning_tasks import as_rows, device, log_of, measured, tiled_kernel, tiled_task, true_log_s
from tuner_daemon.learning.cost import load_prior
from tuner_daemon.learning.dataset import (
    FAILURE_REWARD,
    group,
    rewards,
    training_set,
    transitions,
    upper_part,
    usable,
)
from tuner_daemon.learning.features import features
from tuner_daemon.learning.policy import load_policy
from tuner_daemon.learning.training import best_of, evaluate, train
from tuner_daemon.records.measurement import Outcome

KERNEL = tiled_kernel()
RESOLVER = {KERNEL.sha256: KERNEL}.get
DEVICES = [device("small", 40), device("middle", 80), device("large", 120)]


def rows_of(n: int = 50) -> list[dict[str, Any]]:
    task = tiled_task()
    return as_rows(measured(task, task.space.sample(n, np.random.default_rng(0))))


def test_rows_are_grouped_by_what_makes_their_times_comparable() -> None:
    rows = rows_of(6)
    changes: list[dict[str, Any]] = [
        {"device_name": "other"},
        {"clock_mode": "locked"},
        {"problem": [("n", "4096"), ("dtype", '"float32"')]},
        {"language": "cpu", "device_kind": "cpu"},
        {},
    ]
    for row, change in zip(rows[1:], changes, strict=True):
        row.update(change)
    tasks = group(rows, RESOLVER)
    assert [len(task) for task in tasks] == [2, 1, 1, 1, 1]
    assert tasks[3].problem == {"n": 4096, "dtype": "float32"}


def test_features_from_rows_equal_those_from_a_space() -> None:
    task = tiled_task()
    configs = task.space.sample(50, np.random.default_rng(0))
    (found,) = group(rows_of(50), RESOLVER)
    assert np.array_equal(found.features(), features(task, configs), equal_nan=True)
    assert np.allclose(found.log_s, true_log_s(task, configs), equal_nan=True)


def test_maps_may_hold_values_instead_of_their_json() -> None:
    rows = rows_of(20)
    plain = [
        row | {"config": dict(m.config), "problem": dict(m.problem)}
        for row, m in zip(
            rows, measured(tiled_task(), tiled_task().space.sample(20, np.random.default_rng(0))), strict=True
        )
    ]
    (a,), (b,) = group(rows, RESOLVER), group(plain, RESOLVER)
    assert np.array_equal(a.indices, b.indices)
    assert a.key == b.key


def test_rows_that_cannot_be_understood_are_left_out() -> None:
    rows = rows_of(10)
    rows[0]["kernel_sha256"] = "lost"
    rows[1]["outcome"] = Outcome.DISTURBED.value
    rows[2]["config"] = [("BX", "33")]
    (task,) = group(rows, RESOLVER)
    assert len(task) == 7


def test_a_configuration_measured_more_than_once_counts_once_with_its_median() -> None:
    rows = [row for row in rows_of(20) if row["outcome"] == "ok"][:2]
    repeated = [rows[0] | {"median_s": rows[0]["median_s"] * factor} for factor in (1.0, 1.1, 9.0)]
    (task,) = group([*repeated, rows[1]], RESOLVER)
    assert len(task) == 2
    assert task.log_s[0] == pytest.approx(math.log(rows[0]["median_s"] * 1.1))


def test_times_are_taken_relative_to_each_sessions_baseline() -> None:
    rows = [row for row in rows_of(40) if row["outcome"] == "ok"][:20]
    steady = [row | {"baseline_median_s": 2e-5} for row in rows]
    drifted = [row | {"baseline_median_s": 4e-5, "median_s": row["median_s"] * 2} for row in steady[10:]]
    (a,), (b,) = group(steady, RESOLVER), group(steady[:10] + drifted, RESOLVER)
    (raw,) = group([row | {"baseline_median_s": None} for row in steady[:10] + drifted], RESOLVER)
    assert np.allclose(a.log_s - a.log_s.mean(), b.log_s - b.log_s.mean())
    assert not np.allclose(a.log_s - a.log_s.mean(), raw.log_s - raw.log_s.mean())


def test_rewards_are_standardised_and_a_failure_is_the_worst() -> None:
    log_s = np.array([0.0, 1.0, 2.0, np.nan, 300.0])
    reward = rewards(log_s)
    assert reward[3] == FAILURE_REWARD
    assert reward[0] > reward[1] > reward[2] > reward[4] >= FAILURE_REWARD
    assert np.abs(rewards(log_s * 5 + 7) - reward).max() < 1e-5


def test_the_upper_part_is_the_fastest_share_and_never_a_failure() -> None:
    log_s = np.array([5.0, 1.0, np.nan, 3.0, 2.0, 4.0])
    assert upper_part(log_s, 0.3).tolist() == [False, True, False, False, True, False]


def test_an_episode_is_one_configuration_with_its_reward_at_the_end() -> None:
    (task,) = group(rows_of(30), RESOLVER)
    data = transitions([task], rows_per_task=1000, rng=np.random.default_rng(0))
    assert len(data.states) == 30 * len(KERNEL.parameters)
    assert data.terminals.sum() == 30
    assert np.flatnonzero(data.terminals)[0] == len(KERNEL.parameters) - 1
    assert np.all(data.rewards[~data.terminals] == 0.0)
    assert data.rewards[data.terminals].tolist() == rewards(task.log_s).tolist()


def test_large_tasks_are_sampled_but_keep_their_upper_part() -> None:
    (task,) = group(rows_of(400), RESOLVER)
    rng = np.random.default_rng(0)
    data = transitions([task], rows_per_task=60, rng=rng)
    upper = int(data.upper[data.terminals].sum())
    assert 60 <= data.terminals.sum() <= 120
    assert upper >= 60
    assert len(training_set([task], rows_per_task=60, rng=rng).x) == 60


def test_a_task_with_hardly_any_time_is_not_used() -> None:
    rows = rows_of(30)
    few = [row for row in rows if row["outcome"] == "ok"][:3] + [row for row in rows if row["outcome"] != "ok"]
    assert usable(group(few, RESOLVER)) == []
    assert len(usable(group(rows, RESOLVER))) == 1
    with pytest.raises(ValueError, match="no task"):
        train(few, RESOLVER, seed=0)


def test_training_yields_models_that_can_be_stored_and_used(tmp_path: Path) -> None:
    trained = train(log_of(DEVICES[:2], 120), RESOLVER, seed=0, steps=10, threads=1)
    trained.save(tmp_path)
    assert (trained.tasks, trained.rows, trained.kernels) == (2, 240, frozenset({"tiled"}))
    assert load_prior(tmp_path).groups == load_policy(tmp_path).groups == {"tiled"}


def test_evaluation_leaves_each_task_out_and_tells_skill_from_luck() -> None:
    rows = log_of(DEVICES, 150)
    rng = np.random.default_rng(0)
    shuffled = [
        row | {"config": rows[int(at)]["config"]} for row, at in zip(rows, rng.permutation(len(rows)), strict=True)
    ]
    good = evaluate(rows, RESOLVER, seed=0, threads=1, holdouts=2)
    noise = evaluate(shuffled, RESOLVER, seed=0, threads=1, holdouts=2)
    assert len(good) == 2
    assert all(j.known and j.policy == {} and j.rows == 150 for j in good)
    assert min(j.rank_correlation for j in good) > 0.7
    assert max(j.rank_correlation for j in noise) < 0.5
    assert all(j.regret[8] < j.uniform[8] - 1 for j in good)


def test_a_log_of_one_task_is_judged_on_its_other_half() -> None:
    (judgement,) = evaluate(log_of(DEVICES[:1], 200), RESOLVER, seed=0, threads=1)
    assert judgement.rows == 100
    assert judgement.rank_correlation > 0.6


def test_best_of_n_draws_by_weight() -> None:
    log_s = np.log(np.arange(1.0, 101.0))
    rng = np.random.default_rng(0)
    uniform, informed = best_of(log_s, 4, np.zeros(100), rng), best_of(log_s, 4, -log_s * 3, rng)
    assert informed < 1.5 < uniform
    assert best_of(log_s, 100, np.zeros(100), rng) == pytest.approx(1.0)


def test_a_device_is_rebuilt_from_its_row() -> None:
    (task,) = group(rows_of(5), RESOLVER)
    assert task.device == replace(device(), attributes={name: float(v) for name, v in device().attributes.items()})
