"""Kernels that cheat are refused, for the right reason, and honest ones are not: in C, on the processor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.zoo_kernels import CHEATS, CUDA_CHEATS, HONEST, ONLY_IN_A_ROW, ZOO, Animal, cheat, faulty
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.gcc import GccBuilder
from tuner_daemon.builders.nvrtc import NvrtcBuilder
from tuner_daemon.interfaces import Builder, Effort
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.measurement import Artifact, Failure, Ran, Timing
from tuner_daemon.runners.cpu import CpuRunner

EFFORT = Effort(samples=7, timeout_s=30.0)


@pytest.fixture(scope="module")
def gcc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GccBuilder]:
    builder = GccBuilder(BuildCache(tmp_path_factory.mktemp("cache"), 1 << 28), jobs=2)
    yield builder
    builder.close()


@pytest.fixture(scope="module")
def cpu(gcc: GccBuilder) -> Iterator[CpuRunner]:
    runner = CpuRunner(gcc)
    yield runner
    runner.close()


def run_all(runner: CpuRunner, builder: Builder, animal: Animal, folder: Path) -> list[Ran]:
    task = animal.task(folder, runner.device)
    built = list(builder.build(task.spec, task.space.all()))
    artifacts = [item for item in built if isinstance(item, Artifact)]
    assert len(artifacts) == len(built), built
    return [runner.run(task, artifact, EFFORT) for artifact in artifacts]


@pytest.mark.parametrize("name", [name for name in CHEATS if name not in ONLY_IN_A_ROW])
def test_a_cheat_is_refused(cpu: CpuRunner, gcc: GccBuilder, tmp_path: Path, name: str) -> None:
    (ran,) = run_all(cpu, gcc, cheat(name), tmp_path)
    outcome, said = CHEATS[name]
    assert isinstance(ran, Failure), ran
    assert ran.outcome is outcome, ran.detail
    assert re.search(said, ran.detail)


@pytest.mark.parametrize("animal", HONEST, ids=lambda animal: animal.name)
def test_an_honest_kernel_is_not_refused(cpu: CpuRunner, gcc: GccBuilder, tmp_path: Path, animal: Animal) -> None:
    for ran in run_all(cpu, gcc, animal, tmp_path):
        assert isinstance(ran, Timing), ran


def test_every_kernel_of_the_zoo_is_in_a_table() -> None:
    assert {file.stem for file in (ZOO / "cheats").glob("*.inl")} == set(CHEATS)
    assert {file.stem for file in (ZOO / "cheats").glob("*.cu")} == set(CUDA_CHEATS)
    assert {file.stem for file in (ZOO / "honest").glob("*.inl")} == {
        a.name.split("_float")[0].split("_bf")[0] for a in HONEST
    }


@pytest.mark.parametrize("animals", [[cheat(n) for n in (*CHEATS, *CUDA_CHEATS)], HONEST], ids=["cheats", "honest"])
def test_all_compile_for_a_gpu(tmp_path: Path, animals: Sequence[Animal]) -> None:
    builder = NvrtcBuilder(BuildCache(tmp_path / "cache", 1 << 28), arch="sm_90", jobs=2)
    for number, animal in enumerate([*animals, faulty({"n": 1000, "rounds": 100})]):
        task = animal.task(tmp_path / str(number), DeviceInfo("cuda", 0, "any", "any", "sm_90"))
        assert builder.build_reference(task.spec).path.is_file(), animal.name
        for item in builder.build(task.spec, task.space.all()):
            assert isinstance(item, Artifact), (animal.name, item)
    builder.close()
