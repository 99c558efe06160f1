"""Kernels that cheat are refused, for the right reason, and honest ones are not: on a GPU."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.families import FAMILIES, Problem, family
from tests.zoo_kernels import CHEATS, CUDA_CHEATS, HONEST, Animal, cheat
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.cuda import cuda_builder
from tuner_daemon.interfaces import Effort
from tuner_daemon.records.measurement import Artifact, Failure, Ran, Timing
from tuner_daemon.records.task import Task
from tuner_daemon.runners.cuda import CudaRunner

pytestmark = pytest.mark.gpu

EFFORT = Effort(samples=7, timeout_s=60.0)
ALL_CHEATS = {**CHEATS, **CUDA_CHEATS}
LARGE = {"rows": 4096, "cols": 3000}  # not timed several launches at a time, and three input sets


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaRunner]:
    runner = CudaRunner(index=0)
    cache = BuildCache(tmp_path_factory.mktemp("cache"), 1 << 30)
    builder = cuda_builder(cache, arch=runner.device.arch, jobs=4)
    runner.builder = builder
    yield runner
    runner.close()
    builder.close()


def run_all(runner: CudaRunner, animal: Animal, folder: Path) -> list[Ran]:
    task = animal.task(folder, runner.device)
    assert runner.builder is not None
    built = list(runner.builder.build(task.spec, task.space.all()))
    artifacts = [item for item in built if isinstance(item, Artifact)]
    assert len(artifacts) == len(built), built
    return [runner.run(task, artifact, EFFORT) for artifact in artifacts]


@pytest.mark.parametrize("name", ALL_CHEATS)
def test_a_cheat_is_refused(cuda: CudaRunner, tmp_path: Path, name: str) -> None:
    (ran,) = run_all(cuda, cheat(name), tmp_path)
    outcome, said = ALL_CHEATS[name]
    assert isinstance(ran, Failure), ran
    assert cuda.checked_by == "device"
    assert ran.outcome is outcome, ran.detail
    assert re.search(said, ran.detail), ran.detail


SMALL_ONLY = {
    "fixed_shape",  # it is another one
    "soon_after_another",  # launches do not follow each other closely
    "soon_after_another_on_known_data",
    "right_for_15_calls",  # there are not as many
    "nothing_after_12_calls",
    "past_the_end_when_timed",
}


@pytest.mark.parametrize("name", [name for name in ALL_CHEATS if name not in SMALL_ONLY])
def test_a_cheat_is_refused_at_a_large_problem(cuda: CudaRunner, tmp_path: Path, name: str) -> None:
    animal = cheat(name)
    (ran,) = run_all(cuda, replace(animal, problem={**animal.problem, **LARGE}), tmp_path)
    assert isinstance(ran, Failure), ran
    assert ran.outcome is ALL_CHEATS[name][0], ran.detail


@pytest.mark.parametrize("animal", HONEST, ids=lambda animal: animal.name)
def test_an_honest_kernel_is_not_refused(cuda: CudaRunner, tmp_path: Path, animal: Animal) -> None:
    for ran in run_all(cuda, animal, tmp_path):
        assert isinstance(ran, Timing), ran


@pytest.mark.parametrize("name", FAMILIES)
def test_no_shipped_candidate_is_refused(cuda: CudaRunner, name: str) -> None:
    of = family(name)
    assert cuda.builder is not None
    for problem in of.variants:
        spec = of.spec(problem, kind="cuda")
        task = Task(spec, of.space(problem), cuda.device)
        for item in cuda.builder.build(spec, of.sampled(10, 41, problem)):
            assert isinstance(item, Artifact)
            ran = cuda.run(task, item, EFFORT)
            assert isinstance(ran, Timing), (item.config.as_dict(), ran)


def test_checking_a_large_candidate_costs_little_beside_its_launches(cuda: CudaRunner) -> None:
    """Twelve launches and 45 ms; at best of five, since the first computes the reference."""
    of = family("matmul")
    problem: Problem = {**of.module.LARGE_PROBLEM, "m": 4096, "n": 4096, "k": 4096}
    spec, space = of.spec(problem, kind="cuda"), of.space(problem)
    task = Task(spec, space, cuda.device)
    assert cuda.builder is not None
    artifact = next(iter(cuda.builder.build(spec, [space.config({**of.baseline, **of.module.TUNED})])))
    assert isinstance(artifact, Artifact)
    took_s = []
    for _ in range(5):
        began_s = time.perf_counter()
        assert isinstance(cuda.run(task, artifact, EFFORT), Timing)
        took_s.append(time.perf_counter() - began_s)
    print(f"a candidate takes {min(took_s) * 1e3:.1f} ms")
    assert min(took_s) < 0.1
