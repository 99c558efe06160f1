"""One user of a device at a time, across processes."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def device_lease(folder: Path, kind: str, index: int) -> Iterator[None]:
    """Holds the device for the body; waits while another process of this host has it.

    A flock(2): the kernel releases it when the holder dies, so that no stale lease can exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{kind}-{index}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
