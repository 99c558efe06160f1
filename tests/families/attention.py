"""Attention's shapes and right answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Value


def _problem(batch: int, heads: int, q_len: int, kv_len: int, head_dim: str, causal: str) -> dict[str, Value]:
    return {
        "batch": batch,
        "heads": heads,
        "q_len": q_len,
        "kv_len": kv_len,
        "head_dim": head_dim,
        "causal": causal,
        "dtype": "bfloat16",
    }


EDGE_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1, 1, 1, "64", "no"),
    _problem(1, 2, 127, 131, "128", "yes"),
    _problem(2, 3, 5, 7, "128", "no"),
    _problem(1, 5, 1031, 13, "64", "yes"),  # most queries see no key
    _problem(3, 1, 3, 2053, "128", "no"),
    _problem(2, 9, 257, 257, "64", "yes"),
    _problem(1, 1, 1, 4099, "64", "yes"),
)
TINY_PROBLEMS: Sequence[dict[str, Value]] = (
    _problem(1, 1, 1, 1, "128", "no"),
    _problem(1, 2, 67, 131, "64", "yes"),
    _problem(1, 1, 5, 300, "128", "yes"),
    _problem(1, 3, 33, 37, "64", "no"),
    _problem(1, 1, 70, 3, "128", "yes"),
    _problem(2, 1, 2, 129, "128", "no"),
)
TOLERANCE: Mapping[str, float] = {"bfloat16": 1e-2}
TUNED: dict[str, Value] = {
    "MMA": "wgmma",
    "BQ": 128,
    "BK": 128,
    "WARPS": 8,
    "STAGES": 4,
    "OVERLAP": 1,
    "P_IN": "registers",
    "EXP": "exp2",
    "LAZY": 1,
    "LONGEST_FIRST": 1,
}
LARGE_PROBLEM: dict[str, Value] = _problem(4, 16, 4096, 4096, "128", "no")
NEEDS_BARRIER: dict[str, Value] = {}


def _decoded(values: NDArray[Any]) -> NDArray[np.float64]:
    """bfloat16 bits as numbers."""
    return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _encoded(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def inputs(problem: Mapping[str, Value], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Queries large enough that some keys stand out, and maxima grow from tile to tile."""

    def tensor(length: str, scale: float) -> NDArray[np.uint16]:
        shape = tuple(int(problem[name]) for name in ("batch", "heads", length, "head_dim"))
        return _encoded(scale * rng.standard_normal(shape, dtype=np.float32))

    return {"Q": tensor("q_len", 4.0), "K": tensor("kv_len", 1.0), "V": tensor("kv_len", 1.0)}


def expected(problem: Mapping[str, Value], inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    queries, keys, values = (_decoded(inputs[name]) for name in "QKV")
    scores = queries @ keys.swapaxes(-1, -2) / np.sqrt(queries.shape[-1])
    q_len, kv_len = scores.shape[-2:]
    if problem["causal"] == "yes":
        seen = np.arange(kv_len) <= np.arange(q_len)[:, None] + (kv_len - q_len)
        scores = np.where(seen, scores, -np.inf)
    maxima = np.maximum(scores.max(axis=-1, keepdims=True), -1e300)  # finite where a query sees no key
    weights = np.exp(scores - maxima)
    sums = weights.sum(axis=-1, keepdims=True)
    return {"O": (weights @ values) / np.where(sums > 0, sums, 1.0)}
