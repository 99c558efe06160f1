"""Columns of the measurement log, and the way between a Measurement and a row.

Mappings (``problem``, ``config``) are ``map<string, string>`` whose values are JSON scalars: ``64``, ``0.5``, ``true``,
``"nn"`` with its quotes. So integers, floats, booleans and text stay apart, and every reader of Parquet can read them
(DuckDB: ``CAST(config['BM'] AS INTEGER)``). Columns are only ever added, and every added column is nullable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tuner_daemon.records.device import Clocks, DeviceInfo
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.measurement import (
    SCHEMA_VERSION,
    Artifact,
    Failure,
    Measurement,
    Outcome,
    Proposal,
    Ran,
    Timing,
)
from tuner_daemon.records.space import Config

_JSON_MAP = pa.map_(pa.string(), pa.string())

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("job", pa.string()),
        ("kernel", pa.string()),
        ("kernel_sha256", pa.string()),
        ("language", pa.string()),
        ("problem", _JSON_MAP),
        ("config", _JSON_MAP),
        ("space_sha256", pa.string()),
        ("outcome", pa.string()),
        ("detail", pa.string()),
        ("times_s", pa.list_(pa.float64())),
        ("median_s", pa.float64()),
        ("warm_median_s", pa.float64()),
        ("baseline_median_s", pa.float64()),
        ("build_s", pa.float64()),
        ("registers", pa.int32()),
        ("shared_bytes", pa.int64()),
        ("spill_bytes", pa.int64()),
        ("occupancy", pa.float64()),
        ("error_norm", pa.float64()),
        ("round", pa.int32()),
        ("proposed_by", pa.string()),
        ("policy_version", pa.string()),
        ("cost_model_version", pa.string()),
        ("predicted_log_s", pa.float64()),
        ("device_kind", pa.string()),
        ("device_index", pa.int32()),
        ("device_name", pa.string()),
        ("device_uuid", pa.string()),
        ("arch", pa.string()),
        ("device_attributes", pa.map_(pa.string(), pa.float64())),
        ("driver", pa.string()),
        ("runtime", pa.string()),
        ("compiler", pa.string()),
        ("clock_policy", pa.string()),
        ("clock_mode", pa.string()),
        ("sm_mhz", pa.list_(pa.int32())),  # [lowest, highest] while it ran
        ("mem_mhz", pa.int32()),
        ("temperature_c", pa.float64()),
        ("power_w", pa.float64()),
        ("clock_reasons", pa.int64()),  # NVML clock event reason bits
        ("host", pa.string()),
        ("started_at", pa.timestamp("us", tz="UTC")),
        ("source", pa.string()),
        ("schema_version", pa.int32()),
        ("artifact_sha256", pa.string()),  # null: nothing was built
        ("artifact_path", pa.string()),
        ("artifact_entry", pa.string()),
        ("artifact_cached", pa.bool_()),
        ("failure_build_s", pa.float64()),  # the failure's own; build_s is the artifact's where there is one
    ]
)

REQUIRED = ("key", "job", "kernel", "config", "outcome", "device_name", "started_at")
"""Without these a Parquet file is not a measurement log."""

FIRST_VERSION = 1


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is not a number, a boolean or text")


def _to_json_map(values: Mapping[str, Value]) -> list[tuple[str, str]]:
    return [(name, json.dumps(value, default=_plain, ensure_ascii=False)) for name, value in values.items()]


def from_json_map(pairs: Sequence[tuple[str, str]]) -> dict[str, Value]:
    """What a ``problem`` or ``config`` cell of a table's ``to_pylist`` means."""
    return {name: json.loads(text) for name, text in pairs}


def to_table(rows: Sequence[Measurement]) -> Any:
    """A pyarrow.Table with SCHEMA. Raises ValueError for a row whose configurations contradict each other or whose
    ``started_at`` has no time zone."""
    return pa.Table.from_pylist([_row(measurement) for measurement in rows], schema=SCHEMA)


def to_measurements(table: Any) -> list[Measurement]:
    """The inverse of ``to_table``; the table must have every column of SCHEMA."""
    return [_measurement(row) for row in table.to_pylist()]


def _row(m: Measurement) -> dict[str, Any]:
    if dict(m.config) != m.ran.config.as_dict() or m.proposal.config != m.ran.config:
        raise ValueError(f"measurement of {m.kernel}: its configuration and that of its timing or proposal differ")
    if m.started_at.tzinfo is None:
        raise ValueError(f"measurement of {m.kernel}: started_at {m.started_at} has no time zone")
    return {
        "key": m.key,
        "job": m.job,
        "kernel": m.kernel,
        "kernel_sha256": m.kernel_sha256,
        "language": m.language,
        "problem": _to_json_map(m.problem),
        "config": _to_json_map(m.config),
        "space_sha256": m.space_sha256,
        "baseline_median_s": m.baseline_median_s,
        "round": m.round,
        "proposed_by": m.proposal.proposed_by,
        "predicted_log_s": m.proposal.predicted_log_s,
        "policy_version": m.policy_version,
        "cost_model_version": m.cost_model_version,
        "host": m.host,
        "started_at": m.started_at,
        "source": m.source,
        "schema_version": m.schema_version,
        **_ran_cells(m.ran),
        **_artifact_cells(m.artifact),
        **_device_cells(m.device),
        **_clock_cells(m.ran.clocks),
    }


def _ran_cells(ran: Ran) -> dict[str, Any]:
    if isinstance(ran, Failure):
        return {
            "outcome": str(ran.outcome),
            "detail": ran.detail,
            "error_norm": ran.error_norm,
            "build_s": ran.build_s,
            "failure_build_s": ran.build_s,
        }
    return {
        "outcome": str(ran.outcome),
        "times_s": list(ran.times_s),
        "median_s": ran.median_s,
        "warm_median_s": ran.warm_median_s,
        "error_norm": ran.error_norm,
        "occupancy": ran.occupancy,
    }


def _artifact_cells(artifact: Artifact | None) -> dict[str, Any]:
    if artifact is None:
        return {}
    return {
        "build_s": artifact.build_s,
        "registers": artifact.registers,
        "shared_bytes": artifact.shared_bytes,
        "spill_bytes": artifact.spill_bytes,
        "artifact_sha256": artifact.sha256,
        "artifact_path": str(artifact.path),
        "artifact_entry": artifact.entry,
        "artifact_cached": artifact.cached,
    }


def _device_cells(device: DeviceInfo) -> dict[str, Any]:
    return {
        "device_kind": device.kind,
        "device_index": device.index,
        "device_name": device.name,
        "device_uuid": device.uuid,
        "arch": device.arch,
        "device_attributes": [(name, float(value)) for name, value in device.attributes.items()],
        "driver": device.driver,
        "runtime": device.runtime,
        "compiler": device.compiler,
    }


def _clock_cells(clocks: Clocks) -> dict[str, Any]:
    return {
        "clock_policy": clocks.policy,
        "clock_mode": clocks.mode,
        "sm_mhz": None if clocks.sm_mhz is None else list(clocks.sm_mhz),
        "mem_mhz": clocks.mem_mhz,
        "temperature_c": clocks.temperature_c,
        "power_w": clocks.power_w,
        "clock_reasons": clocks.reasons,
    }


def _measurement(row: Mapping[str, Any]) -> Measurement:
    """What an earlier release did not write yet (all but REQUIRED) has a value that says so."""
    config = Config.of(from_json_map(row["config"]))
    return Measurement(
        job=row["job"],
        kernel=row["kernel"],
        kernel_sha256=row["kernel_sha256"] or "",
        language=row["language"] or "cuda",
        problem=from_json_map(row["problem"] or ()),
        config=config.as_dict(),
        space_sha256=row["space_sha256"] or "",
        ran=_ran(row, config),
        device=_device(row),
        round=row["round"] or 0,
        proposal=Proposal(config, row["proposed_by"] or "", row["predicted_log_s"]),
        host=row["host"] or "",
        started_at=_utc(row["started_at"]),
        artifact=_artifact(row, config),
        baseline_median_s=row["baseline_median_s"],
        policy_version=row["policy_version"] or "",
        cost_model_version=row["cost_model_version"] or "",
        source=row["source"] or "measured",
        schema_version=row["schema_version"] or FIRST_VERSION,
    )


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def _ran(row: Mapping[str, Any], config: Config) -> Ran:
    outcome, clocks = Outcome(row["outcome"]), _clocks(row)
    if row["times_s"] or row["median_s"] is not None:
        times_s = tuple(row["times_s"] or (row["median_s"],))
        return Timing(config, times_s, row["warm_median_s"], row["error_norm"], clocks, row["occupancy"], outcome)
    return Failure(config, outcome, row["detail"] or "", row["error_norm"], clocks, row["failure_build_s"])


def _clocks(row: Mapping[str, Any]) -> Clocks:
    return Clocks(
        policy=row["clock_policy"] or "observe",
        mode=row["clock_mode"] or "free",
        sm_mhz=None if row["sm_mhz"] is None else (row["sm_mhz"][0], row["sm_mhz"][1]),
        mem_mhz=row["mem_mhz"],
        temperature_c=row["temperature_c"],
        power_w=row["power_w"],
        reasons=row["clock_reasons"] or 0,
    )


def _device(row: Mapping[str, Any]) -> DeviceInfo:
    return DeviceInfo(
        kind=row["device_kind"] or ("cpu" if row["language"] == "cpu" else "cuda"),
        index=row["device_index"] or 0,
        name=row["device_name"],
        uuid=row["device_uuid"] or "",
        arch=row["arch"] or "",
        driver=row["driver"] or "",
        runtime=row["runtime"] or "",
        compiler=row["compiler"] or "",
        attributes=dict(row["device_attributes"] or ()),
    )


def _artifact(row: Mapping[str, Any], config: Config) -> Artifact | None:
    if row["artifact_sha256"] is None:
        return None
    return Artifact(
        config=config,
        path=Path(row["artifact_path"]),
        entry=row["artifact_entry"],
        sha256=row["artifact_sha256"],
        build_s=row["build_s"],
        registers=row["registers"],
        shared_bytes=row["shared_bytes"],
        spill_bytes=row["spill_bytes"],
        cached=row["artifact_cached"],
    )


def conform(table: Any, names: Sequence[str] | None = None) -> Any:
    """The table with exactly SCHEMA's columns (or these of them): absent ones null, unknown ones dropped, types cast.

    Raises pyarrow.ArrowException where a type cannot be cast.
    """
    fields = [field for field in SCHEMA if names is None or field.name in names]
    if table.schema.equals(pa.schema(fields)):
        return table.replace_schema_metadata(None)
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in fields
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def distinct(table: Any) -> Any:
    """The first row of every key, in order."""
    keys = table.column("key")
    if pc.count_distinct(keys).as_py() == table.num_rows:
        return table
    numbered = pa.table({"key": keys, "row": np.arange(table.num_rows)})
    firsts = numbered.group_by("key").aggregate([("row", "min")]).column("row_min")
    return take(table, firsts.take(pc.sort_indices(firsts)))


def take(table: Any, indices: Any) -> Any:
    """Rows by number. Arrow's own take is quadratic in the chunks of a table that came from many parts."""
    return table.combine_chunks().take(indices)


def to_single(table: Any) -> Any:
    """The table with its numbers of double precision rounded to single, which packs them into half the space; a
    device's clock is no finer."""
    for at, field in enumerate(table.schema):
        if field.type in (pa.float64(), pa.list_(pa.float64())):
            narrow = pa.float32() if field.type == pa.float64() else pa.list_(pa.float32())
            table = table.set_column(at, field, table.column(at).cast(narrow).cast(field.type))
    return table


def is_newer(schema_version: int) -> bool:
    """Written by a later release, whose rows this one would misread."""
    return schema_version > SCHEMA_VERSION
