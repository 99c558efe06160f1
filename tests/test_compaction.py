"""Merging small parts loses nothing and doubles nothing, wherever it is interrupted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.rows import measurement
from tuner_daemon.storage import compaction, parts
from tuner_daemon.storage.log import ParquetLog, part_files


def _parts(log: ParquetLog) -> list[Path]:
    return sorted(part_files(log.folder / "measurements"))


def test_compaction_keeps_every_row_once_and_in_order(tmp_path: Path) -> None:
    log = ParquetLog(tmp_path)
    for n in range(12):
        log.append([measurement(n, job=f"job {n % 3}")])
    log.append([measurement(0, job="job 0")])
    before, fingerprint = {job: log.measurements(job) for job in ("job 0", "job 1", "job 2")}, log.fingerprint()
    assert log.compact() == compaction.Report(merged=13, written=1, rows=12)
    assert len(_parts(log)) == 1
    assert {job: log.measurements(job) for job in before} == before
    assert all(len(rows) == 4 for rows in before.values())
    assert log.fingerprint() == fingerprint
    assert log.compact() == compaction.Report()
    log.append([measurement(99, job="job 0")])
    log.compact()
    assert [m.round for m in log.measurements("job 0")] == [0, 3, 6, 9, 99]


class _Crash(BaseException):
    """The process ends here."""


def _crash_at(monkeypatch: pytest.MonkeyPatch, n: int) -> Callable[[], int]:
    """Ends the process at the n-th step that changes the disk; gives the number of steps so far."""
    steps = 0

    def wrap(module: Any, name: str) -> None:
        real = getattr(module, name)

        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == n:
                raise _Crash
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, step)

    for name in ("replace", "unlink", "fsync", "mkdir"):
        wrap(os, name)
    return lambda: steps


def test_a_crash_while_compacting_loses_and_doubles_nothing(tmp_path: Path) -> None:
    original = ParquetLog(tmp_path / "original")
    for row in range(3):
        original.append([measurement(row)])
    crashed = 0
    for n in range(1, 60):
        folder = tmp_path / str(n)
        shutil.copytree(original.folder, folder)
        with pytest.MonkeyPatch.context() as patch:
            _crash_at(patch, n)
            try:
                ParquetLog(folder).compact()
            except _Crash:
                crashed += 1
            else:
                break
        reader = ParquetLog(folder)
        assert reader.stats()["rows"] == 3  # by the list of inputs, not by their keys
        assert [m.round for m in reader.measurements("job")] == [0, 1, 2]
        reader.compact()
        stats = ParquetLog(folder).stats()
        assert (stats["rows"], stats["parts"], stats["kernels"], stats["damaged"]) == (3, 1, {"sgemm": {"ok": 3}}, {})
    assert crashed > 8


def test_without_the_list_of_inputs_a_crash_doubles_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ParquetLog(tmp_path)
    for n in range(3):
        log.append([measurement(n)])

    def crash(path: Path) -> None:
        raise _Crash

    monkeypatch.setattr(compaction, "_delete", crash)
    with pytest.raises(_Crash):
        log.compact()
    assert ParquetLog(tmp_path).stats()["rows"] == 3
    monkeypatch.setattr(ParquetLog, "_inputs", lambda self, part, names: ())
    assert ParquetLog(tmp_path).stats()["rows"] == 6


def test_a_damaged_compact_gives_way_to_its_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ParquetLog(tmp_path)
    for n in range(3):
        log.append([measurement(n)])
    monkeypatch.setattr(compaction, "_delete", lambda path: None)
    log.compact()
    compacted = next(path for path in _parts(log) if pq.read_metadata(path).num_rows == 3)
    compacted.write_bytes(compacted.read_bytes()[:-9])
    assert len(ParquetLog(tmp_path).measurements("job")) == 3


def test_a_reader_starts_again_when_compaction_takes_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ParquetLog(tmp_path)
    for n in range(3):
        log.append([measurement(n)])
    real, raced = parts.read, list[parts.Part]()

    def race(part: parts.Part, **kwargs: Any) -> Any:
        if not raced:
            raced.append(part)
            with monkeypatch.context() as alone:
                alone.setattr(parts, "read", real)
                ParquetLog(tmp_path).compact()
        return real(part, **kwargs)

    monkeypatch.setattr(parts, "read", race)
    assert len(log.measurements("job")) == 3
    assert raced
