"""y[rows, cols] = inclusive prefix sums of x over the last axis."""

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
    _problem(10007, 3),
    _problem(1, 1000003),
    _problem(5, 65536),
)
TINY_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1),
    _problem(1, 2053),
    _problem(3, 1000),
    _problem(11, 5),
    _problem(5, 36),
    _problem(2, 2048),
)
TOLERANCE: Mapping[str, float] = {"float32": 5e-6}
TUNED: dict[str, Value] = {
    "ROW_THREADS": 256,
    "VEC": 4,
    "WORK": 4,
    "LOAD": "streaming",
    "STORE": "streaming",
    "LAYOUT": "striped",
    "REDUCE": "shuffle",
    "METHOD": "look_back_warp",
}
LARGE_PROBLEM: dict[str, Value] = _problem(1, 1 << 25)
NEEDS_BARRIER: dict[str, Value] = {"REDUCE": "shared"}


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Far enough from zero on average that sums grow with the columns."""
    x = rng.standard_normal((int(problem["rows"]), int(problem["cols"])), dtype=np.float32)
    return {"x": x + np.float32(0.25)}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    return {"y": np.cumsum(inputs["x"].astype(np.float64), axis=1)}
