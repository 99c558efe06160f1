"""``tunerd clocks``: what people type, and what they read."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from tuner_daemon.errors import SettingsError
from tuner_daemon.runners import locking
from tuner_daemon.runners.clock_lease import LEASES
from tuner_daemon.runners.clocks import reason_names
from tuner_daemon.runners.locking import GpuClocks

BASE = ("", "base")
"""An empty value comes from a unit whose variable is not set."""


def lock(gpus: str, mhz: str, leases: Path | None) -> str:
    """One line per GPU. Raises SettingsError, ClockError."""
    if mhz not in BASE and not (mhz.isdecimal() and int(mhz) > 0):
        raise SettingsError(f'is no frequency in MHz: "{mhz}"', key="--mhz", remedy='a whole number, or "base"')
    granted = locking.lock(_names(gpus), None if mhz in BASE else int(mhz), leases=leases or LEASES)
    return "\n".join(f"{lease.uuid}: held at {lease.mhz} MHz" for lease in granted)


def release(gpus: str, leases: Path | None) -> str:
    """One line per GPU. Raises ClockError."""
    released = locking.release(_names(gpus), leases=leases or LEASES)
    return "\n".join(f"{uuid}: let go" for uuid in released) or "no clock is held"


def status(leases: Path | None, *, as_json: bool) -> str | list[dict[str, Any]]:
    """One line, or one table of facts, per GPU. Raises ClockError."""
    found = locking.status(leases=leases or LEASES)
    return [asdict(gpu) for gpu in found] if as_json else "\n".join(_line(gpu) for gpu in found)


def _names(gpus: str) -> list[str]:
    return [name for part in gpus.split(",") if (name := part.strip())]


def _line(gpu: GpuClocks) -> str:
    seen = gpu.reading
    held = "free" if gpu.lease is None else f"held at {gpu.lease.mhz} MHz"
    told = [
        None if seen.sm_mhz is None else f"SM clock {seen.sm_mhz} MHz",
        None if seen.temperature_c is None else f"{seen.temperature_c:g} C",
        None if seen.power_w is None else f"{seen.power_w:.0f} W",
        None if not seen.reasons else f"reasons: {reason_names(seen.reasons)}",
        None if not gpu.stale else f"the lease does not count: {gpu.stale}",
    ]
    return f"{gpu.uuid}: {', '.join([held, *(part for part in told if part)])}"
