"""Is an output right? The error measure and its tolerance.

A sum of L terms accumulated with unit roundoff u has, for rounding errors that are independent with zero mean, a
relative error of about u * sqrt(L) (N. J. Higham, T. Mary: A new approach to probabilistic rounding error
analysis, SIAM J. Sci. Comput. 41, 2019), whatever the order of summation. So::

    tolerance = base + 8 * u * sqrt(reduction_length)

``base`` allows for what is not a sum (fast divisions and exponentials, outputs rounded to 16 bits) and is that of
the coarsest floating-point type among the array arguments, since a kernel may keep intermediate results in it;
u is that of the accumulator: binary64 where every type is, else binary32. 8 is for safety. Integer outputs must
be equal. A kernel's own tolerance may only tighten this.

Two errors are held against it: ||out - ref|| / ||ref|| over all elements, and the largest single error, where
max |out - ref| / max |ref| may be four times the tolerance: the norm alone would hide one wrong element among
millions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tuner_daemon.worker.arrays import HostArray, canonical, is_floating, numbers
from tuner_daemon.worker.messages import Array

_BASE = {"float64": 1e-12, "complex128": 1e-12, "float32": 1e-5, "complex64": 1e-5, "float16": 1e-2, "bfloat16": 1e-2}
_TF32_BASE = 1e-3
_PEAK_FACTOR = 4.0
_CHUNK = 1 << 18  # elements converted to float64 at a time: stays in the cache


def tolerance(arrays: Iterable[Array], reduction_length: float, own: float | None) -> float:
    """The bound on ||out - ref|| / ||ref|| of floating-point outputs; see the module's text for the formula."""
    dtypes = [a.dtype for a in arrays if is_floating(a.dtype)]
    if not dtypes:
        return 0.0
    base = max(_TF32_BASE if d == "tf32" else _BASE[canonical(d)] for d in dtypes)
    roundoff = 2.0**-53 if base == _BASE["float64"] else 2.0**-24
    allowed = base + 8 * roundoff * math.sqrt(max(1.0, reduction_length))
    return allowed if own is None else min(allowed, own)


@dataclass(frozen=True)
class Expected:
    """A reference output with what comparing needs of it."""

    array: Array
    values: HostArray  # as stored
    norm: float  # over the finite elements
    peak: float
    finite: bool

    @classmethod
    def of(cls, array: Array, values: HostArray) -> Expected:
        flat = numbers(values, array.dtype).reshape(-1)
        with np.errstate(all="ignore"):
            square, peak = _measure(flat, None)
            finite = math.isfinite(square)
            if not finite:
                square, peak = _measure(np.where(np.isfinite(flat), flat, 0), None)
        return cls(array, values, math.sqrt(square), peak, finite)


@dataclass(frozen=True)
class Verdict:
    """``wrong`` is empty for a right output. ``error_norm`` is infinite where the output is not finite."""

    error_norm: float
    wrong: str = ""


def compare(expected: Expected, out: HostArray, allowed: float) -> Verdict:
    """out: as stored, of the reference's shape and type."""
    name, dtype = expected.array.name, expected.array.dtype
    if not is_floating(dtype):
        return _compare_exactly(expected, out)
    with np.errstate(all="ignore"):
        got, want = numbers(out, dtype).reshape(-1), numbers(expected.values, dtype).reshape(-1)
        if not expected.finite:
            got = np.where(np.isfinite(want), got, 0)
            want = np.where(np.isfinite(want), want, 0)
        square, peak = _measure(got, want)
        if not math.isfinite(square):
            return Verdict(math.inf, _unfinite(expected, got, want))
        error = _ratio(math.sqrt(square), expected.norm)
        worst = _ratio(peak, expected.peak)
        if error <= allowed and worst <= _PEAK_FACTOR * allowed:
            return Verdict(error)
        at = int(np.argmax(np.abs(got.astype(np.float64) - want)))
    return Verdict(
        error,
        f"{name}{_index(expected, at)} is {got[at]:.7g}, want {want[at]:.7g}; "
        f"error {error:.3g} in norm and {worst:.3g} at worst, allowed {allowed:.3g} and {_PEAK_FACTOR * allowed:.3g}",
    )


def _measure(got: HostArray, want: HostArray | None) -> tuple[float, float]:
    """Sum of squares and largest magnitude of got - want, in float64."""
    square, peak = 0.0, 0.0
    for start in range(0, got.size, _CHUNK):
        part = got[start : start + _CHUNK].astype(np.float64)
        if want is not None:
            part -= want[start : start + _CHUNK]
        peak = max(peak, float(part.max()), -float(part.min()))
        square += float(np.square(part, out=part).sum())  # not part @ part: BLAS would take other threads to it
    return square, peak


def _ratio(error: float, reference: float) -> float:
    """Relative to the reference; absolute where the reference is zero everywhere."""
    return error / reference if reference > 0.0 else error


def _compare_exactly(expected: Expected, out: HostArray) -> Verdict:
    got, want = out.reshape(-1), expected.values.reshape(-1)
    if np.array_equal(got, want):
        return Verdict(0.0)
    square, _ = _measure(got.astype(np.float64), want.astype(np.float64))
    differ = got != want
    at, count = int(np.argmax(differ)), int(np.count_nonzero(differ))
    return Verdict(
        _ratio(math.sqrt(square), expected.norm),
        f"{expected.array.name}{_index(expected, at)} is {got[at]}, want {want[at]}; {count} of {got.size} differ",
    )


def _unfinite(expected: Expected, got: HostArray, want: HostArray) -> str:
    bad = ~np.isfinite(got)
    if not bad.any():
        return f"{expected.array.name} is too large to compare"
    at, count = int(np.argmax(bad)), int(np.count_nonzero(bad))
    return (
        f"{expected.array.name}{_index(expected, at)} is {got[at]}, want {want[at]:.7g}; "
        f"{count} of {got.size} elements are not finite (unwritten outputs hold NaN)"
    )


def _index(expected: Expected, at: int) -> str:
    if np.iscomplexobj(expected.values):
        at //= 2
    return str([int(i) for i in np.unravel_index(at, expected.values.shape)]) if expected.values.ndim else ""
