"""Contents that must not change: an argument's in one input set, or what the reference gave for it.

They lie on the device where it can compare by itself and has room, else in this process's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tuner_daemon.worker import arrays
from tuner_daemon.worker.arrays import HostArray
from tuner_daemon.worker.checking import HostReference, Sums
from tuner_daemon.worker.device import GUARD_PATTERN, Buffer, Bytes, Device
from tuner_daemon.worker.messages import Array


class Checks(Protocol):
    """Comparisons that the device makes itself. All raise BrokenError if it does not do what it is told."""

    def sums(self, out: Buffer, reference: Buffer, array: Array) -> Sums: ...

    def same(self, pairs: Sequence[tuple[Buffer, Buffer]]) -> list[bool]:
        """Whether the buffers of each pair, which are of one size, hold the same bytes."""
        ...

    def broken_guards(self, buffers: Sequence[Buffer]) -> list[tuple[int, int]]:
        """Bytes of each buffer's bands, before and after it, that are no longer the pattern."""
        ...

    def spoil(self) -> None:
        """Leaves NaN in what kernels may find uninitialised and is not a buffer, if there is such memory."""
        ...

    def fingerprints(self, buffers: Sequence[Buffer]) -> list[int]:
        """64 bits for each buffer: other contents of equal size have another, but for an accident."""
        ...


class Kept(Protocol):
    array: Array

    def put(self, buffer: Buffer) -> None:
        """Copies the contents to the buffer, which is of their size."""
        ...

    def sums(self, buffer: Buffer) -> Sums:
        """Of the buffer's contents against these as the reference."""
        ...

    def values(self) -> HostArray:
        """As stored, of the array's shape."""
        ...


class HostKept:
    """In this process's memory."""

    def __init__(self, array: Array, values: HostArray) -> None:
        self.array = array
        self._reference = HostReference(array, values)

    def put(self, buffer: Buffer) -> None:
        buffer.write(as_bytes(self._reference.values))

    def sums(self, buffer: Buffer) -> Sums:
        return self._reference.sums(stored(buffer, self.array))

    def values(self) -> HostArray:
        return self._reference.values


class DeviceKept:
    """In the device's memory. Raises NoMemoryError."""

    def __init__(self, device: Device, checks: Checks, array: Array, contents: HostArray | Buffer) -> None:
        self.array, self._checks = array, checks
        self.buffer = device.allocate(arrays.nbytes(array))
        if isinstance(contents, np.ndarray):
            self.buffer.write(as_bytes(contents))
        else:
            self.buffer.copy(contents)
        (self.fingerprint,) = checks.fingerprints([self.buffer])

    def put(self, buffer: Buffer) -> None:
        buffer.copy(self.buffer)

    def sums(self, buffer: Buffer) -> Sums:
        return self._checks.sums(buffer, self.buffer, self.array)

    def values(self) -> HostArray:
        return stored(self.buffer, self.array)


def changed(checks: Checks | None, kept: Sequence[Kept], buffers: Sequence[Buffer]) -> str | None:
    """Name of the first array whose buffer no longer holds what is kept of it."""
    pairs = list(zip(kept, buffers, strict=True))
    on_device = [(k, b) for k, b in pairs if isinstance(k, DeviceKept)]
    same = checks.same([(b, k.buffer) for k, b in on_device]) if checks and on_device else []
    differing = [k.array.name for (k, _), equal in zip(on_device, same, strict=True) if not equal]
    differing += [
        k.array.name for k, b in pairs if isinstance(k, HostKept) and not np.array_equal(b.read(), as_bytes(k.values()))
    ]
    return differing[0] if differing else None


def broken_guards(checks: Checks | None, buffers: Sequence[Buffer]) -> list[tuple[int, int]]:
    """As ``Checks.broken_guards``."""
    if checks:
        return checks.broken_guards(buffers)
    bands = [buffer.guards() for buffer in buffers]
    return [(_broken(before), _broken(after)) for before, after in bands]


def intact(checks: Checks | None, kept: Sequence[Kept]) -> bool:
    """Whether all that is kept on the device is still what it was: a candidate may write anywhere."""
    on_device = [k for k in kept if isinstance(k, DeviceKept)]
    if not checks or not on_device:
        return True
    return checks.fingerprints([k.buffer for k in on_device]) == [k.fingerprint for k in on_device]


def stored(buffer: Buffer, array: Array) -> HostArray:
    """The buffer's contents as the array's type and shape; valid as long as ``Buffer.read`` says."""
    return buffer.read().view(arrays.storage(array.dtype)).reshape(array.shape)


def as_bytes(values: HostArray) -> Bytes:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _broken(band: Bytes) -> int:
    return int(np.count_nonzero(band != GUARD_PATTERN))
