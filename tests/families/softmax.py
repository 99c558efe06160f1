"""y = softmax of x over the last axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value


def _problem(rows: int, cols: int) -> dict[str, Value]:
    return {"rows": rows, "cols": cols, "dtype": "float32"}


EDGE_PROBLEMS: Sequence[dict[str, Value]] = [
    _problem(*shape) for shape in ((1, 1), (67, 131), (3, 5), (1031, 4), (2, 8209))
]
TINY_PROBLEMS: Sequence[dict[str, Value]] = [
    _problem(*shape) for shape in ((1, 1), (3, 1000), (11, 5), (5, 36), (2, 2052), (9, 31), (1, 9000), (1, 9000))
]
TOLERANCE: Mapping[str, float] = {"float32": 2e-6}
TUNED: dict[str, Value] = {"VEC": 4, "WORK": 8, "CACHE": 2, "ONLINE": 1, "REDUCE": "shuffle", "EXP": "fast"}
LARGE_PROBLEM: dict[str, Value] = _problem(8192, 8192)
NEEDS_BARRIER: dict[str, Value] | None = {"REDUCE": "shared"}

TUNED_ON_CPU: dict[str, Value] = {
    "ROW_THREADS": 512,
    "VEC": 4,
    "WORK": 8,
    "UNROLL": 2,
    "CACHE": 2,
    "REDUCE": "shuffle",
    "EXP": "fast",
}
LARGE_PROBLEM_ON_CPU: dict[str, Value] = _problem(512, 1024)
SLIP_IN_C = ("row->sum *= expf(", "row->sum *= 1.001f * expf(")
SLIP_NEEDS: dict[str, Value] = {"ONLINE": 1}


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Rows far from zero: exponentials overflow unless the maximum is taken off first."""
    rows, cols = int(problem["rows"]), int(problem["cols"])
    offsets = np.where(rng.random((rows, 1)) < 0.5, -1e4, 1e4).astype(np.float32)
    return {"x": 10 * rng.standard_normal((rows, cols), dtype=np.float32) + offsets}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    x = inputs["x"].astype(np.float64)
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return {"y": exponentials / exponentials.sum(axis=1, keepdims=True)}
