"""What a device is, and the state of its clocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DeviceInfo:
    """Identity and limits of a device, as its driver reports them.

    ``attributes`` holds numbers under these names where they are known (all kinds of device share them):
    ``sm_count``, ``warp_size``, ``max_threads_per_block``, ``max_threads_per_sm``, ``max_blocks_per_sm``,
    ``registers_per_sm``, ``shared_bytes_per_block`` (opt-in limit), ``shared_bytes_per_sm``, ``l2_bytes``,
    ``clock_hz``, ``memory_clock_hz``, ``memory_bus_bits``, ``peak_flops`` (float32, FLOP/s),
    ``peak_bytes_per_s``, ``compute_capability`` (major * 10 + minor), ``vector_bytes`` (CPU SIMD width).
    """

    kind: str  # "cuda" | "cpu" | "replay"
    index: int
    name: str
    uuid: str
    arch: str  # "sm_90", "x86_64", …
    driver: str = ""
    runtime: str = ""
    compiler: str = ""
    attributes: Mapping[str, float] = field(default_factory=dict)


DEVICE_IDENTITY = ("uuid", "name", "driver", "runtime", "compiler")
"""What of a device must be as it was for a measurement to hold."""


@dataclass(frozen=True)
class Clocks:
    """Clock policy and what was read while a measurement ran. None where the device does not say."""

    policy: str = "observe"  # "lock" | "verify" | "observe"
    mode: str = "free"  # "locked" | "free"
    sm_mhz: tuple[int, int] | None = None  # lowest, highest
    mem_mhz: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    reasons: int = 0  # NVML clock event reason bits seen
