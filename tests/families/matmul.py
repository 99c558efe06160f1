"""C[m, n] = A[m, k] * B[k, n]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value


def _problem(m: int, n: int, k: int) -> dict[str, Value]:
    return {"m": m, "n": n, "k": k, "dtype": "float32"}


EDGE_PROBLEMS: Sequence[dict[str, Value]] = [
    _problem(*shape) for shape in ((1, 1, 1), (131, 97, 61), (5, 12, 7), (523, 3, 36), (4, 516, 300))
]
TINY_PROBLEMS: Sequence[dict[str, Value]] = [
    _problem(*shape)
    for shape in ((1, 1, 1), (17, 29, 13), (64, 4, 40), (1, 300, 7), (130, 12, 36), (33, 36, 100), (40, 40, 40))
]
TOLERANCE: Mapping[str, float] = {"float32": 2e-6}
TUNED: dict[str, Value] = {
    "BM": 128,
    "BN": 128,
    "BK": 16,
    "TM": 8,
    "TN": 8,
    "VEC": 4,
    "UNROLL": 8,
    "STAGES": 2,
    "PAD": 4,
}
LARGE_PROBLEM: dict[str, Value] = _problem(2048, 2048, 2048)
NEEDS_BARRIER: dict[str, Value] | None = {}

TUNED_ON_CPU: dict[str, Value] = {"BM": 64, "BN": 64, "BK": 32, "TM": 4, "TN": 8, "VEC": 4, "UNROLL": 4}
LARGE_PROBLEM_ON_CPU: dict[str, Value] = _problem(384, 384, 384)
SLIP_IN_C = ("step < depth; ++step) {\n        const vector", "step < depth - 1; ++step) {\n        const vector")


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    m, n, k = (int(problem[name]) for name in ("m", "n", "k"))
    return {name: rng.standard_normal(size, dtype=np.float32) for name, size in (("A", (m, k)), ("B", (k, n)))}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    return {"C": inputs["A"].astype(np.float64) @ inputs["B"].astype(np.float64)}
