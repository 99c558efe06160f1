"""y = centre * x + side * (sum of the four neighbours), zero outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value


def _problem(height: int, width: int) -> dict[str, Value]:
    return {"height": height, "width": width, "centre": 0.5, "side": 0.125, "dtype": "float32"}


EDGE_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1),
    _problem(67, 131),
    _problem(3, 5),
    _problem(2053, 4),
    _problem(1, 10007),
    _problem(260, 516),
)
TINY_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1),
    _problem(7, 37),
    _problem(37, 3),
    _problem(1, 300),
    _problem(20, 68),
    _problem(33, 130),
)
TOLERANCE: Mapping[str, float] = {"float32": 1e-6}
TUNED: dict[str, Value] = {
    "BLOCK_X": 64,
    "BLOCK_Y": 4,
    "VEC": 4,
    "ROWS": 8,
    "UNROLL": 4,
    "SIDES": "shuffle",
    "READ_ONLY": 1,
    "STORE": "streaming",
}
LARGE_PROBLEM: dict[str, Value] = _problem(8192, 8192)
NEEDS_BARRIER: dict[str, Value] = {"SIDES": "shared"}


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {"x": rng.standard_normal((int(problem["height"]), int(problem["width"])), dtype=np.float32)}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    x = np.pad(inputs["x"].astype(np.float64), 1)
    around = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
    centre, side = (float(np.float32(problem[name])) for name in ("centre", "side"))
    return {"y": centre * x[1:-1, 1:-1] + side * around}
