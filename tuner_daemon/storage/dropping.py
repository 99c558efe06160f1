"""The client's half of the spool: copies a spec into a hidden temporary of incoming/, ready to be given its name."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner_daemon.errors import SpecError
from tuner_daemon.records.spec import SPEC_SUFFIXES, spec_in
from tuner_daemon.storage import files
from tuner_daemon.storage.incoming import MAX_FOLDER_DEPTH, SOURCE_SUFFIXES, safe_name

# The spool's group must be able to read a dropped spec and to move a dropped folder, whatever the client's umask.
_FILE_MODE, _FOLDER_MODE = 0o660, 0o2770
TEXT_BYTES, ARRAY_BYTES = 4 << 20, 4 << 30  # a sparse file costs who drops it nothing


@dataclass(frozen=True)
class Dropped:
    """A complete and synced temporary, and the name it wants."""

    temp: Path
    name: str


def prepare(incoming: Path, path: Path, extra: Sequence[Path], as_name: str | None) -> Dropped:
    """Raises SpecError if ``path`` is no spec; OSError leaves no temporary behind."""
    if not path.exists():
        raise SpecError("does not exist", file=path)
    is_folder = path.is_dir()
    if is_folder and spec_in(path) is None:
        raise SpecError("has no spec.toml", file=path, remedy="name a spec file or a folder that holds one")
    if not is_folder and path.suffix not in SPEC_SUFFIXES:
        raise SpecError("is not a spec", file=path, remedy="its name must end in .toml or .json")
    name = safe_name(as_name or path.name)
    if not is_folder and extra:
        name = Path(name).stem
    temp = files.temporary(incoming / name)
    try:
        _fill(temp, path.resolve(), extra, path.parent)
    except OSError:
        files.remove(temp)
        raise
    return Dropped(temp, name)


def _fill(temp: Path, path: Path, extra: Sequence[Path], beside: Path) -> None:
    """``extra`` keeps its place in the folder ``beside``, which is the spec's own."""
    if path.is_dir():
        copy_tree(path, temp)
    elif extra:
        _make_folder(temp)
        _copy_file(path, temp / f"spec{path.suffix}")
    else:
        _copy_file(path, temp)
        return
    for item in extra:
        target = temp / (item.relative_to(beside) if item.is_relative_to(beside) else item.name)
        _make_folders(target.parent, temp)
        copy(item.resolve(), target)
    files.fsync_folder(temp)


def _make_folders(folder: Path, top: Path) -> None:
    if folder != top and not folder.is_dir():
        _make_folders(folder.parent, top)
        _make_folder(folder)
        files.fsync_folder(folder.parent)


def copy(source: Path, target: Path, levels: int = MAX_FOLDER_DEPTH) -> None:
    """Copies a file or a folder and fsyncs it. Raises OSError for links and special files, which are not followed, and
    for folders more than ``levels`` deep."""
    if source.is_dir() and not source.is_symlink():
        copy_tree(source, target, levels)
    else:
        _copy_file(source, target)


def copy_tree(source: Path, target: Path, levels: int = MAX_FOLDER_DEPTH) -> None:
    if levels < 0:
        raise OSError(errno.ELOOP, "folders are too deep", str(source))
    _make_folder(target)
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        if not entry.name.startswith("."):
            copy(Path(entry.path), target / entry.name, levels - 1)
    files.fsync_folder(target)


def _copy_file(source: Path, target: Path) -> None:
    limit_bytes = TEXT_BYTES if source.suffix in (*SPEC_SUFFIXES, *SOURCE_SUFFIXES) else ARRAY_BYTES
    files.copy_regular(source, target, limit_bytes, _FILE_MODE)


def _make_folder(path: Path) -> None:
    path.mkdir()
    path.chmod(_FOLDER_MODE)
