"""The least time that a device can take: what is below it is not a time."""

from __future__ import annotations

from collections.abc import Mapping

from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.kernel import Kernel, Value

_NARROW = {"float16", "half", "bfloat16", "int8", "uint8", "tf32"}
_TENSOR_FACTOR = 32  # how far tensor cores may exceed the float32 peak
_CPU_MARGIN = 0.4  # of the peak: clocks rise above what Linux reports
_CUDA_MARGIN = 0.9
_CACHED_BELOW_L2 = 4  # problems smaller than this many L2s may be served by it


def floor_s(kernel: Kernel, names: Mapping[str, Value], device: DeviceInfo) -> float:
    """The roofline's floor in seconds, with a margin. Zero where the work is not declared. ``names``: values of problem
    and parameters. Raises ExpressionError.

    Bytes count only for a cuda device and for problems that no cache holds; operations on narrow types may run on
    tensor cores, whose peak no attribute tells, hence a generous factor.
    """
    work, limits = kernel.work, device.attributes
    cuda = device.kind == "cuda"
    floors = [0.0]
    if work.flops is not None and limits.get("peak_flops"):
        narrow = any(str(names.get(a.dtype, a.dtype)) in _NARROW for a in kernel.arguments)
        peak = limits["peak_flops"] * (_TENSOR_FACTOR if narrow else 1)
        floors.append((_CUDA_MARGIN if cuda else _CPU_MARGIN) * float(work.flops.evaluate(names)) / peak)
    if cuda and work.bytes is not None and limits.get("peak_bytes_per_s"):
        moved = float(work.bytes.evaluate(names))
        if moved > _CACHED_BELOW_L2 * limits.get("l2_bytes", float("inf")):
            floors.append(_CUDA_MARGIN * moved / limits["peak_bytes_per_s"])
    return max(floors)
