"""Ctrl-C while ``tunerd tune`` works in the foreground."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.test_main_job import BAD, GOOD, TUNERD, job
from tests.waiting import command_line, wait_until
from tuner_daemon.cli.interrupts import stop_on_signals
from tuner_daemon.errors import JobInterruptedError

SLOW = GOOD.replace("r < 16 / STEP", "r < 12000 / STEP")


def test_the_first_signal_asks_to_stop_and_the_second_one_ends(capfd: pytest.CaptureFixture[str]) -> None:
    def twice() -> None:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(5)
            assert "once more ends at once" in capfd.readouterr().err
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(JobInterruptedError, match="ended at once"):
        twice()
    assert signal.getsignal(signal.SIGINT) is before


def start(tmp_path: Path, source: str) -> subprocess.Popen[str]:
    settings = tmp_path / "tunerd.toml"
    settings.write_text(f'state_dir = "{tmp_path / "state"}"\n[device]\nkind = "cpu"\n')
    command = [*TUNERD, "tune", str(job(tmp_path / "job", source, seconds=60)), "--settings", str(settings)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def test_ctrl_c_ends_with_one_line_and_what_was_measured_is_in_the_log(tmp_path: Path) -> None:
    process = start(tmp_path, SLOW)
    wait_until(lambda: list((tmp_path / "state" / "log").rglob("part-*.parquet")))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Traceback" not in said
    stats = subprocess.run(
        [*TUNERD, "log", "stats", "--json", "--settings", str(tmp_path / "tunerd.toml")],
        capture_output=True,
        check=True,
    )
    rows = json.loads(stats.stdout)["rows"]
    assert rows >= 1
    assert f"stopped after {rows} measurements, all in the log" in said.splitlines()[-1]


def test_a_second_ctrl_c_does_not_wait_for_the_candidate(tmp_path: Path) -> None:
    process = start(tmp_path, BAD["hangs"][0])
    family = psutil.Process(process.pid)
    wait_until(lambda: any("tuner_daemon.worker" in command_line(child) for child in family.children()))
    children = family.children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "once more ends at once" not in process.stderr.readline():
        assert process.poll() is None
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert time.monotonic() - began_s < 15.0, "its time limit is 30 s"
    assert (process.returncode, "ended at once" in said) == (1, True)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
