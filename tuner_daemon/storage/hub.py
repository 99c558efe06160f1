"""Importing recorded spaces of others: a Parquet file and its JSON sidecar become a kernel folder.

The sidecar has ``kernel``, ``params``, ``param_values``, ``restrictions`` (Python expressions), ``device_name``,
``problem_size`` and where it comes from. None of them says how a kernel is launched; names of parameters do, by the
conventions of the tools that recorded them:

- Kernel Tuner: ``block_size_x/y/z`` are threads, each does ``tile_size_x/y/z`` elements; the grid covers the problem.
  KTT says ``WORK_GROUP_SIZE_X/Y/Z``; ``work_per_thread`` and the like mean a tile, too.
- CLBlast: MDIMC x NDIMC threads make a tile of MWG x NWG.
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


def kernel_toml(sidecar: Mapping[str, Any], file: Path | None = None, *, strict: bool = True) -> str:
    """The text of a kernel.toml. Raises KernelError for restrictions outside the expression language; not ``strict``,
    it leaves them out: where the recorded configurations are the space, nothing depends on them."""
    shape = _shape(sidecar)
    names, restrictions = {*sidecar["params"], *shape.problem}, sidecar.get("restrictions") or []
    if not strict:
        restrictions = [text for text in restrictions if not _untranslatable(text, names)]
    constraints = _translated(restrictions, names, file)
    lines = [
        f"# Recorded by others: {sidecar.get('source', 'unknown')} ({sidecar.get('license', 'licence unknown')}).",
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


def _untranslatable(text: Any, names: set[str]) -> str:
    """Why an expression is outside our language; empty if it is not."""
    if not isinstance(text, str):
        return "is no text"
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
    """By the conventions that the names of the parameters follow."""
    names = {str(name).lower(): str(name) for name in sidecar["params"]}
    sizes = _sizes(sidecar)
    if {"mwg", "nwg", "mdimc", "ndimc"} <= names.keys() and "size_y" in sizes:
        return _clblast_gemm(names, sizes)
    block, grid = [], []
    for axis in "xyz":
        threads = next((names[name] for stem in _THREADS if (name := f"{stem}_{axis}") in names), None)
        if threads is None:
            continue
        tile = next((names[name] for name in _tile_names(axis) if name in names), "1")
        block.append(threads)
        grid.append(f"ceil_div(size_{axis}, {threads} * {tile})" if f"size_{axis}" in sizes else "1")
    return _Shape(sizes, block or ["1"], grid or ["1"], *_stencil_work(names, sizes))


_THREADS = ("block_size", "work_group_size", "workgroup_size", "group_size", "local_size", "block_dim", "threads")
_TILES = ("tile_size", "work_per_thread", "elements_per_thread", "items_per_thread", "outputs_per_thread", "tile")


def _tile_names(axis: str) -> list[str]:
    """What a thread's elements along an axis may be called; a name without an axis is along the first."""
    return [name for stem in _TILES for name in (f"{stem}_{axis}", *([stem] if axis == "x" else []))]


def _sizes(sidecar: Mapping[str, Any]) -> dict[str, int]:
    given = sidecar.get("problem_size")
    sizes = given if isinstance(given, list | tuple) else [given]
    numbers = [int(size) if isinstance(size, int | float) and size >= 1 else 0 for size in sizes]
    return {name: size for name, size in zip(("size_x", "size_y", "size_z"), numbers, strict=False) if size}


def _stencil_work(names: Mapping[str, str], sizes: Mapping[str, int]) -> tuple[str | None, str | None]:
    """Operations and bytes where the names say that a filter goes over a plane; otherwise nobody knows."""
    if not {"filter_width", "filter_height"} <= names.keys() or "size_y" not in sizes:
        return None, None
    width, height = names["filter_width"], names["filter_height"]
    halo = f"(size_x + {width} - 1) * (size_y + {height} - 1)"
    return f"2 * size_x * size_y * {width} * {height}", f"4 * (size_x * size_y + {halo})"


def _clblast_gemm(names: Mapping[str, str], sizes: Mapping[str, int]) -> _Shape:
    problem = {"m": sizes["size_x"], "n": sizes["size_y"], "k": sizes.get("size_z", sizes["size_x"])}
    return _Shape(
        problem,
        [names["mdimc"], names["ndimc"]],
        [f"ceil_div(m, {names['mwg']})", f"ceil_div(n, {names['nwg']})"],
        "2 * m * n * k",
        "4 * (m * k + k * n + 2 * m * n)",
    )
