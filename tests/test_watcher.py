"""The watcher shortens the wait; the scan needs no watcher."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest
from watchdog.observers.inotify import InotifyObserver

from tuner_daemon.storage.spool import Spool
from tuner_daemon.storage.watcher import Watcher


def test_a_dropped_spec_wakes_the_daemon(tmp_path: Path) -> None:
    spool, wake = Spool(tmp_path / "spool"), threading.Event()
    spec = tmp_path / "a.toml"
    spec.write_text("x = 1")
    with Watcher(spool.incoming, wake) as watcher:
        assert watcher.watching
        assert not wake.is_set()
        spool.submit(spec)
        assert wake.wait(5.0)
    assert not watcher.watching


def test_a_scan_does_not_wake_itself(tmp_path: Path) -> None:
    spool, wake = Spool(tmp_path), threading.Event()
    (spool.incoming / "a.toml").write_text("x = 1")
    with Watcher(spool.incoming, wake):
        for _ in range(3):
            spool.scan()
        assert not wake.wait(0.3)
        (spool.incoming / "b.toml").write_text("x = 1")  # negative control
        assert wake.wait(5.0)


def test_without_a_watcher_a_warning_is_all_that_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_instances_left(self: object) -> None:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr(InotifyObserver, "start", no_instances_left)
    spool = Spool(tmp_path)
    with caplog.at_level(logging.WARNING), Watcher(spool.incoming, threading.Event()) as watcher:
        assert not watcher.watching
        assert "inotify instance limit" in watcher.problem
        (spool.incoming / "a.toml").write_text("x = 1")
        deadline_s = time.monotonic() + 10
        while not (found := spool.scan()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
    assert [entry.name for entry in found] == ["a.toml"]
    assert "only scanned" in caplog.text


def test_a_folder_that_is_not_there_is_no_error_either(tmp_path: Path) -> None:
    with Watcher(tmp_path / "absent", threading.Event()) as watcher:
        assert watcher.problem
