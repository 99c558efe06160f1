"""What a person sees who asks while no daemon is there to answer."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tuner_daemon.cli.client import gather_status
from tuner_daemon.cli.workshop import run_retrain
from tuner_daemon.settings import Settings
from tuner_daemon.storage.spool import Spool
from tuner_daemon.storage.status import write_status

TUNERD = [sys.executable, "-m", "tuner_daemon.cli"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state")


def test_a_look_at_the_status_makes_nothing(settings: Settings) -> None:
    facts = gather_status(settings)
    assert (facts["state"], facts["last_state"], facts["log"]["rows"]) == ("not running", None, 0)
    assert set(facts["queue"].values()) == {0}
    assert not settings.state_dir.exists()


def test_after_a_crash_the_status_does_not_say_that_it_is_tuning(settings: Settings) -> None:
    spool = Spool(settings.spool_dir)
    spool.lock()
    write_status(settings.state_dir, {"state": "tuning", "running": {"spec": "a.toml"}})
    facts = gather_status(settings)
    assert (facts["state"], facts["running"]) == ("tuning", {"spec": "a.toml"})
    assert "last_state" not in facts
    spool.unlock()  # as the kernel does for a process that ends in any way
    facts = gather_status(settings)
    assert (facts["state"], facts["running"]) == ("not running", None)
    assert (facts["last_state"], facts["last_running"]) == ("tuning", {"spec": "a.toml"})


@pytest.mark.parametrize("served", [True, False])
def test_who_waits_without_a_daemon_is_told_so_at_once(settings: Settings, tmp_path: Path, served: bool) -> None:
    spec = tmp_path / "a.toml"
    spec.write_text('template = "matmul"\n')
    file = tmp_path / "tunerd.toml"
    file.write_text(f'state_dir = "{settings.state_dir}"\n')
    spool = Spool(settings.spool_dir)
    if served:
        spool.lock()
    command = [*TUNERD, "submit", "--wait", "--timeout", "0.3", str(spec), "--settings", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    first, *rest = done.stderr.splitlines()
    assert ("no daemon is running" in first) is not served
    assert "no answer within" in [first, *rest][-1]
    assert done.returncode == 1
    assert spool.fate("a.toml") is not None


def test_a_retrain_job_that_was_refused_shows_in_the_status(settings: Settings) -> None:
    assert gather_status(settings)["last_retrain"] is None
    report = run_retrain(settings)
    assert not report.promoted
    last = gather_status(settings)["last_retrain"]
    assert last["promoted"] is False
    assert last["reason"] == report.reason
    assert datetime.now(UTC) - datetime.fromisoformat(last["finished_at"]) < timedelta(minutes=1)
