"""Parts with a scripted landscape: a session runs in milliseconds and its every number is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.interfaces import Effort
from tuner_daemon.records.device import Clocks, DeviceInfo
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Argument, Kernel, Launch, Parameter, Reference, Value, Work
from tuner_daemon.records.measurement import Artifact, Failure, Measurement, Outcome, Proposal, Ran, Timing
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.spec import Budget, DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task

DEVICE = DeviceInfo("replay", 0, "a scripted device", "uuid-0", "none", attributes={"peak_flops": 1e12})
Landscape = Callable[[Config], float | Outcome]


def scripted_task(
    *,
    baseline: Mapping[str, Value] | None = None,
    measurements: int = 32,
    seconds: float = 60.0,
    constraints: Sequence[str] = ("A * B <= 128",),
) -> Task:
    """Two parameters of eight values each; the landscape is the runner's."""
    values: tuple[Value, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    kernel = Kernel(
        name="scripted",
        folder=Path(),
        sources={},
        problem=(),
        parameters=(Parameter("A", values, "tile_m"), Parameter("B", values, "tile_n")),
        constraints=tuple(Expression.parse(text) for text in constraints),
        launch=Launch((Expression.parse("A"),), (Expression.parse("B"),), Expression.parse("0")),
        arguments=(Argument("out", "output", "float32", (Expression.parse("1"),)),),
        reference=Reference(),
        baseline=baseline,
        work=Work(Expression.parse("1000000"), None),
        reduction_length=None,
        tolerance=None,
        sha256="5" * 64,
        declaration="{}",
    )
    spec = KernelSpec(kernel, {}, DeviceRequest("replay"), Budget(measurements, seconds))
    return Task(spec, ParamSpace(kernel, {}), DEVICE)


def valley(config: Config) -> float:
    """Best at A = 16, B = 4; everything runs."""
    a, b = (float(np.log2(float(config[name]))) for name in ("A", "B"))
    return 1e-3 * (1.0 + 0.3 * (a - 4) ** 2 + 0.3 * (b - 2) ** 2)


@dataclass
class ScriptedBuilder:
    """Builds at once; configurations whose landscape says BUILD_FAILED fail."""

    landscape: Landscape = valley
    built: list[str] = field(default_factory=list)
    same_binary: bool = False

    def build(self, spec: KernelSpec, configs: Sequence[Config]) -> Iterator[Artifact | Failure]:
        return iter([self._one(config) for config in configs])

    def _one(self, config: Config) -> Artifact | Failure:
        self.built.append(config.key)
        if self.landscape(config) is Outcome.BUILD_FAILED:
            return Failure(config, Outcome.BUILD_FAILED, "error: expected ';'")
        return Artifact(config, Path(), "f", "same" if self.same_binary else config.key, 0.01)

    def build_reference(self, spec: KernelSpec) -> Artifact:
        raise AssertionError("a scripted kernel has no reference")

    def close(self) -> None: ...


@dataclass
class ScriptedRunner:
    """Times are the landscape's with noise; outcomes are the landscape's."""

    landscape: Landscape = valley
    noise: float = 0.01
    shares_cores: bool = True
    clock_mode: str = "free"
    device: DeviceInfo = DEVICE
    ran: list[str] = field(default_factory=list)
    on_run: Callable[[int], None] = lambda _: None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def device_for(self, spec: KernelSpec) -> DeviceInfo:
        return self.device

    def run(self, task: Task, artifact: Artifact, effort: Effort) -> Ran:
        self.ran.append(artifact.config.key)
        self.on_run(len(self.ran))
        return self._times(artifact.config, effort.samples)

    def race(self, task: Task, artifacts: Sequence[Artifact], blocks: int, timeout_s: float) -> list[Ran]:
        return [self._times(artifact.config, blocks) for artifact in artifacts]

    def _times(self, config: Config, n: int) -> Ran:
        value = self.landscape(config)
        if isinstance(value, Outcome):
            return Failure(config, value, f"scripted: {value}")
        samples = value * np.exp(self.rng.normal(0.0, self.noise, n))
        return Timing(config, tuple(float(s) for s in samples), None, 1e-7, Clocks(mode=self.clock_mode))

    def close(self) -> None: ...


@dataclass
class ListLog:
    """A log in memory."""

    rows: list[Measurement] = field(default_factory=list)
    appends: int = 0

    def append(self, rows: Sequence[Measurement]) -> None:
        self.appends += 1
        self.rows += [row for row in rows if row.key not in {r.key for r in self.rows}]

    def remember(self, kernel: Kernel) -> None: ...

    def read(self, *, kernel: str | None = None, job: str | None = None, columns: Sequence[str] | None = None) -> Any:
        raise AssertionError("sessions read records, not tables")

    def measurements(self, job: str) -> list[Measurement]:
        return [row for row in self.rows if row.job == job]

    def declarations(self) -> dict[str, Path]:
        return {}


@dataclass
class UniformPart:
    """Proposes uniformly."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def propose(self, task: Task, history: Sequence[Measurement], n: int) -> list[Proposal]:
        measured = {m.ran.config for m in history}
        return [Proposal(c, "uniform") for c in task.space.sample(n, self.rng) if c not in measured]


@dataclass
class NearestModel:
    """Predicts the time of the nearest measured configuration (log2 distance)."""

    version: str = ""
    fits: int = 0
    known: list[tuple[NDArray[np.float32], float]] = field(default_factory=list)

    def fit(self, task: Task, history: Sequence[Measurement]) -> None:
        self.fits += 1
        timed = [m.ran for m in history if isinstance(m.ran, Timing)]
        self.known = [(task.space.encode([t.config])[0], float(np.log(t.median_s))) for t in timed]

    def predict(self, task: Task, configs: Sequence[Config]) -> NDArray[np.float32]:
        if not self.known or not configs:
            return np.zeros(len(configs), dtype=np.float32)
        points = np.stack([x for x, _ in self.known])
        nearest = [int(np.argmin(((points - x) ** 2).sum(axis=1))) for x in task.space.encode(configs)]
        return np.array([self.known[i][1] for i in nearest], dtype=np.float32)


def with_budget(task: Task, measurements: int) -> Task:
    return replace(task, spec=replace(task.spec, budget=Budget(measurements, task.spec.budget.seconds)))
