"""A CUDA device through the driver API (PyCUDA). Binaries are cubins; no host code of a candidate runs.

Errors: what the driver says at the launch itself is a refusal, as long as the context still works afterwards;
after any error of a running kernel the context does not, and this child is of no more use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pycuda.driver as cuda

from tuner_daemon.worker.arrays import canonical, storage
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
from tuner_daemon.worker.occupancy import occupancy
from tuner_daemon.worker.warmth import Warmth

_LONGEST_FILL = 1 << 30  # bytes in one memset
_LEAST_FLUSH_BYTES = 64 << 20
_WARM_UP_S = 0.05
_PAUSE_S = 0.1  # without a launch, after which the device is warmed up anew
_LAUNCHES_PER_FLUSH = 8  # launches that the host can queue while the device writes the flush buffer once
_SHARED_WITHOUT_OPT_IN = 48 << 10
_FP32_LANES = {60: 64, 70: 64, 72: 64, 75: 64, 80: 64}  # per multiprocessor, by compute capability; others have 128
_LANES = 128
_FORMATS = {"bfloat16": "H", "bool": "?", "float16": "H"}

_CANARY = b"""
.version 6.4
.target sm_52
.address_size 64
.visible .entry canary(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %tid.x;
    mad.lo.u32 %r2, %r1, 3, 1;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
    ret;
}
\0"""
_CANARY_THREADS = 64


class CudaBuffer:
    """Device memory with a guard band on either side."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        padded = -(-nbytes // 256) * 256
        try:
            self._memory = cuda.mem_alloc(padded + 2 * GUARD_BYTES)
        except cuda.MemoryError as error:
            raise NoMemoryError(f"no device memory for an array of {nbytes} bytes") from error
        self._start = int(self._memory)
        self.address = self._start + GUARD_BYTES
        self.guard_bytes = (GUARD_BYTES, padded - nbytes + GUARD_BYTES)
        self.restore_guards()

    def write(self, data: Bytes) -> None:
        if self.nbytes:
            cuda.memcpy_htod(self.address, np.ascontiguousarray(data))

    def copy(self, other: Buffer) -> None:
        assert isinstance(other, CudaBuffer)
        if self.nbytes:
            cuda.memcpy_dtod(self.address, other.address, self.nbytes)

    def fill(self, byte: int, start: int = 0, count: int | None = None) -> None:
        end = self.nbytes if count is None else start + count
        for offset in range(start, end, _LONGEST_FILL):
            cuda.memset_d8(self.address + offset, byte, min(_LONGEST_FILL, end - offset))

    def read(self, count: int | None = None) -> Bytes:
        return _read(self.address, self.nbytes if count is None else count)

    def guards(self) -> tuple[Bytes, Bytes]:
        return _read(self._start, GUARD_BYTES), _read(self.address + self.nbytes, self.guard_bytes[1])

    def restore_guards(self) -> None:
        cuda.memset_d8(self._start, GUARD_PATTERN, GUARD_BYTES)
        cuda.memset_d8(self.address + self.nbytes, GUARD_PATTERN, self.guard_bytes[1])


def _read(address: int, nbytes: int) -> Bytes:
    out = np.empty(nbytes, np.uint8)
    if nbytes:
        cuda.memcpy_dtoh(out, address)
    return out


@dataclass(frozen=True)
class CudaCall:
    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[Any, ...]

    def enqueue(self) -> None:
        self.function.prepared_call(self.grid, self.block, *self.arguments, shared_size=self.shared_bytes)


class CudaLoaded:
    """A cubin on the device."""

    def __init__(self, program: Program, attributes: dict[str, float]) -> None:
        self._program = program
        try:
            self._module = cuda.module_from_file(str(program.path))
            self._function = self._module.get_function(program.entry)
            self._screen(attributes)
        except cuda.Error as error:
            _still_works(error)
            raise RefusedError(f"cannot be loaded: {error}") from error

    def _screen(self, attributes: dict[str, float]) -> None:
        """Raises RefusedError for what the function's own attributes rule out, and asks for large shared memory."""
        attribute, function, program = cuda.function_attribute, self._function, self._program
        threads = program.block[0] * program.block[1] * program.block[2]
        most = function.get_attribute(attribute.MAX_THREADS_PER_BLOCK)
        registers = function.get_attribute(attribute.NUM_REGS)
        if threads > most:
            raise RefusedError(f"{threads} threads per block with {registers} registers each; at most {most} fit")
        static = function.get_attribute(attribute.SHARED_SIZE_BYTES)
        limit = attributes["shared_bytes_per_block"]
        if static + program.shared_bytes > limit:
            raise RefusedError(f"{static + program.shared_bytes} bytes of shared memory per block; at most {limit:.0f}")
        if static + program.shared_bytes > _SHARED_WITHOUT_OPT_IN:
            function.set_attribute(attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, program.shared_bytes)
        self.occupancy = occupancy(
            attributes, threads=threads, registers=registers, shared_bytes=static + program.shared_bytes
        )

    def bind(self, arguments: Sequence[Buffer | Scalar | None]) -> CudaCall:
        packed = [_packed(argument) for argument in arguments]
        self._function.prepare([form for form, _ in packed])
        values = tuple(value for _, value in packed)
        program = self._program
        return CudaCall(self._function, program.grid, program.block, program.shared_bytes, values)

    def set_constant(self, name: str, data: Bytes) -> bool:
        try:
            address, nbytes = self._module.get_global(name)
        except cuda.LogicError as error:
            _still_works(error)
            return False
        if nbytes < data.nbytes:
            raise RefusedError(f"the constant {name} holds {nbytes} bytes, want {data.nbytes}")
        cuda.memcpy_htod(address, data)
        return True

    def unload(self) -> None:
        del self._function, self._module


def _packed(argument: Buffer | Scalar | None) -> tuple[str, Any]:
    """Format character and value of a kernel argument."""
    if argument is None:
        return "P", 0
    if isinstance(argument, CudaBuffer):
        return "P", argument.address
    assert isinstance(argument, Scalar)
    name = canonical(argument.dtype)
    if name == "float16":
        return "H", int(np.float16(argument.value).view(np.uint16))
    if name == "bfloat16":
        from tuner_daemon.worker.arrays import to_bfloat16

        return "H", int(to_bfloat16(np.array([argument.value], np.float32))[0])
    if name == "bool":
        return "?", bool(argument.value)
    dtype = storage(name)
    return dtype.char, dtype.type(argument.value).item()


def _still_works(error: Exception) -> None:
    """Raises BrokenError, with the first error's words, if the context does not work any more."""
    try:
        cuda.Context.synchronize()
    except cuda.Error as sticky:
        raise BrokenError(str(error)) from sticky


class CudaDevice:
    """Makes a context on the device with this index, or enters the one that the runtime library and everything on it
    shares. Raises BrokenError without a driver or such a device."""

    short_s = 20e-6
    fragile = False

    def __init__(self, index: int, *, shared: bool = False) -> None:
        try:
            cuda.init()
            if not 0 <= index < cuda.Device.count():
                raise BrokenError(f"there is no CUDA device {index}; the driver sees {cuda.Device.count()}")
            self._device = cuda.Device(index)
            self._context = self._device.retain_primary_context() if shared else self._device.make_context()
            if shared:
                self._context.push()
        except cuda.Error as error:
            raise BrokenError(str(error)) from error
        self._index = index
        self._attributes = _attributes(self._device)
        self._flush_bytes = int(max(2 * self._attributes["l2_bytes"], _LEAST_FLUSH_BYTES))
        self.rotation_bytes = self._flush_bytes
        self._flush = cuda.mem_alloc(self._flush_bytes)
        self._began, self._ended = cuda.Event(), cuda.Event()
        self._warmth = Warmth(_WARM_UP_S, _PAUSE_S)

    def warm_up(self) -> None:
        while self._warmth.left_s() > 0.0:
            self._warmth.begin()
            cuda.memset_d8(self._flush, 0, self._flush_bytes)
            self._wait()

    def describe(self) -> dict[str, Any]:
        major, minor = self._device.compute_capability()
        version = cuda.get_driver_version()
        return {
            "kind": "cuda",
            "index": self._index,
            "name": self._device.name(),
            "uuid": _uuid(self._index) or f"pci-{self._device.pci_bus_id()}",
            "arch": f"sm_{major}{minor}",
            "driver": "",  # the parent asks NVML, which knows the kernel module's version
            "runtime": f"CUDA {version // 1000}.{version % 1000 // 10}",
            "attributes": self._attributes,
        }

    def free_bytes(self) -> int:
        free, _ = cuda.mem_get_info()
        return int(free)

    def allocate(self, nbytes: int) -> CudaBuffer:
        return CudaBuffer(nbytes)

    def load(self, program: Program) -> CudaLoaded:
        return CudaLoaded(program, self._attributes)

    def launch(self, *calls: Any) -> None:
        self._warmth.begin()
        for call in calls:
            _enqueue(call)
        self._wait()

    def time(self, calls: Sequence[Any], *, cold: bool) -> float:
        """While the device writes the flush buffer, the host queues the launches: they run back to back."""
        self._warmth.begin()
        if cold:
            for _ in range(1 + len(calls) // _LAUNCHES_PER_FLUSH):
                cuda.memset_d8(self._flush, 0, self._flush_bytes)
        self._began.record()
        for call in calls:
            _enqueue(call)
        self._ended.record()
        self._wait()
        return float(self._ended.time_since(self._began)) * 1e-3 / len(calls)

    def canary(self) -> None:
        """A kernel of a few instructions, translated by the driver itself."""
        try:
            buffer = CudaBuffer(4 * _CANARY_THREADS)
            buffer.fill(GUARD_PATTERN)
            module = cuda.module_from_buffer(_CANARY)
            function = module.get_function("canary")
            function.prepare(["P"])
            function.prepared_call((1, 1, 1), (_CANARY_THREADS, 1, 1), buffer.address)
            cuda.Context.synchronize()
            got = buffer.read().view(np.uint32)
        except cuda.Error as error:
            raise BrokenError(f"the canary kernel fails: {error}") from error
        if not np.array_equal(got, 3 * np.arange(_CANARY_THREADS, dtype=np.uint32) + 1):
            raise BrokenError("the canary kernel gives wrong numbers")

    def _wait(self) -> None:
        try:
            cuda.Context.synchronize()
        except cuda.Error as error:
            raise BrokenError(str(error)) from error
        self._warmth.end()


def _enqueue(call: Any) -> None:
    try:
        call.enqueue()
    except cuda.Error as error:
        _still_works(error)
        raise RefusedError(f"launch refused: {error}") from error


def _uuid(index: int) -> str:
    """The driver's UUID, as NVML writes it; PyCUDA does not give it. Empty if the driver library lacks the call."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetUuid_v2(raw, device):
            return ""
    except (OSError, AttributeError):
        return ""
    text = bytes(raw).hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _attributes(device: Any) -> dict[str, float]:
    """Under the names of DeviceInfo."""
    names = cuda.device_attribute
    wanted = {
        "sm_count": names.MULTIPROCESSOR_COUNT,
        "warp_size": names.WARP_SIZE,
        "max_threads_per_block": names.MAX_THREADS_PER_BLOCK,
        "max_threads_per_sm": names.MAX_THREADS_PER_MULTIPROCESSOR,
        "max_blocks_per_sm": names.MAX_BLOCKS_PER_MULTIPROCESSOR,
        "registers_per_sm": names.MAX_REGISTERS_PER_MULTIPROCESSOR,
        "shared_bytes_per_block": names.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        "shared_bytes_per_sm": names.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        "l2_bytes": names.L2_CACHE_SIZE,
        "memory_bus_bits": names.GLOBAL_MEMORY_BUS_WIDTH,
    }
    found = {name: float(device.get_attribute(key)) for name, key in wanted.items()}
    major, minor = device.compute_capability()
    found["compute_capability"] = major * 10 + minor
    found["clock_hz"] = device.get_attribute(names.CLOCK_RATE) * 1e3
    found["memory_clock_hz"] = device.get_attribute(names.MEMORY_CLOCK_RATE) * 1e3
    lanes = _FP32_LANES.get(major * 10 + minor, _LANES)
    found["peak_flops"] = 2.0 * lanes * found["sm_count"] * found["clock_hz"]
    found["peak_bytes_per_s"] = 2.0 * found["memory_clock_hz"] * found["memory_bus_bits"] / 8  # double data rate
    return {name: value for name, value in found.items() if value > 0}
