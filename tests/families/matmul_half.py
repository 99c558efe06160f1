"""C = A B in float16 or bfloat16: what it is and where its edges are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value
from tuner_daemon.worker.arrays import numbers, to_bfloat16

DTYPES = ("bfloat16", "float16")
LAYOUTS = (("row", "row"), ("column", "row"), ("row", "column"), ("column", "column"))


def _problem(m: int, n: int, k: int, dtype: str, a_layout: str, b_layout: str) -> dict[str, Value]:
    return {"m": m, "n": n, "k": k, "dtype": dtype, "a_layout": a_layout, "b_layout": b_layout}


# One element; primes; one row, one column, one step; smaller than any tile; rows of which not all, or none, are
# aligned to vectors of 8, 4 or 2 elements; more than one tile of every size.
EDGE_PROBLEMS: Sequence[dict[str, Value]] = [
    _problem(*shape, DTYPES[i % 2], *LAYOUTS[i % 4])
    for i, shape in enumerate(
        [
            (1, 1, 1),
            (127, 257, 131),
            (1, 1000, 129),
            (1021, 1, 72),
            (300, 40, 1),
            (8, 16, 24),
            (520, 264, 1000),
            (260, 516, 68),
            (131, 262, 2054),
        ]
    )
]
TINY_PROBLEMS: Sequence[dict[str, Value]] = [
    _problem(*shape, dtype, *layouts)
    for shape, dtype, layouts in [
        ((1, 1, 1), "bfloat16", LAYOUTS[0]),
        ((33, 31, 37), "float16", LAYOUTS[0]),
        ((72, 40, 264), "bfloat16", LAYOUTS[0]),
        ((40, 136, 72), "float16", LAYOUTS[1]),
        ((20, 68, 132), "bfloat16", LAYOUTS[2]),
        ((130, 34, 70), "bfloat16", LAYOUTS[3]),
        ((24, 296, 40), "float16", LAYOUTS[3]),
        ((80, 16, 130), "bfloat16", LAYOUTS[1]),
        ((9, 72, 80), "float16", LAYOUTS[2]),
    ]
]


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    m, n, k = (int(problem[name]) for name in "mnk")
    return {"A": _rounded(rng.normal(size=(m, k)), problem), "B": _rounded(rng.normal(size=(k, n)), problem)}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    a, b = (numbers(inputs[name], str(problem["dtype"])).astype(np.float64) for name in "AB")
    if problem["a_layout"] == "column":
        a = a.reshape(a.shape[::-1]).T
    if problem["b_layout"] == "column":
        b = b.reshape(b.shape[::-1]).T
    return {"C": a @ b}


def _rounded(values: NDArray[np.float64], problem: Mapping[str, Value]) -> NDArray[Any]:
    return values.astype(np.float16) if problem["dtype"] == "float16" else to_bfloat16(values.astype(np.float32))


# Half a unit in the last place of C is 2^-9 or 2^-12 of an element; summing in float32 adds less.
TOLERANCE: Mapping[str, float] = {"bfloat16": 3e-3, "float16": 4e-4}
TUNED: dict[str, Value] = {
    "MMA": "wgmma",
    "BM": 128,
    "BN": 256,
    "BK": 32,
    "WM": 64,
    "WN": 256,
    "STAGES": 6,
    "IN_FLIGHT": 1,
    "LAYOUT": "swizzled",
    "GROUP": 16,
    "STORE": "shared",
}
LARGE_PROBLEM: dict[str, Value] = _problem(4096, 4096, 4096, "bfloat16", "row", "row")
NEEDS_BARRIER: dict[str, Value] = {}
