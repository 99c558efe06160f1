"""The seams. Implementations do not import each other; ``cli.workshop`` chooses them and passes them in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.kernel import Kernel
from tuner_daemon.records.measurement import Artifact, Failure, Measurement, Proposal, Ran
from tuner_daemon.records.space import Config
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.records.task import Task


class Proposer(Protocol):
    """Suggests what to measure next."""

    def propose(self, task: Task, history: Sequence[Measurement], n: int) -> list[Proposal]:
        """Up to n distinct valid proposals, best first, none of them measured in ``history``."""
        ...


class CostModel(Protocol):
    """Predicts run times within one task; refitted after every batch."""

    @property
    def version(self) -> str:
        """Version of the prior it stands on; empty without one."""
        ...

    def fit(self, task: Task, history: Sequence[Measurement]) -> None:
        """Aligns the prior to the task's measurements and refits the residual. Cheap; failures count as slow."""
        ...

    def predict(self, task: Task, configs: Sequence[Config]) -> NDArray[np.float32]:
        """Log seconds, (n,). Without prior and measurements: all equal."""
        ...


@runtime_checkable
class Uncertain(Protocol):
    """A cost model that knows how wrong it may be."""

    def spread(self, task: Task, configs: Sequence[Config]) -> NDArray[np.float32]:
        """Deviation of log seconds to expect from ``predict``, (n,); NaN before there is evidence."""
        ...


class Builder(Protocol):
    """Compiles candidates in parallel, without the device."""

    def build(self, spec: KernelSpec, configs: Sequence[Config]) -> Iterator[Artifact | Failure]:
        """One item per configuration, in order of completion; building begins at the call, not at the first ``next``.
        Never raises for a configuration; MissingPartError if there is no compiler."""
        ...

    def build_reference(self, spec: KernelSpec) -> Artifact:
        """The kernel's reference source, with the parameters' macros undefined and the problem's text values defined.
        Its ``config`` is empty. Raises KernelError, with the compiler's words, if it does not compile."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Effort:
    """How much to spend on one candidate."""

    samples: int = 7  # timed launches of a candidate that is worth it
    drop_above_s: float | None = None  # a first launch slower than this gets no more samples
    timeout_s: float = 10.0  # wall clock for the whole of check, timing and check
    beat_s: float | None = None  # sampling ends at the first rung after which the median cannot be this low
    ladder: tuple[int, ...] = (3, 7, 15, 30)
    known: bool = False  # it has given right results in this session: one check instead of all

    @property
    def steps(self) -> tuple[int, ...]:
        """The rungs below ``samples``, and ``samples``."""
        return (*(rung for rung in self.ladder if rung < self.samples), self.samples)


class Runner(Protocol):
    """Checks and times candidates on one device, one at a time, in a child process."""

    @property
    def device(self) -> DeviceInfo: ...

    def device_for(self, spec: KernelSpec) -> DeviceInfo:
        """The device that the spec's times are those of: ``device``, but for replay, where each recording has its own.
        Raises MissingPartError if it is not on this machine."""
        ...

    @property
    def shares_cores(self) -> bool:
        """The device computes on the cores that builds use: never build while it runs."""
        ...

    @property
    def clock_mode(self) -> str:
        """ "locked" or "free": what rows measured now are marked with. Rows of different modes are never compared."""
        ...

    def run(self, task: Task, artifact: Artifact, effort: Effort) -> Ran:
        """Check, time, check again. A bad candidate is a Failure; DeviceError if the device itself is broken;
        KernelError if the kernel's reference cannot be built or run."""
        ...

    def race(self, task: Task, artifacts: Sequence[Artifact], blocks: int, timeout_s: float) -> list[Ran]:
        """Times candidates against each other in ``blocks`` interleaved blocks, each in a fresh order on fresh data:
        sample b of every Timing was taken in block b, so that samples pair up. One result per artifact, in order."""
        ...

    def close(self) -> None: ...


class MeasurementLog(Protocol):
    """Append-only; a row is in the log when ``append`` has returned, and is read once however often it is written."""

    def append(self, rows: Sequence[Measurement]) -> None:
        """Raises LogError."""
        ...

    def remember(self, kernel: Kernel) -> None:
        """Keeps the kernel's declaration beside the rows, so that retraining can compute features."""
        ...

    def read(self, *, kernel: str | None = None, job: str | None = None, columns: Sequence[str] | None = None) -> Any:
        """A pyarrow.Table of distinct rows (by key)."""
        ...

    def measurements(self, job: str) -> list[Measurement]:
        """The job's rows as records, in order of writing: what a resumed job starts from."""
        ...

    def declarations(self) -> dict[str, Path]:
        """kernel_sha256 -> file with the kernel's canonical declaration (JSON)."""
        ...
