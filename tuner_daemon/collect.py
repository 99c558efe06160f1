"""Wide, unbiased measurement: what the models are pretrained on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tuner_daemon.errors import KernelError
from tuner_daemon.interfaces import Effort
from tuner_daemon.measuring import Bench, Building, Parts
from tuner_daemon.records.kernel import Parameter, Value
from tuner_daemon.records.measurement import Artifact, Failure, Measurement, Proposal, Timing
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.records.task import Task

BATCH = 32
PLACES = 6  # problems in turn: a worker keeps the inputs and references of a few, and makes those of others anew
LADDER, SAMPLES = (3,), 5
DROP_FACTOR = 10.0  # a first launch slower than this times the best so far is enough
STRATUM_SHARE = 0.25  # of its even share of the draws: what every value of every parameter gets at least


@dataclass(frozen=True)
class Wanted:
    """One problem of a collection. ``job`` names its rows in the log."""

    task: Task
    job: str
    timeout_s: float = 30.0  # for checking and timing one candidate; what takes longer is recorded as timed out


@dataclass(frozen=True)
class Collected:
    """What one call has done."""

    measured: int
    wall_s: float
    device_s: float  # that the device has worked on candidates

    @property
    def busy_share(self) -> float:
        return self.device_s / max(self.wall_s, 1e-9)


def collect(
    wanted: Sequence[Wanted],
    parts: Parts,
    n: int | None,
    seed: int,
    *,
    on_each: Callable[[Measurement], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Collected:
    """Measures the baseline and n drawn configurations, or all without n, at each of the problems, whose candidates are
    the same binaries: each is built once, while the device measures those built before, and checked in full at the
    first problem, on fewer inputs at the others. More than PLACES problems are measured one part after another; what
    the later ones need comes from the build cache.

    Rows already in the log are not measured again, and the draw depends on the space and the seed alone: the same call
    goes on where an earlier one was stopped.
    """
    began_s = time.monotonic()
    parts.log.remember(wanted[0].task.spec.kernel)
    places = [Place(w, Bench(w.task, w.job, parts), known=number > 0) for number, w in enumerate(wanted)]
    for place in places:
        place.done = {m.ran.config.key for m in parts.log.measurements(place.wanted.job)}
    chosen = plan_of(wanted[0].task, n, seed)
    measured = 0
    for begin in range(0, len(places), PLACES):
        measured += _collect_at(places[begin : begin + PLACES], chosen, on_each, stop)
    device_s = sum(place.bench.device_s for place in places)
    return Collected(measured, time.monotonic() - began_s, device_s)


def _collect_at(
    places: Sequence[Place],
    chosen: Sequence[Proposal],
    on_each: Callable[[Measurement], None],
    stop: Callable[[], bool],
) -> int:
    left = [p for p in chosen if any(p.config.key not in place.done for place in places)]
    measured = 0
    for batch, built in _built_ahead(places[0].bench, left, chosen[0]):
        for place in places:
            if stop():
                return measured
            measured += place.measure(batch, built, on_each, stop)
    for place in places:
        while place.bench.waiting and not stop():
            measured += place.measure([], [], on_each, stop)
    return measured


@dataclass
class Place:
    """One problem under way."""

    wanted: Wanted
    bench: Bench
    known: bool
    done: set[str] = field(default_factory=set)
    best_s: float | None = None

    def measure(
        self,
        batch: Sequence[Proposal],
        built: Sequence[Artifact | Failure],
        on_each: Callable[[Measurement], None],
        stop: Callable[[], bool],
    ) -> int:
        """How many rows there are of the batch that were not there before."""

        def seen(row: Measurement) -> None:
            if isinstance(row.ran, Timing):
                self.best_s = min(self.best_s or row.ran.median_s, row.ran.median_s)
            on_each(row)

        proposals, before = {p.config.key: p for p in batch}, len(self.done)
        self._follow_baseline(proposals, built, seen)
        items = [item for item in built if item.config.key in proposals and item.config.key not in self.done]
        if items or self.bench.waiting:
            rows = self.bench.measure(Building(proposals, iter(items)), self._effort, 0, seen, stop)
            self.done |= {row.ran.config.key for row in rows}
        return len(self.done) - before

    def _follow_baseline(
        self,
        proposals: dict[str, Proposal],
        built: Sequence[Artifact | Failure],
        seen: Callable[[Measurement], None],
    ) -> None:
        """Timed first, and from then on between the others: times of one hour can then be compared with the next's."""
        baseline = next((p for p in proposals.values() if p.proposed_by == "baseline"), None)
        own = [b for b in built if baseline and isinstance(b, Artifact) and b.config == baseline.config]
        if not own or len(self.bench.track):
            return
        if own[0].config.key in self.done:
            self.bench.follow(own[0])
            return
        rows = self.bench.measure(Building(proposals, iter(own)), self._effort, 0, seen)
        self.done |= {row.ran.config.key for row in rows}
        if rows and isinstance(rows[0].ran, Timing):
            self.bench.follow(own[0], rows[0].ran)

    def _effort(self) -> Effort:
        effort = Effort(SAMPLES, timeout_s=self.wanted.timeout_s, ladder=LADDER, known=self.known)
        if self.best_s is None:
            return effort
        return replace(effort, drop_above_s=DROP_FACTOR * self.best_s, beat_s=self.best_s)


def _built_ahead(
    bench: Bench, left: Sequence[Proposal], baseline: Proposal
) -> Iterator[tuple[Sequence[Proposal], list[Artifact | Failure]]]:
    """Batches with what was built of them; the next one is being built while one is measured, where the device has
    cores of its own. The baseline comes along with the first, whether or not it is left to be measured."""
    batches = [list(left[begin : begin + BATCH]) for begin in range(0, len(left), BATCH)]
    if batches and baseline.proposed_by == "baseline" and baseline not in batches[0]:
        batches[0].insert(0, baseline)
    ahead = bench.start(batches[0]) if batches else None
    for number, batch in enumerate(batches):
        assert ahead is not None
        with bench.watch.time("build"):
            built = list(ahead.items)
        bench.build_s += sum(item.build_s for item in built if isinstance(item, Artifact))
        if number + 1 < len(batches) and not bench.parts.runner.shares_cores:
            ahead = bench.start(batches[number + 1])
        yield batch, built
        if number + 1 < len(batches) and bench.parts.runner.shares_cores:
            ahead = bench.start(batches[number + 1])


# -- what is drawn ---------------------------------------------------------------------------------------------------


def plan_of(task: Task, n: int | None, seed: int) -> list[Proposal]:
    """The baseline, then up to n distinct configurations: uniform draws, after as many from the strata as it takes for
    every value of every parameter to come up at least STRATUM_SHARE times as often as if all came up equally often.
    Without n, all that the space has. The baseline need not be in a space that a plan has narrowed."""
    rng, space = np.random.default_rng(seed), task.space
    baseline = task.spec.kernel.baseline
    names = tuple(parameter.name for parameter in space.parameters)
    first = [Proposal(Config(names, tuple(baseline[n] for n in names)), "baseline")] if baseline is not None else []
    if n is None:
        return distinct([*first, *(Proposal(config, "complete") for config in space.all())])
    uniform = space.sample(n, rng)
    strata = strata_of(task.spec, uniform, n, rng)
    drawn = [*first, *(Proposal(c, "stratum") for c in strata), *(Proposal(c, "uniform") for c in uniform)]
    return distinct(drawn)[: len(first) + n]


def distinct(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The first of those with equal configurations stays."""
    kept: dict[str, Proposal] = {}
    for proposal in proposals:
        kept.setdefault(proposal.config.key, proposal)
    return list(kept.values())


def strata_of(spec: KernelSpec, drawn: Sequence[Config], n: int, rng: np.random.Generator) -> list[Config]:
    """What must be added to ``drawn`` for no value of any parameter to be rare. A value that no valid configuration has
    is left out."""
    parameters = spec.kernel.parameters
    counts = {(p.name, value): 0 for p in parameters for value in p.values}
    for config in drawn:
        for pair in config.as_dict().items():
            counts[pair] += 1
    added: dict[str, Config] = {}
    for parameter in parameters:
        least = max(1, int(STRATUM_SHARE * n / len(parameter.values)))
        for value in parameter.values:
            missing = least - counts[parameter.name, value]
            for config in _with(spec, parameter, value, missing, rng) if missing > 0 else ():
                if config.key not in added:
                    added[config.key] = config
                    for pair in config.as_dict().items():
                        counts[pair] += 1
    return list(added.values())


def _with(
    spec: KernelSpec, parameter: Parameter, value: Value, count: int, rng: np.random.Generator
) -> Sequence[Config]:
    """Uniform draws from the configurations that have this value; none if there are none."""
    narrowed = tuple(replace(p, values=(value,)) if p is parameter else p for p in spec.kernel.parameters)
    try:
        return ParamSpace(replace(spec.kernel, parameters=narrowed), spec.problem).sample(count, rng)
    except KernelError:
        return ()
