"""Retraining: a challenger is promoted unless the champion is better on rows that neither has seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.fakes import spec_for, vector_add_kernel
from tests.fakes_session import DEVICE, NearestModel, ScriptedBuilder, ScriptedRunner, UniformPart
from tuner_daemon import retrain as retraining
from tuner_daemon.collect import Wanted, collect
from tuner_daemon.measuring import Parts
from tuner_daemon.records.measurement import Timing
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.task import Task
from tuner_daemon.retrain import retrain, split
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.models import ModelStore


@dataclass(frozen=True)
class Small:
    """Settings that train in a second."""

    policy_steps: int = 60
    threads: int = 1
    min_rows: int = 50
    seed: int = 0


def fill(log: ParquetLog, folder: Path, sizes: tuple[int, ...] = (1000, 5000, 20000)) -> None:
    """A log of vector additions whose time has a valley at BLOCK = 128, WORK = 2."""
    values = tuple(2**i for i in range(9))
    kernel = vector_add_kernel(folder, block=values, work=values, constraints=())
    for n in sizes:

        def seconds(config: Config, n: int = n) -> float:
            block, work = (float(np.log2(float(config[name]))) for name in ("BLOCK", "WORK"))
            return n * 1e-9 * (1 + 0.2 * (block - 7) ** 2 + 0.1 * (work - 1) ** 2)

        spec = spec_for(kernel, "cpu", n=n)
        task = Task(spec, ParamSpace(kernel, spec.problem), replace(DEVICE, kind="cpu"))
        parts = Parts(UniformPart(), NearestModel(), ScriptedBuilder(seconds), ScriptedRunner(seconds), log)
        collect([Wanted(task, f"collect-{n}")], parts, 81, seed=0)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ParquetLog:
    folder = tmp_path_factory.mktemp("log")
    log = ParquetLog(folder / "log")
    fill(log, folder / "kernel")
    return log


def test_the_first_models_are_promoted_and_have_learned_the_landscape(log: ParquetLog, tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    report = retrain(log, store, Small())
    current = store.current()
    assert report.promoted
    assert current is not None
    assert current.version == report.version
    assert (report.rows, report.tasks) == (243, 3)
    assert all(judgement.rank_correlation > 0.8 for judgement in report.judgements)
    assert "promoted" in report.text()


def test_a_worse_challenger_is_refused_and_the_champion_stays(
    log: ParquetLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ModelStore(tmp_path)
    champion = retrain(log, store, Small())
    losses = iter([champion.loss + 1.0 if champion.loss is not None else 1.0, champion.loss])
    monkeypatch.setattr(retraining, "loss_of", lambda judgements: next(losses))
    report = retrain(log, store, Small(seed=1))
    current = store.current()
    assert not report.promoted
    assert "is worse than the champion's" in report.reason
    assert current is not None
    assert current.version == champion.version


def test_too_little_to_learn_from_is_said_and_nothing_is_published(tmp_path: Path) -> None:
    empty = ParquetLog(tmp_path / "log")
    report = retrain(empty, ModelStore(tmp_path / "models"), Small())
    assert not report.promoted
    assert "0 rows" in report.reason
    assert ModelStore(tmp_path / "models").current() is None


def test_rows_that_fail_a_check_are_counted_and_not_learned_from(log: ParquetLog, tmp_path: Path) -> None:
    spoilt = ParquetLog(tmp_path / "log")
    spoilt.import_parts(log.folder)
    first = replace(log.measurements("collect-1000")[5], job="planted")
    assert isinstance(first.ran, Timing)
    spoilt.append([replace(first, ran=replace(first.ran, error_norm=None))])
    report = retrain(spoilt, ModelStore(tmp_path / "models"), Small())
    assert (report.rows, report.left_out) == (244, {"unverified": 1})
    assert "1 left out: unverified" in report.text()
    assert retrain(log, ModelStore(tmp_path / "others"), Small()).loss == report.loss


def test_held_out_rows_are_the_same_in_every_training_and_never_learned_from(log: ParquetLog) -> None:
    rows = log.read().to_pylist()
    kept, held_out = split(rows)
    again, _ = split(list(reversed(rows)))
    assert {row["key"] for row in kept} == {row["key"] for row in again}
    assert not {row["key"] for row in kept} & {row["key"] for row in held_out}
    assert 0.1 < len(held_out) / len(rows) < 0.3
