"""Inputs, expected outputs and device buffers of one problem, shared by all its candidates.

Input sets: see ``inputs``; seven where arrays are small or the reference takes a few milliseconds, otherwise three, and
one where no input is random. Constants are filled once, when a program is loaded, and so are the same in every set.
Up to three sets lie on the device at a time, in slots that timing rotates through (more where launches are so short
that they are timed in a row); a spare one, where there is room, is for checks at addresses that a candidate has not
seen. What slots are filled from and compared with lies on the
device as well, if it can compare by itself, up to half of its free memory. Scratch memory is each program's own.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from tuner_daemon.worker import arrays, inputs, kept
from tuner_daemon.worker.arrays import HostArray
from tuner_daemon.worker.checking import Sums, tolerance
from tuner_daemon.worker.device import Buffer, Device, Loaded, NoMemoryError, RefusedError
from tuner_daemon.worker.inputs import DRAWS, FEW_DRAWS, Draw
from tuner_daemon.worker.kept import Checks, DeviceKept, HostKept, Kept, as_bytes
from tuner_daemon.worker.messages import Argument, Array, Problem, Program, Scalar

CHEAP_SET_S = 0.005
SMALL_BYTES = 1 << 18  # of arrays: the time that one set takes says little then
MAX_SLOTS = 3
MEMORY_SHARE = 0.5  # of the device's free memory
KEPT = 8  # workspaces


class ReferenceFailedError(Exception):
    """The reference cannot be run, or gives nothing to compare with."""


@dataclass(frozen=True)
class InputSet:
    """``alike``: it begins as the others that are alike do."""

    inputs: dict[str, Kept]
    expected: dict[str, Kept]
    alike: bool = False


class Slot:
    """One buffer per array argument."""

    def __init__(self, device: Device, problem: Problem, checks: Checks | None = None) -> None:
        self._arrays, self._checks = problem.arrays, checks
        self.buffers: dict[str, Buffer] = {a.name: device.allocate(arrays.nbytes(a)) for a in problem.arrays}
        self.holds: dict[str, Kept] | None = None
        self.number = -1  # of the input set that it holds

    def load(self, given: dict[str, Kept]) -> None:
        """Writes what the slot does not hold yet."""
        if self.holds is not given:
            for name, contents in given.items():
                contents.put(self.buffers[name])
            self.holds = given

    def reset(self) -> None:
        """Poisons the outputs and gives inout arguments their contents back."""
        for array in self._arrays:
            if array.kind == "output":
                self.buffers[array.name].fill(arrays.poison_byte(array))
        self.restore()

    def restore(self) -> None:
        """Gives inout arguments their contents back; outputs stay as a launch has left them."""
        for array in self._arrays:
            if array.kind == "inout" and self.holds is not None:
                self.holds[array.name].put(self.buffers[array.name])

    def spoil(self) -> None:
        """Poisons the middle half of each output: what is at its ends tells nothing about the rest."""
        for array in self._arrays:
            if array.kind == "output":
                nbytes = arrays.nbytes(array)
                self.buffers[array.name].fill(arrays.poison_byte(array), nbytes // 4, nbytes // 2)
        self.restore()

    def passed(self, arguments: Sequence[Argument], scratch: Mapping[str, Buffer]) -> list[Buffer | Scalar | None]:
        """What a call takes, in order: constants are filled by symbol instead. ``scratch``: the program's own."""
        buffers: Mapping[str, Buffer] = {**self.buffers, **scratch}
        return [a if isinstance(a, Scalar) else buffers.get(a.name) for a in arguments if not is_constant(a)]

    def output(self, array: Array) -> HostArray:
        return kept.stored(self.buffers[array.name], array)

    def seen(self, expected: Sequence[Kept] = (), scratch: Mapping[str, Buffer] | None = None) -> Seen:
        """What a launch has left in it; the guard bands of ``scratch``, the program's own, count."""
        inputs = [a.name for a in self._arrays if a.kind == "input" and self.holds is not None]
        given = [(self.holds[name], self.buffers[name]) for name in inputs if self.holds is not None]
        outputs = [(k, self.buffers[k.array.name]) for k in expected]
        guarded: dict[str, Buffer] = {**self.buffers, **(scratch or {})}
        found = kept.examine(self._checks, outputs, given, list(guarded.values()))
        changed = next((name for name, same in zip(inputs, found.same, strict=True) if not same), None)
        return Seen(found.sums, changed, first_broken(guarded, found.guards))

    def heal(self) -> None:
        """After a candidate that wrote where it must not."""
        self.holds = None
        for buffer in self.buffers.values():
            buffer.restore_guards()


@dataclass(frozen=True)
class Seen:
    """What a launch has left in a slot: sums of each expected output, the first input that it changed, and the first
    guard band that it wrote to, in words."""

    sums: list[Sums]
    changed_input: str | None
    broken_guard: str | None


def broken_guard(checks: Checks | None, slots: Sequence[Slot]) -> str | None:
    """Where a guard band of any of the slots was written to, in words."""
    named = [item for slot in slots for item in slot.buffers.items()]
    found = kept.examine(checks, [], [], [buffer for _, buffer in named])
    return first_broken([name for name, _ in named], found.guards)


def first_broken(names: Iterable[str], bands: Sequence[tuple[int, int]]) -> str | None:
    for name, (before, after) in zip(names, bands, strict=True):
        if before or after:
            return f"{name}: {before} bytes before the start" if before else f"{name}: {after} bytes past the end"
    return None


class Workspace:
    """Raises ReferenceFailedError, NoMemoryError, and what the device raises for a reference program that breaks it."""

    def __init__(self, device: Device, problem: Problem, checks: Checks | None = None, seed: int | None = None) -> None:
        self.device, self.problem, self.checks = device, problem, checks
        self.seed = inputs.fresh_seed() if seed is None else seed
        self.outputs = tuple(a for a in problem.arrays if a.written)
        self.allowed = tolerance(problem.arrays, problem.reduction_length, problem.tolerance)
        self.slots = [Slot(device, problem, checks)]
        self.sets = _Reference(self).sets()
        fitting = self._fitting()
        wanted = min(MAX_SLOTS, max(1, len(self.sets) - 1), fitting)
        self.slots += [Slot(device, problem, checks) for _ in range(wanted - 1)]
        self.spare = Slot(device, problem, checks) if fitting > wanted else None

    def widen(self, launches: int) -> None:
        """Adds slots until so many launches in a row find nothing in the caches, as far as memory allows."""
        slot_bytes = max(1, sum(arrays.nbytes(a) for a in self.problem.arrays))
        wanted = min(launches, -(-self.device.rotation_bytes // slot_bytes), len(self.slots) + self._fitting() - 1)
        with suppress(NoMemoryError):  # others use the device, too
            while len(self.slots) < wanted:
                self.slots.append(Slot(self.device, self.problem, self.checks))

    def loaded(self, number: int) -> tuple[int, Slot]:
        """The slot that holds input set ``number`` (counted round and round), and its index."""
        index = number % len(self.sets) % len(self.slots)
        return index, self.place(number % len(self.sets), self.slots[index])

    def place(self, number: int, slot: Slot) -> Slot:
        """Input set ``number`` into the slot."""
        slot.load(self.sets[number].inputs)
        slot.number = number
        return slot

    @property
    def every_slot(self) -> list[Slot]:
        """Those that timing uses, then the spare one."""
        return self.slots if self.spare is None else [*self.slots, self.spare]

    def broken_guard(self, slots: Sequence[Slot]) -> str | None:
        """As ``Slot.broken_guard``."""
        return broken_guard(self.checks, slots)

    def heal(self) -> None:
        for slot in self.every_slot:
            slot.heal()

    def intact(self) -> bool:
        """Whether what candidates are compared with is still what it was."""
        return kept.intact(self.checks, [k for s in self.sets for k in (*s.inputs.values(), *s.expected.values())])

    def _fitting(self) -> int:
        total = max(1, sum(arrays.nbytes(a) for a in self.problem.arrays))
        return 1 + int(self.device.free_bytes() * MEMORY_SHARE) // total


class _Reference:
    """Makes the input sets and the outputs expected of them."""

    def __init__(self, workspace: Workspace) -> None:
        self._device, self._problem = workspace.device, workspace.problem
        self._slot, self._outputs, self._checks = workspace.slots[0], workspace.outputs, workspace.checks
        self._seed = workspace.seed
        self._left_bytes = int(self._device.free_bytes() * MEMORY_SHARE) if workspace.checks else 0

    def sets(self) -> list[InputSet]:
        random = any(arrays.is_random(a) for a in self._problem.arrays)
        if random and self._problem.reference is None:
            raise ReferenceFailedError("stored reference arrays need inputs that are not random: give them a .npy file")
        sets: list[InputSet] = []
        wanted = len(DRAWS) if random else 1
        small = sum(arrays.nbytes(a) for a in self._problem.arrays) <= SMALL_BYTES
        while len(sets) < wanted:
            began = time.perf_counter()
            sets.append(self._set(DRAWS[len(sets)]))
            if time.perf_counter() - began > CHEAP_SET_S and not small:
                wanted = min(wanted, FEW_DRAWS)
        if not any(self._says_something(k) for s in sets for k in s.expected.values()):
            raise ReferenceFailedError(
                "the reference gives nothing but zeros, or nothing finite: no output could be told from an empty one"
            )
        return sets

    def _says_something(self, expected: Kept) -> bool:
        return expected.sums(self._slot.buffers[expected.array.name]).reference_square > 0.0

    def _set(self, draw: Draw) -> InputSet:
        try:
            made = {
                a.name: self._keep(a, inputs.contents(a, draw, position, self._seed))
                for position, a in enumerate(self._problem.arrays)
                if a.read
            }
            if self._problem.reference is None:
                stored = {a.name: arrays.load(self._problem.stored[a.name], a) for a in self._outputs}
                return InputSet(made, {a.name: self._keep(a, stored[a.name]) for a in self._outputs}, draw.alike)
            return InputSet(made, self._computed(made), draw.alike)
        except (OSError, ValueError, KeyError, RefusedError) as error:
            raise ReferenceFailedError(str(error)) from error

    def _keep(self, array: Array, contents: HostArray | Buffer) -> Kept:
        """Constants stay on the host, from where every program is given its own."""
        nbytes = arrays.nbytes(array)
        if self._checks and nbytes <= self._left_bytes and not is_constant(array):
            self._left_bytes -= nbytes
            return DeviceKept(self._device, self._checks, array, contents)
        values = contents if isinstance(contents, np.ndarray) else kept.stored(contents, array).copy()
        return HostKept(array, values)

    def _computed(self, given: dict[str, Kept]) -> dict[str, Kept]:
        assert self._problem.reference is not None
        self._slot.load(given)
        self._slot.reset()
        loaded = self._device.load(self._problem.reference)
        try:
            fill_constants(loaded, self._problem, given)
            scratch = allocate_scratch(self._device, self._problem.reference)
            self._device.launch(loaded.bind(self._slot.passed(self._problem.reference_arguments, scratch)))
        finally:
            loaded.unload()
        seen = self._slot.seen()
        if seen.broken_guard or seen.changed_input:
            raise ReferenceFailedError(
                f"the reference wrote outside of {seen.broken_guard}"
                if seen.broken_guard
                else f"it changed {seen.changed_input}"
            )
        return {a.name: self._keep(a, self._slot.buffers[a.name]) for a in self._outputs}


class Workspaces:
    """The most recently used workspaces, by problem."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: OrderedDict[str, Workspace] = OrderedDict()
        self._seed = inputs.fresh_seed()
        self.checks: Checks | None = None

    @property
    def count(self) -> int:
        return len(self._kept)

    def of(self, problem: Problem) -> Workspace:
        """Made anew if a candidate of another problem has written into it."""
        if self._kept and next(reversed(self._kept)) == problem.key:
            return self._kept[problem.key]
        if problem.key in self._kept:
            if self._kept[problem.key].intact():
                self._kept.move_to_end(problem.key)
                return self._kept[problem.key]
            del self._kept[problem.key]
        while len(self._kept) >= KEPT:
            self._kept.popitem(last=False)
        try:
            return self._added(problem)
        except NoMemoryError:
            if not self._kept:
                raise
            self._kept.clear()
        return self._added(problem)  # not in the handler: the error there keeps what had been allocated already

    def _added(self, problem: Problem) -> Workspace:
        self._kept[problem.key] = Workspace(self._device, problem, self.checks, self._seed)
        return self._kept[problem.key]


def allocate_scratch(device: Device, program: Program) -> dict[str, Buffer]:
    """The program's own memory, of zeros. Raises NoMemoryError."""
    scratch = {array.name: device.allocate(arrays.nbytes(array)) for array in program.scratch}
    for buffer in scratch.values():
        buffer.fill(0)
    return scratch


def is_constant(argument: Argument) -> bool:
    return isinstance(argument, Array) and argument.kind == "constant"


def fill_constants(loaded: Loaded, problem: Problem, given: dict[str, Kept]) -> None:
    """Fills the program's constant symbols; a program that lacks one does without."""

    for argument in problem.arrays:
        if argument.kind == "constant":
            loaded.set_constant(argument.name, as_bytes(given[argument.name].values()))
