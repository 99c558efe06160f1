"""The measurement log."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes import vector_add_kernel
from tests.rows import CLOCKS, DEVICE, failure, measurement
from tuner_daemon.errors import DiskFullError, InputError, LogError
from tuner_daemon.records.device import Clocks
from tuner_daemon.records.measurement import Failure, Outcome, Proposal, Timing
from tuner_daemon.records.space import Config
from tuner_daemon.storage import files, parts, schema
from tuner_daemon.storage.log import ParquetLog, part_files


def _parts(log: ParquetLog) -> list[Path]:
    return sorted(part_files(log.folder / "measurements"))


def _keys(log: ParquetLog) -> list[str]:
    return [str(key) for key in log.read(columns=["key"]).column("key").to_pylist()]


def test_every_kind_of_row_comes_back_as_it_was(tmp_path: Path) -> None:
    log = ParquetLog(tmp_path)
    bare = Failure(Config((), ()), Outcome.TIMED_OUT, "")
    rows = [
        measurement(0),
        failure(1),
        replace(failure(2, Outcome.WRONG_RESULT), artifact=measurement(2).artifact),
        replace(measurement(3, ran=bare), artifact=None, baseline_median_s=None),
        replace(measurement(4, ran=bare)),
    ]
    log.append(rows)
    assert log.measurements("job") == rows
    assert log.measurements("another job") == []


_VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
_CONFIGS = st.dictionaries(
    st.text(st.characters(codec="ascii", categories=["L"]), min_size=1), _VALUES, min_size=1
).map(Config.of)
_SECONDS = st.floats(1e-9, 1e9)
_TIMINGS = st.builds(
    Timing,
    _CONFIGS,
    st.lists(_SECONDS, min_size=1).map(tuple),
    st.none() | _SECONDS,
    st.floats(0, 1),
    st.just(CLOCKS) | st.just(Clocks()),
    st.none() | st.floats(0, 1),
)
_FAILURES = st.builds(
    Failure,
    _CONFIGS,
    st.sampled_from([outcome for outcome in Outcome if outcome is not Outcome.OK]),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.none() | st.floats(allow_nan=False),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rans=st.lists(_TIMINGS | _FAILURES, min_size=1, max_size=5))
def test_any_measurement_survives_the_way_to_columns_and_back(rans: list[Timing | Failure]) -> None:
    rows = [
        replace(measurement(n), ran=ran, config=ran.config.as_dict(), proposal=Proposal(ran.config, "x"), artifact=None)
        for n, ran in enumerate(rans)
    ]
    back = schema.to_measurements(schema.to_table(rows))
    assert back == rows
    # Equality does not tell 1 from 1.0 from True; the log must.
    assert [list(map(type, b.config.values())) for b in back] == [list(map(type, r.config.values())) for r in rows]
    assert [b.key for b in back] == [r.key for r in rows]


def test_a_row_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="differ"):
        ParquetLog(tmp_path).append([replace(measurement(), config={"BM": 77})])
    with pytest.raises(ValueError, match="time zone"):
        ParquetLog(tmp_path).append([measurement(started_at=datetime(2026, 1, 1))])


def test_a_row_written_twice_is_read_once_and_the_first_wins(tmp_path: Path) -> None:
    log = ParquetLog(tmp_path)
    first = measurement(0)
    log.append([first, measurement(1)])
    log.append([replace(first, host="later"), measurement(2)])
    assert [m.host for m in log.measurements("job")] == ["node1"] * 3
    assert log.stats()["rows"] == 4  # negative control: it is in the files twice


def test_rows_can_be_chosen_by_kernel_job_and_column(tmp_path: Path) -> None:
    log = ParquetLog(tmp_path)
    log.append([measurement(0), measurement(1, job="other", kernel="gemv")])
    table = log.read(kernel="gemv", columns=["median_s", "job"])
    assert table.to_pydict() == {"median_s": [2e-3], "job": ["other"]}
    assert log.read().column_names == schema.SCHEMA.names
    assert ParquetLog(tmp_path / "empty").read(columns=["key"]).num_rows == 0


def test_parts_lie_by_device_and_month(tmp_path: Path) -> None:
    log = ParquetLog(tmp_path)
    april = datetime(2026, 4, 1, tzinfo=UTC)
    log.append(
        [measurement(0), measurement(1, started_at=april), measurement(2, device=replace(DEVICE, name="RTX/A 4000"))]
    )
    folders = {str(path.parent.relative_to(tmp_path / "measurements")) for path in _parts(log)}
    assert folders == {
        "device=nvidia-h200/month=2026-03",
        "device=nvidia-h200/month=2026-04",
        "device=rtx-a-4000/month=2026-03",
    }


def test_any_reader_of_parquet_sees_the_declared_columns(tmp_path: Path) -> None:
    ParquetLog(tmp_path).append([measurement(3)])
    table = pq.read_table(tmp_path / "measurements")  # a hive-partitioned data set, as DuckDB and pandas read it
    row = table.to_pylist()[0]
    assert dict(row["config"]) == {"BM": "3", "SPLIT": "true", "ALPHA": "0.5", "LAYOUT": '"nn"'}
    assert row["device"] == "nvidia-h200"
    assert row["median_s"] == 2e-3


def test_a_flipped_bit_anywhere_in_a_part_is_noticed(tmp_path: Path) -> None:
    log = ParquetLog(tmp_path)
    log.append([measurement(n) for n in range(4)])
    log.append([measurement(9)])
    path = _parts(log)[0]
    whole = path.read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // 16)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        fresh = ParquetLog(tmp_path)
        assert [m.round for m in fresh.measurements("job")] == [9]
        assert list(fresh.damaged) == [path.name] == list(fresh.verify())
        assert path.name in fresh.stats()["damaged"] or fresh.stats()["parts"] == 2
    path.write_bytes(whole)
    assert ParquetLog(tmp_path).verify() == {}
    assert len(ParquetLog(tmp_path).measurements("job")) == 5


def test_without_checks_a_flipped_bit_gives_wrong_numbers(tmp_path: Path) -> None:
    """Negative control of the test above: the same flips, read as most programs read Parquet."""
    log = ParquetLog(tmp_path)
    log.append([measurement(n) for n in range(4)])
    path = _parts(log)[0]
    whole, right = path.read_bytes(), pq.ParquetFile(path).read()
    silent = 0
    for position in range(4, len(whole) // 2, 97):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        try:
            silent += not pq.ParquetFile(pa.BufferReader(bytes(damaged))).read().equals(right)
        except (pa.ArrowException, OSError):
            continue
    assert silent > 0


def test_a_damaged_manifest_quarantines_its_part_and_none_leaves_page_checksums(tmp_path: Path) -> None:
    log = ParquetLog(tmp_path)
    log.append([measurement(0)])
    manifest = parts.manifest_path(_parts(log)[0])
    text = manifest.read_text()
    manifest.write_text(text.replace('"jobs": ["job"]', '"jobs": ["jab"]'))
    fresh = ParquetLog(tmp_path)
    assert fresh.measurements("job") == []
    assert list(fresh.damaged) == [_parts(log)[0].name]
    manifest.unlink()
    bare = ParquetLog(tmp_path)
    assert bare.measurements("job") == [measurement(0)]
    assert bare.stats()["unverified"] == [_parts(log)[0].name]
    assert bare.stats()["kernels"] == {"sgemm": {"ok": 1}}


def test_a_part_of_a_later_release_is_skipped_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = ParquetLog(tmp_path)
    with monkeypatch.context() as later:
        later.setattr(parts, "SCHEMA_VERSION", 99)
        log.append([measurement(0)])
    log.append([measurement(1)])
    for manifest in (True, False):
        fresh = ParquetLog(tmp_path)
        assert [m.round for m in fresh.measurements("job")] == [1]
        assert list(fresh.skipped) == [_parts(log)[0].name]
        assert fresh.damaged == {}
        if manifest:
            parts.manifest_path(_parts(log)[0]).unlink()
    assert "later release" in caplog.text


def test_a_part_that_lacks_added_columns_is_read_with_nulls(tmp_path: Path) -> None:
    older = schema.to_table([measurement(0)]).drop_columns(
        ["clock_policy", "clock_reasons", "device_index", "artifact_sha256"]
    )
    parts.write(tmp_path / "measurements" / "device=x" / "month=2026-03", older)
    back = ParquetLog(tmp_path).measurements("job")[0]
    assert (back.device.index, back.artifact, back.ran.clocks.policy) == (0, None, "observe")
    assert back.key == measurement(0).key


def test_a_foreign_parquet_file_is_no_log(tmp_path: Path) -> None:
    folder = tmp_path / "measurements"
    folder.mkdir()
    pq.write_table(pa.table({"key": ["x"]}), folder / "part-foreign.parquet")
    log = ParquetLog(tmp_path)
    assert log.read().num_rows == 0
    assert "not a measurement log" in log.damaged["part-foreign.parquet"]


def test_a_failed_fsync_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ParquetLog(tmp_path)
    log.append([measurement(0)])
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", _raiser(OSError(5, "Input/output error")))
        with pytest.raises(LogError, match="Input/output error"):
            log.append([measurement(1)])
    with pytest.raises(LogError, match="restart"):  # the disk claims to be well again; nobody can know
        log.append([measurement(1)])
    assert [m.round for m in ParquetLog(tmp_path).measurements("job")] == [0]


def test_a_full_disk_is_not_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ParquetLog(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(files, "write_synced", _raiser(OSError(28, "No space left on device")))
        with pytest.raises(DiskFullError, match="No space"):
            log.append([measurement(0)])
    assert not list(tmp_path.rglob(".*.tmp"))
    log.append([measurement(0)])
    assert len(log.measurements("job")) == 1


def _raiser(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def _append_for_ever(folder: Path, acknowledged: Path) -> None:
    log = ParquetLog(folder)
    with acknowledged.open("a") as file:
        for n in range(10_000):
            log.append([measurement(n)])
            file.write(f"{n}\n")
            file.flush()


def test_a_crash_loses_no_measurement(tmp_path: Path) -> None:
    """Killed at a random moment: every acknowledged row is there."""
    folder, acknowledged = tmp_path / "log", tmp_path / "acknowledged"
    child = multiprocessing.get_context("spawn").Process(target=_append_for_ever, args=(folder, acknowledged))
    child.start()
    deadline_s = time.monotonic() + 60
    while (not acknowledged.exists() or acknowledged.stat().st_size < 40) and time.monotonic() < deadline_s:
        time.sleep(0.003)
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    lines = acknowledged.read_text().split("\n")[:-1]
    assert len(lines) >= 10
    found = {m.round for m in ParquetLog(folder).measurements("job")}
    assert found >= set(map(int, lines))
    assert ParquetLog(folder).verify() == {}


def test_a_source_is_read_and_never_written(tmp_path: Path) -> None:
    seed = ParquetLog(tmp_path / "seed")
    seed.append([measurement(0), measurement(1)])

    def written() -> dict[Path, tuple[int, ...]]:
        """Everything of the source but when it was read last."""
        files = {path: path.stat() for path in (tmp_path / "seed").rglob("*")}
        return {path: (s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in files.items()}

    before = written()
    log = ParquetLog(tmp_path / "own", sources=[seed.folder])
    log.append([replace(measurement(1), host="own"), measurement(2)])
    assert [(m.round, m.host) for m in log.measurements("job")] == [(1, "own"), (2, "node1"), (0, "node1")]
    log.compact()
    assert written() == before


def test_importing_twice_adds_nothing(tmp_path: Path) -> None:
    kernel = vector_add_kernel(tmp_path / "kernel")
    other, log = ParquetLog(tmp_path / "other"), ParquetLog(tmp_path / "own")
    other.remember(kernel)
    other.append([measurement(0), failure(1)])
    log.append([measurement(0)])
    assert log.import_parts(other.folder) == 1
    assert log.import_parts(other.folder) == 0
    assert log.measurements("job") == other.measurements("job")
    assert log.declarations()[kernel.sha256].read_text() == kernel.declaration
    one_file = _parts(other)[0]
    assert ParquetLog(tmp_path / "third").import_parts(one_file) == 2
    one_file.write_bytes(b"PAR1")
    with pytest.raises(LogError, match="nothing was imported"):
        ParquetLog(tmp_path / "fourth").import_parts(other.folder)


@pytest.mark.parametrize(("name", "problem"), [("nope", "does not exist"), ("empty", "holds no Parquet file")])
def test_importing_from_where_no_log_is_says_so(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "empty" / "measurements").mkdir(parents=True)
    with pytest.raises(InputError, match=f"{name}: {problem}; name another log's folder"):
        ParquetLog(tmp_path / "own").import_parts(tmp_path / name)
    assert not (tmp_path / "own").exists()


def test_an_export_may_be_of_some_rows_in_single_precision(tmp_path: Path) -> None:
    log = ParquetLog(tmp_path / "log")
    rows = [measurement(n, ran=Timing(Config((), ()), (1 / (3 + n), 0.2, 0.3), None, 0.1)) for n in range(3)]
    log.append(rows)
    assert log.export(tmp_path / "out", keys=[rows[0].key, rows[2].key, "none"], single=True) == 2
    first, _ = ParquetLog(tmp_path / "out").measurements("job")
    assert isinstance(first.ran, Timing)
    assert first.ran.times_s == pytest.approx((1 / 3, 0.2, 0.3), rel=1e-7)
    assert first.ran.times_s[0] == float(np.float32(1 / 3)) != 1 / 3


def test_an_export_is_a_log_that_names_nobody(tmp_path: Path) -> None:
    log = ParquetLog(tmp_path / "own")
    kernel = vector_add_kernel(tmp_path / "kernel")
    log.remember(kernel)
    log.append([replace(measurement(0), kernel_sha256=kernel.sha256), measurement(1, kernel="other")])
    assert log.export(tmp_path / "out", kernel="sgemm") == 1
    out = ParquetLog(tmp_path / "out")
    exported = out.measurements("job")[0]
    assert (exported.host, exported.device.uuid, exported.artifact and exported.artifact.path) == ("", "", Path())
    assert exported.ran == measurement(0).ran
    assert set(out.declarations()) == {kernel.sha256}


def test_a_declaration_is_kept_once(tmp_path: Path) -> None:
    log, kernel = ParquetLog(tmp_path), vector_add_kernel(tmp_path / "kernel")
    log.remember(kernel)
    path = log.declarations()[kernel.sha256]
    before = path.stat().st_ino
    log.remember(kernel)
    assert path.stat().st_ino == before
    assert path.read_text() == kernel.declaration


def test_a_job_is_found_fast_in_a_large_log(tmp_path: Path) -> None:
    base = schema.to_table([measurement(n) for n in range(64)])
    n_jobs = 800
    jobs = pa.array([f"job {job:04}" for job in range(n_jobs) for _ in range(64)])
    keys = pa.array([f"{n:032x}" for n in range(n_jobs * 64)])
    table = pa.concat_tables([base] * n_jobs)
    table = table.set_column(0, "key", keys).set_column(1, "job", jobs)
    log = ParquetLog(tmp_path)
    parts.write(tmp_path / "measurements" / "device=x" / "month=2026-01", table)

    def took_s() -> float:
        began_s = time.perf_counter()
        assert len(log.measurements("job 0417")) == 64
        return time.perf_counter() - began_s

    assert any(took_s() < 0.3 for _ in range(10)), "the machine may be busy with other tests"
