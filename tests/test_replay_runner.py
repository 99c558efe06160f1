"""The runner that answers from a recorded space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.contracts import BEHAVIOURS, RunnerContract
from tests.fakes import spec_for, vector_add_kernel
from tests.fakes_runner import FakeBuilder
from tuner_daemon.interfaces import Builder, Effort, Runner
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Timing
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import DeviceRequest
from tuner_daemon.records.task import Task
from tuner_daemon.runners.replay import KEPT, ReplayRunner

RECORDED_ON = DeviceInfo("replay", 0, "a GPU of somebody else's", "uuid-7", "sm_80")


class Recorded:
    """A space in memory: value of the first parameter -> status and times."""

    device = RECORDED_ON

    def __init__(self, rows: Mapping[Value, tuple[str, Sequence[float]]]) -> None:
        self._rows = rows

    def contains(self, config: Mapping[str, Value]) -> bool:
        return next(iter(config.values())) in self._rows

    def lookup(self, config: Mapping[str, Value]) -> tuple[str, Sequence[float]]:
        return self._rows[next(iter(config.values()))]


class TestReplayRunner(RunnerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def kind(cls) -> str:
        return "replay"

    @pytest.fixture(scope="class")
    @classmethod
    def builder(cls) -> Builder:
        return FakeBuilder()

    @pytest.fixture(scope="class")
    @classmethod
    def runner(cls) -> Runner:
        times_s = tuple(1e-3 + 1e-5 * i for i in range(8))
        rows: dict[Value, tuple[str, Sequence[float]]] = {
            name: (outcome, times_s if outcome is Outcome.OK else ()) for name, outcome in BEHAVIOURS.items()
        }
        return ReplayRunner(lambda _, index: Recorded(rows))


ROWS: dict[Value, tuple[str, Sequence[float]]] = {
    32: ("ok", (2e-3,)),
    64: ("ok", (1.0e-3, 1.1e-3, 1.2e-3)),
    128: ("launch_failed", ()),
}


@pytest.fixture
def runner() -> ReplayRunner:
    return ReplayRunner(lambda _, index: Recorded(ROWS))


@pytest.fixture
def task(runner: ReplayRunner, tmp_path: Path) -> Task:
    kernel = vector_add_kernel(tmp_path)
    spec = spec_for(kernel, "replay")
    return Task(spec, ParamSpace(kernel, spec.problem), runner.device_for(spec))


def artifact(task: Task, block: int) -> Artifact:
    return Artifact(task.space.config({"BLOCK": block, "WORK": 1}), Path("none"), "vector_add", str(block), 0.0)


def test_the_device_is_the_one_that_was_recorded(runner: ReplayRunner, task: Task) -> None:
    assert ReplayRunner(lambda _, index: Recorded(ROWS)).device.kind == "replay"
    assert runner.device == task.device == RECORDED_ON


def on_device(task: Task, index: int, folder: Path | None = None) -> Task:
    kernel = task.spec.kernel if folder is None else replace(task.spec.kernel, folder=folder)
    return replace(task, spec=replace(task.spec, kernel=kernel, device=DeviceRequest("replay", index)))


@dataclass
class Shelf:
    """Recordings of any number of devices; every one is a tenth slower than the one before it."""

    read: list[tuple[Path, int]] = field(default_factory=list)

    def __call__(self, folder: Path, *, index: int) -> Recorded:
        self.read.append((folder, index))
        return Recorded({32: ("ok", (1e-3 * 1.1**index,))})


def test_a_space_is_read_once(task: Task) -> None:
    shelf = Shelf()
    runner = ReplayRunner(shelf)
    for _ in range(3):
        runner.run(task, artifact(task, 32), Effort())
    assert shelf.read == [(task.spec.kernel.folder, 0)]


def test_the_recording_is_that_of_the_device_asked_for(task: Task) -> None:
    runner = ReplayRunner(Shelf())
    ran = [runner.run(on_device(task, index), artifact(task, 32), Effort()) for index in (0, 3, 0)]
    assert [r.median_s for r in ran if isinstance(r, Timing)] == pytest.approx([1e-3, 1.331e-3, 1e-3])


def test_a_changed_recording_in_the_same_folder_is_read_again(task: Task) -> None:
    shelf = Shelf()
    runner = ReplayRunner(shelf)
    changed = replace(task, spec=replace(task.spec, kernel=replace(task.spec.kernel, sha256="6" * 64)))
    for each in (task, changed):
        runner.run(each, artifact(task, 32), Effort())
    assert len(shelf.read) == 2


def test_no_more_than_a_few_recordings_are_kept(task: Task, tmp_path: Path) -> None:
    shelf = Shelf()
    runner = ReplayRunner(shelf)
    tasks = [on_device(task, 0, tmp_path / str(n)) for n in range(KEPT + 1)]
    for each in (*tasks, tasks[-1], tasks[0]):
        runner.run(each, artifact(task, 32), Effort())
    assert [folder.name for folder, _ in shelf.read] == [str(n) for n in range(KEPT + 1)] + ["0"]


def test_recorded_repeats_are_the_samples(runner: ReplayRunner, task: Task) -> None:
    ran = runner.run(task, artifact(task, 64), Effort(samples=2))
    assert isinstance(ran, Timing)
    assert ran.times_s == (1.0e-3, 1.1e-3)


def test_a_single_recorded_time_stands_for_every_sample_of_a_race(runner: ReplayRunner, task: Task) -> None:
    (single,) = runner.race(task, [artifact(task, 32)], 5, 1.0)
    assert isinstance(single, Timing)
    assert single.times_s == (2e-3,) * 5


def test_a_race_draws_from_the_repeats_the_same_way_every_time(runner: ReplayRunner, task: Task) -> None:
    first, again = (runner.race(task, [artifact(task, 64)], 40, 1.0)[0] for _ in range(2))
    assert isinstance(first, Timing)
    assert set(first.times_s) == set(ROWS[64][1])
    assert first == again
    (other,) = ReplayRunner(lambda _, index: Recorded(ROWS), seed=1).race(task, [artifact(task, 64)], 40, 1.0)
    assert other != first


def test_recorded_times_are_not_called_verified_however_they_are_joined(runner: ReplayRunner, task: Task) -> None:
    (heat,) = runner.race(task, [artifact(task, 64)], 3, 1.0)
    assert isinstance(heat, Timing)
    verified = replace(heat, error_norm=1e-7)
    assert heat.error_norm is heat.followed_by(heat).error_norm is verified.followed_by(heat).error_norm is None
    assert verified.followed_by(replace(heat, error_norm=1e-6)).error_norm == 1e-6
    assert verified.followed_by(verified).times_s == heat.times_s * 2


def test_recorded_failures_and_gaps_are_failures(runner: ReplayRunner, task: Task) -> None:
    failed = runner.run(task, artifact(task, 128), Effort())
    assert isinstance(failed, Failure)
    assert failed.outcome is Outcome.LAUNCH_FAILED
    absent = runner.run(task, artifact(task, 256), Effort())
    assert isinstance(absent, Failure)
    assert "not recorded" in absent.detail
