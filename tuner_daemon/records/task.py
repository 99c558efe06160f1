"""What a search works on."""

from __future__ import annotations

from dataclasses import dataclass

from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import KernelSpec


@dataclass(frozen=True)
class Task:
    """A spec, the space of its valid configurations, and the device it is tuned on."""

    spec: KernelSpec
    space: ParamSpace
    device: DeviceInfo
