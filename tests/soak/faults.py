"""Faults at the file system's calls, below Python: the library of faults.c, and how a test's own process is told."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

SOURCE = Path(__file__).parent / "faults.c"
ENDED = 86  # exit status of a process that the library has ended


class Fault(IntEnum):
    """As faults.c numbers them. The short ones write half of what they are given."""

    NOTHING = 0
    IO_ERROR = 1
    FULL = 2
    SHORT_WRITE = 3
    SHORT_THEN_FULL = 4
    END = 5
    END_IN_WRITE = 6


def compiled(folder: Path) -> Path:
    library = folder / "faults.so"
    flags = ("-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    subprocess.run(["gcc", *flags, "-o", library, SOURCE, "-ldl"], check=True)
    return library


@contextmanager
def quick_folder(otherwise: Path) -> Iterator[Path]:
    """In memory where that can be: thousands of fsyncs on a disk would take minutes and prove no more."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else otherwise
    with tempfile.TemporaryDirectory(dir=where, prefix="tunerd-soak-") as folder:
        yield Path(folder)


def run_under_faults(module: str, library: Path, **arguments: Any) -> dict[str, Any]:
    """Runs a module of these tests in a process with the library; ``arguments`` as JSON are its only argument.
    Returns the JSON it printed last."""
    done = subprocess.run(
        [sys.executable, "-m", module, json.dumps(arguments)],
        env={**os.environ, "LD_PRELOAD": str(library)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stderr[-4000:], end="", file=sys.stderr)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


class Faults:
    """In a process that was started with the library."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        for name in ("faults_hit", "faults_seen"):
            getattr(self._library, name).restype = ctypes.c_char_p
        self._library.faults_calls.restype = ctypes.c_long

    def arm(self, folder: Path, number: int = 0, kind: Fault = Fault.NOTHING) -> None:
        """The ``number``-th call from now on that changes something under ``folder`` meets the fault."""
        self._library.faults_arm(os.fsencode(folder), ctypes.c_long(number), int(kind))

    @property
    def calls(self) -> str:
        """First letters of the calls since ``arm``: open, write, fsync, mkdir, rename, symlink, unlink, truncate."""
        return str(self._library.faults_seen().decode())

    @property
    def hit(self) -> str:
        """The call that met the fault; empty if none did."""
        return str(self._library.faults_hit().decode())

    def end_at(self, folder: Path, number: int, kind: Fault, action: Callable[[], object]) -> bool:
        """Runs ``action`` in a copy of this process, which ends at the ``number``-th call: no handler of Python's runs.
        False if it did not come so far, or that call is not one that the fault is for."""
        child = os.fork()
        if child == 0:
            self.arm(folder, number, kind)
            try:
                action()
                os._exit(0)
            finally:  # an exception, which must not pass for a finished action
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, ENDED), f"call {number}: exit status {code}"
        return code == ENDED
