"""A disk of eight megabytes that can be filled: a file system of its own where that may be mounted, else the library of
faults.c, which says of a folder that it is full."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.soak.faults import compiled

SIZE_MIB = 8


@dataclass(frozen=True)
class SmallDisk:
    """``environment`` is for processes that are to find it full."""

    folder: Path
    is_mounted: bool
    environment: dict[str, str]
    _filler: Path

    def fill(self) -> None:
        if not self.is_mounted:
            self._filler.touch()
            return
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT)
        try:
            for size in (1 << 16, 1 << 12, 1):
                _write_until_full(descriptor, bytes(size))
        finally:
            os.close(descriptor)

    def free(self) -> None:
        self._filler.unlink()


def _write_until_full(descriptor: int, block: bytes) -> None:
    try:
        while True:
            os.write(descriptor, block)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


@contextmanager
def small_disk(tmp_path: Path, may_mount: bool = True) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tunerd-soak", str(folder)]
    mounted = may_mount and subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not mounted:
        full = tmp_path / "full"
        environment = {"LD_PRELOAD": str(compiled(tmp_path)), "FAULTS_FULL": str(full), "FAULTS_UNDER": str(folder)}
        yield SmallDisk(folder, False, {**os.environ, **environment}, full)
        return
    try:
        yield SmallDisk(folder, True, dict(os.environ), folder / "filler")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
