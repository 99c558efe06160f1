"""Finish before you publish."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner_daemon.errors import DiskFullError, SpoolError
from tuner_daemon.storage import files
from tuner_daemon.storage.status import read_status, write_status


def _raiser(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def test_a_file_appears_complete_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    files.publish_bytes(path, b"old")
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _raiser(OSError(28, "No space left on device")))
        with pytest.raises(files.FsyncError):
            files.publish_bytes(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    files.publish_bytes(path, b"new and longer")
    assert path.read_bytes() == b"new and longer"


def test_data_is_on_disk_before_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        steps.append("fsync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "fsync file")
        fsync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        steps.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    files.publish_bytes(tmp_path / "x", b"x")
    assert steps == ["fsync file", "rename", "fsync folder"]
    steps.clear()
    files.publish_files({tmp_path / "a": b"a", tmp_path / "b": b"b"})
    assert steps == ["fsync file", "fsync file", "rename", "rename", "fsync folder"]


def test_a_folder_never_takes_the_place_of_another(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "file").write_text(name)
    files.publish_folder(tmp_path / "one", tmp_path / "target")
    with pytest.raises(FileExistsError):
        files.publish_folder(tmp_path / "two", tmp_path / "target")
    assert (tmp_path / "target" / "deep" / "file").read_text() == "one"
    assert files.move_into(tmp_path, tmp_path / "two", "target").name == "target-2"


@pytest.mark.parametrize("atomic", [True, False])
def test_a_name_that_is_taken_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomic: bool) -> None:
    if not atomic:  # a libc or a file system without renameat2
        monkeypatch.setattr(files, "_LIBC", None)
    (tmp_path / "a.toml").write_text("a")
    (tmp_path / "b.toml").write_text("b")
    with pytest.raises(FileExistsError):
        files.rename_to_free(tmp_path / "a.toml", tmp_path / "b.toml")
    with pytest.raises(FileNotFoundError):
        files.rename_to_free(tmp_path / "none", tmp_path / "c")
    assert files.move_into(tmp_path, tmp_path / "a.toml", "b.toml") == tmp_path / "b-2.toml"
    (tmp_path / "b.toml").rename(tmp_path / "b-2.toml")  # negative control: a plain rename does overwrite
    assert (tmp_path / "b-2.toml").read_text() == "b"


def test_after_a_failed_fsync_nothing_is_acknowledged(tmp_path: Path) -> None:
    guard = files.Guard(SpoolError)
    with pytest.raises(DiskFullError), guard("write"):
        raise OSError(28, "No space left on device")
    with pytest.raises(SpoolError, match=r"write: .*denied"), guard("write"):
        raise PermissionError(13, "Permission denied")
    with guard("write"):
        pass  # neither of the two is final
    with pytest.raises(SpoolError, match="until a restart"), guard("write"):
        raise files.FsyncError(28, "No space left on device")
    with pytest.raises(SpoolError, match="until a restart"), guard("write again"):
        pytest.fail("ran in spite of it")


def test_only_regular_files_are_read_and_only_so_much(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1234")
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "fifo")
    assert files.read_regular(path, 4) == files.read_regular(path) == b"1234"
    for name, limit in (("a", 3), ("link", 9), ("fifo", 9), ("absent", 9)):
        with pytest.raises(OSError, match=name):
            files.read_regular(tmp_path / name, limit)


def test_removing_a_link_leaves_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    files.remove(tmp_path / "link")
    files.remove(tmp_path / "absent")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
    files.remove(tmp_path / "folder")
    assert not list(tmp_path.iterdir())


def test_a_status_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    write_status(tmp_path / "state", {"state": "waiting", "folder": tmp_path})
    assert read_status(tmp_path / "state") == {"state": "waiting", "folder": str(tmp_path)}
    write_status(tmp_path / "state", {"state": "tuning"})
    assert [p.name for p in (tmp_path / "state").iterdir()] == ["status.json"]
    (tmp_path / "state" / "status.json").write_text('{"state": ')
    assert read_status(tmp_path / "state") is None
