"""C[m, n] = A[m, k] * B[k, n]; a column-major operand lies in memory as its transpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value


def _problem(m: int, n: int, k: int, a_layout: str = "row", b_layout: str = "row") -> dict[str, Value]:
    return {"m": m, "n": n, "k": k, "dtype": "float32", "a_layout": a_layout, "b_layout": b_layout}


EDGE_PROBLEMS: Sequence[dict[str, Value]] = [
    _problem(1, 1, 1),
    _problem(131, 97, 61),
    _problem(5, 12, 7, "column", "row"),
    _problem(523, 3, 36, "column", "column"),
    _problem(4, 516, 300, "row", "column"),
    _problem(260, 264, 516),
]
TINY_PROBLEMS: Sequence[dict[str, Value]] = [
    _problem(1, 1, 1),
    _problem(17, 29, 13),
    _problem(64, 4, 40, "column", "row"),
    _problem(1, 300, 7),
    _problem(130, 12, 36, "row", "column"),
    _problem(33, 36, 100, "column", "column"),
    _problem(40, 40, 40),
    _problem(36, 140, 68),
]
TOLERANCE: Mapping[str, float] = {"float32": 2e-6}
TUNED: dict[str, Value] = {
    "BM": 128,
    "BN": 256,
    "BK": 16,
    "TM": 8,
    "TN": 16,
    "VEC": 4,
    "UNROLL": 16,
    "STAGES": 3,
    "FRAGMENTS": 2,
    "TRANSPOSE": 1,
    "PAD": 4,
    "RASTER": 8,
}
LARGE_PROBLEM: dict[str, Value] = _problem(2048, 2048, 2048)
NEEDS_BARRIER: dict[str, Value] | None = {}

TUNED_ON_CPU: dict[str, Value] = {
    "BM": 64,
    "BN": 64,
    "BK": 32,
    "TM": 4,
    "TN": 8,
    "VEC": 4,
    "UNROLL": 8,
    "RASTER": 8,
}
LARGE_PROBLEM_ON_CPU: dict[str, Value] = _problem(384, 384, 384)
SLIP_IN_C = ("step < depth; ++step) {\n        const vector", "step < depth - 1; ++step) {\n        const vector")


def _stored(layout: Value, rows: int, columns: int) -> tuple[int, int]:
    return (rows, columns) if layout == "row" else (columns, rows)


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    m, n, k = (int(problem[name]) for name in ("m", "n", "k"))
    sizes = {"A": _stored(problem["a_layout"], m, k), "B": _stored(problem["b_layout"], k, n)}
    return {name: rng.standard_normal(size, dtype=np.float32) for name, size in sizes.items()}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    a, b = inputs["A"].astype(np.float64), inputs["B"].astype(np.float64)
    return {
        "C": (a if problem["a_layout"] == "row" else a.T) @ (b if problem["b_layout"] == "row" else b.T),
    }
