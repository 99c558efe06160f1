"""Hops 5 to 7: build a batch, run it, make log rows of it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.drift import Track
from tuner_daemon.errors import ExpressionError
from tuner_daemon.events import tell
from tuner_daemon.interfaces import Builder, CostModel, Effort, MeasurementLog, Proposer, Runner
from tuner_daemon.records.measurement import Artifact, Failure, Measurement, Outcome, Proposal, Ran, Timing
from tuner_daemon.records.task import Task

logger = logging.getLogger(__name__)

TRIES, BASELINE_TRIES = 2, 8  # of a measurement that is disturbed
RETIME_SAMPLES = 5
RETIME_SHARE = 0.1  # of the time that candidates take
RETIME_S = 10.0  # however few candidates have been run
RETIME_EVERY, RETIME_OFTEN, RETIME_SELDOM = 8, 4, 32  # candidates: at first, and the ends of its range
QUIET = 0.0025  # a baseline that changed by less need not be looked at so often
JUMP = 0.01  # a block whose two baselines differ by more is repeated
WORTH_REPEATING = 1.1  # times the incumbent; what is slower than that will not win after a repeat either


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
    clock: Callable[[], float] = time.monotonic  # seconds; devices that are acted out have their own


@dataclass
class Stopwatch:
    """Wall seconds by what they were spent on; any thread may add to them."""

    seconds: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

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
        with self.watch.lock:
            self.watch.seconds[self.name] = self.watch.seconds.get(self.name, 0.0) + spent


@dataclass
class Bench:
    """Builds and runs the candidates of one job. Candidates whose binaries are equal share one measurement; the
    baseline is timed again between candidates, so that all can be compared as ratios to it.

    A candidate whose measurement was disturbed is run once more, with the next batch; the baseline, more often. A block
    between two timings of the baseline that differ by more than JUMP is run once more as far as it matters.
    """

    task: Task
    job: str
    parts: Parts
    watch: Stopwatch = field(default_factory=Stopwatch)
    artifacts: dict[str, Artifact] = field(default_factory=dict)  # config key -> what was built
    counters: Counter[str] = field(default_factory=Counter)
    build_s: float = 0.0
    device_s: float = 0.0
    stages_s: defaultdict[str, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # what workers spent their time on
    track: Track = field(default_factory=Track)
    _known: dict[str, tuple[Ran, float]] = field(default_factory=dict)  # binary and launch -> outcome, and when
    _ran_at_s: dict[str, float] = field(default_factory=dict)  # config key -> when
    _anchor: Artifact | None = None
    _waiting: list[tuple[Proposal, Artifact]] = field(default_factory=list)  # disturbed, to be run once more
    _tries: Counter[str] = field(default_factory=Counter)  # by config key, disturbed ones only
    _every: int = RETIME_EVERY
    _since: int = 0  # candidates since the baseline was timed
    _since_s: float = 0.0  # of running them
    _retimed_at_s: float = 0.0
    _retime_s: float = 0.0  # that the last re-timing took

    # -- a batch -----------------------------------------------------------------------------------------------

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
        effort: Callable[[], Effort],
        round_: int,
        on_each: Callable[[Measurement], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Measurement]:
        """Runs what was built, and what was disturbed before, one at a time; appends the rows to the log as one part.
        ``effort`` is asked before each. Asked to stop, it appends what has been run so far."""
        proposals = dict(building.proposals)
        rows: list[Measurement] = []
        block = 0  # rows from here on were run since the baseline was timed
        try:
            for item in self._items(building, proposals):
                before_s = self.watch.seconds.get("run", 0.0)
                row = self._measured(item, proposals[item.config.key], effort, round_)
                if row is not None:
                    self._tell(row, self.watch.seconds.get("run", 0.0) - before_s)
                    rows.append(row)
                    on_each(row)
                if stop():
                    break
                if self._is_due():
                    self._repeat_after_jump(rows, block, effort)
                    block = len(rows)
        finally:  # a device that breaks takes no row with it: what killed it must be known after the restart
            rows = self._with_baselines(rows)
            self.parts.log.append(rows)
        return rows

    def _tell(self, row: Measurement, run_s: float) -> None:
        ran, artifact = row.ran, row.artifact
        fields = {
            "job": self.job,
            "candidate": ran.config.key,
            "outcome": str(ran.outcome),
            "proposed_by": row.proposal.proposed_by,
            "round": row.round,
            "median_s": ran.median_s if isinstance(ran, Timing) else None,
            "build_s": 0.0 if artifact is None or artifact.cached else artifact.build_s,
            "run_s": run_s,
            "device_s": ran.device_s,
        }
        words = f"{1e3 * ran.median_s:.4g} ms" if isinstance(ran, Timing) else ran.detail.strip().partition("\n")[0]
        sentence = "job %s: candidate %s: %s: %s"
        tell(logger, logging.INFO, "candidate", sentence, self.job, ran.config.key, ran.outcome, words, **fields)

    @property
    def waiting(self) -> int:
        """Candidates that were disturbed and will be run with the next batch."""
        return len(self._waiting)

    def _items(self, building: Building, proposals: dict[str, Proposal]) -> Iterator[Artifact | Failure]:
        again, self._waiting = self._waiting, []
        proposals |= {proposal.config.key: proposal for proposal, _ in again}
        yield from (artifact for _, artifact in again)
        while True:
            with self.watch.time("build"):
                item = next(building.items, None)
            if item is None:
                return
            if isinstance(item, Artifact):
                self.artifacts[item.config.key] = item
                self.build_s += item.build_s
                self.counters["build_cache_hits"] += item.cached
            yield item

    def _measured(
        self, item: Artifact | Failure, proposal: Proposal, effort: Callable[[], Effort], round_: int
    ) -> Measurement | None:
        """A row; None for a disturbed measurement that will be repeated."""
        started_at = datetime.now(UTC)
        if isinstance(item, Failure):
            return self._row(proposal, item, None, round_, started_at)
        try:
            ran = self._run(item, effort())
        except ExpressionError as error:
            ran = Failure(item.config, Outcome.LAUNCH_FAILED, f"an expression has no value: {error}")
        if ran.outcome is Outcome.DISTURBED:
            self.counters["disturbed"] += 1
            self._tries[proposal.config.key] += 1
            if self._tries[proposal.config.key] < (BASELINE_TRIES if proposal.proposed_by == "baseline" else TRIES):
                self._waiting.append((proposal, item))
                return None
        return self._row(proposal, ran, item, round_, started_at)

    def _run(self, artifact: Artifact, effort: Effort) -> Ran:
        launched_as = self._launched_as(artifact)
        if known := self._known.get(launched_as):
            twin, self._ran_at_s[artifact.config.key] = known
            self.counters["identical_binaries"] += 1
            return replace(twin, config=artifact.config)
        ran, at_s, took_s = self._timed(artifact, effort)
        self._since += 1
        self._since_s += took_s
        self._ran_at_s[artifact.config.key] = at_s
        if ran.outcome is not Outcome.DISTURBED:
            self._known[launched_as] = ran, at_s
        return ran

    def _timed(self, artifact: Artifact, effort: Effort) -> tuple[Ran, float, float]:
        """What came of it, when (the middle), and how long it took."""
        began_s = self.parts.clock()
        with self.watch.time("run"):
            ran = self.parts.runner.run(self.task, artifact, effort)
        ended_s = self.parts.clock()
        self.count(ran)
        return ran, (began_s + ended_s) / 2, ended_s - began_s

    def count(self, ran: Ran) -> None:
        """Adds what was run to the counters."""
        self.device_s += ran.device_s
        for stage, spent_s in ran.stages_s.items():
            self.stages_s[stage] += spent_s
        self.counters["samples"] += len(ran.times_s) if isinstance(ran, Timing) else 0

    def _launched_as(self, artifact: Artifact) -> str:
        """Equal binaries are twins only if they are launched alike, on memory of the same sizes."""
        launch, names = self.task.spec.kernel.launch, {**self.task.spec.problem, **artifact.config.as_dict()}
        sizes = [e.evaluate(names) for e in (*launch.block, *launch.grid, launch.shared_bytes)]
        arguments = [
            e.evaluate(names)
            for a in self.task.spec.kernel.arguments
            for e in (*a.shape, *([] if a.value is None else [a.value]))
        ]
        return f"{artifact.sha256} {artifact.entry} {sizes} {arguments}"

    # -- the baseline between candidates -----------------------------------------------------------------------

    def follow(self, artifact: Artifact, measured: Timing | None = None) -> None:
        """Has ``artifact`` timed again between candidates from now on; ``measured`` is its timing of this session."""
        self._anchor = artifact
        at_s = self._ran_at_s.get(artifact.config.key)
        if measured is not None and at_s is not None:
            self.track.add(at_s, measured.times_s)
            self._reset(at_s)
        else:
            self.retime()

    def retime(self) -> bool:
        """Times the baseline again; False if that was disturbed or failed: it is due again after some candidates."""
        assert self._anchor is not None
        ran, at_s, self._retime_s = self._timed(self._anchor, Effort(RETIME_SAMPLES, known=True, timeout_s=30.0))
        self._reset(at_s)
        self.counters["retimings"] += 1
        if isinstance(ran, Timing):
            self.track.add(at_s, ran.times_s)
        return isinstance(ran, Timing)

    def forget(self) -> None:
        """What was measured so far says nothing of the device any more, such as after its clocks were locked."""
        self._known.clear()
        self._ran_at_s.clear()
        self.track, self._anchor = Track(), None

    def ratios(self, rows: Sequence[Measurement]) -> NDArray[np.float64]:
        """(n,) times relative to the baseline's at the same moment; NaN for failures, or without a baseline. Rows of
        earlier sessions are relative to the baseline of theirs."""
        found = np.full(len(rows), np.nan)
        here = [i for i, row in enumerate(rows) if isinstance(row.ran, Timing) and row.ran.config.key in self._ran_at_s]
        if here and len(self.track):
            baseline_s = self.track.seconds([self._ran_at_s[rows[i].ran.config.key] for i in here])
            found[here] = [row.ran.median_s for i in here if isinstance((row := rows[i]).ran, Timing)] / baseline_s
        for i, row in enumerate(rows):
            if isinstance(row.ran, Timing) and row.ran.config.key not in self._ran_at_s and row.baseline_median_s:
                found[i] = row.ran.median_s / row.baseline_median_s
        return found

    def _reset(self, at_s: float) -> None:
        self._since, self._since_s, self._retimed_at_s = 0, 0.0, at_s

    def _is_due(self) -> bool:
        """Never at the price of more than a tenth of the time that candidates take."""
        if self._anchor is None or self._since_s * RETIME_SHARE < self._retime_s or not self._since:
            return False
        return self._since >= self._every or self.parts.clock() - self._retimed_at_s > RETIME_S

    def _repeat_after_jump(self, rows: list[Measurement], block: int, effort: Callable[[], Effort]) -> None:
        """Times the baseline; where it has jumped, so may those of ``rows[block:]`` that could win have: once more."""
        if not self.retime() or len(self.track) < 2:
            return
        jump, error = self.track.jump, self.track.jump_error
        calm = jump < max(QUIET, 2 * error)
        self._every = min(2 * self._every, RETIME_SELDOM) if calm else max(self._every // 2, RETIME_OFTEN)
        if jump <= max(JUMP, 3 * error) or block == len(rows):
            return
        for i, ratio in zip(range(block, len(rows)), self.ratios(rows[block:]), strict=True):
            artifact, limit_s = rows[i].artifact, effort().beat_s
            if artifact is None or limit_s is None or not ratio * self.track.now_s() < WORTH_REPEATING * limit_s:
                continue
            self._known.pop(self._launched_as(artifact), None)
            ran = self._run(artifact, effort())
            self.counters["repeated"] += 1
            if ran.outcome is not Outcome.DISTURBED:
                rows[i] = replace(rows[i], ran=ran)

    def _with_baselines(self, rows: list[Measurement]) -> list[Measurement]:
        """With what the baseline took when each was run, as far as that is known now."""
        if not len(self.track):
            return [replace(row, baseline_median_s=_own_median_s(row)) for row in rows]
        at_s = [self._ran_at_s.get(row.ran.config.key, self._retimed_at_s) for row in rows]
        return [
            replace(row, baseline_median_s=float(baseline_s))
            for row, baseline_s in zip(rows, self.track.seconds(at_s), strict=True)
        ]

    def _row(
        self, proposal: Proposal, ran: Ran, artifact: Artifact | None, round_: int, started_at: datetime
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
            policy_version=self.parts.policy_version,
            cost_model_version=self.parts.cost_model.version,
        )


def _own_median_s(row: Measurement) -> float | None:
    """Of the baseline itself, which nothing was measured before."""
    is_baseline = row.proposal.proposed_by == "baseline"
    return row.ran.median_s if is_baseline and isinstance(row.ran, Timing) else None


@dataclass
class Building:
    """A batch on its way: who proposed what, and the items as they come out of the compile pool."""

    proposals: dict[str, Proposal]
    items: Iterator[Artifact | Failure]

    @classmethod
    def nothing(cls) -> Building:
        return cls({}, iter(()))
