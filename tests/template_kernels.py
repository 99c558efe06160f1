"""What tests of the shipped templates share: the kernels, shapes that have edges, samples, and right answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.records.kernel import Kernel, Value
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec

Array = NDArray[np.float32]

ROOT = Path(__file__).parent.parent
FAMILIES = ("matmul", "softmax")
SIZES = {"matmul": ("m", "n", "k"), "softmax": ("rows", "cols")}
EDGE_SHAPES: Mapping[str, Sequence[tuple[int, ...]]] = {
    # One element; primes; smaller than any tile; tall; wide.
    "matmul": ((1, 1, 1), (131, 97, 61), (5, 12, 7), (523, 3, 36), (4, 516, 300)),
    "softmax": ((1, 1), (67, 131), (3, 5), (1031, 4), (2, 8209)),
}


@cache
def template(family: str) -> Kernel:
    return load_kernel(ROOT / "templates" / family)


def problem_of(family: str, shape: Sequence[int]) -> dict[str, Value]:
    return {**dict(zip(SIZES[family], shape, strict=True)), "dtype": "float32"}


def spec_of(
    family: str, shape: Sequence[int] | None = None, kind: str = "cpu", kernel: Kernel | None = None
) -> KernelSpec:
    problem = problem_of(family, shape or EDGE_SHAPES[family][1])
    return KernelSpec(kernel or template(family), problem, DeviceRequest(kind), name=f"{family}.toml")


@cache
def space_of(family: str) -> ParamSpace:
    return ParamSpace(template(family), problem_of(family, EDGE_SHAPES[family][1]))


def sampled(family: str, count: int, seed: int) -> list[Config]:
    return space_of(family).sample(count, np.random.default_rng(seed))


def inputs_of(family: str, shape: Sequence[int], seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    if family == "matmul":
        m, n, k = shape
        return [rng.standard_normal(size, dtype=np.float32) for size in ((m, k), (k, n))]
    # Rows far from zero: exponentials overflow unless the maximum is taken off first.
    offsets = np.where(rng.random((shape[0], 1)) < 0.5, -1e4, 1e4).astype(np.float32)
    return [10 * rng.standard_normal(tuple(shape), dtype=np.float32) + offsets]


def expected(family: str, inputs: Sequence[Array]) -> NDArray[np.float64]:
    """In double precision."""
    if family == "matmul":
        product: NDArray[np.float64] = inputs[0].astype(np.float64) @ inputs[1].astype(np.float64)
        return product
    x = inputs[0].astype(np.float64)
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    quotient: NDArray[np.float64] = exponentials / exponentials.sum(axis=1, keepdims=True)
    return quotient


def error_norm(got: Array, wanted: NDArray[np.float64]) -> float:
    """The worst row's ||got - wanted|| / ||wanted||; NaN where anything is NaN."""
    return float(np.max(np.linalg.norm(got - wanted, axis=1) / np.linalg.norm(wanted, axis=1)))
