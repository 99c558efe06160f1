"""The measurement log: a folder of immutable Parquet parts.

    measurements/device=<slug>/month=YYYY-MM/part-<time>-<uuid>.parquet
    manifests/part-<time>-<uuid>.json
    declarations/<kernel_sha256>.json

A row is in the log when ``append`` has returned. Parts are never changed, only replaced by compaction, so nothing that
happens while writing can harm what has been written. DuckDB, pandas and polars read the folder as it stands.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tuner_daemon.errors import InputError, LogError
from tuner_daemon.records.kernel import Kernel
from tuner_daemon.records.measurement import Measurement
from tuner_daemon.storage import compaction, files, parts, schema
from tuner_daemon.storage.parts import DamagedPartError, NewerPartError, Part

logger = logging.getLogger(__name__)
T = TypeVar("T")
_RETRIES = 20  # a reader starts again when compaction took a part from under it


class ParquetLog:
    """Implements interfaces.MeasurementLog. Several processes may append, read and compact one folder.

    ``sources`` are folders of the same layout, read after the own rows and never written.
    """

    def __init__(self, folder: Path, sources: Sequence[Path] = ()) -> None:
        self.folder = folder
        self.damaged: dict[str, str] = {}  # part name -> why it is not read
        self.skipped: dict[str, str] = {}  # part name -> schema version this release does not know
        self._sources = list(sources)
        self._guard = files.Guard(LogError)
        self._parts: dict[Path, Part] = {}
        self._replaced_by: dict[Path, tuple[str, ...]] = {}
        self._last_name_at = datetime.min.replace(tzinfo=UTC)

    def append(self, rows: Sequence[Measurement]) -> None:
        """On disk when it returns. Raises DiskFullError (nothing is lost, try again later), LogError (after a failed
        fsync: every later call as well), ValueError for a row that contradicts itself."""
        if rows:
            self._write(schema.to_table(rows))

    def remember(self, kernel: Kernel) -> None:
        """Keeps the kernel's declaration beside the rows."""
        path = self.folder / "declarations" / f"{kernel.sha256}.json"
        if not path.exists():
            self._publish_declaration(path, kernel.declaration.encode())

    def read(self, *, kernel: str | None = None, job: str | None = None, columns: Sequence[str] | None = None) -> Any:
        """A pyarrow.Table of distinct rows (the first of a key) in order of writing. Damaged parts are left out and
        listed in ``damaged``, those of later releases in ``skipped``."""
        wanted = None if columns is None else list(dict.fromkeys(["key", *columns]))
        table = schema.distinct(self._rows(kernel=kernel, job=job, columns=wanted))
        return table if columns is None else table.select(list(columns))

    def measurements(self, job: str) -> list[Measurement]:
        """The job's rows as records, in order of writing."""
        return schema.to_measurements(self.read(job=job))

    def declarations(self) -> dict[str, Path]:
        """kernel_sha256 -> file with the kernel's canonical declaration (JSON)."""
        found: dict[str, Path] = {}
        for root in self._roots():
            for path in sorted((root / "declarations").glob("[!.]*.json")):
                found.setdefault(path.stem, path)
        return found

    def compact(self) -> compaction.Report:
        """Merges small parts, partition by partition. Does nothing while another process compacts."""
        with self._guard("measurement log"):
            return compaction.compact(self.folder)

    def verify(self) -> dict[str, str]:
        """Reads every byte of every part; the damaged ones by name, with the reason."""

        def check() -> None:
            self._parts.clear()
            self.damaged.clear()
            self.skipped.clear()
            for part in self._listed():
                self._read(part)

        self._steadily(check)
        return dict(self.damaged)

    def part_names(self) -> list[str]:
        """Names of every part, readable or not, those of the sources included."""
        return [part.path.name for part in self._listed()]

    def unverified(self) -> list[str]:
        """Parts without a manifest: page checksums are all that vouches for them."""
        return [part.path.name for part in self._listed() if part.manifest is None and not part.damage]

    def stats(self) -> dict[str, Any]:
        """Rows as stored (a row written twice counts twice until compaction), parts, bytes, rows by outcome for each
        kernel, and the parts that cannot be used or vouched for. Opens no part that has a manifest."""
        return self._steadily(self._stats)

    def fingerprint(self) -> str:
        """SHA-256 of the sorted keys of all rows: the same before and after compaction."""
        keys = sorted(self.read(columns=["key"]).column("key").to_pylist())
        return hashlib.sha256("\n".join(keys).encode()).hexdigest()

    def import_parts(self, path: Path) -> int:
        """Copies rows that are not here yet from another log's folder, a folder of Parquet files with this schema, or
        one such file. Returns how many. Raises InputError if nothing is there to read, LogError if any of it is
        damaged."""
        other = ParquetLog(path)
        found = _parts_at(path)
        if (path / "measurements").is_dir():
            table = other.read()
        else:
            tables = [other._read(part) for part in map(Part.open, found)]
            table = _concat([table for table in tables if table is not None], None)
        if problems := {**other.damaged, **other.skipped}:
            name, reason = next(iter(problems.items()))
            raise LogError(f"{path}: {name}: {reason}; nothing was imported")
        for sha256, declaration in other.declarations().items():
            self._publish_declaration(self.folder / "declarations" / f"{sha256}.json", declaration.read_bytes())
        return self._add_new(table)

    def export(
        self,
        folder: Path,
        *,
        kernel: str | None = None,
        keys: Collection[str] | None = None,
        anonymous: bool = True,
        single: bool = False,
    ) -> int:
        """Writes the distinct rows, or those with these keys, as a compact log of its own; ``anonymous`` empties host,
        device UUID and paths, ``single`` rounds to single precision. Returns how many rows were written."""
        table = self.read(kernel=kernel)
        if keys is not None:
            table = table.filter(pc.is_in(table.column("key"), value_set=pa.array(keys, pa.string())))
        if single:
            table = schema.to_single(table)
        other = ParquetLog(folder)
        for sha256 in pc.unique(table.column("kernel_sha256")).to_pylist():
            if declaration := self.declarations().get(sha256):
                other._publish_declaration(folder / "declarations" / declaration.name, declaration.read_bytes())
        return other._add_new(_anonymous(table) if anonymous else table)

    def _add_new(self, table: Any) -> int:
        known = self._own().read(columns=["key"]).column("key")
        fresh = schema.distinct(table.filter(pc.invert(pc.is_in(table.column("key"), value_set=known))))
        self._write(fresh)
        return int(fresh.num_rows)

    def _own(self) -> ParquetLog:
        return ParquetLog(self.folder)

    def _publish_declaration(self, path: Path, declaration: bytes) -> None:
        with self._guard("kernel declaration"):
            files.make_folder(path.parent)
            files.publish_bytes(path, declaration)

    def _write(self, table: Any) -> None:
        with self._guard("measurement log"):
            for partition, rows in _by_partition(table):
                parts.write(self.folder / "measurements" / partition, rows, name=parts.new_name(self._next_time()))

    def _next_time(self) -> datetime:
        """Part names of one process sort in order of writing even if the clock is set back."""
        self._last_name_at = max(datetime.now(UTC), self._last_name_at + timedelta(microseconds=1))
        return self._last_name_at

    def _rows(self, *, kernel: str | None, job: str | None, columns: Sequence[str] | None) -> Any:
        def gather() -> Any:
            chosen = [part for part in self._live() if part.may_hold(kernel, job)]
            read = [self._read(part, kernel=kernel, job=job, columns=columns) for part in chosen]
            return _concat([table for table in read if table is not None], columns)

        return self._steadily(gather)

    def _steadily(self, action: Callable[[], T]) -> T:
        """Runs ``action`` again with a fresh listing when a listed part has been compacted away."""
        for _ in range(_RETRIES):
            try:
                return action()
            except FileNotFoundError:
                continue
        raise LogError(f"{self.folder}: parts vanish while they are read; is something deleting them?")

    def _read(
        self, part: Part, *, kernel: str | None = None, job: str | None = None, columns: Sequence[str] | None = None
    ) -> Any:
        return self._try(part, lambda: parts.read(part, kernel=kernel, job=job, columns=columns))

    def _try(self, part: Part, action: Callable[[], T]) -> T | None:
        """None if the part cannot be used, which is noted under its name."""
        try:
            return action()
        except DamagedPartError as error:
            self._note(self.damaged, part, str(error))
        except NewerPartError as error:
            self._note(self.skipped, part, f"written by a later release ({error})")
        return None

    def _note(self, where: dict[str, str], part: Part, reason: str) -> None:
        if where.get(part.path.name) != reason:
            logger.warning("measurement log: %s is not read: %s", part.path, reason)
        where[part.path.name] = reason

    def _live(self) -> list[Part]:
        """Parts that no readable compact replaces."""
        listed = self._listed()
        names = {part.path.name for part in listed}
        replaced: set[str] = set()
        for part in listed:
            replaced.update(self._inputs(part, names))
        return [part for part in listed if part.path.name not in replaced]

    def _inputs(self, part: Part, names: set[str]) -> tuple[str, ...]:
        if part.manifest is not None:
            # Usually its inputs are long gone; the compact itself is checked only if one is still there.
            return (self._try(part, lambda: parts.inputs(part)) or ()) if names & set(part.manifest.inputs) else ()
        if part.path not in self._replaced_by:
            self._replaced_by[part.path] = self._try(part, lambda: parts.inputs(part)) or ()
        return self._replaced_by[part.path]

    def _listed(self) -> list[Part]:
        """Own parts in order of writing, then those of the sources."""
        found: dict[Path, Part] = {}
        for root in self._roots():
            for path in sorted(part_files(root / "measurements"), key=lambda path: path.name):
                part = self._parts.get(path) or Part.open(path)
                found[path] = part
        self._parts = {path: part for path, part in found.items() if not part.damage}
        return list(found.values())

    def _roots(self) -> list[Path]:
        return [self.folder, *self._sources]

    def _stats(self) -> dict[str, Any]:
        live = self._live()
        kernels: dict[str, Counter[str]] = {}
        size = 0
        for part in live:
            size += part.path.stat().st_size
            for kernel, outcomes in self._outcomes(part).items():
                kernels.setdefault(kernel, Counter()).update(outcomes)
        return {
            "rows": sum(sum(outcomes.values()) for outcomes in kernels.values()),
            "parts": len(live),
            "bytes": size,
            "kernels": {kernel: dict(sorted(outcomes.items())) for kernel, outcomes in sorted(kernels.items())},
            "unverified": self.unverified(),
            "damaged": dict(self.damaged),
            "skipped": dict(self.skipped),
        }

    def _outcomes(self, part: Part) -> dict[str, Counter[str]]:
        if part.manifest is not None:
            return {kernel: Counter(outcomes) for kernel, outcomes in part.manifest.outcomes.items()}
        table = self._read(part, columns=["kernel", "outcome"])
        return {} if table is None else {k: Counter(o) for k, o in parts.count_outcomes(table).items()}


def _parts_at(path: Path) -> list[Path]:
    """What an import reads. Raises InputError if that is nothing."""
    remedy = "name another log's folder, a folder of Parquet files, or one such file"
    if not path.exists():
        raise InputError("does not exist", file=path, remedy=remedy)
    if path.is_file():
        return [path]
    found = sorted(part_files(path / "measurements")) or sorted(path.glob("[!.]*.parquet"))
    if not found:
        raise InputError("holds no Parquet file", file=path, remedy=remedy)
    return found


def part_files(folder: Path) -> Iterator[Path]:
    """Every part under measurements/; ``scandir`` because there may be thousands."""
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from part_files(Path(entry.path))
            elif entry.name.startswith("part-") and entry.name.endswith(".parquet"):
                yield Path(entry.path)


def slug(text: str) -> str:
    """A folder name for a device's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "unknown"


def _by_partition(table: Any) -> Iterator[tuple[Path, Any]]:
    devices = table.column("device_name").to_pylist()
    months = pc.strftime(table.column("started_at"), format="%Y-%m").to_pylist()
    rows: dict[Path, list[int]] = {}
    for row, (device, month) in enumerate(zip(devices, months, strict=True)):
        rows.setdefault(Path(f"device={slug(device or '')}", f"month={month}"), []).append(row)
    for partition, indices in rows.items():
        yield partition, table if len(rows) == 1 else table.take(pa.array(indices, pa.int64()))


def _concat(tables: Sequence[Any], columns: Sequence[str] | None) -> Any:
    empty = schema.conform(schema.SCHEMA.empty_table(), columns)
    return pa.concat_tables([empty, *tables])


def _anonymous(table: Any) -> Any:
    for name in ("host", "device_uuid", "artifact_path"):
        blank = pc.if_else(pc.is_valid(table.column(name)), "", table.column(name))
        table = table.set_column(table.column_names.index(name), name, blank)
    return table
