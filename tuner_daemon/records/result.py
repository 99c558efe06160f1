"""The answer to a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tuner_daemon.records.device import Clocks, DeviceInfo
from tuner_daemon.records.space import Config
from tuner_daemon.records.spec import KernelSpec


class Verdict(StrEnum):
    FASTER = "faster"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Published:
    """A configuration with its time as re-measured in the final round, on samples that did not choose it."""

    config: Config
    median_s: float
    ci_s: tuple[float, float]
    speedup: float = 1.0  # paired, against the baseline
    speedup_ci: tuple[float, float] = (1.0, 1.0)
    roofline_fraction: float | None = None
    error_norm: float | None = None
    proposed_by: str = ""


@dataclass(frozen=True)
class Result:
    """``best`` is never slower than ``baseline``; where nothing beats it, it is the baseline."""

    job: str
    spec: KernelSpec
    verdict: Verdict
    reason: str
    best: Published
    baseline: Published
    ties: tuple[Config, ...]
    noise_floor: float  # relative half-width below which two configurations cannot be told apart here
    measured: int
    outcomes: Mapping[str, int]
    space_size: int
    device: DeviceInfo
    clocks: Clocks
    models: Mapping[str, str]  # {"policy": version or "", "cost_model": version or ""}
    wall_s: Mapping[str, float]  # propose, build, run, total
    notes: tuple[str, ...] = field(default=())  # such as "no model yet: worked from this job's measurements alone"
    counters: Mapping[str, float] = field(default_factory=dict)  # build_s, device_busy_share, build_cache_hits
