"""Copies of what lies beside a spec are bounded, and made without reading it whole."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from tests.spools import SPEC, Clock, claim_first, drop_spec, spool_at, where
from tuner_daemon.storage import dropping


def test_a_sparse_source_beside_a_spec_fails_the_spec_and_costs_no_memory(tmp_path: Path) -> None:
    clock = Clock()
    spool = spool_at(tmp_path, clock)
    (spool.incoming / "big.cu").touch()
    os.truncate(spool.incoming / "big.cu", 1 << 30)
    drop_spec(spool, text=f'{SPEC}[sources]\ncuda = "big.cu"\n')
    refused = False
    spool.scan()
    clock.now_s += 1
    tracemalloc.start()
    for entry in spool.scan():
        refused = spool.claim(entry) is None
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused
    assert "larger than 4194304 bytes" in (tmp_path / "failed" / "a.toml.reason.txt").read_text()
    assert peak_bytes < 64 << 20


def test_an_array_beside_a_spec_is_copied_whole_in_blocks(tmp_path: Path) -> None:
    clock = Clock()
    spool = spool_at(tmp_path, clock)
    array = spool.incoming / "x.npy"
    array.write_bytes(os.urandom(9 << 20))
    drop_spec(spool, text=f'{SPEC}[[arguments]]\nfill = "x.npy"\n')
    claimed = claim_first(spool, clock)
    assert (claimed.path.parent / "x.npy").read_bytes() == array.read_bytes()
    assert where(tmp_path)["active"] == ["a.toml"]


def test_links_and_pipes_are_not_copied(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "link.cu").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe.cu")
    for name in ("link.cu", "pipe.cu"):
        with pytest.raises(OSError, match=r"symbolic links|not a regular file|Not a directory"):
            dropping.copy(tmp_path / name, tmp_path / f"copy-{name}")
