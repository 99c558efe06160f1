"""What the runners that use a worker have in common."""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner_daemon.errors import DeviceError, ExpressionError, KernelError, MissingPartError
from tuner_daemon.interfaces import Builder, Effort
from tuner_daemon.records.device import Clocks, DeviceInfo
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Ran, Timing
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.runners import edges, plan
from tuner_daemon.runners.child import Child, ChildDiedError, ChildFailedError, ChildSilentError
from tuner_daemon.runners.clocks import Keeper
from tuner_daemon.runners.devices import device_info

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0  # a driver may take this long to make a context on a machine with many devices
REFERENCE_TIMEOUT_S = 600.0
LONGEST_SILENCE_S = 30.0  # in a race, whose candidates have all run before
DISTURBED_WAITS_S = (0.5, 2.0, 8.0)  # before a disturbed measurement is repeated, and again
LONGEST_DISTURBED_S = 20.0  # no repetition starts later: a daemon that is asked to stop waits for the candidate
_KEPT_REFERENCES = 32


@dataclass(frozen=True)
class Planned:
    """An artifact with its request."""

    artifact: Artifact
    request: dict[str, Any]

    def failed(self, outcome: Outcome, detail: str) -> Failure:
        return Failure(self.artifact.config, outcome, detail)


class WorkerRunner:
    """Runs candidates in a worker; replaces it after any abnormal end, and believes the new one only after its canary
    has passed. ``builder`` builds references; it may be set after construction, before the first candidate."""

    kind = ""

    def __init__(self, builder: Builder | None, *, index: int, clock_policy: str, compiler: str = "") -> None:
        self._keeper = Keeper(clock_policy)
        self.waits_s: Sequence[float] = DISTURBED_WAITS_S
        self.builder = builder
        self.compiler = compiler  # for the device's record; may be set later, like the builder
        self._index = index
        self._child: Child | None = None
        self._device: DeviceInfo | None = None
        self._references: OrderedDict[str, Artifact | None] = OrderedDict()
        self._prepared: OrderedDict[str, None] = OrderedDict()  # problems that the worker keeps, the last used last
        self._edgeless: set[str] = set()  # small problems at which the reference has failed
        self.abnormal_ends = 0  # candidates that could not be launched, crashed, or were killed at their time limit
        self.canaries_passed = 0  # after such ends; each is followed by one before anything else is run
        self.workers_started = 0
        self.free_bytes = 0  # device memory, when the present worker started
        self._canary_due = False
        self.checked_by = ""  # "device" or "host", once a candidate has been run

    @property
    def device(self) -> DeviceInfo:
        """Raises MissingPartError if there is no such device or library, DeviceError if the device is broken."""
        if self._device is None:
            self._started()
        assert self._device is not None
        return replace(self._device, compiler=self.compiler)

    def device_for(self, spec: KernelSpec) -> DeviceInfo:
        del spec  # one device, whatever is asked
        return self.device

    @property
    def clock_mode(self) -> str:
        """ "locked" or "free": what a row measured now is expected to be marked with."""
        return self._keeper.mode

    def run(self, task: Task, artifact: Artifact, effort: Effort) -> Ran:
        """As the protocol says. A measurement that was disturbed is repeated after growing waits; its outcome is
        ``disturbed`` if none was left alone. Raises ClockError where the policy ``lock`` cannot be kept."""
        planned = self._plan(task, artifact)
        if isinstance(planned, Failure):
            return planned
        self._keeper.require()
        began_s, waits_s, times = time.monotonic(), iter(self.waits_s), 1
        while True:
            ran, disturbance = self._run_once(planned, effort)
            if not disturbance or not _is_timed(ran):
                return ran
            wait_s = next(waits_s, None)
            if wait_s is None or time.monotonic() - began_s + wait_s > LONGEST_DISTURBED_S:
                detail = f"disturbed, {times} times of {times}; the last time: {disturbance}"
                return Failure(ran.config, Outcome.DISTURBED, detail, clocks=ran.clocks)
            time.sleep(wait_s)
            times += 1

    def _run_once(self, planned: Planned, effort: Effort) -> tuple[Ran, str]:
        """The result, and what disturbed it."""
        self._prepare_edge(planned)
        self._prepare(planned.request["problem"])
        wanted = {
            "steps": effort.steps,
            "drop_above_s": effort.drop_above_s,
            "beat_s": effort.beat_s,
            "timeout_s": effort.timeout_s,
            "known": effort.known,
        }
        end: ChildFailedError | None = None
        with self._keeper.watch() as watch:
            try:
                reply = self._started().request(
                    "run", timeout_s=effort.timeout_s, candidate=planned.request, effort=wanted
                )
            except ChildFailedError as error:
                end = error
        if end is not None:
            self._discard()
            self._ended_abnormally()
        seen = self._keeper.judge(watch.looks)
        if end is not None:
            return replace(_end(planned, end), clocks=seen.clocks), seen.disturbance
        return self._ran(planned, reply, seen.clocks), seen.disturbance

    def race(self, task: Task, artifacts: Sequence[Artifact], blocks: int, timeout_s: float) -> list[Ran]:
        """As the protocol says. Where time runs out, all have fewer samples than ``blocks``, and equally many.
        A candidate that brings the worker down leaves the race, which is then run again without it."""
        results: dict[int, Ran] = {}
        planned: dict[int, Planned] = {}
        for number, artifact in enumerate(artifacts):
            item = self._plan(task, artifact)
            if isinstance(item, Failure):
                results[number] = item
            else:
                planned[number] = item
        while planned:
            results |= self._race(planned, blocks, timeout_s)
            planned = {number: item for number, item in planned.items() if number not in results}
        return [results[number] for number in range(len(artifacts))]

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
        self._forget()

    def settle(self) -> None:
        """Has the canary pass that is due after the last candidate's abnormal end. Raises DeviceError if it does not.
        Happens by itself before the next candidate."""
        self._started()

    def _race(self, planned: dict[int, Planned], blocks: int, timeout_s: float) -> dict[int, Ran]:
        """Results of all, or of the one that ended the race."""
        numbers = list(planned)
        for item in planned.values():
            self._prepare(item.request["problem"])
        self._keeper.require()
        with self._keeper.watch() as watch:
            try:
                reply = self._started().request(
                    "race",
                    timeout_s=timeout_s,
                    silence_s=min(timeout_s, LONGEST_SILENCE_S),
                    candidates=[planned[number].request for number in numbers],
                    blocks=blocks,
                    seconds=timeout_s,
                )
            except ChildFailedError as error:
                self._discard()
                self._ended_abnormally()
                culprit = numbers[error.candidate]
                return {culprit: _end(planned[culprit], error)}
        seen = self._keeper.judge(watch.looks)
        if seen.disturbance:
            logger.warning("the race was disturbed: %s", seen.disturbance)
            time.sleep(next(iter(self.waits_s), 0.0))
            detail = f"the race was disturbed: {seen.disturbance}"
            return {number: item.failed(Outcome.DISTURBED, detail) for number, item in planned.items()}
        clocks = seen.clocks
        if "culprit" in reply:
            culprit = numbers[reply["culprit"]]
            return {culprit: self._ran(planned[culprit], reply["failure"], clocks)}
        self._believe(reply)
        return {
            number: self._ran(planned[number], result, clocks)
            for number, result in zip(numbers, reply["results"], strict=True)
        }

    def _plan(self, task: Task, artifact: Artifact) -> Planned | Failure:
        reference = self._reference(task.spec)
        try:
            planned = Planned(artifact, plan.candidate(task, artifact, reference))
            planned.request["edge"] = edges.edge(task.spec, artifact, reference)
        except ExpressionError as error:
            return Failure(artifact.config, Outcome.LAUNCH_FAILED, f"an expression has no value: {error}")
        refusal = self._refusal(planned)
        return planned.failed(Outcome.LAUNCH_FAILED, refusal) if refusal else planned

    def _refusal(self, planned: Planned) -> str:
        """The static screen, for devices whose launches have limits."""
        del planned
        return ""

    def _reference(self, spec: KernelSpec) -> Artifact | None:
        """None where outputs are stored in files."""
        if spec.identity not in self._references:
            while len(self._references) >= _KEPT_REFERENCES:
                self._references.popitem(last=False)
            self._references[spec.identity] = self._built_reference(spec)
        return self._references[spec.identity]

    def _built_reference(self, spec: KernelSpec) -> Artifact | None:
        if self.builder is None:
            raise MissingPartError("this runner has no builder for references; pass one to it")
        config = plan.reference_config(spec)
        if config is not None:
            built = next(iter(self.builder.build(spec, [config])))
            if isinstance(built, Failure):
                raise KernelError(f"does not build: {built.detail}", file=spec.kernel.name, key="reference.config")
            return built
        if spec.language not in spec.kernel.reference.sources and spec.kernel.reference.arrays is not None:
            return None
        return self.builder.build_reference(spec)

    def _prepare_edge(self, planned: Planned) -> None:
        """Does without the small problem if the reference has no answer to it: the kernel's limits are wider than what
        it is made for."""
        edge = planned.request["edge"]
        if edge is None:
            return
        key = json.dumps(edge["problem"], sort_keys=True)
        if key not in self._edgeless:
            try:
                self._prepare(edge["problem"])
            except KernelError as error:
                logger.info("candidates are not checked with %s: the reference %s", edge["sizes"], error)
                self._edgeless.add(key)
        if key in self._edgeless:
            planned.request["edge"] = None

    def _prepare(self, problem: dict[str, Any]) -> None:
        """Has the expected outputs computed, apart from any candidate: a failure is the reference's.
        Raises KernelError."""
        child = self._started()
        key = json.dumps(problem, sort_keys=True)
        if key in self._prepared:
            self._prepared.move_to_end(key)
            return
        try:
            reply = child.request("prepare", timeout_s=REFERENCE_TIMEOUT_S, problem=problem, checks=self._checks())
        except ChildFailedError as error:
            self._replace()
            raise KernelError(f"cannot be run: {error.detail}", key="reference") from error
        if "error" in reply:
            if reply["fatal"]:
                self._replace()
            raise KernelError(f"cannot be run: {reply['error']}", key="reference")
        self.checked_by = reply["checked_by"]
        self._prepared[key] = None
        while len(self._prepared) > reply["kept"]:  # the others would be made anew in a candidate's time
            self._prepared.popitem(last=False)

    def _checks(self) -> str | None:
        """Path of the worker's own kernels, for devices that can compare by themselves."""
        return None

    def _started(self) -> Child:
        if self._child is not None and self._canary_due:
            try:
                self._canary_due = "error" in self._child.request("canary", timeout_s=START_TIMEOUT_S)
            except ChildFailedError:
                self._discard()
            if self._canary_due:
                self._discard()
            else:
                self.canaries_passed += 1
        if self._child is None:
            child = Child(self.kind, self._index)
            try:
                said = child.request("hello", timeout_s=START_TIMEOUT_S)
            except ChildFailedError as error:
                raise DeviceError(f"the worker for {self.kind} {self._index} does not start: {error.detail}") from error
            if "error" in said:
                child.kill()
                missing = said.get("missing", False)
                raise (MissingPartError if missing else DeviceError)(f"{self.kind} {self._index}: {said['error']}")
            self._child = child
            self._meet(said)
            self.workers_started += 1
            self.free_bytes = int(said.get("free_bytes", 0))
            self.canaries_passed += self._canary_due
            self._canary_due = False
        return self._child

    def _meet(self, said: dict[str, Any]) -> None:
        """Called with what a new worker says about the device."""
        if self._device is None:
            self._device = device_info(said)
        elif said["uuid"] != self._device.uuid:
            raise DeviceError(f"{self.kind} {self._index} is another device now: {said['name']} {said['uuid']}")

    def _ran(self, planned: Planned, reply: dict[str, Any], clocks: Clocks) -> Ran:
        config = planned.artifact.config
        self._believe(reply)
        if reply.get("outcome") == "ok":
            return Timing(
                config,
                tuple(reply["times_s"]),
                reply["warm_median_s"],
                reply["error_norm"],
                clocks,
                reply["occupancy"],
                device_s=reply.get("device_s", 0.0),
                stages_s=reply.get("stages_s", {}),
            )
        if reply["outcome"] in ("launch_failed", "crashed"):
            self._ended_abnormally()
        return Failure(
            config,
            Outcome(reply["outcome"]),
            reply["detail"],
            reply["error_norm"],
            clocks,
            device_s=reply.get("device_s", 0.0),
            stages_s=reply.get("stages_s", {}),
        )

    def _believe(self, reply: dict[str, Any]) -> None:
        """Ends a worker that says it is of no more use. Raises KernelError, DeviceError for what is no candidate's."""
        if reply.get("fatal"):
            self._discard()
        if "error" in reply:
            if reply["fatal"]:
                raise DeviceError(f"{self.kind} {self._index}: {reply['error']}")
            raise KernelError(f"cannot be run: {reply['error']}", key="reference")

    def _ended_abnormally(self) -> None:
        self.abnormal_ends += 1
        self._canary_due = True

    def _replace(self) -> None:
        """A device that is lost is no reference's fault. Raises DeviceError if there is no new worker to be had."""
        self._discard()
        self._started()

    def _discard(self) -> None:
        if self._child is not None:
            self._child.kill()
        self._forget()

    def _forget(self) -> None:
        self._child = None
        self._prepared.clear()


def _is_timed(ran: Ran) -> bool:
    """What a disturbed device can have spoilt: a wrong result is wrong at any clock."""
    return isinstance(ran, Timing) or ran.outcome is Outcome.TIMED_OUT


def _end(planned: Planned, error: ChildFailedError) -> Failure:
    if isinstance(error, ChildSilentError):
        return planned.failed(Outcome.TIMED_OUT, error.detail)
    assert isinstance(error, ChildDiedError)
    return planned.failed(Outcome.CRASHED, error.detail)
