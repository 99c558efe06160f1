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

from tuner_daemon.worker.device import Call, Device
from tuner_daemon.worker.ladder import sampled
from tuner_daemon.worker.messages import Candidate, Edge
from tuner_daemon.worker.verifying import FailedError, Verification, on_device
from tuner_daemon.worker.workspace import Slot, Workspace, Workspaces, allocate_scratch, fill_constants

T = TypeVar("T")

Note = Callable[[int, str], None]
"""Called with the candidate's number and what is about to be done to it."""

WARM_LAUNCHES = 3
LONG_LAUNCH_S = 1e-3
SLOW_LAUNCH_S = 0.25  # no use warming up for longer launches
TIME_SHARE = 0.5  # of the time limit; sampling stops there with what it has
RACE_TIME_SHARE = 0.8
LONGEST_BATCH = 32


class Trial:
    """One candidate on the device. Every method raises FailedError."""

    def __init__(self, device: Device, workspace: Workspace, candidate: Candidate) -> None:
        self._device, self._workspace, self._candidate = device, workspace, candidate
        self._calls: dict[int, Call] = {}
        self._batch = 1
        self.warm_median_s: float | None = None
        self.device_s = 0.0  # of work that this candidate has given to the device
        self._last: list[Slot] = []
        self._loaded = on_device(lambda: device.load(candidate.program))
        self._scratch = on_device(lambda: allocate_scratch(device, candidate.program))
        self.verification = Verification(
            device, workspace, self._call_on, partial(self._time, cold=False), self._scratch
        )
        if workspace.sets:
            fill_constants(self._loaded, workspace.problem, workspace.sets[0].inputs)

    def close(self) -> None:
        self._loaded.unload()

    @property
    def in_a_row(self) -> bool:
        """Whether it is timed several launches at a time."""
        return self._batch > 1

    @property
    def occupancy(self) -> float | None:
        return self._loaded.occupancy

    def warm_up(self) -> None:
        """At least three launches, and more until the device is warm; the median of the last is the warm time.
        Of long launches, those that were checked count: what is in the caches makes little difference to them."""
        checks = self.verification
        times = list(checks.checked_s) if checks.first_launch_s > LONG_LAUNCH_S else []
        index, slot = checks.placed(0)
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
        self._last = []
        for offset in reversed(range(self._batch)):
            index, slot = self.verification.placed(number + offset % len(self._workspace.slots))
            if offset < len(self._workspace.slots):
                slot.reset()
                self._last.append(slot)
            calls.append(self._call(index))
        launch_s = max(self._time(calls, cold=True), 1e-9)
        self.verification.look(self._last, launch_s * len(calls))
        return launch_s

    def check_last(self, *, thorough: bool = True) -> None:
        """What the last timed launches left, and then once more as ``Verification.after`` says."""
        for slot in self._last:
            self.verification.verify(slot)
        self.verification.after(in_a_row=self.in_a_row, thorough=thorough)

    def check_floor(self, times_s: Sequence[float]) -> None:
        median_s = statistics.median(times_s)
        if median_s < self._candidate.floor_s:
            raise FailedError(
                "disturbed",
                f"faster than the device can be: {median_s:.3g} s, at least {self._candidate.floor_s:.3g} s are needed",
                error_norm=self.verification.error_norm,
            )

    def _time(self, calls: Sequence[Call], *, cold: bool) -> float:
        """Seconds per launch."""
        launch_s = on_device(lambda: self._device.time(calls, cold=cold))
        self.device_s += launch_s * len(calls)
        return launch_s

    def _call_on(self, slot: Slot) -> Call:
        return self._call(self._workspace.every_slot.index(slot))

    def _call(self, index: int) -> Call:
        if index not in self._calls:
            arguments = self._workspace.every_slot[index].passed(self._candidate.problem.arguments, self._scratch)
            self._calls[index] = self._loaded.bind(arguments)
        return self._calls[index]

    def _choose_batch(self, launch_s: float) -> None:
        accumulates = any(a.kind == "inout" for a in self._candidate.problem.arrays)
        if launch_s < self._device.short_s and not accumulates:
            self._batch = min(LONGEST_BATCH, max(2, math.ceil(2 * self._device.short_s / max(launch_s, 1e-6))))


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
        edge = candidate.edge

        def at_edge() -> None:
            if edge is not None:
                note(0, f"checking with {edge.sizes}")
                check_edge(workspaces, device, edge)

        return _checked(trial, lambda: _measure(trial, effort, stop_at, note, at_edge))
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
            trial.verification.verify_kept()
        raise
    trial.verification.verify_kept()
    return done


def check_edge(workspaces: Workspaces, device: Device, edge: Edge) -> None:
    """The candidate at a small problem with odd sizes. Raises FailedError."""
    workspace = workspaces.of(edge.problem)
    trial = None
    try:
        trial = Trial(device, workspace, Candidate(edge.program, edge.problem, 0.0))
        _checked(trial, trial.verification.edge)
    except FailedError as failed:
        if not failed.fatal:
            workspace.heal()
        words = f"with {edge.sizes}: {failed.detail}"
        raise FailedError(failed.outcome, words, error_norm=failed.error_norm, fatal=failed.fatal) from failed
    finally:
        if trial is not None:
            trial.close()


def _measure(
    trial: Trial, effort: Mapping[str, Any], stop_at: float, note: Note, at_edge: Callable[[], None]
) -> dict[str, Any]:
    checks = trial.verification
    drop_above_s, known = _or_infinity(effort["drop_above_s"]), bool(effort.get("known"))
    note(0, "checking")
    checks.before(slow_s=3 * drop_above_s, known=known)
    promising = checks.first_launch_s < 3 * drop_above_s
    if promising and not known:
        at_edge()
    note(0, "timing")
    if promising:
        trial.warm_up()
    times_s = sampled(
        trial.sample,
        effort.get("steps") or [effort["samples"]],
        drop_above_s=drop_above_s,
        beat_s=_or_infinity(effort.get("beat_s")),
        may_go_on=lambda: time.perf_counter() < stop_at,
    )
    note(0, "checking again")
    trial.check_last(thorough=times_s[0] <= drop_above_s)
    trial.check_floor(times_s)
    return _timing(trial, times_s)


def _or_infinity(limit_s: float | None) -> float:
    return math.inf if limit_s is None else limit_s


def _timing(trial: Trial, times_s: Sequence[float]) -> dict[str, Any]:
    return {
        "outcome": "ok",
        "times_s": list(times_s),
        "warm_median_s": trial.warm_median_s,
        "error_norm": trial.verification.error_norm,
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
        _checked(trial, trial.verification.before)
        trial.warm_up()

    def _sample(self, block: int, number: int) -> None:
        trial = self._trials[number]
        self._times_s[number].append(_checked(trial, lambda: trial.sample(block)))

    def _leave(self, number: int) -> None:
        trial = self._trials[number]
        _checked(trial, lambda: trial.verification.after(in_a_row=trial.in_a_row))
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
