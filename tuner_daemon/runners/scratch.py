"""Where a worker's candidates may write: a folder of its own, bounded, and gone with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LIMIT_BYTES = 256 << 20


class Scratch:
    """A temporary folder. Nothing in it is ever read."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tunerd-worker-"))

    def is_too_large(self) -> bool:
        """Whether its files take more than LIMIT_BYTES of the disk."""
        total = 0
        try:
            for size in _sizes(self.folder):
                total += size
                if total > LIMIT_BYTES:
                    return True
        except RecursionError:  # deeper than anybody needs
            return True
        return False

    def empty(self) -> None:
        """Removes what a candidate has left."""
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _remove(entry.path)
                else:
                    Path(entry.path).unlink()

    def remove(self) -> None:
        _remove(self.folder)


def _remove(folder: str | Path) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # it calls itself for each level
        subprocess.run(["rm", "-rf", "--", folder], stderr=subprocess.DEVNULL, check=False)


def _sizes(folder: Path) -> Iterator[int]:
    """Bytes on the disk of every file; what vanishes meanwhile counts nothing."""
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                yield os.lstat(Path(root, name)).st_blocks * 512
