"""A daemon's long day in virtual time: ``python -m tests.soak.long_day '{"folder": "…", "jobs": 5000, …}'``.

The daemon is the real one, with its workshop, spool and log, and works on a recorded space. What it waits for does not
take time: its alarm clock moves the virtual time on, to the next dropped spec or the end of the wait. Work takes the
time that it takes, so latencies are real ones. Retraining goes on beside it, in a process of its own. A process of its
own, since it is its memory that is looked at.
"""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import ROOT
from tests.soak.test_killed_daemon import Installation
from tuner_daemon.cli.client import load
from tuner_daemon.cli.workshop import Workshop
from tuner_daemon.daemon import Daemon
from tuner_daemon.intake.specs import priority_of
from tuner_daemon.settings import load_settings
from tuner_daemon.storage import files
from tuner_daemon.storage.spool import Claimed, Spool
from tuner_daemon.storage.status import write_status

SETTINGS = "[retrain]\npolicy_steps = 200\nthreads = 1\n"
IDLE_AT_THE_END_S = 5.0


@dataclass
class VirtualTime:
    """Real time, and what waiting has skipped."""

    skipped_s: float = 0.0
    began_s: float = field(default_factory=time.monotonic)

    def __call__(self) -> float:
        return time.monotonic() - self.began_s + self.skipped_s


@dataclass
class Day:
    """Drops specs at random moments of the day, and is the daemon's alarm clock."""

    installation: Installation
    time: VirtualTime
    moments: list[float]  # virtual seconds at which a spec is dropped, the last one first
    every_s: float  # between retrainings
    stop: threading.Event
    end_s: float
    leak_bytes: int
    dropped: int = 0
    dropped_at: dict[str, float] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    retrained: int = 0
    retraining: subprocess.Popen[bytes] | None = None
    leaked: list[bytearray] = field(default_factory=list)

    def wait(self, timeout_s: float) -> bool:
        """In place of an Event's: returns at once, later."""
        until_s = self.time() + timeout_s
        if self.moments and self.moments[-1] <= until_s:
            self.time.skipped_s += max(0.0, self.moments[-1] - self.time())
        else:
            self.time.skipped_s += timeout_s
        self.go_on()
        return True

    def clear(self) -> None: ...

    def go_on(self) -> None:
        """Does what is due."""
        while self.moments and self.moments[-1] <= self.time():
            self.moments.pop()
            self._drop()
        if self.every_s and self.time() >= self.every_s * (self.retrained + 1):
            self._retrain()
        if self.time() >= self.end_s + IDLE_AT_THE_END_S:
            self.stop.set()

    def _drop(self) -> None:
        """As ``tunerd submit`` does: the rename can be told from the last write."""
        self.dropped += 1
        name = f"{self.dropped:05}.toml"
        hidden = self.installation.incoming / f".{name}"
        hidden.write_text(f'template = "recorded"\n[problem]\nn = {self.dropped}\n[budget]\nmeasurements = 6\n')
        time.sleep(files.TICK_S)
        hidden.rename(self.installation.incoming / name)
        self.dropped_at[name] = self.time()

    def claimed(self, name: str) -> None:
        self.latencies_s.append(self.time() - self.dropped_at[name])
        self.memory.append((self.time(), psutil.Process().memory_info().rss))
        if self.leak_bytes:
            self.leaked.append(bytearray(b"x" * self.leak_bytes))

    def _retrain(self) -> None:
        if self.retraining is not None:
            assert self.retraining.wait(1800) == 0
        self.retrained += 1
        command = [sys.executable, "-m", "tuner_daemon.cli", "retrain", "--settings", str(self.installation.settings)]
        self.retraining = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


class WatchedSpool(Spool):
    """Tells the day what was claimed."""

    day: Day

    def claim(self, entry: Any) -> Claimed | None:
        self.day.claimed(entry.name)
        claimed = super().claim(entry)
        self.day.go_on()
        return claimed


def main(folder: str, jobs: int, hours: float, retrains: int, seed: int, leak_bytes: int = 0) -> dict[str, Any]:
    logging.disable(logging.INFO)
    installation = Installation(Path(folder))
    with installation.settings.open("a") as file:
        file.write(SETTINGS)
    settings = load_settings(installation.settings)
    rng, end_s, stop = random.Random(seed), hours * 3600, threading.Event()
    moments = sorted((rng.uniform(0.0, end_s) for _ in range(jobs)), reverse=True)
    every_s = end_s / (retrains + 1) if retrains else 0.0
    day = Day(installation, VirtualTime(), moments, every_s, stop, end_s, leak_bytes)
    spool = WatchedSpool(settings.spool_dir, clock_s=day.time)
    spool.day = day
    with Workshop(settings) as workshop:
        parts: dict[str, Any] = {
            "spool": spool,
            "engine": workshop.engine,
            "load": partial(load, settings),
            "priority_of": priority_of,
            "allowed": lambda _: None,
            "publish_status": partial(write_status, settings.state_dir),
            "stop": stop,
            "wake": day,
        }
        Daemon(**parts).serve()
    if day.retraining is not None:
        assert day.retraining.wait(1800) == 0
    return {
        "latencies_s": day.latencies_s,
        "memory": day.memory,
        "retrained": day.retrained,
        "virtual_s": day.time(),
        "real_s": time.monotonic() - day.time.began_s,
    }


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
