"""From collection to what ships: plans, a packed log, whole spaces, landscapes and noise, small and on a CPU."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import dataset, landscape, noise
from benchmarks.problems import settings_for
from tests.learning_tasks import device, measured, tiled_kernel, tiled_task
from tests.rows import CLOCKS, measurement
from tuner_daemon.cli.workshop import Workshop, run_collect
from tuner_daemon.errors import KernelError
from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.intake.plans import PlannedTask, load_plan
from tuner_daemon.intake.specs import templates_dir
from tuner_daemon.records.measurement import Measurement, Outcome, Timing
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import Budget, DeviceRequest, KernelSpec
from tuner_daemon.retrain import resolver
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.recorded import load_recorded

PLANS = Path(__file__).parent.parent / "datasets" / "h200-plan"
SMALL = """
[[task]]
template = "softmax"
count = "all"
device = { kind = "cpu" }
problems = [{ rows = 8, cols = 40 }]
[task.values]
ROW_THREADS = [256]
ROWS = [1]
VEC = [1, 4]
WORK = [1]
STEPS = [1]
UNROLL = [1, 2]
PREFETCH = [0]
CACHE = [0]
REDUCE = ["shared"]
EXP = ["libm"]
STREAM = [0]

[[task]]
template = "softmax"
count = 4
device = { kind = "cpu" }
problems = [{ rows = 16, cols = 33 }]
"""


# -- the plans that ship --------------------------------------------------------------------------------------------


@cache
def planned(name: str) -> list[PlannedTask]:
    return load_plan(PLANS / name, template_dirs=[templates_dir()], default_device=DeviceRequest("cuda"))


def test_the_plans_are_of_twelve_families_or_more_at_ten_shapes_each() -> None:
    tasks = [task for plan in PLANS.glob("[0-9]*.toml") for task in planned(plan.name)]
    shapes = Counter((t.spec.kernel.name, *(v for v in t.spec.problem.values() if isinstance(v, str))) for t in tasks)
    assert len(shapes) >= 12
    assert min(shapes.values()) >= 10
    assert len({task.job for task in tasks}) == len(tasks)
    assert len({task.spec.kernel.name for task in tasks}) == 15
    assert {int(size) for t in tasks for size in t.spec.problem.values() if size in (4088, 4096, 4112)} == {
        4088,
        4096,
        4112,
    }


def test_the_plans_are_of_150_000_rows_or_more() -> None:
    rows = 0
    for plan in PLANS.glob("*.toml"):
        for task in planned(plan.name):
            size = ParamSpace(task.spec.kernel, task.spec.problem).size
            rows += size if task.count is None else min(task.count, size)
    assert 150_000 <= rows < 200_000


def test_whole_spaces_are_of_four_families_at_two_shapes_with_their_baselines() -> None:
    tasks = planned("spaces.toml")
    assert min(Counter(task.spec.kernel.name for task in tasks).values()) >= 2
    assert len({task.spec.kernel.name for task in tasks}) >= 4
    for task in tasks:
        space = ParamSpace(task.spec.kernel, task.spec.problem)
        assert 1000 <= space.size <= 3000
        assert task.spec.kernel.baseline is not None
        assert space.contains(task.spec.kernel.baseline)


# -- packing --------------------------------------------------------------------------------------------------------


def log_of(folder: Path, rows: list[Measurement]) -> ParquetLog:
    """A log whose kernels have no declarations: packing is told of them by ``kernel_of``."""
    log = ParquetLog(folder)
    log.append(rows)
    return log


def rows_of_a_task(*, n: int = 512, count: int = 30, job: str = "job") -> list[Measurement]:
    task = tiled_task(device(), n=n)
    rows = measured(task, task.space.sample(count, np.random.default_rng(0)), job=job)
    return [replace(row, ran=replace(row.ran, clocks=CLOCKS), baseline_median_s=1e-4) for row in rows]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    kernel = tiled_kernel()
    for module in (dataset, landscape):
        monkeypatch.setattr(module, "resolver", lambda _: {kernel.sha256: kernel}.get)
    return {kernel.name: kernel.sha256}


def test_logs_are_merged_and_what_fails_a_check_is_left_out(tmp_path: Path, known: dict[str, str]) -> None:
    rows = rows_of_a_task()
    timed = [row for row in rows if isinstance(row.ran, Timing)]
    first, second = timed[:2]
    assert isinstance(first.ran, Timing)
    bad = [
        replace(first, job="bad", ran=replace(first.ran, error_norm=None)),
        replace(first, job="old", kernel_sha256="0" * 64),
        replace(first, job="locked", ran=replace(first.ran, clocks=replace(CLOCKS, mode="free"))),
    ]
    assert isinstance(second.ran, Timing)
    again = replace(second, job="again", ran=replace(second.ran, times_s=(2 * second.ran.median_s,)))
    log_of(tmp_path / "a", rows[:10])
    log_of(tmp_path / "b", [*rows[5:], *bad])
    repeats = log_of(tmp_path / "c", [again])
    log = dataset.opened([tmp_path / "a", tmp_path / "b"])
    packed = dataset.packed_log(log, tmp_path / "out", repeats, known)
    assert packed.screened.left_out == {
        "other clocks": 1,
        "unconfirmed": 1,
        "unknown kernel": 1,
        "unverified": 1,
    }
    assert packed.clock_mode == "locked"
    kept = ParquetLog(tmp_path / "out").measurements("job")
    assert {row.key for row in kept} == {row.key for row in rows} - {second.key}
    assert {row.host for row in kept} == {""}
    assert packed.size_bytes < dataset.LIMIT_BYTES
    text = dataset.readme(packed)
    assert "| tiled float32 | 1 | 29 |" in text
    assert "SM clock 1200 to 1980 MHz" in text
    assert "1 unconfirmed" in text


def test_a_folder_that_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no measurement log"):
        dataset.opened([tmp_path])


def test_150_000_rows_fit_into_20_megabytes(tmp_path: Path) -> None:
    """A fiftieth of them, with times as random as they come and a binary for every configuration at twelve shapes."""
    rng = np.random.default_rng(0)
    binaries = [rng.bytes(32).hex() for _ in range(250)]
    rows = []
    for n in range(3000):
        times_s = tuple(float(t) for t in rng.lognormal(-9, 1) * (1 + 0.01 * rng.standard_normal(5)))
        row = measurement(n, job=f"job {n // 250}")
        assert row.artifact is not None
        timing = Timing(row.ran.config, times_s, times_s[0], rng.random() * 1e-7)
        rows.append(replace(row, artifact=replace(row.artifact, sha256=binaries[n % 250]), ran=timing))
    log = log_of(tmp_path / "log", rows)
    log.export(tmp_path / "single", single=True)
    log.export(tmp_path / "double")
    sizes = {name: sum(f.stat().st_size for f in (tmp_path / name).rglob("*.parquet")) for name in ("single", "double")}
    assert sizes["single"] * 50 < 20e6
    assert sizes["single"] < 0.8 * sizes["double"]


# -- a landscape ----------------------------------------------------------------------------------------------------


def test_a_landscape_is_of_what_was_drawn() -> None:
    kernel = tiled_kernel()
    rows: list[dict[str, Any]] = []
    configs = ParamSpace(kernel, {"n": 512, "dtype": "float32"}).sample(12, np.random.default_rng(0))
    times_s = [1.0, 1.04, 1.06, 2.0, 3.0, 4.0, 5.0, 6.0, None, None, 0.9, 7.0]
    by = ["uniform"] * 10 + ["stratum", "baseline"]
    for config, time_s, who in zip(configs, times_s, by, strict=True):
        rows.append(
            {
                "kernel_sha256": kernel.sha256,
                "language": "cuda",
                "problem": {"n": 512, "dtype": "float32"},
                "config": config.as_dict(),
                "outcome": "ok" if time_s else "launch_failed",
                "median_s": time_s,
                "proposed_by": who,
                "device_name": "small",
                "clock_mode": "free",
            }
        )
    (found,) = landscape.landscapes(rows, {kernel.sha256: kernel}.get)
    assert (found.size, found.measured, found.drawn) == (4032, 12, 10)
    assert found.failed_share == pytest.approx(0.2)
    assert found.best_s == 0.9
    assert found.baseline == pytest.approx(7 / 0.9)
    assert found.median == pytest.approx(2.5 / 0.9)
    assert (found.close, found.close_share) == (1, 0.0)
    assert "| tiled | n 512, dtype float32 | 4,032 | 12 | 20.0% |" in landscape.landscape_table([found])
    failures = [row | {"outcome": "crashed", "median_s": None} for row in rows]
    assert landscape.landscapes(failures, {kernel.sha256: kernel}.get) == []


# -- noise ----------------------------------------------------------------------------------------------------------


def test_rows_are_sampled_evenly_from_a_few_tasks() -> None:
    rows = [
        {"job": f"job {n % 7}", "outcome": "ok" if n % 10 else "crashed", "proposed_by": "uniform", "n": n}
        for n in range(700)
    ]
    chosen = noise.sampled(rows, 40, 4, seed=1)
    assert [len(own) for own in chosen.values()] == [10] * 4
    assert all(row["outcome"] == "ok" and row["job"] == job for job, own in chosen.items() for row in own)
    assert noise.sampled(rows, 40, 4, seed=1) == chosen != noise.sampled(rows, 40, 4, seed=2)
    assert noise.sampled([], 40, 4, seed=1) == {}


def test_the_spread_is_told_by_length_and_relative_to_the_baseline() -> None:
    rng = np.random.default_rng(0)

    def pair(first_s: float, noise_: float, drift: float = 1.1) -> noise.Pair:
        factor = math.exp(noise_ * rng.standard_normal())
        return noise.Pair("k", first_s, first_s * factor * drift, "ok", factor)

    pairs = [pair(5e-6, 0.1) for _ in range(400)] + [pair(1e-3, 0.01) for _ in range(400)]
    pairs += [noise.Pair("k", 1e-3, None, "crashed", None)]
    rows = noise.spread_table(pairs).splitlines()[2:]
    short, _, long, every = ([cell.strip() for cell in row.split("|")[1:-1]] for row in rows)
    assert (short[1], long[1], every[1], every[2]) == ("400", "401", "801", "1")
    median = {name: float(cells[5].rstrip("%")) for name, cells in (("short", short), ("long", long))}
    assert median["short"] == pytest.approx(7.0, abs=1.5)  # the median of |N(0, 10 %)| is 6.7 %
    assert median["long"] == pytest.approx(0.67, abs=0.15)
    assert float(long[3].rstrip("%")) == pytest.approx(10.0, abs=0.5)


# -- all of it ------------------------------------------------------------------------------------------------------


def test_collected_packed_recorded_and_measured_again(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(SMALL)
    settings = settings_for(tmp_path / "state", "cpu")
    said: list[str] = []
    run_collect(settings, plan, said.append, seconds=0.0)
    assert said == ["stopped before softmax at 1 problems: the time is up"]
    run_collect(settings, plan, said.append)
    log = dataset.opened([settings.log_dir])
    first, second = load_plan(plan, template_dirs=[templates_dir()], default_device=DeviceRequest("cpu"))
    size = ParamSpace(first.spec.kernel, first.spec.problem).size
    assert len(log.measurements(first.job)) == size <= 16
    assert {row.ran.outcome for row in log.measurements(first.job)} == {Outcome.OK}

    (space,) = dataset.spaces(log, plan, tmp_path / "spaces", "cpu")
    assert (space.folder.name, space.size) == ("softmax-8-40-float32", size)
    assert space.ok + space.unsure == size
    recorded = load_kernel(space.folder)
    with Workshop(settings_for(tmp_path / "replay", "replay")) as workshop:
        problem = dict(first.spec.problem)
        answer = workshop.engine.answer(KernelSpec(recorded, problem, DeviceRequest("replay"), Budget(4, 20.0)))
    assert answer.result["space_size"] == size
    assert answer.result["best"]["median_s"] >= load_recorded(space.folder).best_s()
    with pytest.raises(KernelError, match="have no row"):
        dataset.spaces(ParquetLog(tmp_path / "empty"), plan, tmp_path / "none", "cpu")

    chosen = noise.sampled(log.read().to_pylist(), 6, 2, seed=0)
    pairs = noise.repeated(chosen, tmp_path / "noise")
    assert len(pairs) == 6
    assert all(pair.ratio is not None and pair.relative is not None for pair in pairs)
    assert noise.repeated(chosen, tmp_path / "noise", stop_after_s=-1.0) == []

    packed = dataset.packed_log(log, tmp_path / "out", dataset.opened([tmp_path / "noise" / "log"]))
    assert packed.rows == size + len(log.measurements(second.job))
    assert packed.screened.rows
    assert landscape.landscapes(packed.screened.rows, resolver(log))
    json.dumps([pair.__dict__ for pair in pairs])
