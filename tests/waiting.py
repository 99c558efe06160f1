"""What other processes do takes time: tests wait for it, up to a bound far beyond what it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def wait_until(happened: Callable[[], object], *, within_s: float = 30.0) -> None:
    """Returns when ``happened()`` is true; fails the test if it is not within ``within_s`` seconds."""
    deadline_s = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline_s, f"it did not happen within {within_s:g} s"
        time.sleep(0.01)


def command_line(process: psutil.Process) -> str:
    """Empty for a process that has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""
