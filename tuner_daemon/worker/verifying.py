"""What a candidate's launches have left is compared: before it is timed, while it is, and afterwards.

Nothing that a candidate could go by tells a checked launch from a timed one. Input sets come in an order that is drawn
for each candidate, one of them is not shown to it before timing is over, what timed launches leave is looked at in
random places and at the end, and the contents of inputs change under the same addresses, with the outputs of another
set still in place. Last come addresses that the candidate has not been given before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from tuner_daemon.worker.checking import Sums, describe, judge
from tuner_daemon.worker.device import BrokenError, Buffer, Call, Device, NoMemoryError, RefusedError
from tuner_daemon.worker.kept import Kept
from tuner_daemon.worker.workspace import Slot, Workspace

T = TypeVar("T")

LOOK_SHARE = 0.25  # of the time that timed launches took, for looking at what they left
LOOK_CHANCE = 1 / 3  # of looking at a timed launch if none has been looked at before
MOST_RIDERS = 6  # launches in a row before one that is checked


class FailedError(Exception):
    """The candidate's end, with the outcome's name."""

    def __init__(self, outcome: str, detail: str, *, error_norm: float | None = None, fatal: bool = False) -> None:
        super().__init__(detail)
        self.outcome, self.detail, self.error_norm, self.fatal = outcome, detail, error_norm, fatal

    def reply(self) -> dict[str, Any]:
        norm = self.error_norm if self.error_norm is not None and math.isfinite(self.error_norm) else None
        return {"outcome": self.outcome, "detail": self.detail, "error_norm": norm, "fatal": self.fatal}


def on_device(action: Callable[[], T]) -> T:
    try:
        return action()
    except (RefusedError, NoMemoryError) as error:
        raise FailedError("launch_failed", str(error)) from error
    except BrokenError as error:
        raise FailedError("crashed", str(error), fatal=True) from error


class Verification:
    """Of one candidate. ``call``: gives the launch on one slot; ``timed``: launches, and gives the seconds of each;
    ``scratch``: memory that is the candidate's own, of which only the guard bands are looked at; ``order``: draws the
    order of the sets, which those that are compared have in common. Every method raises FailedError."""

    def __init__(
        self,
        device: Device,
        workspace: Workspace,
        call: Callable[[Slot], Call],
        timed: Callable[[Sequence[Call]], float],
        scratch: Mapping[str, Buffer],
        order: np.random.Generator | None = None,
    ) -> None:
        self._device, self._workspace, self._call, self._timed = device, workspace, call, timed
        self._scratch = scratch
        self._rng = np.random.default_rng()
        self.error_norm = 0.0
        self.checked_s: list[float] = []
        sets = workspace.sets
        alike = [number for number, s in enumerate(sets) if s.alike]
        order = order or self._rng
        self._unseen = int(order.choice(alike)) if len(alike) > 1 else None
        drawn = [int(n) for n in order.permutation(len(sets)) if n != self._unseen]
        # Without zeros, which may be faster to compute with: the launches that are timed, and the first of all.
        self._timed_sets = [n for n in drawn if sets[n].alike] or drawn
        self._seen = [self._timed_sets[0], *(n for n in drawn if n != self._timed_sets[0])]
        self._looking_s = self._timed_s = 0.0
        self._looked = False
        self._used: set[Slot] = set()

    @property
    def shortest_s(self) -> float:
        """The shortest of the launches that were checked."""
        return min(self.checked_s, default=math.inf)

    def placed(self, position: int) -> Slot:
        """A slot, counted round and round, with a set to be timed on, which the candidate has seen: always the same."""
        index = position % len(self._workspace.slots)
        number = self._timed_sets[index % len(self._timed_sets)]
        slot = self._workspace.place(number, self._workspace.slots[index])
        self._used.add(slot)
        return slot

    def before(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Sets that it may see, until ``enough()``. The second and every other one lies where the one before it lay,
        whose outputs are still there. The caches are cold and the device is not, so that their times count."""
        if self._workspace.checks is not None:
            on_device(self._workspace.checks.spoil)
        slots = self._workspace.slots
        for position, number in enumerate(self._seen):
            if position and enough():
                return
            slot = self._workspace.place(number, slots[position // 2 % len(slots)])
            self._used.add(slot)
            if position % 2:
                slot.restore()
            else:
                slot.reset()
            on_device(self._device.warm_up)  # comparing may have been a pause
            self.checked_s.append(self._timed([self._call(slot)]))
            self.verify(slot)

    def look(self, slots: Sequence[Slot], spent_s: float) -> None:
        """At what a timed sample has left on one of its slots: at one sample in three until there was one, at others
        while it takes little time in comparison. ``spent_s``: on the sample."""
        self._timed_s += spent_s
        cheap = self._looking_s < LOOK_SHARE * self._timed_s
        if not (cheap if self._looked else self._rng.random() < LOOK_CHANCE):
            return
        began = time.perf_counter()
        self._looked = True
        self.verify(slots[int(self._rng.integers(len(slots)))])
        self._looking_s += time.perf_counter() - began

    def after(self, *, in_a_row: bool, thorough: bool = True) -> None:
        """At addresses that it has not seen, then the set that it has not seen in place of another, whose outputs are
        still there. ``in_a_row``: it was timed several launches at a time, and is checked right behind others then."""
        used = [slot for slot in self._workspace.slots if slot in self._used]
        slot = used[int(self._rng.integers(len(used)))]
        if thorough and self._workspace.spare is not None:
            spare = self._workspace.place(int(self._rng.choice(self._seen)), self._workspace.spare)
            spare.reset()
            on_device(lambda: self._device.launch(self._call(spare)))
            self.verify(spare)
            used.append(spare)
        if self._unseen is None:
            self._workspace.place(self._seen[0], slot).spoil()
        else:
            self._workspace.place(self._unseen, slot).restore()
        others = [self._call(other) for other in used if other is not slot]
        riders = self._rng.choice(len(others), int(self._rng.integers(1, MOST_RIDERS))) if in_a_row and others else ()
        on_device(lambda: self._device.launch(*(others[int(n)] for n in riders), self._call(slot)))
        self.verify(slot)
        self._require_guards(on_device(lambda: self._workspace.broken_guard(self._workspace.every_slot)))

    def edge(self) -> None:
        """One random set and one of nothing but zeros, at a small problem."""
        others = [number for number, s in enumerate(self._workspace.sets) if not s.alike]
        random = next(number for number in self._seen if number not in others)
        slot = self._workspace.slots[0]
        for number in (random, *others[-1:]):
            self._workspace.place(number, slot).reset()
            on_device(partial(self._device.launch, self._call(slot)))
            self.verify(slot)

    def verify(self, slot: Slot) -> None:
        """What is in the slot, after a launch on it, against what is expected of the set that it holds."""
        expected = list(self._workspace.sets[slot.number].expected.values())
        seen = on_device(lambda: slot.seen(expected, self._scratch))
        self._require_guards(seen.broken_guard)
        for wanted, sums in zip(expected, seen.sums, strict=True):
            self._verify_output(wanted, sums, slot)
        if seen.changed_input:
            raise FailedError("wrong_result", f"changed its input {seen.changed_input}")

    def verify_kept(self) -> None:
        """That the candidate has not written, far out of bounds, over what it and all others are compared with."""
        if not on_device(self._workspace.intact):
            raise FailedError("wrong_result", "wrote out of bounds, over what outputs are compared with", fatal=True)

    def _require_guards(self, broken: str | None) -> None:
        if broken:
            raise FailedError("wrong_result", f"wrote out of bounds of {broken}", fatal=self._device.fragile)

    def _verify_output(self, expected: Kept, sums: Sums, slot: Slot) -> None:
        array, allowed = expected.array, self._workspace.allowed
        verdict = judge(sums, array, allowed)
        if not verdict.right:
            words = describe(array, expected.values(), slot.output(array), verdict, allowed)
            raise FailedError("wrong_result", words, error_norm=verdict.error_norm)
        self.error_norm = max(self.error_norm, verdict.error_norm)
