"""The shipped CUDA kernels on a GPU: right at every edge shape, and worth tuning."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import pytest

from tests.template_kernels import EDGE_SHAPES, FAMILIES, sampled, space_of, spec_of, template
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.nvrtc import NvrtcBuilder
from tuner_daemon.interfaces import Effort
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.measurement import Artifact, Ran, Timing
from tuner_daemon.records.space import Config
from tuner_daemon.records.task import Task
from tuner_daemon.runners.cuda import CudaRunner

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]

TUNED: dict[str, dict[str, Value]] = {  # what differs from the baseline
    "matmul": {"BM": 128, "BN": 128, "BK": 16, "TM": 8, "TN": 8, "VEC": 4, "UNROLL": 8, "STAGES": 2, "PAD": 4},
    "softmax": {"VEC": 4, "WORK": 8, "CACHE": 2, "ONLINE": 1, "REDUCE": "shuffle", "EXP": "fast"},
}
LARGE_SHAPES = {"matmul": (2048, 2048, 2048), "softmax": (8192, 8192)}


@pytest.fixture(scope="module")
def nvrtc(tmp_path_factory: pytest.TempPathFactory, arch: str) -> Iterator[NvrtcBuilder]:
    builder = NvrtcBuilder(BuildCache(tmp_path_factory.mktemp("cache"), 1 << 30), arch=arch, jobs=8)
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


def run_all(
    nvrtc: NvrtcBuilder, runner: CudaRunner, family: str, shape: Sequence[int], configs: Sequence[Config]
) -> dict[Config, Ran]:
    spec = spec_of(family, shape, kind="cuda")
    task = Task(spec, space_of(family), runner.device)
    built = list(nvrtc.build(spec, configs))
    artifacts = [item for item in built if isinstance(item, Artifact)]
    assert len(artifacts) == len(configs), built
    effort = Effort(samples=3, timeout_s=60.0)
    return {artifact.config: runner.run(task, artifact, effort) for artifact in artifacts}


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_candidates_are_right_at_edge_shapes(nvrtc: NvrtcBuilder, runner: CudaRunner, family: str) -> None:
    configs = sampled(family, 50, seed=31)
    for shape in EDGE_SHAPES[family]:
        for config, ran in run_all(nvrtc, runner, family, shape, configs).items():
            assert isinstance(ran, Timing), (shape, config.as_dict(), ran)


@pytest.mark.parametrize("family", FAMILIES)
def test_tuning_is_worth_it(nvrtc: NvrtcBuilder, runner: CudaRunner, family: str) -> None:
    baseline = template(family).baseline
    assert baseline is not None
    slow, fast = (space_of(family).config(values) for values in (baseline, {**baseline, **TUNED[family]}))
    ran = run_all(nvrtc, runner, family, LARGE_SHAPES[family], [slow, fast])
    median_s = {
        config: statistics.median(timing.times_s) for config, timing in ran.items() if isinstance(timing, Timing)
    }
    assert median_s[slow] > 1.2 * median_s[fast]
