"""alpha * x + y: right answers, and the sizes at which they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value
from tuner_daemon.worker.arrays import from_bfloat16, to_bfloat16


def _problem(n: int, dtype: str = "float32", alpha: float = 0.5) -> dict[str, Value]:
    return {"n": n, "alpha": alpha, "dtype": dtype}


EDGE_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1),
    _problem(7, "bfloat16", -1.25),
    _problem(1031, alpha=0.0),
    _problem(65536),
    _problem(104729, "bfloat16"),
    _problem(1299709),
)
TINY_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1),
    _problem(7, "bfloat16", -1.25),
    _problem(1031, alpha=0.0),
    _problem(4096),
    _problem(4099, "bfloat16"),
    _problem(10007),
    _problem(1, "bfloat16"),
)
TOLERANCE: Mapping[str, float] = {"float32": 2e-7, "bfloat16": 4e-3}
TUNED: dict[str, Value] = {"VEC": 4, "ITEMS": 2, "LOADS": "streaming", "STORES": "streaming"}
LARGE_PROBLEM: dict[str, Value] = _problem(1 << 26)
NEEDS_BARRIER: dict[str, Value] | None = None


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    values = {name: rng.standard_normal(int(problem["n"]), dtype=np.float32) for name in ("x", "y")}
    narrow = problem["dtype"] == "bfloat16"
    return {name: to_bfloat16(array) if narrow else array for name, array in values.items()}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """In double precision."""
    narrow = problem["dtype"] == "bfloat16"
    x, y = ((from_bfloat16(inputs[name]) if narrow else inputs[name]).astype(np.float64) for name in ("x", "y"))
    return {"z": float(problem["alpha"]) * x + y}
