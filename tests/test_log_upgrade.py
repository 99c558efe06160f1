"""A log that an earlier release wrote: every row is read, goes on being read, and a later release's rows stay."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.rows import failure, measurement
from tuner_daemon.cli.app import app
from tuner_daemon.records.measurement import Measurement, Outcome, Timing
from tuner_daemon.storage import parts, schema
from tuner_daemon.storage.log import ParquetLog, part_files

FIRST_COLUMNS = (*schema.REQUIRED, "median_s", "detail", "device_uuid", "round", "kernel_sha256")
"""A schema that was: the columns that no log can do without, and some, one of another width."""

ROWS = [failure(n) if n % 5 == 4 else measurement(n) for n in range(10)]


def write_old_part(folder: Path, rows: list[Measurement], *, manifest: bool) -> Path:
    """As an earlier release did: fewer columns, no schema version in the footer, no list of inputs in the manifest."""
    table = schema.to_table(rows).select(list(FIRST_COLUMNS))
    table = table.set_column(table.column_names.index("round"), "round", table.column("round").cast(pa.int64()))
    partition = folder / "measurements" / "device=nvidia-h200" / "month=2026-03"
    partition.mkdir(parents=True, exist_ok=True)
    path = partition / parts.new_name()
    pq.write_table(table, path, write_page_checksum=True)
    if manifest:
        body = {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "size_bytes": path.stat().st_size,
            "rows": len(rows),
            "schema_version": 1,
            "jobs": ["job"],
            "outcomes": parts.count_outcomes(table),
        }
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        parts.manifest_path(path).parent.mkdir(parents=True, exist_ok=True)
        parts.manifest_path(path).write_text(json.dumps({**body, "digest": digest}))
    return path


def old_log(folder: Path) -> ParquetLog:
    for n in range(0, len(ROWS), 2):
        write_old_part(folder, ROWS[n : n + 2], manifest=n != 4)
    return ParquetLog(folder)


def told(rows: list[Measurement]) -> list[tuple[Any, ...]]:
    """What the old columns say."""
    return [
        (m.key, m.round, m.kernel_sha256, dict(m.config), m.ran.outcome, m.started_at)
        + ((m.ran.median_s,) if isinstance(m.ran, Timing) else (m.ran.detail,))
        for m in rows
    ]


def test_rows_of_an_earlier_release_are_all_read_and_compacted_into_the_present_columns(tmp_path: Path) -> None:
    log = old_log(tmp_path)
    assert log.verify() == {}
    assert told(log.measurements("job")) == told(ROWS)
    assert {m.schema_version for m in log.measurements("job")} == {schema.FIRST_VERSION}
    log.append([replace(ROWS[0], host="again"), measurement(10)])
    fingerprint, before = log.fingerprint(), log.measurements("job")
    assert told(before) == told([*ROWS, measurement(10)])
    assert log.compact().rows == 11
    assert ParquetLog(tmp_path).measurements("job") == before
    assert ParquetLog(tmp_path).fingerprint() == fingerprint
    (merged,) = part_files(tmp_path / "measurements")
    assert pq.read_schema(merged).names == schema.SCHEMA.names
    assert ParquetLog(tmp_path).stats()["kernels"] == {"sgemm": {"build_failed": 2, "ok": 9}}


def test_an_earlier_release_s_rows_can_be_exported_and_imported(tmp_path: Path) -> None:
    log = old_log(tmp_path / "old")
    assert log.export(tmp_path / "out") == ParquetLog(tmp_path / "new").import_parts(tmp_path / "out") == len(ROWS)
    assert told(ParquetLog(tmp_path / "new").measurements("job")) == told(ROWS)


def test_without_a_column_that_no_log_can_do_without_a_part_is_refused(tmp_path: Path) -> None:
    """Negative control."""
    path = write_old_part(tmp_path, ROWS, manifest=False)
    pq.write_table(pq.ParquetFile(path).read().drop_columns(["outcome"]), path)
    log = ParquetLog(tmp_path)
    assert log.measurements("job") == []
    assert log.verify() == {path.name: "not a measurement log: no column outcome"}


def test_compaction_leaves_the_rows_of_a_later_release_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = old_log(tmp_path)
    with monkeypatch.context() as later:
        later.setattr(parts, "SCHEMA_VERSION", 99)
        log.append([measurement(50)])
    newest = max(part_files(tmp_path / "measurements"), key=lambda path: path.name)
    data = newest.read_bytes()
    assert log.compact().rows == len(ROWS)
    assert newest.read_bytes() == data
    assert list(ParquetLog(tmp_path).stats()["skipped"]) in ([], [newest.name])
    monkeypatch.setattr(schema, "SCHEMA_VERSION", 99)  # the later release comes back
    assert len(ParquetLog(tmp_path).measurements("job")) == len(ROWS) + 1


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    file = tmp_path / "tunerd.toml"
    file.write_text(f'state_dir = "{tmp_path}"\n')
    return ["--settings", str(file)]


def test_the_commands_say_what_is_wrong_and_what_was_merged(tmp_path: Path, settings: list[str]) -> None:
    old_log(tmp_path / "log")
    first = min(part_files(tmp_path / "log" / "measurements"), key=lambda path: path.name)
    run = CliRunner().invoke
    whole = json.loads(run(app, ["log", "verify", "--json", *settings]).stdout)
    assert (whole["parts"], whole["damaged"], whole["skipped"], len(whole["unverified"])) == (5, {}, {}, 1)
    text = run(app, ["log", "verify", *settings])
    assert "5 parts, every one is whole" in text.stdout
    data = first.read_bytes()
    first.write_bytes(data[:-1])
    damaged = run(app, ["log", "verify", *settings])
    assert damaged.exit_code == 1
    assert f"damaged: {first.name}: its SHA-256 is not the one in its manifest" in damaged.stdout
    assert list(json.loads(run(app, ["log", "verify", "--json", *settings]).stdout)["damaged"]) == [first.name]
    first.write_bytes(data)
    merged = json.loads(run(app, ["log", "compact", "--json", *settings]).stdout)
    assert merged == {"merged": 5, "written": 1, "rows": 10}
    assert run(app, ["log", "compact", *settings]).stdout == "nothing to merge\n"
    assert Outcome.OK in {m.ran.outcome for m in ParquetLog(tmp_path / "log").measurements("job")}
