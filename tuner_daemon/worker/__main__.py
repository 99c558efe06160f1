"""``python -m tuner_daemon.worker --device cpu|cuda --index N --requests FD --replies FD``

JSON lines over two dedicated pipes, so that a candidate which prints cannot disturb them. Requests::

    {"id": 1, "op": "hello"}          -> fields of a DeviceInfo, and free_bytes of device memory, after the canary
    {"id": 2, "op": "prepare", "problem": {…}, "checks": "….cubin"}
        -> {"sets": 7, "checked_by": "device", "kept": 1}, with how many problems are kept
    {"id": 3, "op": "run", "candidate": {…}, "effort": {…}}               -> a timing or a failure
    {"id": 4, "op": "race", "candidates": […], "blocks": 30, "seconds": 60} -> {"results": […]} or {"culprit": …}
    {"id": 5, "op": "canary"}                                             -> {}

``checks`` is checks.cu, built for the device, or null: then this process compares, and every array moves to it.
A reply is ``{"id": …, "reply": {…}}``, where ``{"error": …, "fatal": …}`` says what went wrong; before it come notes,
``{"id": …, "candidate": 0, "stage": "timing"}``, which tell whom to blame if there never is a reply. After a reply
that says ``fatal`` the child is of no more use.
The child ends when its request pipe is closed: no child outlives its parent, whatever a candidate is doing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import queue
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tuner_daemon.worker import harness
from tuner_daemon.worker.device import BrokenError, Device, NoMemoryError, RefusedError
from tuner_daemon.worker.device_checks import DeviceChecks
from tuner_daemon.worker.messages import parse_candidate, parse_problem
from tuner_daemon.worker.workspace import ReferenceFailedError, Workspaces

_LARGEST_FILE_BYTES = 256 << 20
_PR_SET_CHILD_SUBREAPER = 36


class Worker:
    """Answers requests, one at a time."""

    def __init__(self, device: Device, replies: int) -> None:
        self._device, self._replies = device, replies
        self._workspaces = Workspaces(device)
        self._pid = os.getpid()

    def answer(self, request: dict[str, Any]) -> None:
        try:
            reply = self._reply(request)
        except BrokenError as error:
            reply = {"error": str(error), "fatal": True}
        except (ReferenceFailedError, NoMemoryError) as error:
            reply = {"error": str(error), "fatal": False}
        self._send({"id": request["id"], "reply": reply})

    def _reply(self, request: dict[str, Any]) -> Any:
        def note(candidate: int, stage: str) -> None:
            self._send({"id": request["id"], "candidate": candidate, "stage": stage})

        if request["op"] == "hello":
            self._device.canary()
            return self._device.describe() | {"free_bytes": self._device.free_bytes()}
        if request["op"] == "canary":
            self._device.canary()
            return {}
        if request["op"] == "prepare":
            self._use_checks(request.get("checks"))
            sets = self._workspaces.of(parse_problem(request["problem"])).sets
            checked_by = "device" if self._workspaces.checks else "host"
            return {"sets": len(sets), "checked_by": checked_by, "kept": self._workspaces.count}
        if request["op"] == "run":
            candidate = parse_candidate(request["candidate"])
            return harness.run(self._workspaces, self._device, candidate, request["effort"], note)
        if request["op"] == "race":
            candidates = [parse_candidate(c) for c in request["candidates"]]
            race = harness.Race(self._workspaces, self._device, candidates, note)
            return race.run(request["blocks"], request["seconds"])
        return {"error": f"unknown request {request['op']}", "fatal": True}

    def _use_checks(self, binary: str | None) -> None:
        """A device that cannot compare by itself is compared for."""
        if binary is not None and self._workspaces.checks is None:
            with suppress(RefusedError):
                self._workspaces.checks = DeviceChecks(self._device, Path(binary))

    def _send(self, message: dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # a candidate forked, and this is the copy
        send(self._replies, message)


def send(descriptor: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def requests(descriptor: int) -> Iterator[dict[str, Any]]:
    """Requests in order. A thread reads them, and ends the process with the pipe: also while a candidate hangs."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        with os.fdopen(descriptor, "rb") as pipe:
            for line in pipe:
                lines.put(line)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield json.loads(lines.get())


def open_device(kind: str, index: int) -> Device:
    if kind == "cuda":
        from tuner_daemon.worker.cuda_device import CudaDevice

        return CudaDevice(index)
    from tuner_daemon.worker.cpu_device import CpuDevice

    return CpuDevice(index)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tuner_daemon.worker")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--replies", type=int, required=True)
    parser.add_argument("--mark", default="", help="finds what a candidate has started, wherever it went")
    parser.add_argument("--folder", default="/", help="where candidates may write")
    options = parser.parse_args()
    # Orphans of candidates become this process's children, so that whoever kills it finds them.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # where memory runs out, this process is the first to go, and not the daemon
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.putenv("TUNERD_WORKER_MARK", options.mark)
    if options.device == "cpu":  # a driver may have reasons for large files
        resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE_BYTES, _LARGEST_FILE_BYTES))
    os.chdir(options.folder)
    inbox = requests(options.requests)
    try:
        device = open_device(options.device, options.index)
    except (ImportError, BrokenError) as error:
        refusal = {"error": str(error), "fatal": True, "missing": isinstance(error, ImportError)}
        send(options.replies, {"id": next(inbox)["id"], "reply": refusal})
        return
    worker = Worker(device, options.replies)
    for request in inbox:
        worker.answer(request)


if __name__ == "__main__":
    main()
