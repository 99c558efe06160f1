"""What Linux says about the processor."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_HIGHEST_KHZ = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
_VECTOR_BYTES = (("avx512f", 64), ("avx2", 32), ("avx", 32), ("sse2", 16), ("asimd", 16))
_FMA_UNITS = 2  # per core, on every processor with FMA that is likely here
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class CpuInfo:
    """``attributes`` under the names of DeviceInfo. ``peak_flops`` is that of one core, since kernels have one thread:
    vector width x FMA units x 2 x clock, an estimate from above at the clock that Linux reports."""

    name: str
    uuid: str
    arch: str
    system: str
    libc: str
    attributes: dict[str, float]


def read() -> CpuInfo:
    text = _read(Path("/proc/cpuinfo"))
    name = _field(text, "model name") or platform.machine()
    flags = (_field(text, "flags") or _field(text, "Features")).split()
    return CpuInfo(
        name=name,
        uuid=_uuid(name, flags),
        arch=platform.machine(),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        libc=" ".join(platform.libc_ver()).strip(),
        attributes=_attributes(text, flags),
    )


def available_bytes() -> int:
    """MemAvailable; 1 GiB where it is not told."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    return int(found[1]) * 1024 if found else 1 << 30


def _attributes(cpuinfo: str, flags: list[str]) -> dict[str, float]:
    vector_bytes = next((width for flag, width in _VECTOR_BYTES if flag in flags), 8)
    attributes: dict[str, float] = {"sm_count": len(os.sched_getaffinity(0)), "vector_bytes": vector_bytes}
    attributes |= _cache_bytes()
    clock_hz = _clock_hz(cpuinfo)
    if clock_hz:
        per_cycle = 2 * _FMA_UNITS if "fma" in flags or "asimd" in flags else 2
        attributes["clock_hz"] = clock_hz
        attributes["peak_flops"] = vector_bytes / _FLOAT_BYTES * per_cycle * clock_hz
    return attributes


def _clock_hz(cpuinfo: str) -> float:
    highest = _read(_HIGHEST_KHZ).strip()
    if highest.isdigit():
        return int(highest) * 1e3
    return max((float(mhz) * 1e6 for mhz in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", cpuinfo, re.MULTILINE)), default=0.0)


def _cache_bytes() -> dict[str, float]:
    sizes: dict[str, float] = {}
    for folder in sorted(_CACHES.glob("index*")):
        level, kind, size = (_read(folder / name).strip() for name in ("level", "type", "size"))
        found = re.fullmatch(r"(\d+)([KM])", size)
        if found and kind != "Instruction" and level in ("1", "2", "3"):
            sizes[f"l{level}_bytes"] = int(found[1]) * (1024 if found[2] == "K" else 1 << 20)
    return sizes


def _uuid(name: str, flags: list[str]) -> str:
    """The same for the same machine, and different for another processor in it."""
    machine = _read(Path("/etc/machine-id")).strip() or platform.node()
    return "cpu-" + hashlib.sha256(f"{machine}\n{name}\n{' '.join(flags)}".encode()).hexdigest()[:24]


def _field(text: str, name: str) -> str:
    found = re.search(rf"^{re.escape(name)}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
