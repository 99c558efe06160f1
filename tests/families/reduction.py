"""y[rows] = sum or maximum of x[rows, cols] over the last axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value


def _problem(rows: int, cols: int, operation: str) -> dict[str, Value]:
    return {"rows": rows, "cols": cols, "operation": operation, "dtype": "float32"}


EDGE_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1, "sum"),
    _problem(67, 131, "max"),
    _problem(3, 5, "sum"),
    _problem(10007, 3, "sum"),
    _problem(1, 1000003, "sum"),
    _problem(2, 300007, "max"),
    _problem(16, 65536, "sum"),
)
TINY_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1, "max"),
    _problem(1, 2053, "sum"),
    _problem(3, 1000, "max"),
    _problem(11, 5, "sum"),
    _problem(5, 36, "max"),
    _problem(2, 4096, "sum"),
)
TOLERANCE: Mapping[str, float] = {"float32": 2e-6}
TUNED: dict[str, Value] = {
    "ROW_THREADS": 256,
    "VEC": 4,
    "WORK": 4,
    "LOAD": "streaming",
    "REDUCE": "shuffle",
    "SPLIT": 4224,
    "COMBINE": "last_block",
}
LARGE_PROBLEM: dict[str, Value] = _problem(1, 1 << 27, "sum")
NEEDS_BARRIER: dict[str, Value] = {"REDUCE": "shared"}


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Maxima lie below zero and sums far from it: neither is right by chance, and a sum's error is relative to it."""
    x = rng.standard_normal((int(problem["rows"]), int(problem["cols"])), dtype=np.float32)
    return {"x": x - np.float32(50.0) if problem["operation"] == "max" else x + np.float32(1.0)}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    x = inputs["x"].astype(np.float64)
    return {"y": x.max(axis=1) if problem["operation"] == "max" else x.sum(axis=1)}
