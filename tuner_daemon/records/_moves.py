"""Small moves in a space: neighbours of a configuration, and the valid one nearest to a point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records._components import Listed, Open
from tuner_daemon.records._rules import Mask, Rows, plan

_WHOLE = 40_000  # a neighbourhood of at most this many rows is looked at whole


def neighbour_rows(
    row: NDArray[np.int16],
    counts: Sequence[int],
    valid: Callable[[Rows], Mask],
    rng: np.random.Generator,
    n: int,
    changes: int,
) -> Rows:
    """(m, d) distinct valid rows, m <= n, that differ from ``row`` (d,) in 1 to ``changes`` positions."""
    free = [axis for axis, count in enumerate(counts) if count > 1]
    changes = min(changes, len(free))
    sizes = [_ways(counts, free, k) for k in range(1, changes + 1)]
    if n <= 0 or changes < 1:
        return np.empty((0, len(counts)), dtype=np.int16)
    whole = [_every(row, counts, free, k) for k, size in enumerate(sizes, 1) if size <= _WHOLE]
    drawn = [_some(row, counts, free, k, 64 * n + 256, rng) for k, size in enumerate(sizes, 1) if size > _WHOLE]
    rows = np.unique(np.concatenate(whole + drawn), axis=0)
    rows = rows[valid(rows)]
    distance = (rows != row).sum(axis=1)
    rarity = np.bincount(distance, minlength=changes + 1)[distance]
    return rows[np.argsort(rng.exponential(size=len(rows)) * rarity)[:n]]


def _ways(counts: Sequence[int], free: Sequence[int], k: int) -> int:
    """Rows that differ in exactly k positions: the elementary symmetric polynomial of (count - 1)."""
    ways = [1] + [0] * k
    for axis in free:
        for i in range(k, 0, -1):
            ways[i] += ways[i - 1] * (counts[axis] - 1)
    return ways[k]


def _every(row: NDArray[np.int16], counts: Sequence[int], free: Sequence[int], k: int) -> Rows:
    steps = _steps(tuple(counts), tuple(free), k)
    return ((row.astype(np.int32) + steps) % np.array(counts, dtype=np.int32)).astype(np.int16)


@lru_cache(maxsize=64)
def _steps(counts: tuple[int, ...], free: tuple[int, ...], k: int) -> Rows:
    """What to add to a row, modulo the counts, for every row that differs from it in exactly k positions. Searches ask
    for the neighbours of hundreds of rows of one space."""
    found = []
    for axes in itertools.combinations(free, k):
        others = [np.arange(1, counts[axis], dtype=np.int16) for axis in axes]
        steps = np.zeros((math.prod(map(len, others)), len(counts)), dtype=np.int16)
        for axis, values in zip(axes, np.meshgrid(*others, indexing="ij"), strict=True):
            steps[:, axis] = values.ravel()
        found.append(steps)
    return np.concatenate(found)


def _some(
    row: NDArray[np.int16], counts: Sequence[int], free: Sequence[int], k: int, n: int, rng: np.random.Generator
) -> Rows:
    axes = np.array(free)[np.argsort(rng.random((n, len(free))), axis=1)[:, :k]]
    limits = np.array(counts)[axes]
    values = (row[axes] + 1 + (rng.random(axes.shape) * (limits - 1)).astype(np.int64)) % limits
    rows = np.tile(row, (n, 1))
    np.put_along_axis(rows, axes, values.astype(np.int16), axis=1)
    return rows


def nearest(
    part: Listed | Open, x: NDArray[np.float32], codes: Sequence[NDArray[np.float32]], counts: Sequence[int]
) -> Rows:
    """(n, k) valid rows of the part near the points x (n, k). codes: per column, the code of each value."""
    distances = [(x[:, j, None].astype(np.float64) - code) ** 2 for j, code in enumerate(codes)]
    rows = np.column_stack([np.argmin(distance, axis=1) for distance in distances]).astype(np.int16)
    if isinstance(part, Listed):
        if len(part.rows) == math.prod(map(len, codes)):
            return rows
        for i in range(len(x)):
            total = sum(distance[i][part.rows[:, j]] for j, distance in enumerate(distances))
            rows[i] = part.rows[int(np.argmin(total))]
        return rows
    wrong = ~part.valid(rows)
    if wrong.any():
        rows[wrong] = _value_by_value(part, [distance[wrong] for distance in distances], counts)
    return rows


def _value_by_value(part: Open, distances: Sequence[NDArray[np.float64]], counts: Sequence[int]) -> Rows:
    column = {axis: j for j, axis in enumerate(part.axes)}
    rows = np.zeros((len(distances[0]), len(part.axes)), dtype=np.int16)
    for step in plan(part.order, part.rules, counts, column):
        j = column[step.axis]
        rows[:, j] = np.argmin(np.where(step.allowed(rows), distances[j], np.inf), axis=1)
    for i in np.flatnonzero(~part.valid(rows)):
        drawn = part.draw(1024, np.random.default_rng(0))
        total = sum(distance[i][drawn[:, j]] for j, distance in enumerate(distances))
        rows[i] = drawn[int(np.argmin(total))]
    return rows
