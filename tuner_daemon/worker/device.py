"""What the harness needs of a device. Two implementations: ``cpu_device`` and ``cuda_device``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.worker.messages import Program, Scalar

GUARD_BYTES = 4096
"""Bytes of known pattern on either side of every buffer."""

GUARD_PATTERN = 0xA5

Bytes = NDArray[np.uint8]


class RefusedError(Exception):
    """The device refuses to load or launch the program; nothing is broken."""


class BrokenError(Exception):
    """The program broke the device's context: this child can do no more work."""


class NoMemoryError(Exception):
    """The device has not enough memory for the problem."""


class Buffer(Protocol):
    """Device memory between two guard bands."""

    nbytes: int

    @property
    def guard_bytes(self) -> tuple[int, int]:
        """Sizes of the bands before and after, GUARD_BYTES or more each."""
        ...

    def write(self, data: Bytes) -> None:
        """Copies (nbytes,) host bytes to the device."""
        ...

    def copy(self, other: Buffer) -> None:
        """Copies the contents of a buffer of the same device and size."""
        ...

    def fill(self, byte: int, start: int = 0, count: int | None = None) -> None:
        """``count`` bytes from ``start`` on; without it, to the end."""
        ...

    def read(self, count: int | None = None) -> Bytes:
        """(nbytes,) bytes as they are now, or the first ``count``; valid until the next call."""
        ...

    def guards(self) -> tuple[Bytes, Bytes]:
        """The bands before and after, of ``guard_bytes``."""
        ...

    def restore_guards(self) -> None: ...


class Call(Protocol):
    """A program bound to its arguments, ready to launch."""


class Loaded(Protocol):
    """A program on the device."""

    @property
    def occupancy(self) -> float | None: ...

    def bind(self, arguments: Sequence[Buffer | Scalar | None]) -> Call:
        """None: a null pointer."""
        ...

    def set_constant(self, name: str, data: Bytes) -> bool:
        """Fills the symbol; false where the program has none of that name."""
        ...

    def unload(self) -> None: ...


class Device(Protocol):
    """Raises RefusedError, BrokenError or NoMemoryError; a driver's own errors do not leave the implementation."""

    short_s: float  # launches shorter than this are timed in batches
    rotation_bytes: int  # that launches in a row must touch for none to find anything in the caches
    fragile: bool  # a write out of bounds may have damaged this very process

    def warm_up(self) -> None:
        """Gives the device work until its clocks are up, if it had none lately."""
        ...

    def describe(self) -> dict[str, Any]:
        """Fields of a DeviceInfo."""
        ...

    def free_bytes(self) -> int: ...

    def allocate(self, nbytes: int) -> Buffer: ...

    def load(self, program: Program) -> Loaded:
        """Raises RefusedError with the reason: no such symbol, limits of the device exceeded, …"""
        ...

    def launch(self, *calls: Call) -> None:
        """Launches in order, and waits for all."""
        ...

    def time(self, calls: Sequence[Call], *, cold: bool) -> float:
        """Seconds per call of launching them in order; with ``cold``, after the caches have been flushed."""
        ...

    def canary(self) -> None:
        """A trivially right computation. Raises BrokenError if its result is wrong."""
        ...
