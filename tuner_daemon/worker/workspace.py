"""Inputs, expected outputs and device buffers of one problem, shared by all its candidates.

Input sets: seeds 0, 1, 2 crossed with two distributions, six in all where the reference takes a few milliseconds;
otherwise three, one for each seed, the distributions alternating. One set where no input is random.
Constants are filled once, when a program is loaded, and so are the same in every set.
Up to three sets lie on the device at a time, in slots that timing rotates through.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner_daemon.worker import arrays
from tuner_daemon.worker.arrays import HostArray
from tuner_daemon.worker.checking import Expected, tolerance
from tuner_daemon.worker.device import GUARD_PATTERN, Buffer, Bytes, Device, Loaded, NoMemoryError, RefusedError
from tuner_daemon.worker.messages import Argument, Array, Problem, Scalar

SETS = ((0, "normal"), (1, "uniform"), (2, "normal"), (0, "uniform"), (1, "normal"), (2, "uniform"))
FEW_SETS = 3
CHEAP_SET_S = 0.005
MAX_SLOTS = 3
MEMORY_SHARE = 0.5  # of the device's free memory
KEPT = 8  # workspaces


class ReferenceFailedError(Exception):
    """The reference cannot be run, or gives nothing to compare with."""


@dataclass(frozen=True)
class InputSet:
    inputs: dict[str, HostArray]
    expected: dict[str, Expected]


class Slot:
    """One buffer per array argument."""

    def __init__(self, device: Device, problem: Problem) -> None:
        self._arrays = problem.arrays
        self.buffers: dict[str, Buffer] = {a.name: device.allocate(arrays.nbytes(a)) for a in problem.arrays}
        self.holds: dict[str, HostArray] | None = None

    def load(self, inputs: dict[str, HostArray]) -> None:
        """Writes what the slot does not hold yet."""
        if self.holds is not inputs:
            for name, values in inputs.items():
                self.buffers[name].write(as_bytes(values))
            self.holds = inputs

    def reset(self) -> None:
        """Poisons the outputs and gives inout arguments their contents back."""
        for array in self._arrays:
            if array.kind == "output":
                self.buffers[array.name].fill(arrays.poison_byte(array))
            elif array.kind == "inout" and self.holds is not None:
                self.buffers[array.name].write(as_bytes(self.holds[array.name]))

    def passed(self, arguments: Sequence[Argument]) -> list[Buffer | Scalar]:
        """What a call takes, in order: constants are filled by symbol instead."""
        return [a if isinstance(a, Scalar) else self.buffers[a.name] for a in arguments if not is_constant(a)]

    def output(self, array: Array) -> HostArray:
        return self.buffers[array.name].read().view(arrays.storage(array.dtype)).reshape(array.shape)

    def changed_input(self) -> str | None:
        """Name of an input whose contents are no longer those written."""
        for array in self._arrays:
            if array.kind == "input" and self.holds is not None:
                written = as_bytes(self.holds[array.name])
                if not np.array_equal(self.buffers[array.name].read(), written):
                    return array.name
        return None

    def broken_guard(self) -> str | None:
        """Where a guard band was written to, in words."""
        for array in self._arrays:
            before, after = self.buffers[array.name].guards()
            for band, where in ((before, "before the start"), (after, "past the end")):
                if (band != GUARD_PATTERN).any():
                    return f"{array.name}: {int((band != GUARD_PATTERN).sum())} bytes {where}"
        return None

    def heal(self) -> None:
        """After a candidate that wrote where it must not."""
        self.holds = None
        for buffer in self.buffers.values():
            buffer.restore_guards()


class Workspace:
    """Raises ReferenceFailedError, NoMemoryError, and what the device raises for a reference program that breaks it."""

    def __init__(self, device: Device, problem: Problem) -> None:
        self.device, self.problem = device, problem
        self.outputs = tuple(a for a in problem.arrays if a.written)
        self.allowed = tolerance(problem.arrays, problem.reduction_length, problem.tolerance)
        self.slots = [Slot(device, problem)]
        self.sets = _Reference(self).sets()
        wanted = min(MAX_SLOTS, len(self.sets), self._fitting())
        self.slots += [Slot(device, problem) for _ in range(wanted - 1)]

    def loaded(self, number: int) -> tuple[int, Slot]:
        """The slot that holds input set ``number`` (counted round and round), and its index."""
        inputs = self.sets[number % len(self.sets)].inputs
        index = number % len(self.sets) % len(self.slots)
        self.slots[index].load(inputs)
        return index, self.slots[index]

    def heal(self) -> None:
        for slot in self.slots:
            slot.heal()

    def _fitting(self) -> int:
        total = max(1, sum(arrays.nbytes(a) for a in self.problem.arrays))
        return 1 + int(self.device.free_bytes() * MEMORY_SHARE) // total


class _Reference:
    """Makes the input sets and the outputs expected of them."""

    def __init__(self, workspace: Workspace) -> None:
        self._device, self._problem = workspace.device, workspace.problem
        self._slot, self._outputs = workspace.slots[0], workspace.outputs

    def sets(self) -> list[InputSet]:
        random = any(arrays.is_random(a) for a in self._problem.arrays)
        if random and self._problem.reference is None:
            raise ReferenceFailedError("stored reference arrays need inputs that are not random: give them a .npy file")
        sets: list[InputSet] = []
        wanted = len(SETS) if random else 1
        while len(sets) < wanted:
            began = time.perf_counter()
            sets.append(self._set(*SETS[len(sets)]))
            if time.perf_counter() - began > CHEAP_SET_S:
                wanted = min(wanted, FEW_SETS)
        if not any(e.norm > 0.0 or not e.finite for s in sets for e in s.expected.values()):
            raise ReferenceFailedError(
                "the reference gives nothing but zeros: no output could be told from an empty one"
            )
        return sets

    def _set(self, seed: int, distribution: str) -> InputSet:
        try:
            inputs = {
                a.name: arrays.make(a, *(SETS[0] if is_constant(a) else (seed, distribution)), position)
                for position, a in enumerate(self._problem.arrays)
                if a.read
            }
            if self._problem.reference is None:
                values = {a.name: arrays.load(self._problem.stored[a.name], a) for a in self._outputs}
            else:
                values = self._computed(inputs)
        except (OSError, ValueError, KeyError, RefusedError) as error:
            raise ReferenceFailedError(str(error)) from error
        return InputSet(inputs, {a.name: Expected.of(a, values[a.name]) for a in self._outputs})

    def _computed(self, inputs: dict[str, HostArray]) -> dict[str, HostArray]:
        assert self._problem.reference is not None
        self._slot.load(inputs)
        self._slot.reset()
        loaded = self._device.load(self._problem.reference)
        try:
            fill_constants(loaded, self._problem, inputs)
            self._device.launch(loaded.bind(self._slot.passed(self._problem.reference_arguments)))
        finally:
            loaded.unload()
        broken, changed = self._slot.broken_guard(), self._slot.changed_input()
        if broken or changed:
            raise ReferenceFailedError(
                f"the reference wrote outside of {broken}" if broken else f"it changed {changed}"
            )
        return {a.name: self._slot.output(a).copy() for a in self._outputs}


class Workspaces:
    """The most recently used workspaces, by problem."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: OrderedDict[str, Workspace] = OrderedDict()

    def of(self, problem: Problem) -> Workspace:
        if problem.key in self._kept:
            self._kept.move_to_end(problem.key)
            return self._kept[problem.key]
        while len(self._kept) >= KEPT:
            self._kept.popitem(last=False)
        try:
            workspace = Workspace(self._device, problem)
        except NoMemoryError:
            if not self._kept:
                raise
            self._kept.clear()
            workspace = Workspace(self._device, problem)
        self._kept[problem.key] = workspace
        return workspace


def is_constant(argument: Argument) -> bool:
    return isinstance(argument, Array) and argument.kind == "constant"


def fill_constants(loaded: Loaded, problem: Problem, inputs: dict[str, HostArray]) -> None:
    """Fills the program's constant symbols; a program that lacks one does without."""

    for argument in problem.arrays:
        if argument.kind == "constant":
            loaded.set_constant(argument.name, as_bytes(inputs[argument.name]))


def as_bytes(values: HostArray) -> Bytes:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
