"""Bits flip and files are cut short on disk: a part is read as it was written, or not at all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.rows import failure, measurement
from tuner_daemon.storage import parts, schema
from tuner_daemon.storage.parts import DamagedPartError, Part

SEED = 20261201


@pytest.fixture
def part(tmp_path: Path) -> Part:
    rows = [failure(n) if n % 7 == 6 else measurement(n) for n in range(120)]
    return parts.write(tmp_path / "measurements" / "device=x" / "month=2026-03", schema.to_table(rows))


def flipped(whole: bytes, n: int) -> Iterator[bytes]:
    """``n`` copies, each with one bit of another place or value."""
    for bit in random.Random(SEED).sample(range(8 * len(whole)), n):
        yield whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :]


def as_read(path: Path, right: Any) -> str:
    try:
        table = parts.read(Part.open(path))
    except DamagedPartError:
        return "refused"
    return "right" if table.equals(right) else "wrong"


def as_read_unchecked(data: bytes, right: Any) -> str:
    """As most programs read Parquet."""
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError):
        return "refused"
    return "right" if table.equals(right) else "wrong"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("n", [pytest.param(3000, marks=pytest.mark.slow), 200])
def test_a_flipped_bit_is_never_read_wrongly(part: Part, n: int) -> None:
    """In the part, and in its manifest; the same flips, read without checks, are the negative control."""
    right, whole = parts.read(part), part.path.read_bytes()
    unchecked_right = pq.ParquetFile(pa.BufferReader(whole)).read()
    found, unchecked = Counter[str](), Counter[str]()
    for data in flipped(whole, n):
        part.path.write_bytes(data)
        found[as_read(part.path, right)] += 1
        unchecked[as_read_unchecked(data, unchecked_right)] += 1
    part.path.write_bytes(whole)
    manifest = parts.manifest_path(part.path)
    text, in_manifest = manifest.read_bytes(), Counter[str]()
    for data in flipped(text, n // 4):
        manifest.write_bytes(data)
        in_manifest[as_read(part.path, right)] += 1
    print(
        f"seed {SEED}: {n} flips in a part of {len(whole)} bytes, read wrongly {found['wrong']}, refused "
        f"{found['refused']}; without the checks read wrongly {unchecked['wrong']}; {n // 4} flips in its manifest, "
        f"read wrongly {in_manifest['wrong']}, refused {in_manifest['refused']}"
    )
    assert (found["wrong"], found["refused"], in_manifest["wrong"]) == (0, n, 0)
    assert sum(in_manifest.values()) == n // 4
    assert unchecked["wrong"] > n / 3


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 251])
def test_no_truncation_is_read_wrongly(part: Part, step: int) -> None:
    """Of every length; enumerated, so there is no seed."""
    right, whole = parts.read(part), part.path.read_bytes()
    lengths = range(len(whole) - 1, -1, -step)
    found = Counter[str]()
    for length in lengths:
        with part.path.open("r+b") as file:
            file.truncate(length)
        found[as_read(part.path, right)] += 1
    print(f"{len(lengths)} truncations of a part of {len(whole)} bytes, read wrongly {found['wrong']}")
    assert found == {"refused": len(lengths)}
    assert len(lengths) >= len(whole) // step
    part.path.write_bytes(whole)
    assert as_read(part.path, right) == "right"
