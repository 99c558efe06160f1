"""y = centre * x + side * (sum of the six neighbours), zero outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value


def _problem(depth: int, height: int, width: int) -> dict[str, Value]:
    return {"depth": depth, "height": height, "width": width, "centre": 0.4, "side": 0.1, "dtype": "float32"}


EDGE_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1, 1),
    _problem(37, 67, 53),
    _problem(3, 5, 2),
    _problem(523, 3, 4),
    _problem(1, 2, 10007),
    _problem(40, 72, 136),
)
TINY_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1, 1),
    _problem(5, 7, 11),
    _problem(67, 2, 3),
    _problem(2, 1, 300),
    _problem(4, 12, 36),
    _problem(9, 33, 4),
)
TOLERANCE: Mapping[str, float] = {"float32": 1e-6}
TUNED: dict[str, Value] = {
    "BLOCK_X": 32,
    "BLOCK_Y": 8,
    "BLOCK_Z": 1,
    "VEC": 4,
    "ROWS": 1,
    "PLANES": 32,
    "UNROLL": 2,
    "SIDES": "shuffle",
    "READ_ONLY": 1,
    "STORE": "streaming",
}
LARGE_PROBLEM: dict[str, Value] = _problem(256, 512, 512)
NEEDS_BARRIER: dict[str, Value] = {"SIDES": "shared"}


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    shape = [int(problem[name]) for name in ("depth", "height", "width")]
    return {"x": rng.standard_normal(shape, dtype=np.float32)}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    x = np.pad(inputs["x"].astype(np.float64), 1)
    inner = slice(1, -1)
    around = (
        x[:-2, inner, inner]
        + x[2:, inner, inner]
        + x[inner, :-2, inner]
        + x[inner, 2:, inner]
        + x[inner, inner, :-2]
        + x[inner, inner, 2:]
    )
    centre, side = (float(np.float32(problem[name])) for name in ("centre", "side"))
    return {"y": centre * x[inner, inner, inner] + side * around}
