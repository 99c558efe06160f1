"""Writing recorded spaces: a task of which the log has every configuration becomes a kernel folder for replay.

The folder has the kernel's declaration without its sources, at one problem and with the values that were measured, and
the recording that ``recorded`` reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tuner_daemon.errors import KernelError
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.kernel import Kernel, Value
from tuner_daemon.records.measurement import Failure, Measurement, Outcome, Timing
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.storage import files, recorded
from tuner_daemon.storage.log import slug

_SAMPLES = pa.list_(pa.float64())


@dataclass(frozen=True)
class Recording:
    """What was written. ``unsure``: configurations whose rows were not sound, recorded as disturbed."""

    folder: Path
    size: int
    ok: int
    unsure: int


def write_recording(
    folder: Path, kernel: Kernel, problem: Mapping[str, Value], rows: Sequence[Measurement], unsound: Sequence[str] = ()
) -> Recording:
    """``kernel``: with the parameters' values that were measured. ``unsound``: keys of rows whose time is not to be
    believed. The device is recorded without its UUID.

    Raises KernelError if a valid configuration has no row.
    """
    by_key: dict[str, Measurement] = {}
    for row in rows:
        if row.ran.config.key not in by_key or row.key not in unsound:
            by_key[row.ran.config.key] = row
    configs = ParamSpace(kernel, problem).all()
    missing = [config for config in configs if config.key not in by_key]
    if missing:
        first = ", ".join(f"{name} = {value}" for name, value in missing[0].as_dict().items())
        raise KernelError(
            f"{len(missing)} of {len(configs)} configurations of {kernel.name} have no row, such as {first}",
            file=folder,
            remedy="collect the rest first",
        )
    found = [by_key[config.key] for config in configs]
    table = _table(kernel, found, set(unsound))
    files.make_folder(folder)
    device = replace(found[0].device, uuid="")
    data = {
        folder / "kernel.toml": kernel_toml(kernel, problem, found[0].device).encode(),
        folder / f"{slug(device.name)}.parquet": _encoded(table, device),
    }
    files.publish_files(data)
    statuses = table.column("status").to_pylist()
    disturbed = sum(status == Outcome.DISTURBED for status in statuses)
    return Recording(folder, len(configs), sum(status == Outcome.OK for status in statuses), disturbed)


def kernel_toml(kernel: Kernel, problem: Mapping[str, Value], device: DeviceInfo) -> str:
    """The declaration as TOML, without sources and reference, with one value for every problem variable."""
    tables = json.loads(kernel.declaration)
    for name in ("sources", "reference", "tolerance"):
        tables.pop(name, None)
    tables["problem"] = {v.name: _fixed(v.type, problem[v.name]) for v in kernel.problem}
    for parameter in kernel.parameters:
        tables["parameters"][parameter.name] = {"values": list(parameter.values), "role": parameter.role}
    baseline = tables.get("baseline", {}).get("config")
    if baseline is not None and not ParamSpace(kernel, problem).contains(baseline):
        del tables["baseline"]  # the first configuration that runs takes its place
    head = f"# Every configuration of {kernel.name} at one problem, recorded on one {device.name}.\n"
    return head + _document(tables)


def _fixed(kind: str, value: Value) -> dict[str, Any]:
    if isinstance(value, str):
        return {"values": [value], "default": value}
    return {"type": kind, "min": value, "max": value, "default": value}


def _document(tables: Mapping[str, Any]) -> str:
    """TOML of a declaration: plain keys first, then a table each, arguments as an array of tables."""
    plain = [f"{name} = {_toml(value)}" for name, value in tables.items() if not isinstance(value, dict | list)]
    lines = ["\n".join(plain)]
    for name, value in tables.items():
        for table in value if isinstance(value, list) else [value]:
            if isinstance(table, dict) and table:
                header = f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
                lines.append("\n".join([header, *(f"{key} = {_toml(item)}" for key, item in table.items())]))
    return "\n\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)  # numbers, truth values and basic strings are written alike


def _table(kernel: Kernel, rows: Sequence[Measurement], unsound: set[str]) -> Any:
    status: list[str] = []
    times_ms: list[list[float] | None] = []
    for row in rows:
        believed = isinstance(row.ran, Failure) or row.key not in unsound
        status.append(str(row.ran.outcome if believed else Outcome.DISTURBED))
        times_s = row.ran.times_s if isinstance(row.ran, Timing) and believed else None
        times_ms.append(None if times_s is None else [_rounded(1e3 * t) for t in times_s])
    columns = {p.name: pa.array([row.config[p.name] for row in rows]) for p in kernel.parameters}
    return pa.table({**columns, "status": pa.array(status), "times_ms": pa.array(times_ms, _SAMPLES)})


def _rounded(value: float) -> float:
    """To single precision, which is what a device's clock gives: it packs better."""
    return float(np.float32(value))


def _encoded(table: Any, device: DeviceInfo) -> bytes:
    sink = pa.BufferOutputStream()
    described = table.replace_schema_metadata({recorded.DEVICE_FIELD: json.dumps(asdict(device))})
    pq.write_table(described, sink, compression="zstd", write_page_checksum=True)
    data: bytes = sink.getvalue().to_pybytes()
    return data
