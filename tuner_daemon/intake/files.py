"""Reads what people drop: once, without following links, and never more than it should."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from tuner_daemon.errors import InputError, SpecError

SPEC_BYTES = 256 * 1024
SOURCE_BYTES = 4 * 1024 * 1024
ARRAY_BYTES = 4 * 1024**3

_REASONS = {
    errno.ENOENT: ("does not exist", "check the name"),
    errno.ENOTDIR: ("does not exist", "check the name"),
    errno.ELOOP: ("is a symbolic link", "put the file itself there"),
    errno.EACCES: ("may not be read", "give the daemon's user permission to read it"),
    errno.ENAMETOOLONG: ("has a name that is too long", "shorten it"),
}


def read_text(path: Path, error: type[InputError], *, limit: int = SPEC_BYTES) -> str:
    """The file's text, without a byte order mark. Raises ``error`` for anything but a small regular UTF-8 file."""
    with _opened(path, error, limit) as descriptor:
        data = _up_to(descriptor, limit + 1)
    if len(data) > limit:
        raise error(f"has more than {limit} bytes", file=path, remedy="it must be smaller")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as bad:
        line = data[: bad.start].count(b"\n") + 1
        raise error("is not UTF-8 text", file=path, line=line, remedy="save it as UTF-8") from bad
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise error("has a NUL character", file=path, line=line, remedy="it must be plain text")
    return text


def read_spec_text(path: Path) -> str:
    """The text of a dropped spec (TOML or JSON), at most 256 KiB. Raises SpecError."""
    return read_text(path, SpecError)


def sha256_of(path: Path, error: type[InputError], *, limit: int) -> str:
    """Hex digest of a regular file's bytes. Raises ``error`` as ``read_text`` does."""
    digest = hashlib.sha256()
    with _opened(path, error, limit) as descriptor:
        while block := os.read(descriptor, 1 << 20):
            digest.update(block)
    return digest.hexdigest()


def inside(folder: Path, name: str, error: type[InputError], *, key: str, file: Path, line: int | None = None) -> Path:
    """The absolute path of ``name`` within ``folder``. Raises ``error`` where it leads out or passes a link."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or not pure.parts or not name.isprintable():
        raise error(f'is "{name}"', key=key, file=file, line=line, remedy="name a file inside the kernel's own folder")
    path = folder.absolute()
    for part in pure.parts:
        path = path / part
        if path.is_symlink():
            raise error(
                f'is "{name}", a symbolic link', key=key, file=file, line=line, remedy="put the file itself there"
            )
    if not path.is_file():
        raise error(f'names "{name}", which is not there', key=key, file=file, line=line, remedy=f"put it in {folder}")
    return path


@contextmanager
def _opened(path: Path, error: type[InputError], limit: int) -> Iterator[int]:
    try:
        _check(os.lstat(path), path, error, limit)  # before opening: opening a device or a pipe can do things
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as bad:
        code = bad.errno if isinstance(bad, OSError) else None
        problem, remedy = _REASONS.get(code or 0, (f"cannot be read ({bad})", "check the file"))
        raise error(problem, file=path, remedy=remedy) from bad
    try:
        _check(os.fstat(descriptor), path, error, limit)
        yield descriptor
    finally:
        os.close(descriptor)


def _check(status: os.stat_result, path: Path, error: type[InputError], limit: int) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise error("is a symbolic link", file=path, remedy="put the file itself there")
    if stat.S_ISDIR(status.st_mode):
        raise error("is a folder", file=path, remedy="name a file")
    if not stat.S_ISREG(status.st_mode):
        raise error("is not a regular file", file=path, remedy="put a plain file there")
    if status.st_size > limit:
        raise error(f"has {status.st_size} bytes", file=path, remedy=f"at most {limit} are read")


def _up_to(descriptor: int, count: int) -> bytes:
    blocks: list[bytes] = []
    while count > 0 and (block := os.read(descriptor, count)):
        blocks.append(block)
        count -= len(block)
    return b"".join(blocks)
