from __future__ import annotations

import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until
from tuner_daemon.builders.processes import OUTPUT_END_BYTES, CompilerRun, Ended, Limits


def run(folder: Path, script: str, **limits: float) -> Ended:
    bounds = Limits(
        limits.get("timeout_s", 20.0),
        int(limits.get("memory_bytes", 1 << 30)),
        int(limits.get("output_bytes", 1 << 20)),
    )
    return CompilerRun().run(["/bin/sh", "-c", script], folder=folder, limits=bounds)


def running(marker: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if marker in (p.info["cmdline"] or [])]


def wait_for(marker: str) -> None:
    wait_until(lambda: bool(running(marker)))


def wait_for_the_end_of(marker: str) -> None:
    """A killed process takes a moment to go: the kernel says that the signal was sent, not that it was obeyed."""
    wait_until(lambda: not running(marker))


def test_output_and_status_come_back(tmp_path: Path) -> None:
    ended = run(tmp_path, "echo out; echo err >&2; exit 3")
    assert (ended.returncode, ended.output, ended.timed_out) == (3, "out\nerr\n", False)


def test_a_group_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    started = time.monotonic()
    ended = run(tmp_path, "sleep 31.4151 & sleep 31.4151", timeout_s=0.5)
    assert ended.timed_out
    assert time.monotonic() - started < 20.0
    wait_for_the_end_of("31.4151")


def test_children_left_behind_do_not_outlive_the_compiler(tmp_path: Path) -> None:
    started = time.monotonic()
    ended = run(tmp_path, "sleep 31.4152 & echo started; exit 0")
    assert (ended.returncode, ended.output) == (0, "started\n")
    assert time.monotonic() - started < 20.0
    wait_for_the_end_of("31.4152")


def test_a_flood_of_messages_ends_at_the_output_limit(tmp_path: Path) -> None:
    ended = run(tmp_path, "echo first; yes flood", output_bytes=200_000)
    assert ended.returncode != 0
    assert ended.output.startswith("first\n")
    assert "[...]" in ended.output
    assert len(ended.output) < 2 * OUTPUT_END_BYTES + 100
    assert (tmp_path / "messages.log").stat().st_size <= 200_000


def test_memory_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    greedy = "exec python3 -c 'print(len(bytearray(600 << 20)))'"
    assert run(tmp_path, greedy, memory_bytes=400 << 20).returncode != 0
    assert run(tmp_path, greedy, memory_bytes=2 << 30).output == f"{600 << 20}\n"


def test_the_environment_holds_nothing_of_the_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNERD_SECRET", "1")
    names = {line.split("=")[0] for line in run(tmp_path, "exec /usr/bin/env").output.splitlines()}
    assert names - {"PWD", "_", "SHLVL", "OLDPWD"} == {"PATH", "LC_ALL", "TMPDIR"}


def test_a_run_can_be_stopped_from_another_thread(tmp_path: Path) -> None:
    compiler, ended = CompilerRun(), list[Ended]()
    command = ["/bin/sh", "-c", "sleep 31.4153; true"]
    thread = threading.Thread(target=lambda: ended.append(compiler.run(command, folder=tmp_path, limits=Limits())))
    thread.start()
    wait_for("31.4153")
    compiler.stop()
    thread.join(5.0)
    assert ended[0].returncode < 0
    assert not ended[0].timed_out
    wait_for_the_end_of("31.4153")


def test_a_stopped_run_starts_nothing(tmp_path: Path) -> None:
    compiler = CompilerRun()
    compiler.stop()
    assert compiler.run(["/bin/touch", "ran"], folder=tmp_path, limits=Limits()).returncode != 0
    assert not (tmp_path / "ran").exists()
    assert CompilerRun().run(["/bin/touch", "ran"], folder=tmp_path, limits=Limits()).returncode == 0
    assert (tmp_path / "ran").exists()
