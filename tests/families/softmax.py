"""Softmax: right answers, and the sizes at which they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value
from tuner_daemon.worker.arrays import from_bfloat16, to_bfloat16


def _problem(rows: int, cols: int, dtype: str = "float32") -> dict[str, Value]:
    return {"rows": rows, "cols": cols, "dtype": dtype}


EDGE_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1),
    _problem(67, 131),
    _problem(3, 5, "bfloat16"),
    _problem(1031, 4),
    _problem(2, 8209),
    _problem(37, 1544, "bfloat16"),
    _problem(131, 4096),
)
TINY_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1),
    _problem(9, 31),
    _problem(5, 36),
    _problem(37, 16, "bfloat16"),
    _problem(3, 520, "bfloat16"),
    _problem(2, 2052),
    _problem(3, 203, "bfloat16"),
    _problem(1, 9000),
)
TOLERANCE: Mapping[str, float] = {"float32": 2e-6, "bfloat16": 6e-3}
TUNED: dict[str, Value] = {
    "VEC": 4,
    "WORK": 4,
    "STEPS": 8,
    "PREFETCH": 1,
    "CACHE": 2,
    "REDUCE": "shuffle",
    "STREAM": 1,
    "EXP": "fast",
}
LARGE_PROBLEM: dict[str, Value] = _problem(8192, 4096)
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
    offsets = rng.choice([-1e4, 1e4], (rows, 1))
    x = 10 * rng.standard_normal((rows, cols)) + offsets
    x[rng.random((rows, cols)) < 0.01] = -np.inf  # masked elements
    x[:, -1] = offsets[:, 0]  # of any row at least one is not
    values = x.astype(np.float32)
    return {"x": to_bfloat16(values) if problem["dtype"] == "bfloat16" else values}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """In double precision."""
    x = from_bfloat16(inputs["x"]) if problem["dtype"] == "bfloat16" else inputs["x"]
    exponentials = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return {"y": exponentials / exponentials.sum(axis=1, keepdims=True)}
