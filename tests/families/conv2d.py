"""y[n, k, p, q] = x[n, c, h, w] convolved with weights[k, c, r, s], as a sum over the positions of the filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value


def _problem(
    n: int, c: int, size: tuple[int, int], k: int, taps: tuple[int, int], stride: int = 1, pad: int = 0
) -> dict[str, Value]:
    (h, w), (r, s) = size, taps
    sizes = {"n": n, "c": c, "h": h, "w": w, "k": k, "r": r, "s": s, "stride": stride, "pad": pad}
    return {**sizes, "dtype": "float32"}


EDGE_PROBLEMS: Sequence[dict[str, Value]] = [
    _problem(1, 1, (1, 1), 1, (1, 1)),
    _problem(2, 7, (11, 13), 5, (3, 3), 1, 1),
    _problem(3, 17, (14, 14), 37, (3, 3), 2, 1),
    _problem(1, 3, (61, 4), 19, (7, 3), 1, 3),
    _problem(5, 4, (2, 131), 3, (2, 5), 3, 2),
    _problem(1, 67, (5, 9), 131, (1, 1), 2, 0),
    _problem(4, 16, (28, 28), 64, (3, 3), 1, 1),
]
TINY_PROBLEMS: Sequence[dict[str, Value]] = [
    _problem(1, 1, (1, 1), 1, (1, 1)),
    _problem(2, 5, (5, 7), 3, (3, 3), 1, 1),
    _problem(1, 9, (6, 6), 18, (3, 3), 2, 1),
    _problem(1, 2, (19, 3), 5, (4, 3), 1, 3),
    _problem(3, 3, (2, 41), 2, (2, 5), 3, 2),
    _problem(1, 19, (3, 4), 7, (1, 1), 2, 0),
    _problem(2, 4, (8, 8), 8, (1, 1)),
]
TOLERANCE: Mapping[str, float] = {"float32": 2e-6}
TUNED: dict[str, Value] = {
    "ALGORITHM": "gemm",
    "TAPS": "single",
    "BM": 64,
    "BN": 128,
    "BK": 8,
    "PATCH_W": 8,
    "TM": 8,
    "TN": 8,
    "VEC": 4,
    "UNROLL": 8,
    "STAGES": 3,
    "SHARED": 1,
    "PAD": 4,
}
LARGE_PROBLEM: dict[str, Value] = _problem(32, 64, (56, 56), 64, (3, 3), 1, 1)
NEEDS_BARRIER: dict[str, Value] | None = {"SHARED": 1}


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    n, c, h, w, k, r, s = (int(problem[name]) for name in "nchwkrs")
    return {
        "x": rng.standard_normal((n, c, h, w), dtype=np.float32),
        "weights": rng.standard_normal((k, c, r, s), dtype=np.float32),
    }


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    stride, pad = int(problem["stride"]), int(problem["pad"])
    x = np.pad(inputs["x"].astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    weights = inputs["weights"].astype(np.float64)
    r, s = weights.shape[2:]
    p, q = ((extent - taps) // stride + 1 for extent, taps in zip(x.shape[2:], (r, s), strict=True))
    y = np.zeros((x.shape[0], weights.shape[0], p, q))
    for down in range(r):
        for right in range(s):
            under = x[:, :, down : down + stride * p : stride, right : right + stride * q : stride][:, :, :p, :q]
            y += np.einsum("ncpq,kc->nkpq", under, weights[:, :, down, right], optimize=True)
    return {"y": y}
