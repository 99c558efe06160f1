"""The device's own comparisons say what the host's say. The kernels of checks.cu run on an emulator."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.contracts import RunnerContract, affine_kernel
from tests.fakes_runner import FakeBuilder
from tests.increment import increment_candidate, stored_problem
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.gcc import GccBuilder
from tuner_daemon.builders.nvrtc import NvrtcBuilder
from tuner_daemon.errors import KernelError
from tuner_daemon.interfaces import Builder, Effort, Runner
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Timing
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.runners.checks import SOURCE, build_checks, checks_spec
from tuner_daemon.runners.cpu import CpuRunner
from tuner_daemon.worker import arrays, harness
from tuner_daemon.worker.checking import HostReference, Sums
from tuner_daemon.worker.cpu_device import CpuBuffer, CpuDevice
from tuner_daemon.worker.device import GUARD_PATTERN, RefusedError
from tuner_daemon.worker.device_checks import DeviceChecks
from tuner_daemon.worker.kept import DeviceKept, HostKept, as_bytes
from tuner_daemon.worker.messages import Array
from tuner_daemon.worker.workspace import Seen, Workspace, Workspaces

EMULATED = ROOT / "tests" / "cuda_on_cpu" / "checks.cpp"
FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator is compiled with g++")


def emulated(folder: Path, *options: str) -> Path:
    library = folder / "checks.so"
    sizes = ("-DCHECK_BLOCKS=3", "-DCHECK_THREADS=32")
    command = ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", *sizes, *options]
    subprocess.run([*command, f'-DKERNEL="{SOURCE}"', str(EMULATED), "-o", str(library)], check=True)
    return library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emulated(tmp_path_factory.mktemp("checks"))


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice(0)


@pytest.fixture(scope="module")
def checks(device: CpuDevice, library: Path) -> DeviceChecks:
    return DeviceChecks(device, library)


def buffer_of(device: CpuDevice, values: arrays.HostArray) -> CpuBuffer:
    buffer = device.allocate(values.nbytes)
    buffer.write(as_bytes(values))
    return buffer


def array_of(dtype: str, n: int) -> Array:
    return Array("v", "output", dtype, (n,), "normal")


def assert_equal_sums(one: Sums, other: Sums) -> None:
    """Counts and maxima are the same; sums were added up in another order."""
    assert replace(one, square=0.0, reference_square=0.0) == replace(other, square=0.0, reference_square=0.0)
    assert one.square == pytest.approx(other.square, rel=1e-12)
    assert one.reference_square == pytest.approx(other.reference_square, rel=1e-12)


# Sums


@needs_gxx
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "tf32"])
@pytest.mark.parametrize("n", [1, 95, 1000])
def test_the_device_adds_up_what_the_host_does(device: CpuDevice, checks: DeviceChecks, dtype: str, n: int) -> None:
    array = array_of(dtype, n)
    want, other = (arrays.make(array, seed, "normal", 0) for seed in (0, 1))
    poisoned = want.copy()
    poisoned[n // 2 :].view(np.uint8)[:] = arrays.poison_byte(array)
    for out in (want, other, poisoned, np.zeros_like(want), np.roll(want, 1)):
        seen = checks.sums(buffer_of(device, out), buffer_of(device, want), array)
        assert_equal_sums(seen, HostReference(array, want).sums(out))
        assert_equal_sums(seen, plainly(array, out, want))


def plainly(array: Array, out: arrays.HostArray, want: arrays.HostArray) -> Sums:
    """Written as the text of Sums says it."""
    got, wanted = (arrays.numbers(v, array.dtype).reshape(-1).astype(np.float64) for v in (out, want))
    asked = np.isfinite(wanted)
    both = asked & np.isfinite(got)
    difference = np.abs(got[both] - wanted[both])
    return Sums(
        elements=got.size,
        square=float((difference**2).sum()),
        peak=float(difference.max(initial=0.0)),
        reference_square=float((wanted[asked] ** 2).sum()),
        reference_peak=float(np.abs(wanted[asked]).max(initial=0.0)),
        unfinite=int((asked & ~np.isfinite(got)).sum()),
        differing=0 if arrays.is_floating(array.dtype) else int((out != want).sum()),
    )


@needs_gxx
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_numbers_that_are_not_finite_or_hardly_there_are_read_alike(
    device: CpuDevice, checks: DeviceChecks, dtype: str
) -> None:
    narrow = np.float32 if dtype == "bfloat16" else np.dtype(dtype).type
    tiny = np.finfo(narrow).smallest_subnormal if dtype != "bfloat16" else 2.0**-133
    numbers = np.array([0.0, -0.0, 1.5, -2.0, tiny, -tiny, np.inf, -np.inf, np.nan, 60000.0], narrow)
    out, want = np.repeat(numbers, numbers.size), np.tile(numbers, numbers.size)
    if dtype == "bfloat16":
        out, want = arrays.to_bfloat16(out), arrays.to_bfloat16(want)
    array = array_of(dtype, out.size)
    seen = checks.sums(buffer_of(device, out), buffer_of(device, want), array)
    assert seen.unfinite == 21
    assert_equal_sums(seen, HostReference(array, want).sums(out))
    assert_equal_sums(seen, plainly(array, out, want))


@needs_gxx
def test_every_half_is_the_number_that_it_is(device: CpuDevice, checks: DeviceChecks) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    array = array_of("float16", halves.size)
    zeros = np.zeros_like(halves)
    seen = checks.sums(buffer_of(device, zeros), buffer_of(device, halves), array)
    assert_equal_sums(seen, plainly(array, zeros, halves))
    assert seen.reference_peak == 65504.0


# Bytes


@needs_gxx
@pytest.mark.parametrize("nbytes", [1, 7, 8, 1000, 4003])
def test_one_changed_byte_is_seen_wherever_it_is(device: CpuDevice, checks: DeviceChecks, nbytes: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    kept = buffer_of(device, data)
    (fingerprint,) = checks.fingerprints([kept])
    for at in {0, nbytes // 2, nbytes - 1}:
        changed = data.copy()
        changed[at] ^= 1
        buffer = buffer_of(device, changed)
        assert checks.examine([], [(kept, kept), (buffer, kept)], []).same == [True, False]
        assert checks.fingerprints([buffer, kept])[1] == fingerprint
        assert checks.fingerprints([buffer, kept])[0] != fingerprint


@needs_gxx
def test_exchanged_words_have_another_fingerprint(device: CpuDevice, checks: DeviceChecks) -> None:
    one = np.arange(64, dtype=np.uint64)
    first, second = checks.fingerprints([buffer_of(device, one), buffer_of(device, one[::-1])])
    assert first != second


@needs_gxx
@pytest.mark.parametrize("nbytes", [1, 64, 4000])
def test_a_byte_in_a_guard_band_is_seen_wherever_it_is(device: CpuDevice, checks: DeviceChecks, nbytes: int) -> None:
    whole, buffer = (buffer_of(device, np.full(nbytes, GUARD_PATTERN - 1, np.uint8)) for _ in range(2))
    before, after = buffer.guards()
    assert buffer.guard_bytes == (before.size, after.size)
    assert checks.examine([], [], [whole, buffer]).guards == [(0, 0), (0, 0)]
    before[0] = after[0] = after[-1] = 0
    assert checks.examine([], [], [whole, buffer]).guards == [(0, 0), (1, 2)]


# Whether to believe the device


@needs_gxx
def test_a_device_that_counts_wrongly_is_not_believed(device: CpuDevice, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"does not count|did not compare"):
        DeviceChecks(device, emulated(tmp_path, "-DIGNORE_BARRIERS"))


def test_what_cannot_be_loaded_is_refused(device: CpuDevice, tmp_path: Path) -> None:
    (tmp_path / "no.so").write_text("nothing")
    with pytest.raises(RefusedError):
        DeviceChecks(device, tmp_path / "no.so")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_kernels_compile_for_a_gpu(arch: str, tmp_path: Path) -> None:
    builder = NvrtcBuilder(BuildCache(tmp_path, 1 << 28), arch=arch, jobs=1)
    try:
        built = build_checks(builder)
    finally:
        builder.close()
    assert built is not None
    assert built.spill_bytes == 0
    entries = {f"compare_{dtype}" for dtype in (*FLOATS[:4], *INTEGERS[:8])}
    content = built.path.read_bytes()
    for entry in entries | {"differing_words", "broken_guards", "fingerprint"}:
        assert entry.encode() in content


def test_without_a_compiler_there_are_no_checks() -> None:
    class Refusing(FakeBuilder):
        def build_reference(self, spec: KernelSpec) -> Artifact:
            raise KernelError(f"{spec.kernel.name} does not compile")

    assert build_checks(Refusing()) is None
    assert checks_spec().kernel.reference.sources["cuda"].file.is_file()


# What is kept on the device


@needs_gxx
def test_references_lie_on_the_device_where_it_has_room(
    checks: DeviceChecks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, problem = CpuDevice(0), stored_problem(tmp_path)
    for free_bytes, kinds in ((1 << 20, {DeviceKept}), (32, {DeviceKept, HostKept}), (31, {HostKept})):
        monkeypatch.setattr(device, "free_bytes", lambda free_bytes=free_bytes: free_bytes)
        (only,) = Workspace(device, problem, checks).sets
        assert {type(kept) for kept in (*only.inputs.values(), *only.expected.values())} == kinds
        assert only.expected["y"].values().tolist() == [1.0, 2.0, 3.0, 4.0]


@needs_gxx
def test_a_slot_notices_what_has_been_written_where_it_must_not(
    device: CpuDevice, checks: DeviceChecks, tmp_path: Path
) -> None:
    workspace = Workspace(device, stored_problem(tmp_path), checks)
    _, slot = workspace.loaded(0)
    slot.reset()
    assert (slot.seen(), workspace.intact()) == (Seen([], None, None), True)
    output, given = slot.buffers["y"], slot.buffers["x"]
    assert isinstance(output, CpuBuffer)
    assert isinstance(given, CpuBuffer)
    output.guards()[1][0] = 0
    assert slot.seen().broken_guard == "y: 1 bytes past the end"
    given.payload[0] = 9
    assert slot.seen().changed_input == "x"
    workspace.heal()
    workspace.loaded(0)
    assert slot.seen() == Seen([], None, None)


def overwrite(workspace: Workspace) -> None:
    kept = workspace.sets[0].expected["y"]
    assert isinstance(kept, DeviceKept)
    kept.buffer.write(np.zeros(16, np.uint8))


@needs_gxx
@pytest.mark.parametrize("far", [False, True])
def test_a_candidate_that_writes_over_the_references_is_told_apart_from_a_right_one(
    checks: DeviceChecks, tmp_path: Path, far: bool
) -> None:
    """Its last launch does it, after which nothing would be compared with them any more."""
    device = CpuDevice(0)
    workspaces = Workspaces(device)
    workspaces.checks = checks
    candidate = increment_candidate(tmp_path)

    def note(_: int, stage: str) -> None:
        if far and stage == "checking again":
            overwrite(workspaces.of(candidate.problem))

    effort: dict[str, Any] = {"samples": 2, "drop_above_s": None, "timeout_s": 10.0}
    reply = harness.run(workspaces, device, candidate, effort, note)
    assert reply["outcome"] == ("wrong_result" if far else "ok")
    if far:
        assert reply["fatal"]
        assert "over what outputs are compared with" in reply["detail"]


@needs_gxx
def test_references_that_a_candidate_of_another_problem_has_overwritten_are_made_anew(
    device: CpuDevice, checks: DeviceChecks, tmp_path: Path
) -> None:
    workspaces = Workspaces(device)
    workspaces.checks = checks
    one = stored_problem(tmp_path)
    first = workspaces.of(one)
    workspaces.of(replace(one, key="another"))
    assert workspaces.of(one) is first
    workspaces.of(replace(one, key="another"))
    overwrite(first)
    assert workspaces.of(one) is not first
    assert workspaces.of(one).intact()


# The whole of a runner with them


class EmulatedRunner(CpuRunner):
    """Candidates in C; the worker's own kernels on the emulator."""

    def __init__(self, builder: Builder, checks: Path) -> None:
        super().__init__(builder)
        self._library = checks

    def _checks(self) -> str | None:
        return str(self._library)


@needs_gxx
class TestRunnerWithDeviceChecks(RunnerContract):
    @pytest.fixture(scope="class")
    @classmethod
    def kind(cls) -> str:
        return "cpu"

    @pytest.fixture(scope="class")
    @classmethod
    def builder(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
        builder = GccBuilder(BuildCache(tmp_path_factory.mktemp("cache"), 1 << 28), jobs=1)
        yield builder
        builder.close()

    @pytest.fixture(scope="class")
    @classmethod
    def runner(cls, builder: Builder, library: Path) -> Iterator[Runner]:
        runner = EmulatedRunner(builder, library)
        yield runner
        assert runner.checked_by == "device"
        runner.close()


@needs_gxx
def test_a_runner_whose_checks_do_not_load_compares_on_the_host(tmp_path: Path) -> None:
    builder = GccBuilder(BuildCache(tmp_path / "cache", 1 << 28), jobs=1)
    runner = EmulatedRunner(builder, tmp_path / "none.so")
    kernel = affine_kernel(tmp_path / "affine")
    spec = KernelSpec(kernel, {"n": 1000}, DeviceRequest("cpu"))
    task = Task(spec, ParamSpace(kernel, spec.problem), runner.device)
    right, wrong = (
        next(iter(builder.build(spec, [task.space.config({"BEHAVIOUR": name, "THREADS": 64})])))
        for name in ("right", "slightly_wrong")
    )
    assert isinstance(right, Artifact)
    assert isinstance(wrong, Artifact)
    assert isinstance(runner.run(task, right, Effort()), Timing)
    assert runner.checked_by == "host"
    refused = runner.run(task, wrong, Effort())
    assert isinstance(refused, Failure)
    assert refused.outcome is Outcome.WRONG_RESULT
    runner.close()
    builder.close()
