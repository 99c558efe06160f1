"""What NVML says about a device's clocks while candidates run. Nothing here changes any of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tuner_daemon.errors import MissingPartError
from tuner_daemon.records.device import Clocks

POLICIES = ("observe",)


def check_policy(policy: str) -> None:
    """Raises MissingPartError for a policy that this version cannot keep."""
    if policy not in POLICIES:
        raise MissingPartError(
            f'the clock policy "{policy}" is not available in this version; set clock_policy = "observe"'
        )


@dataclass(frozen=True)
class Reading:
    """One look at the device; None where it does not say."""

    sm_mhz: int | None = None
    mem_mhz: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    reasons: int = 0


class ClockReader(Protocol):
    def read(self) -> Reading: ...


class NoClocks:
    """A device without NVML: nothing is known."""

    def read(self) -> Reading:
        return Reading()


class NvmlClocks:
    """Reads the device with this UUID. Raises MissingPartError without NVML or such a device."""

    def __init__(self, uuid: str) -> None:
        import pynvml

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError as error:
            raise MissingPartError(f"NVML does not tell of {uuid}: {error}") from error

    @property
    def driver_version(self) -> str:
        return str(self._nvml.nvmlSystemGetDriverVersion())

    def read(self) -> Reading:
        nvml, device = self._nvml, self._device
        power_mw = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(device))
        return Reading(
            sm_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)),
            mem_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM)),
            temperature_c=self._ask(lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
            power_w=None if power_mw is None else power_mw * 1e-3,
            reasons=self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(device)) or 0,
        )

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._nvml.NVMLError:
            return None


def observed(before: Reading, after: Reading) -> Clocks:
    """Both looks as one record: lowest and highest SM clock, the hotter and busier of the two, all reasons seen."""
    sm = [r.sm_mhz for r in (before, after) if r.sm_mhz is not None]
    return Clocks(
        policy="observe",
        mode="free",
        sm_mhz=(min(sm), max(sm)) if sm else None,
        mem_mhz=after.mem_mhz if after.mem_mhz is not None else before.mem_mhz,
        temperature_c=_highest(before.temperature_c, after.temperature_c),
        power_w=_highest(before.power_w, after.power_w),
        reasons=before.reasons | after.reasons,
    )


def _highest(*values: float | None) -> float | None:
    return max((v for v in values if v is not None), default=None)
