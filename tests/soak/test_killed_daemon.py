"""The whole daemon is killed at random, again and again: every job ends, every acknowledged row is in the log once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.rows import measurement
from tests.waiting import wait_until
from tuner_daemon.storage.log import ParquetLog, part_files
from tuner_daemon.storage.spool import counts_in

SEED = 20261201
KERNEL_TOML = """name = "recorded"
[problem]
n = { type = "int", min = 1 }
[parameters]
A = [1, 2, 4, 8, 16]
B = [1, 2, 4, 8]
[launch]
block = ["A"]
grid = ["B"]
"""
SETTINGS = """state_dir = "{state}"
template_dirs = ["{templates}"]
poll_s = 0.1
[device]
kind = "replay"
[search]
batch = 2
pool = 32
final_blocks = 8
"""


@dataclass
class Installation:
    """A state folder, and one daemon after the other on it."""

    root: Path
    dropped: int = 0
    restarts_s: list[float] = field(default_factory=list)
    restarts_cpu_s: list[float] = field(default_factory=list)
    in_mid_job: int = 0
    held: int = 0

    def __post_init__(self) -> None:
        folder = self.root / "templates" / "recorded"
        folder.mkdir(parents=True)
        (folder / "kernel.toml").write_text(KERNEL_TOML)
        space = [(a, b) for a in (1, 2, 4, 8, 16) for b in (1, 2, 4, 8)]
        table = {
            "A": [a for a, _ in space],
            "B": [b for _, b in space],
            "time_ms": [1.0 + abs(a - 4) + abs(b - 2) for a, b in space],
            "status": ["ok"] * len(space),
        }
        pq.write_table(pa.table(table), folder / "device.parquet")
        self.incoming.mkdir(parents=True)
        self.settings.write_text(SETTINGS.format(state=self.root / "state", templates=self.root / "templates"))
        self.witness.touch()

    @property
    def spool(self) -> Path:
        return self.root / "state" / "spool"

    @property
    def incoming(self) -> Path:
        return self.spool / "incoming"

    @property
    def settings(self) -> Path:
        return self.root / "tunerd.toml"

    @property
    def witness(self) -> Path:
        return self.root / "acknowledged"

    @property
    def log(self) -> ParquetLog:
        return ParquetLog(self.root / "state" / "log")

    def drop_up_to(self, jobs: int) -> None:
        while self.dropped < jobs:
            self.dropped += 1
            hidden = self.incoming / f".{self.dropped}"
            hidden.write_text(f'template = "recorded"\n[problem]\nn = {self.dropped}\n[budget]\nmeasurements = 6\n')
            hidden.rename(self.incoming / f"{self.dropped:04}.toml")

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.soak.witness", str(self.witness), "serve"]
        return subprocess.Popen(
            [*command, "--settings", str(self.settings)],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill_after(self, delay_s: float, *, once_working: bool) -> None:
        """A daemon's life. It works once it has measured something and the log has acknowledged that."""
        size, began_s, process = self.witness.stat().st_size, time.monotonic(), self.start()
        if once_working:
            wait_until(lambda: self.witness.stat().st_size > size, within_s=60)
            self.restarts_s.append(time.monotonic() - began_s)
            self.restarts_cpu_s.append(sum(psutil.Process(process.pid).cpu_times()[:2]))
        time.sleep(delay_s)
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.in_mid_job += counts_in(self.spool)["active"]

    def finish(self) -> None:
        """What was killed twice waits in hold/ for a person, who lets it in again."""
        process = self.start()
        ended = self.dropped
        wait_until(lambda: sum(counts_in(self.spool)[s] for s in ("done", "failed", "hold")) == ended, within_s=300)
        for spec in (self.spool / "hold").glob("*.toml"):
            self.held += 1
            assert "ended 2 times" in spec.with_name(f"{spec.name}.reason.txt").read_text()
            spec.rename(self.incoming / spec.name)
        wait_until(lambda: counts_in(self.spool)["done"] == ended, within_s=120)
        process.terminate()
        assert process.wait(30) == 0

    def acknowledged(self) -> set[str]:
        return {json.loads(line)[0] for line in self.witness.read_text().splitlines()}


@dataclass(frozen=True)
class Judged:
    rows: int
    lost: int
    duplicated: int  # a row stored twice, or a configuration of a job measured twice
    unreadable: int  # parts


def judged(log: ParquetLog, acknowledged: set[str]) -> Judged:
    table = log.read(columns=["key", "job", "config"]).to_pydict()
    keys = set(table["key"])
    measured = {(job, str(config)) for job, config in zip(table["job"], table["config"], strict=True)}
    stored = int(log.stats()["rows"])
    return Judged(len(keys), len(acknowledged - keys), stored - len(measured), len(log.verify()))


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path)
    yield made
    made.witness.unlink()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kills", "jobs", "within_s"),
    [pytest.param(200, 500, 3.0, marks=pytest.mark.slow, id="200"), pytest.param(3, 9, 30.0, id="3")],
)
def test_killed_at_random_every_job_ends_and_every_acknowledged_row_is_there_once(
    installation: Installation, kills: int, jobs: int, within_s: float
) -> None:
    rng = random.Random(SEED)
    for kill in range(kills):
        installation.drop_up_to(jobs * (kill + 1) // kills)
        in_start_up = kill % 5 == 4
        installation.kill_after(rng.uniform(0.0, 1.0 if in_start_up else 0.4), once_working=not in_start_up)
    installation.finish()
    acknowledged = installation.acknowledged()
    found, p95_s, busy = judged(installation.log, acknowledged), p95(installation.restarts_s), is_busy()
    print(
        f"seed {SEED}: kills {kills}, {installation.in_mid_job} in mid-job, jobs {jobs} ended, "
        f"{installation.held} of them once in hold, acknowledged {len(acknowledged)}, lost {found.lost}, "
        f"duplicated {found.duplicated}, unreadable {found.unreadable}, restart to working p95 {p95_s:.2f} s, "
        f"of which at work {p95(installation.restarts_cpu_s):.2f} s{' (a busy machine)' if busy else ''}"
    )
    assert (found.lost, found.duplicated, found.unreadable) == (0, 0, 0)
    assert found.rows == 6 * jobs
    assert len(acknowledged) >= 4 * jobs
    assert installation.in_mid_job > kills / 4
    assert (p95(installation.restarts_cpu_s) if busy else p95_s) <= within_s


def p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def is_busy() -> bool:
    """Others want the cores as well: then seconds at work say how long a restart takes, and the wall clock does not."""
    return os.getloadavg()[0] > len(os.sched_getaffinity(0))


def test_a_part_copied_spoilt_or_taken_away_would_be_seen(tmp_path: Path) -> None:
    """Negative control."""
    log, rows = ParquetLog(tmp_path), [measurement(n) for n in range(6)]
    for row in rows:
        log.append([row])
    acknowledged = {row.key for row in rows}
    assert judged(log, acknowledged) == Judged(6, 0, 0, 0)
    part = next(part_files(log.folder / "measurements"))
    copy = part.with_name(f"{part.stem[:-4]}0000.parquet")
    copy.write_bytes(part.read_bytes())
    assert judged(ParquetLog(log.folder), acknowledged).duplicated > 0
    copy.write_bytes(part.read_bytes()[:-20])
    assert judged(ParquetLog(log.folder), acknowledged).unreadable == 1
    copy.unlink()
    part.unlink()
    assert judged(ParquetLog(log.folder), acknowledged).lost > 0
