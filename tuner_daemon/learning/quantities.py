"""Numbers a performance engineer would work out before running anything, from a kernel's declaration alone.

Launch geometry, occupancy, waves and tail follow the CUDA occupancy calculation; registers are not known before the
build and are estimated from the number of accumulators. On a ``cpu`` device the geometry only describes the tiling.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.errors import ExpressionError
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Argument, Kernel, Parameter, Value
from tuner_daemon.records.roles import ROLES

Floats = NDArray[np.float64]
Columns = Mapping[str, NDArray[np.generic]]

DEVICE_ATTRIBUTES = (
    "sm_count",
    "warp_size",
    "max_threads_per_sm",
    "max_blocks_per_sm",
    "registers_per_sm",
    "shared_bytes_per_block",
    "shared_bytes_per_sm",
    "l2_bytes",
    "clock_hz",
    "peak_flops",
    "peak_bytes_per_s",
    "compute_capability",
    "vector_bytes",
)

BASE_REGISTERS = 24.0  # addresses, indices and loop counters of a typical kernel
MAX_REGISTERS = 255.0
TAIL_WAVES = 8.0


def log2(value: float) -> float:
    """log2 for positive finite numbers, NaN (unknown) for everything else."""
    return math.log2(value) if 0.0 < value < math.inf else math.nan


def log2_array(values: Floats) -> Floats:
    """Elementwise :func:`log2`."""
    ok = np.isfinite(values) & (values > 0.0)
    return np.where(ok, np.log2(np.where(ok, values, 1.0)), np.nan)


def device_numbers(device: DeviceInfo) -> dict[str, float]:
    """log2 of the device's attributes, NaN where unknown, its balance in FLOP/byte, and whether it is a CPU."""
    attributes = device.attributes
    numbers = {name: log2(float(attributes.get(name, math.nan))) for name in DEVICE_ATTRIBUTES}
    numbers["balance"] = numbers["peak_flops"] - numbers["peak_bytes_per_s"]
    numbers["is_cpu"] = float(device.kind == "cpu")
    return numbers


def dtype_bytes(argument: Argument, problem: Mapping[str, Value]) -> float:
    """Bytes of one element: ``float32`` or the name of a problem variable that holds such a name."""
    bits = re.search(r"(\d+)$", str(problem.get(argument.dtype, argument.dtype)))
    return int(bits.group(1)) / 8.0 if bits else 4.0


def scalar(expression: Expression | None, problem: Mapping[str, Value]) -> float:
    """The expression's value at the problem; NaN if it is absent, undefined, or reads a tunable parameter."""
    if expression is None:
        return math.nan
    try:
        return float(expression.evaluate(problem))
    except ExpressionError:
        return math.nan


def elements(argument: Argument, problem: Mapping[str, Value]) -> float:
    """Elements of an array argument; NaN if its shape depends on parameters."""
    return math.prod((scalar(side, problem) for side in argument.shape), start=1.0)


def settled(kernel: Kernel, problem: Mapping[str, Value]) -> dict[str, Value]:
    """The problem, and the parameters that have one value only: constants of this kernel."""
    return {**problem, **{p.name: p.values[0] for p in kernel.parameters if len(p.values) == 1}}


def moved_bytes(kernel: Kernel, problem: Mapping[str, Value]) -> float:
    """What must be read and written at least: as declared, else every array once; NaN if neither is known."""
    declared = scalar(kernel.work.bytes, settled(kernel, problem))
    if not math.isnan(declared):
        return declared
    arrays = [a for a in kernel.arguments if a.kind in ("input", "output", "inout")]
    return sum(elements(a, problem) * dtype_bytes(a, problem) for a in arrays)


def output_elements(kernel: Kernel, problem: Mapping[str, Value]) -> float:
    """Of all output arrays; where none is declared, the product of the sizes that the grid covers. NaN: unknown."""
    arrays = [a for a in kernel.arguments if a.kind in ("output", "inout")]
    if arrays:
        return sum(elements(a, problem) for a in arrays)
    named = [name for side in kernel.launch.grid for name in sorted(side.names & problem.keys())]
    sizes = [float(size) for name in named if isinstance(size := problem[name], int | float)]
    return math.prod(sizes) if sizes else math.nan


def warp_size(device: DeviceInfo) -> float:
    """Threads that run in step; 32 where the device does not say."""
    return float(device.attributes.get("warp_size", 32.0)) or 32.0


def problem_numbers(kernel: Kernel, problem: Mapping[str, Value], device: DeviceInfo) -> dict[str, float]:
    """log2 of what the problem asks for: operations, bytes, intensity, output elements, sizes, roofline seconds."""
    arrays = [a for a in kernel.arguments if a.kind in ("input", "output", "inout")]
    moved = moved_bytes(kernel, problem)
    flops = scalar(kernel.work.flops, settled(kernel, problem))
    outputs = output_elements(kernel, problem)
    names = {"flops": log2(flops), "bytes": log2(moved), "outputs": log2(outputs)}
    names["intensity"] = names["flops"] - names["bytes"]
    names["roofline_s"] = log2(roofline_s(flops, moved, device))
    names["element_bytes"] = log2(dtype_bytes(arrays[0], problem)) if arrays else math.nan
    sizes = [float(v) for v in problem.values() if isinstance(v, int | float) and not isinstance(v, bool)]
    for i in range(4):
        names[f"size_{i}"] = log2(sizes[i]) if i < len(sizes) else math.nan
    return names


def roofline_s(flops: float, moved_bytes: float, device: DeviceInfo) -> float:
    """The larger of compute and memory time at the device's peaks; NaN if neither is known."""
    bounds = (
        flops / device.attributes.get("peak_flops", math.nan),
        moved_bytes / device.attributes.get("peak_bytes_per_s", math.nan),
    )
    known = [bound for bound in bounds if not math.isnan(bound)]
    return max(known) if known else math.nan


def value_numbers(parameter: Parameter, column: NDArray[np.generic]) -> Floats:
    """(n,) on a log2 scale: log2 of a positive number, -1 for zero and false, the rank of a text value."""
    if column.dtype.kind not in "OUS":
        return _log2_signed(column.astype(np.float64))
    numbers = np.full(len(column), np.nan)
    for rank, value in enumerate(parameter.values):
        number = float(rank) if isinstance(value, str) else float(_log2_signed(np.array([float(value)]))[0])
        numbers[column == value] = number
    return numbers


def _log2_signed(values: Floats) -> Floats:
    return np.where(values > 0.0, np.log2(np.where(values > 0.0, values, 1.0)), -1.0 - np.log2(1.0 + np.abs(values)))


def role_numbers(kernel: Kernel, columns: Columns) -> dict[str, list[Floats]]:
    """Role -> the (n,) numbers of its parameters in declared order; roles without a parameter are absent."""
    found: dict[str, list[Floats]] = {}
    for parameter in kernel.parameters:
        role = parameter.role if parameter.role in ROLES else "other"
        found.setdefault(role, []).append(value_numbers(parameter, columns[parameter.name]))
    return found


def _array(expression: Expression, names: Mapping[str, NDArray[np.generic] | Value], n: int) -> Floats:
    """(n,) values, NaN where undefined or where the expression cannot be evaluated."""
    try:
        values = expression.evaluate_arrays(names)
    except ExpressionError:
        return np.full(n, np.nan)
    return np.broadcast_to(np.ma.filled(np.ma.asarray(values).astype(np.float64), np.nan), (n,))


def launch_numbers(
    kernel: Kernel, problem: Mapping[str, Value], device: DeviceInfo, columns: Columns, n: int, work: Floats
) -> dict[str, Floats]:
    """(n,) each, log2 unless a ratio: geometry, occupancy, waves, tail, work per thread, shared memory.

    ``work``: (n,) log2 of the elements per thread that the parameters name; it stands in for outputs per thread where
    those are not known.
    """
    names: dict[str, NDArray[np.generic] | Value] = {**problem, **columns}
    block = [_array(side, names, n) for side in kernel.launch.block]
    grid = [_array(side, names, n) for side in kernel.launch.grid]
    threads = np.prod(block, axis=0) if block else np.ones(n)
    blocks = np.prod(grid, axis=0) if grid else np.ones(n)
    all_threads = log2_array(threads * blocks)
    shared = _array(kernel.launch.shared_bytes, names, n)
    outputs = log2(output_elements(kernel, problem))
    per_thread = np.asarray(work if math.isnan(outputs) else outputs - all_threads)
    result = {
        "block_x": log2_array(block[0]) if block else np.full(n, np.nan),
        "threads": log2_array(threads),
        "blocks": log2_array(blocks),
        "shared_bytes": np.log2(1.0 + np.maximum(shared, 0.0)),
        "outputs_per_thread": per_thread,
        "outputs_per_block": per_thread + log2_array(threads),
        "flops_per_thread": log2(scalar(kernel.work.flops, settled(kernel, problem))) - all_threads,
        "bytes_per_thread": log2(moved_bytes(kernel, problem)) - all_threads,
        "warp_row": (log2_array(block[0]) if block else np.zeros(n)) - np.log2(warp_size(device)),
    }
    return result | occupancy_numbers(device, threads, blocks, shared, np.exp2(per_thread))


def occupancy_numbers(
    device: DeviceInfo, threads: Floats, blocks: Floats, shared_bytes: Floats, accumulators: Floats
) -> dict[str, Floats]:
    """(n,) each: warp efficiency, occupancy, resident blocks, waves, tail; limits the device does not state bind not.

    Source: the CUDA occupancy calculator, at warp granularity, with estimated registers.
    """
    limit = {name: float(device.attributes.get(name, math.inf)) for name in DEVICE_ATTRIBUTES}
    warp = warp_size(device)
    padded = np.maximum(np.ceil(threads / warp), 1.0) * warp
    registers = np.clip(BASE_REGISTERS + np.nan_to_num(accumulators, nan=1.0), BASE_REGISTERS, MAX_REGISTERS)
    resident = np.minimum.reduce(
        [
            np.floor(limit["max_threads_per_sm"] / padded),
            np.floor(limit["shared_bytes_per_sm"] / np.maximum(shared_bytes, 1.0)),
            np.floor(limit["registers_per_sm"] / (registers * padded)),
            np.full_like(padded, limit["max_blocks_per_sm"]),
        ]
    )
    resident = np.where(np.isfinite(resident), resident, np.nan)
    waves = blocks / (np.fmax(resident, 1.0) * limit["sm_count"])
    share = resident * padded / limit["max_threads_per_sm"] if math.isfinite(limit["max_threads_per_sm"]) else np.nan
    return {
        "warp_efficiency": threads / padded,
        "registers": np.log2(registers),
        "resident_blocks": log2_array(resident),
        "occupancy": np.broadcast_to(share, resident.shape),
        "waves": log2_array(waves),
        "tail": tail(waves),
        "blocks_per_sm": log2_array(blocks / limit["sm_count"]),
    }


def tail(waves: Floats) -> Floats:
    """(n,) share of the device that works, averaged over all waves: small where the last of a few is almost empty.

    With many waves the blocks no longer run in step; there the share is 1, not a saw-tooth for trees to fit noise to.
    """
    few = (waves > 0) & (waves <= TAIL_WAVES)
    share = np.divide(waves, np.ceil(waves), out=np.ones_like(waves), where=few)
    return np.where(np.isnan(waves), np.nan, share)
