"""What lies in incoming/: which of it is a spec, which is whole, and whose turn it is.

A spec is taken when it is whole: it looks the same in two scans, or nobody has written to it for two seconds.
"""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tuner_daemon.records.spec import SPEC_SUFFIXES, spec_in

SOURCE_SUFFIXES = (".cu", ".cuh", ".c", ".h", ".hpp", ".cpp", ".inc")
COMPANION_SUFFIXES = (*SOURCE_SUFFIXES, ".npy")  # lie beside a spec that names them
SIDECAR_SUFFIXES = (".job", ".reason.txt")
FILE_GAP_S, FOLDER_GAP_S = 0.2, 0.5  # unchanged for so long between two scans is whole
OLD_S = 2.0  # a file that nobody wrote to for so long is whole
MAX_SEEN = 100_000
MAX_FOLDER_ENTRIES = 10_000

Fingerprint = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class Entry:
    """A spec that waits: a file, or a folder with a spec.toml."""

    name: str
    path: Path
    owner: int  # uid
    mtime_ns: int
    is_folder: bool


@dataclass(frozen=True)
class _Sighting:
    fingerprint: Fingerprint
    since_s: float


@dataclass(frozen=True)
class _Refused:
    """Why an entry can never be a spec."""

    reason: str


def is_hidden(name: str) -> bool:
    """Names that are being written, or that are nobody's business."""
    return name.startswith(".") or name.endswith((".tmp", "~"))


def safe_name(name: str) -> str:
    """The name with anything but letters, digits, dot, dash and underscore replaced, and short enough for sidecars."""
    path = Path(re.sub(r"[^A-Za-z0-9._-]", "_", name))
    return f"{path.stem.lstrip('.-')[:120] or 'spec'}{path.suffix[:20]}"


def looks_like_spec(entry: os.DirEntry[str]) -> bool:
    """For counting; opens nothing."""
    if is_hidden(entry.name) or entry.name.endswith(SIDECAR_SUFFIXES):
        return False
    if entry.is_dir(follow_symlinks=False):
        return spec_in(Path(entry.path)) is not None
    return entry.name.endswith(SPEC_SUFFIXES)


class Incoming:
    """Remembers what the last look saw. ``look`` yields the names that must go, with the reason; ``ready`` follows."""

    def __init__(self, folder: Path, clock_s: Callable[[], float], wall_s: Callable[[], float]) -> None:
        self._folder, self._clock_s, self._wall_s = folder, clock_s, wall_s
        self._seen: dict[str, _Sighting] = {}
        self._whole: list[Entry] = []
        self._ignored: dict[str, int] = {}  # name -> inode
        self._last_owner = -1
        self.unsettled = 0

    def look(self) -> list[tuple[str, str]]:
        """Looks at every entry once. Returns (name, reason) of those that can never be a spec."""
        refused: list[tuple[str, str]] = []
        seen: dict[str, _Sighting] = {}
        self._whole = []
        for name, status in self._list():
            what = self._observe(name, status)
            if isinstance(what, _Refused):
                refused.append((name, what.reason))
            elif what is not None:
                seen[name] = self._remembered(name, what)
                if self._is_whole(status, seen[name]):
                    folder = stat.S_ISDIR(status.st_mode)
                    self._whole.append(Entry(name, self._folder / name, status.st_uid, status.st_mtime_ns, folder))
        self._seen = seen
        self.unsettled = len(seen) - len(self._whole)
        return refused + self._without_spec()

    def ready(self, limit: int) -> list[Entry]:
        """Owners take turns, beginning after the one served last; each owner's oldest first."""
        queues: dict[int, deque[Entry]] = {}
        for entry in sorted(self._whole, key=lambda entry: (entry.mtime_ns, entry.name)):
            queues.setdefault(entry.owner, deque()).append(entry)
        owners = sorted(queues, key=lambda owner: (owner <= self._last_owner, owner))
        turns: list[Entry] = []
        while owners and len(turns) < limit:
            turns.extend(queues[owner].popleft() for owner in owners)
            owners = [owner for owner in owners if queues[owner]]
        return turns[:limit]

    def served(self, owner: int) -> None:
        self._last_owner = owner

    def ignore(self, name: str) -> None:
        """Passes over this entry until something else has its name."""
        with suppress(FileNotFoundError):
            self._ignored[name] = (self._folder / name).lstat().st_ino

    def _list(self) -> Iterator[tuple[str, os.stat_result]]:
        with os.scandir(self._folder) as found:
            for number, entry in enumerate(found):
                if number >= MAX_SEEN:
                    return
                if is_hidden(entry.name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if self._ignored.get(entry.name) != status.st_ino:
                    yield entry.name, status

    def _observe(self, name: str, status: os.stat_result) -> Fingerprint | _Refused | None:
        """What to compare between two scans; None for what only lies beside a spec."""
        if stat.S_ISDIR(status.st_mode):
            return self._observe_folder(self._folder / name)
        if not stat.S_ISREG(status.st_mode):
            return _Refused(f"a {_kind(status.st_mode)} is not a spec; drop a regular file or a folder")
        if name.endswith(SPEC_SUFFIXES):
            return ((name, status.st_size, status.st_mtime_ns, status.st_ino),)
        if name.endswith(COMPANION_SUFFIXES):
            return None
        return _Refused("the name of a spec ends in .toml or .json")

    def _observe_folder(self, folder: Path) -> Fingerprint | _Refused | None:
        found: list[tuple[str, int, int, int]] = []
        for parent, folders, names in os.walk(folder):
            for name in [".", *folders, *names]:
                path = Path(parent, name)
                try:
                    status = path.lstat()
                except OSError:  # gone, or in a folder that is not for us to look into
                    continue
                if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                    inside = path.relative_to(folder)
                    return _Refused(f"{inside} is a {_kind(status.st_mode)}; only files and folders can be dropped")
                found.append((str(path), status.st_size, status.st_mtime_ns, status.st_ino))
            if len(found) > MAX_FOLDER_ENTRIES:
                return _Refused(f"more than {MAX_FOLDER_ENTRIES} files in one job")
        is_kernel = os.path.lexists(folder / "kernel.toml") and spec_in(folder) is None
        return None if is_kernel else tuple(found)

    def _remembered(self, name: str, fingerprint: Fingerprint) -> _Sighting:
        before = self._seen.get(name)
        same = before is not None and before.fingerprint == fingerprint
        return before if before is not None and same else _Sighting(fingerprint, self._clock_s())

    def _is_whole(self, status: os.stat_result, sighting: _Sighting) -> bool:
        unchanged_s = self._clock_s() - sighting.since_s
        if stat.S_ISDIR(status.st_mode):
            return unchanged_s >= FOLDER_GAP_S
        # Editors and copiers make an empty file first: an empty one is not whole until it is old.
        return (status.st_size > 0 and unchanged_s >= FILE_GAP_S) or self._wall_s() - status.st_mtime > OLD_S

    def _without_spec(self) -> list[tuple[str, str]]:
        bare = [entry for entry in self._whole if entry.is_folder and spec_in(entry.path) is None]
        self._whole = [entry for entry in self._whole if entry not in bare]
        return [(entry.name, "a job's folder holds a spec.toml, a kernel's a kernel.toml") for entry in bare]


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")
