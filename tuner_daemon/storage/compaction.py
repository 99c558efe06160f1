"""Merging small parts.

Order: write a part whose footer names its inputs, publish it, read it back, delete the inputs. A crash anywhere leaves
either the inputs alone, or the inputs beside a compact that names them, which readers then ignore.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tuner_daemon.storage import files, parts, schema
from tuner_daemon.storage.parts import DamagedPartError, NewerPartError, Part

LARGE_BYTES = 64 << 20  # a part of this size is left as it is
_STALE_S = 3600.0  # a temporary file this old belongs to nobody


@dataclass(frozen=True)
class Report:
    """What a compaction did; all zero if there was nothing to do or another process was at it."""

    merged: int = 0  # parts that were replaced
    written: int = 0  # parts that replace them
    rows: int = 0  # distinct rows in those


def compact(log: Path) -> Report:
    """Compacts every partition of a log's folder. Raises FsyncError, OSError."""
    if not (log / "measurements").is_dir():
        return Report()
    with _alone(log) as alone:
        if not alone:
            return Report()
        done = [_compact_partition(partition) for partition in sorted(log.glob("measurements/device=*/month=*"))]
        _sweep(log)
    return Report(sum(r.merged for r in done), sum(r.written for r in done), sum(r.rows for r in done))


def _compact_partition(folder: Path) -> Report:
    found = [Part.open(path) for path in sorted(folder.glob("part-*.parquet"))]
    _delete_replaced(found)
    small = [(part, table) for part in found if (table := _read_small(part)) is not None]
    if len(small) < 2:
        return Report()
    merged = schema.distinct(pa.concat_tables([table for _, table in small]))
    # Sorted by job, whose rows then lie in few row groups; the sort is stable, so each job keeps its order.
    merged = schema.take(merged, pc.sort_indices(merged, sort_keys=[("job", "ascending")]))
    names = [part.path.name for part, _ in small]
    new = parts.write(folder, merged, name=_name_after(names[0]), inputs=names)
    _check(new, merged.num_rows)
    for part, _ in small:
        _delete(part.path)
    files.fsync_folder(folder)
    return Report(len(small), 1, merged.num_rows)


def _check(new: Part, rows: int) -> None:
    """Raises OSError unless the published part reads back; its inputs are then still there."""
    try:
        found = parts.read(new).num_rows
    except DamagedPartError as error:
        raise OSError(f"{new.path.name} does not read back as it was written: {error}") from error
    if found != rows:
        raise OSError(f"{new.path.name} reads back {found} rows of {rows}")


def _read_small(part: Part) -> Any:
    """The part's rows; None for one that is large already, damaged, or of a later release."""
    try:
        return parts.read(part) if part.path.exists() and part.path.stat().st_size < LARGE_BYTES else None
    except (DamagedPartError, NewerPartError):
        return None


def _name_after(first: str) -> str:
    """A new name that sorts where the first input did, so that the first of a key stays the first."""
    return f"{first.rsplit('-', 1)[0]}-{parts.new_name().rsplit('-', 1)[1]}"


def _delete_replaced(found: list[Part]) -> None:
    """Finishes a compaction that a crash interrupted."""
    by_name = {part.path.name: part for part in found}
    for part in found:
        if part.manifest is not None and not by_name.keys() & set(part.manifest.inputs):
            continue
        try:
            replaced = parts.inputs(part)
        except (DamagedPartError, NewerPartError, FileNotFoundError):
            continue
        for name in replaced:
            if name in by_name:
                _delete(by_name[name].path)


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)
    parts.manifest_path(path).unlink(missing_ok=True)


def _sweep(log: Path) -> None:
    """Removes temporary files and manifests without a part that a crash left behind."""
    stale = time.time() - _STALE_S
    present = {path.stem for path in log.glob("measurements/device=*/month=*/part-*.parquet")}
    orphans = (path for path in log.glob("manifests/part-*.json") if path.stem not in present)
    for path in [*log.glob("measurements/device=*/month=*/.*.tmp"), *log.glob("manifests/.*.tmp"), *orphans]:
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < stale:
                path.unlink()


@contextmanager
def _alone(log: Path) -> Iterator[bool]:
    """True if no other process compacts this log."""
    descriptor = os.open(log / ".compact.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)
