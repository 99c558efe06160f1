"""Published limits and peak rates of the GPUs that recordings come from, which their files do not hold.

Vendors' data sheets and programming guides; ``peak_flops`` is float32 at boost clock, and for the MI250X one of its two
dies, which is what a program sees as a device.
"""

from __future__ import annotations

from tuner_daemon.records.device import DeviceInfo

_COLUMNS = (
    *("sm_count", "warp_size", "max_threads_per_sm", "max_blocks_per_sm", "registers_per_sm"),
    *("shared_bytes_per_block", "shared_bytes_per_sm", "l2_bytes", "clock_hz", "memory_clock_hz", "memory_bus_bits"),
    *("peak_flops", "peak_bytes_per_s", "compute_capability"),  # the last of NVIDIA's only
)
_KIB, _MIB = 1024, 1024 * 1024
_TABLE: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "RTX_2080_Ti": (
        "NVIDIA GeForce RTX 2080 Ti",
        "sm_75",
        (68, 32, 1024, 16, 65536, 64 * _KIB, 64 * _KIB, 5632 * _KIB, 1545e6, 1750e6, 352, 13.45e12, 616e9, 75),
    ),
    "RTX_2080": (
        "NVIDIA GeForce RTX 2080",
        "sm_75",
        (46, 32, 1024, 16, 65536, 64 * _KIB, 64 * _KIB, 4 * _MIB, 1710e6, 1750e6, 256, 10.07e12, 448e9, 75),
    ),
    "RTX_3060_laptop": (
        "NVIDIA GeForce RTX 3060 Laptop GPU",
        "sm_86",
        (30, 32, 1536, 16, 65536, 99 * _KIB, 100 * _KIB, 3 * _MIB, 1425e6, 1750e6, 192, 10.94e12, 336e9, 86),
    ),
    "A4000": (
        "NVIDIA RTX A4000",
        "sm_86",
        (48, 32, 1536, 16, 65536, 99 * _KIB, 100 * _KIB, 4 * _MIB, 1560e6, 1750e6, 256, 19.17e12, 448e9, 86),
    ),
    "A6000": (
        "NVIDIA RTX A6000",
        "sm_86",
        (84, 32, 1536, 16, 65536, 99 * _KIB, 100 * _KIB, 6 * _MIB, 1800e6, 2000e6, 384, 38.71e12, 768e9, 86),
    ),
    "RTX_3090": (
        "NVIDIA GeForce RTX 3090",
        "sm_86",
        (82, 32, 1536, 16, 65536, 99 * _KIB, 100 * _KIB, 6 * _MIB, 1695e6, 1219e6, 384, 35.58e12, 936e9, 86),
    ),
    "RTX_4090": (
        "NVIDIA GeForce RTX 4090",
        "sm_89",
        (128, 32, 1536, 24, 65536, 99 * _KIB, 100 * _KIB, 72 * _MIB, 2520e6, 1313e6, 384, 82.58e12, 1008e9, 89),
    ),
    "GTX_1080_Ti": (
        "NVIDIA GeForce GTX 1080 Ti",
        "sm_61",
        (28, 32, 2048, 32, 65536, 48 * _KIB, 96 * _KIB, 2816 * _KIB, 1582e6, 1376e6, 352, 11.34e12, 484e9, 61),
    ),
    "V100": (
        "Tesla V100-PCIE-16GB",
        "sm_70",
        (80, 32, 2048, 32, 65536, 96 * _KIB, 96 * _KIB, 6 * _MIB, 1380e6, 877e6, 4096, 14.13e12, 900e9, 70),
    ),
    "A100": (
        "NVIDIA A100-PCIE-40GB",
        "sm_80",
        (108, 32, 2048, 32, 65536, 163 * _KIB, 164 * _KIB, 40 * _MIB, 1410e6, 1215e6, 5120, 19.49e12, 1555e9, 80),
    ),
    "MI250X": (
        "AMD Instinct MI250X",
        "gfx90a",
        (110, 64, 2048, 32, 131072, 64 * _KIB, 64 * _KIB, 8 * _MIB, 1700e6, 1600e6, 4096, 23.95e12, 1638e9),
    ),
    "W6600": (
        "AMD Radeon PRO W6600",
        "gfx1032",
        (28, 32, 1024, 32, 65536, 64 * _KIB, 64 * _KIB, 2 * _MIB, 2903e6, 1750e6, 128, 10.4e12, 224e9),
    ),
    "W7800": (
        "AMD Radeon PRO W7800",
        "gfx1100",
        (70, 32, 1024, 32, 65536, 64 * _KIB, 64 * _KIB, 6 * _MIB, 2499e6, 2250e6, 256, 45.2e12, 576e9),
    ),
    "MI50": (
        "AMD Instinct MI50",
        "gfx906",
        (60, 64, 2560, 40, 65536, 64 * _KIB, 64 * _KIB, 4 * _MIB, 1746e6, 1000e6, 4096, 13.4e12, 1024e9),
    ),
}


def device_named(name: str, label: str) -> DeviceInfo:
    """The device that recordings call ``label``, or whose name they give; without attributes if neither is in the
    table."""
    by_name = {known: entry for entry, (known, _, _) in _TABLE.items()}
    known_name, arch, numbers = _TABLE.get(label.replace(" ", "_"), _TABLE.get(by_name.get(name, ""), ("", "", ())))
    attributes = dict(zip(_COLUMNS, map(float, numbers), strict=False))
    if attributes:
        attributes["max_threads_per_block"] = 1024.0
    return DeviceInfo("replay", 0, name or known_name or label, f"recorded-{label}", arch, attributes=attributes)
