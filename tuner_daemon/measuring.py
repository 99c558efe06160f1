"""Hops 5 to 7: build a batch, run it, make log rows of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tuner_daemon.interfaces import Builder, CostModel, Effort, MeasurementLog, Proposer, Runner
from tuner_daemon.records.measurement import Artifact, Failure, Measurement, Proposal, Ran
from tuner_daemon.records.task import Task


@dataclass(frozen=True)
class Parts:
    """What a session works with; chosen in one place and passed in."""

    proposer: Proposer
    cost_model: CostModel
    builder: Builder
    runner: Runner
    log: MeasurementLog
    policy_version: str = ""
    host: str = ""


@dataclass
class Stopwatch:
    """Wall seconds by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=dict)

    def time(self, name: str) -> _Lap:
        return _Lap(self, name)


@dataclass
class _Lap:
    watch: Stopwatch
    name: str
    began_s: float = 0.0

    def __enter__(self) -> None:
        self.began_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = time.perf_counter() - self.began_s
        self.watch.seconds[self.name] = self.watch.seconds.get(self.name, 0.0) + spent


@dataclass
class Bench:
    """Builds and runs the candidates of one job. Candidates whose binaries are equal share one measurement."""

    task: Task
    job: str
    parts: Parts
    watch: Stopwatch = field(default_factory=Stopwatch)
    artifacts: dict[str, Artifact] = field(default_factory=dict)  # config key -> what was built
    ran_by_binary: dict[str, Ran] = field(default_factory=dict)
    build_s: float = 0.0
    cache_hits: int = 0

    def start(self, proposals: Sequence[Proposal]) -> Building:
        """Begins to build; with cores of its own the device may run other candidates meanwhile."""
        with self.watch.time("build"):
            items = self.parts.builder.build(self.task.spec, [p.config for p in proposals])
            if self.parts.runner.shares_cores:
                items = iter(list(items))
        return Building({p.config.key: p for p in proposals}, items)

    def measure(
        self,
        building: Building,
        effort: Effort,
        round_: int,
        baseline_median_s: float | None,
        on_each: Callable[[Measurement], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Measurement]:
        """Runs what was built, one at a time, and appends the rows to the log as one part; asked to stop, it appends
        what has been run so far."""
        rows: list[Measurement] = []
        for item in self._timed(building.items):
            started_at = datetime.now(UTC)
            artifact = item if isinstance(item, Artifact) else None
            ran = self._run(artifact, effort) if artifact else item
            assert not isinstance(ran, Artifact)
            row = self._row(building.proposals[ran.config.key], ran, artifact, round_, started_at, baseline_median_s)
            rows.append(row)
            on_each(row)
            if stop():
                break
        self.parts.log.append(rows)
        return rows

    def _timed(self, items: Iterator[Artifact | Failure]) -> Iterator[Artifact | Failure]:
        while True:
            with self.watch.time("build"):
                item = next(items, None)
            if item is None:
                return
            yield item

    def _run(self, artifact: Artifact, effort: Effort) -> Ran:
        self.artifacts[artifact.config.key] = artifact
        self.build_s += artifact.build_s
        self.cache_hits += artifact.cached
        if twin := self.ran_by_binary.get(self._launched_as(artifact)):
            return replace(twin, config=artifact.config)
        with self.watch.time("run"):
            ran = self.parts.runner.run(self.task, artifact, effort)
        self.ran_by_binary[self._launched_as(artifact)] = ran
        return ran

    def _launched_as(self, artifact: Artifact) -> str:
        """Equal binaries are twins only if they are launched alike."""
        launch, names = self.task.spec.kernel.launch, {**self.task.spec.problem, **artifact.config.as_dict()}
        sizes = [e.evaluate(names) for e in (*launch.block, *launch.grid, launch.shared_bytes)]
        arguments = [e.evaluate(names) for a in self.task.spec.kernel.arguments if (e := a.value) is not None]
        return f"{artifact.sha256} {artifact.entry} {sizes} {arguments}"

    def _row(
        self,
        proposal: Proposal,
        ran: Ran,
        artifact: Artifact | None,
        round_: int,
        started_at: datetime,
        baseline_median_s: float | None,
    ) -> Measurement:
        spec = self.task.spec
        return Measurement(
            job=self.job,
            kernel=spec.kernel.name,
            kernel_sha256=spec.kernel.sha256,
            language=spec.language,
            problem=spec.problem,
            config=ran.config.as_dict(),
            space_sha256=self.task.space.sha256,
            ran=ran,
            device=self.task.device,
            round=round_,
            proposal=proposal,
            host=self.parts.host,
            started_at=started_at,
            artifact=artifact,
            baseline_median_s=baseline_median_s,
            policy_version=self.parts.policy_version,
            cost_model_version=self.parts.cost_model.version,
        )


@dataclass
class Building:
    """A batch on its way: who proposed what, and the items as they come out of the compile pool."""

    proposals: dict[str, Proposal]
    items: Iterator[Artifact | Failure]
