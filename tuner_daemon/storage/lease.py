"""One user of a device at a time, across processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tuner_daemon.errors import SpoolError
from tuner_daemon.storage import files


@contextmanager
def device_lease(folder: Path, kind: str, index: int, wait: Callable[[str], None]) -> Iterator[None]:
    """Holds the device for the body. While another process of this host has it, ``wait`` is called again and again with
    the other's process id: it sleeps, says so, or raises to give up.

    A flock(2): the kernel releases it when the holder dies, so that no stale lease can exist. Raises DiskFullError,
    SpoolError if the folder cannot be used.
    """
    with files.Guard(SpoolError)(f"lease of {kind} {index}"):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / f"{kind}-{index}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
    try:
        while not _locked(descriptor):
            wait(os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown")
        with suppress(OSError):  # on a full disk those who wait will not see whom they wait for
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
