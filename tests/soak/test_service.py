"""The daemon as a service: clocks that are set, stops in mid-round, hangs that the watchdog ends, settings read again,
and an upgrade with jobs in the queue. No job is lost, and no row."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.rows import measurement
from tests.soak.supervisor import Supervisor
from tests.soak.test_killed_daemon import Installation, judged
from tests.test_log_upgrade import told, write_old_part
from tests.test_main_job import GOOD, job
from tests.waiting import wait_until
from tuner_daemon.cli import service
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.spool import counts_in
from tuner_daemon.storage.status import read_status

SEED = 20261201
HOUR_S, DAY_S = 3600, 86_400
LONGEST_STOP_S = 30.0
WATCHDOG_S = 6.0
SLOW = GOOD.replace("r < 16 / STEP", "r < 1600 / STEP")
CPU_SETTINGS = """state_dir = "{state}"
allow_cpu_kernels = true
poll_s = 0.1
[device]
kind = "cpu"
[search]
samples = 3
final_blocks = 8
[build]
jobs = 1
"""


@dataclass
class Served:
    """A state folder, its supervisor's command, and what the log has acknowledged."""

    installation: Installation

    @classmethod
    def at(cls, root: Path, settings: str = "") -> Served:
        made = Installation(root)
        if settings:
            made.settings.write_text(settings.format(state=root / "state"))
        return cls(made)

    @property
    def spool(self) -> Path:
        return self.installation.spool

    def supervisor(self, watchdog_s: float | None = None, environment: Mapping[str, str] | None = None) -> Supervisor:
        command = [sys.executable, "-m", "tests.soak.witness", str(self.installation.witness), "serve"]
        settings = ["--settings", str(self.installation.settings)]
        return Supervisor([*command, *settings], self.installation.root, watchdog_s, environment or {})

    def drop_slow(self, number: int, source: str = SLOW) -> None:
        name = f"slow-{number:03}"
        folder = job(self.installation.root / "jobs" / name, source, n=4000 + number, seconds=60)
        subprocess.run(["cp", "-r", folder, self.installation.incoming / f".{name}"], check=True)
        (self.installation.incoming / f".{name}").rename(self.installation.incoming / name)

    def done(self) -> int:
        return counts_in(self.spool)["done"]

    def has_done(self, jobs: int) -> bool:
        return self.done() >= jobs

    def measured(self) -> int:
        """Candidates of the job that runs; -1 if none does."""
        running = (read_status(self.installation.root / "state") or {}).get("running")
        return int(running["measured"]) if running else -1

    def verdict(self) -> str:
        """Asserts that nothing is lost; in words."""
        found = judged(self.installation.log, self.installation.acknowledged())
        assert (found.lost, found.duplicated, found.unreadable) == (0, 0, 0)
        left = {state: n for state, n in counts_in(self.spool).items() if n}
        assert set(left) == {"done"}, left
        return f"jobs done {left['done']}, lost 0, rows {found.rows}, lost 0, duplicated 0"


def await_mid_round(served: Served) -> None:
    """A candidate has been measured since now, and its job goes on."""
    before = served.measured()
    wait_until(lambda: served.measured() not in (before, -1), within_s=120)


# -- stopping ----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("stops", "jobs"), [pytest.param(50, 20, marks=pytest.mark.slow, id="50"), pytest.param(1, 1, id="1")]
)
def test_stopped_in_mid_round_it_ends_in_time_and_goes_on_later(tmp_path: Path, stops: int, jobs: int) -> None:
    rng, served = random.Random(SEED), Served.at(tmp_path, CPU_SETTINGS)
    for number in range(jobs):
        served.drop_slow(number)
    in_mid_job = 0
    with served.supervisor() as supervised:
        for _ in range(stops):
            if served.done() < jobs:
                await_mid_round(served)
            time.sleep(rng.uniform(0.0, 0.3))
            in_mid_job += counts_in(served.spool)["active"]
            assert supervised.stop() == 0
            assert counts_in(served.spool)["active"] == 0
            supervised.start()
        wait_until(lambda: served.done() == jobs, within_s=600)
        assert supervised.stop() == 0
    print(
        f"seed {SEED}: SIGTERM {stops} times, {in_mid_job} in mid-job, stopped within {max(supervised.stops_s):.1f} s; "
        f"{served.verdict()}"
    )
    assert in_mid_job >= stops // 2
    assert max(supervised.stops_s) <= LONGEST_STOP_S
    assert set(supervised.results) == {"success"}


@pytest.mark.parametrize("limit_s", [pytest.param(service.LONGEST_STOP_S, marks=pytest.mark.slow, id="full"), 1.0])
def test_a_compiler_that_hangs_does_not_hold_up_the_end(tmp_path: Path, limit_s: float) -> None:
    """The spec is back in the queue, and the stop does not count against it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    gcc = tools / "gcc"
    gcc.write_text(
        '#!/bin/sh\ncase "$*" in *-shared*) test -e "$0.hangs" && exec tail -f "$0";; esac\nexec /usr/bin/gcc "$@"\n'
    )
    gcc.chmod(0o755)
    (tools / "gcc.hangs").touch()
    served = Served.at(tmp_path, CPU_SETTINGS + "timeout_s = 3000\n")
    environment = {"PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin", "SOAK_LONGEST_STOP_S": str(limit_s)}
    with served.supervisor(None, environment) as supervised:
        served.drop_slow(0)
        for _ in range(2):
            wait_until(lambda: any("tail" in process.name() for process in supervised.marked()), within_s=60)
            assert supervised.stop() == 0
            wait_until(lambda: not supervised.marked())
            supervised.start()
        (tools / "gcc.hangs").unlink()
        supervised.stop()
        supervised.start()
        wait_until(lambda: served.done() == 1, within_s=120)
        assert supervised.stop() == 0
    print(f"limit {limit_s:g} s, stopped within {max(supervised.stops_s):.1f} s; {served.verdict()}")
    assert max(supervised.stops_s) <= LONGEST_STOP_S


# -- the wall clock ----------------------------------------------------------------------------------------------


def clock_library(folder: Path) -> Path:
    library, source = folder / "clock.so", Path(__file__).parent / "clock.c"
    flags = ("-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    subprocess.run(["gcc", *flags, "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("jumps", "jobs", "restarts"),
    [pytest.param(100, 200, 8, marks=pytest.mark.slow, id="100"), pytest.param(8, 8, 1, id="8")],
)
def test_a_wall_clock_that_is_set_loses_nothing(tmp_path: Path, jumps: int, jobs: int, restarts: int) -> None:
    rng, served, offset = random.Random(SEED), Served.at(tmp_path), tmp_path / "offset"
    offset.write_text("0")
    environment = {"LD_PRELOAD": str(clock_library(tmp_path)), "CLOCK_OFFSET": str(offset)}
    with served.supervisor(WATCHDOG_S * 10, environment) as supervised:
        for jump in range(jumps):
            served.installation.drop_up_to(jobs * (jump + 1) // jumps)
            text = str(rng.choice((-DAY_S, -HOUR_S, HOUR_S, DAY_S)) if jump % 5 else 0)
            (tmp_path / "offset.new").write_text(text)
            (tmp_path / "offset.new").rename(offset)
            wait_until(partial(served.has_done, jobs * jump // jumps), within_s=120)
            if jump % (jumps // restarts) == jumps // restarts - 1:
                assert supervised.stop() == 0
                supervised.start()
        wait_until(lambda: served.done() == jobs, within_s=300)
        assert supervised.stop() == 0
    times = served.installation.log.read(columns=["started_at"]).column("started_at").to_pylist()
    spread = max(times) - min(times)
    print(
        f"seed {SEED}: clock set {jumps} times, rows' times spread over {spread / timedelta(days=1):.1f} days, "
        f"restarts {restarts}, stopped within {max(supervised.stops_s):.1f} s; {served.verdict()}"
    )
    assert spread > timedelta(days=1.5 if jumps > 50 else 0.04), "the clock was not set"
    assert max(supervised.stops_s) <= LONGEST_STOP_S
    assert set(supervised.results) == {"success"}


# -- hangs and reloads -------------------------------------------------------------------------------------------


def has_ended(supervised: Supervisor, lives: int) -> bool:
    return len(supervised.results) >= lives


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("hangs", "watchdog_s"), [pytest.param(5, WATCHDOG_S, marks=pytest.mark.slow, id="5"), pytest.param(1, 3.0, id="1")]
)
def test_a_daemon_that_hangs_is_started_anew_by_the_watchdog(tmp_path: Path, hangs: int, watchdog_s: float) -> None:
    """SIGSTOP, also in mid-job. A job is held after two of these, so each gets one."""
    served = Served.at(tmp_path)
    with served.supervisor(watchdog_s) as supervised:
        for hang in range(hangs):
            served.installation.drop_up_to(4 * (hang + 1))
            wait_until(partial(served.has_done, 4 * hang + 1), within_s=120)
            supervised.signal(signal.SIGSTOP)
            wait_until(partial(has_ended, supervised, hang + 1), within_s=120)
            supervised.wait_ready()
            wait_until(partial(served.has_done, 4 * (hang + 1)), within_s=120)
        time.sleep(1.5 * watchdog_s)  # idle, it goes on feeding the watchdog
        assert supervised.stop() == 0
    print(f"SIGSTOP {hangs} times, restarts by the watchdog {supervised.results.count('watchdog')}; {served.verdict()}")
    assert supervised.results == ["watchdog"] * hangs + ["success"]


def refusals(count: int, said: str) -> bool:
    return said.count("settings stay as they were") >= count


def test_a_reload_takes_up_new_settings_and_keeps_the_old_ones_where_the_new_are_wrong(tmp_path: Path) -> None:
    served = Served.at(tmp_path)
    settings = served.installation.settings
    good = settings.read_text()
    with served.supervisor() as supervised:

        def reload(text: str, heard: Callable[[str], bool]) -> None:
            settings.write_text(text)
            supervised.signal(signal.SIGHUP)
            wait_until(lambda: heard(supervised.stderr.read_text()), within_s=60)

        for number in range(3):
            served.installation.drop_up_to(4 * (number + 1))
            reload(f"{good}no_such = {number}\n", partial(refusals, number + 1))
        before = supervised.heard.count("READY=1")
        reload(good.replace("batch = 2", "batch = 3"), lambda _: supervised.heard.count("READY=1") > before)
        served.installation.drop_up_to(16)
        wait_until(lambda: served.done() == 16, within_s=120)
        assert supervised.stop() == 0
    rounds = {
        (row["job"], row["round"]): 0 for row in served.installation.log.read(columns=["job", "round"]).to_pylist()
    }
    print(f"SIGHUP 4 times; rounds {len(rounds)}; {served.verdict()}")
    assert supervised.results == ["success"]


# -- an upgrade --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queued", [pytest.param(200, marks=pytest.mark.slow), 6])
def test_an_upgrade_with_jobs_in_the_queue_loses_neither_jobs_nor_rows(tmp_path: Path, queued: int) -> None:
    """The log is of an earlier schema; one spec was being worked on when the old release was killed."""
    served = Served.at(tmp_path)
    log = served.installation.log
    rows = [measurement(n) for n in range(queued)]
    for n in range(0, queued, 2):
        write_old_part(log.folder, rows[n : n + 2], manifest=n % 4 == 0)
    old = told(ParquetLog(log.folder).measurements("job"))
    served.installation.drop_up_to(queued)
    active = served.spool / "active"
    active.mkdir()
    spec = served.installation.incoming / "0001.toml"
    spec.rename(active / spec.name)
    (active / f".{(active / spec.name).stat().st_ino}.attempts").write_text("1")
    with served.supervisor() as supervised:
        wait_until(lambda: served.done() == queued, within_s=600)
        assert supervised.stop() == 0
    merged = served.installation.log.compact()
    present = told(served.installation.log.measurements("job"))
    assert present == old
    assert len(present) == queued
    assert served.installation.log.verify() == {}
    print(
        f"jobs queued {queued}, rows of the earlier schema {queued}, parts merged {merged.merged}; {served.verdict()}"
    )


# -- negative controls -------------------------------------------------------------------------------------------

SPEAKS = """
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
ears.connect(os.environ["NOTIFY_SOCKET"])
ears.send(b"READY=1")
assert os.environ["WATCHDOG_USEC"] == "1000000"
"""


@pytest.mark.parametrize(
    ("script", "results", "status"),
    [
        ("while True: ears.send(b'WATCHDOG=1'); time.sleep(0.2)", set(), 0),
        ("time.sleep(60)", {"watchdog"}, 0),
        (
            "if os.fork() == 0:\n    while True: ears.send(b'WATCHDOG=1'); time.sleep(0.1)\ntime.sleep(60)",
            {"watchdog"},
            0,
        ),
        ("time.sleep(0.5); sys.exit(1)", {"exit-code"}, 1),
        ("time.sleep(0.5); os.kill(os.getpid(), 9)", {"signal"}, -9),
    ],
)
def test_the_supervisor_restarts_what_systemd_would(
    tmp_path: Path, script: str, results: set[str], status: int
) -> None:
    with Supervisor([sys.executable, "-c", SPEAKS + script], tmp_path, watchdog_s=1.0) as supervised:
        if results:
            wait_until(lambda: len(supervised.results) >= 2, within_s=60)
            assert set(supervised.results) == results
            assert status in (0, *supervised.statuses)
        else:
            time.sleep(2.5)
            assert supervised.results == []
            assert supervised.stop() == 0
    wait_until(lambda: not supervised.marked())


def test_the_library_sets_the_clock_of_a_process(tmp_path: Path) -> None:
    offset = tmp_path / "offset"
    offset.write_text(str(-DAY_S))
    environment = {"LD_PRELOAD": str(clock_library(tmp_path)), "CLOCK_OFFSET": str(offset)}
    script = (
        "import time, json, datetime as d; "
        "print(json.dumps([time.time(), d.datetime.now().timestamp(), time.monotonic()]))"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    told_s, said_s, monotonic_s = json.loads(done.stdout)
    assert abs(told_s - (time.time() - DAY_S)) < 60
    assert abs(said_s - (datetime.now().timestamp() - DAY_S)) < 60
    assert abs(monotonic_s - time.monotonic()) < 60
