"""Finish before you publish: every write of this package goes through here.

A file or folder appears under its name complete and on disk, or not at all: write a hidden temporary beside it, fsync,
rename, fsync the folder.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tuner_daemon.errors import DiskFullError, TunerError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
TICK_S = 0.01
"""File systems stamp times by a clock that ticks at least a hundred times a second."""


def _libc_with_renameat2() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return None
    libc.renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return libc


_LIBC = _libc_with_renameat2()


def may_be_retried(error: OSError) -> bool:
    """The disk was full; nothing was published."""
    return not isinstance(error, FsyncError) and error.errno in _FULL


class FsyncError(OSError):
    """fsync failed: whether the data is on disk is unknown, and asking again would not tell."""


def need_room(folder: Path, n_bytes: int) -> None:
    """Raises OSError (ENOSPC) if the file system has less left: better than to begin what cannot be kept."""
    status = os.statvfs(folder)
    if status.f_bavail * status.f_frsize < n_bytes:
        raise OSError(errno.ENOSPC, f"less than {n_bytes >> 10} KiB left", str(folder))


class Guard:
    """Turns operating-system errors into the caller's exception.

    A full disk becomes DiskFullError and may be tried again. After a failed fsync the guard refuses everything: the
    kernel may have dropped the pages and would report success the next time, so only a restart is safe.
    """

    def __init__(self, error: type[TunerError]) -> None:
        self._error = error
        self._broken: str | None = None

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        if self._broken is not None:
            raise self._error(self._broken)
        try:
            yield
        except FsyncError as error:
            self._broken = f"{what}: {error}; nothing more is written until a restart"
            raise self._error(self._broken) from error
        except OSError as error:
            if may_be_retried(error):
                raise DiskFullError(f"{what}: {error}; free some space") from error
            raise self._error(f"{what}: {error}") from error


def temporary(path: Path) -> Path:
    """A hidden name beside ``path``, which every reader ignores."""
    return path.with_name(f".{path.name[:80]}.{uuid.uuid4().hex[:12]}.tmp")


def fsync_folder(folder: Path) -> None:
    """Makes the names in ``folder`` durable. Raises FsyncError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _fsync(descriptor, folder)
    finally:
        os.close(descriptor)


def _fsync(descriptor: int, path: Path) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise FsyncError(error.errno, error.strerror, str(path)) from error


def write_synced(path: Path, data: bytes, mode: int | None = None) -> None:
    """Writes a new file and fsyncs it; ``mode`` overrides the umask. Raises FileExistsError, FsyncError."""
    with path.open("xb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        _fsync(file.fileno(), path)


def make_folder(folder: Path) -> None:
    """Makes ``folder`` and its parents durably."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    fsync_folder(folder.parent)


def publish_bytes(path: Path, data: bytes) -> None:
    """Puts ``data`` under ``path``, replacing what was there in one step. Raises FsyncError, OSError."""
    publish_files({path: data})


def publish_files(contents: Mapping[Path, bytes]) -> None:
    """Publishes several files in the mapping's order, for the price of one fsync for each folder.

    After a crash a part of them may be there: name last the one that readers look for.
    """
    pending = {path: temporary(path) for path in contents}
    try:
        for path, temp in pending.items():
            write_synced(temp, contents[path])
        for path, temp in pending.items():
            temp.replace(path)
    except OSError:
        for temp in pending.values():
            remove(temp)
        raise
    for folder in dict.fromkeys(path.parent for path in contents):
        fsync_folder(folder)


def rename_to_free(source: Path, target: Path) -> None:
    """Renames in one step unless the name is taken: FileExistsError, also when somebody takes it at this moment."""
    if _LIBC is not None:
        names = (_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target))
        if _LIBC.renameat2(*names, _RENAME_NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in {errno.EINVAL, errno.ENOSYS}:  # a file system that cannot do it in one step says EINVAL
            raise OSError(code, os.strerror(code), str(source), None, str(target))
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    source.rename(target)


def publish_folder(temp: Path, path: Path) -> None:
    """fsyncs everything in ``temp`` and renames it to the free name ``path``. Raises FileExistsError, FsyncError."""
    fsync_tree(temp)
    move(temp, path)


def fsync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            descriptor = os.open(Path(parent, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                _fsync(descriptor, Path(parent, name))
            finally:
                os.close(descriptor)
        fsync_folder(Path(parent))


def move(source: Path, target: Path) -> None:
    """Renames durably. Raises FileExistsError, FileNotFoundError, FsyncError."""
    rename_to_free(source, target)
    fsync_folder(target.parent)
    if source.parent != target.parent:
        fsync_folder(source.parent)


def move_into(folder: Path, source: Path, name: str) -> Path:
    """Moves to ``name`` in ``folder``, or to name-2, name-3, … if that is taken. Returns where it is now."""
    while True:
        target = folder / free_name(folder, name)
        try:
            move(source, target)
        except FileExistsError:
            continue
        return target


def replace_link(link: Path, target: str) -> None:
    """Points the symlink ``link`` at ``target`` in one step."""
    temp = temporary(link)
    temp.symlink_to(target)
    temp.replace(link)
    fsync_folder(link.parent)


def remove(path: Path) -> None:
    """Removes a file, link or folder tree if it is there. Never follows a link."""
    if path.is_dir() and not path.is_symlink():
        try:
            shutil.rmtree(path, ignore_errors=True)
        except RecursionError:  # it calls itself for each level
            subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.DEVNULL, check=False)
    else:
        path.unlink(missing_ok=True)


def read_regular(path: Path, limit_bytes: int | None = None) -> bytes:
    """The bytes of a regular file, read once. Raises OSError for a link, a FIFO, a device, or more than the limit."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        data = file.read() if limit_bytes is None else file.read(limit_bytes + 1)
    if limit_bytes is not None and len(data) > limit_bytes:
        raise OSError(errno.EFBIG, f"larger than {limit_bytes} bytes", str(path))
    return data


def is_open_for_writing(path: Path) -> bool:
    """Whether a process has the regular file open for writing; False where the system does not tell.

    It does not of other users' files, of folders, and on many network file systems. The answer is that of a read lease,
    which is given back at once; who opens the file in that moment waits for it, and the signal that asks for it back is
    one that is ignored.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def copy_regular(source: Path, target: Path, limit_bytes: int, mode: int) -> None:
    """Copies a regular file to a new one in blocks, and fsyncs it. Raises OSError as ``read_regular`` does, FsyncError;
    what has been written by then stays."""
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file, target.open("xb") as copy:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(source))
        if status.st_size > limit_bytes:
            raise OSError(errno.EFBIG, f"larger than {limit_bytes} bytes", str(source))
        os.fchmod(copy.fileno(), mode)
        left = limit_bytes
        while block := file.read(1 << 20):
            left -= len(block)
            if left < 0:  # it has grown
                raise OSError(errno.EFBIG, f"larger than {limit_bytes} bytes", str(source))
            copy.write(block)
        copy.flush()
        _fsync(copy.fileno(), target)


def free_name(folder: Path, name: str) -> str:
    """``name`` if nothing in ``folder`` has it, else stem-2.suffix, stem-3.suffix, …"""
    path, number, candidate = Path(name), 1, name
    while os.path.lexists(folder / candidate):
        number += 1
        candidate = f"{path.stem}-{number}{path.suffix}"
    return candidate
