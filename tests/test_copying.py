"""Copies of what lies beside a spec are bounded, and made without reading it whole."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from tests.spools import SPEC, Clock, claim_first, drop_spec, spool_at, where
from tuner_daemon.runners.scratch import Scratch
from tuner_daemon.storage import dropping, files


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


def deep_folder(path: Path, levels: int) -> Path:
    """More levels than a path may have letters."""
    path.mkdir()
    here = os.open(path, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    return path


@pytest.mark.parametrize("declared", ["spec.toml", "kernel.toml"])
def test_a_folder_of_endless_depth_ends_no_daemon(tmp_path: Path, declared: str) -> None:
    clock = Clock()
    spool = spool_at(tmp_path, clock)
    (deep_folder(spool.incoming / "job", 1900) / declared).write_text(SPEC)
    drop_spec(spool)
    assert claim_first(spool, clock).name == "a.toml", "the next one is served"
    assert where(tmp_path)["failed"] == ["job"]
    assert "32 deep" in (tmp_path / "failed" / "job.reason.txt").read_text()
    with pytest.raises(OSError, match="too deep"):
        dropping.copy(tmp_path / "failed" / "job", tmp_path / "copy")
    dropping.copy(deep_folder(tmp_path / "shallow", 20), tmp_path / "copy of shallow")  # negative control
    files.remove(tmp_path / "failed" / "job")  # pytest could not
    assert not (tmp_path / "failed" / "job").exists()


def test_an_old_temporary_folder_of_endless_depth_is_swept(tmp_path: Path) -> None:
    spool = spool_at(tmp_path, Clock())
    hidden = deep_folder(spool.incoming / ".old.tmp", 1900)
    os.utime(hidden, (0, 0))
    spool.recover()
    assert not hidden.exists()


def test_a_candidates_folder_of_endless_depth_is_too_large_and_goes() -> None:
    scratch = Scratch()
    assert not scratch.is_too_large()
    deep_folder(scratch.folder / "deep", 1900)
    assert scratch.is_too_large()
    scratch.empty()
    assert list(scratch.folder.iterdir()) == []
    deep_folder(scratch.folder / "deep", 1900)
    scratch.remove()
    assert not scratch.folder.exists()


def test_a_file_that_grows_past_the_limit_while_it_is_copied_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.cu").write_bytes(b"x" * 100)
    status = os.stat_result((0o100644, *([0] * 9)))
    monkeypatch.setattr("tuner_daemon.storage.files.os.fstat", lambda _: status)  # as it was when it was opened
    with pytest.raises(OSError, match="larger than 99 bytes"):
        files.copy_regular(tmp_path / "a.cu", tmp_path / "b.cu", 99, 0o600)
    files.copy_regular(tmp_path / "a.cu", tmp_path / "c.cu", 100, 0o600)
    assert (tmp_path / "c.cu").read_bytes() == b"x" * 100


def test_links_and_pipes_are_not_copied(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "link.cu").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe.cu")
    for name in ("link.cu", "pipe.cu"):
        with pytest.raises(OSError, match=r"symbolic links|not a regular file|Not a directory"):
            dropping.copy(tmp_path / name, tmp_path / f"copy-{name}")
