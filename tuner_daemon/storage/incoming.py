"""What lies in incoming/: which of it is a spec, which is whole, and whose turn it is.

A spec is taken when it is whole: it looks the same in two scans some time apart. How long depends on how it came. A
rename changes an entry's ctime and not its mtime: what was renamed in was complete then. What was written in place may
grow after a pause, so it waits longer, and longer still while somebody has it open for writing. No clock but the
monotonic one is asked, and times are compared for order only, within one entry: neither a clock that is set nor a file
server with a clock of its own makes half a spec look whole.
"""

from __future__ import annotations

import heapq
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tuner_daemon.records.spec import SPEC_SUFFIXES, spec_in
from tuner_daemon.storage import files

SOURCE_SUFFIXES = (".cu", ".cuh", ".c", ".h", ".hpp", ".cpp", ".inc")
COMPANION_SUFFIXES = (*SOURCE_SUFFIXES, ".npy")  # lie beside a spec that names them
SIDECAR_SUFFIXES = (".job", ".reason.txt")
RENAMED_S, WRITTEN_S, OPEN_S = 0.2, 1.0, 60.0  # unchanged for so long between two scans is whole
MAX_SEEN = 1_000_000
MAX_FOLDER_ENTRIES, MAX_FOLDER_DEPTH = 10_000, 32

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
    entry: Entry
    whole: bool = False


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
    """Remembers what the last look saw. ``look`` returns what must go, with the reason; ``whole`` follows.

    ``limit``: of each owner's entries the oldest so many are looked at, so that nobody's flood costs memory or hides
    what others have dropped.
    """

    def __init__(self, folder: Path, clock_s: Callable[[], float], limit: int) -> None:
        self._folder, self._clock_s, self._limit = folder, clock_s, limit
        self._seen: dict[str, _Sighting] = {}
        self._ignored: dict[str, int] = {}  # name -> inode
        self.whole: list[Entry] = []  # oldest first
        self.unsettled = 0
        self.left = 0  # entries beyond the limit

    def look(self) -> list[tuple[str, str]]:
        """Looks at every entry once. Returns (name, reason) of those that can never be a spec."""
        refused: list[tuple[str, str]] = []
        seen: dict[str, _Sighting] = {}
        whole: list[Entry] = []
        for name, status in self._oldest():
            what = self._observe(name, status)
            if isinstance(what, _Refused):
                refused.append((name, what.reason))
            elif what is not None:
                seen[name] = sighting = self._settled(status, self._remembered(name, status, what))
                if sighting.whole:
                    whole.append(sighting.entry)
        self._seen = seen
        self.unsettled = len(seen) - len(whole)
        bare = {entry.name for entry in whole if entry.is_folder and spec_in(entry.path) is None}
        self.whole = [entry for entry in whole if entry.name not in bare]
        return refused + [(name, "a job's folder holds a spec.toml, a kernel's a kernel.toml") for name in sorted(bare)]

    def _oldest(self) -> list[tuple[str, os.stat_result]]:
        """Each owner's oldest entries, up to the limit, in the order of their times."""
        self.left = 0
        newest_first: dict[int, list[tuple[int, str, os.stat_result]]] = {}  # owner -> heap
        for name, status in self._list():
            heap = newest_first.setdefault(status.st_uid, [])
            item = (-status.st_mtime_ns, name, status)
            if len(heap) < self._limit:
                heapq.heappush(heap, item)
            else:
                heapq.heappushpop(heap, item)
                self.left += 1
        kept = [item for heap in newest_first.values() for item in heap]
        return [(name, status) for _, name, status in sorted(kept, key=lambda item: (-item[0], item[1]))]

    def ignore(self, name: str) -> None:
        """Passes over this entry until something else has its name."""
        self._ignored = {known: inode for known, inode in self._ignored.items() if (self._folder / known).exists()}
        with suppress(FileNotFoundError):
            self._ignored[name] = (self._folder / name).lstat().st_ino

    def _list(self) -> Iterator[tuple[str, os.stat_result]]:
        with os.scandir(self._folder) as found:
            for number, entry in enumerate(found):
                if number >= MAX_SEEN:
                    return
                if is_hidden(entry.name):
                    continue
                if entry.name.endswith(COMPANION_SUFFIXES) and entry.is_file(follow_symlinks=False):
                    continue  # lies beside a spec
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if self._ignored.get(entry.name) != status.st_ino:
                    yield entry.name, status

    def _observe(self, name: str, status: os.stat_result) -> Fingerprint | _Refused | None:
        """What to compare between two scans; None for a kernel's folder, which only lies beside a spec."""
        if stat.S_ISDIR(status.st_mode):
            return self._observe_folder(self._folder / name)
        if not stat.S_ISREG(status.st_mode):
            return _Refused(f"a {_kind(status.st_mode)} is not a spec; drop a regular file or a folder")
        if name.endswith(SPEC_SUFFIXES):
            return ((name, status.st_size, status.st_mtime_ns, status.st_ino),)
        return _Refused("the name of a spec ends in .toml or .json")

    def _observe_folder(self, folder: Path) -> Fingerprint | _Refused | None:
        found: list[tuple[str, int, int, int]] = []
        for parent, folders, names in os.walk(folder):  # which calls itself for each level
            if len(Path(parent).relative_to(folder).parts) > MAX_FOLDER_DEPTH:
                return _Refused(f"folders more than {MAX_FOLDER_DEPTH} deep in one job")
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

    def _remembered(self, name: str, status: os.stat_result, fingerprint: Fingerprint) -> _Sighting:
        before = self._seen.get(name)
        if before is not None and before.fingerprint == fingerprint:
            return before
        folder = stat.S_ISDIR(status.st_mode)
        entry = Entry(name, self._folder / name, status.st_uid, status.st_mtime_ns, folder)
        return _Sighting(fingerprint, self._clock_s(), entry)

    def _settled(self, status: os.stat_result, sighting: _Sighting) -> _Sighting:
        """The sighting, whole if it is by now; what was once whole is whole until it changes."""
        if sighting.whole:
            return sighting
        unchanged_s = self._clock_s() - sighting.since_s
        last_write_ns = max(mtime_ns for _, _, mtime_ns, _ in sighting.fingerprint)
        # Editors and copiers make an empty file first.
        renamed = status.st_ctime_ns > last_write_ns and status.st_size > 0
        quiet = unchanged_s >= (RENAMED_S if renamed else WRITTEN_S)
        whole = quiet and (unchanged_s >= OPEN_S or not files.is_open_for_writing(sighting.entry.path))
        return replace(sighting, whole=True) if whole else sighting


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")
