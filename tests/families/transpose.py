"""Transposition: right answers, and the sizes at which they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value


def _problem(rows: int, cols: int) -> dict[str, Value]:
    return {"rows": rows, "cols": cols, "dtype": "float32"}


EDGE_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1),
    _problem(67, 131),
    _problem(3, 5),
    _problem(4099, 4),
    _problem(2, 8209),
    _problem(516, 1028),
)
TINY_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1),
    _problem(67, 131),
    _problem(3, 5),
    _problem(140, 12),
    _problem(7, 300),
    _problem(300, 9),
    _problem(132, 136),
)
TOLERANCE: Mapping[str, float] = {"float32": 1e-30}
TUNED: dict[str, Value] = {
    "TILE_ROWS": 64,
    "TILE_COLS": 64,
    "VEC": 4,
    "WORK": 4,
    "GROUP": 8,
    "LAYOUT": "swizzled",
    "STREAM": 1,
}
LARGE_PROBLEM: dict[str, Value] = _problem(16384, 16384)
NEEDS_BARRIER: dict[str, Value] | None = {}


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {"x": rng.standard_normal((int(problem["rows"]), int(problem["cols"])), dtype=np.float32)}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """Exactly: nothing is rounded."""
    return {"y": inputs["x"].T.astype(np.float64)}
