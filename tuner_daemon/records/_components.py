"""Parts of a space that no constraint ties together: each is listed, or drawn from, by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records._rules import CHUNK, Mask, Rows, Rule, Step, plan

WORK_LIMIT = 50_000_000  # combinations looked at before a part counts as too large to list
_DIRECT_COST = 10  # of evaluating a constraint, in table lookups
_TRIES = 2**21  # rejected draws before propagation takes over


class EmptyError(Exception):
    """The constraints leave nothing; the argument is the one that took the last."""


@dataclass(frozen=True)
class Listed:
    """Every valid combination of these parameters: rows (size, k), lexicographic, columns in the order of axes."""

    axes: tuple[int, ...]  # ascending
    rows: Rows

    exact = True

    @property
    def size(self) -> int:
        return len(self.rows)

    def draw(self, n: int, rng: np.random.Generator) -> Rows:
        """(n, k) uniform, with repeats."""
        return self.rows[rng.integers(0, len(self.rows), n)]

    def first(self) -> Rows:
        """(1, k)"""
        return self.rows[:1]


@dataclass(frozen=True)
class Open:
    """Parameters whose valid combinations are too many to list.

    ``prefixes`` lists every combination of the first few parameters of ``order`` that their constraints allow. A
    uniform prefix completed by uniform values, kept if valid, is a uniform draw from the valid combinations.
    """

    axes: tuple[int, ...]  # ascending
    order: tuple[int, ...]
    prefixes: Rows  # (m, p) in the order of ``order``
    rules: tuple[Rule, ...]
    counts: tuple[int, ...]  # of all parameters of the space, by axis
    size: int  # estimated
    rate: float  # of completed prefixes that are valid; 0.0 where none was seen

    exact = False

    def draw(self, n: int, rng: np.random.Generator) -> Rows:
        """(m, k) uniform, with repeats; m < n where valid combinations are too rare to find n."""
        found: list[Rows] = []
        have = tried = 0
        while have < n and tried < _TRIES and self.rate > 0.0:
            batch = min(CHUNK // 8, int((n - have) / self.rate * 1.2) + 64)
            good = self._attempt(batch, rng)
            found.append(good)
            have, tried = have + len(good), tried + batch
        if have < n:  # rare: no longer uniform, but valid
            found.append(self._propagated(n - have, rng))
        return np.concatenate(found)[:n]

    def first(self) -> Rows:
        """(1, k) by depth-first search in declared order, or the least of some draws if that takes too long."""
        steps = plan(self.axes, self.rules, self.counts, {axis: j for j, axis in enumerate(self.axes)})
        found = _depth_first(steps, len(self.axes))
        if found is None:
            drawn = self.draw(256, np.random.default_rng(0))
            found = drawn[np.lexsort(drawn.T[::-1])][:1]
        return found

    def valid(self, rows: Rows) -> Mask:
        """(n,) rows: (n, k) in the order of axes."""
        column = {axis: j for j, axis in enumerate(self.axes)}
        good = np.ones(len(rows), dtype=np.bool_)
        for rule in self.rules:
            good &= rule.check([rows[:, column[axis]] for axis in rule.axes])
        return good

    def _attempt(self, n: int, rng: np.random.Generator) -> Rows:
        rows = np.empty((n, len(self.axes)), dtype=np.int16)
        column = {axis: j for j, axis in enumerate(self.axes)}
        start = self.prefixes[rng.integers(0, len(self.prefixes), n)]
        for j, axis in enumerate(self.order):
            known = j < start.shape[1]
            rows[:, column[axis]] = start[:, j] if known else rng.integers(0, self.counts[axis], n)
        return rows[self.valid(rows)]

    def _propagated(self, n: int, rng: np.random.Generator) -> Rows:
        """Random values one parameter at a time, each allowed by every constraint looked at alone."""
        steps = plan(self.order, self.rules, self.counts, {axis: j for j, axis in enumerate(self.axes)})
        width, found = len(self.axes), [np.empty((0, len(self.axes)), dtype=np.int16)]
        for _ in range(8):
            rows = np.zeros((max(4 * n, 256), width), dtype=np.int16)
            for step in steps:
                allowed = step.allowed(rows)
                alive = allowed.any(axis=1)
                rows, allowed = rows[alive], allowed[alive]
                rows[:, self.axes.index(step.axis)] = np.argmax(rng.random(allowed.shape) * allowed, axis=1)
            found.append(rows[:n])
            if sum(map(len, found)) >= n:
                break
        return np.concatenate(found)


def _depth_first(steps: Sequence[Step], width: int, *, node_limit: int = 20_000) -> Rows | None:
    """The lexicographically first row (1, width), or None where the limit came first."""
    row = np.zeros((1, width), dtype=np.int16)
    pending: list[list[int]] = [np.flatnonzero(steps[0].allowed(row)[0]).tolist()]
    for _ in range(node_limit):
        if not pending:
            return None
        if not pending[-1]:
            pending.pop()
            continue
        depth = len(pending) - 1
        row[0, depth] = pending[-1].pop(0)
        if depth + 1 == len(steps):
            return row
        pending.append(np.flatnonzero(steps[depth + 1].allowed(row)[0]).tolist())
    return None


def components(rules: Sequence[Rule], width: int) -> list[tuple[int, ...]]:
    """Axes grouped so that every rule reads axes of one group only; groups by their least axis."""
    group = list(range(width))
    for rule in rules:
        joined = {group[axis] for axis in rule.axes}
        least = min(joined, default=0)
        group = [least if g in joined else g for g in group]
    return [tuple(axis for axis in range(width) if group[axis] == g) for g in sorted(set(group))]


def enumerate_component(
    axes: tuple[int, ...], rules: Sequence[Rule], counts: Sequence[int], row_limit: int
) -> Listed | Open:
    """Breadth first, one parameter at a time, each constraint as soon as it can refuse anything.

    Raises EmptyError with the constraint that took the last combination.
    """
    mine = tuple(rule for rule in rules if rule.axes and rule.axes[0] in axes)
    order = _promising_order(axes, mine, counts)
    column = {axis: j for j, axis in enumerate(order)}
    rows, work = np.zeros((1, 0), dtype=np.int16), 0
    for step in plan(order, mine, counts, column):
        work += len(rows) * step.count * (1 + _DIRECT_COST * len(step.direct))
        grown = _grow(rows, step, row_limit) if work <= WORK_LIMIT else None
        if grown is None:
            return _open(axes, order, rows, mine, counts)
        if not len(grown):
            raise EmptyError(step.emptied_by(rows))
        rows = grown
    rows = np.ascontiguousarray(rows[:, [column[axis] for axis in axes]])
    return Listed(axes, rows if order == axes else rows[lexicographic(rows, [counts[axis] for axis in axes])])


def _grow(rows: Rows, step: Step, row_limit: int) -> Rows | None:
    """Every row with every allowed value appended; None if that makes more than row_limit."""
    grown: list[Rows] = []
    total, size = 0, max(1, CHUNK // step.count)
    for start in range(0, len(rows), size):
        chunk = rows[start : start + size]
        row, value = np.nonzero(step.allowed(chunk))
        total += len(row)
        if total > row_limit:
            return None
        grown.append(np.column_stack((chunk[row], value.astype(np.int16))))
    return np.concatenate(grown)


def _promising_order(axes: tuple[int, ...], rules: Sequence[Rule], counts: Sequence[int]) -> tuple[int, ...]:
    """Parameters so that constraints are complete early: next, those of the rule with the fewest combinations left."""
    order: list[int] = []
    while len(order) < len(axes):
        open_rules = [left for rule in rules if (left := [a for a in rule.axes if a not in order])]
        if not open_rules:
            return (*order, *(axis for axis in axes if axis not in order))
        order.extend(min(open_rules, key=lambda left: (math.prod(counts[a] for a in left), left)))
    return tuple(order)


def _open(
    axes: tuple[int, ...], order: tuple[int, ...], prefixes: Rows, rules: tuple[Rule, ...], counts: Sequence[int]
) -> Open:
    """With its size estimated from draws with a fixed seed. Raises EmptyError if no valid combination was found."""
    completed = len(prefixes) * math.prod(counts[axis] for axis in order[prefixes.shape[1] :])
    rng, tried, hits = np.random.default_rng(0), 0, 0
    trial = Open(axes, order, prefixes, rules, tuple(counts), completed, 1.0)
    while hits < 1000 and tried < _TRIES:
        hits, tried = hits + len(trial._attempt(2**16, rng)), tried + 2**16
    estimate = max(1, completed * hits // tried)
    result = Open(axes, order, prefixes, rules, tuple(counts), estimate, hits / tried)
    if not hits and not len(result.draw(1, rng)):
        raise EmptyError(" and ".join(dict.fromkeys(rule.written for rule in rules)))
    return result


def lexicographic(rows: Rows, counts: Sequence[int]) -> NDArray[np.intp]:
    """Order that sorts the rows by their columns, first column first. counts: values per column."""
    if math.prod(counts) >= 2**62:
        return np.lexsort(rows.T[::-1])
    code = np.zeros(len(rows), dtype=np.int64)
    for j, count in enumerate(counts):
        code = code * count + rows[:, j]
    return np.argsort(code, kind="stable")
