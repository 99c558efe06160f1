"""From a task and an artifact to plain numbers: shapes, scalars and launch geometry, every expression evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner_daemon.errors import ExpressionError, KernelError
from tuner_daemon.records import roofline
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Argument, Kernel, Value
from tuner_daemon.records.measurement import Artifact
from tuner_daemon.records.space import Config
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.records.task import Task

Names = Mapping[str, Value]

REFERENCE_THREADS = 256
MOST_REFERENCE_BLOCKS = 65535


def at_problem(spec: KernelSpec, artifact: Artifact, reference: Artifact | None) -> dict[str, Any]:
    """``program`` and ``problem`` of a request. Raises ExpressionError, KernelError."""
    names = _names(spec, artifact.config)
    arguments = [_argument(a, names, spec.kernel.folder) for a in spec.kernel.arguments]
    return {
        "program": program(artifact, spec.kernel, names),
        "problem": _problem(spec, arguments, names, reference),
    }


def candidate(task: Task, artifact: Artifact, reference: Artifact | None) -> dict[str, Any]:
    """The request's ``candidate``. Raises ExpressionError where an expression has no value for this configuration."""
    floor = floor_s(task, _names(task.spec, artifact.config))
    return {**at_problem(task.spec, artifact, reference), "floor_s": floor}


def program(artifact: Artifact, kernel: Kernel, names: Names) -> dict[str, Any]:
    return {
        "path": str(artifact.path.resolve()),
        "entry": artifact.entry,
        "grid": _three(kernel.launch.grid, names),
        "block": _three(kernel.launch.block, names),
        "shared_bytes": int(kernel.launch.shared_bytes.evaluate(names)),
        "scratch": [_array(a, names, "zeros") for a in kernel.arguments if a.kind == "workspace"],
    }


def refusal(launch: Mapping[str, Any], artifact: Artifact, device: DeviceInfo) -> str:
    """Why the device cannot launch this; empty if nothing is known against it. ``launch``: as from ``program``."""
    grid, (x, y, z), limits = launch["grid"], launch["block"], device.attributes
    threads, registers = x * y * z, (artifact.registers or 0) * x * y * z
    shared_bytes = launch["shared_bytes"] + (artifact.shared_bytes or 0)
    if min(x, y, z, *grid) < 1 or launch["shared_bytes"] < 0:
        return (
            f"grid {grid}, block {launch['block']} and {launch['shared_bytes']} bytes of shared memory make no launch"
        )
    checks = (
        (threads > limits.get("max_threads_per_block", 1024), f"{threads} threads per block"),
        (x > 1024 or y > 1024 or z > 64, f"a block of {x} x {y} x {z} threads"),
        (grid[0] >= 1 << 31 or max(grid[1:]) > 65535, f"a grid of {grid} blocks"),
        (shared_bytes > limits.get("shared_bytes_per_block", shared_bytes), f"{shared_bytes} bytes of shared memory"),
        (registers > limits.get("registers_per_sm", registers), f"{registers} registers per block"),
    )
    return next((f"{what}: beyond the limits of {device.name}" for exceeded, what in checks if exceeded), "")


def floor_s(task: Task, names: Names) -> float:
    """See ``records.roofline``."""
    return roofline.floor_s(task.spec.kernel, names, task.device)


def reference_config(spec: KernelSpec) -> Config | None:
    """The configuration that serves as reference, if the kernel has no reference of another kind."""
    reference = spec.kernel.reference
    if spec.language in reference.sources or reference.arrays is not None or reference.config is None:
        return None
    return Config.of(reference.config)


def _problem(
    spec: KernelSpec, arguments: Sequence[dict[str, Any]], names: Names, reference: Artifact | None
) -> dict[str, Any]:
    kernel = spec.kernel
    length = 1.0 if kernel.reduction_length is None else float(kernel.reduction_length.evaluate(names))
    stored = kernel.reference.arrays if reference is None else None
    return {
        "kernel_sha256": kernel.sha256,  # covers the content of stored arrays, whose paths recur
        "arguments": arguments,
        "reference": None if reference is None else _reference_program(spec, reference, arguments),
        "reference_arguments": _reference_arguments(spec, reference, arguments),
        "stored": {name: str(path) for name, path in (stored or {}).items()},
        "reduction_length": length,
        "tolerance": kernel.tolerance,
    }


def _reference_program(spec: KernelSpec, reference: Artifact, arguments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    config = reference_config(spec)
    if config is not None:
        return program(reference, spec.kernel, _names(spec, config))
    elements = sum(_count(a["shape"]) for a in arguments if a["kind"] in ("output", "inout"))
    blocks = min(MOST_REFERENCE_BLOCKS, max(1, -(-elements // REFERENCE_THREADS)))
    return {
        "path": str(reference.path.resolve()),
        "entry": reference.entry,
        "grid": [blocks, 1, 1],
        "block": [REFERENCE_THREADS, 1, 1],
        "shared_bytes": 0,
        "scratch": [],
    }


def _reference_arguments(
    spec: KernelSpec, reference: Artifact | None, arguments: Sequence[dict[str, Any]]
) -> Sequence[dict[str, Any]]:
    """The candidate's arrays, with the scalars of the reference's own configuration where it has one."""
    config = reference_config(spec)
    if reference is None or config is None:
        return arguments
    names, kernel = _names(spec, config), spec.kernel
    own = [_argument(a, names, kernel.folder) for a in kernel.arguments]
    return [mine if mine["kind"] == "scalar" else theirs for mine, theirs in zip(own, arguments, strict=True)]


def _argument(argument: Argument, names: Names, folder: Path) -> dict[str, Any]:
    dtype = _dtype(argument, names)
    if argument.kind == "scalar":
        value = names.get(argument.name) if argument.value is None else argument.value.evaluate(names)
        if not isinstance(value, int | float):
            raise KernelError(f"has no numeric value ({value!r})", key=f"arguments.{argument.name}")
        default = "float32" if isinstance(value, float) else "int32"
        return {"name": argument.name, "kind": "scalar", "dtype": dtype or default, "value": value}
    if argument.kind == "workspace":  # its shape is the program's: one problem is shared by all configurations
        return {"name": argument.name, "kind": "workspace"}
    fill = argument.fill
    if fill.endswith(".npy"):
        fill = str((folder / fill).resolve())
    return _array(argument, names, fill)


def _array(argument: Argument, names: Names, fill: str) -> dict[str, Any]:
    shape = [_size(e, argument, names) for e in argument.shape]
    array = {"name": argument.name, "kind": argument.kind, "dtype": _dtype(argument, names), "shape": shape}
    bounds = {}
    if argument.low is not None and argument.high is not None:
        low, high = int(argument.low.evaluate(names)), int(argument.high.evaluate(names))
        if high < low or (high == low and fill != "sorted"):
            raise KernelError(f"is {high}, and low is {low}", key=f"arguments.{argument.name}.high")
        bounds = {"low": low, "high": high}
    return {**array, "fill": fill, **bounds}


def _size(expression: Expression, argument: Argument, names: Names) -> int:
    size = int(expression.evaluate(names))
    if argument.kind == "workspace":  # some configurations may need none
        if size < 0:
            raise ExpressionError(f"arguments.{argument.name}.shape is {size} ({expression.text})")
    elif size < 1:
        raise KernelError(f"is {size} ({expression.text})", key=f"arguments.{argument.name}.shape")
    return size


def _dtype(argument: Argument, names: Names) -> str:
    """A type, or the value of the problem variable or parameter of that name."""
    return str(names.get(argument.dtype, argument.dtype))


def _names(spec: KernelSpec, config: Config) -> dict[str, Value]:
    return {**spec.problem, **config.as_dict()}


def _three(expressions: Sequence[Expression], names: Names) -> list[int]:
    sizes = [int(e.evaluate(names)) for e in expressions]
    return [*sizes, *[1] * (3 - len(sizes))]


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
