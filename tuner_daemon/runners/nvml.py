"""The one door to NVML. A call that hangs costs its time limit once: after that NVML is given up."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import psutil

logger = logging.getLogger(__name__)

CALL_LIMIT_S = 10.0
START_LIMIT_S = 60.0  # without persistence mode the driver wakes every device first

T = TypeVar("T")


class Refusal(StrEnum):
    """Why NVML does not do what it was asked."""

    ABSENT = "absent"  # no library, no driver, no such device
    PERMISSION = "permission"
    UNSUPPORTED = "unsupported"
    HUNG = "hung"
    OTHER = "other"


class NvmlError(Exception):
    """NVML refused, or does not answer."""

    def __init__(self, refusal: Refusal, words: str) -> None:
        super().__init__(words)
        self.refusal = refusal


@dataclass(frozen=True)
class Reading:
    """One look at the device; None where it does not say."""

    sm_mhz: int | None = None
    mem_mhz: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    reasons: int | None = None  # clock-event reason bits
    others: tuple[int, ...] = ()  # processes that compute on the device and are not of this process's family


class Nvml:
    """The library, started. Raises NvmlError: ABSENT without library or driver."""

    def __init__(self, *, limit_s: float = CALL_LIMIT_S) -> None:
        self._limit_s, self._hung = limit_s, False
        self._nvml: Any = None
        self.call(self._start, limit_s=max(limit_s, START_LIMIT_S) if limit_s == CALL_LIMIT_S else limit_s)

    def call(self, question: Callable[[], T], *, limit_s: float | None = None) -> T:
        """The answer, asked for on a thread that is left behind if it hangs in the driver. Raises NvmlError."""
        if self._hung:
            raise NvmlError(Refusal.HUNG, "NVML has been given up after a call that did not return")
        answers: list[T] = []
        errors: list[NvmlError] = []

        def ask() -> None:
            try:
                answers.append(question())
            except NvmlError as error:
                errors.append(error)
            except self._library_errors() as error:
                errors.append(self._translated(error))

        thread = threading.Thread(target=ask, name="nvml", daemon=True)
        thread.start()
        limit_s = self._limit_s if limit_s is None else limit_s
        thread.join(limit_s)
        if thread.is_alive():
            self._hung = True
            logger.warning("NVML did not answer within %g s and is given up: clocks are unknown from now on", limit_s)
            raise NvmlError(Refusal.HUNG, f"NVML did not answer within {limit_s:g} s")
        if errors:
            raise errors[0]
        return answers[0]

    @property
    def library(self) -> Any:
        return self._nvml

    def uuids(self) -> list[str]:
        """Of every GPU, in NVML's order."""
        nvml = self._nvml

        def ask() -> list[str]:
            handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
            return [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]

        return self.call(ask)

    def driver_version(self) -> str:
        return self.call(lambda: str(self._nvml.nvmlSystemGetDriverVersion()))

    def _start(self) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()

    def _library_errors(self) -> tuple[type[Exception], ...]:
        return () if self._nvml is None else (self._nvml.NVMLError, self._nvml.NVMLLibraryMismatchError)

    def _translated(self, error: Exception) -> NvmlError:
        nvml = self._nvml
        kinds = {
            nvml.NVML_ERROR_LIBRARY_NOT_FOUND: Refusal.ABSENT,
            nvml.NVML_ERROR_DRIVER_NOT_LOADED: Refusal.ABSENT,
            nvml.NVML_ERROR_NOT_FOUND: Refusal.ABSENT,
            nvml.NVML_ERROR_NO_PERMISSION: Refusal.PERMISSION,
            nvml.NVML_ERROR_NOT_SUPPORTED: Refusal.UNSUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND: Refusal.UNSUPPORTED,
        }
        return NvmlError(kinds.get(getattr(error, "value", None), Refusal.OTHER), f"NVML: {error}")


class NvmlGpu:
    """One GPU, by UUID: that of the GPU, or of a MIG instance, whose clocks are those of the GPU it is on.
    Raises NvmlError: ABSENT if there is none."""

    def __init__(self, nvml: Nvml, uuid: str) -> None:
        self._session, self._nvml = nvml, nvml.library
        self.uuid = uuid
        self._mig_instance = False
        self._device = nvml.call(self._found)

    @property
    def mig(self) -> bool:
        """Whether the GPU is split into instances. Raises NvmlError."""
        return self._mig_instance or self._session.call(lambda: bool((self._ask("nvmlDeviceGetMigMode") or [0])[0]))

    def read(self) -> Reading:
        """Empty when NVML has been given up."""
        try:
            return self._session.call(self._look)
        except NvmlError:
            return Reading()

    def base_mhz(self) -> int | None:
        """The default application clock, which is the base clock of most server GPUs; None where it is not told, or
        is the highest clock and so not the base clock."""
        nvml = self._nvml

        def ask() -> int | None:
            base = self._ask("nvmlDeviceGetClock", nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_ID_APP_CLOCK_DEFAULT)
            highest = self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)
            return base if base and highest and base < highest else None

        return self._session.call(ask)

    def lock(self, mhz: int) -> None:
        """Raises NvmlError."""
        self._session.call(lambda: self._nvml.nvmlDeviceSetGpuLockedClocks(self._device, mhz, mhz))

    def release(self) -> None:
        """Raises NvmlError."""
        self._session.call(lambda: self._nvml.nvmlDeviceResetGpuLockedClocks(self._device))

    def _found(self) -> Any:
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetHandleByUUID(self.uuid)
        except nvml.NVMLError as error:
            # CUDA names an instance by the instance's own number.
            try:
                instance = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{self.uuid.removeprefix('GPU-')}")
                device = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)
            except nvml.NVMLError:
                raise error from None
            self._mig_instance = True
            return device

    def _look(self) -> Reading:
        nvml = self._nvml
        power_mw = self._ask("nvmlDeviceGetPowerUsage")
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        # Processes of other instances have processors of their own.
        processes = [] if self._mig_instance else self._ask("nvmlDeviceGetComputeRunningProcesses") or []
        return Reading(
            sm_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            mem_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            power_w=None if power_mw is None else power_mw * 1e-3,
            reasons=reasons,
            others=strangers([int(process.pid) for process in processes]),
        )

    def _ask(self, name: str, *arguments: Any) -> Any:
        """None where the device, or this driver, does not say."""
        nvml = self._nvml
        try:
            return getattr(nvml, name)(self._device, *arguments)
        except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):
            return None


def strangers(pids: Sequence[int]) -> tuple[int, ...]:
    """Those that are alive and neither this process nor started by it.

    In a container NVML may give numbers that mean something else there; where none of them is of this family, although
    its worker computes on the device, nothing can be said about the others.
    """
    family = [pid for pid in pids if _of_this_family(pid)]
    return tuple(sorted({pid for pid in pids if pid not in family and _alive(pid)})) if family else ()


def _of_this_family(pid: int) -> bool:
    try:
        return pid == os.getpid() or os.getpid() in (p.pid for p in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def _alive(pid: int) -> bool:
    """Also of processes of other users, which /proc may hide."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
