"""The CUDA runner on a real device. Run with ``pytest -m gpu tests/gpu``."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.contracts import RunnerContract, affine_kernel
from tests.waiting import command_line
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.cuda import cuda_builder
from tuner_daemon.errors import DeviceError
from tuner_daemon.interfaces import Builder, Effort, Runner
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Argument, Kernel
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Timing
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.runners.clocks import LOOK_EVERY_S, NvmlClocks
from tuner_daemon.runners.cuda import CudaRunner

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaRunner]:
    runner = CudaRunner(index=0)
    cache = BuildCache(tmp_path_factory.mktemp("cache"), 1 << 30)
    builder = cuda_builder(cache, arch=runner.device.arch, jobs=2)
    runner.builder = builder
    yield runner
    runner.close()
    builder.close()


def task_of(kernel: Kernel, runner: Runner, n: int) -> Task:
    spec = KernelSpec(kernel, {"n": n}, DeviceRequest("cuda"))
    return Task(spec, ParamSpace(kernel, spec.problem), runner.device)


def artifact_of(runner: CudaRunner, task: Task, behaviour: str = "right", threads: int = 128) -> Artifact:
    assert runner.builder is not None
    config = task.space.config({"BEHAVIOUR": behaviour, "THREADS": threads})
    built = next(iter(runner.builder.build(task.spec, [config])))
    assert isinstance(built, Artifact), built
    return built


def workers() -> list[int]:
    children = psutil.Process().children(recursive=True)
    return [p.pid for p in children if "tuner_daemon.worker" in command_line(p)]


class TestCudaRunner(RunnerContract):
    too_long_s = 4.0

    @pytest.fixture(scope="class")
    @classmethod
    def kind(cls) -> str:
        return "cuda"

    @pytest.fixture(scope="class")
    @classmethod
    def runner(cls, cuda: CudaRunner) -> Runner:
        return cuda

    @pytest.fixture(scope="class")
    @classmethod
    def builder(cls, cuda: CudaRunner) -> Builder:
        assert cuda.builder is not None
        return cuda.builder

    def test_too_many_threads_are_a_failed_launch(self, runner: Runner, builder: Builder, task: Task) -> None:
        ran = runner.run(task, self.artifact(builder, task, "right", threads=4096), self.effort())
        assert isinstance(ran, Failure)
        assert ran.outcome is Outcome.LAUNCH_FAILED
        assert "4096 threads" in ran.detail

    def test_an_illegal_address_costs_the_worker_and_nothing_else(
        self, runner: Runner, builder: Builder, task: Task
    ) -> None:
        runner.run(task, self.artifact(builder, task, "right"), self.effort(samples=1))
        before = workers()
        ran = runner.run(task, self.artifact(builder, task, "crash"), self.effort())
        assert isinstance(ran, Failure)
        assert "illegal memory access" in ran.detail
        assert workers() == []
        assert isinstance(runner.run(task, self.artifact(builder, task, "right"), self.effort()), Timing)
        assert workers() != before


def test_the_device_is_described_by_its_driver(cuda: CudaRunner) -> None:
    device = cuda.device
    assert device.arch.startswith("sm_")
    assert device.uuid.startswith("GPU-")
    assert device.runtime.startswith("CUDA ")
    assert not cuda.shares_cores
    expected = {"sm_count", "warp_size", "max_threads_per_block", "shared_bytes_per_block", "l2_bytes"}
    assert expected <= set(device.attributes)
    assert 1e12 < device.attributes["peak_flops"] < 1e15


def test_a_device_that_is_not_there_is_said_to_be_so() -> None:
    with pytest.raises(DeviceError, match="no CUDA device 99"):
        _ = CudaRunner(index=99).device


def test_a_memory_bound_kernel_runs_at_a_believable_bandwidth(cuda: CudaRunner, tmp_path: Path) -> None:
    n = 1 << 27
    task = task_of(affine_kernel(tmp_path), cuda, n)
    ran = cuda.run(task, artifact_of(cuda, task), Effort(samples=7, timeout_s=120.0))
    assert isinstance(ran, Timing), ran
    share = 8 * n / ran.median_s / cuda.device.attributes["peak_bytes_per_s"]
    assert 0.3 < share < 1.0
    assert ran.occupancy is not None
    assert 0.5 <= ran.occupancy <= 1.0
    spread = statistics.stdev(ran.times_s) / ran.median_s
    assert spread < 0.1


def test_launches_of_a_few_microseconds_are_told_apart_from_launch_overhead(cuda: CudaRunner, tmp_path: Path) -> None:
    task = task_of(affine_kernel(tmp_path), cuda, 1000)
    ran = cuda.run(task, artifact_of(cuda, task), Effort(samples=15))
    assert isinstance(ran, Timing), ran
    assert 0.2e-6 < ran.median_s < 20e-6


def test_a_cold_cache_costs_time_and_warm_is_recorded_beside_it(cuda: CudaRunner, tmp_path: Path) -> None:
    task = task_of(affine_kernel(tmp_path), cuda, 3 << 20)
    ran = cuda.run(task, artifact_of(cuda, task), Effort(samples=15))
    assert isinstance(ran, Timing), ran
    assert ran.warm_median_s is not None
    assert ran.warm_median_s > 0


def test_one_binary_is_no_faster_than_itself(cuda: CudaRunner, tmp_path: Path) -> None:
    task = task_of(affine_kernel(tmp_path), cuda, 1 << 25)
    artifact = artifact_of(cuda, task)
    first, second = cuda.race(task, [artifact, artifact], 15, 60.0)
    assert isinstance(first, Timing)
    assert isinstance(second, Timing)
    assert first.median_s == pytest.approx(second.median_s, rel=0.02)


CAREFUL_CU = """
extern "C" __global__ void affine(const float *x, float *y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int middle = n / 2 + 77;
#if defined(BEHAVIOUR_UNWRITTEN)
  if (i == middle) return;
#endif
  if (i < n) y[i] = 2.0f * x[i] + 1.0f;
#if defined(BEHAVIOUR_ONE_PER_CENT)
  if (i == middle) y[i] *= 1.01f;
#elif defined(BEHAVIOUR_NAN)
  if (i == middle) y[i] = 0.0f / 0.0f;
#elif defined(BEHAVIOUR_INFINITE)
  if (i == middle) y[i] = 1.0f / 0.0f;
#elif defined(BEHAVIOUR_INPUT)
  if (i == middle) ((float *)x)[i] += 1.0f;
#elif defined(BEHAVIOUR_AFTER)
  if (i == middle) ((char *)(y + n))[4095] = 1;
#elif defined(BEHAVIOUR_BEFORE)
  if (i == middle) ((char *)y)[-4096] = 1;
#elif defined(BEHAVIOUR_ZERO)
  if (i < n) y[i] = 0.0f;
#endif
}
"""
MISTAKES = {
    "unwritten": "is nan, want",
    "one_per_cent": "in norm and",
    "nan": "not finite",
    "infinite": "not finite",
    "input": "changed its input x",
    "after": "1 bytes past the end",
    "before": "1 bytes before the start",
    "zero": "in norm and",
}
MANY = 10_000_019


@pytest.fixture(scope="module")
def careful(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """The affine kernel with mistakes in a single place among ten million."""
    folder = tmp_path_factory.mktemp("careful")
    kernel = affine_kernel(folder, ["right", *MISTAKES])
    (folder / "kernel.cu").write_text(CAREFUL_CU)
    return replace(kernel, sha256="c" * 64)


class HostCheckedRunner(CudaRunner):
    """As with a builder that cannot build the worker's own kernels."""

    def _checks(self) -> str | None:
        return None


def test_the_device_checks_large_outputs_itself_and_finds_what_the_host_finds(
    cuda: CudaRunner, careful: Kernel
) -> None:
    task = task_of(careful, cuda, MANY)
    by_device = cuda.run(task, artifact_of(cuda, task), Effort(samples=1, timeout_s=60.0))
    assert cuda.checked_by == "device"
    assert isinstance(by_device, Timing), by_device
    slow = HostCheckedRunner(cuda.builder)
    by_host = slow.run(task, artifact_of(cuda, task), Effort(samples=1, timeout_s=60.0))
    assert slow.checked_by == "host"
    slow.close()
    assert isinstance(by_host, Timing), by_host
    assert by_device.error_norm == pytest.approx(by_host.error_norm, rel=0.05), "their inputs differ"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_mistake_among_ten_million_elements_is_refused(cuda: CudaRunner, careful: Kernel, mistake: str) -> None:
    task = task_of(careful, cuda, MANY)
    ran = cuda.run(task, artifact_of(cuda, task, mistake), Effort(timeout_s=60.0))
    assert cuda.checked_by == "device"
    assert isinstance(ran, Failure), ran
    assert ran.outcome is Outcome.WRONG_RESULT
    assert MISTAKES[mistake] in ran.detail
    following = cuda.run(task, artifact_of(cuda, task), Effort(samples=1, timeout_s=60.0))
    assert isinstance(following, Timing), following


def test_a_candidate_with_large_arrays_costs_little_more_than_its_launches(cuda: CudaRunner, careful: Kernel) -> None:
    """Copying and comparing its 128 MB on the host would take a second."""
    task = task_of(careful, cuda, 1 << 24)
    artifact, took_s = artifact_of(cuda, task), []
    for _ in range(6):
        began_s = time.perf_counter()
        assert isinstance(cuda.run(task, artifact, Effort(timeout_s=60.0)), Timing)
        took_s.append(time.perf_counter() - began_s)
    assert min(took_s) < 0.05


def test_a_look_at_the_clocks_is_cheap_and_sees_no_stranger_in_our_worker(cuda: CudaRunner) -> None:
    clocks = NvmlClocks(cuda.device.uuid)
    clocks.read()
    began_s = time.perf_counter()
    readings = [clocks.read() for _ in range(50)]
    assert (time.perf_counter() - began_s) / 50 < LOOK_EVERY_S / 2
    assert all(reading.sm_mhz for reading in readings)
    assert not {pid for reading in readings for pid in reading.others} & {os.getpid(), *workers()}


def test_clocks_are_read_and_left_alone(cuda: CudaRunner, tmp_path: Path) -> None:
    task = task_of(affine_kernel(tmp_path), cuda, 1000)
    ran = cuda.run(task, artifact_of(cuda, task), Effort(samples=3))
    assert (ran.clocks.policy, ran.clocks.mode) == ("observe", "free")
    assert ran.clocks.sm_mhz is None or 0 < ran.clocks.sm_mhz[0] <= ran.clocks.sm_mhz[1]


SHARED_CU = """
extern "C" __global__ void affine(const float *x, float *y, int n) {
  extern __shared__ float tile[];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int far = SHARED_FLOATS - 1 - threadIdx.x;
  if (i < n) tile[far] = w[1] * x[i] + w[0];
  __syncthreads();
  if (i < n) y[i] = tile[far];
}
"""
CONSTANT_REFERENCE_CU = """
__constant__ float w[2];
extern "C" __global__ void affine_reference(const float *x, float *y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = (float)((double)w[1] * x[i] + (double)w[0]);
}
"""


def shared_kernel(folder: Path, shared_floats: int) -> Kernel:
    """The affine kernel through dynamic shared memory, its coefficients in constant memory."""
    kernel = affine_kernel(folder, ["right"])
    text = f"#define SHARED_FLOATS {shared_floats}\n__constant__ float w[2];\n{SHARED_CU}"
    (folder / "kernel.cu").write_text(text)
    (folder / "reference.cu").write_text(CONSTANT_REFERENCE_CU)
    constant = Argument("w", "constant", "float32", (Expression.parse("2"),))
    launch = replace(kernel.launch, shared_bytes=Expression.parse(str(4 * shared_floats)))
    return replace(kernel, arguments=(constant, *kernel.arguments), launch=launch, sha256=f"{shared_floats:064d}")


def test_large_shared_memory_is_asked_for_and_constants_are_filled(cuda: CudaRunner, tmp_path: Path) -> None:
    limit = int(cuda.device.attributes["shared_bytes_per_block"])
    task = task_of(shared_kernel(tmp_path, limit // 4), cuda, 1000)
    ran = cuda.run(task, artifact_of(cuda, task), Effort())
    assert isinstance(ran, Timing), ran


def test_more_shared_memory_than_there_is_fails_the_launch(cuda: CudaRunner, tmp_path: Path) -> None:
    limit = int(cuda.device.attributes["shared_bytes_per_block"])
    task = task_of(shared_kernel(tmp_path, limit // 4 + 1), cuda, 1000)
    ran = cuda.run(task, artifact_of(cuda, task), Effort())
    assert isinstance(ran, Failure)
    assert ran.outcome is Outcome.LAUNCH_FAILED
    assert "shared memory" in ran.detail
