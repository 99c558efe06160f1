"""One immutable part file of the log, and its manifest.

``measurements/…/part-<time>-<uuid>.parquet`` is written with page checksums; ``manifests/part-….json`` holds its
SHA-256, size, row counts and jobs, and a digest of itself. Default Parquet would return silently wrong data for most
single-bit flips. Manifests have a folder of their own because readers take every file under ``measurements/`` for
Parquet.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tuner_daemon.records.measurement import SCHEMA_VERSION
from tuner_daemon.storage import files, schema

ROWS_PER_GROUP = 4096
_SMALL_ROWS = 256
_VERSION_FIELD, _INPUTS_FIELD = b"tuner.schema_version", b"tuner.inputs"


class DamagedPartError(Exception):
    """A part whose bytes are not what was written. Never leaves the package: the log lists the part as damaged."""


class NewerPartError(Exception):
    """A part written by a later release. Never leaves the package: the log skips the part with a warning."""


@dataclass(frozen=True)
class Manifest:
    """What is known of a part without opening it."""

    sha256: str
    size_bytes: int
    rows: int
    schema_version: int
    jobs: tuple[str, ...]
    outcomes: Mapping[str, Mapping[str, int]]  # kernel -> outcome -> rows
    inputs: tuple[str, ...] = ()  # names of the parts that this one replaces

    def to_json(self) -> bytes:
        body = asdict(self)
        return json.dumps({**body, "digest": _digest(body)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Raises DamagedPartError unless the text is what ``to_json`` wrote."""
        try:
            body = json.loads(text)
            if body.pop("digest") != _digest(body):
                raise DamagedPartError("its manifest is damaged")
            # A later release may have written more than this one knows, an earlier one less.
            known = {item.name: body[item.name] for item in fields(cls) if item.name in body or item.default is MISSING}
            return cls(**{**known, "jobs": tuple(body["jobs"]), "inputs": tuple(body.get("inputs", ()))})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedPartError(f"its manifest is damaged: {error}") from error


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Part:
    """A part file. ``manifest`` is None if there is none: page checksums are then the only check."""

    path: Path
    manifest: Manifest | None
    damage: str = ""  # why the part cannot be used, if that is known already
    job_set: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def open(cls, path: Path) -> Part:
        """Reads the manifest only. Raises FileNotFoundError if the part has gone since it was listed."""
        try:
            manifest = Manifest.from_json(manifest_path(path).read_bytes())
        except FileNotFoundError:
            path.stat()
            return cls(path, None)
        except (DamagedPartError, OSError) as error:
            return cls(path, None, damage=str(error))
        return cls(path, manifest, job_set=frozenset(manifest.jobs))

    def may_hold(self, kernel: str | None, job: str | None) -> bool:
        if self.manifest is None:
            return True
        return (job is None or job in self.job_set) and (kernel is None or kernel in self.manifest.outcomes)


def manifest_path(part: Path) -> Path:
    """Where the part's manifest is; beside it for a file outside a log."""
    root = next((parent.parent / "manifests" for parent in part.parents if parent.name == "measurements"), part.parent)
    return root / f"{part.stem}.json"


def write(folder: Path, table: Any, *, name: str | None = None, inputs: Sequence[str] = ()) -> Part:
    """Publishes a part and its manifest: in the log when this returns. Raises FsyncError, OSError."""
    name = name or new_name()
    data = encode(table, inputs)
    manifest = Manifest(
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        rows=table.num_rows,
        schema_version=SCHEMA_VERSION,
        jobs=tuple(sorted(set(table.column("job").to_pylist()))),
        outcomes=count_outcomes(table),
        inputs=tuple(inputs),
    )
    path = folder / name
    files.make_folder(folder)
    files.make_folder(manifest_path(path).parent)
    # The manifest first: a part never appears without it, and a manifest alone means nothing.
    files.publish_files({manifest_path(path): manifest.to_json(), path: data})
    return Part(path, manifest, job_set=frozenset(manifest.jobs))


def new_name(moment: datetime | None = None) -> str:
    """Names sort by time of writing."""
    moment = moment or datetime.now(UTC)
    return f"part-{moment:%Y%m%dT%H%M%S.%fZ}-{uuid.uuid4().hex[:12]}.parquet"


def encode(table: Any, inputs: Sequence[str] = ()) -> bytes:
    """Parquet bytes of a log table; the footer names the schema version and the parts that this one replaces."""
    footer = {_VERSION_FIELD: str(SCHEMA_VERSION), _INPUTS_FIELD: json.dumps(list(inputs))}
    sink = pa.BufferOutputStream()
    small = table.num_rows < _SMALL_ROWS  # where compressing some fifty columns costs more than it saves
    pq.write_table(
        table.replace_schema_metadata(footer),
        sink,
        compression="none" if small else "zstd",
        use_dictionary=not small,
        row_group_size=ROWS_PER_GROUP,
        write_page_checksum=True,
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def count_outcomes(table: Any) -> dict[str, dict[str, int]]:
    pairs = Counter(zip(table.column("kernel").to_pylist(), table.column("outcome").to_pylist(), strict=True))
    counts: dict[str, dict[str, int]] = {}
    for (kernel, outcome), n in sorted(pairs.items()):
        counts.setdefault(kernel, {})[outcome] = n
    return counts


def read(part: Part, *, kernel: str | None = None, job: str | None = None, columns: Sequence[str] | None = None) -> Any:
    """The part's rows of this kernel and job as a table with SCHEMA's (or the given) columns.

    Raises DamagedPartError, NewerPartError, FileNotFoundError (compacted away since it was listed).
    """
    if part.damage:
        raise DamagedPartError(part.damage)
    try:
        file = _verified_file(part)
        wanted = set(schema.SCHEMA.names) if columns is None else {*columns, "kernel", "job"}
        names = file.schema_arrow.names
        present = [name for name in names if name in wanted]
        threads = file.metadata.num_rows >= _SMALL_ROWS
        table = file.read_row_groups(_groups(file, job), columns=present, use_threads=threads)
        table = _matching(table, kernel, job)
        return schema.conform(table, columns)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DamagedPartError(str(error) or type(error).__name__) from error


def inputs(part: Part) -> tuple[str, ...]:
    """Names of the parts that a readable compact replaces; () for any other part. Raises as ``read`` does."""
    if part.damage:
        raise DamagedPartError(part.damage)
    try:
        found = (_verified_file(part).metadata.metadata or {}).get(_INPUTS_FIELD, b"[]")
        return tuple(json.loads(found))
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, RecursionError) as error:
        raise DamagedPartError(str(error)) from error


def _verified_file(part: Part) -> Any:
    # Read once: the bytes that were hashed are the bytes that are decoded.
    data = part.path.read_bytes()
    if part.manifest is not None:
        if schema.is_newer(part.manifest.schema_version):
            raise NewerPartError(f"schema version {part.manifest.schema_version}")
        if hashlib.sha256(data).hexdigest() != part.manifest.sha256:
            raise DamagedPartError("its SHA-256 is not the one in its manifest")
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    version = int((file.metadata.metadata or {}).get(_VERSION_FIELD, schema.FIRST_VERSION))
    if schema.is_newer(version):
        raise NewerPartError(f"schema version {version}")
    if absent := set(schema.REQUIRED) - set(file.schema_arrow.names):
        raise DamagedPartError(f"not a measurement log: no column {min(absent)}")
    return file


def _groups(file: Any, job: str | None) -> list[int]:
    """Row groups whose statistics allow the job."""
    groups = range(file.metadata.num_row_groups)
    if job is None or len(groups) <= 1:
        return list(groups)
    leaf = next(i for i in range(file.metadata.num_columns) if file.schema.column(i).path == "job")
    return [g for g in groups if _allows(file.metadata.row_group(g).column(leaf).statistics, job)]


def _allows(statistics: Any, job: str) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min <= job <= statistics.max)


def _matching(table: Any, kernel: str | None, job: str | None) -> Any:
    for name, value in (("kernel", kernel), ("job", job)):
        if value is not None:
            table = table.filter(pc.equal(table.column(name), value))
    return table
