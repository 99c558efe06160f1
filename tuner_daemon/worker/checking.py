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

``judge`` decides, from sums alone. Who adds them up, this process or the device itself (checks.cu), makes no
difference to the rule; ``describe`` then finds words for a wrong output, but decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tuner_daemon.worker.arrays import HostArray, canonical, is_floating, numbers, storage
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
class Sums:
    """What an output is judged by, in float64. A complex number counts as two elements.

    Nothing is asked where the reference is not finite: such elements are counted in ``elements`` alone.
    """

    elements: int  # compared
    square: float  # sum of (out - ref)^2 where both are finite
    peak: float  # largest |out - ref| there
    reference_square: float  # sum of ref^2 over its finite elements
    reference_peak: float
    unfinite: int  # elements where the reference is finite and the output is not
    differing: int  # integer elements that are not equal


@dataclass(frozen=True)
class Verdict:
    """``error_norm`` and ``worst`` are ||out - ref|| / ||ref|| and max |out - ref| / max |ref|; infinite where the
    output is not finite."""

    right: bool
    error_norm: float
    worst: float


def judge(sums: Sums, array: Array, allowed: float) -> Verdict:
    """allowed: from ``tolerance``."""
    if is_floating(array.dtype) and (sums.unfinite or not math.isfinite(sums.square)):
        return Verdict(False, math.inf, math.inf)
    error = _ratio(math.sqrt(sums.square), math.sqrt(sums.reference_square))
    worst = _ratio(sums.peak, sums.reference_peak)
    if not is_floating(array.dtype):
        return Verdict(sums.differing == 0, error, worst)
    return Verdict(error <= allowed and worst <= _PEAK_FACTOR * allowed, error, worst)


def _ratio(error: float, reference: float) -> float:
    """Relative to the reference; absolute where the reference is zero everywhere."""
    return error / reference if reference > 0.0 else error


@dataclass(frozen=True)
class HostReference:
    """A reference output in this process's memory. values: as stored."""

    array: Array
    values: HostArray

    def sums(self, out: HostArray) -> Sums:
        """out: as stored, of the reference's shape and type."""
        square, peak, finite = self._own
        dtype = self.array.dtype
        if not is_floating(dtype):
            return self._integer_sums(out.reshape(-1), self.values.reshape(-1))
        with np.errstate(all="ignore"):
            got, want = numbers(out, dtype).reshape(-1), numbers(self.values, dtype).reshape(-1)
            asked = True if finite else np.isfinite(want)
            if not finite:
                got, want = np.where(asked, got, 0), np.where(asked, want, 0)
            difference, worst = _measure(got, want)
            unfinite = 0
            if not math.isfinite(difference):
                good = np.isfinite(got)
                unfinite = int(got.size - np.count_nonzero(good))
                difference, worst = _measure(np.where(good, got, want), want)
        return Sums(got.size, difference, worst, square, peak, unfinite, 0)

    @cached_property
    def _own(self) -> tuple[float, float, bool]:
        """Sum of squares and largest magnitude over the finite elements; whether that is all of them."""
        flat = numbers(self.values, self.array.dtype).reshape(-1)
        with np.errstate(all="ignore"):
            square, peak = _measure(flat, None)
            if math.isfinite(square):
                return square, peak, True
            return *_measure(np.where(np.isfinite(flat), flat, 0), None), False

    def _integer_sums(self, got: HostArray, want: HostArray) -> Sums:
        square, peak, _ = self._own
        if np.array_equal(got, want):
            return Sums(got.size, 0.0, 0.0, square, peak, 0, 0)
        difference, worst = _measure(got.astype(np.float64), want.astype(np.float64))
        return Sums(got.size, difference, worst, square, peak, 0, int(np.count_nonzero(got != want)))


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


def describe(array: Array, want: HostArray, out: HostArray, verdict: Verdict, allowed: float) -> str:
    """Where a wrong output is wrong, in words. want, out: as stored, of the array's shape."""
    with np.errstate(all="ignore"):
        got, wanted = numbers(out, array.dtype).reshape(-1), numbers(want, array.dtype).reshape(-1)
        if not is_floating(array.dtype):
            differ = got != wanted
            at, count = int(np.argmax(differ)), int(np.count_nonzero(differ))
            return f"{_element(array, at)} is {got[at]}, want {wanted[at]}; {count} of {got.size} differ"
        asked = np.isfinite(wanted)
        bad = asked & ~np.isfinite(got)
        if bad.any():
            at, count = int(np.argmax(bad)), int(np.count_nonzero(bad))
            return (
                f"{_element(array, at)} is {got[at]}, want {wanted[at]:.7g}; "
                f"{count} of {got.size} elements are not finite (unwritten outputs hold NaN)"
            )
        if not math.isfinite(verdict.error_norm):
            return f"{array.name} is too large to compare"
        at = int(np.argmax(np.where(asked, np.abs(got.astype(np.float64) - wanted), 0)))
    return (
        f"{_element(array, at)} is {got[at]:.7g}, want {wanted[at]:.7g}; error {verdict.error_norm:.3g} in norm and "
        f"{verdict.worst:.3g} at worst, allowed {allowed:.3g} and {_PEAK_FACTOR * allowed:.3g}"
    )


def _element(array: Array, at: int) -> str:
    """The array's name with the indices of element ``at``."""
    if storage(array.dtype).kind == "c":
        at //= 2
    return f"{array.name}{[int(i) for i in np.unravel_index(at, array.shape)] if array.shape else ''}"
