"""The shipped CUDA kernels on a GPU: right at every edge problem, and worth tuning."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence

import pytest

from tests.families import FAMILIES, Family, Problem, binary, family
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.nvrtc import NvrtcBuilder
from tuner_daemon.interfaces import Effort
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Ran, Timing
from tuner_daemon.records.space import Config
from tuner_daemon.records.task import Task
from tuner_daemon.runners.cuda import CudaRunner

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]

SAMPLE = 50
SHARE_THAT_RUNS = 0.95  # the rest may be refused, by the compiler or at launch, but never wrong


@pytest.fixture(scope="module")
def nvrtc(tmp_path_factory: pytest.TempPathFactory, arch: str) -> Iterator[NvrtcBuilder]:
    builder = NvrtcBuilder(
        BuildCache(tmp_path_factory.mktemp("cache"), 1 << 30), arch=arch, jobs=len(os.sched_getaffinity(0))
    )
    yield builder
    builder.close()


@pytest.fixture(scope="module")
def arch() -> str:
    driver = pytest.importorskip("pycuda.driver")
    driver.init()
    major, minor = driver.Device(0).compute_capability()
    return f"sm_{major}{minor}"


@pytest.fixture(scope="module")
def runner(nvrtc: NvrtcBuilder) -> Iterator[CudaRunner]:
    runner = CudaRunner(nvrtc, index=0)
    yield runner
    runner.close()


class Built:
    """Candidates of one family, each built once for all problems that its binary serves."""

    def __init__(self, nvrtc: NvrtcBuilder, runner: CudaRunner, of: Family) -> None:
        self._nvrtc, self._runner, self._of = nvrtc, runner, of
        self._built: dict[tuple[Value, ...], list[Artifact | Failure]] = {}

    def run(self, problem: Problem, configs: Sequence[Config]) -> dict[Config, Ran]:
        """``configs``: the same for all problems with the same text values."""
        spec = self._of.spec(problem, kind="cuda")
        task = Task(spec, self._of.space(problem), self._runner.device)
        if binary(problem) not in self._built:
            self._built[binary(problem)] = list(self._nvrtc.build(spec, configs))
        effort = Effort(samples=3, timeout_s=60.0)
        return {
            item.config: item if isinstance(item, Failure) else self._runner.run(task, item, effort)
            for item in self._built[binary(problem)]
        }


@pytest.mark.parametrize("name", FAMILIES)
def test_sampled_candidates_are_right_at_edge_problems(nvrtc: NvrtcBuilder, runner: CudaRunner, name: str) -> None:
    of = family(name)
    built = Built(nvrtc, runner, of)
    refused: list[str] = []
    count = 0
    for problem in of.edge_problems:
        for config, ran in built.run(problem, of.sampled(SAMPLE, 31, problem)).items():
            count += 1
            if isinstance(ran, Failure):
                said = f"{config.as_dict()} at {problem}: {ran.outcome}, {ran.detail}"
                assert ran.outcome in (Outcome.BUILD_FAILED, Outcome.LAUNCH_FAILED), said
                refused.append(said)
    assert count >= len(of.edge_problems) * SAMPLE
    assert len(refused) <= (1 - SHARE_THAT_RUNS) * count, refused[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_tuning_is_worth_it(nvrtc: NvrtcBuilder, runner: CudaRunner, name: str) -> None:
    of = family(name)
    slow, fast = (Config.of(values) for values in (of.baseline, {**of.baseline, **of.module.TUNED}))
    ran = Built(nvrtc, runner, of).run(of.module.LARGE_PROBLEM, [slow, fast])
    median_s = {
        config: statistics.median(timing.times_s) for config, timing in ran.items() if isinstance(timing, Timing)
    }
    print(f"{name}: {median_s[slow] * 1e6:.1f} µs as one writes it first, {median_s[fast] * 1e6:.1f} µs tuned")
    assert median_s[slow] > 1.2 * median_s[fast]
