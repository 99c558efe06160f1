"""The spool: a spec's state is the folder it lies in, and a change of state is one rename.

    incoming/ -> active/ -> done/ (with <name>.job) | failed/ | hold/ (with <name>.reason.txt)

The directory scan is the truth; the watcher only shortens the wait. Whatever happens, a spec is in exactly one folder:
sidecars are written before the rename, so that the rename is the only step that counts.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tuner_daemon.errors import SpoolError
from tuner_daemon.storage import companions, dropping, files, incoming
from tuner_daemon.storage.incoming import Entry
from tuner_daemon.storage.results import restore_results

logger = logging.getLogger(__name__)
STATES = ("incoming", "active", "done", "failed", "hold")
MAX_ATTEMPTS = 2
QUEUE_LIMIT = 10_000
MAX_REFUSALS = 64
ROOM_BYTES = 2 << 20
"""A job's rows, result and binaries fit into it; with less left on the disk none is begun."""
_LOCK, _LOCK_ATTEMPTS = ".lock", 5


@dataclass(frozen=True)
class Claimed:
    """A spec this daemon works on. ``path`` is what to load: the file, or the folder with a spec.toml."""

    name: str  # in active/, and from there on
    path: Path
    place: Path  # the spec itself in active/; ``path`` unless the kernel lay beside it
    attempts: int  # runs begun, this one included
    owner: int  # uid


@dataclass(frozen=True)
class Fate:
    """Where a spec is and what became of it."""

    state: str  # one of STATES
    job: str | None = None
    answer: str = ""
    reason: str = ""


class Spool:
    """Folders under ``root``, made if absent. Raises SpoolError if they are not on one file system.

    ``queue_limit``: of the specs that wait, so many of each owner are looked at; the others stay where they are.
    """

    def __init__(
        self, root: Path, *, queue_limit: int = QUEUE_LIMIT, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.root = root
        self._guard = files.Guard(SpoolError)
        with self._guard(f"spool {root}"):
            for name in (*STATES, "results"):
                files.make_folder(root / name)
        self._check_one_file_system()
        self._incoming = incoming.Incoming(root / "incoming", clock_s, queue_limit)
        self._lock: int | None = None

    @property
    def incoming(self) -> Path:
        return self.root / "incoming"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def unsettled(self) -> int:
        """Entries that the last scan saw and that may still be being written: scan again in 0.2 s."""
        return self._incoming.unsettled

    def lock(self) -> None:
        """For the daemon: recovery must not take another one's work. Raises SpoolError if it is held."""
        if self._lock is not None:
            return
        descriptor = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        for _ in range(_LOCK_ATTEMPTS):  # whoever asks ``is_served`` has it for a moment
            if _locked(descriptor, fcntl.LOCK_EX):
                self._lock = descriptor
                return
            time.sleep(0.05)
        os.close(descriptor)
        raise SpoolError(f"{self.root}: another daemon works on this spool; stop it first")

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def submit(self, path: Path, *, as_name: str | None = None, extra: Sequence[Path] = ()) -> str:
        """Drops a spec file, or a folder with a spec.toml, whole or not at all; returns the name it got.

        ``extra`` are the files and folders that the spec names; with them the job is a folder. Raises SpecError if
        ``path`` is no spec, DiskFullError, SpoolError.
        """
        with self._guard(f"submit {path}"):
            dropped = dropping.prepare(self.incoming, path, extra, as_name)
            return self._publish_new(dropped)

    def _publish_new(self, dropped: dropping.Dropped) -> str:
        time.sleep(files.TICK_S)  # so that the rename is seen to be later than the last write
        try:
            while True:
                name = self._unused_name(dropped.name)
                try:
                    files.move(dropped.temp, self.incoming / name)
                except FileExistsError:  # somebody else took the name this moment
                    continue
                return name
        except OSError:
            files.remove(dropped.temp)
            raise

    def _unused_name(self, name: str) -> str:
        """A name that no spec in any state has, so that a client can follow its own. In the order specs move."""
        path, number, candidate = Path(name), 1, name
        while any(os.path.lexists(self.root / state / candidate) for state in STATES):
            number += 1
            candidate = f"{path.stem}-{number}{path.suffix}"
        return candidate

    @property
    def left(self) -> int:
        """Entries that the last scan left alone, because their owner has more than ``queue_limit``."""
        return self._incoming.left

    def scan(self) -> list[Entry]:
        """Whole specs, oldest first, of each owner at most ``queue_limit``. What can never be one (a FIFO, a link, a
        device, a folder without a spec) goes to failed/ unopened, MAX_REFUSALS of them in one scan."""
        with self._guard("scan incoming/"):
            refused = self._incoming.look()
            for name, reason in refused[:MAX_REFUSALS]:
                self._refuse(name, reason)
        self._incoming.unsettled += len(refused[MAX_REFUSALS:])
        return self._incoming.whole

    def _refuse(self, name: str, reason: str) -> None:
        source = self.incoming / name
        try:
            self._settle(source, "failed", incoming.safe_name(name), ".reason.txt", reason)
        except FileNotFoundError:
            return
        except PermissionError as error:  # a folder that its owner has not shared cannot be renamed
            self._incoming.ignore(name)
            logger.warning("incoming/%s: %s; it cannot be moved: %s", name, reason, error)
        else:
            logger.warning("incoming/%s: %s", name, reason)

    def claim(self, entry: Entry) -> Claimed | None:
        """Takes the spec to active/ and counts the attempt, before anything runs. None if it has gone, or if it turned
        out to be none, which is then in failed/. Raises DiskFullError; the spec is in incoming/ still."""
        with self._guard(f"claim {entry.name}"):
            files.need_room(self.root, ROOM_BYTES)
            place = self._take(entry)
            if place is None:
                return None
            try:
                attempts = self._attempts(place) + 1
                files.publish_bytes(self._attempts_file(place), str(attempts).encode())
                path = self._gather(place)
            except OSError as error:
                if files.may_be_retried(error):
                    self._back(place)
                raise
            return None if path is None else Claimed(place.name, path, place, attempts, entry.owner)

    def _take(self, entry: Entry) -> Path | None:
        try:
            now = entry.path.lstat()
            if stat.S_ISREG(now.st_mode) and now.st_mtime_ns != entry.mtime_ns:  # written to since it was whole
                return None
            place = files.move_into(self.root / "active", entry.path, incoming.safe_name(entry.name))
        except FileNotFoundError:
            return None
        except PermissionError as error:
            self._refuse(entry.name, f"the daemon may not take it: {error.strerror}; make it group-writable")
            return None
        status = place.lstat()
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            return place
        self._settle(place, "failed", place.name, ".reason.txt", "it is no longer a regular file or a folder")
        return None

    def _gather(self, place: Path) -> Path | None:
        try:
            return companions.gather(place, self.incoming, self._workplace(place.name))
        except companions.CompanionError as error:
            self._settle(place, "failed", place.name, ".reason.txt", str(error))
            return None

    def release(self, claimed: Claimed) -> None:
        """Back to incoming/: the daemon was asked to stop. The attempt does not count."""
        with self._guard(f"release {claimed.name}"):
            files.publish_bytes(self._attempts_file(claimed.place), str(claimed.attempts - 1).encode())
            self._back(claimed.place)

    def excuse(self) -> None:
        """Back to incoming/ with what is active, without the attempt counting: this process is about to end itself. The
        thread that works on it is at something else."""
        with suppress(OSError):
            for place in (self.root / "active").iterdir():
                if not incoming.is_hidden(place.name):
                    files.publish_bytes(self._attempts_file(place), str(max(0, self._attempts(place) - 1)).encode())
                    self._back(place)

    def finish(self, claimed: Claimed, job: str, answer: str = "") -> None:
        """To done/; ``<name>.job`` holds the job on its first line and ``answer`` after it."""
        with self._guard(f"finish {claimed.name}"):
            self._settle(claimed.place, "done", claimed.name, ".job", f"{job}\n{answer}".rstrip("\n"))

    def fail(self, claimed: Claimed, reason: str) -> None:
        """To failed/, with ``<name>.reason.txt``."""
        with self._guard(f"fail {claimed.name}"):
            self._settle(claimed.place, "failed", claimed.name, ".reason.txt", reason)

    def hold(self, claimed: Claimed, reason: str) -> None:
        """To hold/, with ``<name>.reason.txt``: a person must look at it. Moving it to incoming/ tries again."""
        with self._guard(f"hold {claimed.name}"):
            self._settle(claimed.place, "hold", claimed.name, ".reason.txt", reason)

    def recover(self) -> None:
        """At start-up: what was active goes back to incoming/, or to hold/ if it was begun twice and never ended."""
        with self._guard("recover the spool"):
            for place in sorted((self.root / "active").iterdir()):
                if incoming.is_hidden(place.name):
                    continue
                if (attempts := self._attempts(place)) >= MAX_ATTEMPTS:
                    reason = f"the daemon ended {attempts} times while it worked on this spec"
                    logger.error("%s: %s; it is in hold/", place.name, reason)
                    self._settle(
                        place, "hold", place.name, ".reason.txt", f"{reason}; move it to incoming/ to try again"
                    )
                else:
                    self._back(place)
            self._sweep()
            restore_results(self.results)

    def counts(self) -> dict[str, int]:
        """Specs in each state."""
        return counts_in(self.root)

    def fate(self, name: str) -> Fate | None:
        """Where the spec that ``submit`` called ``name`` is now; None if it is nowhere. Needs no lock."""
        for state in STATES:
            if os.path.lexists(self.root / state / name):
                job, _, answer = self._sidecar(state, name, ".job").partition("\n")
                return Fate(state, job or None, answer, self._sidecar(state, name, ".reason.txt"))
        return None

    def _sidecar(self, state: str, name: str, suffix: str) -> str:
        try:
            return (self.root / state / f"{name}{suffix}").read_text().rstrip("\n")
        except FileNotFoundError:
            return ""

    def _settle(self, source: Path, state: str, name: str, suffix: str, text: str) -> None:
        folder = self.root / state
        name = files.free_name(folder, name)
        source.lstat()  # no sidecar for what has gone
        attempts = self._attempts_file(source)
        files.publish_bytes(folder / f"{name}{suffix}", f"{text}\n".encode(errors="replace"))
        files.move(source, folder / name)
        with suppress(OSError):  # the spec has its place; what is left behind goes at the next start
            attempts.unlink(missing_ok=True)
            files.remove(self._workplace(source.name))

    def _back(self, place: Path) -> None:
        files.move_into(self.incoming, place, place.name)
        with suppress(OSError):
            files.remove(self._workplace(place.name))

    def _workplace(self, name: str) -> Path:
        return self.root / "active" / f".{name}.work"

    def _attempts_file(self, place: Path) -> Path:
        # Named by inode, which a rename keeps: the count follows the spec back to incoming/, and a new spec of the same
        # name starts at none.
        return self.root / "active" / f".{place.lstat().st_ino}.attempts"

    def _attempts(self, place: Path) -> int:
        try:
            return int(self._attempts_file(place).read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def _sweep(self) -> None:
        """Removes what a crash left: counts of specs that have ended, work folders, old temporary files."""
        with os.scandir(self.incoming) as found:
            counted = {f".{entry.inode()}.attempts" for entry in found}
        for path in (self.root / "active").glob(".*"):
            if path.name not in counted:
                files.remove(path)
        yesterday = time.time() - 86_400
        for path in self.root.glob("*/.*.tmp"):  # a client may be at work on a young one
            with suppress(FileNotFoundError):
                if path.lstat().st_mtime < yesterday:
                    files.remove(path)

    def _check_one_file_system(self) -> None:
        devices = {(self.root / name).stat().st_dev: name for name in (*STATES, "results")}
        if len(devices) > 1:
            names = ", ".join(sorted(devices.values()))
            raise SpoolError(f"{self.root}: {names} are on different file systems, where a rename is not one step")


def is_served(root: Path) -> bool:
    """Whether a daemon holds the spool at ``root``. Makes nothing; where it may not look it supposes that one does."""
    try:
        descriptor = os.open(root / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    try:
        return not _locked(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def counts_in(root: Path) -> dict[str, int]:
    """Specs in each state of the spool at ``root``; makes nothing where there is none."""
    counts = dict.fromkeys(STATES, 0)
    for state in STATES:
        with suppress(FileNotFoundError), os.scandir(root / state) as found:
            counts[state] = sum(1 for entry in found if incoming.looks_like_spec(entry))
    return counts


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
