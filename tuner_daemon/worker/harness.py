"""Check, time, check again: what is done to one candidate, or to several that race.

Cold times: before every sample the outputs are poisoned, inout arguments restored and the caches flushed, and the
buffers rotate. Launches shorter than the device's ``short_s`` are timed several at a time over rotating buffers
(never where an argument is inout: it would accumulate), so that launch overhead is not what is ranked.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from tuner_daemon.worker.checking import describe, judge
from tuner_daemon.worker.device import BrokenError, Call, Device, NoMemoryError, RefusedError
from tuner_daemon.worker.kept import Kept
from tuner_daemon.worker.ladder import sampled
from tuner_daemon.worker.messages import Candidate
from tuner_daemon.worker.workspace import FEW_SETS, Slot, Workspace, Workspaces, fill_constants

T = TypeVar("T")

Note = Callable[[int, str], None]
"""Called with the candidate's number and what is about to be done to it."""

WARM_LAUNCHES = 3
LONG_LAUNCH_S = 1e-3
SLOW_LAUNCH_S = 0.25  # no use warming up for longer launches
TIME_SHARE = 0.5  # of the time limit; sampling stops there with what it has
RACE_TIME_SHARE = 0.8
LONGEST_BATCH = 32


class FailedError(Exception):
    """The candidate's end, with the outcome's name."""

    def __init__(self, outcome: str, detail: str, *, error_norm: float | None = None, fatal: bool = False) -> None:
        super().__init__(detail)
        self.outcome, self.detail, self.error_norm, self.fatal = outcome, detail, error_norm, fatal

    def reply(self) -> dict[str, Any]:
        norm = self.error_norm if self.error_norm is not None and math.isfinite(self.error_norm) else None
        return {"outcome": self.outcome, "detail": self.detail, "error_norm": norm, "fatal": self.fatal}


class Trial:
    """One candidate on the device. Every method raises FailedError."""

    def __init__(self, device: Device, workspace: Workspace, candidate: Candidate) -> None:
        self._device, self._workspace, self._candidate = device, workspace, candidate
        self._calls: dict[int, Call] = {}
        self._batch = 1
        self.error_norm = 0.0
        self._checked_s: list[float] = []
        self.warm_median_s: float | None = None
        self.device_s = 0.0  # of work that this candidate has given to the device
        self._last: tuple[int, Slot] | None = None
        self._loaded = _on_device(lambda: device.load(candidate.program))
        if workspace.sets:
            fill_constants(self._loaded, workspace.problem, workspace.sets[0].inputs)

    def close(self) -> None:
        self._loaded.unload()

    @property
    def occupancy(self) -> float | None:
        return self._loaded.occupancy

    @property
    def first_launch_s(self) -> float:
        """The shortest of the launches that were checked."""
        return min(self._checked_s, default=math.inf)

    def check(self, number: int) -> None:
        """Runs input set ``number`` and compares what it gave, what it was given, and what lies around both."""
        index, slot = self._workspace.loaded(number)
        slot.reset()
        call = self._call(index)
        self._checked_s.append(self._time([call], cold=False))
        self._verify(number, slot)

    def check_all(self, slow_s: float = math.inf) -> None:
        """Every input set; only the first few for a candidate whose launch takes longer than ``slow_s``."""
        for number in range(len(self._workspace.sets)):
            if number < FEW_SETS or self.first_launch_s < slow_s:
                self.check(number)

    def warm_up(self) -> None:
        """At least three launches, and more until the device is warm; the median of the last is the warm time.
        Of long launches, those that were checked count: what is in the caches makes little difference to them."""
        times = list(self._checked_s) if self.first_launch_s > LONG_LAUNCH_S else []
        index, slot = self._workspace.loaded(0)
        slot.reset()
        calls = [self._call(index)]
        while len(times) < WARM_LAUNCHES or self._device.warm_up_s > 0.0:
            times.append(self._time(calls, cold=False))
            if times[-1] > SLOW_LAUNCH_S:
                break
        self.warm_median_s = statistics.median(times[-WARM_LAUNCHES:])
        self._choose_batch(self.warm_median_s)

    def sample(self, number: int) -> float:
        """One cold sample on input set ``number``, in seconds per launch."""
        calls: list[Call] = []
        for offset in reversed(range(self._batch)):
            index, slot = self._workspace.loaded(number + offset % len(self._workspace.slots))
            if offset < len(self._workspace.slots):
                slot.reset()
            calls.append(self._call(index))
        self._last = (number, slot)
        return max(self._time(calls, cold=True), 1e-9)

    def check_last(self) -> None:
        """What the last timed launch left."""
        assert self._last is not None
        self._verify(*self._last)

    def check_floor(self, times_s: Sequence[float]) -> None:
        median_s = statistics.median(times_s)
        if median_s < self._candidate.floor_s:
            raise FailedError(
                "disturbed",
                f"faster than the device can be: {median_s:.3g} s, at least {self._candidate.floor_s:.3g} s are needed",
                error_norm=self.error_norm,
            )

    def _time(self, calls: Sequence[Call], *, cold: bool) -> float:
        """Seconds per launch."""
        launch_s = _on_device(lambda: self._device.time(calls, cold=cold))
        self.device_s += launch_s * len(calls)
        return launch_s

    def _call(self, index: int) -> Call:
        if index not in self._calls:
            arguments = self._workspace.slots[index].passed(self._candidate.problem.arguments)
            self._calls[index] = self._loaded.bind(arguments)
        return self._calls[index]

    def _choose_batch(self, launch_s: float) -> None:
        accumulates = any(a.kind == "inout" for a in self._candidate.problem.arrays)
        if launch_s < self._device.short_s and not accumulates:
            self._batch = min(LONGEST_BATCH, max(2, math.ceil(2 * self._device.short_s / max(launch_s, 1e-6))))

    def _verify(self, number: int, slot: Slot) -> None:
        broken = _on_device(slot.broken_guard)
        if broken:
            raise FailedError("wrong_result", f"wrote out of bounds of {broken}", fatal=self._device.fragile)
        for expected in self._workspace.sets[number % len(self._workspace.sets)].expected.values():
            self._verify_output(expected, slot)
        changed = _on_device(slot.changed_input)
        if changed:
            raise FailedError("wrong_result", f"changed its input {changed}")

    def _verify_output(self, expected: Kept, slot: Slot) -> None:
        array, allowed = expected.array, self._workspace.allowed
        verdict = judge(_on_device(lambda: expected.sums(slot.buffers[array.name])), array, allowed)
        if not verdict.right:
            words = describe(array, expected.values(), slot.output(array), verdict, allowed)
            raise FailedError("wrong_result", words, error_norm=verdict.error_norm)
        self.error_norm = max(self.error_norm, verdict.error_norm)

    def verify_kept(self) -> None:
        """That the candidate has not written, far out of bounds, over what it and all others are compared with."""
        if not _on_device(self._workspace.intact):
            raise FailedError("wrong_result", "wrote out of bounds, over what outputs are compared with", fatal=True)


def _on_device(action: Callable[[], T]) -> T:
    try:
        return action()
    except (RefusedError, NoMemoryError) as error:
        raise FailedError("launch_failed", str(error)) from error
    except BrokenError as error:
        raise FailedError("crashed", str(error), fatal=True) from error


def run(workspaces: Workspaces, device: Device, candidate: Candidate, effort: Mapping[str, Any], note: Note) -> Any:
    """effort: ``steps`` (or ``samples``, as the only one), ``drop_above_s``, ``beat_s`` (or None), ``timeout_s``,
    ``known``. Answers with the fields of a Timing, or with ``outcome``, ``detail``, ``error_norm``, ``fatal``; with
    both, ``device_s``."""
    stop_at = time.perf_counter() + TIME_SHARE * effort["timeout_s"]
    workspace = workspaces.of(candidate.problem)
    trial = None
    try:
        note(0, "loading")
        trial = Trial(device, workspace, candidate)
        return _checked(trial, lambda: _measure(trial, effort, stop_at, note))
    except FailedError as failed:
        if not failed.fatal:
            workspace.heal()
        return failed.reply() | {"device_s": trial.device_s if trial else 0.0}
    finally:
        if trial is not None:
            trial.close()


def _checked(trial: Trial, action: Callable[[], T]) -> T:
    """Whatever the candidate's end, it must have left the references alone."""
    try:
        done = action()
    except FailedError as failed:
        if not failed.fatal:
            trial.verify_kept()
        raise
    trial.verify_kept()
    return done


def _measure(trial: Trial, effort: Mapping[str, Any], stop_at: float, note: Note) -> dict[str, Any]:
    drop_above_s = _or_infinity(effort["drop_above_s"])
    note(0, "checking")
    if effort.get("known"):
        trial.check(0)
    else:
        trial.check_all(slow_s=3 * drop_above_s)
    note(0, "timing")
    if trial.first_launch_s < 3 * drop_above_s:
        trial.warm_up()
    times_s = sampled(
        trial.sample,
        effort.get("steps") or [effort["samples"]],
        drop_above_s=drop_above_s,
        beat_s=_or_infinity(effort.get("beat_s")),
        may_go_on=lambda: time.perf_counter() < stop_at,
    )
    note(0, "checking again")
    trial.check_last()
    trial.check_floor(times_s)
    return _timing(trial, times_s)


def _or_infinity(limit_s: float | None) -> float:
    return math.inf if limit_s is None else limit_s


def _timing(trial: Trial, times_s: Sequence[float]) -> dict[str, Any]:
    return {
        "outcome": "ok",
        "times_s": list(times_s),
        "warm_median_s": trial.warm_median_s,
        "error_norm": trial.error_norm,
        "occupancy": trial.occupancy,
        "device_s": trial.device_s,
    }


class Race:
    """Candidates timed in interleaved blocks: sample b of each was taken in block b, all on the same inputs."""

    def __init__(self, workspaces: Workspaces, device: Device, candidates: Sequence[Candidate], note: Note) -> None:
        self._workspaces, self._device, self._candidates, self._note = workspaces, device, candidates, note
        self._trials: dict[int, Trial] = {}
        self._times_s: dict[int, list[float]] = {}
        self.replies: list[dict[str, Any] | None] = [None] * len(candidates)

    def run(self, blocks: int, timeout_s: float) -> dict[str, Any]:
        """Answers with ``results``, one per candidate; or with ``culprit`` and its failure, if one broke the device."""
        stop_at = time.perf_counter() + RACE_TIME_SHARE * timeout_s
        try:
            for number in range(len(self._candidates)):
                self._attempt(number, "checking", self._enter)
            self._run_blocks(blocks, stop_at)
            for number in list(self._trials):
                self._attempt(number, "checking again", self._leave)
        except _FatalError as fatal:
            return {"culprit": fatal.number, "failure": fatal.failed.reply()}
        finally:
            for trial in self._trials.values():
                trial.close()
        return {"results": self.replies}

    def _run_blocks(self, blocks: int, stop_at: float) -> None:
        rng = np.random.default_rng()
        for block in range(blocks):
            if block and time.perf_counter() > stop_at:
                return
            for number in rng.permutation(list(self._trials)):
                self._attempt(int(number), "timing", partial(self._sample, block))

    def _enter(self, number: int) -> None:
        candidate = self._candidates[number]
        trial = Trial(self._device, self._workspaces.of(candidate.problem), candidate)
        self._trials[number], self._times_s[number] = trial, []
        _checked(trial, trial.check_all)
        trial.warm_up()

    def _sample(self, block: int, number: int) -> None:
        trial = self._trials[number]
        self._times_s[number].append(_checked(trial, lambda: trial.sample(block)))

    def _leave(self, number: int) -> None:
        trial = self._trials[number]
        _checked(trial, lambda: trial.check(0))
        trial.check_floor(self._times_s[number])
        self.replies[number] = _timing(trial, self._times_s[number])

    def _attempt(self, number: int, what: str, action: Callable[[int], None]) -> None:
        """A candidate that fails leaves the race; one that breaks the device ends it."""
        self._note(number, what)
        try:
            action(number)
        except FailedError as failed:
            if failed.fatal:
                raise _FatalError(number, failed) from failed
            trial = self._trials.get(number)
            self.replies[number] = failed.reply() | {"device_s": trial.device_s if trial else 0.0}
            self._workspaces.of(self._candidates[number].problem).heal()
            if number in self._trials:
                self._trials.pop(number).close()


class _FatalError(Exception):
    def __init__(self, number: int, failed: FailedError) -> None:
        super().__init__(str(failed))
        self.number, self.failed = number, failed
