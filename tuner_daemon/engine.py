"""From a spec to its stored answer: known already, or tuned now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tuner_daemon.measuring import Parts
from tuner_daemon.records.measurement import Measurement
from tuner_daemon.records.result import Result
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.session import DEFAULT_PLAN, Observer, Plan, tune


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
    lease: Callable[[DeviceRequest], AbstractContextManager[None]]
    plan: Plan = DEFAULT_PLAN

    def answer(
        self, spec: KernelSpec, *, observe: Observer = lambda _: None, stop: threading.Event | None = None
    ) -> Answer:
        """Raises what ``tune`` raises, KernelError for an empty space, MissingPartError for an absent device."""
        job = job_of(spec)
        if not spec.options.force and (stored := self.results.read(job)) and covers(stored, spec):
            return Answer(job, stored, known=True)
        space = ParamSpace(spec.kernel, spec.problem)
        with self.lease(spec.device):
            parts = self.parts_for(spec.device)
            task = Task(spec, space, parts.runner.device_for(spec))
            result = tune(task, job, parts, plan=self.plan, observe=observe, stop=stop)
        self.results.write(result, parts.log.measurements(job))
        stored = self.results.read(job)
        assert stored is not None
        return Answer(job, stored, known=False)


def job_of(spec: KernelSpec) -> str:
    """The same question is the same job, whoever asks it and under whatever file name."""
    return f"{spec.kernel.name}-{spec.identity[:12]}"


def covers(stored: Mapping[str, Any], spec: KernelSpec) -> bool:
    """Whether a stored result spent at least the budget that is asked for now; more is a reason to go on."""
    spent = stored["spec"]["budget"]
    return bool(spent["measurements"] >= spec.budget.measurements and spent["seconds"] >= spec.budget.seconds)
