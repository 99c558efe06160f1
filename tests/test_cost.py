"""The cost model in a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cost_model import Prior, rank_correlation
from tests.learning_tasks import device, log_of, measured, tiled_kernel, tiled_task, true_log_s
from tuner_daemon.errors import ModelError
from tuner_daemon.learning.cost import LearnedCostModel, anchor_log_s, load_prior
from tuner_daemon.learning.training import train
from tuner_daemon.records.measurement import Failure, Outcome


@pytest.fixture(scope="module")
def prior() -> Prior:
    kernel = tiled_kernel()
    rows = log_of([device("small", 40), device("large", 120)], 250)
    return train(rows, {kernel.sha256: kernel}.get, seed=0, steps=0, threads=1).prior


def test_a_known_family_is_ranked_before_the_first_measurement(prior: Prior) -> None:
    task = tiled_task(device("middle", 80))
    model = LearnedCostModel(prior, version="v1")
    configs = task.space.sample(300, np.random.default_rng(0))
    truth = true_log_s(task, configs)
    ok = np.isfinite(truth)
    predicted = model.predict(task, configs)
    assert model.known(task)
    assert model.version == "v1"
    assert predicted.dtype == np.float32
    assert rank_correlation(predicted[ok], truth[ok]) > 0.8


def test_an_unknown_family_starts_with_equal_predictions(prior: Prior) -> None:
    task = tiled_task(kernel=tiled_kernel("stranger"))
    model = LearnedCostModel(prior)
    assert not model.known(task)
    assert len(set(model.predict(task, task.space.sample(50, np.random.default_rng(0))).tolist())) == 1


def test_measurements_improve_predictions_without_any_prior() -> None:
    task = tiled_task()
    model = LearnedCostModel()
    rng = np.random.default_rng(0)
    model.fit(task, measured(task, task.space.sample(64, rng)))
    configs = task.space.sample(300, rng)
    truth = true_log_s(task, configs)
    ok = np.isfinite(truth)
    assert model.version == ""
    assert rank_correlation(model.predict(task, configs)[ok], truth[ok]) > 0.5


def test_another_task_starts_anew() -> None:
    task, other = tiled_task(), tiled_task(device("large", 120))
    model = LearnedCostModel()
    rng = np.random.default_rng(0)
    model.fit(task, measured(task, task.space.sample(32, rng)))
    configs = task.space.sample(50, rng)
    assert len(set(model.predict(task, configs).tolist())) > 1
    assert len(set(model.predict(other, configs).tolist())) == 1


def test_disturbed_rows_teach_nothing() -> None:
    task = tiled_task()
    rows = measured(task, task.space.sample(32, np.random.default_rng(0)))
    disturbed = [replace(row, ran=Failure(row.ran.config, Outcome.DISTURBED, "busy")) for row in rows]
    configs = task.space.sample(50, np.random.default_rng(1))
    model = LearnedCostModel()
    model.fit(task, disturbed)
    assert len(set(model.predict(task, configs).tolist())) == 1
    model.fit(task, rows)
    assert len(set(model.predict(task, configs).tolist())) > 1


def test_fitting_nothing_and_predicting_nothing_is_fine() -> None:
    task = tiled_task()
    model = LearnedCostModel()
    model.fit(task, [])
    assert model.predict(task, []).shape == (0,)


def test_a_stored_prior_is_loaded_and_a_damaged_one_is_a_model_error(prior: Prior, tmp_path: Path) -> None:
    prior.save(tmp_path)
    assert load_prior(tmp_path).groups == {"tiled"}
    (tmp_path / "prior.json").write_text("{}")
    with pytest.raises(ModelError, match="cost model"):
        load_prior(tmp_path)


def test_the_anchor_is_the_roofline() -> None:
    task = tiled_task()
    flops, moved = 100 * 2048**2 / (40 * 2e11), 8 * 2048**2 / (40 * 1e10)
    assert anchor_log_s(task) == pytest.approx(np.log(max(flops, moved)))
    assert np.isnan(anchor_log_s(tiled_task(replace(device(), attributes={}))))
