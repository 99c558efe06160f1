from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tuner_daemon.builders.cache import BuildCache, Cached, Compiled, Rejected

KEYS = [f"{n:02x}" + "0" * 62 for n in range(64)]


def built(content: bytes, **facts: int) -> Compiled:
    return Compiled(content, "entry", 1.5, **facts)


def found(cache: BuildCache, key: str) -> Cached:
    item = cache.get(key)
    assert isinstance(item, Cached)
    return item


def test_what_was_put_is_found_by_another_cache_of_the_folder(tmp_path: Path) -> None:
    put = BuildCache(tmp_path, 1 << 20).put(KEYS[0], built(b"binary", registers=32, spill_bytes=8))
    assert found(BuildCache(tmp_path, 1 << 20), KEYS[0]) == put
    assert put.path.read_bytes() == b"binary"
    assert (put.entry, put.registers, put.shared_bytes, put.spill_bytes) == ("entry", 32, None, 8)
    assert BuildCache(tmp_path, 1 << 20).get(KEYS[1]) is None


def test_refusals_are_remembered(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, 1 << 20)
    cache.put_rejected(KEYS[0], Rejected("kernel.c:3: error: no", 2.0))
    assert cache.get(KEYS[0]) == Rejected("kernel.c:3: error: no", 0.0)


@pytest.mark.parametrize("content", [b"", b"bin", b"binarz", None])
def test_a_damaged_binary_counts_as_absent(tmp_path: Path, content: bytes | None) -> None:
    cache = BuildCache(tmp_path, 1 << 20)
    path = cache.put(KEYS[0], built(b"binary")).path
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert cache.get(KEYS[0]) is None
    cache.put(KEYS[0], built(b"binary"))
    assert found(cache, KEYS[0]).path.read_bytes() == b"binary"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"sha256": "x"}'])
def test_damaged_facts_count_as_absent(tmp_path: Path, content: bytes) -> None:
    cache = BuildCache(tmp_path, 1 << 20)
    cache.put(KEYS[0], built(b"binary")).path.with_suffix(".json").write_bytes(content)
    assert cache.get(KEYS[0]) is None


def test_the_least_recently_used_go_above_the_limit(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, 100_000, keep_s=0.0)
    for age, key in enumerate(KEYS[:8]):
        path = cache.put(key, built(bytes(10_000))).path
        for file in (path, path.with_suffix(".json")):
            os.utime(file, (time.time() - 1000 + age,) * 2)
    found(cache, KEYS[0])  # the oldest, used just now
    for key in KEYS[8:11]:
        cache.put(key, built(bytes(10_000)))
    left = [key for key in KEYS[:11] if cache.get(key) is not None]
    assert KEYS[0] in left
    assert KEYS[1] not in left
    assert left[-3:] == KEYS[8:11]
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) <= 100_000


def test_what_is_in_use_stays_above_the_limit(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, 1_000, keep_s=60.0)
    paths = [cache.put(key, built(bytes(10_000))).path for key in KEYS[:3]]
    assert all(path.exists() for path in paths)
    forgetful = BuildCache(tmp_path, 1_000, keep_s=0.0)
    forgetful.put(KEYS[3], built(b""))
    assert not any(path.exists() for path in paths)


def test_half_written_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, 1 << 20)
    folder = cache.put(KEYS[0], built(b"binary")).path.parent
    old, new = folder / ".tmp-old", folder / ".tmp-new"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (time.time() - 7200,) * 2)
    BuildCache(tmp_path, 1 << 20).put(KEYS[1], built(b"binary"))
    assert (old.exists(), new.exists()) == (False, True)


WRITER = """
import hashlib, sys
from pathlib import Path
from tuner_daemon.builders.cache import BuildCache, Compiled
cache = BuildCache(Path(sys.argv[1]), 200_000, keep_s=0.0)
hits = 0
for turn in range(300):
    key = hashlib.sha256(b"%d" % (turn // 3 % 40)).hexdigest()  # asked for again at once: found, whoever runs beside
    item = cache.get(key)
    if item is None:
        cache.put(key, Compiled(key.encode() * 150, key, 0.1))
    else:
        hits += 1
        try:
            assert item.path.read_bytes() == key.encode() * 150 and item.entry == key
        except FileNotFoundError:
            pass  # removed by the other process since
print(hits)
"""


def test_two_processes_share_a_folder_while_both_remove(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for writer in writers:
        out, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
        assert int(out) > 0
    assert not list(tmp_path.rglob(".tmp-*"))
