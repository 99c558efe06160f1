"""counts[b] = how many of keys[n] are b."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value


def _problem(n: int, bins: int) -> dict[str, Value]:
    return {"n": n, "bins": bins, "dtype": "int32"}


EDGE_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1),
    _problem(10007, 256),
    _problem(5, 4096),
    _problem(1000003, 4093),
    _problem(262144, 2),
    _problem(300007, 97),
)
TINY_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1),
    _problem(7, 300),
    _problem(2053, 31),
    _problem(3000, 256),
    _problem(1021, 4096),
    _problem(4096, 2),
)
TOLERANCE: Mapping[str, float] = {"int32": 1e-12}
TUNED: dict[str, Value] = {
    "BLOCK": 512,
    "WORK": 4,
    "VEC": 4,
    "PRIVATE": "lane",
    "COPIES": 32,
    "LOAD": "streaming",
    "BLOCKS": 528,
}
LARGE_PROBLEM: dict[str, Value] = _problem(1 << 27, 256)
NEEDS_BARRIER: dict[str, Value] = {"PRIVATE": "warp"}


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Runs of equal keys among them."""
    keys = rng.integers(0, int(problem["bins"]), int(problem["n"]), dtype=np.int32)
    return {"keys": np.where(rng.random(keys.size) < 0.3, np.roll(keys, 1), keys).astype(np.int32)}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    return {"counts": np.bincount(inputs["keys"], minlength=int(problem["bins"])).astype(np.float64)}
