"""The disk runs full under a working daemon and is freed: it waits, blames no candidate, and goes on by itself."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.soak.small_disk import SmallDisk, small_disk
from tests.soak.test_killed_daemon import judged
from tests.test_main_job import GOOD, job
from tests.waiting import wait_until
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.spool import counts_in

SEED = 20261201
FULL = "STATUS=waiting for disk space"
SETTINGS = """state_dir = "{state}"
allow_cpu_kernels = true
[device]
kind = "cpu"
[search]
batch = 3
samples = 3
final_blocks = 8
[build]
jobs = 1
cache_limit_bytes = 1048576
"""


@dataclass
class Watched:
    """A daemon on the small disk, heard through the socket of its service manager: that needs no disk."""

    root: Path
    disk: SmallDisk
    heard: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.root / "tunerd.toml").write_text(SETTINGS.format(state=self.state))
        (self.disk.folder / "tmp").mkdir()
        self.ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ears.bind(str(self.root / "notify"))
        self.ears.setblocking(False)
        command = [sys.executable, "-m", "tests.soak.witness", str(self.root / "acknowledged"), "serve"]
        extra = {"NOTIFY_SOCKET": str(self.root / "notify"), "TMPDIR": str(self.disk.folder / "tmp")}
        with (self.root / "stderr").open("wb") as stderr:
            self.process = subprocess.Popen(
                [*command, "--settings", str(self.root / "tunerd.toml")],
                cwd=ROOT,
                env={**self.disk.environment, **extra},
                stderr=stderr,
            )

    @property
    def state(self) -> Path:
        return self.disk.folder / "state"

    def drop(self, number: int) -> None:
        folder = job(self.root / "jobs" / f"job-{number}", f"{GOOD}// {number}\n", n=3000 + number, seconds=60)
        spec = folder / "spec.toml"
        spec.write_text(spec.read_text().replace("measurements = 8", "measurements = 6"))
        hidden = self.state / "spool" / "incoming" / f".{number}"
        subprocess.run(["cp", "-r", folder, hidden], check=True)
        hidden.rename(hidden.with_name(f"job-{number}"))

    def is_waiting_for_space(self) -> bool:
        """What it has said last."""
        with suppress(BlockingIOError):
            while True:
                self.heard.append(self.ears.recv(4096).decode())
        assert self.process.poll() is None, (self.root / "stderr").read_text()
        said = [line for note in self.heard for line in note.splitlines() if line.startswith("STATUS=")]
        return bool(said) and said[-1] == FULL

    def seconds_until(self, waiting: bool) -> float:
        began_s = time.monotonic()
        wait_until(lambda: self.is_waiting_for_space() is waiting, within_s=60)
        return time.monotonic() - began_s

    def has_begun(self, job_number: int) -> bool:
        return self.count("done") >= job_number and self.count("active") > 0

    def close(self) -> None:
        self.ears.close()
        self.process.kill()
        self.process.wait()

    def count(self, state: str) -> int:
        self.is_waiting_for_space()
        return counts_in(self.state / "spool")[state]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("jobs", "times", "may_mount"),
    [
        pytest.param(9, 6, True, marks=pytest.mark.slow, id="six times"),
        pytest.param(3, 2, False, marks=pytest.mark.slow, id="without a mount"),
        pytest.param(2, 1, True, id="once"),
    ],
)
def test_a_full_disk_is_waited_for_and_no_row_is_wrong(tmp_path: Path, jobs: int, times: int, may_mount: bool) -> None:
    rng, pauses_s, resumes_s = random.Random(SEED), list[float](), list[float]()
    with small_disk(tmp_path, may_mount) as disk, closing(Watched(tmp_path, disk)) as daemon:
        wait_until((daemon.state / "status.json").exists, within_s=60)
        for number in range(jobs):
            daemon.drop(number)
        for number in range(times):
            wait_until(partial(daemon.has_begun, number), within_s=120)
            time.sleep(rng.uniform(0.0, 1.0))
            disk.fill()
            pauses_s.append(daemon.seconds_until(waiting=True))
            time.sleep(rng.uniform(0.5, 1.5))
            assert daemon.is_waiting_for_space()
            disk.free()
            resumes_s.append(daemon.seconds_until(waiting=False))
        wait_until(lambda: daemon.count("done") == jobs, within_s=300)
        daemon.process.terminate()
        assert daemon.process.wait(30) == 0
        log = ParquetLog(daemon.state / "log")
        acknowledged = {json.loads(line)[0] for line in (tmp_path / "acknowledged").read_text().splitlines()}
        found, outcomes = judged(log, acknowledged), Counter(log.read(columns=["outcome"])["outcome"].to_pylist())
    kind = "file system of 8 MB" if disk.is_mounted else "folder said to be full"
    print(
        f"seed {SEED}: {kind}, full {times} times, jobs {jobs}, rows {dict(outcomes)}, lost {found.lost}, duplicated "
        f"{found.duplicated}, paused within {max(pauses_s):.1f} s, resumed within {max(resumes_s):.1f} s"
    )
    assert outcomes == {"ok": 6 * jobs}
    assert (found.lost, found.duplicated, found.unreadable) == (0, 0, 0)
    assert len(acknowledged) == 6 * jobs
    assert max(resumes_s) <= 10
