"""Root mean square normalisation: right answers, and the sizes at which they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value
from tuner_daemon.worker.arrays import from_bfloat16, to_bfloat16

EPS = 1e-5


def _problem(rows: int, cols: int, dtype: str = "float32", eps: float = EPS) -> dict[str, Value]:
    return {"rows": rows, "cols": cols, "eps": eps, "dtype": dtype}


EDGE_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1),
    _problem(67, 131, eps=0.1),
    _problem(3, 5, "bfloat16"),
    _problem(1031, 4),
    _problem(2, 8209),
    _problem(37, 1544, "bfloat16"),
    _problem(131, 4096),
)
TINY_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1),
    _problem(9, 31, eps=0.1),
    _problem(5, 36),
    _problem(37, 16, "bfloat16"),
    _problem(3, 520, "bfloat16"),
    _problem(2, 2052),
    _problem(3, 203, "bfloat16"),
    _problem(1, 9000),
)
TOLERANCE: Mapping[str, float] = {"float32": 1e-6, "bfloat16": 4e-3}
TUNED: dict[str, Value] = {
    "VEC": 4,
    "WORK": 4,
    "STEPS": 8,
    "PREFETCH": 1,
    "CACHE": 2,
    "REDUCE": "shuffle",
    "STREAM": 1,
}
LARGE_PROBLEM: dict[str, Value] = _problem(8192, 4096)
NEEDS_BARRIER: dict[str, Value] | None = {"REDUCE": "shared"}


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Some rows lie far from zero."""
    rows, cols = int(problem["rows"]), int(problem["cols"])
    narrow = problem["dtype"] == "bfloat16"
    means = rng.choice([0.0, -10.0, 10.0] if narrow else [0.0, -1e3, 1e3], (rows, 1))
    values = {
        "x": (rng.standard_normal((rows, cols)) + means).astype(np.float32),
        "gamma": rng.standard_normal(cols, dtype=np.float32),
    }
    return {name: to_bfloat16(array) if narrow else array for name, array in values.items()}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """In double precision."""
    narrow = problem["dtype"] == "bfloat16"
    x, gamma = ((from_bfloat16(inputs[name]) if narrow else inputs[name]).astype(np.float64) for name in ("x", "gamma"))
    return {"y": x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + float(problem["eps"])) * gamma}
