"""A Runner and a Builder that act out the behaviours of ``tests.contracts`` without a device or a compiler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.contracts import BEHAVIOURS
from tuner_daemon.interfaces import Effort
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Ran, Timing
from tuner_daemon.records.space import Config
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.records.task import Task


class FakeBuilder:
    """Builds nothing into an artifact that does not exist."""

    def build(self, spec: KernelSpec, configs: Sequence[Config]) -> Iterator[Artifact | Failure]:
        return iter([self._built(spec, config) for config in configs])

    def build_reference(self, spec: KernelSpec) -> Artifact:
        return Artifact(Config.of({}), Path("/nowhere"), f"{spec.kernel.name}_reference", "0" * 64, 0.0)

    def close(self) -> None:
        return None

    def _built(self, spec: KernelSpec, config: Config) -> Artifact | Failure:
        if BEHAVIOURS[str(config["BEHAVIOUR"])] is Outcome.BUILD_FAILED:
            return Failure(config, Outcome.BUILD_FAILED, "scripted")
        return Artifact(config, Path("/nowhere"), spec.kernel.name, config.key, 0.0)


class FakeRunner:
    """Every launch takes ``launch_s``; what becomes of a candidate is written in its configuration."""

    shares_cores = False
    clock_mode = "free"

    def __init__(self, device: DeviceInfo, launch_s: float = 1e-3) -> None:
        self.device, self._launch_s = device, launch_s
        self.ran: list[Config] = []

    def device_for(self, spec: KernelSpec) -> DeviceInfo:
        del spec
        return self.device

    def run(self, task: Task, artifact: Artifact, effort: Effort) -> Ran:
        dropped = effort.drop_above_s is not None and self._launch_s > effort.drop_above_s
        return self._played(artifact.config, 1 if dropped else effort.samples)

    def race(self, task: Task, artifacts: Sequence[Artifact], blocks: int, timeout_s: float) -> list[Ran]:
        return [self._played(artifact.config, blocks) for artifact in artifacts]

    def close(self) -> None:
        return None

    def _played(self, config: Config, samples: int) -> Ran:
        self.ran.append(config)
        outcome = BEHAVIOURS[str(config["BEHAVIOUR"])]
        if outcome is not Outcome.OK:
            return Failure(config, outcome, "scripted")
        return Timing(config, (self._launch_s,) * samples, self._launch_s, 0.0)
