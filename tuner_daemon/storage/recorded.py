"""A recorded space: somebody timed every configuration of a kernel, and a search can be replayed against it.

A kernel folder without sources plus ``*.parquet``: one column per parameter, ``time_ms`` (a median or mean) or
``times_ms`` (a list of samples), ``status``, and where known ``n_rep`` and ``rep_std_ms``. The file's metadata may hold
the device (``tuner.device``, JSON).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tuner_daemon.errors import KernelError, MissingPartError
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.measurement import Outcome

DEVICE_FIELD = b"tuner.device"
RESULT_COLUMNS = {"time_ms", "times_ms", "status", "n_rep", "rep_std_ms", "rep_min_ms"}
_OUTCOMES = {
    "compile_error": Outcome.BUILD_FAILED,
    "runtime_error": Outcome.LAUNCH_FAILED,
    "launch_error": Outcome.LAUNCH_FAILED,
    "correctness_error": Outcome.WRONG_RESULT,
    "timeout": Outcome.TIMED_OUT,
    **{str(outcome): outcome for outcome in Outcome},
}


@dataclass(frozen=True)
class RecordedSpace:
    """Look-ups by configuration; parameter order does not matter."""

    file: Path
    device: DeviceInfo
    parameters: tuple[str, ...]
    rows: Mapping[tuple[Value, ...], tuple[Outcome, tuple[float, ...], float | None]] = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def contains(self, config: Mapping[str, Value]) -> bool:
        return self._key(config) in self.rows

    def lookup(self, config: Mapping[str, Value]) -> tuple[Outcome, tuple[float, ...]]:
        """How it ended, and its times in seconds (empty unless OK). Raises KernelError if it was not recorded."""
        outcome, times_s, _ = self._row(config)
        return outcome, times_s

    def relative_spread(self, config: Mapping[str, Value]) -> float | None:
        """Standard deviation of the recorded repeats over their mean; None if the recording does not say."""
        return self._row(config)[2]

    def best_s(self) -> float:
        """The shortest time that was recorded. Raises ValueError if nothing ran."""
        return min(min(times_s) for _, times_s, _ in self.rows.values() if times_s)

    def _row(self, config: Mapping[str, Value]) -> tuple[Outcome, tuple[float, ...], float | None]:
        try:
            return self.rows[self._key(config)]
        except KeyError:
            raise KernelError(f"has no row for {dict(config)}", file=self.file) from None

    def _key(self, config: Mapping[str, Value]) -> tuple[Value, ...]:
        return tuple(config[name] for name in self.parameters)


def recorded_files(folder: Path) -> list[Path]:
    """The folder's recordings, by name; a device's index is its place in this list."""
    return sorted(folder.glob("[!.]*.parquet"))


def load_recorded(folder: Path, *, index: int = 0) -> RecordedSpace:
    """The recording of device ``index`` in a kernel folder. Raises MissingPartError if there is no such file,
    KernelError if it is not a recording."""
    found = recorded_files(folder)
    if not 0 <= index < len(found):
        raise MissingPartError(f"{folder}: device {index} is not recorded here; there are {len(found)} recordings")
    recorded = read_recorded(found[index], _declared(folder))
    return replace(recorded, device=replace(recorded.device, index=index))


def read_recorded(file: Path, parameters: tuple[str, ...] | None = None) -> RecordedSpace:
    """One recording. ``parameters`` default to every column that is no result. Raises KernelError."""
    try:
        table = pq.read_table(file, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise KernelError(f"cannot be read: {error}", file=file) from error
    names = parameters or tuple(name for name in table.column_names if name not in RESULT_COLUMNS)
    for name in (*names, "status"):
        if name not in table.column_names:
            raise KernelError("is missing", file=file, key=name, remedy="a recording has a column for each parameter")
    return RecordedSpace(file, _device(table, file), names, _rows(table, names, file))


def _declared(folder: Path) -> tuple[str, ...] | None:
    try:
        with (folder / "kernel.toml").open("rb") as file:
            return tuple(tomllib.load(file)["parameters"])
    except (OSError, ValueError, KeyError):
        return None


def _rows(
    table: Any, names: tuple[str, ...], file: Path
) -> dict[tuple[Value, ...], tuple[Outcome, tuple[float, ...], float | None]]:
    nothing = [None] * table.num_rows
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    times_ms = columns.get("times_ms") or [[t] for t in columns.get("time_ms", nothing)]
    keys = zip(*(columns[name] for name in names), strict=True)
    spreads_ms = columns.get("rep_std_ms", nothing)
    rows: dict[tuple[Value, ...], tuple[Outcome, tuple[float, ...], float | None]] = {}
    for key, status, samples_ms, spread_ms in zip(keys, columns["status"], times_ms, spreads_ms, strict=True):
        if status not in _OUTCOMES:
            raise KernelError(f'is "{status}", want one of {", ".join(_OUTCOMES)}', file=file, key="status")
        outcome = _OUTCOMES[status]
        times_s = tuple(t * 1e-3 for t in samples_ms if t is not None) if outcome is Outcome.OK else ()
        if outcome is Outcome.OK and not (times_s and all(0.0 < t < float("inf") for t in times_s)):
            raise KernelError(f"of {dict(zip(names, key, strict=True))} is {samples_ms}", file=file, key="time_ms")
        rows[key] = outcome, times_s, _relative(spread_ms, times_s)
    return rows


def _relative(spread_ms: float | None, times_s: tuple[float, ...]) -> float | None:
    return None if spread_ms is None or not times_s else spread_ms * 1e-3 / (sum(times_s) / len(times_s))


def _device(table: Any, file: Path) -> DeviceInfo:
    """From the file's metadata; a recording that says nothing is of a device named like the file."""
    stored = (table.schema.metadata or {}).get(DEVICE_FIELD)
    if stored is None:
        return DeviceInfo("replay", 0, file.stem, f"recorded-{file.stem}", "")
    try:
        return DeviceInfo(**{**json.loads(stored), "kind": "replay"})
    except (ValueError, TypeError, RecursionError) as error:
        raise KernelError(f"names no device: {error}", file=file, key="tuner.device") from error
