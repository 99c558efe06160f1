"""One job: propose, filter, build, check and run, append, refit, and so on; then confirm the winner."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tuner_daemon.errors import JobInterruptedError, TuningError
from tuner_daemon.interfaces import Effort
from tuner_daemon.measuring import Bench, Building, Parts
from tuner_daemon.records.measurement import Artifact, Failure, Measurement, Outcome, Proposal, Ran, Timing
from tuner_daemon.records.result import Published, Result
from tuner_daemon.records.space import Config
from tuner_daemon.records.task import Task
from tuner_daemon.verdict import Interval, Judgement, judge

HEATS = 3
"""The final round is run in so many parts: a daemon that is asked to stop need not wait for all of it."""

NO_MODEL = "no model yet: this job worked from its own measurements alone"


@dataclass(frozen=True)
class Plan:
    """How a session spends its budget."""

    batch: int = 8  # measured per round, between refits
    pool: int = 512  # proposals that the cost model ranks
    samples: int = 7
    finalists: int = 4
    final_blocks: int = 30
    drop_factor: float = 3.0  # a first launch slower than this times the incumbent gets no more samples
    patience: int = 24  # this many failures with no success end the job
    first_timeout_s: float = 30.0
    heat_timeout_s: float = 25.0


DEFAULT_PLAN = Plan()


@dataclass(frozen=True)
class Progress:
    """What a person watching wants to know."""

    phase: str  # baseline | search | final
    built: int
    measured: int
    failed: int
    budget: int
    elapsed_s: float
    baseline_s: float | None = None
    incumbent_s: float | None = None

    @property
    def speedup(self) -> float | None:
        return self.baseline_s / self.incumbent_s if self.baseline_s and self.incumbent_s else None


Observer = Callable[[Progress], None]


def tune(
    task: Task,
    job: str,
    parts: Parts,
    *,
    plan: Plan = DEFAULT_PLAN,
    observe: Observer = lambda _: None,
    stop: threading.Event | None = None,
) -> Result:
    """Answers a spec with a verified winner that is never slower than the baseline.

    Rows that the log already has for ``job`` count as measured. Raises JobInterruptedError once ``stop`` is set and
    what has been measured is in the log; TuningError if no configuration gives right results; DeviceError if the
    device breaks.
    """
    search = Search(task, parts, plan, observe, stop or threading.Event(), Bench(task, job, parts))
    search.resume()
    search.measure_baseline()
    ahead = search.start_round()
    while ahead:
        following = search.start_round() if search.may_build_ahead else None
        search.finish_round(ahead)
        ahead = following or search.start_round()
    return search.confirm()


@dataclass
class Search:
    """The state of one job between rounds."""

    task: Task
    parts: Parts
    plan: Plan
    observe: Observer
    stop: threading.Event
    bench: Bench
    history: list[Measurement] = field(default_factory=list)
    started: set[str] = field(default_factory=set)  # keys of configurations proposed for building so far
    declared_baseline: Measurement | None = None
    began_s: float = field(default_factory=time.monotonic)
    round: int = 0

    # -- the rounds --------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Takes up what an earlier run of this job left in the log; a forced job measures everything anew."""
        earlier = self.parts.log.measurements(self.bench.job)
        self.round = max((m.round for m in earlier), default=-1) + 1
        mode = self.parts.runner.clock_mode
        self.history = [] if self.task.spec.options.force else [m for m in earlier if holds(m, mode)]
        self.started = {m.ran.config.key for m in self.history}
        self.parts.log.remember(self.task.spec.kernel)
        self._refit()

    def measure_baseline(self) -> None:
        """The configuration that "faster" is relative to comes first; everything else is timed against it."""
        declared = self.task.spec.kernel.baseline
        config = self.task.space.config(declared) if declared else self.task.space.first()
        known = [m for m in self.history if m.ran.config.key == config.key]
        if not known:
            self.started.add(config.key)
            self.finish_round(self.bench.start([Proposal(config, "baseline")]))
            known = self.history[-1:]
        self.declared_baseline = known[0]

    def start_round(self) -> Building | None:
        """Chooses the next batch and begins to build it. None once the budget is spent or the space is exhausted."""
        self._check_patience()
        spec = self.task.spec
        left = spec.budget.measurements - len(self.started)
        if left <= 0 or self.elapsed_s >= spec.budget.seconds:
            return None
        size = self.plan.batch if self.parts.runner.shares_cores else max(1, self.plan.batch // 2)
        with self.bench.watch.time("propose"):
            chosen = self._choose(min(size, left))
        self.started.update(p.config.key for p in chosen)
        return self.bench.start(chosen) if chosen else None

    def finish_round(self, building: Building) -> None:
        """Runs a batch, logs it, refits the cost model."""
        baseline_s = self.baseline.median_s if self.baseline else None
        shown = list(self.history)

        def on_each(row: Measurement) -> None:
            shown.append(row)
            self._report("search" if baseline_s else "baseline", shown)

        rows = self.bench.measure(building, self._effort(), self.round, baseline_s, on_each, stop=self.stop.is_set)
        self.history += rows
        self.round += 1
        self._heed_stop()
        self._keep_one_clock_mode(rows)
        with self.bench.watch.time("propose"):
            self._refit()

    def confirm(self) -> Result:
        """Re-measures the best few against the baseline on fresh data, in interleaved blocks."""
        baseline = self._require_baseline()
        best = sorted(self._timings(), key=lambda t: t.median_s)
        finalists = [t for t in best if t.config != baseline.config][: self.plan.finalists]
        self._report("final", self.history)
        artifacts = self._artifacts([baseline.config, *(t.config for t in finalists)])
        entrants = [artifacts[0], *artifacts]  # the baseline runs under two names: that is the noise floor
        with self.bench.watch.time("run"):
            own, twin, *others = self._race(entrants)
        for ran in (own, twin):
            if isinstance(ran, Failure):
                raise TuningError(f"the baseline failed in the final round: {ran.outcome}: {ran.detail}")
        assert isinstance(own, Timing)
        assert isinstance(twin, Timing)
        stood = [r for r in others if isinstance(r, Timing)]
        judgement = judge(
            np.array(own.times_s),
            np.array(twin.times_s),
            np.array([r.times_s for r in stood]).reshape(len(stood), len(own.times_s)),
        )
        return self._result(judgement, own, stood)

    def _race(self, entrants: Sequence[Artifact]) -> list[Ran]:
        """One result per entrant, from heats short enough to stop between them."""
        result: list[Ran] = []
        for _ in range(HEATS):
            self._heed_stop()
            blocks = -(-self.plan.final_blocks // HEATS)
            heat = self.parts.runner.race(self.task, entrants, blocks, self.plan.heat_timeout_s)
            result = [joined(*pair) for pair in zip(result, heat, strict=True)] if result else heat
        self._heed_stop()
        return result

    def _heed_stop(self) -> None:
        if self.stop.is_set():
            measured = len(self.history)
            raise JobInterruptedError(f"{self.bench.job}: stopped after {measured} measurements, all in the log")

    def _keep_one_clock_mode(self, rows: Sequence[Measurement]) -> None:
        """If the clocks were locked or let go under way, what was measured before counts as not measured."""
        modes = [m.ran.clocks.mode for m in rows if isinstance(m.ran, Timing)]
        if all(t.clocks.mode == modes[-1] for t in self._timings() if modes):
            return
        kept = [m for m in self.history if holds(m, modes[-1])]
        self.started -= {m.ran.config.key for m in self.history} - {m.ran.config.key for m in kept}
        self.history = kept
        self.bench.ran_by_binary.clear()
        if self.declared_baseline is not None and self.declared_baseline not in kept:
            self.declared_baseline = None
            self.measure_baseline()

    # -- parts of a round --------------------------------------------------------------------------------------

    @property
    def may_build_ahead(self) -> bool:
        return not self.parts.runner.shares_cores and bool(self.history)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s

    @property
    def baseline(self) -> Timing | None:
        """The declared baseline if it gave right results, else the first configuration that did."""
        declared = self.declared_baseline
        if declared and isinstance(declared.ran, Timing):
            return declared.ran
        return next((m.ran for m in self.history if isinstance(m.ran, Timing)), None)

    def _choose(self, n: int) -> list[Proposal]:
        proposals = [
            p
            for p in self.parts.proposer.propose(self.task, self.history, self.plan.pool)
            if p.config.key not in self.started
        ]
        predicted = self.parts.cost_model.predict(self.task, [p.config for p in proposals])
        scored = [replace(p, predicted_log_s=float(s)) for p, s in zip(proposals, predicted, strict=True)]
        return shortlist(scored, n)

    def _effort(self) -> Effort:
        longest_s = min(self.plan.first_timeout_s, max(1.0, self.task.spec.budget.seconds))
        incumbent = min((t.median_s for t in self._timings()), default=None)
        if incumbent is None or self.baseline is None:
            return Effort(samples=self.plan.samples, timeout_s=longest_s)
        # Ten times the baseline for each of the launches that checking and sampling make.
        launches = 20 + self.plan.samples
        timeout_s = min(5.0 + 10 * self.baseline.median_s * launches, longest_s)
        return Effort(self.plan.samples, self.plan.drop_factor * incumbent, timeout_s)

    def _refit(self) -> None:
        self.parts.cost_model.fit(self.task, self.history)

    def _timings(self) -> list[Timing]:
        return [m.ran for m in self.history if isinstance(m.ran, Timing)]

    def _artifacts(self, configs: Sequence[Config]) -> list[Artifact]:
        missing = [c for c in configs if c.key not in self.bench.artifacts]
        for item in self.parts.builder.build(self.task.spec, missing):
            if isinstance(item, Artifact):
                self.bench.artifacts[item.config.key] = item
        return [self.bench.artifacts[c.key] for c in configs if c.key in self.bench.artifacts]

    def _check_patience(self) -> None:
        if len(self.history) >= min(self.plan.patience, self.task.space.size) and not self._timings():
            raise TuningError(self._why_nothing_ran())

    def _require_baseline(self) -> Timing:
        if self.baseline is None:
            raise TuningError(self._why_nothing_ran())
        return self.baseline

    def _why_nothing_ran(self) -> str:
        counts = ", ".join(f"{n} {outcome}" for outcome, n in self._outcomes().items())
        detail = next((m.ran.detail for m in self.history if isinstance(m.ran, Failure)), "nothing was measured")
        return f"no configuration gave right results ({counts}). The first one: {detail}"

    def _outcomes(self) -> dict[str, int]:
        return dict(Counter(str(m.ran.outcome) for m in self.history))

    def _report(self, phase: str, rows: Sequence[Measurement]) -> None:
        times = [m.ran.median_s for m in rows if isinstance(m.ran, Timing)]
        self.observe(
            Progress(
                phase=phase,
                built=sum(m.artifact is not None for m in rows),
                measured=len(rows),
                failed=len(rows) - len(times),
                budget=self.task.spec.budget.measurements,
                elapsed_s=self.elapsed_s,
                baseline_s=self.baseline.median_s if self.baseline else None,
                incumbent_s=min(times, default=None),
            )
        )

    # -- the answer --------------------------------------------------------------------------------------------

    def _result(self, judgement: Judgement, baseline: Timing, finalists: Sequence[Timing]) -> Result:
        winner = baseline if judgement.winner is None else finalists[judgement.winner]
        seconds = {"propose": 0.0, "build": 0.0, "run": 0.0} | self.bench.watch.seconds
        return Result(
            job=self.bench.job,
            spec=self.task.spec,
            verdict=judgement.verdict,
            reason=judgement.reason,
            best=self._published(winner, judgement.winner_s, judgement.speedup),
            baseline=self._published(baseline, judgement.baseline_s, Interval(1.0, 1.0, 1.0)),
            ties=tuple(finalists[i].config for i in judgement.ties),
            noise_floor=judgement.noise_floor,
            measured=len(self.history),
            outcomes=self._outcomes(),
            space_size=self.task.space.size,
            device=self.task.device,
            clocks=winner.clocks,
            models={"policy": self.parts.policy_version, "cost_model": self.parts.cost_model.version},
            wall_s={**seconds, "total": self.elapsed_s},
            notes=tuple(self._notes()),
            counters={
                "build_s": self.bench.build_s,
                "build_cache_hits": self.bench.cache_hits,
                "run_share": seconds["run"] / max(self.elapsed_s, 1e-9),
            },
        )

    def _published(self, timing: Timing, seconds: Interval, speedup: Interval) -> Published:
        return Published(
            config=timing.config,
            median_s=seconds.median,
            ci_s=(seconds.low, seconds.high),
            speedup=speedup.median,
            speedup_ci=(speedup.low, speedup.high),
            roofline_fraction=roofline_fraction(self.task, timing.config, seconds.median),
            error_norm=timing.error_norm,
            proposed_by=next(m.proposal.proposed_by for m in self.history if m.ran.config == timing.config),
        )

    def _notes(self) -> list[str]:
        notes = [] if self.parts.policy_version or self.parts.cost_model.version else [NO_MODEL]
        declared = self.declared_baseline
        if declared and isinstance(declared.ran, Failure):
            notes.append(
                f"the baseline failed ({declared.ran.outcome}: {declared.ran.detail}); "
                "speed-ups are relative to the first configuration that gave right results"
            )
        return notes


def shortlist(scored: Sequence[Proposal], n: int) -> list[Proposal]:
    """The n with the least predicted time; one of the places is for exploration where the proposer sent any.

    Equal predictions keep the proposer's order, so that without a model its best come first.
    """
    ranked = sorted(scored, key=lambda p: p.predicted_log_s or 0.0)
    exploring = [p for p in ranked if p.proposed_by == "explore"][: 1 if n > 1 else 0]
    rest = [p for p in ranked if p not in exploring]
    return [*rest[: n - len(exploring)], *exploring]


def holds(row: Measurement, clock_mode: str) -> bool:
    """Whether a row of this job counts as measured at clocks of this mode: a time is one at its own clocks only, and a
    disturbed row tells nothing."""
    if isinstance(row.ran, Timing) or row.ran.outcome is Outcome.TIMED_OUT:
        return row.ran.clocks.mode == clock_mode
    return row.ran.outcome is not Outcome.DISTURBED


def joined(first: Ran, second: Ran) -> Ran:
    """Two heats of one entrant; a failure in either is its result."""
    if isinstance(first, Failure) or isinstance(second, Failure):
        return first if isinstance(first, Failure) else second
    worst = max(first.error_norm, second.error_norm)
    return replace(second, times_s=first.times_s + second.times_s, error_norm=worst)


def roofline_fraction(task: Task, config: Config, median_s: float) -> float | None:
    """Attained share of the roofline (Williams et al. 2009): least possible time over measured time."""
    work, attributes = task.spec.kernel.work, task.device.attributes
    names = {**task.spec.problem, **config.as_dict()}
    bounds = [
        float(amount.evaluate(names)) / attributes[peak]
        for amount, peak in ((work.flops, "peak_flops"), (work.bytes, "peak_bytes_per_s"))
        if amount is not None and attributes.get(peak)
    ]
    return max(bounds) / median_s if bounds else None
