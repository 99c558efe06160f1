"""Ways to spend a budget of measurements on a recorded space. All measure distinct configurations, one after the other;
a failure costs as much as a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_model import Prior
from tuner_daemon.builders.replay import ReplayBuilder
from tuner_daemon.errors import InputError, TuningError
from tuner_daemon.evaluation.recorded import Recorded
from tuner_daemon.interfaces import CostModel, Proposer
from tuner_daemon.learning.cost import LearnedCostModel
from tuner_daemon.learning.features import features
from tuner_daemon.learning.policy import Policy
from tuner_daemon.learning.proposers import MixedProposer, PolicyProposer, UniformProposer
from tuner_daemon.measuring import Parts
from tuner_daemon.plan import DEFAULT_PLAN, Plan
from tuner_daemon.records.kernel import Kernel
from tuner_daemon.records.measurement import Measurement
from tuner_daemon.records.space import Config
from tuner_daemon.runners.replay import ReplayRunner
from tuner_daemon.session import tune

POOL = 256
"""Proposals of the policy that the prior chooses a batch from."""

SEARCH = Plan(finalists=0, final_blocks=2)
"""A job's plan without its final race: what won is known from the recording."""

SCORED = 4096
"""Uniform proposals per batch that the cold cost model chooses from."""


@dataclass(frozen=True)
class Models:
    """What was trained on other recordings; either may be absent."""

    prior: Prior | None = None
    policy: Policy | None = None


@dataclass(frozen=True)
class Method:
    """``search``: (space, models, measurements, generator) -> log seconds of what was measured, in order, NaN for
    failures; at most ``measurements`` of them, fewer where the space has no more."""

    name: str
    about: str
    search: Callable[[Recorded, Models, int, np.random.Generator], list[float]]
    prior: bool = False  # needs one
    policy: bool = False  # likewise

    def learns(self) -> bool:
        """Whether it depends on what was trained."""
        return self.prior or self.policy


def _random(space: Recorded, models: Models, measurements: int, rng: np.random.Generator) -> list[float]:
    del models
    return _times(space, space.space.sample(measurements, rng))


def _cold(space: Recorded, models: Models, measurements: int, rng: np.random.Generator) -> list[float]:
    del models
    return _session(space, measurements, UniformProposer(rng), LearnedCostModel(), replace(SEARCH, pool=SCORED))


def _prior(space: Recorded, models: Models, measurements: int, rng: np.random.Generator) -> list[float]:
    configs = space.space.all()
    score = _required(models.prior).score(features(space.task(measurements), configs))
    order = np.lexsort((rng.random(len(configs)), -score))
    return _times(space, [configs[at] for at in order[:measurements]])


def _policy(space: Recorded, models: Models, measurements: int, rng: np.random.Generator) -> list[float]:
    """Batches of eight, each the best by the prior of 256 fresh proposals."""
    task, prior = space.task(measurements), _required(models.prior)
    proposer = PolicyProposer(_required(models.policy), rng)
    taken: dict[Config, None] = {}
    while len(taken) < measurements:
        proposed = [p.config for p in proposer.propose(task, [], POOL + len(taken))]
        fresh = [config for config in proposed if config not in taken][:POOL]
        if not fresh:
            break
        order = np.argsort(-prior.score(features(task, fresh)), kind="stable")
        taken |= dict.fromkeys(fresh[at] for at in order[: DEFAULT_PLAN.batch])
    return _times(space, list(taken)[:measurements])


def _full(space: Recorded, models: Models, measurements: int, rng: np.random.Generator) -> list[float]:
    cost_model = LearnedCostModel(models.prior)
    return _session(space, measurements, MixedProposer(rng, policy=models.policy, cost_model=cost_model), cost_model)


def _floor(space: Recorded, models: Models, measurements: int, rng: np.random.Generator) -> list[float]:
    del models
    return _full(space, Models(), measurements, rng)


def _without_policy(space: Recorded, models: Models, measurements: int, rng: np.random.Generator) -> list[float]:
    return _full(space, Models(prior=models.prior), measurements, rng)


def _without_prior(space: Recorded, models: Models, measurements: int, rng: np.random.Generator) -> list[float]:
    return _full(space, Models(policy=models.policy), measurements, rng)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("random", "uniform, without replacement", _random),
        Method("cold", "a session whose cost model knows this task only, among uniform proposals", _cold),
        Method("prior", "the configurations that the prior ranks first, whatever is measured", _prior, prior=True),
        Method("policy", "the best by the prior of 256 proposals of the policy", _policy, prior=True, policy=True),
        Method("full", "a session as it is run", _full, prior=True, policy=True),
        Method("floor", "the same session without anything learned elsewhere", _floor),
        Method("no-policy", "the full session without its policy", _without_policy, prior=True),
        Method("no-prior", "the full session without its prior", _without_prior, policy=True),
    )
}
DEFAULT_METHODS = ("random", "cold", "prior", "policy", "full", "floor")


def method_named(name: str) -> Method:
    """One of METHODS, or for ``package.module:name`` one of that module's METHODS. Raises InputError."""
    module, _, own = name.rpartition(":")
    try:
        known: dict[str, Method] = import_module(module).METHODS if module else METHODS
        return known[own]
    except (ImportError, AttributeError, KeyError) as error:
        remedy = f"known: {', '.join(METHODS)}; and module:name for a method of your own"
        raise InputError(f"{name} is no method ({error!r})", remedy=remedy) from error


def source_of(name: str) -> str:
    """Hash of the file that a method of somebody else's is in."""
    module, _, _ = name.rpartition(":")
    file = import_module(module).__file__ if module else None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def curve(space: Recorded, method: str, models: Models, measurements: int, seed: int) -> list[float]:
    """best/optimum after each of so many measurements; before anything ran, the slowest time there is counts."""
    times = method_named(method).search(space, models, measurements, np.random.default_rng(seed))
    return running_best(times, measurements, space)


def running_best(log_s: Sequence[float], measurements: int, space: Recorded) -> list[float]:
    """(measurements,) ratios at least 1; a search that ended early stays where it was."""
    found: NDArray[np.float64] = np.fmin.accumulate(np.array([space.worst, *log_s[:measurements]]))[1:]
    padded = (
        np.pad(found, (0, measurements - len(found)), mode="edge") if len(found) else np.full(measurements, space.worst)
    )
    return [round(float(ratio), 6) for ratio in np.exp(padded - space.optimum)]


def _times(space: Recorded, configs: Sequence[Config]) -> list[float]:
    return [space.log_s[config.values] for config in configs]


def _required(model: Any) -> Any:
    if model is None:
        raise ValueError("this method needs a model")
    return model


# -- a session in replay ------------------------------------------------------------------------------------------


@dataclass
class _Rows:
    """A measurement log that lives as long as the job."""

    rows: list[Measurement] = field(default_factory=list)

    def append(self, rows: Sequence[Measurement]) -> None:
        self.rows += rows

    def remember(self, kernel: Kernel) -> None:
        """Nothing is learned from it later."""

    def measurements(self, job: str) -> list[Measurement]:
        del job
        return []

    def read(self, *, kernel: str | None = None, job: str | None = None, columns: Sequence[str] | None = None) -> Any:
        raise NotImplementedError("a replayed job reads no log")

    def declarations(self) -> dict[str, Path]:
        return {}


def _session(
    space: Recorded, measurements: int, proposer: Proposer, cost_model: CostModel, plan: Plan = SEARCH
) -> list[float]:
    """``session.tune`` itself, on a device that answers from the recording; its clock stands still."""
    log = _Rows()
    parts = Parts(
        proposer=proposer,
        cost_model=cost_model,
        builder=ReplayBuilder(),
        runner=ReplayRunner(lambda folder, *, index: space),
        log=log,
        clock=lambda: 0.0,
    )
    with suppress(TuningError):  # nothing worked: its failures are the answer
        tune(space.task(measurements), "replay", parts, plan=plan)
    configs = [row.ran.config for row in log.rows]
    if len(set(configs)) != len(configs) or len(configs) > measurements:
        raise AssertionError(f"{space.name}: {len(configs)} measurements of {len(set(configs))} configurations")
    return _times(space, configs)
