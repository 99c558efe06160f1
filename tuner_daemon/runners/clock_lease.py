"""The lease: what root says it has done to a GPU's clocks, in a file that the daemon reads."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

LEASES = Path("/run/tuner-daemon-clocks")
"""Not the daemon's own runtime directory, which systemd gives to the daemon's user and removes with the daemon."""

LONGEST_S = 30 * 86400.0
"""A lease older than this is stale: somebody forgot it."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Lease:
    """The SM clock of one GPU is held at ``mhz``."""

    uuid: str
    mhz: int
    pid: int  # of the command that locked
    boot_id: str
    since_unix_s: float

    @classmethod
    def now(cls, uuid: str, mhz: int) -> Lease:
        return cls(uuid, mhz, os.getpid(), boot_id(), time.time())

    def stale(self) -> str:
        """Why it does not count; empty if it does."""
        if self.boot_id != boot_id():
            return "it is from before the last boot"
        age_s = time.time() - self.since_unix_s
        if not -60.0 <= age_s <= LONGEST_S:
            return f"it is {age_s / 86400:.0f} days old"
        return ""


def boot_id() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()


def read_lease(folder: Path, uuid: str) -> Lease | None:
    """None if there is none, or what lies there is no lease."""
    try:
        fields = json.loads(_file(folder, uuid).read_text(encoding="utf-8"))
        lease = Lease(
            str(fields["uuid"]),
            int(fields["mhz"]),
            int(fields["pid"]),
            str(fields["boot_id"]),
            float(fields["since_unix_s"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return lease if lease.uuid == uuid else None


def leased(folder: Path) -> list[str]:
    """UUIDs with a lease file, readable or not."""
    return sorted(path.stem for path in folder.glob("*.json"))


def write_lease(folder: Path, lease: Lease) -> None:
    """Whole or not at all, readable by everybody. Raises OSError."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    draft = folder / f".{uuid4().hex}.tmp"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o644)  # whatever the umask is
            json.dump(asdict(lease), file)
            file.flush()
            os.fsync(descriptor)
        draft.rename(_file(folder, lease.uuid))
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def remove_lease(folder: Path, uuid: str) -> None:
    _file(folder, uuid).unlink(missing_ok=True)


def lease_reader(folder: Path = LEASES) -> Callable[[str], Lease | None]:
    """Reads the lease of a UUID, anew at every call."""
    return lambda uuid: read_lease(folder, uuid)


def _file(folder: Path, uuid: str) -> Path:
    return folder / f"{uuid.replace('/', '_')}.json"
