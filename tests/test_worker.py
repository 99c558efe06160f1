"""The child's side: inputs, checking, buffers, and what it costs to start."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tuner_daemon.worker import arrays, cpu_info
from tuner_daemon.worker.checking import HostReference, describe, judge, tolerance
from tuner_daemon.worker.cpu_device import CpuBuffer, CpuDevice
from tuner_daemon.worker.device import GUARD_BYTES, GUARD_PATTERN
from tuner_daemon.worker.inputs import DRAWS, Draw, contents
from tuner_daemon.worker.messages import Array, Problem, Scalar, Scratch, parse_candidate
from tuner_daemon.worker.occupancy import occupancy
from tuner_daemon.worker.workspace import ReferenceFailedError, Seen, Slot, Workspace

FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64"]


def vector(dtype: str = "float32", n: int = 500, fill: str = "normal", kind: str = "output") -> Array:
    return Array("v", kind, dtype, (n,), fill)


def expected(dtype: str = "float32", n: int = 500) -> HostReference:
    array = vector(dtype, n)
    return HostReference(array, arrays.make(array, 0, "normal", 0))


@dataclass(frozen=True)
class Judged:
    wrong: str
    error_norm: float


def compare(reference: HostReference, out: arrays.HostArray, allowed: float) -> Judged:
    verdict = judge(reference.sums(out), reference.array, allowed)
    words = "" if verdict.right else describe(reference.array, reference.values, out, verdict, allowed)
    return Judged(words, verdict.error_norm)


# What starting costs


def test_the_worker_imports_numpy_and_the_standard_library_only() -> None:
    script = "import sys, tuner_daemon.worker.__main__, tuner_daemon.worker.cpu_device; print(*sys.modules)"
    seen = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    roots = {name.split(".")[0] for name in seen.stdout.split()}
    third_party = {n for n in roots if n in {"torch", "xgboost", "pydantic", "pyarrow", "psutil", "scipy", "pycuda"}}
    assert third_party == set()
    assert "numpy" in roots
    records = [n for n in seen.stdout.split() if n.startswith("tuner_daemon.") and "worker" not in n]
    assert records == []


# Inputs


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int32", "uint16", "int64", "bool", "tf32"])
def test_inputs_differ_by_seed_and_distribution_and_are_the_same_again(dtype: str) -> None:
    array = vector(dtype, kind="input")
    made = {
        (seed, distribution): arrays.make(array, seed, distribution, 0).tobytes()
        for seed in range(3)
        for distribution in arrays.DISTRIBUTIONS
    }
    distinct = len(set(made.values()))
    assert distinct == (6 if dtype != "bool" else 3)
    assert arrays.make(array, 1, "uniform", 0).tobytes() == made[1, "uniform"]
    assert arrays.make(array, 1, "uniform", 1).tobytes() != made[1, "uniform"], "arguments do not share their numbers"


@pytest.mark.parametrize("distribution", arrays.DISTRIBUTIONS)
def test_large_inputs_do_not_depend_on_the_number_of_threads(
    distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = vector(n=(1 << 21) + 5, kind="input")
    many = arrays.make(array, 0, distribution, 0)
    monkeypatch.setattr(arrays, "_MOST_THREADS", 1)
    assert arrays.make(array, 0, distribution, 0).tobytes() == many.tobytes()
    parts = [part.tobytes() for part in np.array_split(many[:-5], 2)]
    assert parts[0] != parts[1]
    assert (many.mean(), many.std()) == pytest.approx((0.0, 1.0 if distribution == "normal" else 3**-0.5), abs=2e-3)


@pytest.mark.parametrize("distribution", arrays.DISTRIBUTIONS)
def test_a_uniform_fill_stays_in_the_unit_interval(distribution: str) -> None:
    values = arrays.make(vector(fill="uniform"), 0, distribution, 0)
    assert 0.0 <= values.min() < values.max() < 1.0
    assert arrays.make(vector(fill="normal"), 0, distribution, 0).min() < 0.0


@pytest.mark.parametrize(("low", "high"), [(0, 7), (3, 9), (-9, -2), (-2, 3), (5, 6)])
@pytest.mark.parametrize("draw", DRAWS, ids=str)
def test_integers_stay_in_their_range_in_every_set(draw: Draw, low: int, high: int) -> None:
    array = Array("v", "input", "int32", (200,), "integers", low, high)
    values = contents(array, draw, position=1, base=5)
    assert values.dtype == np.int32
    assert low <= values.min() <= values.max() < high
    if draw.zeros == "none" and high - low > 1:
        assert len(np.unique(values)) > 1


@pytest.mark.parametrize("draw", DRAWS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 300])
def test_sorted_integers_go_from_low_to_high_in_every_set(draw: Draw, n: int) -> None:
    array = Array("v", "input", "int64", (n,), "sorted", 2, 1000)
    values = contents(array, draw, position=1, base=5)
    assert np.all(np.diff(values) >= 0)
    assert values[-1] == 1000
    assert values[0] == (2 if n > 1 else 1000)
    other = contents(array, dataclasses.replace(draw, seed=draw.seed + 1), position=1, base=5)
    assert np.array_equal(values, other) == (n <= 2)


def test_arange_zeros_and_files_are_as_declared(tmp_path: Path) -> None:
    assert arrays.make(vector("int32", 5, "arange"), 0, "normal", 0).tolist() == [0, 1, 2, 3, 4]
    assert not arrays.make(vector(fill="zeros"), 0, "normal", 0).any()
    np.save(tmp_path / "a.npy", np.arange(4.0))
    stored = arrays.make(vector("float32", 4, str(tmp_path / "a.npy")), 0, "normal", 0)
    assert stored.dtype == np.float32
    assert stored.tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="shape"):
        arrays.make(vector("float32", 5, str(tmp_path / "a.npy")), 0, "normal", 0)


def test_bfloat16_keeps_what_it_can_hold_and_rounds_to_even() -> None:
    exact = np.array([0.0, 1.0, -2.5, 2.0**127, np.inf], np.float32)
    np.testing.assert_array_equal(arrays.from_bfloat16(arrays.to_bfloat16(exact)), exact)
    halfway = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    np.testing.assert_array_equal(
        arrays.from_bfloat16(arrays.to_bfloat16(halfway)), np.array([1.0, 1 + 2**-6], np.float32)
    )
    assert np.isnan(arrays.from_bfloat16(arrays.to_bfloat16(np.array([np.nan], np.float32)))).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_poison_is_not_a_number(dtype: str) -> None:
    array = vector(dtype)
    raw = np.full(arrays.nbytes(array), arrays.poison_byte(array), np.uint8).view(arrays.storage(dtype))
    assert np.isnan(arrays.numbers(raw, dtype)).all()


# Checking


def test_the_tolerance_grows_with_the_square_root_of_the_reduction() -> None:
    short, long = (tolerance([vector()], length, None) for length in (1, 4096))
    assert short == pytest.approx(1e-5, rel=0.1)
    assert long - 1e-5 == pytest.approx(64 * (short - 1e-5))
    assert long < 1e-4


def test_the_coarsest_type_sets_the_tolerance_and_a_kernel_may_only_tighten_it() -> None:
    assert tolerance([vector("bfloat16"), vector("float32")], 1, None) == pytest.approx(1e-2, rel=0.01)
    assert tolerance([vector("float64")], 1, None) < 1e-11
    assert tolerance([vector("tf32")], 1, None) == pytest.approx(1e-3, rel=0.01)
    assert tolerance([vector()], 1, 1e-7) == 1e-7
    assert tolerance([vector()], 1, 1.0) < 1e-4
    assert tolerance([vector("int32")], 1000, 1.0) == 0.0


def test_a_sum_in_another_order_is_within_the_tolerance_of_its_length() -> None:
    rng = np.random.default_rng(0)
    terms = rng.random((64, 4096), dtype=np.float32)
    exact = terms.astype(np.float64).sum(axis=1).astype(np.float32)
    forward = np.cumsum(terms, axis=1, dtype=np.float32)[:, -1]
    array = vector(n=64)
    allowed = tolerance([array], 4096, None)
    assert compare(HostReference(array, exact), forward, allowed).wrong == ""
    dropped = np.cumsum(terms[:, 1:], axis=1, dtype=np.float32)[:, -1]
    assert compare(HostReference(array, exact), dropped, allowed).wrong, "one term of 4096 is missed"


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_an_equal_output_is_right(dtype: str) -> None:
    reference = expected(dtype)
    verdict = compare(reference, reference.values.copy(), tolerance([vector(dtype)], 1, None))
    assert verdict.wrong == ""
    assert verdict.error_norm == 0.0


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize("mistake", ["poisoned", "one_poisoned", "zero", "constant", "shifted"])
def test_an_output_with_a_mistake_is_wrong(dtype: str, mistake: str) -> None:
    reference, array = expected(dtype), vector(dtype)
    out = reference.values.copy()
    if mistake == "poisoned":
        out.view(np.uint8)[:] = arrays.poison_byte(array)
    elif mistake == "one_poisoned":
        out[-1:].view(np.uint8)[:] = arrays.poison_byte(array)
    elif mistake == "shifted":
        out = np.roll(out, 1)
    else:
        out[:] = out[0] if mistake == "constant" else 0
    verdict = compare(reference, out, tolerance([array], 1, None))
    assert verdict.wrong.startswith("v[")


def test_one_wrong_element_among_a_million_is_found() -> None:
    """Its share of the norm is below the tolerance of 16-bit types."""
    reference = expected("float16", 1 << 20)
    out = reference.values.copy()
    at = int(np.argmax(np.abs(out.astype(np.float32))))
    out[at] = 0
    verdict = compare(reference, out, tolerance([vector("float16")], 1, None))
    assert verdict.error_norm < 1e-2
    assert verdict.wrong.startswith(f"v[{at}]")


def test_where_the_reference_is_not_finite_nothing_is_asked() -> None:
    values = np.array([1.0, np.inf, np.nan, 2.0], np.float32)
    reference = HostReference(vector(n=4), values)
    assert compare(reference, np.array([1.0, 5.0, 6.0, 2.0], np.float32), 1e-5).wrong == ""
    assert compare(reference, np.array([1.0, 5.0, 6.0, 2.1], np.float32), 1e-5).wrong
    assert compare(reference, np.array([np.nan, 5.0, 6.0, 2.0], np.float32), 1e-5).wrong


# Buffers and workspaces


@pytest.mark.parametrize("nbytes", [1, 64, 4000, 100_000])
def test_guards_surround_a_buffer_without_a_gap(nbytes: int) -> None:
    buffer = CpuBuffer(nbytes)
    buffer.fill(0xFF)
    before, after = buffer.guards()
    assert min(before.size, after.size) >= GUARD_BYTES
    assert {int(b) for band in (before, after) for b in np.unique(band)} == {GUARD_PATTERN}
    assert before.ctypes.data + before.size == buffer.address == after.ctypes.data - nbytes
    assert buffer.address % 64 == 0


def stored_problem(folder: Path, fill: str) -> Problem:
    np.save(folder / "out.npy", np.arange(1.0, 5.0))
    x, y = Array("x", "input", "float32", (4,), fill), Array("y", "output", "float32", (4,), "zeros")
    return Problem("k", (x, y), None, (x, y), {"y": folder / "out.npy"}, 1.0, None)


def test_stored_outputs_need_stored_inputs(tmp_path: Path) -> None:
    workspace = Workspace(CpuDevice(0), stored_problem(tmp_path, "arange"))
    assert len(workspace.sets) == 1
    assert workspace.sets[0].expected["y"].values().tolist() == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ReferenceFailedError, match="random"):
        Workspace(CpuDevice(0), stored_problem(tmp_path, "normal"))


def test_a_slot_notices_what_has_been_written_where_it_must_not(tmp_path: Path) -> None:
    workspace = Workspace(CpuDevice(0), stored_problem(tmp_path, "arange"))
    _, slot = workspace.loaded(0)
    slot.reset()
    assert slot.seen() == Seen([], None, None)
    assert np.isnan(slot.output(workspace.outputs[0])).all()
    buffer = cpu_buffer(slot, "y")
    buffer.guards()[1][0] = 0
    assert slot.seen().broken_guard == "y: 1 bytes past the end"
    cpu_buffer(slot, "x").payload[0] = 9
    assert slot.seen().changed_input == "x"
    workspace.heal()
    workspace.loaded(0)
    assert slot.seen() == Seen([], None, None)


def cpu_buffer(slot: Slot, name: str) -> CpuBuffer:
    buffer = slot.buffers[name]
    assert isinstance(buffer, CpuBuffer)
    return buffer


# The processor, and numbers about devices


def test_the_processor_is_described() -> None:
    info = cpu_info.read()
    assert info.name
    assert info.uuid.startswith("cpu-")
    assert info == cpu_info.read()
    assert info.attributes["sm_count"] >= 1
    assert info.attributes["vector_bytes"] in (8, 16, 32, 64)
    assert cpu_info.available_bytes() > 1 << 20


def test_the_canary_of_a_sound_processor_passes() -> None:
    CpuDevice(0).canary()


def test_requests_become_records() -> None:
    argument = {"name": "x", "kind": "input", "dtype": "float32", "shape": [2, 3], "fill": "normal"}
    scalar = {"name": "n", "kind": "scalar", "dtype": "int32", "value": 6}
    workspace = {"name": "w", "kind": "workspace", "dtype": "int32", "shape": [8], "fill": "zeros"}
    program = {"path": "f.so", "entry": "f", "grid": [1, 1, 1], "block": [1, 1, 1], "shared_bytes": 0}
    program["scratch"] = [workspace]
    problem: dict[str, object] = {
        "arguments": [argument, scalar, {"name": "w", "kind": "workspace"}],
        "reference": None,
        "reference_arguments": [],
        "stored": {},
        "reduction_length": 1.0,
        "tolerance": None,
    }
    candidate = parse_candidate({"program": program, "problem": problem, "floor_s": 0.0})
    x, n = Array("x", "input", "float32", (2, 3), "normal"), Scalar("n", "int32", 6)
    assert candidate.problem.arguments == (x, n, Scratch("w"))
    assert candidate.problem.arrays == (x,), "what is compared does not depend on scratch memory"
    assert candidate.program.scratch == (Array("w", "workspace", "int32", (8,), "zeros"),)
    other = parse_candidate({"program": program, "problem": problem | {"tolerance": 1e-6}, "floor_s": 0.0})
    assert other.problem.key != candidate.problem.key


H200 = {
    "max_threads_per_sm": 2048,
    "warp_size": 32,
    "max_blocks_per_sm": 32,
    "registers_per_sm": 65536,
    "shared_bytes_per_sm": 233472,
    "compute_capability": 90,
}


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "active"),
    [
        (256, 32, 0, 1.0),  # limited by threads
        (256, 64, 0, 0.5),  # by registers: 4 blocks
        (256, 255, 0, 0.125),  # one block of 8 warps
        (32, 16, 0, 0.5),  # by blocks: 32 of them
        (128, 32, 100_000, 0.125),  # by shared memory: 2 blocks
        (1024, 128, 0, 0.0),  # does not fit
    ],
)
def test_occupancy_follows_the_scarcest_resource(
    threads: int, registers: int, shared_bytes: int, active: float
) -> None:
    assert occupancy(H200, threads=threads, registers=registers, shared_bytes=shared_bytes) == active
    assert occupancy({}, threads=threads, registers=registers, shared_bytes=shared_bytes) is None
