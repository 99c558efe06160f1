"""Importing recorded spaces of others: a Parquet file and its JSON sidecar become a kernel folder.

The sidecar has ``kernel``, ``params``, ``param_values``, ``restrictions`` (Python expressions), ``device_name``,
``problem_size`` and where it comes from. Launch geometry follows the conventions of these kernels: ``block_size_x/y/z``
are threads, each does ``tile_size_x/y`` elements, and the grid covers the problem.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tuner_daemon.errors import KernelError
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.storage import files, gpus, recorded

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_FUNCTIONS = ("min", "max", "abs")


@dataclass(frozen=True)
class _Shape:
    """What a kernel's tables say beyond its parameters; expressions over parameters and problem sizes."""

    problem: Mapping[str, int]
    block: Sequence[str]
    grid: Sequence[str]
    flops: str | None = None
    bytes: str | None = None


def import_hub(json_path: Path, parquet_path: Path, folder: Path) -> Path:
    """Writes ``folder`` with a kernel.toml and the recording. Several devices of one kernel may share a folder.

    Raises KernelError that lists the restrictions which cannot be translated, or that names what the sidecar lacks.
    """
    try:
        sidecar = json.loads(json_path.read_text())
        toml = kernel_toml(sidecar, json_path)
        device = gpus.device_named(sidecar.get("device_name") or "", sidecar["device"])
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise KernelError(f"is not a recording's sidecar: {error}", file=json_path) from error
    files.make_folder(folder)
    declared = folder / "kernel.toml"
    if declared.exists() and declared.read_text() != toml:
        raise KernelError("declares another kernel", file=declared, remedy="import into a folder of its own")
    recording = _recording(parquet_path, sidecar["params"], device)
    files.publish_files({declared: toml.encode(), folder / parquet_path.name: recording})
    return folder


def kernel_toml(sidecar: Mapping[str, Any], file: Path | None = None) -> str:
    """The text of a kernel.toml. Raises KernelError for restrictions outside the expression language."""
    shape = _shape(sidecar)
    constraints = _translated(sidecar.get("restrictions") or [], {*sidecar["params"], *shape.problem}, file)
    lines = [
        f"# Recorded on several devices by others: {sidecar['source']} ({sidecar['license']}).",
        f"name = {_toml(sidecar['kernel'])}",
        "",
        *(["[problem]"] if shape.problem else []),
        *(f'{name} = {{ type = "int", min = 1, default = {size} }}' for name, size in shape.problem.items()),
        "",
        "[parameters]",
        *(f"{name} = {_toml(sidecar['param_values'][name])}" for name in sidecar["params"]),
        "",
        "[constraints]",
        f"all = {_toml(constraints)}",
        "",
        "[launch]",
        f"block = {_toml(shape.block)}",
        f"grid = {_toml(shape.grid)}",
    ]
    work = {"flops": shape.flops, "bytes": shape.bytes}
    known = [f"{name} = {_toml(text)}" for name, text in work.items() if text is not None]
    return "\n".join([*lines, *(["", "[work]", *known] if known else [])]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return json.dumps(value)  # numbers, booleans and basic strings are written alike


def _translated(restrictions: Iterable[str], names: set[str], file: Path | None) -> list[str]:
    """The same text where it is in our language, which is a subset of Python's expressions."""
    problems = [f"{text!r} ({why})" for text in restrictions if (why := _untranslatable(text, names))]
    if problems:
        raise KernelError(f"cannot be translated: {'; '.join(problems)}", file=file, key="restrictions")
    return list(restrictions)


def _untranslatable(text: str, names: set[str]) -> str:
    """Why an expression is outside our language; empty if it is not."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        return str(error.msg)
    for node in ast.walk(tree.body):
        if isinstance(node, ast.Name) and node.id not in names and node.id not in _FUNCTIONS:
            return f"{node.id} is no parameter"
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS):
            return f"calls {ast.unparse(node.func)}"
        if not isinstance(node, _ALLOWED):
            return f"uses {type(node).__name__}"
    return ""


_ALLOWED = (
    *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Name, ast.Load, ast.Constant),
    *_OPERATORS,
    *_COMPARISONS,
)


def _recording(parquet_path: Path, parameters: Sequence[str], device: DeviceInfo) -> bytes:
    try:
        table = pq.read_table(parquet_path)
    except (pa.ArrowException, OSError) as error:
        raise KernelError(f"cannot be read: {error}", file=parquet_path) from error
    kept = [name for name in table.column_names if name in recorded.RESULT_COLUMNS or name in parameters]
    table = table.select(kept).replace_schema_metadata({recorded.DEVICE_FIELD: json.dumps(asdict(device))})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _shape(sidecar: Mapping[str, Any]) -> _Shape:
    known = _KNOWN.get(sidecar["kernel"])
    return known(sidecar) if known else _by_convention(sidecar, _sizes(sidecar))


def _sizes(sidecar: Mapping[str, Any]) -> dict[str, int]:
    given = sidecar.get("problem_size")
    sizes = [given] if isinstance(given, int) else list(given or [])
    return dict(zip(("size_x", "size_y", "size_z"), sizes, strict=False))


def _by_convention(
    sidecar: Mapping[str, Any], sizes: dict[str, int], flops: str | None = None, bytes_: str | None = None
) -> _Shape:
    names = set(sidecar["params"])
    block, grid = [], []
    for axis in "xyz":
        threads = f"block_size_{axis}"
        if threads not in names:
            continue
        block.append(threads)
        tile = next((t for t in (f"tile_size_{axis}", "tile_size" if axis == "x" else "") if t in names), "1")
        grid.append(f"ceil_div(size_{axis}, {threads} * {tile})" if f"size_{axis}" in sizes else "1")
    return _Shape(sizes, block or ["1"], grid or ["1"], flops, bytes_)


def _convolution(sidecar: Mapping[str, Any]) -> _Shape:
    pixels = "size_x * size_y"
    flops = f"2 * {pixels} * filter_width * filter_height"
    halo = "(size_x + filter_width - 1) * (size_y + filter_height - 1)"
    return _by_convention(sidecar, _sizes(sidecar), flops, f"4 * ({pixels} + {halo})")


def _dedispersion(sidecar: Mapping[str, Any]) -> _Shape:
    # size_x samples by size_y dispersion measures, summed over the channels of an ARTS observation.
    return _by_convention(sidecar, _sizes(sidecar), "1536 * size_x * size_y")


def _gemm(sidecar: Mapping[str, Any]) -> _Shape:
    m, n = sidecar["problem_size"]
    return _Shape(
        {"m": m, "n": n, "k": m},
        ["MDIMC", "NDIMC"],
        ["ceil_div(m, MWG)", "ceil_div(n, NWG)"],
        "2 * m * n * k",
        "4 * (m * k + k * n + 2 * m * n)",
    )


def _coulomb(sidecar: Mapping[str, Any]) -> _Shape:
    # The recording does not say how many atoms and grid points there were.
    block = [f"WORK_GROUP_SIZE_{axis}" for axis in "XYZ" if f"WORK_GROUP_SIZE_{axis}" in sidecar["params"]]
    return _Shape({}, block, ["1"])


_KNOWN = {
    "convolution": _convolution,
    "convolution_milo": _convolution,
    "dedispersion_milo": _dedispersion,
    "gemm": _gemm,
    "coulomb3d_ktt": _coulomb,
}
