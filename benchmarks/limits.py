"""What holds a configuration back, from numbers that are known of it: roofline, occupancy, waves, spills."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.kernel import Kernel, Value
from tuner_daemon.records.measurement import Artifact
from tuner_daemon.worker.occupancy import resident

_TENSOR_FLOPS = {80: 2048, 86: 1024, 89: 1024, 90: 4096}  # dense, 16-bit, per multiprocessor and cycle
_HALF = ("float16", "bfloat16")
_NEAR = 0.9  # of a roof: nothing else holds it back then


@dataclass(frozen=True)
class Limits:
    """Of one launch. Shares are of the peaks; ``copy_share``: of a copy's bandwidth as measured beside it."""

    flops: float
    bytes: float
    flops_per_s: float
    bytes_per_s: float
    flops_share: float | None
    bytes_share: float | None
    copy_share: float | None
    bound: str  # "flops", "bytes" or "" where a peak is not known
    registers: int | None
    spill_bytes: int | None
    shared_bytes: int
    threads: int
    blocks: int
    per_sm: int | None  # blocks that a multiprocessor holds
    limiter: str
    waves: float | None
    occupancy: float | None


def limits_of(
    kernel: Kernel,
    names: Mapping[str, Value],
    device: DeviceInfo,
    artifact: Artifact,
    median_s: float,
    *,
    occupancy: float | None = None,
    copy_bytes_per_s: float | None = None,
) -> Limits:
    """``names``: values of problem and parameters; ``median_s``: of the launch."""
    flops, moved = (0.0 if e is None else float(e.evaluate(names)) for e in (kernel.work.flops, kernel.work.bytes))
    attributes, launch = device.attributes, kernel.launch
    peak_flops, peak_bytes = peak_flops_per_s(kernel, names, device), attributes.get("peak_bytes_per_s")
    threads, blocks = (math.prod(int(e.evaluate(names)) for e in sides) for sides in (launch.block, launch.grid))
    shared_bytes = int(launch.shared_bytes.evaluate(names)) + (artifact.shared_bytes or 0)
    held: dict[str, int] = {}
    if artifact.registers and attributes.get("max_threads_per_sm"):
        held = resident(attributes, threads=threads, registers=artifact.registers, shared_bytes=shared_bytes)
    per_sm = min(held.values(), default=0) or None
    return Limits(
        flops=flops,
        bytes=moved,
        flops_per_s=flops / median_s,
        bytes_per_s=moved / median_s,
        flops_share=flops / median_s / peak_flops if peak_flops else None,
        bytes_share=moved / median_s / peak_bytes if peak_bytes else None,
        copy_share=moved / median_s / copy_bytes_per_s if copy_bytes_per_s else None,
        bound=("flops" if flops / peak_flops > moved / peak_bytes else "bytes") if peak_flops and peak_bytes else "",
        registers=artifact.registers,
        spill_bytes=artifact.spill_bytes,
        shared_bytes=shared_bytes,
        threads=threads,
        blocks=blocks,
        per_sm=per_sm,
        limiter=min(held, key=held.__getitem__) if held else "",
        waves=blocks / (per_sm * attributes["sm_count"]) if per_sm and attributes.get("sm_count") else None,
        occupancy=occupancy,
    )


def peak_flops_per_s(kernel: Kernel, names: Mapping[str, Value], device: DeviceInfo) -> float | None:
    """Of float32, or of the tensor cores where the operands are of 16 bits; None where it is not known."""
    attributes = device.attributes
    if not any(str(names.get(a.dtype, a.dtype)) in _HALF for a in kernel.arguments):
        return attributes.get("peak_flops")
    per_cycle = _TENSOR_FLOPS.get(int(attributes.get("compute_capability", 0)))
    if per_cycle is None or not attributes.get("sm_count") or not attributes.get("clock_hz"):
        return None
    return per_cycle * attributes["sm_count"] * attributes["clock_hz"]


def held_back(limits: Limits) -> str:
    """In words."""
    return "; ".join(part for part in (_roof(limits), _residency(limits), _tail(limits), _spills(limits)) if part)


def _roof(limits: Limits) -> str:
    shares = {"flops": limits.flops_share, "bytes": limits.copy_share or limits.bytes_share}
    share = shares.get(limits.bound)
    if share is None:
        return ""
    roof = "peak FLOP/s" if limits.bound == "flops" else "a copy's bandwidth" if limits.copy_share else "peak bandwidth"
    near = " and little else" if share >= _NEAR else ""
    return f"bound by {limits.bound}{near}: {share:.0%} of {roof}"


def _residency(limits: Limits) -> str:
    if limits.per_sm is None or limits.occupancy is None:
        return ""
    why = {
        "registers": f"{limits.registers} registers for each of {limits.threads} threads",
        "shared memory": f"{limits.shared_bytes / 1024:.0f} KiB of shared memory for a block",
        "threads": f"{limits.threads} threads in a block",
        "blocks": "the number of blocks",
    }
    return f"{limits.occupancy:.0%} occupied ({limits.per_sm} blocks on each, limited by {why[limits.limiter]})"


def _tail(limits: Limits) -> str:
    if limits.waves is None:
        return ""
    if limits.waves < 1:
        return f"{limits.waves:.0%} of one wave: the device is not full"
    idle = 1 - limits.waves / math.ceil(limits.waves)
    return f"{limits.waves:.1f} waves" + (f", the last leaves {idle:.0%} idle" if idle > 0.02 else "")


def _spills(limits: Limits) -> str:
    if limits.spill_bytes is None:
        return ""
    return f"{limits.spill_bytes} bytes spilled" if limits.spill_bytes else "no spills"
