"""What a worker says about its device, as a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner_daemon.records.device import DeviceInfo


def device_info(said: Mapping[str, Any]) -> DeviceInfo:
    """The worker knows no compiler: whoever has one adds it."""
    return DeviceInfo(
        kind=said["kind"],
        index=said["index"],
        name=said["name"],
        uuid=said["uuid"],
        arch=said["arch"],
        driver=said["driver"],
        runtime=said["runtime"],
        attributes={name: float(value) for name, value in said["attributes"].items()},
    )
