"""Candidates and jobs that mean harm: each is recorded once, leaves nothing, and costs no other job anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.soak.supervisor import MARK, Supervisor
from tests.test_main_job import HEAD, job
from tests.waiting import command_line, wait_until
from tuner_daemon.runners import scratch
from tuner_daemon.runners.child import KEPT_BYTES
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.spool import counts_in

LOG_LIMIT_BYTES = 2 << 20
SETTINGS = """state_dir = "{state}"
allow_cpu_kernels = true
[device]
kind = "cpu"
[search]
samples = 3
final_blocks = 8
"""
WORK = "{ for (int i = 0; i < n; ++i) y[i] = 2.0f * x[i]; }"
INCLUDES = "".join(
    f"#include <{name}.h>\n" for name in ("fcntl", "signal", "stdio", "stdlib", "string", "sys/types", "unistd")
)
ONCE = "static int done; if (!done++) "
POISONS = {
    "kills its worker": ("kill(getpid(), SIGKILL);", "crashed"),
    "hangs": ("for (volatile int i = 0;;) i = 1;", "timed_out"),
    "forks and setsid": (
        "if (!fork()) { setsid(); if (!fork()) { setsid(); for (;;) sleep(1000); } _exit(0); }",
        "crashed",
    ),
    "execs a program of its own": (
        'if (!fork()) { setsid(); execl("/bin/sleep", "sleep", "2718", (char *)0); _exit(1); }',
        "crashed",
    ),
    "1 GB of stderr": (
        f"{ONCE}{{ static char b[65536]; memset(b, 'x', sizeof b); "
        "for (int i = 0; i < 16384; ++i) write(2, b, sizeof b); }",
        "ok",
    ),
    "fills its temp folder": (
        "static char b[1 << 20]; char name[400]; for (int i = 0;; ++i) { "
        'snprintf(name, sizeof name, "%s/%d", getenv("TMPDIR"), i); int f = open(name, O_CREAT | O_WRONLY, 0600); '
        "if (f < 0 || write(f, b, sizeof b) < 0) break; close(f); }",
        "crashed",
    ),
    "fills one file": (
        'static char b[1 << 20]; int f = open("large", O_CREAT | O_WRONLY, 0600); '
        "while (write(f, b, sizeof b) > 0) ; close(f);",
        "",  # it ends by itself at the limit, unless its time is up first
    ),
}
KILLS_THE_DAEMON = "kill(getppid(), SIGKILL);"


def source(poison: str, everywhere: bool) -> str:
    """In every configuration, or in two of eight."""
    text = poison if everywhere else f"if (UNROLL == 8) {{ {poison} }}"
    return f"#define _GNU_SOURCE\n{INCLUDES}{HEAD}{{ {text} {WORK} }}\n"


@dataclass(frozen=True)
class Poisoned:
    """A daemon under its supervisor, and what was dropped."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state"

    def supervisor(self) -> Supervisor:
        settings = self.root / "tunerd.toml"
        settings.write_text(SETTINGS.format(state=self.state))
        (self.root / "tmp").mkdir()
        command = [sys.executable, "-m", "tuner_daemon.cli", "serve", "--settings", str(settings)]
        return Supervisor(command, self.root, environment={"TMPDIR": str(self.root / "tmp")})

    def drop(self, name: str, text: str, n: int, seconds: float) -> None:
        folder = job(self.root / "jobs" / f"{name}-{time.monotonic_ns()}", text, n=n, seconds=seconds)
        hidden = self.state / "spool" / "incoming" / f".{folder.name}"
        subprocess.run(["cp", "-r", folder, hidden], check=True)
        hidden.rename(hidden.with_name(name))

    def drop_poison(self, kinds: list[str], again: str = "") -> int:
        for kind in kinds:
            poison, _ = POISONS[kind]
            for everywhere in (True, False):
                name = f"{kind.replace(' ', '_')}-{'job' if everywhere else 'candidate'}{again}"
                self.drop(name, source(poison, everywhere), 2000, 3.0 if everywhere else 20.0)
        return 2 * len(kinds)

    def ended(self, count: int) -> bool:
        time.sleep(0.1)
        counts = counts_in(self.state / "spool")
        return sum(counts[state] for state in ("done", "failed", "hold")) >= count


def strays(service: Supervisor) -> list[psutil.Process]:
    """Of the control group, what is neither the daemon nor what it keeps: its worker and its compile pool."""
    assert service.process is not None
    daemon = psutil.Process(service.process.pid)
    kept = {daemon.pid, *(child.pid for child in daemon.children(recursive=True))}
    for child in daemon.children(recursive=True):
        if "tuner_daemon.worker" in command_line(child):
            kept -= {left.pid for left in child.children(recursive=True)}
    return [process for process in service.marked() if process.pid not in kept]


@pytest.fixture
def poisoned(tmp_path: Path) -> Poisoned:
    return Poisoned(tmp_path)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("good", "kinds", "may_kill_the_daemon"),
    [
        pytest.param(99, list(POISONS), True, marks=pytest.mark.slow, id="all"),
        pytest.param(2, ["kills its worker", "forks and setsid"], False, id="two"),
    ],
)
def test_poison_is_recorded_once_and_costs_nobody_else_anything(
    poisoned: Poisoned, good: int, kinds: list[str], may_kill_the_daemon: bool
) -> None:
    began_s = time.monotonic()
    with poisoned.supervisor() as service:
        jobs = poisoned.drop_poison(kinds)
        if may_kill_the_daemon:
            poisoned.drop("kills_the_daemon", source(KILLS_THE_DAEMON, True), 2000, 20.0)
        for number in range(good):
            poisoned.drop(f"good-{number:02}", source("", False), 1000 + number, 20.0)
        jobs += good + may_kill_the_daemon
        wait_until(lambda: poisoned.ended(jobs), within_s=1500)
        rows = recorded(poisoned.state)
        poisoned.drop_poison(kinds, "-again")
        wait_until(lambda: poisoned.ended(jobs + 2 * len(kinds)), within_s=600)
        wait_until(lambda: not strays(service))
        left = [path for path in (poisoned.root / "tmp").rglob("*") if path.is_file() and "worker" in str(path)]
        lives = len(service.results)
        assert service.stop() == 0
        wait_until(lambda: not service.marked())
        logged = service.stderr.stat().st_size
    again = recorded(poisoned.state)
    longest = max(len(detail) for _, _, _, detail in rows)
    print(
        f"good jobs {good}, of them done {good_done(poisoned)}; poison jobs {jobs - good} of {len(kinds)} kinds; "
        f"daemon killed {lives} times; rows {len(rows)}, of them more than once {twice(rows)}, new when asked again "
        f"{len(set(again) - set(rows))}; surviving processes 0; files left {len(left)}; daemon's log {logged} bytes, "
        f"longest detail {longest}; {time.monotonic() - began_s:.0f} s"
    )
    assert good_done(poisoned) == good
    assert twice(rows) == twice(again) == 0
    check_outcomes(rows, kinds)
    assert not left
    assert lives == (2 if may_kill_the_daemon else 0)
    held = [path.name for path in (poisoned.state / "spool" / "hold").iterdir()]
    assert ("kills_the_daemon" in held) is may_kill_the_daemon
    assert logged < LOG_LIMIT_BYTES
    assert longest <= KEPT_BYTES + 200


Row = tuple[str, str, str, str]  # job, configuration, outcome, detail


def recorded(state: Path) -> list[Row]:
    table = ParquetLog(state / "log").read(columns=["job", "config", "outcome", "detail"]).to_pylist()
    return [
        (row["job"], json.dumps(sorted(dict(row["config"]).items())), row["outcome"], row["detail"] or "")
        for row in table
    ]


def twice(rows: list[Row]) -> int:
    return sum(times > 1 for times in Counter((job, config) for job, config, _, _ in rows).values())


def good_done(poisoned: Poisoned) -> int:
    return len([p for p in (poisoned.state / "spool" / "done").glob("good-*") if p.is_dir()])


def check_outcomes(rows: list[Row], kinds: list[str]) -> None:
    outcomes = Counter(outcome for _, _, outcome, _ in rows)
    for kind in kinds:
        wanted = POISONS[kind][1]
        assert not wanted or outcomes[wanted] > 0, (kind, outcomes)
    if "fills its temp folder" in kinds:
        assert any("in its temporary folder" in detail for _, _, _, detail in rows)
    if "forks and setsid" in kinds:
        assert any("left processes behind" in detail for _, _, _, detail in rows)


def test_a_process_that_leaves_its_session_would_be_seen(tmp_path: Path) -> None:
    """Negative control."""
    script = "import os, sys, time; os.fork() or os.setsid(); os.fork() and os._exit(0); time.sleep(60)"
    with Supervisor([sys.executable, "-c", SERVES], tmp_path) as service:
        assert strays(service) == []
        environment = {**os.environ, MARK: service.mark}
        subprocess.run([sys.executable, "-c", script], env=environment, check=True)
        wait_until(lambda: strays(service))
    wait_until(lambda: not service.marked())


SERVES = """
import os, socket, time
ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
ears.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
time.sleep(600)
"""


def test_a_folder_that_grows_is_seen_and_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "LIMIT_BYTES", 100_000)
    made = scratch.Scratch()
    (made.folder / "below").mkdir()
    (made.folder / "below" / "file").write_bytes(bytes(90_000))
    assert not made.is_too_large()
    (made.folder / "more").write_bytes(b"x" * 50_000)
    assert made.is_too_large()
    made.empty()
    assert list(made.folder.iterdir()) == []
    made.remove()
    assert not made.folder.exists()
