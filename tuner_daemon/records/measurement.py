"""What building and running a candidate yields, and the log row made of it."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from tuner_daemon.records.device import Clocks, DeviceInfo
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.space import Config

SCHEMA_VERSION = 1


class Outcome(StrEnum):
    """How a candidate ended. Only OK has a time."""

    OK = "ok"
    BUILD_FAILED = "build_failed"
    LAUNCH_FAILED = "launch_failed"
    WRONG_RESULT = "wrong_result"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    DISTURBED = "disturbed"


@dataclass(frozen=True)
class Artifact:
    """A built candidate: a cubin (cuda) or a shared object (cpu)."""

    config: Config
    path: Path
    entry: str  # symbol to look up in the binary (mangled where the source is C++)
    sha256: str  # of the binary: equal binaries share one measurement
    build_s: float
    registers: int | None = None
    shared_bytes: int | None = None  # static
    spill_bytes: int | None = None
    cached: bool = False  # came from the build cache


@dataclass(frozen=True)
class Timing:
    """Sampled run times of a candidate that gave right results. Order of samples is order of launches."""

    config: Config
    times_s: tuple[float, ...]  # cold cache; never empty
    warm_median_s: float | None
    error_norm: float | None  # ||out - ref|| / ||ref||, the worst over the checks; None: not verified here
    clocks: Clocks = field(default_factory=Clocks)
    occupancy: float | None = None  # active warps per SM over the limit
    outcome: Outcome = Outcome.OK
    device_s: float = 0.0  # that the device worked on it: all launches, those of checks and warm-up included
    stages_s: Mapping[str, float] = field(default_factory=dict)  # wall clock of the worker, by what it was doing

    def __post_init__(self) -> None:
        if not self.times_s or not all(0.0 < t < float("inf") for t in self.times_s):
            raise ValueError(f"times_s must be positive and finite and not empty, got {self.times_s!r}")

    @cached_property
    def median_s(self) -> float:
        return statistics.median(self.times_s)

    def followed_by(self, later: Timing) -> Timing:
        """Two heats of one candidate as one. It is verified if both were, and as wrong as the worse of the two."""
        errors = [norm for norm in (self.error_norm, later.error_norm) if norm is not None]
        worst = max(errors) if len(errors) == 2 else None
        return replace(later, times_s=self.times_s + later.times_s, error_norm=worst)


@dataclass(frozen=True)
class Failure:
    """A candidate that has no time, and why."""

    config: Config
    outcome: Outcome
    detail: str  # one or a few lines that a person understands
    error_norm: float | None = None
    clocks: Clocks = field(default_factory=Clocks)
    build_s: float | None = None
    device_s: float = 0.0
    stages_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.outcome is Outcome.OK:
            raise ValueError("a Failure cannot be ok")


Ran = Timing | Failure


@dataclass(frozen=True)
class Proposal:
    """A configuration and who proposed it: policy, uniform, neighbour, evolution, baseline, …"""

    config: Config
    proposed_by: str
    predicted_log_s: float | None = None


@dataclass(frozen=True)
class Measurement:
    """One row of the log. ``key`` is deterministic, so that writing twice is reading once."""

    job: str
    kernel: str
    kernel_sha256: str
    language: str
    problem: Mapping[str, Value]
    config: Mapping[str, Value]
    space_sha256: str
    ran: Ran
    device: DeviceInfo
    round: int
    proposal: Proposal
    host: str
    started_at: datetime  # UTC
    artifact: Artifact | None = None
    baseline_median_s: float | None = None  # of the same session, at the time of this measurement
    policy_version: str = ""
    cost_model_version: str = ""
    source: str = "measured"
    schema_version: int = field(default=SCHEMA_VERSION)

    @property
    def key(self) -> str:
        identity = f"{self.job}\n{self.ran.config.key}\n{self.round}"
        return hashlib.sha256(identity.encode()).hexdigest()[:32]
