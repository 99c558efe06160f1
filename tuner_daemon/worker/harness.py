"""Check, time, check again: what is done to one candidate, or to several that race.

Cold times: before every sample the outputs are poisoned, inout arguments restored and the caches flushed, and the
buffers rotate. Launches shorter than the device's ``short_s`` are timed several at a time (never where an argument is
inout: it would accumulate), so that launch overhead is not what is ranked; each on buffers of its own, as many as it
takes for none to be found in the caches again.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np

from tuner_daemon.worker.device import Buffer, Call, Device
from tuner_daemon.worker.inputs import fresh_seed
from tuner_daemon.worker.ladder import sampled
from tuner_daemon.worker.messages import Candidate, Edge
from tuner_daemon.worker.stages import Note, Stages
from tuner_daemon.worker.verifying import FailedError, Verification, on_device
from tuner_daemon.worker.workspace import Slot, Workspace, Workspaces, allocate_scratch, fill_constants

T = TypeVar("T")

WARM_LAUNCHES = 3
LONG_LAUNCH_S = 1e-3  # what is in the caches, or a launch's overhead, makes little difference to longer ones
SLOW_LAUNCH_S = 0.25  # no use warming up for longer launches
FIRST_EXTRA_S = 5e-3  # that a program's first launch may take beside its work: loading it, memory for its registers
SHORT_FACTOR = 3.0  # a short launch is given up when it is slower than wanted by so much
BEHIND = 1.05  # times the time to beat: what a long launch is told from by the launches that are checked
TIME_SHARE = 0.5  # of the time limit; sampling stops there with what it has
RACE_TIME_SHARE = 0.8
LONGEST_BATCH = 32
LAST_CHECKED = 3  # of the slots that the last sample used


class Trial:
    """One candidate on the device. Every method raises FailedError. ``order``: draws the order of input sets."""

    def __init__(
        self, device: Device, workspace: Workspace, candidate: Candidate, order: np.random.Generator | None = None
    ) -> None:
        self._device, self._workspace, self._candidate = device, workspace, candidate
        self._calls: dict[Slot, Call] = {}
        self._batch = 1
        self._rng = np.random.default_rng()
        self.warm_median_s: float | None = None
        self.device_s = 0.0  # of work that this candidate has given to the device
        self._last: list[Slot] = []
        self._scratch: dict[str, Buffer] = {}
        timed = partial(self._time, cold=True)
        self.verification = Verification(device, workspace, self._call, timed, self._scratch, order)
        self._loaded = on_device(lambda: device.load(candidate.program))
        try:
            self._scratch |= on_device(lambda: allocate_scratch(device, candidate.program))
            on_device(lambda: fill_constants(self._loaded, workspace.problem, workspace.sets[0].inputs))
        except FailedError:
            self.close()
            raise

    def close(self) -> None:
        """What is the candidate's own goes back at once: its checks refer back to it, and only the collector would
        find out that nobody else does."""
        self._calls.clear()
        self._scratch.clear()
        self._loaded.unload()

    @property
    def in_a_row(self) -> bool:
        """Whether it is timed several launches at a time."""
        return self._batch > 1

    @property
    def occupancy(self) -> float | None:
        return self._loaded.occupancy

    def warm_up(self) -> None:
        """Three launches with warm caches, whose median is the warm time; of long launches, those that were checked
        count."""
        on_device(self._device.warm_up)  # checking may have been a pause
        checks = self.verification
        times = list(checks.checked_s) if checks.shortest_s > LONG_LAUNCH_S else []
        slot = checks.placed(0)
        slot.reset()
        calls = [self._call(slot)]
        while len(times) < WARM_LAUNCHES:
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
            slot = self.verification.placed(number + offset)
            if offset < len(self._workspace.slots):
                slot.reset()
                self._last.append(slot)
            calls.append(self._call(slot))
        launch_s = max(self._time(calls, cold=True), 1e-9)
        self.verification.look(self._last, launch_s * len(calls))
        return launch_s

    def check_last(self, *, thorough: bool = True) -> None:
        """What some of the last timed launches left, and then once more as ``Verification.after`` says."""
        for slot in self._rng.permutation(np.array(self._last, dtype=object))[:LAST_CHECKED]:
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

    def _call(self, slot: Slot) -> Call:
        if slot not in self._calls:
            arguments = slot.passed(self._candidate.problem.arguments, self._scratch)
            self._calls[slot] = on_device(lambda: self._loaded.bind(arguments))
        return self._calls[slot]

    def _choose_batch(self, launch_s: float) -> None:
        accumulates = any(a.kind == "inout" for a in self._candidate.problem.arrays)
        if launch_s < self._device.short_s and not accumulates:
            self._batch = min(LONGEST_BATCH, max(2, math.ceil(2 * self._device.short_s / max(launch_s, 1e-6))))
            on_device(lambda: self._workspace.widen(self._batch))


def run(
    workspaces: Workspaces, device: Device, candidate: Candidate, effort: Mapping[str, Any], note: Note
) -> dict[str, Any]:
    """effort: ``steps`` (or ``samples``, as the only one), ``drop_above_s``, ``beat_s`` (or None), ``timeout_s``,
    ``known``. Answers with the fields of a Timing, or with ``outcome``, ``detail``, ``error_norm``, ``fatal``; with
    both, ``device_s`` and ``stages_s``."""
    stages = Stages(note)
    reply = _run(workspaces, device, candidate, effort, stages)
    return reply | {"stages_s": stages.spent_s()}


def _run(
    workspaces: Workspaces, device: Device, candidate: Candidate, effort: Mapping[str, Any], note: Note
) -> dict[str, Any]:
    stop_at = time.perf_counter() + TIME_SHARE * effort["timeout_s"]
    workspace = workspaces.of(candidate.problem)
    trial = None
    try:
        note(0, "loading")
        trial = Trial(device, workspace, candidate)
        edge = candidate.edge

        def at_edge() -> None:
            if edge is not None:
                note(0, f"checking odd sizes: {edge.sizes}")
                check_edge(workspaces, device, edge)

        return _checked(trial, lambda: _measure(trial, Aim.of(effort), stop_at, note, at_edge))
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


@dataclass(frozen=True)
class Aim:
    """What is wanted of a candidate, and so how much it is worth. A hopeless one is launched once, or twice where the
    first launch may have been something else than its work; one that is behind keeps the times of its checks; only one
    that may win is warmed up and sampled."""

    steps: Sequence[int]
    drop_above_s: float
    beat_s: float
    known: bool

    @classmethod
    def of(cls, effort: Mapping[str, Any]) -> Self:
        limits = [effort.get(name) for name in ("drop_above_s", "beat_s")]
        drop_above_s, beat_s = (math.inf if limit is None else float(limit) for limit in limits)
        return cls(effort.get("steps") or [effort["samples"]], drop_above_s, beat_s, bool(effort.get("known")))

    def is_hopeless(self, checked_s: Sequence[float]) -> bool:
        launch_s = _work_s(checked_s)
        return launch_s > self.drop_above_s * (1.0 if launch_s > LONG_LAUNCH_S else SHORT_FACTOR)

    def is_behind(self, checked_s: Sequence[float]) -> bool:
        return self._cannot_beat(_work_s(checked_s))

    def is_settled(self, checked_s: Sequence[float]) -> bool:
        """Whether more launches before timing would tell nothing that matters."""
        seems_behind = self._cannot_beat(min(checked_s))
        return self.is_hopeless(checked_s) or (len(checked_s) > 1 if seems_behind else self.known)

    def _cannot_beat(self, launch_s: float) -> bool:
        return launch_s > max(LONG_LAUNCH_S, BEHIND * self.beat_s)


def _work_s(checked_s: Sequence[float]) -> float:
    """What a launch takes at the least."""
    return min(checked_s) if len(checked_s) > 1 else checked_s[0] - FIRST_EXTRA_S


def _measure(trial: Trial, aim: Aim, stop_at: float, note: Note, at_edge: Callable[[], None]) -> dict[str, Any]:
    checks = trial.verification
    note(0, "checking")
    checks.before(enough=lambda: aim.is_settled(checks.checked_s))
    if aim.is_hopeless(checks.checked_s):
        return _timing(trial, [checks.shortest_s])
    if not aim.known:
        at_edge()
    if aim.is_behind(checks.checked_s):
        note(0, "checking again")
        checks.after(in_a_row=False, thorough=False)
        return _timing(trial, checks.checked_s)
    note(0, "timing")
    trial.warm_up()
    times_s = sampled(
        trial.sample,
        aim.steps,
        drop_above_s=aim.drop_above_s,
        beat_s=aim.beat_s,
        may_go_on=lambda: time.perf_counter() < stop_at,
    )
    note(0, "checking again")
    trial.check_last(thorough=times_s[0] <= aim.drop_above_s)
    return _timing(trial, times_s)


def _timing(trial: Trial, times_s: Sequence[float]) -> dict[str, Any]:
    trial.check_floor(times_s)
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
        self._order_seed = fresh_seed()
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
        order = np.random.default_rng(self._order_seed)
        trial = Trial(self._device, self._workspaces.of(candidate.problem), candidate, order)
        self._trials[number], self._times_s[number] = trial, []
        _checked(trial, trial.verification.before)
        trial.warm_up()

    def _sample(self, block: int, number: int) -> None:
        trial = self._trials[number]
        self._times_s[number].append(_checked(trial, lambda: trial.sample(block)))

    def _leave(self, number: int) -> None:
        trial = self._trials[number]
        _checked(trial, lambda: trial.verification.after(in_a_row=trial.in_a_row))
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
