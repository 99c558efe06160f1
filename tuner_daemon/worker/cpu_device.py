"""The processor as a device: shared objects called through ctypes, one call for the whole problem.

A cold sample finds nothing in the private caches: before it, twice the L2's size is read and written. The shared
last-level cache is left as it is; flushing tens of megabytes would cost more than most candidates take.
Buffers lie between inaccessible pages, so that a write far out of bounds kills the child instead of corrupting it.
"""

from __future__ import annotations

import _ctypes
import ctypes
import mmap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner_daemon.worker import cpu_info
from tuner_daemon.worker.arrays import canonical
from tuner_daemon.worker.device import (
    GUARD_BYTES,
    GUARD_PATTERN,
    BrokenError,
    Buffer,
    Bytes,
    NoMemoryError,
    RefusedError,
)
from tuner_daemon.worker.messages import Program, Scalar

_FENCE_BYTES = 1 << 16
_ALIGNMENT = 64
_LEAST_FLUSH_BYTES = 1 << 20
_PROT_NONE = 0

_SCALARS: dict[str, Any] = {
    "int8": ctypes.c_int8,
    "int16": ctypes.c_int16,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint8": ctypes.c_uint8,
    "uint16": ctypes.c_uint16,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "bool": ctypes.c_bool,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}


class CpuBuffer:
    """Layout: fence, slack, guard, payload, guard, fence. The payload is aligned to a cache line, and the band after
    it reaches to the fence."""

    def __init__(self, nbytes: int) -> None:
        page = mmap.PAGESIZE
        aligned = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        inner = -(-(aligned + 2 * GUARD_BYTES) // page) * page
        try:
            self._map = mmap.mmap(-1, inner + 2 * _FENCE_BYTES)
        except OSError as error:
            raise NoMemoryError(f"no memory for an array of {nbytes} bytes: {error}") from error
        whole: Bytes = np.frombuffer(self._map, np.uint8)
        self.nbytes = nbytes
        end = _FENCE_BYTES + inner
        start = end - GUARD_BYTES - aligned
        self.address = int(whole.ctypes.data) + start
        self.payload = whole[start : start + nbytes]
        self._before = whole[start - GUARD_BYTES : start]
        self._after = whole[start + nbytes : end]
        self.restore_guards()
        for offset in (0, end):
            _fence(int(whole.ctypes.data) + offset)

    @property
    def guard_bytes(self) -> tuple[int, int]:
        return self._before.size, self._after.size

    def write(self, data: Bytes) -> None:
        self.payload[:] = data

    def copy(self, other: Buffer) -> None:
        self.payload[:] = other.read()

    def fill(self, byte: int, start: int = 0, count: int | None = None) -> None:
        self.payload[start : None if count is None else start + count] = byte

    def read(self, count: int | None = None) -> Bytes:
        return self.payload[:count]

    def guards(self) -> tuple[Bytes, Bytes]:
        return self._before, self._after

    def restore_guards(self) -> None:
        self._before.fill(GUARD_PATTERN)
        self._after.fill(GUARD_PATTERN)


def _fence(address: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(_FENCE_BYTES), _PROT_NONE) != 0:
        raise NoMemoryError(f"mprotect refused: errno {ctypes.get_errno()}")


@dataclass(frozen=True)
class CpuCall:
    function: Any
    arguments: tuple[Any, ...]


class CpuLoaded:
    """A shared object; closed again, so that a long search does not map every candidate."""

    occupancy: float | None = None

    def __init__(self, program: Program) -> None:
        try:
            self._library = ctypes.CDLL(str(program.path))
        except OSError as error:
            raise RefusedError(f"cannot be loaded: {error}") from error
        try:
            self._function = self._library[program.entry]
        except AttributeError as error:
            self.unload()
            raise RefusedError(f"has no function {program.entry}: is it static, or its name mangled?") from error
        self._function.restype = None

    def bind(self, arguments: Sequence[Buffer | Scalar | None]) -> CpuCall:
        return CpuCall(self._function, tuple(map(_as_ctypes, arguments)))

    def set_constant(self, name: str, data: Bytes) -> bool:
        try:
            symbol = (ctypes.c_char * data.nbytes).in_dll(self._library, name)
        except ValueError:
            return False
        ctypes.memmove(symbol, data.tobytes(), data.nbytes)
        return True

    def unload(self) -> None:
        _ctypes.dlclose(self._library._handle)


def _as_ctypes(argument: Buffer | Scalar | None) -> Any:
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, CpuBuffer):
        return ctypes.c_void_p(argument.address)
    assert isinstance(argument, Scalar)
    name = canonical(argument.dtype)
    if name not in _SCALARS:
        raise RefusedError(f"a scalar argument cannot be {argument.dtype} on a cpu device")
    return _SCALARS[name](argument.value)


class CpuDevice:
    """Runs candidates in this very process: see ``fragile``."""

    short_s = 0.0  # a call costs less than a microsecond and the clock is as fine: no batches
    rotation_bytes = 0
    fragile = True

    def __init__(self, index: int) -> None:
        self._index = index
        self._info = cpu_info.read()
        l2_bytes = int(self._info.attributes.get("l2_bytes", 0))
        self._flush = np.zeros(max(2 * l2_bytes, _LEAST_FLUSH_BYTES), np.uint8)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "cpu",
            "index": self._index,
            "name": self._info.name,
            "uuid": self._info.uuid,
            "arch": self._info.arch,
            "driver": self._info.system,
            "runtime": self._info.libc,
            "attributes": self._info.attributes,
        }

    def free_bytes(self) -> int:
        return cpu_info.available_bytes()

    def allocate(self, nbytes: int) -> CpuBuffer:
        return CpuBuffer(nbytes)

    def load(self, program: Program) -> CpuLoaded:
        return CpuLoaded(program)

    def warm_up(self) -> None:
        """Its clock is the operating system's affair, and up within a launch or two."""

    def launch(self, *calls: Any) -> None:
        for call in calls:
            call.function(*call.arguments)

    def time(self, calls: Sequence[Any], *, cold: bool) -> float:
        if cold:
            np.add(self._flush, 1, out=self._flush)
        clock, pairs = time.perf_counter_ns, [(call.function, call.arguments) for call in calls]
        began_ns = clock()
        for function, arguments in pairs:
            function(*arguments)
        return (clock() - began_ns) * 1e-9 / len(pairs)

    def canary(self) -> None:
        """libc's memcpy between two guarded buffers."""
        source, target = CpuBuffer(1 << 12), CpuBuffer(1 << 12)
        source.write(np.arange(1 << 12).astype(np.uint8))
        target.fill(GUARD_PATTERN)
        ctypes.CDLL(None).memcpy(
            ctypes.c_void_p(target.address), ctypes.c_void_p(source.address), ctypes.c_size_t(1 << 12)
        )
        if not np.array_equal(target.read(), source.read()):
            raise BrokenError("memcpy does not copy")
