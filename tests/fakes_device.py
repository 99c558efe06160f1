"""A device whose every disturbance is scripted: noise, drift, throttled spans and outliers over a landscape.

It has its own clock, which each launch moves on: a job on it is the same job every time, and takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tests.fakes_session import DEVICE, scripted_task
from tuner_daemon.interfaces import Effort
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.measurement import Artifact, Failure, Measurement, Outcome, Proposal, Ran, Timing
from tuner_daemon.records.space import Config
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.worker.ladder import sampled

Floats = NDArray[np.float64]
SIDE_A, SIDE_B = 20, 10
CONFIGURATIONS = SIDE_A * SIDE_B
CHECK_S, SAMPLE_S, REST_S = 0.05, 0.002, 1.0
"""Device seconds that checking takes, that a sample takes beside the launch, and a rest after a disturbance."""


@dataclass(frozen=True)
class Weather:
    """What befalls samples."""

    noise: float = 0.005  # relative standard deviation
    drift: float = 0.03  # from the lowest to the highest
    period_s: float = 40.0  # of the drift
    outliers: float = 0.01  # share of samples that take half as long again, or more
    throttled: float = 0.0  # share of time in which launches take 1.3 times as long
    span_s: float = 2.0  # of one throttled span


@dataclass
class FakeDevice:
    """A Runner. ``flagged``: it knows when it was throttled, as NVML tells, and drops those samples. ``adaptive``: it
    stops sampling as asked. Defects exist for negative controls. ``mirrored``: with the noise of races turned round, so
    that the mean over both tells of a bias with fewer repeats (antithetic variates)."""

    seed: int
    weather: Weather = Weather()
    mirrored: bool = False
    spread: float = 0.1  # standard deviation of the landscape's log times
    flagged: bool = True
    adaptive: bool = True
    shares_cores: bool = True
    clock_mode: str = "free"
    device: DeviceInfo = DEVICE
    now_s: float = 0.0
    samples: int = 0
    throttled_samples: int = 0
    kept_throttled: int = 0  # of those, how many went into a Timing
    race_levels: list[float] = field(default_factory=list)  # drift in each block that a race returned

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self.true_s = 1e-3 * np.exp(self.spread * self._rng.standard_normal(CONFIGURATIONS))
        self._heats = 0
        self._phase, self._offset_s = self._rng.uniform(0, 2 * np.pi), self._rng.uniform(0, 1e3)

    def clock(self) -> float:
        return self.now_s

    def device_for(self, spec: KernelSpec) -> DeviceInfo:
        return self.device

    def run(self, task: Task, artifact: Artifact, effort: Effort) -> Ran:
        self.now_s += CHECK_S
        true_s = self.true_s[index_of(artifact.config)]
        moments = self._moments(np.full(effort.samples, true_s))
        drawn, throttled = self._drawn(true_s, moments, self._rng.standard_normal(effort.samples))
        times_s = sampled(
            drawn.__getitem__,
            effort.steps,
            drop_above_s=effort.drop_above_s if self.adaptive and effort.drop_above_s else np.inf,
            beat_s=effort.beat_s if self.adaptive and effort.beat_s else np.inf,
        )
        n = len(times_s)
        self._took(moments[n - 1], throttled[:n])
        if self.flagged and throttled[:n].any():
            self.now_s += REST_S
            return Failure(artifact.config, Outcome.DISTURBED, "clocks were throttled")
        self.kept_throttled += int(throttled[:n].sum())
        return self._timing(artifact.config, times_s)

    def race(self, task: Task, artifacts: Sequence[Artifact], blocks: int, timeout_s: float) -> list[Ran]:
        """As the protocol says; blocks that were throttled are dropped, for all alike."""
        self.now_s += CHECK_S * len(artifacts)
        true_s = np.array([self.true_s[index_of(a.config)] for a in artifacts])
        order = self._rng.permuted(np.tile(np.arange(len(artifacts)), (blocks, 1)), axis=1)
        place = np.argsort(order.ravel(), kind="stable").reshape(len(artifacts), blocks)
        moments = self._moments(true_s[order.ravel()])
        noise = np.empty(order.size)
        noise[place] = self._race_noise(artifacts, blocks)
        drawn, throttled = self._drawn(true_s[order.ravel()], moments, noise)
        self._took(moments[-1], throttled)
        times_s, bad = drawn[place], throttled[place]
        kept = ~bad.any(axis=0) if self.flagged else np.ones(blocks, dtype=bool)
        self.kept_throttled += int(bad[:, kept].sum())
        self.race_levels += self.level(moments[place].mean(axis=0)[kept]).tolist()
        if not kept.any():
            self.now_s += REST_S
            return [Failure(a.config, Outcome.DISTURBED, "clocks were throttled") for a in artifacts]
        return [self._timing(a.config, row[kept]) for a, row in zip(artifacts, times_s, strict=True)]

    def level(self, moments: Floats) -> Floats:
        """Drift: what everything is multiplied by."""
        swing: Floats = np.exp(
            0.5 * self.weather.drift * np.sin(2 * np.pi * moments / self.weather.period_s + self._phase)
        )
        return swing

    def close(self) -> None: ...

    def _moments(self, launches_s: Floats) -> Floats:
        moments: Floats = self.now_s + np.cumsum(launches_s + SAMPLE_S)
        return moments

    def _race_noise(self, artifacts: Sequence[Artifact], blocks: int) -> Floats:
        """(artifacts, blocks) of unit variance; what a configuration draws in a heat does not depend on its rivals."""
        self._heats += 1
        rng = np.random.default_rng([self.seed, self._heats])
        drawn = rng.standard_normal((2, CONFIGURATIONS, blocks)) * (-1 if self.mirrored else 1)
        places = [index_of(artifact.config) for artifact in artifacts]
        again = [place in places[:i] for i, place in enumerate(places)]
        noise: Floats = drawn[np.array(again, dtype=int), places]
        return noise

    def _drawn(self, true_s: Floats | float, moments: Floats, noise: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        weather, n = self.weather, len(moments)
        factors = np.exp(weather.noise * noise)
        hit = self._rng.random(n) < weather.outliers
        factors[hit] *= 1.5 + self._rng.exponential(0.5, int(hit.sum()))
        throttled = np.zeros(n, dtype=bool)
        if weather.throttled:
            throttled = (moments + self._offset_s) % (weather.span_s / weather.throttled) < weather.span_s
        times_s: Floats = true_s * self.level(moments) * factors * np.where(throttled, 1.3, 1.0)
        return times_s, throttled

    def _took(self, until_s: float, throttled: NDArray[np.bool_]) -> None:
        self.now_s = float(until_s)
        self.samples += len(throttled)
        self.throttled_samples += int(throttled.sum())

    def _timing(self, config: Config, times_s: Sequence[float] | Floats) -> Timing:
        return Timing(config, tuple(float(t) for t in times_s), None, 1e-7, device_s=float(np.sum(times_s)))


def landscape_task() -> Task:
    """CONFIGURATIONS configurations, and a budget for all."""
    task = scripted_task(constraints=(), measurements=CONFIGURATIONS, seconds=1e6, values=tuple(range(1, SIDE_A + 1)))
    return task if task.space.size == CONFIGURATIONS else _narrowed(task)


def _narrowed(task: Task) -> Task:
    a, b = task.spec.kernel.parameters
    kernel = replace(task.spec.kernel, parameters=(a, replace(b, values=tuple(range(1, SIDE_B + 1)))))
    return Task(replace(task.spec, kernel=kernel), type(task.space)(kernel, {}), task.device)


def index_of(config: Config) -> int:
    a, b = config.values
    return (int(a) - 1) * SIDE_B + int(b) - 1


@dataclass
class EveryOne:
    """Proposes all there is, in an order of its own, each once."""

    seed: int
    _order: list[Config] = field(default_factory=list)
    _given: int = 0

    def propose(self, task: Task, history: Sequence[Measurement], n: int) -> list[Proposal]:
        if not self._order:
            configs = task.space.all()
            self._order = [configs[i] for i in np.random.default_rng(self.seed).permutation(len(configs))]
        started = self._given
        self._given += n
        return [Proposal(config, "every one") for config in self._order[started : started + n]]


class NoModel:
    """Predicts nothing."""

    version = ""

    def fit(self, task: Task, history: Sequence[Measurement]) -> None: ...

    def predict(self, task: Task, configs: Sequence[Config]) -> NDArray[np.float32]:
        return np.zeros(len(configs), dtype=np.float32)
