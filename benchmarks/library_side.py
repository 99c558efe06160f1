"""A winner and torch's call for the same work, timed in one process: what ``benchmarks.kernels`` starts on a GPU.

Reads requests, one line of JSON each, and answers each with a line. Both sides are launched on the default stream of
the same context, on the same inputs in the same memory, and timed by the same events, in turns. Before every sample the
device is held busy for a moment, in which the host queues the launch: what the host takes for that is not timed. Cold:
meanwhile the L2 cache is overwritten. Warm: it holds what the last launch left.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from benchmarks.library import library_call, library_name, use_plain_float32

WARM_UPS = 10
TURNS = 2
HOLD_NS = 60_000
COPY_BYTES = 1 << 30
_HOLD = b"""
.version 6.4
.target sm_52
.address_size 64
.visible .entry hold(.param .u64 nanoseconds)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [nanoseconds];
    mov.u64 %rd2, %globaltimer;
again:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra again;
    ret;
}
\0"""
_TYPES = {"float32": "<f4", "float16": "<f2", "bfloat16": "<i2", "int32": "<i4", "int64": "<i8", "float64": "<f8"}


class Call(Protocol):
    def enqueue(self) -> object: ...


def timed(
    sample_s: Callable[[Call, bool], float], calls: Mapping[str, Call], launches: int
) -> dict[str, dict[str, float]]:
    """Per side, seconds: ``warm_s`` and ``cold_s`` (medians), and their quartiles' distance over the median. The sides
    take turns."""
    found: dict[str, dict[str, list[float]]] = {name: {"warm": [], "cold": []} for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            for _ in range(WARM_UPS):
                sample_s(call, False)
            for how in ("warm", "cold"):
                found[name][how] += [sample_s(call, how == "cold") for _ in range(launches // TURNS)]
    return {
        name: {f"{how}_s": statistics.median(s) for how, s in samples.items()}
        | {f"{how}_spread": _spread(s) for how, s in samples.items()}
        for name, samples in found.items()
    }


def _spread(samples: Sequence[float]) -> float:
    low, middle, high = np.quantile(samples, (0.25, 0.5, 0.75))
    return float((high - low) / middle)


class Bench:
    """The device, its events, and torch where it is installed."""

    def __init__(self, index: int) -> None:
        import pycuda.driver as cuda

        from tuner_daemon.worker.cuda_device import CudaDevice

        self.cuda, self.device = cuda, CudaDevice(index, shared=True)
        self.torch = _torch(index)
        self._module = cuda.module_from_buffer(_HOLD)
        self._hold = self._module.get_function("hold")
        self._hold.prepare(["Q"])
        self._began, self._ended = cuda.Event(), cuda.Event()
        attributes = self.device.describe()["attributes"]
        self._flush_bytes = int(max(2 * attributes["l2_bytes"], 64 << 20))
        self._flush = cuda.mem_alloc(self._flush_bytes)

    def sample_s(self, call: Call, cold: bool) -> float:
        self._hold.prepared_call((1, 1), (1, 1, 1), HOLD_NS)
        if cold:
            self.cuda.memset_d8(self._flush, 0, self._flush_bytes)
        self._began.record()
        call.enqueue()
        self._ended.record()
        self._ended.synchronize()
        return float(self._ended.time_since(self._began)) * 1e-3

    def copy_bytes_per_s(self, launches: int) -> float:
        """Bytes read and written per second by the driver's own copy of 1 GiB."""
        target, source = self.cuda.mem_alloc(COPY_BYTES), self.cuda.mem_alloc(COPY_BYTES)
        self.cuda.memset_d8(source, 1, COPY_BYTES)
        copy = Torch(lambda: self.cuda.memcpy_dtod_async(int(target), int(source), COPY_BYTES))
        median_s = timed(self.sample_s, {"copy": copy}, launches)["copy"]["warm_s"]
        target.free()
        source.free()
        return 2 * COPY_BYTES / median_s


def _torch(index: int) -> Any:
    """None where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch: Any = importlib.import_module("torch")
    torch.cuda.set_device(index)
    torch.cuda.init()
    use_plain_float32(torch)
    return torch


class Torch:
    """A call of the library as something to be launched; keeps what it gave last."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self.gave: Any = None

    def enqueue(self) -> None:
        self.gave = self._work()


class View:
    """Device memory as others take it in."""

    def __init__(self, address: int, shape: Sequence[int], typestr: str) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": tuple(shape),
            "typestr": typestr,
            "version": 3,
        }


def side_by_side(bench: Bench, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to one request: times of both sides, how far apart their results are, occupancy."""
    from tuner_daemon.worker import inputs
    from tuner_daemon.worker.messages import parse_problem, parse_program
    from tuner_daemon.worker.workspace import Slot, allocate_scratch

    program, problem = parse_program(request["program"]), parse_problem(request["problem"])
    slot = Slot(bench.device, problem)
    buffers: Mapping[str, Any] = slot.buffers
    for position, array in enumerate(problem.arrays):
        if array.read:
            contents = inputs.contents(array, inputs.DRAWS[0], position, 1)
            buffers[array.name].write(contents.view(np.uint8).reshape(-1))
    loaded = bench.device.load(program)
    scratch = allocate_scratch(bench.device, program)  # a call holds addresses only
    calls: dict[str, Call] = {"ours": loaded.bind(slot.passed(problem.arguments, scratch))}
    bench.sample_s(calls["ours"], False)
    answer: dict[str, Any] = {"occupancy": loaded.occupancy, "library": ""}
    if bench.torch is not None:
        given = {a.name: _tensor(bench.torch, buffers[a.name].address, a) for a in problem.arrays}
        (output,) = (a.name for a in problem.arrays if a.written)
        answer |= _called(bench, request, given, given[output], calls)
    answer |= timed(bench.sample_s, calls, request["launches"])
    loaded.unload()
    return answer


def _called(
    bench: Bench, request: Mapping[str, Any], given: Mapping[str, Any], ours: Any, calls: dict[str, Call]
) -> dict[str, Any]:
    """Adds the library's call to ``calls`` if there is one that runs, and says how far apart the results are."""
    try:
        work = library_call(bench.torch, request["family"], request["sizes"], given)
        if work is None:
            return {}
        theirs = Torch(work)
        bench.sample_s(theirs, False)
        calls["theirs"] = theirs
        return {"library": library_name(request["family"]), "difference": _apart(ours, theirs.gave)}
    except (ValueError, RuntimeError) as error:
        return {"library": f"{library_name(request['family'])} fails: {error}"}


def _tensor(torch: Any, address: int, array: Any) -> Any:
    tensor = torch.as_tensor(View(address, array.shape, _TYPES[array.dtype]), device="cuda")
    return tensor.view(torch.bfloat16) if array.dtype == "bfloat16" else tensor


def _apart(ours: Any, theirs: Any) -> float:
    """||ours - theirs|| / ||theirs||, in double precision."""
    got, wanted = ours.double().reshape(-1), theirs.double().reshape(-1)
    return float((got - wanted).norm() / wanted.norm())


def answer_to(bench: Bench, request: Mapping[str, Any]) -> dict[str, Any]:
    if request["what"] == "copy":
        return {"bytes_per_s": bench.copy_bytes_per_s(request["launches"])}
    try:
        return side_by_side(bench, request)
    except (ValueError, RuntimeError, MemoryError) as error:  # torch's own are RuntimeErrors
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        if bench.torch is not None:
            bench.torch.cuda.empty_cache()


def main() -> int:
    bench: Bench | None = None
    for line in sys.stdin:
        request = json.loads(line)
        bench = bench or Bench(request["index"])
        print(json.dumps(answer_to(bench, request)), flush=True)
    return 0


if __name__ == "__main__":
    os._exit(main())  # the context is torch's as well, and both would tear it down
