"""Runs a compiler as a process group of its own under limits of time, memory, CPU and output."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OUTPUT_END_BYTES = 8 << 10

# The limits are set by a shell that then becomes the compiler: a preexec function is unsafe beside threads, and
# setting them from outside would come too late for what a compiler starts first.
_LIMITED = 'ulimit -c 0 && ulimit -v "$1" && ulimit -t "$2" && ulimit -f "$3" && shift 3 && exec "$@"'


@dataclass(frozen=True)
class Limits:
    """What one compilation may use. ``output_bytes`` bounds each file it writes, its messages included."""

    timeout_s: float = 60.0
    memory_bytes: int = 2 << 30
    output_bytes: int = 64 << 20


@dataclass(frozen=True)
class Ended:
    """How a compiler ended. ``output``: stdout and stderr together, beginning and end of it where it is long."""

    returncode: int
    output: str
    timed_out: bool


class CompilerRun:
    """One compilation at a time, which another thread may stop; nothing of its process group outlives ``run``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group: int | None = None
        self._stopped = self._timed_out = False

    def run(self, command: Sequence[str], *, folder: Path, limits: Limits) -> Ended:
        """Runs in ``folder``, which also takes temporary files. Raises FileNotFoundError without a shell."""
        messages = folder / "messages.log"
        with messages.open("wb") as stream:
            process = self._start(_limited(command, limits), folder, stream.fileno(), Path(command[0]).parent)
        if process is None:
            return Ended(-signal.SIGKILL, "stopped", timed_out=False)
        timer = threading.Timer(limits.timeout_s, self._time_out)
        timer.daemon = True
        timer.start()
        try:
            # Wait without reaping: as long as the leader is a zombie its group's number belongs to nobody else.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            timer.cancel()
            self._kill()
            with self._lock:
                self._group = None
            process.wait()
        return Ended(process.returncode, _ends_of(messages), self._timed_out)

    def stop(self) -> None:
        """Kills what runs; a later ``run`` starts nothing."""
        with self._lock:
            self._stopped = True
        self._kill()

    def _start(self, command: Sequence[str], folder: Path, output: int, tools: Path) -> subprocess.Popen[bytes] | None:
        path = f"{tools}:/usr/local/bin:/usr/bin:/bin"
        with self._lock:
            if self._stopped:
                return None
            self._timed_out = False
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={"PATH": path, "LC_ALL": "C", "TMPDIR": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
            self._group = process.pid
        return process

    def _time_out(self) -> None:
        self._timed_out = True
        self._kill()

    def _kill(self) -> None:
        with self._lock:
            if self._group is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._group, signal.SIGKILL)


def _limited(command: Sequence[str], limits: Limits) -> list[str]:
    memory_kib = _at_most(resource.RLIMIT_AS, limits.memory_bytes) // 1024
    cpu_s = _at_most(resource.RLIMIT_CPU, int(limits.timeout_s) + 1)
    blocks = _at_most(resource.RLIMIT_FSIZE, limits.output_bytes) // 512
    return ["/bin/sh", "-c", _LIMITED, "sh", str(memory_kib), str(cpu_s), str(blocks), *command]


def _at_most(kind: int, wanted: int) -> int:
    """A process may not raise its hard limit."""
    hard = resource.getrlimit(kind)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def _ends_of(file: Path) -> str:
    with file.open("rb") as stream:
        head = stream.read(OUTPUT_END_BYTES)
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(len(head), size - OUTPUT_END_BYTES))
        tail = stream.read()
    cut = b"\n[...]\n" if size > len(head) + len(tail) else b""
    return (head + cut + tail).decode("utf-8", "replace")
