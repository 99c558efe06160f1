"""A spec: which kernel, at which problem, on which device, within which budget."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuner_daemon.records.kernel import Kernel, Value

SPEC_SUFFIXES = (".toml", ".json")


def spec_in(folder: Path) -> Path | None:
    """The spec of a job's folder: spec.toml, else spec.json, whatever it is; None if it has neither."""
    named = (folder / f"spec{suffix}" for suffix in SPEC_SUFFIXES)
    return next((path for path in named if os.path.lexists(path)), None)


@dataclass(frozen=True)
class Budget:
    """The first bound reached ends the search."""

    measurements: int = 64
    seconds: float = 300.0


@dataclass(frozen=True)
class DeviceRequest:
    """Which device to tune on."""

    kind: str = "cuda"  # "cuda" | "cpu" | "replay"
    index: int = 0

    @property
    def language(self) -> str:
        return "cpu" if self.kind == "cpu" else "cuda"


@dataclass(frozen=True)
class Options:
    force: bool = False
    priority: int = 0


@dataclass(frozen=True)
class KernelSpec:
    """What was asked. ``problem`` has a value for every variable that the kernel declares."""

    kernel: Kernel
    problem: Mapping[str, Value]
    device: DeviceRequest = DeviceRequest()
    budget: Budget = Budget()
    options: Options = Options()
    name: str = field(default="spec", compare=False)  # file name, for people

    @property
    def identity(self) -> str:
        """SHA-256 of kernel, problem and device: equal for the same question, however it was written down."""
        canonical = {
            "kernel": self.kernel.sha256,
            "problem": dict(sorted(self.problem.items())),
            "device": [self.device.kind, self.device.index],
        }
        return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()

    @property
    def language(self) -> str:
        return self.device.language
