"""Recorded spaces from wherever they lie: files of a hub, kernel folders with recordings, measurement logs."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.errors import InputError, KernelError
from tuner_daemon.intake.kernels import kernel_from_declaration
from tuner_daemon.learning.dataset import TaskRows, group, usable
from tuner_daemon.learning.screening import screen
from tuner_daemon.records.kernel import Kernel, Value
from tuner_daemon.records.measurement import Outcome
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import Budget, DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.retrain import resolver
from tuner_daemon.storage.gpus import device_named
from tuner_daemon.storage.hub import kernel_toml
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.recorded import RecordedSpace, read_recorded

UNLIMITED_S = 1e9


@dataclass(frozen=True)
class Recorded:
    """The configurations of one kernel that were measured at one problem on one device: they are the space that is
    searched. Answers a ReplayRunner like any recorded space."""

    name: str
    rows: TaskRows

    @property
    def kernel(self) -> Kernel:
        return self.rows.kernel

    @property
    def device(self) -> Any:
        return self.rows.device

    @property
    def shape(self) -> str:
        """The problem as text; equal for the same sizes."""
        return json.dumps(dict(sorted(self.rows.problem.items())))

    @cached_property
    def space(self) -> ParamSpace:
        return ParamSpace(self.kernel, self.rows.problem, among=self.rows.indices)

    @cached_property
    def log_s(self) -> dict[tuple[Value, ...], float]:
        """Values in declared order -> log seconds, NaN for failures."""
        columns = [
            [p.values[i] for i in self.rows.indices[:, j].tolist()] for j, p in enumerate(self.kernel.parameters)
        ]
        return dict(zip(zip(*columns, strict=True), self.rows.log_s.tolist(), strict=True))

    @property
    def optimum(self) -> float:
        """Log seconds."""
        return float(np.nanmin(self.rows.log_s))

    @property
    def worst(self) -> float:
        """Log seconds."""
        return float(np.nanmax(self.rows.log_s))

    @cached_property
    def digest(self) -> str:
        """Of everything that a search here, or a model trained on it, depends on."""
        rows, device = self.rows, self.rows.device
        about = [self.kernel.declaration, self.shape, device.kind, device.name, device.arch, dict(device.attributes)]
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        digest.update(np.ascontiguousarray(rows.indices).tobytes())
        digest.update(np.ascontiguousarray(rows.log_s).tobytes())
        return digest.hexdigest()

    def task(self, measurements: int) -> Task:
        """A task of its own for each search: no two share anything that one of them could change."""
        spec = KernelSpec(self.kernel, self.rows.problem, DeviceRequest("replay"), Budget(measurements, UNLIMITED_S))
        space = ParamSpace(self.kernel, self.rows.problem, among=self.rows.indices)
        return Task(spec, space, self.rows.device)

    def contains(self, config: Mapping[str, Value]) -> bool:
        return self._values(config) in self.log_s

    def lookup(self, config: Mapping[str, Value]) -> tuple[str, Sequence[float]]:
        """See runners.replay.RecordedSpace."""
        log_s = self.log_s[self._values(config)]
        return (Outcome.LAUNCH_FAILED, ()) if math.isnan(log_s) else (Outcome.OK, (math.exp(log_s),))

    def _values(self, config: Mapping[str, Value]) -> tuple[Value, ...]:
        return tuple(config[p.name] for p in self.kernel.parameters)


def load(paths: Sequence[Path]) -> list[Recorded]:
    """Every recorded space under the paths, each once; a path is a log, a folder of recordings, or one recording (the
    Parquet file or its sidecar). Spaces in which fewer than four configurations ran are left out.

    Raises InputError for a path with nothing in it, KernelError for a recording that cannot be read.
    """
    found: dict[str, Recorded] = {}
    for path in paths:
        spaces = list(_in_path(path))
        if not spaces:
            raise InputError("holds no recorded space", file=path, remedy="name a log, or a folder with recordings")
        for space in spaces:
            if usable([space.rows]):
                found.setdefault(space.digest, space)
    return _with_names(list(found.values()))


def joined(*lists: Sequence[Recorded]) -> tuple[list[Recorded], list[list[int]]]:
    """What ``load`` would give for the paths of all lists, and the places of each list in it."""
    found: dict[str, Recorded] = {}
    for space in (space for spaces in lists for space in spaces):
        found.setdefault(space.digest, space)
    place = {digest: at for at, digest in enumerate(found)}
    return _with_names(list(found.values())), [[place[space.digest] for space in spaces] for spaces in lists]


def _in_path(path: Path) -> Iterator[Recorded]:
    if (path / "measurements").is_dir():
        yield from _from_log(path)
    elif path.is_dir():
        files = sorted(path.rglob("[!.]*.parquet"))
        for file in files:
            yield _from_file(file)
    elif path.suffix in (".parquet", ".json") and path.exists():
        yield _from_file(path.with_suffix(".parquet"))


def _with_names(spaces: list[Recorded]) -> list[Recorded]:
    """Names that differ."""
    seen: dict[str, int] = {}
    named = []
    for space in spaces:
        count = seen[space.name] = seen.get(space.name, 0) + 1
        named.append(space if count == 1 else Recorded(f"{space.name} ({count})", space.rows))
    return named


def _from_log(folder: Path) -> Iterator[Recorded]:
    """Of the rows that a retrain job would learn from."""
    log = ParquetLog(folder)
    kernel_of = resolver(log)
    for rows in group(screen(log.read().to_pylist(), kernel_of).rows, kernel_of):
        sizes = " ".join(str(value) for value in rows.problem.values())
        yield Recorded(f"{rows.kernel.name} {sizes} on {rows.device.name}", rows)


# -- a recording and what is said about it ------------------------------------------------------------------------


def _from_file(file: Path) -> Recorded:
    """A Parquet file; what it is a recording of is said by a JSON sidecar and the names of its columns, and whatever a
    kernel.toml beside it says instead counts."""
    sidecar = _sidecar(file)
    beside = _declared_beside(file, sidecar)
    space = read_recorded(file, sidecar.get("params") or tuple(beside.get("parameters", ())) or None)
    text = json.dumps(_declaration(file, space, sidecar, beside))
    kernel = kernel_from_declaration(text, hashlib.sha256(text.encode()).hexdigest())
    name, label = str(sidecar.get("device_name") or ""), str(sidecar.get("device") or "")
    device = device_named(name, label or name) if name or label else space.device
    indices, log_s = _rows(space, kernel, file)
    problem = _problem(kernel, sidecar.get("problem_size"), file)
    return Recorded(file.stem, TaskRows(file.stem, kernel, problem, device, indices, log_s))


def _problem(kernel: Kernel, recorded: Any, file: Path) -> dict[str, Value]:
    """The declared defaults; where there is none, the recorded sizes in order."""
    sizes = iter(recorded if isinstance(recorded, list) else [recorded])
    problem: dict[str, Value] = {}
    for variable in kernel.problem:
        size = next(sizes, None) if variable.type == "int" else None
        known = [variable.default, size, *variable.values, variable.min]
        value = next((v for v in known if v is not None), None)
        if value is None:
            raise KernelError("has no value", file=file, key=variable.name, remedy="give the variable a default")
        problem[variable.name] = value
    return problem


def _sidecar(file: Path) -> dict[str, Any]:
    path = file.with_suffix(".json")
    if not path.exists():
        return {}
    try:
        read = json.loads(path.read_text())
        return {**read, "params": tuple(read["params"])}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise KernelError(f"is not a recording's sidecar: {error}", file=path) from error


def _declared_beside(file: Path, sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of ``<recording>.toml``, or of the folder's kernel.toml if that is of this kernel."""
    for path in (file.with_suffix(".toml"), file.parent / "kernel.toml"):
        if not path.exists():
            continue
        try:
            tables = tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise KernelError(f"cannot be read: {error}", file=path) from error
        if path.stem == file.stem or not sidecar or _is_about(tables, sidecar):
            return tables
    return {}


def _is_about(tables: Mapping[str, Any], sidecar: Mapping[str, Any]) -> bool:
    """A kernel.toml may lie beside recordings of several kernels."""
    declared, recorded = {*tables.get("parameters", ())}, {*sidecar["params"]}
    same_name = tables.get("name", sidecar.get("kernel")) == sidecar.get("kernel")
    return declared == recorded or (same_name and declared <= recorded)


def _declaration(
    file: Path, space: RecordedSpace, sidecar: Mapping[str, Any], beside: Mapping[str, Any]
) -> dict[str, Any]:
    """What is said beside the recording, over what its sidecar and names say."""
    if {"name", "parameters", "launch"} <= beside.keys():
        return dict(beside)
    values = sidecar.get("param_values") or {}
    about = {
        "kernel": file.stem.split("__")[0],
        **sidecar,
        "params": space.parameters,
        "param_values": {name: _values(values.get(name, ()), space, at) for at, name in enumerate(space.parameters)},
    }
    tables = tomllib.loads(kernel_toml(about, strict=False))
    parameters = dict(tables["parameters"])
    for name, own in beside.get("parameters", {}).items():
        parameters[name] = {"values": parameters.get(name, []), **own} if isinstance(own, dict) else own
    return {**tables, **beside, "parameters": parameters}


def _values(declared: Sequence[Value], space: RecordedSpace, at: int) -> list[Value]:
    """The declared values, and those that were recorded without being declared, in order."""
    recorded = {key[at] for key in space.rows}
    missing = recorded - set(declared)
    return [*declared, *sorted(missing, key=lambda value: (isinstance(value, str), value))]


def _rows(space: RecordedSpace, kernel: Kernel, file: Path) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """(n, d) positions of values and (n,) log seconds of the recorded median, NaN for failures."""
    places = [{value: i for i, value in enumerate(p.values)} for p in kernel.parameters]
    order = [space.parameters.index(p.name) for p in kernel.parameters]
    indices, log_s = [], []
    for key, (outcome, times_s, _) in space.rows.items():
        row = [place.get(key[at], -1) for at, place in zip(order, places, strict=True)]
        if -1 in row:
            continue  # a kernel.toml that leaves a value out leaves its configurations out
        indices.append(row)
        log_s.append(math.log(float(np.median(times_s))) if outcome is Outcome.OK else math.nan)
    if not indices:
        raise KernelError("holds no configuration with declared values", file=file)
    return np.array(indices, dtype=np.int32), np.array(log_s)
