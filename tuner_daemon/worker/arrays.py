"""Types, contents and poison of array arguments.

Floating-point inputs come from two distributions. With ``fill = "normal"``: standard normal, and uniform in
[-1, 1). With ``fill = "uniform"``: uniform in [0, 1), and its square (mass near 0), so that a kernel which needs
values in [0, 1) gets nothing else. Integers: up to 8 or 16 in magnitude; never negative with ``fill = "uniform"``
or in unsigned types. ``integers`` are uniform in [low, high); ``sorted`` ones begin with low, end with high, and never
fall, as offsets do. ``arange``, ``zeros`` and .npy files are the same in every set.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.worker.device import GUARD_PATTERN
from tuner_daemon.worker.messages import Array

HostArray = NDArray[Any]

_NAMES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "tf32": "float32",
    "long": "int64",
    "char": "int8",
}
_STORAGE = {"bfloat16": "uint16", "bool": "uint8"}
DISTRIBUTIONS = ("normal", "uniform")
RANGES = ("integers", "sorted")
_PART = 1 << 20  # elements from one generator
_MOST_THREADS = 16


def canonical(dtype: str) -> str:
    """The numpy name of a type, or ``bfloat16``."""
    return _NAMES.get(dtype, dtype)


def storage(dtype: str) -> np.dtype[Any]:
    """What numpy holds the type in: bfloat16 has no numpy type and is kept as its 16 bits."""
    name = canonical(dtype)
    return np.dtype(_STORAGE.get(name, name))


def is_floating(dtype: str) -> bool:
    return canonical(dtype) == "bfloat16" or storage(dtype).kind in "fc"


def nbytes(array: Array) -> int:
    return int(np.prod(array.shape, dtype=np.int64)) * storage(array.dtype).itemsize


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def numbers(raw: HostArray, dtype: str) -> HostArray:
    """Stored elements as numbers that can be subtracted: complex values become pairs."""
    if canonical(dtype) == "bfloat16":
        return from_bfloat16(raw)
    if raw.dtype.kind == "c":
        return raw.view(raw.real.dtype)
    return raw


def poison_byte(array: Array) -> int:
    """Fills outputs before a check: all bits set is a NaN in every floating-point type; a known pattern for others."""
    return 0xFF if is_floating(array.dtype) else GUARD_PATTERN


def is_random(array: Array) -> bool:
    """Whether the contents differ from one input set to the next."""
    return array.kind in ("input", "inout") and array.fill in (*DISTRIBUTIONS, *RANGES)


def make(array: Array, seed: int, distribution: str, position: int) -> HostArray:
    """The argument's contents in one input set. Raises OSError, ValueError for a .npy file that does not fit."""
    if array.fill == "zeros":
        return np.zeros(array.shape, storage(array.dtype))
    if array.fill == "arange":
        return _from_numbers(np.arange(int(np.prod(array.shape, dtype=np.int64))).reshape(array.shape), array.dtype)
    if array.fill in RANGES:
        return _in_range(array, np.random.default_rng((seed, position)))
    if array.fill in DISTRIBUTIONS:
        return _random(array, distribution, (seed, position))
    return load(Path(array.fill), array)


def load(path: Path, array: Array) -> HostArray:
    """A .npy file as the argument's type and shape. Raises OSError, ValueError (no pickles)."""
    values = np.load(path, allow_pickle=False)
    if tuple(values.shape) != array.shape:
        raise ValueError(f"{path.name} has shape {tuple(values.shape)}, want {array.shape} for {array.name}")
    if canonical(array.dtype) == "bfloat16" and values.dtype == np.uint16:
        return np.ascontiguousarray(values)
    return _from_numbers(values, array.dtype)


def _random(array: Array, distribution: str, seed: Sequence[int]) -> HostArray:
    if not is_floating(array.dtype):
        return _random_integers(array, distribution, np.random.default_rng(seed))
    dtype = storage(array.dtype)
    if dtype.kind == "c":
        real, imaginary = (_random_floats(array, distribution, (*seed, part)) for part in range(2))
        return (real + 1j * imaginary).astype(dtype)
    return _from_numbers(_random_floats(array, distribution, seed), array.dtype)


def _random_floats(array: Array, distribution: str, seed: Sequence[int]) -> HostArray:
    """Every part has a generator of its own, so that it does not matter how many threads fill them."""
    wide = np.float64 if storage(array.dtype) in (np.float64, np.complex128) else np.float32
    values = np.empty(array.shape, wide)
    flat = values.reshape(-1)
    parts = [flat[start : start + _PART] for start in range(0, flat.size, _PART)]

    def fill(number: int) -> None:
        _fill_part(parts[number], array.fill, distribution, np.random.default_rng([*seed, number]))

    if len(parts) < 2:
        fill(0)
        return values
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(parts), _MOST_THREADS, len(os.sched_getaffinity(0)))) as pool:
        list(pool.map(fill, range(len(parts))))
    return values


def _fill_part(part: HostArray, fill: str, distribution: str, rng: np.random.Generator) -> None:
    if fill == "normal" and distribution == "normal":
        rng.standard_normal(dtype=part.dtype.type, out=part)
        return
    rng.random(dtype=part.dtype.type, out=part)
    if fill == "normal":
        part *= 2
        part -= 1
    elif distribution == "normal":
        part *= part


def _random_integers(array: Array, distribution: str, rng: np.random.Generator) -> HostArray:
    dtype = storage(array.dtype)
    if canonical(array.dtype) == "bool":
        return rng.integers(0, 2, array.shape, dtype=dtype)
    high = 16 if distribution == "uniform" else 8
    low = 0 if dtype.kind == "u" or array.fill == "uniform" else -high
    return rng.integers(low, high, array.shape, dtype=dtype)


def _in_range(array: Array, rng: np.random.Generator) -> HostArray:
    dtype = storage(array.dtype)
    if array.fill == "integers":
        return rng.integers(array.low, array.high, array.shape, dtype=dtype)
    values = rng.integers(array.low, array.high, int(np.prod(array.shape, dtype=np.int64)), dtype=dtype, endpoint=True)
    values.sort()
    values[:1] = array.low
    values[-1:] = array.high
    return values.reshape(array.shape)


def _from_numbers(values: HostArray, dtype: str) -> HostArray:
    if canonical(dtype) == "bfloat16":
        return to_bfloat16(values.astype(np.float32))
    return np.ascontiguousarray(values.astype(storage(dtype), copy=False))
