"""A stand-in for the service manager: what systemd does with ``Type=notify``, ``WatchdogSec=``, ``Restart=on-failure``,
``RestartPreventExitStatus=2``, ``KillMode=mixed`` and ``NotifyAccess=main``, as systemd.service(5) and sd_notify(3)
describe it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.conftest import ROOT
from tests.waiting import wait_until

MARK = "SOAK_SERVICE"
RESTART_S = 0.1
STOP_S = 40.0  # TimeoutStopSec=
ABORT_S = 5.0  # TimeoutAbortSec=, shorter than systemd's


@dataclass
class Supervisor:
    """Keeps one command running. What it starts carries a mark in its environment, which stands for the control
    group. Use as a context manager; leaving it stops the service."""

    command: Sequence[str]
    folder: Path
    watchdog_s: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)  # of lives that ended: success, exit-code, signal or watchdog
    statuses: list[int] = field(default_factory=list)  # of the same
    stops_s: list[float] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    ignored: int = 0  # notifications of other processes than the main one

    def __post_init__(self) -> None:
        self.mark = secrets.token_hex(8)
        self.stderr = self.folder / "stderr"
        self._ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ears.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._ears.bind(str(self.folder / "notify"))
        self._ears.settimeout(0.02)
        self._wanted, self._closing = threading.Event(), threading.Event()
        self._ready, self._lock = threading.Event(), threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self._fed_s = 0.0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.start()
        except AssertionError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._wanted.clear()
        self._closing.set()
        self._thread.join()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._sweep()
        self._ears.close()

    # -- what an administrator does ----------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when the service is ready."""
        self._wanted.set()
        self.wait_ready()

    def wait_ready(self) -> None:
        wait_until(lambda: self._ready.is_set() or not self._wanted.is_set(), within_s=120)
        assert self._ready.is_set(), self.stderr.read_text()[-2000:]

    def stop(self) -> int:
        """SIGTERM to the main process, SIGKILL after STOP_S, and to what it leaves. The exit status."""
        assert self.process is not None
        self._wanted.clear()
        began_s, process = time.monotonic(), self.process
        self.signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
        self.stops_s.append(time.monotonic() - began_s)
        wait_until(lambda: self.process is None)
        return self.statuses[-1]

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    # -- what is left ------------------------------------------------------------------------------------------

    def marked(self) -> list[psutil.Process]:
        """The control group: every process that lives and has the mark, or works on a file of this test (compilers run
        with an empty environment)."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                alive = process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid()
                if alive and (process.environ().get(MARK) == self.mark or self._works_here(process)):
                    found.append(process)
        return found

    def _works_here(self, process: psutil.Process) -> bool:
        return any(word.startswith(f"{self.folder}/") for word in process.cmdline())

    # -- the loop ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self._listen()
            if self.process is None:
                if self._wanted.is_set():
                    self._spawn()
            elif (code := self.process.poll()) is not None:
                self._ended(code, "success" if code == 0 else "exit-code" if code > 0 else "signal")
            elif self.watchdog_s is not None and time.monotonic() - self._fed_s > self.watchdog_s:
                self._abort()

    def _spawn(self) -> None:
        environment = {
            **os.environ,
            **self.environment,
            MARK: self.mark,
            "NOTIFY_SOCKET": str(self.folder / "notify"),
        }
        if self.watchdog_s is not None:
            environment["WATCHDOG_USEC"] = str(int(self.watchdog_s * 1e6))
        self._ready.clear()
        with self.stderr.open("ab") as stderr:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr
            )
        self._fed_s = time.monotonic() + 60.0  # until it is ready another limit holds: TimeoutStartSec=

    def _listen(self) -> None:
        try:
            data, ancillary, _, _ = self._ears.recvmsg(4096, socket.CMSG_SPACE(12))
        except TimeoutError:
            return
        sender = next((struct.unpack("3i", d)[0] for _, kind, d in ancillary if kind == socket.SCM_CREDENTIALS), 0)
        if self.process is None or sender != self.process.pid:
            self.ignored += 1
            return
        for line in data.decode().splitlines():
            self.heard.append(line)
            if line == "READY=1":
                self._ready.set()
            if line in ("WATCHDOG=1", "READY=1"):
                self._fed_s = time.monotonic()

    def _abort(self) -> None:
        """As systemd does: SIGABRT, and SIGCONT so that a stopped process takes it; SIGKILL if it does not."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGABRT)
            self.process.send_signal(signal.SIGCONT)
        try:
            code = self.process.wait(ABORT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._ended(code, "watchdog")

    def _ended(self, code: int, result: str) -> None:
        self._sweep()
        self._ready.clear()
        self.results.append(result)
        self.statuses.append(code)
        if code in (0, 2):
            self._wanted.clear()
        self.process = None
        time.sleep(RESTART_S)

    def _sweep(self) -> None:
        """KillMode=mixed: what is left of the control group is killed."""
        deadline_s = time.monotonic() + 10.0
        while (left := self.marked()) and time.monotonic() < deadline_s:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=0.2)
