"""What a worker says about its device, as a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner_daemon.records.device import DeviceInfo


def device_info(said: Mapping[str, Any], *, driver: str = "", compiler: str = "") -> DeviceInfo:
    """``driver`` and ``compiler`` are what the worker cannot know; its own word stands where they are empty."""
    return DeviceInfo(
        kind=said["kind"],
        index=said["index"],
        name=said["name"],
        uuid=said["uuid"],
        arch=said["arch"],
        driver=driver or said["driver"],
        runtime=said["runtime"],
        compiler=compiler,
        attributes={name: float(value) for name, value in said["attributes"].items()},
    )
