"""Workspace arguments: zero at first, the candidate's own, kept between its launches, guarded, and never compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.zoo_kernels import SCRATCH, Animal
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.gcc import GccBuilder
from tuner_daemon.errors import ExpressionError
from tuner_daemon.interfaces import Effort
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Reference
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Ran, Timing
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.task import Task
from tuner_daemon.runners import edges, plan
from tuner_daemon.runners.cpu import CpuRunner
from tuner_daemon.worker.cpu_device import CpuDevice
from tuner_daemon.worker.device import GUARD_PATTERN

DEVICE = DeviceInfo("cpu", 0, "any", "any", "any")
EFFORT = Effort(samples=3, timeout_s=30.0)
FORGETFUL = replace(SCRATCH, name="forgetful", text=SCRATCH.text.replace("scratch[i] = 0.0f;", ""))
PAST_THE_END = replace(
    SCRATCH, name="past", text=SCRATCH.text.replace("EACH(i, n) {", "scratch[(n + 63) / 64 * 64] = 1.0f; EACH(i, n) {")
)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuRunner]:
    builder = GccBuilder(BuildCache(tmp_path_factory.mktemp("cache"), 1 << 28), jobs=2)
    runner = CpuRunner(builder)
    yield runner
    runner.close()
    builder.close()


def built(runner: CpuRunner, task: Task) -> Artifact:
    assert runner.builder is not None
    (item,) = runner.builder.build(task.spec, [task.space.first()])
    assert isinstance(item, Artifact), item
    return item


def ran(runner: CpuRunner, animal: Animal, folder: Path) -> Ran:
    task = animal.task(folder, runner.device)
    return runner.run(task, built(runner, task), EFFORT)


def test_what_is_left_in_it_is_there_at_the_next_launch(cpu: CpuRunner, tmp_path: Path) -> None:
    failure = ran(cpu, FORGETFUL, tmp_path / "forgetful")
    assert isinstance(failure, Failure)
    assert failure.outcome is Outcome.WRONG_RESULT
    assert isinstance(ran(cpu, SCRATCH, tmp_path / "sound"), Timing)


def test_every_candidate_begins_with_zeros(cpu: CpuRunner, tmp_path: Path) -> None:
    task = SCRATCH.task(tmp_path / "sound", cpu.device)
    sound = built(cpu, task)
    assert isinstance(cpu.run(task, sound, EFFORT), Timing)
    # A candidate of the same problem that leaves its scratch memory full, in the same child.
    forgetful = replace(sound, path=built(cpu, FORGETFUL.task(tmp_path / "f", cpu.device)).path, sha256="forgetful")
    assert isinstance(cpu.run(task, forgetful, EFFORT), Failure)
    assert isinstance(cpu.run(task, sound, EFFORT), Timing)


def test_its_bounds_are_watched(cpu: CpuRunner, tmp_path: Path) -> None:
    failure = ran(cpu, PAST_THE_END, tmp_path)
    assert isinstance(failure, Failure)
    assert failure.outcome is Outcome.WRONG_RESULT
    assert "out of bounds of scratch: 4 bytes past the end" in failure.detail


def test_a_configuration_that_serves_as_reference_has_one_too(cpu: CpuRunner, tmp_path: Path) -> None:
    task = SCRATCH.task(tmp_path, cpu.device)
    kernel = replace(task.spec.kernel, reference=Reference(config={"THREADS": 64}), sha256="by configuration")
    task = replace(task, spec=replace(task.spec, kernel=kernel))
    assert isinstance(cpu.run(task, built(cpu, task), EFFORT), Timing)


def test_a_configuration_may_need_none(tmp_path: Path) -> None:
    kernel = replace(SCRATCH, parameters={"THREADS": (64, 128)}).kernel(tmp_path)
    spec = replace(SCRATCH.task(tmp_path, DEVICE).spec, kernel=kernel)
    artifacts = [Artifact(config, Path("x"), "zoo", "0", 0.0) for config in ParamSpace(kernel, spec.problem).all()]

    def sizes(shape: str) -> list[int]:
        arguments = [
            replace(a, shape=(Expression.parse(shape),)) if a.kind == "workspace" else a for a in kernel.arguments
        ]
        asked = replace(spec, kernel=replace(kernel, arguments=tuple(arguments)))
        return [plan.at_problem(asked, a, None)["program"]["scratch"][0]["shape"][0] for a in artifacts]

    assert sizes("THREADS - 64") == [0, 64]
    buffer = CpuDevice(0).allocate(0)
    buffer.fill(0)
    assert all((band == GUARD_PATTERN).all() for band in buffer.guards())
    with pytest.raises(ExpressionError, match="shape is -64"):
        sizes("THREADS - 128")


def test_configurations_with_other_scratch_memory_share_a_problem(tmp_path: Path) -> None:
    animal = replace(SCRATCH, parameters={"THREADS": (64, 1024)})
    kernel = animal.kernel(tmp_path)
    spec = replace(SCRATCH.task(tmp_path, DEVICE).spec, kernel=kernel)
    artifacts = [Artifact(config, Path("x"), "zoo", "0", 0.0) for config in ParamSpace(kernel, spec.problem).all()]
    requests = [plan.at_problem(spec, artifact, None) for artifact in artifacts]
    assert requests[0]["problem"] == requests[1]["problem"]
    assert [request["program"]["scratch"][0]["shape"] for request in requests] == [[3008], [3072]]
    edge = edges.edge(spec, artifacts[0], artifacts[0])
    assert edge is not None
    assert edge["program"]["scratch"][0]["shape"] == [1024]
    assert edge["problem"]["reference"]["scratch"] == []
