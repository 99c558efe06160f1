"""From a spec to its stored answer: known already, or tuned now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tuner_daemon.errors import JobInterruptedError
from tuner_daemon.measuring import Parts
from tuner_daemon.plan import DEFAULT_PLAN, Plan
from tuner_daemon.progress import Observer, Progress
from tuner_daemon.records.device import DEVICE_IDENTITY, DeviceInfo
from tuner_daemon.records.measurement import Measurement
from tuner_daemon.records.result import Result
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.session import tune

LEASE_POLL_S = 0.5


class Results(Protocol):
    """Where answers are kept."""

    def read(self, job: str) -> dict[str, Any] | None: ...

    def write(self, result: Result, rows: list[Measurement]) -> object: ...


@dataclass(frozen=True)
class Answer:
    """``known``: it was answered from an earlier job, nothing was measured."""

    job: str
    result: Mapping[str, Any]  # result.json
    known: bool


@dataclass
class Engine:
    """Answers specs one at a time. ``parts_for`` gives the parts for a device, with the models of the moment."""

    results: Results
    parts_for: Callable[[DeviceRequest], Parts]
    lease: Callable[[DeviceRequest, Callable[[str], None]], AbstractContextManager[None]]
    plan: Plan = DEFAULT_PLAN

    def answer(
        self, spec: KernelSpec, *, observe: Observer = lambda _: None, stop: threading.Event | None = None
    ) -> Answer:
        """Raises what ``tune`` raises, KernelError for an empty space, MissingPartError for an absent device."""
        job, stop = job_of(spec), stop or threading.Event()
        parts = self.parts_for(spec.device)
        device = parts.runner.device_for(spec)
        if not spec.options.force and (stored := self.results.read(job)) and covers(stored, spec, device):
            return Answer(job, stored, known=True)
        task = Task(spec, ParamSpace(spec.kernel, spec.problem), device)
        with self.lease(spec.device, partial(self._wait, spec, observe, stop)):
            result = tune(task, job, parts, plan=self.plan, observe=observe, stop=stop)
        self.results.write(result, parts.log.measurements(job))
        stored = self.results.read(job)
        assert stored is not None
        return Answer(job, stored, known=False)

    def _wait(self, spec: KernelSpec, observe: Observer, stop: threading.Event, holder: str) -> None:
        """Another process has the device."""
        waiting_for = f"waiting for {spec.device.kind} {spec.device.index}, used by process {holder}"
        observe(Progress(waiting_for, 0, 0, 0, spec.budget.measurements, 0.0))
        if stop.wait(LEASE_POLL_S):
            raise JobInterruptedError(f"{job_of(spec)}: stopped while {waiting_for}")


def job_of(spec: KernelSpec) -> str:
    """The same question is the same job, whoever asks it and under whatever file name."""
    return f"{spec.kernel.name}-{spec.identity[:12]}"


def covers(stored: Mapping[str, Any], spec: KernelSpec, device: DeviceInfo) -> bool:
    """Whether a stored result answers the spec: it is this device's, with this driver and compiler, and it spent at
    least the budget that is asked for now."""
    spent, was = stored["spec"]["budget"], stored["device"]
    same = all(was.get(name) == getattr(device, name) for name in DEVICE_IDENTITY)
    return bool(same and spent["measurements"] >= spec.budget.measurements and spent["seconds"] >= spec.budget.seconds)
