"""Builds many configurations at once, value by value, without dead ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records._components import Listed, Open, lexicographic
from tuner_daemon.records._rules import Mask, Rows, Step, plan
from tuner_daemon.records.kernel import Parameter

if TYPE_CHECKING:
    from tuner_daemon.records.space import Config

Part = Listed | Open


@dataclass(frozen=True)
class WalkState:
    """n partial configurations. Never changed: ``choose`` gives a new one."""

    step: int  # parameters decided so far
    chosen: NDArray[np.int16]  # (n, d) positions of values, in the space's parameter order; -1 where undecided
    alive: Mask  # (n,) false for a prefix that propagation could not complete
    nodes: NDArray[np.int64]  # (n, parts) node of each part's trie


class _Trie:
    """Valid combinations of one part, sorted by a given order; a node at level l is a distinct prefix of length l."""

    def __init__(self, part: Listed, order: Sequence[int], counts: Sequence[int]) -> None:
        columns = [part.axes.index(axis) for axis in order]
        rows = part.rows[:, columns]
        if list(order) != sorted(order):
            rows = rows[lexicographic(rows, [counts[axis] for axis in order])]
        self.values: list[NDArray[np.int16]] = []  # per level: (nodes,) value of its last parameter
        self.first: list[NDArray[np.int64]] = []  # per level: (nodes + 1,) first child of the level above's node
        parents, new = np.zeros(1, dtype=np.int64), np.zeros(len(rows), dtype=np.bool_)
        new[0] = True
        for j in range(rows.shape[1]):
            new[1:] |= rows[1:, j] != rows[:-1, j]
            starts = np.flatnonzero(new)
            self.values.append(rows[starts, j])
            self.first.append(np.append(np.searchsorted(starts, parents), len(starts)))
            parents = starts

    def children(self, level: int, nodes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """(n, count) child of each node for each value of the next parameter; -1 where there is none."""
        low, high = self.first[level][nodes], self.first[level][nodes + 1]
        width = high - low
        row = np.repeat(np.arange(len(nodes)), width)
        child = np.arange(len(row)) + np.repeat(low - (np.cumsum(width) - width), width)
        table = np.full((len(nodes), count), -1, dtype=np.int64)
        table[row, self.values[level][child]] = child
        return table


class PrefixWalker:
    """n partial configurations decided one parameter at a time.

    ``start(n)`` returns a state; ``options(state)`` an (n, v) mask over the next parameter's values, true where
    at least one valid configuration continues so (exact if listed, by constraint propagation otherwise);
    ``choose(state, picks)`` takes (n,) value indices; ``finish(state)`` gives the configurations (a prefix that
    propagation could not complete is dropped).

    ``order`` holds the parameter names as they are decided. States may be kept and continued more than once.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        parts: Sequence[Part],
        order: Sequence[str],
        make: Callable[[Rows], list[Config]],
    ) -> None:
        """Raises ValueError if order is not a permutation of the parameters' names."""
        axis_of = {parameter.name: j for j, parameter in enumerate(parameters)}
        if sorted(order) != sorted(axis_of):
            raise ValueError(f"order must name every parameter once, got {list(order)!r}")
        self.order = tuple(order)
        self._parameters = tuple(parameters)
        self._make = make
        self._parts = len(parts)
        self._axes = [axis_of[name] for name in order]
        counts = [len(parameter.values) for parameter in parameters]
        part_of = {axis: p for p, part in enumerate(parts) for axis in part.axes}
        self._part = [part_of[axis] for axis in self._axes]
        self._level = [self._part[:i].count(self._part[i]) for i in range(len(order))]
        self._tries: dict[int, _Trie] = {}
        self._steps: dict[int, list[Step]] = {}
        for p, part in enumerate(parts):
            local = [axis for axis in self._axes if axis in part.axes]
            if isinstance(part, Listed):
                self._tries[p] = _Trie(part, local, counts)
            else:
                self._steps[p] = plan(local, part.rules, counts, {axis: axis for axis in local})

    def start(self, n: int) -> WalkState:
        chosen = np.full((n, len(self.order)), -1, dtype=np.int16)
        return WalkState(0, chosen, np.ones(n, dtype=np.bool_), np.zeros((n, self._parts), dtype=np.int64))

    def parameter(self, state: WalkState) -> Parameter:
        """The one to be decided next. Raises ValueError if all are decided."""
        return self._parameters[self._axis(state)]

    def done(self, state: WalkState) -> bool:
        return state.step == len(self.order)

    def options(self, state: WalkState) -> Mask:
        """(n, v) true where a valid configuration continues so. A row that is no longer alive is all true: whatever
        is picked there is dropped in the end, and a sampler need not look out for rows without options."""
        allowed = self._allowed(state)
        allowed[~allowed.any(axis=1)] = True
        return allowed

    def choose(self, state: WalkState, picks: NDArray[np.integer]) -> WalkState:
        """picks: (n,) positions of values. Raises ValueError for one that is not among the options."""
        axis, part = self._axis(state), self._part[state.step]
        allowed, row = self._allowed(state), np.arange(len(picks))
        alive = state.alive & allowed.any(axis=1)
        if not np.all(allowed[row, picks] | ~alive):
            raise ValueError(f"picked a value of {self._parameters[axis].name} that no valid configuration has here")
        chosen = state.chosen.copy()
        chosen[:, axis] = picks
        nodes = state.nodes
        if part in self._tries:
            nodes = nodes.copy()
            nodes[:, part] = self._children(state)[row, picks]
            nodes[~alive, part] = 0
        return replace(state, step=state.step + 1, chosen=chosen, alive=alive, nodes=nodes)

    def finish(self, state: WalkState) -> list[Config]:
        """The configurations, in the order of rows; see ``alive`` for which rows they are. Raises ValueError if a
        parameter is undecided."""
        if not self.done(state):
            raise ValueError(f"{len(self.order) - state.step} parameters are undecided")
        return self._make(state.chosen[state.alive])

    def _axis(self, state: WalkState) -> int:
        if self.done(state):
            raise ValueError("every parameter is decided")
        return self._axes[state.step]

    def _children(self, state: WalkState) -> NDArray[np.int64]:
        part, count = self._part[state.step], len(self.parameter(state).values)
        return self._tries[part].children(self._level[state.step], state.nodes[:, part], count)

    def _allowed(self, state: WalkState) -> Mask:
        axis, part = self._axis(state), self._part[state.step]
        if part in self._tries:
            allowed: Mask = self._children(state) >= 0
        else:
            allowed = self._steps[part][self._level[state.step]].allowed(np.maximum(state.chosen, 0))
        assert allowed.shape[1] == len(self._parameters[axis].values)
        return allowed & state.alive[:, None]
