"""Has the device compare outputs, inputs and guard bands itself, with the kernels of checks.cu.

Says the same as the comparisons in ``kept`` and ``checking``, without moving arrays to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.worker.arrays import canonical, storage
from tuner_daemon.worker.checking import HostReference, Sums
from tuner_daemon.worker.device import GUARD_PATTERN, BrokenError, Buffer, Device, Loaded, RefusedError
from tuner_daemon.worker.kept import Examined
from tuner_daemon.worker.messages import Array, Program, Scalar

BLOCKS, THREADS = 1024, 256
_FIELDS = {"differing_words": 2, "broken_guards": 3, "fingerprint": 1}
_SUMS = 7
_SPOILING = 4  # blocks per multiprocessor
_TRIED = Array("v", "output", "float32", (1000,), "zeros")

Arguments = Sequence[Buffer | Scalar]
Question = tuple[str, Sequence[Arguments]]
"""A kernel of checks.cu, and what it is launched on."""


class DeviceChecks:
    """``binary``: checks.cu, built for the device. Raises RefusedError if it cannot be loaded, or counts wrongly."""

    def __init__(self, device: Device, binary: Path) -> None:
        self._device, self._binary = device, binary
        self._loaded: dict[str, Loaded] = {}
        self._partials: Buffer | None = None
        self._attributes: dict[str, float] = device.describe()["attributes"]
        try:
            right = self._counts_rightly()
        except BrokenError as error:
            raise RefusedError(str(error)) from error
        if not right:
            raise RefusedError("the device does not count as this process does")

    def examine(
        self,
        compared: Sequence[tuple[Buffer, Buffer, Array]],
        pairs: Sequence[tuple[Buffer, Buffer]],
        guarded: Sequence[Buffer],
    ) -> Examined:
        *sums, same, guards = self._ask(
            [
                *(_comparison(out, reference, array) for out, reference, array in compared),
                ("differing_words", [[one, other, _int64(one.nbytes)] for one, other in pairs]),
                ("broken_guards", [_bands(buffer) for buffer in guarded]),
            ]
        )
        return Examined(
            [_as_sums(seen, _compared_as(array)[1]) for seen, (_, _, array) in zip(sums, compared, strict=True)],
            _as_equal(same, [one.nbytes for one, _ in pairs]),
            _as_broken(guards, [sum(buffer.guard_bytes) for buffer in guarded]),
        )

    def sums(self, out: Buffer, reference: Buffer, array: Array) -> Sums:
        return self.examine([(out, reference, array)], [], []).sums[0]

    def fingerprints(self, buffers: Sequence[Buffer]) -> list[int]:
        (seen,) = self._ask([("fingerprint", [[b, _int64(b.nbytes)] for b in buffers])])
        return [int(n) for n in seen.sum(axis=(1, 2))]  # modulo 2^64, as unsigned integers add up

    def spoil(self) -> None:
        """Shared memory: a block with all of it, several times as often as there are multiprocessors."""
        nbytes, count = (int(self._attributes.get(name, 0)) for name in ("shared_bytes_per_block", "sm_count"))
        if not nbytes or not count:
            return
        if "spoil_shared" not in self._loaded:
            program = Program(self._binary, "spoil_shared", (_SPOILING * count, 1, 1), (THREADS, 1, 1), nbytes)
            self._loaded["spoil_shared"] = self._device.load(program)
        self._device.launch(self._loaded["spoil_shared"].bind([_int64(nbytes)]))

    def _ask(self, questions: Sequence[Question]) -> list[NDArray[np.uint64]]:
        """All launches, and one look at what their blocks leave: 8 bytes each, (items, blocks, fields) per question."""
        shapes = [(len(work), BLOCKS, _FIELDS.get(entry, _SUMS)) for entry, work in questions]
        starts = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)]).tolist()
        partials = self._partials_of(8 * starts[-1])
        partials.fill(0, 0, 8 * starts[-1])
        calls = [
            self._kernel(entry).bind([*item, partials, _int64(start + number * shape[1] * shape[2])])
            for (entry, work), shape, start in zip(questions, shapes, starts, strict=False)
            for number, item in enumerate(work)
        ]
        self._device.launch(*calls)
        seen = partials.read(8 * starts[-1]).view(np.uint64)
        return [seen[begin:end].reshape(shape) for begin, end, shape in zip(starts, starts[1:], shapes, strict=False)]

    def _kernel(self, entry: str) -> Loaded:
        if entry not in self._loaded:
            program = Program(self._binary, entry, (BLOCKS, 1, 1), (THREADS, 1, 1), shared_bytes=8 * THREADS)
            self._loaded[entry] = self._device.load(program)
        return self._loaded[entry]

    def _partials_of(self, nbytes: int) -> Buffer:
        """At least so many bytes."""
        if self._partials is None or self._partials.nbytes < nbytes:
            self._partials = self._device.allocate(nbytes)
        return self._partials

    def _counts_rightly(self) -> bool:
        """Tried on what this process can count as well."""
        want = np.arange(1, 1 + _TRIED.shape[0], dtype=np.float32)
        out = want.copy()
        out[3], out[700], want[13] = -5.0, np.nan, np.inf
        one, other = (self._device.allocate(want.nbytes) for _ in range(2))
        one.write(out.view(np.uint8))
        other.write(want.view(np.uint8))
        counted, expected = self.sums(one, other, _TRIED), HostReference(_TRIED, want).sums(out)
        first, second, third = self.fingerprints([one, other, one])
        return (
            counted == expected  # small whole numbers: exact in any order
            and self.examine([], [(one, other), (one, one)], [one]) == Examined([], [False, True], [(0, 0)])
            and first == third != second
        )


def _comparison(out: Buffer, reference: Buffer, array: Array) -> Question:
    dtype, count = _compared_as(array)
    return f"compare_{dtype}", [[out, reference, _int64(count)]]


def _bands(buffer: Buffer) -> Arguments:
    before, after = buffer.guard_bytes
    return [buffer, *map(_int64, (before, buffer.nbytes, after)), Scalar("pattern", "int32", GUARD_PATTERN)]


def _as_sums(seen: NDArray[np.uint64], count: int) -> Sums:
    ((elements, square, peak, own_square, own_peak, unfinite, differing),) = seen.view(np.float64).transpose(0, 2, 1)
    counts = [float(c.sum()) for c in (elements, unfinite, differing)]
    _require(counts[0] == count and np.isfinite(counts).all())
    return Sums(
        elements=count,
        square=float(square.sum()),
        peak=float(peak.max()),
        reference_square=float(own_square.sum()),
        reference_peak=float(own_peak.max()),
        unfinite=int(counts[1]),
        differing=int(counts[2]),
    )


def _as_equal(seen: NDArray[np.uint64], nbytes: Sequence[int]) -> list[bool]:
    totals = seen.view(np.float64).sum(axis=1)
    _require(totals[:, 0].tolist() == list(nbytes))
    return [count == 0 for count in totals[:, 1]]


def _as_broken(seen: NDArray[np.uint64], band_bytes: Sequence[int]) -> list[tuple[int, int]]:
    totals = seen.view(np.float64).sum(axis=1)
    _require(totals[:, 0].tolist() == list(band_bytes))
    return [(int(before), int(after)) for _, before, after in totals]


def _compared_as(array: Array) -> tuple[str, int]:
    """The type that the kernel is named after, and the number of its elements."""
    name, dtype = canonical(array.dtype), storage(array.dtype)
    count = int(np.prod(array.shape, dtype=np.int64))
    if name == "bfloat16":
        return name, count
    if dtype.kind == "c":
        return f"float{4 * dtype.itemsize}", 2 * count
    return dtype.name, count


def _int64(value: int) -> Scalar:
    return Scalar("", "int64", value)


def _require(everything: Any) -> None:
    if not everything:
        raise BrokenError("the device did not compare all that it was told to")
