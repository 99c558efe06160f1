"""Contents that must not change: an argument's in one input set, or what the reference gave for it.

They lie on the device where it can compare by itself and has room, else in this process's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tuner_daemon.worker import arrays
from tuner_daemon.worker.arrays import HostArray
from tuner_daemon.worker.checking import HostReference, Sums
from tuner_daemon.worker.device import GUARD_PATTERN, Buffer, Bytes, Device
from tuner_daemon.worker.messages import Array


@dataclass(frozen=True)
class Examined:
    """Sums of each output; whether each input holds the same bytes still; bytes of each buffer's bands, before and
    after it, that are no longer the pattern."""

    sums: list[Sums]
    same: list[bool]
    guards: list[tuple[int, int]]


class Checks(Protocol):
    """Comparisons that the device makes itself. All raise BrokenError if it does not do what it is told."""

    def examine(
        self,
        compared: Sequence[tuple[Buffer, Buffer, Array]],
        pairs: Sequence[tuple[Buffer, Buffer]],
        guarded: Sequence[Buffer],
    ) -> Examined:
        """``compared``: outputs with their references; ``pairs``: buffers of one size. All in one go: the host waits
        for the device once."""
        ...

    def sums(self, out: Buffer, reference: Buffer, array: Array) -> Sums: ...

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


def examine(
    checks: Checks | None,
    outputs: Sequence[tuple[Kept, Buffer]],
    inputs: Sequence[tuple[Kept, Buffer]],
    guarded: Sequence[Buffer],
) -> Examined:
    """Buffers against what is kept of them. What lies on the device is compared there, the rest here."""
    if checks is None:
        bands = [buffer.guards() for buffer in guarded]
        seen = Examined([], [], [(_broken(before), _broken(after)) for before, after in bands])
    else:
        seen = checks.examine(
            [(buffer, kept.buffer, kept.array) for kept, buffer in outputs if isinstance(kept, DeviceKept)],
            [(buffer, kept.buffer) for kept, buffer in inputs if isinstance(kept, DeviceKept)],
            guarded,
        )
    sums, same = iter(seen.sums), iter(seen.same)
    return Examined(
        [next(sums) if isinstance(kept, DeviceKept) else kept.sums(buffer) for kept, buffer in outputs],
        [next(same) if isinstance(kept, DeviceKept) else _holds(buffer, kept) for kept, buffer in inputs],
        seen.guards,
    )


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


def _holds(buffer: Buffer, kept: Kept) -> bool:
    return np.array_equal(buffer.read(), as_bytes(kept.values()))


def _broken(band: Bytes) -> int:
    return int(np.count_nonzero(band != GUARD_PATTERN))
