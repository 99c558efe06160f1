"""A daemon of its own for a test: a process with settings and a state folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.waiting import wait_until
from tuner_daemon.storage.status import read_status

TUNERD = (sys.executable, "-m", "tuner_daemon.cli")


@dataclass(frozen=True)
class Service:
    """A running ``tunerd serve``."""

    process: subprocess.Popen[bytes]
    state: Path

    @property
    def spool(self) -> Path:
        return self.state / "spool"

    @property
    def rss_bytes(self) -> int:
        resident: int = psutil.Process(self.process.pid).memory_info().rss
        return resident

    def ended(self, count: int) -> bool:
        """Whether so many specs are in done/, failed/ or hold/. Fails if the daemon is gone."""
        assert self.process.poll() is None
        time.sleep(0.1)  # the folders grow long, and looking at them costs the daemon's core
        return sum(len(self.names(state)) for state in ("done", "failed", "hold")) >= count

    def names(self, state: str) -> list[str]:
        """Of the specs in a state."""
        with os.scandir(self.spool / state) as found:
            names = [entry.name for entry in found]
        return [n for n in names if not n.startswith(".") and not n.endswith((".job", ".reason.txt"))]


@contextlib.contextmanager
def serving(state: Path, settings: str = "", command: Sequence[str] = TUNERD) -> Iterator[Service]:
    """Starts the daemon, waits until it serves, and stops it in the end: it must exit with 0."""
    state.mkdir(parents=True, exist_ok=True)
    file = state / "tunerd.toml"
    file.write_text(f'state_dir = "{state}"\n{settings}')
    with (state / "stderr.txt").open("wb") as errors:
        process = subprocess.Popen([*command, "serve", "--settings", str(file)], stderr=errors)
    try:
        wait_until(lambda: read_status(state) is not None, within_s=120)
        yield Service(process, state)
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        assert code == 0, (state / "stderr.txt").read_text()[-2000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
