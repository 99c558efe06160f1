"""The loop: one turn serves one spec. Start-up is recovery; a signal sets a flag; everything else is the engine's."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tuner_daemon.engine import Answer, Engine, job_of
from tuner_daemon.errors import (
    DeviceError,
    DiskFullError,
    InputError,
    JobInterruptedError,
    MissingPartError,
    TunerError,
    TuningError,
)
from tuner_daemon.events import tell
from tuner_daemon.progress import Progress
from tuner_daemon.queue import Queue
from tuner_daemon.records.spec import KernelSpec

logger = logging.getLogger(__name__)

SETTLING_S = 0.2
"""A spec that may still be being written is looked at again this soon."""
SCAN_SHARE = 0.25
"""Seconds that looking at incoming/ may take per second of serving, while the queue is not empty."""


class Claim(Protocol):
    """A spec that this daemon works on."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path: ...


class Spool(Protocol):
    """The folders a spec moves through; see storage.spool."""

    @property
    def unsettled(self) -> int: ...

    @property
    def left(self) -> int: ...

    def recover(self) -> None: ...

    def scan(self) -> Sequence[Any]: ...

    def claim(self, entry: Any) -> Any: ...

    def release(self, claimed: Any) -> None: ...

    def finish(self, claimed: Any, job: str) -> None: ...

    def fail(self, claimed: Any, reason: str) -> None: ...

    def hold(self, claimed: Any, reason: str) -> None: ...

    def counts(self) -> Mapping[str, int]: ...


@dataclass
class Daemon:
    """Parts are passed in; ``serve`` returns when ``stop`` is set and the current round is in the log."""

    spool: Spool
    engine: Engine
    load: Callable[[Path], KernelSpec]
    priority_of: Callable[[Path], int]
    allowed: Callable[[KernelSpec], str | None]  # a reason to refuse, or None
    publish_status: Callable[[Mapping[str, Any]], None]
    notify: Callable[[str], None] = lambda _: None
    poll_s: float = 0.5
    stop: threading.Event = field(default_factory=threading.Event)
    reload: threading.Event = field(default_factory=threading.Event)
    wake: threading.Event = field(default_factory=threading.Event)
    _queue: Queue = field(init=False)
    _look_at_s: float = 0.0  # monotonic; until then the queue is served without looking at the folder
    _pending: list[Callable[[], None]] = field(default_factory=list)
    _is_full: bool = False

    def __post_init__(self) -> None:
        self._queue = Queue(self.priority_of)

    def serve(self) -> None:
        """Returns when ``stop`` is set, or ``reload`` between two jobs. Raises DeviceError when the device is broken:
        the service manager starts the daemon anew. A full disk is waited for, at the start as well."""
        self._pending.append(self.spool.recover)
        self.notify("READY=1")
        self._idle()
        while not (self.stop.is_set() or self.reload.is_set()):
            self.notify("WATCHDOG=1")
            if not self._turn():
                self.wake.wait(SETTLING_S if self.spool.unsettled else self.poll_s)
                self.wake.clear()
        if self.stop.is_set():
            self.notify("STOPPING=1")
            self._publish({"state": "stopped"})

    def _turn(self) -> bool:
        """A turn that a full disk turns into a pause: nothing is taken until what is pending has been written."""
        try:
            while self._pending:
                self._pending[0]()
                del self._pending[0]
            served = self.serve_one()
        except DiskFullError as error:
            if not self._is_full:
                tell(logger, logging.ERROR, "disk_full", "the disk is full; waiting for space: %s", error)
            self._is_full = True
            self.notify("STATUS=waiting for disk space")
            return False
        if self._is_full:
            tell(logger, logging.INFO, "disk_free", "there is space again")
            self._is_full = False
            self._idle()
        return served

    def serve_one(self) -> bool:
        """One turn: the most urgent spec from ``incoming/`` to its end. False if nothing waits."""
        self._look()
        if not self._queue:
            return False
        claimed = self.spool.claim(self._queue.pop())
        if claimed is None:  # somebody took it away between the scan and now
            return True
        self._serve(claimed)
        self._idle()
        return True

    def _look(self) -> None:
        """Scans, unless that would take a large share of the time: in a full folder a scan takes longer than a job."""
        began_s = time.monotonic()
        if self._queue and began_s < self._look_at_s:
            return
        left = self.spool.left
        self._queue.replace(self.spool.scan())
        if self.spool.left and not left:
            logger.warning("%d specs stay in incoming/: an owner has more than queue_limit there", self.spool.left)
        ended_s = time.monotonic()
        self._look_at_s = ended_s + (ended_s - began_s) / SCAN_SHARE

    def _serve(self, claimed: Claim) -> None:
        began_s = time.monotonic()
        try:
            spec = self.load(claimed.path)
            if reason := self.allowed(spec):
                self._tell_end(claimed, logging.WARNING, "failed", reason)
                self._settle(partial(self.spool.fail, claimed, reason))
                return
            self._tell_begin(claimed, spec)
            answer = self.engine.answer(spec, observe=self._observer(claimed.name), stop=self.stop)
        except (InputError, TuningError, MissingPartError) as error:
            self._tell_end(claimed, logging.WARNING, "failed", str(error))
            self._settle(partial(self.spool.fail, claimed, str(error)))
        except JobInterruptedError as pause:
            self._tell_end(claimed, logging.INFO, "interrupted", f"back to the queue: {pause}")
            self._settle(partial(self.spool.release, claimed))
        except DiskFullError as pause:
            self._tell_end(claimed, logging.INFO, "interrupted", f"back to the queue: {pause}")
            self._settle(partial(self.spool.release, claimed))
            raise
        except DeviceError:
            logger.exception("%s: the device is broken", claimed.name)
            raise
        except TunerError:  # the log or the spool cannot be written: only a restart is safe
            raise
        except Exception:
            # A fault of ours, or of a part, that this spec brings out. The next spec is not to pay for it, and this one
            # is not to be tried again before somebody has looked.
            logger.exception("%s: not foreseen; it is in hold/", claimed.name)
            self._tell_end(claimed, logging.ERROR, "held", "see the line before")
            self._settle(partial(self.spool.hold, claimed, f"not foreseen: {traceback.format_exc(limit=-1)}"))
        else:
            self._finish(claimed, answer, time.monotonic() - began_s)

    def _finish(self, claimed: Claim, answer: Answer, wall_s: float) -> None:
        how = "answered from what is known" if answer.known else f"tuned in {wall_s:.1f} s"
        verdict = answer.result["verdict"]
        sentence = "%s: job %s %s: %s"
        fields = {"spec": claimed.name, "job": answer.job, "verdict": verdict, "known": answer.known, "wall_s": wall_s}
        tell(logger, logging.INFO, "job", sentence, claimed.name, answer.job, how, verdict, **fields)
        self._settle(partial(self.spool.finish, claimed, answer.job))

    def _tell_begin(self, claimed: Claim, spec: KernelSpec) -> None:
        job, kernel = job_of(spec), spec.kernel.name
        fields = {"spec": claimed.name, "job": job, "kernel": kernel, "device": spec.device.kind}
        tell(logger, logging.INFO, "taken", "%s: job %s taken up", claimed.name, job, **fields)

    def _tell_end(self, claimed: Claim, level: int, verdict: str, reason: str) -> None:
        fields = {"spec": claimed.name, "verdict": verdict, "reason": reason}
        tell(logger, level, "job", "%s: %s: %s", claimed.name, verdict, reason, **fields)

    def _settle(self, move: Callable[[], None]) -> None:
        """Moves a spec on; on a full disk the move stays pending, and the turn ends."""
        try:
            move()
        except DiskFullError:
            self._pending.append(move)
            raise

    def _observer(self, name: str) -> Callable[[Progress], None]:
        def observe(progress: Progress) -> None:
            self.notify("WATCHDOG=1")
            state = f"{name}: {progress.phase}, {progress.measured} of {progress.budget} measured"
            self.notify(f"STATUS={state}")
            running = {**asdict(progress), "speedup": progress.speedup, "spec": name}
            self._publish({"state": "tuning", "running": running, "left_in_incoming": self.spool.left})

        return observe

    def _idle(self) -> None:
        self.notify("STATUS=waiting for specs")
        self._publish({"state": "waiting", "running": None, "left_in_incoming": self.spool.left})

    def _publish(self, facts: Mapping[str, Any]) -> None:
        """On a full disk the status stays as it was: no job ends, and no daemon, because nobody can be told of it."""
        with suppress(DiskFullError):
            self.publish_status(facts)
