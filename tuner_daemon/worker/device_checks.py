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
from tuner_daemon.worker.messages import Array, Program, Scalar

BLOCKS, THREADS = 1024, 256
_FIELDS = {"differing_words": 2, "broken_guards": 3, "fingerprint": 1}
_SUMS = 7
_SPOILING = 4  # blocks per multiprocessor
_TRIED = Array("v", "output", "float32", (1000,), "zeros")

Arguments = Sequence[Buffer | Scalar]


class DeviceChecks:
    """``binary``: checks.cu, built for the device. Raises RefusedError if it cannot be loaded, or counts wrongly."""

    def __init__(self, device: Device, binary: Path) -> None:
        self._device, self._binary = device, binary
        self._loaded: dict[str, Loaded] = {}
        self._partials: dict[int, Buffer] = {}
        self._attributes: dict[str, float] = device.describe()["attributes"]
        try:
            right = self._counts_rightly()
        except BrokenError as error:
            raise RefusedError(str(error)) from error
        if not right:
            raise RefusedError("the device does not count as this process does")

    def sums(self, out: Buffer, reference: Buffer, array: Array) -> Sums:
        dtype, count = _compared_as(array)
        ((elements, square, peak, own_square, own_peak, unfinite, differing),) = (
            self._run(f"compare_{dtype}", [[out, reference, _int64(count)]]).view(np.float64).transpose(0, 2, 1)
        )
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

    def same(self, pairs: Sequence[tuple[Buffer, Buffer]]) -> list[bool]:
        work: list[Arguments] = [[one, other, _int64(one.nbytes)] for one, other in pairs]
        seen = self._run("differing_words", work).view(np.float64).sum(axis=1)
        _require(seen[:, 0].tolist() == [one.nbytes for one, _ in pairs])
        return [count == 0 for count in seen[:, 1]]

    def broken_guards(self, buffers: Sequence[Buffer]) -> list[tuple[int, int]]:
        work: list[Arguments] = [
            [b, *map(_int64, (b.guard_bytes[0], b.nbytes, b.guard_bytes[1])), Scalar("pattern", "int32", GUARD_PATTERN)]
            for b in buffers
        ]
        seen = self._run("broken_guards", work).view(np.float64).sum(axis=1)
        _require(seen[:, 0].tolist() == [sum(b.guard_bytes) for b in buffers])
        return [(int(before), int(after)) for _, before, after in seen]

    def fingerprints(self, buffers: Sequence[Buffer]) -> list[int]:
        seen = self._run("fingerprint", [[b, _int64(b.nbytes)] for b in buffers])
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

    def _run(self, entry: str, work: Sequence[Arguments]) -> NDArray[np.uint64]:
        """One launch for each item of work; what the blocks leave: 8 bytes each, (items, blocks, fields)."""
        if entry not in self._loaded:
            program = Program(self._binary, entry, (BLOCKS, 1, 1), (THREADS, 1, 1), shared_bytes=8 * THREADS)
            self._loaded[entry] = self._device.load(program)
        fields = _FIELDS.get(entry, _SUMS)
        partials = self._partials_of(8 * len(work) * BLOCKS * fields)
        partials.fill(0)
        loaded = self._loaded[entry]
        calls = [loaded.bind([*item, partials, _int64(number * BLOCKS)]) for number, item in enumerate(work)]
        self._device.launch(*calls)
        return partials.read().view(np.uint64).reshape(len(work), BLOCKS, fields)

    def _partials_of(self, nbytes: int) -> Buffer:
        if nbytes not in self._partials:
            self._partials[nbytes] = self._device.allocate(nbytes)
        return self._partials[nbytes]

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
            and self.same([(one, other), (one, one)]) == [False, True]
            and self.broken_guards([one]) == [(0, 0)]
            and first == third != second
        )


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
