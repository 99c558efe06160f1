"""Built binaries by content: what was built once is never built again, whatever job or problem asks for it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner_daemon.errors import BuildError, DiskFullError, MissingPartError

_TEMPORARY = ".tmp-"
_ABANDONED_S = 3600.0  # a temporary file this old belongs to a process that is gone


@dataclass(frozen=True)
class Compiled:
    """A compiler's success. ``entry`` is the symbol to look up in ``binary``."""

    binary: bytes
    entry: str
    build_s: float
    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None


@dataclass(frozen=True)
class Rejected:
    """A compiler's refusal. ``lasting``: it would say the same again, so that it may be remembered."""

    detail: str
    build_s: float = 0.0
    lasting: bool = True


@dataclass(frozen=True)
class Cached:
    """A remembered success: Compiled, with the binary in a file whose content hash is ``sha256``."""

    path: Path
    sha256: str
    entry: str
    registers: int | None
    shared_bytes: int | None
    spill_bytes: int | None


def raise_for_disk(error: OSError, what: str) -> None:
    """Raises DiskFullError or BuildError if it is the disk that failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise DiskFullError(f"{what}: {error}; free some space") from error
    if error.errno == errno.EIO:
        raise BuildError(f"{what}: {error}") from error


class BuildCache:
    """``<folder>/<2 hex>/<key>.bin`` and ``.json``, each written beside its place and renamed into it.

    Any number of threads and processes may share a folder: every entry is checked against its hash when it is read,
    and one that is damaged or half there counts as absent. Above ``limit_bytes`` the least recently used entries go,
    but none that was used in the last ``keep_s``: whoever holds an Artifact for longer builds it again, which is a
    cache hit unless it is gone.
    """

    def __init__(self, folder: Path, limit_bytes: int, *, keep_s: float = 900.0) -> None:
        self.folder, self.limit_bytes, self.keep_s = folder, limit_bytes, keep_s
        self._lock = threading.Lock()
        self._used_bytes: int | None = None  # as far as this process knows

    def get(self, key: str) -> Cached | Rejected | None:
        """What is remembered under ``key``; counts as a use of it."""
        facts = self._facts(key)
        if facts is None:
            return None
        if "detail" in facts:
            self._touch(key)
            return Rejected(facts["detail"])
        try:
            binary = self._file(key, "bin").read_bytes()
            found = Cached(self._file(key, "bin"), **{name: facts[name] for name in _FACTS})
        except (OSError, KeyError):
            return None
        if hashlib.sha256(binary).hexdigest() != found.sha256:
            return None
        self._touch(key)
        return found

    def put(self, key: str, compiled: Compiled) -> Cached:
        """Raises DiskFullError, MissingPartError if the folder cannot be written, BuildError if the disk fails."""
        facts = {name: getattr(compiled, name) for name in _FACTS if name != "sha256"}
        facts["sha256"] = hashlib.sha256(compiled.binary).hexdigest()
        self._write(self._file(key, "bin"), compiled.binary)
        self._write(self._file(key, "json"), json.dumps(facts).encode())
        self._trim()
        return Cached(self._file(key, "bin"), **facts)

    def put_rejected(self, key: str, rejected: Rejected) -> None:
        """Raises as ``put`` does."""
        self._write(self._file(key, "json"), json.dumps({"detail": rejected.detail}).encode())
        self._trim()

    def _file(self, key: str, suffix: str) -> Path:
        return self.folder / key[:2] / f"{key}.{suffix}"

    def _facts(self, key: str) -> dict[str, Any] | None:
        try:
            facts = json.loads(self._file(key, "json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return facts if isinstance(facts, dict) else None

    def _touch(self, key: str) -> None:
        with contextlib.suppress(OSError):  # another process may have removed it
            os.utime(self._file(key, "json"))
            os.utime(self._file(key, "bin"))

    def _write(self, file: Path, content: bytes) -> None:
        try:
            self._replace(file, content)
        except OSError as error:
            raise_for_disk(error, f"build cache {self.folder}")
            raise MissingPartError(f"build cache {self.folder}: {error}; make the folder writable") from error

    def _replace(self, file: Path, content: bytes) -> None:
        # No fsync: after a power cut the hash of a file that was not written out does not fit, and it is built again.
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=file.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            Path(temporary).replace(file)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
        with self._lock:
            if self._used_bytes is not None:
                self._used_bytes += len(content)

    def _trim(self) -> None:
        with self._lock:
            if self._used_bytes is not None and self._used_bytes <= self.limit_bytes:
                return
            files = sorted(self._files(), key=lambda file: file[1])
            used = sum(size for _, _, size in files)
            wanted = self.limit_bytes if used <= self.limit_bytes else self.limit_bytes * 9 // 10
            newest_to_go = time.time() - self.keep_s
            for file, used_at, size in files:
                if used <= wanted or used_at > newest_to_go:
                    break
                file.unlink(missing_ok=True)
                used -= size
            self._used_bytes = used

    def _files(self) -> Iterator[tuple[Path, float, int]]:
        """(file, last use in epoch seconds, bytes); removes what dead processes left half-written."""
        for file in self.folder.glob("??/*"):
            try:
                state = file.stat()
            except FileNotFoundError:
                continue
            if file.name.startswith(_TEMPORARY) and time.time() - state.st_mtime > _ABANDONED_S:
                file.unlink(missing_ok=True)
            else:
                yield file, state.st_mtime, state.st_size


_FACTS = ("sha256", "entry", "registers", "shared_bytes", "spill_bytes")
