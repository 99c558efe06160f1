"""What this installation's settings mean for a spec that leaves something out."""

from __future__ import annotations

from pathlib import Path

from tuner_daemon.intake.specs import templates_dir
from tuner_daemon.records.spec import Budget, DeviceRequest
from tuner_daemon.settings import Settings


def template_dirs(settings: Settings) -> tuple[Path, ...]:
    """Where families are looked up: the site's folders first, then those that ship."""
    return (*settings.template_dirs, templates_dir())


def default_device(settings: Settings) -> DeviceRequest:
    return DeviceRequest(settings.device.kind, settings.device.index)


def default_budget(settings: Settings) -> Budget:
    return Budget(settings.budget.measurements, settings.budget.seconds)
