"""Runners that work with a child process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.contracts import SLEEP_S, N, RunnerContract, affine_kernel
from tests.fakes_runner import FakeBuilder, FakeRunner
from tests.waiting import command_line, wait_until
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.gcc import GccBuilder
from tuner_daemon.errors import ClockError, DeviceError, KernelError, MissingPartError
from tuner_daemon.interfaces import Builder, Effort, Runner
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Argument, Kernel, Reference, Source, Work
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Timing
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.runners import child as child_module
from tuner_daemon.runners import plan
from tuner_daemon.runners.child import Child, ChildDiedError, ended
from tuner_daemon.runners.cpu import CpuRunner
from tuner_daemon.runners.cuda import CudaRunner
from tuner_daemon.worker.workspace import KEPT

GPU = DeviceInfo(
    "cuda",
    0,
    "a GPU",
    "GPU-0",
    "sm_90",
    attributes={
        "max_threads_per_block": 1024,
        "shared_bytes_per_block": 232448,
        "registers_per_sm": 65536,
        "peak_flops": 6e13,
        "peak_bytes_per_s": 4.8e12,
        "l2_bytes": 5e7,
    },
)


@pytest.fixture(scope="module")
def gcc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GccBuilder]:
    builder = GccBuilder(BuildCache(tmp_path_factory.mktemp("cache"), 1 << 28), jobs=1)
    yield builder
    builder.close()


class TestFakeRunner(RunnerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def kind(cls) -> str:
        return "cuda"

    @pytest.fixture(scope="class")
    @classmethod
    def builder(cls) -> Builder:
        return FakeBuilder()

    @pytest.fixture(scope="class")
    @classmethod
    def runner(cls) -> Runner:
        return FakeRunner(GPU)


class TestCpuRunner(RunnerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def kind(cls) -> str:
        return "cpu"

    @pytest.fixture(scope="class")
    @classmethod
    def builder(cls, gcc: GccBuilder) -> Builder:
        return gcc

    @pytest.fixture(scope="class")
    @classmethod
    def runner(cls, gcc: GccBuilder) -> Iterator[Runner]:
        runner = CpuRunner(gcc)
        yield runner
        runner.close()

    def test_it_tells_how_long_the_device_worked(self, runner: Runner, builder: Builder, task: Task) -> None:
        ran = runner.run(task, self.artifact(builder, task, "right"), self.effort(samples=3))
        assert isinstance(ran, Timing)
        assert ran.device_s > sum(ran.times_s), "checks and warm-up count"
        raced = runner.race(task, [self.artifact(builder, task, "right")], 2, 10.0)
        assert raced[0].device_s > 0

    def test_it_computes_where_builds_do(self, runner: Runner) -> None:
        assert runner.shares_cores

    def test_a_crash_is_told_with_its_signal_and_stage(self, runner: Runner, builder: Builder, task: Task) -> None:
        ran = runner.run(task, self.artifact(builder, task, "crash"), self.effort())
        assert isinstance(ran, Failure)
        assert ran.detail.startswith("killed by SIGSEGV while checking")

    def test_a_wrong_result_is_told_with_its_place_and_error(
        self, runner: Runner, builder: Builder, task: Task
    ) -> None:
        ran = runner.run(task, self.artifact(builder, task, "slightly_wrong"), self.effort())
        assert isinstance(ran, Failure)
        assert ran.error_norm is not None
        assert 1e-4 < ran.error_norm < 1e-2
        assert "y[" in ran.detail
        assert "want" in ran.detail

    def test_nothing_that_a_hanging_candidate_started_outlives_it(
        self, runner: Runner, builder: Builder, task: Task
    ) -> None:
        assert not sleeping()
        ran = runner.run(task, self.artifact(builder, task, "hang"), self.effort(timeout_s=self.too_long_s))
        assert isinstance(ran, Failure)
        wait_until(lambda: not sleeping() and not workers())

    def test_killing_the_process_group_alone_would_leave_something(
        self, runner: Runner, builder: Builder, task: Task, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control of the test above: the candidate does start what it must not."""

        killed = []

        def kill_group(pid: int, mark: str) -> None:
            killed.append((pid, mark))
            os.killpg(pid, signal.SIGKILL)

        kill_tree = child_module.kill_tree
        monkeypatch.setattr(child_module, "kill_tree", kill_group)
        runner.run(task, self.artifact(builder, task, "hang"), self.effort(timeout_s=self.too_long_s))
        left = sleeping()
        for pid, mark in killed:
            kill_tree(pid, mark)
        assert left
        wait_until(lambda: not sleeping())

    def test_a_candidate_that_wrote_out_of_bounds_is_not_trusted_with_the_worker(
        self, runner: Runner, builder: Builder, task: Task
    ) -> None:
        runner.run(task, self.artifact(builder, task, "right"), self.effort())
        kept = workers()
        runner.run(task, self.artifact(builder, task, "slightly_wrong"), self.effort())
        assert workers() == kept, "a wrong number alone is no reason for a new worker"
        runner.run(task, self.artifact(builder, task, "past_the_end"), self.effort())
        assert workers() == []

    def test_a_small_candidate_costs_less_than_ten_milliseconds(
        self, runner: Runner, builder: Builder, task: Task
    ) -> None:
        """At its best: the machine may be busy with other tests."""
        artifact = self.artifact(builder, task, "right")

        def took_s() -> float:
            began_s = time.perf_counter()
            assert isinstance(runner.run(task, artifact, self.effort(samples=7)), Timing)
            return time.perf_counter() - began_s

        assert any(took_s() < 0.010 for _ in range(200))


def sleeping() -> list[psutil.Process]:
    """Grandchildren that the candidate "hang" has sent to sleep in a session of their own."""
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", str(SLEEP_S)]]


def workers() -> list[int]:
    children = psutil.Process().children(recursive=True)
    return [p.pid for p in children if "tuner_daemon.worker" in command_line(p)]


def cpu_task(kernel: Kernel, runner: Runner) -> Task:
    spec = KernelSpec(kernel, {"n": N}, DeviceRequest("cpu"))
    return Task(spec, ParamSpace(kernel, spec.problem), runner.device)


def first_artifact(builder: Builder, task: Task, behaviour: str = "right") -> Artifact:
    config = task.space.config({"BEHAVIOUR": behaviour, "THREADS": 64})
    built = next(iter(builder.build(task.spec, [config])))
    assert isinstance(built, Artifact)
    return built


@pytest.fixture
def cpu(gcc: GccBuilder) -> Iterator[CpuRunner]:
    runner = CpuRunner(gcc)
    yield runner
    runner.close()


def test_a_reference_that_crashes_is_the_kernels_fault(cpu: CpuRunner, gcc: GccBuilder, tmp_path: Path) -> None:
    kernel = affine_kernel(tmp_path)
    (tmp_path / "reference.c").write_text("void affine_reference(void) { *(volatile int *)8 = 1; }")
    task = cpu_task(replace(kernel, sha256="1" * 64), cpu)
    with pytest.raises(KernelError, match="SIGSEGV"):
        cpu.run(task, first_artifact(gcc, task), Effort())


def test_a_reference_of_nothing_but_zeros_is_refused(cpu: CpuRunner, gcc: GccBuilder, tmp_path: Path) -> None:
    kernel = affine_kernel(tmp_path)
    text = "void affine_reference(const float *x, float *y, int n) { for (int i = 0; i < n; ++i) y[i] = 0; }"
    (tmp_path / "reference.c").write_text(text)
    task = cpu_task(replace(kernel, sha256="2" * 64), cpu)
    with pytest.raises(KernelError, match="zeros"):
        cpu.run(task, first_artifact(gcc, task), Effort())


def test_a_problem_that_the_worker_keeps_no_longer_is_prepared_anew_outside_of_a_candidates_time(
    cpu: CpuRunner, gcc: GccBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    request = Child.request

    def noting(self: Child, op: str, **payload: Any) -> dict[str, Any]:
        asked.append(op)
        return request(self, op, **payload)

    task = cpu_task(affine_kernel(tmp_path), cpu)
    artifact = first_artifact(gcc, task)
    monkeypatch.setattr(Child, "request", noting)

    def ops(n: int) -> list[str]:
        asked.clear()
        at_n = replace(task, spec=replace(task.spec, problem={"n": n}))
        assert isinstance(cpu.run(at_n, artifact, Effort(samples=1)), Timing)
        return list(asked)

    assert ops(2000)[-2:] == ["prepare", "run"]
    assert ops(2000) == ["run"], "it is kept"
    for n in range(2001, 2001 + KEPT):
        ops(n)
    assert ops(2000)[-2:] == ["prepare", "run"]
    assert ops(2000) == ["run"]


def test_a_configuration_may_be_the_reference(cpu: CpuRunner, gcc: GccBuilder, tmp_path: Path) -> None:
    kernel = replace(affine_kernel(tmp_path), reference=Reference(config={"BEHAVIOUR": "right", "THREADS": 128}))
    task = cpu_task(kernel, cpu)
    right = cpu.run(task, first_artifact(gcc, task), Effort(samples=1))
    assert isinstance(right, Timing)
    wrong = cpu.run(task, first_artifact(gcc, task, "slightly_wrong"), Effort())
    assert isinstance(wrong, Failure)


def test_a_kernels_own_tolerance_tightens_the_check(cpu: CpuRunner, gcc: GccBuilder, tmp_path: Path) -> None:
    """2 x + 1 in float32 differs from float64 by a rounding in some elements."""
    text = (
        "void affine_reference(const float *x, float *y, int n) { for (int i = 0; i < n; ++i) y[i] = 2*x[i]+1.000001; }"
    )
    kernel = affine_kernel(tmp_path)
    (tmp_path / "reference.c").write_text(text)
    task = cpu_task(replace(kernel, sha256="3" * 64), cpu)
    assert isinstance(cpu.run(task, first_artifact(gcc, task), Effort(samples=1)), Timing)
    tight = cpu_task(replace(kernel, sha256="3" * 64, tolerance=1e-8), cpu)
    assert isinstance(cpu.run(tight, first_artifact(gcc, tight), Effort(samples=1)), Failure)
    loose = cpu_task(replace(kernel, sha256="3" * 64, tolerance=0.5), cpu)
    wrong = cpu.run(loose, first_artifact(gcc, loose, "slightly_wrong"), Effort(samples=1))
    assert isinstance(wrong, Failure), "a tolerance cannot be loosened"


def test_a_time_below_the_roofline_is_not_published(cpu: CpuRunner, gcc: GccBuilder, tmp_path: Path) -> None:
    kernel = affine_kernel(tmp_path)
    lazy = replace(kernel, work=Work(Expression.parse("1000000000000 * n"), None))
    task = cpu_task(lazy, cpu)
    ran = cpu.run(task, first_artifact(gcc, task), Effort())
    assert isinstance(ran, Failure)
    assert ran.outcome is Outcome.DISTURBED
    assert "faster than the device" in ran.detail


def test_an_expression_without_a_value_fails_the_candidate(cpu: CpuRunner, gcc: GccBuilder, tmp_path: Path) -> None:
    kernel = affine_kernel(tmp_path)
    launch = replace(kernel.launch, grid=(Expression.parse("n // (THREADS - 64)"),))
    task = cpu_task(replace(kernel, launch=launch), cpu)
    ran = cpu.run(task, first_artifact(gcc, task), Effort())
    assert isinstance(ran, Failure)
    assert ran.outcome is Outcome.LAUNCH_FAILED


def test_constants_and_inout_arguments_are_given_afresh(cpu: CpuRunner, gcc: GccBuilder, tmp_path: Path) -> None:
    """Were y not restored before each launch, it would have grown away from what the reference gave."""
    source = "float w[4];\nvoid {}(float *y, int n) {{ for (int i = 0; i < n; ++i) y[i] += {}w[i % 4]; }}"
    kernel = affine_kernel(tmp_path, ["right", "slightly_wrong"])
    candidate = source.format("affine", "\n#ifdef BEHAVIOUR_SLIGHTLY_WRONG\n1.01f *\n#endif\n").replace("{{", "{")
    (tmp_path / "kernel.c").write_text(candidate)
    (tmp_path / "reference.c").write_text(source.format("affine_reference", ""))
    n = Expression.parse("n")
    arguments = (
        Argument("w", "constant", "float32", (Expression.parse("4"),)),
        Argument("y", "inout", "float32", (n,)),
        Argument("n", "scalar", "int", value=n),
    )
    task = cpu_task(replace(kernel, arguments=arguments, sha256="4" * 64), cpu)
    assert isinstance(cpu.run(task, first_artifact(gcc, task), Effort()), Timing)
    assert isinstance(cpu.run(task, first_artifact(gcc, task, "slightly_wrong"), Effort()), Failure)


def test_a_missing_symbol_is_a_failed_launch(cpu: CpuRunner, gcc: GccBuilder, tmp_path: Path) -> None:
    task = cpu_task(affine_kernel(tmp_path), cpu)
    artifact = replace(first_artifact(gcc, task), entry="nowhere_to_be_found")
    ran = cpu.run(task, artifact, Effort())
    assert isinstance(ran, Failure)
    assert ran.outcome is Outcome.LAUNCH_FAILED
    assert "nowhere_to_be_found" in ran.detail


def test_a_kernel_without_a_reference_for_the_language_is_refused(cpu: CpuRunner, tmp_path: Path) -> None:
    kernel = affine_kernel(tmp_path)
    only_cuda = Reference(sources={"cuda": Source("cuda", tmp_path / "reference.cu", "affine_reference")})
    task = cpu_task(replace(kernel, reference=only_cuda), cpu)
    artifact = Artifact(task.space.first(), tmp_path / "none.so", "affine", "0" * 64, 0.0)
    with pytest.raises(KernelError):
        cpu.run(task, artifact, Effort())


def test_a_clock_policy_that_a_device_cannot_keep_is_refused_with_a_remedy(gcc: GccBuilder, tmp_path: Path) -> None:
    with pytest.raises(MissingPartError, match="observe"):
        CpuRunner(clock_policy="pin")
    runner = CpuRunner(gcc, clock_policy="lock")
    try:
        task = cpu_task(affine_kernel(tmp_path), runner)
        with pytest.raises(ClockError, match="observe"):
            runner.run(task, first_artifact(gcc, task), Effort())
    finally:
        runner.close()


def test_a_cuda_device_that_is_not_there_is_a_missing_part_or_a_broken_device(gcc: GccBuilder) -> None:
    runner = CudaRunner(gcc, index=99)
    with pytest.raises((MissingPartError, DeviceError), match="cuda 99"):
        _ = runner.device
    assert workers() == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"block": [2048, 1, 1]}, "2048 threads"),
        ({"block": [1, 1, 128]}, "a block of"),
        ({"grid": [1, 70000, 1]}, "a grid of"),
        ({"grid": [0, 1, 1]}, "no launch"),
        ({"shared_bytes": 300000}, "shared memory"),
        ({"block": [1024, 1, 1]}, "registers"),
        ({}, ""),
    ],
)
def test_a_launch_beyond_the_devices_limits_is_screened(changed: dict[str, object], reason: str) -> None:
    launch = {"block": [256, 1, 1], "grid": [100, 1, 1], "shared_bytes": 0} | changed
    artifact = Artifact(Config.of({}), Path("none"), "f", "0" * 64, 0.0, registers=128, shared_bytes=16)
    refusal = plan.refusal(launch, artifact, GPU)
    assert refusal.startswith(reason) if not reason else reason in refusal


def test_the_floor_counts_bytes_only_where_no_cache_holds_them(tmp_path: Path) -> None:
    kernel = affine_kernel(tmp_path)
    small, large = (
        Task(spec, ParamSpace(kernel, spec.problem), GPU)
        for spec in (KernelSpec(kernel, {"n": n}, DeviceRequest("cuda")) for n in (1000, 1 << 28))
    )
    assert plan.floor_s(large, {"n": 1 << 28}) == pytest.approx(0.9 * 8 * (1 << 28) / 4.8e12)
    assert plan.floor_s(small, {"n": 1000}) == pytest.approx(0.9 * 2000 / 6e13)


def test_a_child_that_dies_says_how_and_what_it_had_printed() -> None:
    child = Child("cpu", 0)
    child.request("hello", timeout_s=60.0)
    with pytest.raises(ChildDiedError, match="exited with status 1") as told:
        child.request("run", timeout_s=60.0)
    assert "KeyError" in told.value.detail
    assert ended(-11) == "killed by SIGSEGV"


def test_a_replacement_starts_in_a_fraction_of_a_second() -> None:
    def took_s() -> float:
        began = time.perf_counter()
        child = Child("cpu", 0)
        child.request("hello", timeout_s=60.0)
        took = time.perf_counter() - began
        child.close()
        return took

    assert any(took_s() < 1.0 for _ in range(10)), "the machine may be busy with other tests"
    assert workers() == []
