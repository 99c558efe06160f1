"""y = A x, A sparse in CSR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value


def _problem(rows: int, cols: int, nnz: int) -> dict[str, Value]:
    return {"rows": rows, "cols": cols, "nnz": nnz, "dtype": "float32"}


EDGE_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1, 1),
    _problem(1021, 2053, 65537),
    _problem(5, 3, 7),
    _problem(1, 10007, 100003),
    _problem(100003, 7, 1009),
    _problem(4096, 1, 262144),
)
TINY_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1, 1),
    _problem(1, 50, 1000),
    _problem(37, 41, 500),
    _problem(300, 5, 60),
    _problem(16, 64, 1024),
    _problem(129, 3, 2000),
)
TOLERANCE: Mapping[str, float] = {"float32": 2e-6}
TUNED: dict[str, Value] = {
    "ROW_THREADS": 8,
    "ROWS": 32,
    "VEC": 2,
    "WORK": 2,
    "READ_ONLY": 1,
    "MATRIX": "streaming",
}
LARGE_PROBLEM: dict[str, Value] = _problem(1 << 19, 1 << 19, 1 << 24)
NEEDS_BARRIER: dict[str, Value] | None = None


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    rows, cols, nnz = (int(problem[name]) for name in ("rows", "cols", "nnz"))
    inner = np.sort(rng.integers(0, nnz + 1, rows - 1, dtype=np.int32))
    return {
        "offsets": np.concatenate([[0], inner, [nnz]]).astype(np.int32),
        "columns": rng.integers(0, cols, nnz, dtype=np.int32),
        "values": rng.standard_normal(nnz, dtype=np.float32),
        "x": rng.standard_normal(cols, dtype=np.float32),
    }


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    rows = np.repeat(np.arange(int(problem["rows"])), np.diff(inputs["offsets"]))
    products = inputs["values"].astype(np.float64) * inputs["x"].astype(np.float64)[inputs["columns"]]
    sums = np.bincount(rows, weights=products, minlength=int(problem["rows"]))
    return {"y": sums.astype(np.float64)}
