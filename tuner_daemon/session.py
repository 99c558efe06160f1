"""One job: propose, filter, build, check and run, append, refit, and so on; then confirm the winner."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from tuner_daemon.answers import notes, published
from tuner_daemon.errors import JobInterruptedError, TuningError
from tuner_daemon.final import Final, run_final
from tuner_daemon.interfaces import Effort
from tuner_daemon.measuring import Bench, Building, Parts
from tuner_daemon.plan import DEFAULT_PLAN, Plan, effort, first_effort
from tuner_daemon.progress import Observer, counters, progress
from tuner_daemon.records.device import DEVICE_IDENTITY, DeviceInfo
from tuner_daemon.records.measurement import Artifact, Failure, Measurement, Outcome, Proposal, Ran, Timing
from tuner_daemon.records.result import Result
from tuner_daemon.records.space import Config
from tuner_daemon.records.task import Task
from tuner_daemon.stopping import why_stop
from tuner_daemon.verdict import ONE, Judgement, judge

HEATS = 3
"""The final round is run in so many parts: a daemon that is asked to stop need not wait for all of it."""


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
    with ThreadPoolExecutor(1, thread_name_prefix="choose") as chooser:
        ahead = search.next_round()
        while ahead or search.bench.waiting:
            # What comes next is chosen, and its building begun, while the device is busy with what was chosen before.
            outlook = search.outlook() if search.overlaps else None
            following = chooser.submit(search.prepare, outlook) if outlook else None
            search.finish_round(ahead or Building.nothing())
            with search.bench.watch.time("propose"):
                chosen = following.result() if following else None
            search.keep_one_clock_mode()
            ahead = chosen or search.next_round()
    return search.confirm()


@dataclass(frozen=True)
class Outlook:
    """What the next round is chosen from, as it stood when the choice began: choosing goes on beside measuring, and the
    same seed must lead to the same choice however fast either is."""

    history: Sequence[Measurement]  # times corrected for drift
    size: int


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
    best_ratio: float = math.inf  # of the incumbent's time to the baseline's at the same moment
    round: int = 0
    began_s: float = field(init=False)
    choosing_s: float = 0.0
    stopped: str = ""  # why the search ended before its budget

    def __post_init__(self) -> None:
        self.began_s = self.parts.clock()

    # -- the rounds --------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Takes up what an earlier run of this job left in the log; a forced job measures everything anew."""
        earlier = self.parts.log.measurements(self.bench.job)
        self.round = max((m.round for m in earlier), default=-1) + 1
        mode = self.parts.runner.clock_mode
        ours = [m for m in earlier if same_device(m.device, self.task.device) and holds(m, mode)]
        self.history = [] if self.task.spec.options.force else ours
        self.started = {m.ran.config.key for m in self.history}
        self.parts.log.remember(self.task.spec.kernel)

    def measure_baseline(self) -> None:
        """The configuration that "faster" is relative to comes first; everything else is timed against it."""
        declared = self.task.spec.kernel.baseline
        config = self.task.space.config(declared) if declared else self.task.space.first()
        known = [m for m in self.history if m.ran.config.key == config.key]
        if not known:
            self.started.add(config.key)
            self.finish_round(self.bench.start([Proposal(config, "baseline")]))
            while self.bench.waiting:
                self.finish_round(Building.nothing())
            known = self.history[-1:]
        self.declared_baseline = known[0]
        self._follow_baseline()

    def next_round(self) -> Building | None:
        """The next batch, on its way; None once the budget is spent or the space is exhausted."""
        outlook = self.outlook()
        if outlook is None:
            return None
        with self.bench.watch.time("propose"):
            chosen = self._choose(outlook)
        return self.bench.start(chosen) if chosen else None

    def outlook(self) -> Outlook | None:
        """What the next round may be chosen from; None once the budget is spent."""
        self._check_patience()
        budget = self.task.spec.budget
        disturbed = self._outcomes().get(Outcome.DISTURBED, 0)  # not measured, so they do not count; within reason
        left = budget.measurements - len(self.started) + min(disturbed, budget.measurements // 4)
        if left <= 0 or self.elapsed_s >= budget.seconds or self.stopped:
            return None
        return Outlook(self._corrected(), min(self.plan.batch, left))

    def prepare(self, outlook: Outlook) -> Building | None:
        """Chooses and begins to build, in a thread of its own."""
        chosen = self._choose(outlook)
        return self.bench.start(chosen) if chosen else None

    def finish_round(self, building: Building) -> None:
        """Runs a batch and logs it."""
        shown = list(self.history)

        def on_each(row: Measurement) -> None:
            shown.append(row)
            self._look_at(row)
            self._report("search" if self.declared_baseline else "baseline", shown)

        rows = self.bench.measure(building, self._effort, self.round, on_each, stop=self.stop.is_set)
        self.history = [*self.history, *rows]
        self.round += 1
        self._heed_stop()
        if self.declared_baseline is not None:
            self._follow_baseline()
        self.best_ratio = min((r for r in self.bench.ratios(self.history) if r > 0), default=math.inf)

    def confirm(self) -> Result:
        """Re-measures the best few against the baseline on fresh data, in interleaved blocks."""
        baseline = self._require_baseline()
        ratios = self.bench.ratios(self.history)
        order = [self.history[i].ran.config for i in np.argsort(ratios) if ratios[i] > 0]
        finalists = [config for config in order if config != baseline.config][: self.plan.finalists]
        self._report("final", self.history)
        built = {a.config.key: a for a in self._artifacts([baseline.config, *finalists])}
        if baseline.config.key not in built:
            raise TuningError("the baseline was built and measured before and does not build any more")
        others = [built[config.key] for config in finalists if config.key in built]
        own = built[baseline.config.key]
        launch_s = 2 * baseline.median_s + sum(t.median_s for t in self._timings() if t.config in finalists)
        spare_s = self.elapsed_s * self.plan.final_share
        enough_s = self.elapsed_s + spare_s

        def race(entrants: Sequence[Artifact], blocks: int) -> list[Ran]:
            self._heed_stop()
            with self.bench.watch.time("run"):
                # Checks launch every entrant about eight times before and after the blocks.
                limit_s = self.plan.heat_timeout_s + 4 * launch_s * (blocks + 8)
                heat = self.parts.runner.race(self.task, entrants, blocks, limit_s)
            for ran in heat:
                self.bench.count(ran)
            self._heed_stop()
            return heat

        final = run_final(
            own,
            others,
            race,
            blocks=self.plan.final_blocks,
            heats=HEATS,
            may_go_on=lambda: self.elapsed_s < enough_s,
            must_end=lambda: self.elapsed_s > enough_s + self.plan.final_limit_s,
        )
        judgement = judge(np.array(final.baseline.times_s), np.array(final.twin.times_s), final.times_s())
        return self._result(judgement, final)

    def _heed_stop(self) -> None:
        if self.stop.is_set():
            measured = len(self.history)
            raise JobInterruptedError(f"{self.bench.job}: stopped after {measured} measurements, all in the log")

    def keep_one_clock_mode(self) -> None:
        """If the clocks were locked or let go under way, what was measured before counts as not measured."""
        modes = [t.clocks.mode for t in self._timings()]
        if len(set(modes)) <= 1:
            return
        kept = [m for m in self.history if holds(m, modes[-1])]
        self.started -= {m.ran.config.key for m in self.history} - {m.ran.config.key for m in kept}
        self.history = kept
        self.bench.forget()
        self.best_ratio = math.inf
        if self.declared_baseline is not None and self.declared_baseline not in kept:
            self.declared_baseline = None
            self.measure_baseline()
        self._follow_baseline()

    # -- parts of a round --------------------------------------------------------------------------------------

    @property
    def overlaps(self) -> bool:
        """Where the device has cores of its own, the next round is chosen and built while this one runs."""
        return not self.parts.runner.shares_cores

    @property
    def elapsed_s(self) -> float:
        return self.parts.clock() - self.began_s

    @property
    def baseline(self) -> Timing | None:
        """The declared baseline if it gave right results, else the first configuration that did."""
        declared = self.declared_baseline
        if declared and isinstance(declared.ran, Timing):
            return declared.ran
        return next((m.ran for m in self.history if isinstance(m.ran, Timing)), None)

    def _choose(self, outlook: Outlook) -> list[Proposal]:
        began_s = time.perf_counter()
        self.parts.cost_model.fit(self.task, outlook.history)
        proposals = [
            p
            for p in self.parts.proposer.propose(self.task, outlook.history, self.plan.pool)
            if p.config.key not in self.started
        ]
        predicted = self.parts.cost_model.predict(self.task, [p.config for p in proposals])
        scored = [replace(p, predicted_log_s=float(s)) for p, s in zip(proposals, predicted, strict=True)]
        chosen = [] if self._may_stop(outlook, scored) else shortlist(scored, outlook.size)
        self.started.update(p.config.key for p in chosen)
        self.choosing_s += time.perf_counter() - began_s
        return chosen

    def _may_stop(self, outlook: Outlook, scored: Sequence[Proposal]) -> bool:
        if self.plan.stop_after is not None:
            self.stopped = why_stop(
                self.task,
                outlook.history,
                self.parts.cost_model,
                scored,
                batch=outlook.size,
                after=self.plan.stop_after,
            )
        return bool(self.stopped)

    def _effort(self) -> Effort:
        limit_s = self.task.spec.budget.seconds
        if self.baseline is None or not len(self.bench.track):
            return first_effort(self.plan, limit_s)
        incumbent_s = min(self.best_ratio, 1.0) * self.bench.track.now_s()
        return effort(self.plan, limit_s, self.baseline.median_s, incumbent_s)

    def _look_at(self, row: Measurement) -> None:
        """Within a round the incumbent is known at once."""
        if isinstance(row.ran, Timing) and len(self.bench.track):
            self.best_ratio = min(self.best_ratio, row.ran.median_s / self.bench.track.now_s())

    def _follow_baseline(self) -> None:
        """Once there is a baseline it is timed again and again. After a restart the device may be another: at once."""
        if self.baseline is None or len(self.bench.track):
            return
        for artifact in self._artifacts([self.baseline.config]):
            self.bench.follow(artifact, self.baseline)

    def _corrected(self) -> list[Measurement]:
        """The history, with times as if the baseline had always taken what it took first. What would change by less
        than a tenth of a per cent stays as it was."""
        if self.baseline is None or not len(self.bench.track):
            return self.history
        level_s = self.bench.track.first_s
        return [
            replace(row, ran=replace(row.ran, times_s=(float(ratio * level_s),)))
            if isinstance(row.ran, Timing) and abs(ratio * level_s / row.ran.median_s - 1) > 1e-3
            else row
            for row, ratio in zip(self.history, self.bench.ratios(self.history), strict=True)
        ]

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
        baseline_s = self.baseline.median_s if self.baseline else None
        budget = self.task.spec.budget.measurements
        self.observe(progress(phase, rows, budget, self.elapsed_s, baseline_s, self._counters()))

    # -- the answer --------------------------------------------------------------------------------------------

    def _result(self, judgement: Judgement, final: Final) -> Result:
        baseline, finalists = final.baseline, final.finalists
        winner = baseline if judgement.winner is None else finalists[judgement.winner]
        seconds = {"propose": 0.0, "build": 0.0, "run": 0.0} | self.bench.watch.seconds
        proposed_by = {m.ran.config.key: m.proposal.proposed_by for m in self.history}
        declared = self.declared_baseline.ran if self.declared_baseline else None
        models = {"policy": self.parts.policy_version, "cost_model": self.parts.cost_model.version}
        return Result(
            job=self.bench.job,
            spec=self.task.spec,
            verdict=judgement.verdict,
            reason=judgement.reason,
            best=published(self.task, winner, judgement.winner_s, judgement.speedup, proposed_by),
            baseline=published(self.task, baseline, judgement.baseline_s, ONE, proposed_by),
            ties=tuple(finalists[i].config for i in judgement.ties),
            noise_floor=judgement.noise_floor,
            measured=len(self.history) - self._outcomes().get(Outcome.DISTURBED, 0),
            outcomes=self._outcomes(),
            space_size=self.task.space.size,
            device=self.task.device,
            clocks=winner.clocks,
            models=models,
            wall_s={**seconds, "total": self.elapsed_s},
            notes=notes(any(models.values()), declared, self.stopped),
            counters=self._counters() | {"disturbed_heats": float(final.disturbed)},
        )

    def _counters(self) -> dict[str, float]:
        return {"choosing_s": self.choosing_s, **counters(self.bench, self.elapsed_s)}


def shortlist(scored: Sequence[Proposal], n: int) -> list[Proposal]:
    """The n with the least predicted time; one of the places is for exploration where the proposer sent any.

    Equal predictions keep the proposer's order, so that without a model its best come first.
    """
    ranked = sorted(scored, key=lambda p: p.predicted_log_s or 0.0)
    exploring = [p for p in ranked if p.proposed_by == "explore"][: 1 if n > 1 else 0]
    rest = [p for p in ranked if p not in exploring]
    return [*rest[: n - len(exploring)], *exploring]


def same_device(measured_on: DeviceInfo, device: DeviceInfo) -> bool:
    """Whether a time of one is a time of the other: the same device with the same driver and compiler."""
    return all(getattr(measured_on, name) == getattr(device, name) for name in DEVICE_IDENTITY)


def holds(row: Measurement, clock_mode: str) -> bool:
    """Whether a row of this job counts as measured at clocks of this mode: a time is one at its own clocks only, and a
    disturbed row tells nothing."""
    if isinstance(row.ran, Timing) or row.ran.outcome is Outcome.TIMED_OUT:
        return row.ran.clocks.mode == clock_mode
    return row.ran.outcome is not Outcome.DISTURBED
