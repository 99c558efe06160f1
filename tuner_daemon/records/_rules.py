"""Constraints as lookup tables over value positions, and what they allow next in a given order of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.errors import KernelError
from tuner_daemon.records._intervals import UNKNOWN, Interval
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Parameter, Value

Rows = NDArray[np.int16]
"""(n, k) positions of values in their declared order."""

Mask = NDArray[np.bool_]

TABLE_LIMIT = 2**21
"""A constraint whose parameters have more combinations than this is evaluated where needed, not tabulated."""

CHUNK = 2**21
"""Combinations looked at together."""

_DECIDING, _UNDECIDED = -1, -2  # instead of a column


def values_array(parameter: Parameter) -> NDArray[np.generic]:
    """(v,) the declared values. Raises KernelError for text mixed with numbers: no array can hold both."""
    if len({isinstance(value, str) for value in parameter.values}) != 1:
        raise KernelError("must be all text or all numbers", key=f"parameters.{parameter.name}")
    return np.array(parameter.values)


@dataclass(frozen=True)
class Rule:
    """One constraint with the problem's values put in.

    ``axes`` are the positions of its parameters, ascending; ``table`` has one dimension per axis, true where the
    constraint holds, or is None where that would be too large. ``written`` is the constraint as the kernel has it.
    """

    expression: Expression
    written: str
    axes: tuple[int, ...]
    arrays: tuple[NDArray[np.generic], ...]
    problem: Mapping[str, Value]
    names: tuple[str, ...]
    table: Mask | None

    @classmethod
    def bind(
        cls, expression: Expression, written: str, parameters: Sequence[Parameter], problem: Mapping[str, Value]
    ) -> Rule:
        """Raises ExpressionError for a name that is neither parameter nor problem value."""
        axes = tuple(j for j, parameter in enumerate(parameters) if parameter.name in expression.names)
        names = tuple(parameters[j].name for j in axes)
        arrays = tuple(values_array(parameters[j]) for j in axes)
        read = {name: problem[name] for name in sorted(expression.names - set(names)) if name in problem}
        table = None
        if math.prod(len(array) for array in arrays) <= TABLE_LIMIT:
            spread = [a.reshape([-1 if i == j else 1 for j in range(len(axes))]) for i, a in enumerate(arrays)]
            table = expression.holds({**read, **dict(zip(names, spread, strict=True))})
        return cls(expression, written, axes, arrays, read, names, table)

    def check(self, columns: Sequence[NDArray[np.int16]]) -> Mask:
        """Whether it holds. columns: positions per axis, in the order of ``axes``, any broadcastable shapes."""
        if self.table is not None:
            return np.asarray(self.table[tuple(columns)])
        given = {name: array[column] for name, array, column in zip(self.names, self.arrays, columns, strict=True)}
        return self.expression.holds({**self.problem, **given})

    def may_hold(self, columns: Sequence[NDArray[np.int16] | None]) -> Mask:
        """Whether it can still hold where the axes whose column is None are undecided. Sound, not exact."""
        bounds = {name: _bounds(np.asarray(value)) for name, value in self.problem.items()}
        for name, array, column in zip(self.names, self.arrays, columns, strict=True):
            bounds[name] = _bounds(array) if column is None else _points(array[column])
        return self.expression.may_hold(bounds)


def _bounds(array: NDArray[np.generic]) -> Interval:
    return UNKNOWN if array.dtype.kind == "U" else Interval.of(array.min(), array.max())


def _points(array: NDArray[np.generic]) -> Interval:
    return UNKNOWN if array.dtype.kind == "U" else Interval.of(array, array)


@dataclass(frozen=True)
class _Lookup:
    """A rule's table with the deciding axis last and undecided axes projected out: (combinations, v)."""

    rule: Rule
    columns: tuple[int, ...]
    strides: tuple[int, ...]
    table: Mask

    def allowed(self, rows: Rows) -> Mask:
        base = np.zeros(len(rows), dtype=np.int64)
        for column, stride in zip(self.columns, self.strides, strict=True):
            base += rows[:, column].astype(np.int64) * stride
        return np.asarray(self.table[base])


@dataclass(frozen=True)
class Step:
    """Deciding one parameter, given those before it.

    ``direct`` rules have no table: they are evaluated in full where every axis is decided, else by their bounds.
    """

    axis: int
    count: int  # number of values
    lookups: tuple[_Lookup, ...]
    direct: tuple[tuple[Rule, tuple[int, ...]], ...]  # rule, and its columns

    def allowed(self, rows: Rows) -> Mask:
        """(n, v): values that no constraint, looked at alone, refuses. Sound always, exact at the last step.

        rows: (n, k) positions in the plan's columns; columns not decided yet are not read.
        """
        mask = np.ones((len(rows), self.count), dtype=np.bool_)
        for lookup in self.lookups:
            mask &= lookup.allowed(rows)
        if self.direct and mask.any():
            mask[mask] = self._checked(rows, *np.nonzero(mask))
        return mask

    def _checked(self, rows: Rows, row: NDArray[np.intp], value: NDArray[np.intp]) -> Mask:
        good = np.ones(len(row), dtype=np.bool_)
        for rule, columns in self.direct:
            taken = [rows[row, c] if c >= 0 else value.astype(np.int16) if c == _DECIDING else None for c in columns]
            known = [column for column in taken if column is not None]
            good &= rule.check(known) if len(known) == len(taken) else rule.may_hold(taken)
        return good

    def emptied_by(self, rows: Rows) -> str:
        """The constraint after which, applied in turn, nothing was left."""
        size, last = max(1, CHUNK // self.count), 0
        for start in range(0, len(rows), size):
            chunk = rows[start : start + size]
            mask = np.ones((len(chunk), self.count), dtype=np.bool_)
            for i, lookup in enumerate(self.lookups):
                mask &= lookup.allowed(chunk)
                if not mask.any():
                    last = max(last, i)
                    break
            else:
                return self.direct[-1][0].written
        return self.lookups[last].rule.written


def plan(order: Sequence[int], rules: Sequence[Rule], counts: Sequence[int], columns: Mapping[int, int]) -> list[Step]:
    """One Step per parameter, in this order. columns: axis -> its column in the rows that the steps will see."""
    steps = []
    for i, axis in enumerate(order):
        bound = frozenset(order[: i + 1])
        lookups, direct = [], []
        for rule in rules:
            if axis not in rule.axes:
                continue
            if rule.table is not None:
                lookups.append(_project(rule, axis, bound, columns))
            else:
                at = {a: columns[a] for a in bound} | {axis: _DECIDING}
                direct.append((rule, tuple(at.get(a, _UNDECIDED) for a in rule.axes)))
        steps.append(Step(axis, counts[axis], tuple(lookups), tuple(direct)))
    return steps


def _project(rule: Rule, axis: int, bound: frozenset[int], columns: Mapping[int, int]) -> _Lookup:
    assert rule.table is not None
    undecided = tuple(i for i, a in enumerate(rule.axes) if a not in bound)
    table: Mask = np.asarray(rule.table.any(axis=undecided), dtype=np.bool_)
    kept = [a for a in rule.axes if a in bound]
    table = np.moveaxis(table, kept.index(axis), -1)
    others = [a for a in kept if a != axis]
    shape = table.shape[:-1]
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    flat = np.ascontiguousarray(table.reshape(-1, table.shape[-1]))
    return _Lookup(rule, tuple(columns[a] for a in others), strides, flat)
