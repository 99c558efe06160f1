"""The worker process as its parent sees it: requests with a deadline, and an end that leaves nothing behind."""

from __future__ import annotations

import json
import os
import secrets
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import tuner_daemon
from tuner_daemon.errors import DeviceError
from tuner_daemon.runners.scratch import LIMIT_BYTES, Scratch

KEPT_BYTES = 8192
"""How much of the end of a child's own output is kept for a failure's detail."""

_LONGEST_REPLY = 64 << 20
_KILL_S = 30.0
_CLOSE_S = 2.0
_SWEEP_S = 5.0
_LOOK_S = 1.0  # between looks at what a candidate writes


class ChildFailedError(Exception):
    """The child did not answer and is no more. ``candidate`` and ``stage`` are the last that it told of."""

    def __init__(self, what: str, stage: str, candidate: int, output: str) -> None:
        super().__init__(what)
        self.what, self.stage, self.candidate, self.output = what, stage, candidate, output

    @property
    def detail(self) -> str:
        words = f"{self.what} while {self.stage}" if self.stage else self.what
        return f"{words}\n{self.output}" if self.output else words


class ChildDiedError(ChildFailedError):
    """It ended by itself, by a signal or by an exit, or was killed for what it did."""


class ChildSilentError(ChildFailedError):
    """It was killed at the deadline."""


@dataclass
class _Progress:
    candidate: int = 0
    stage: str = ""


class Child:
    """One worker process. Starts it; ``close`` or ``kill`` ends it with everything that candidates have started."""

    def __init__(self, device: str, index: int) -> None:
        self._mark = secrets.token_hex(12)
        self._scratch, self._runs_host_code = Scratch(), device == "cpu"
        request_end, self._requests = os.pipe()
        self._replies, reply_end = os.pipe()
        self._process = subprocess.Popen(
            self._command(device, index, request_end, reply_end),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(request_end, reply_end),
            start_new_session=True,
            cwd=Path(tuner_daemon.__file__).parent.parent,
            env={**os.environ, "TMPDIR": str(self._scratch.folder)},
        )
        os.close(request_end)
        os.close(reply_end)
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._kept = b""
        self._unread = b""
        self._number = 0
        self._open = True
        for descriptor in (self._replies, self._output):
            os.set_blocking(descriptor, False)
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._replies, self._output, self._pidfd):
            self._selector.register(descriptor, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, op: str, *, timeout_s: float, silence_s: float | None = None, **payload: Any) -> dict[str, Any]:
        """The reply. Raises ChildDiedError or, after killing the child, ChildSilentError: when the time is up, or
        nothing has been heard for ``silence_s``. After either the child is gone."""
        self._number += 1
        self._kept = b""
        progress = _Progress()
        message = json.dumps({"id": self._number, "op": op, **payload}).encode() + b"\n"
        try:
            self._write(message)
            reply = self._reply(progress, time.monotonic() + timeout_s, silence_s)
        except TimeoutError:
            self.kill()
            raise ChildSilentError(
                f"no answer within {timeout_s:g} s", progress.stage, progress.candidate, self._said()
            ) from None
        except (BrokenPipeError, EOFError):
            raise self._death(progress) from None
        if self._runs_host_code:
            self._scratch.empty()
            if has_children(self.pid):
                raise self._death(progress, "left processes behind")
        return reply

    def close(self) -> None:
        """Lets the child end by itself, then makes sure."""
        if not self._open:
            return
        os.close(self._requests)
        self._requests = -1
        select.select([self._pidfd], [], [], _CLOSE_S)  # does not reap it: its number stays its own until it is killed
        self.kill()

    def kill(self) -> None:
        """Kills the process group, every descendant, and whatever carries the child's mark. Raises DeviceError if the
        process cannot be killed: it hangs in the driver."""
        if not self._open:
            return
        self._open = False
        kill_tree(self._process.pid, self._mark)
        try:
            self._process.wait(_KILL_S)
        except subprocess.TimeoutExpired as error:
            raise DeviceError(f"the worker {self._process.pid} cannot be killed: it hangs in the driver") from error
        finally:
            self._drain(self._output)
            self._release()
            self._scratch.remove()

    def _command(self, device: str, index: int, requests: int, replies: int) -> Sequence[str]:
        return (
            *(sys.executable, "-m", "tuner_daemon.worker", "--device", device, "--index", str(index)),
            *("--requests", str(requests), "--replies", str(replies), "--mark", self._mark),
            *("--folder", str(self._scratch.folder)),
        )

    def _write(self, message: bytes) -> None:
        while message:
            message = message[os.write(self._requests, message) :]

    def _reply(self, progress: _Progress, deadline: float, silence_s: float | None) -> dict[str, Any]:
        """Raises TimeoutError, EOFError, ChildDiedError for a child that writes too much."""
        heard = looked = time.monotonic()
        while True:
            until = deadline if silence_s is None else min(deadline, heard + silence_s)
            look = min(until, looked + _LOOK_S)
            ready = {key.fd for key, _ in self._selector.select(max(0.0, look - time.monotonic()))}
            if time.monotonic() >= looked + _LOOK_S:
                if self._scratch.is_too_large():
                    raise self._death(progress, f"had more than {LIMIT_BYTES >> 20} MiB in its temporary folder")
                looked = time.monotonic()
            self._drain(self._output)
            for message in self._messages():
                if message["id"] != self._number:
                    continue
                heard = time.monotonic()
                if "reply" in message:
                    return dict(message["reply"])
                progress.candidate, progress.stage = message["candidate"], message["stage"]
            if self._pidfd in ready:
                raise EOFError
            if time.monotonic() >= until:
                raise TimeoutError

    def _messages(self) -> list[dict[str, Any]]:
        """Whole lines that have arrived. Raises EOFError for what is no message: the child is not itself any more."""
        self._unread += self._available(self._replies)
        *lines, self._unread = self._unread.split(b"\n")
        if len(self._unread) > _LONGEST_REPLY:
            raise EOFError
        return [_message(line) for line in lines]

    def _drain(self, descriptor: int) -> None:
        self._kept = (self._kept + self._available(descriptor))[-KEPT_BYTES:]

    def _available(self, descriptor: int) -> bytes:
        """At most a megabyte, so that a child that prints without end cannot hold the parent here."""
        data = b""
        while len(data) < 1 << 20:
            try:
                part = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                break
            if not part:
                if descriptor in self._selector.get_map():
                    self._selector.unregister(descriptor)
                break
            data += part
        return data

    def _death(self, progress: _Progress, deed: str = "") -> ChildDiedError:
        self.kill()
        what = deed or ended(self._process.returncode)
        return ChildDiedError(what, progress.stage, progress.candidate, self._said())

    def _said(self) -> str:
        return self._kept.decode("utf-8", errors="replace").strip()

    def _release(self) -> None:
        self._selector.close()
        for descriptor in (self._requests, self._replies, self._pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        assert self._process.stdout is not None
        self._process.stdout.close()


def ended(returncode: int) -> str:
    """An exit status in words."""
    if returncode >= 0:
        return f"exited with status {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


def has_children(pid: int) -> bool:
    """Whether a process has any, orphans that it has adopted among them. Costs some microseconds."""
    with suppress(OSError):
        return any(file.read_bytes() for file in Path(f"/proc/{pid}/task").glob("*/children"))
    return False


def kill_tree(pid: int, mark: str) -> None:
    """Ends a worker and all that it has started, also what has left its session or lost its parent."""
    try:
        family = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    # A fork may have been under way: look again until nothing is left that carries the mark.
    deadline, left = time.monotonic() + _SWEEP_S, [*family, *_marked(mark)]
    while left and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=0.1)
        left = [p for p in _marked(mark) if p.pid != pid]


def _marked(mark: str) -> list[psutil.Process]:
    """Copies of the worker have its command line; programs that it started have its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and (
                mark in process.cmdline() or process.environ().get("TUNERD_WORKER_MARK") == mark
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _message(line: bytes) -> dict[str, Any]:
    """A reply or a sign of progress. Raises EOFError for anything else."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise EOFError from None
    whole = isinstance(message, dict) and "id" in message
    if whole and (isinstance(message.get("reply"), dict) or message.keys() >= {"candidate", "stage"}):
        return dict(message)
    raise EOFError
