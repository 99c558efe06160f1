"""Who suggests what to measure next. Each is deterministic for the generator it is given.

``MixedProposer`` is the one a session uses; the others are its sources, and usable alone as comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import TypeVar

import numpy as np

from tuner_daemon.interfaces import CostModel, Proposer
from tuner_daemon.learning.cost import LearnedCostModel
from tuner_daemon.learning.policy import Policy
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.measurement import Measurement, Proposal, Timing
from tuner_daemon.records.roles import STAGES
from tuner_daemon.records.space import Config
from tuner_daemon.records.task import Task

T = TypeVar("T")

SCORE_WHOLE = 4096
"""A space of at most so many configurations is proposed whole: scoring it is cheaper than choosing from it."""

PARENTS = 4


class UniformProposer:
    """Valid configurations, all equally likely; the whole space in random order if it is small."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def propose(self, task: Task, history: Sequence[Measurement], n: int) -> list[Proposal]:
        measured = {row.ran.config for row in history}
        drawn = task.space.sample(min(n + len(measured), task.space.size), self._rng)
        return _proposals(drawn, "uniform", n, measured)


class NeighbourProposer:
    """At most two parameters away from one of the four best measured; nothing before there is one."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def propose(self, task: Task, history: Sequence[Measurement], n: int) -> list[Proposal]:
        parents = best_measured(history, PARENTS)
        if not parents:
            return []
        share = -(-n // len(parents)) + len(history) // len(parents)
        families = [task.space.neighbours(parent, self._rng, share, changes=2) for parent in parents]
        return _proposals(_interleave(families), "neighbour", n, {row.ran.config for row in history})


class PolicyProposer:
    """Samples of the policy; configurations that it draws often come first."""

    def __init__(self, policy: Policy, rng: np.random.Generator, *, rounds: int = 3) -> None:
        self._policy, self._rng, self._rounds = policy, rng, rounds

    def propose(self, task: Task, history: Sequence[Measurement], n: int) -> list[Proposal]:
        measured = {row.ran.config for row in history}
        drawn: dict[Config, int] = {}
        for turn in range(self._rounds):
            # A policy that is sure of itself repeats itself: widen it until there are enough distinct ones.
            for config in self._policy.sample(task, n, self._rng, temperature=1.0 + 0.5 * turn):
                drawn[config] = drawn.get(config, 0) + 1
            if len(drawn.keys() - measured) >= min(n, task.space.size - len(measured)):
                break
        return _proposals(sorted(drawn, key=lambda config: -drawn[config]), "policy", n, measured)


class EvolutionProposer:
    """A few generations of evolutionary search on the cost model, for spaces too large to score whole."""

    def __init__(
        self,
        cost_model: CostModel,
        seeds: Proposer,
        rng: np.random.Generator,
        *,
        population: int = 48,
        generations: int = 4,
    ) -> None:
        self._cost_model, self._seeds, self._rng = cost_model, seeds, rng
        self._population, self._generations = population, generations

    def propose(self, task: Task, history: Sequence[Measurement], n: int) -> list[Proposal]:
        measured = {row.ran.config for row in history}
        seeds = [proposal.config for proposal in self._seeds.propose(task, history, self._population)]
        scored = self._scored(task, [*best_measured(history, PARENTS), *seeds], {})
        for _ in range(self._generations):
            parents = sorted(scored, key=scored.__getitem__)[: self._population // 2]
            scored |= self._scored(task, self._children(task, parents), scored)
        return _proposals(sorted(scored, key=scored.__getitem__), "evolution", n, measured)

    def _scored(self, task: Task, configs: Iterable[Config], known: dict[Config, float]) -> dict[Config, float]:
        fresh = [config for config in dict.fromkeys(configs) if config not in known]
        return dict(zip(fresh, self._cost_model.predict(task, fresh).tolist(), strict=True)) if fresh else {}

    def _children(self, task: Task, parents: Sequence[Config]) -> list[Config]:
        mutants = [task.space.neighbours(parent, self._rng, 2, changes=2) for parent in parents]
        crossed = (self._cross(parents) for _ in range(self._population))
        return [*chain.from_iterable(mutants), *(child for child in crossed if task.space.contains(child))]

    def _cross(self, parents: Sequence[Config]) -> Config:
        one, other = (parents[int(at)] for at in self._rng.integers(len(parents), size=2))
        heads = self._rng.random(len(one.values)) < 0.5
        return Config(
            one.names, tuple(a if head else b for a, b, head in zip(one.values, other.values, heads, strict=True))
        )


class ExplorationProposer:
    """The best measured configuration with one stage of decisions redrawn (say, only its thread organisation).

    Escapes local optima better than noise on all parameters. The stage follows the length of the history.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def propose(self, task: Task, history: Sequence[Measurement], n: int) -> list[Proposal]:
        parents = best_measured(history, 1)
        if not parents:
            return []
        stages = [stage for stage in (_members(task, roles) for roles in STAGES) if stage]
        first = int(self._rng.integers(len(stages)))
        measured = {row.ran.config for row in history}
        for turn in range(len(stages)):
            found = _proposals(
                self._redrawn(task, parents[0], stages[(first + turn) % len(stages)], n), "explore", n, measured
            )
            if found:
                return found
        return []

    def _redrawn(self, task: Task, parent: Config, names: dict[str, tuple[Value, ...]], n: int) -> list[Config]:
        valid: list[Config] = []
        for _ in range(16 * n):
            picks = {name: values[int(self._rng.integers(len(values)))] for name, values in names.items()}
            values = tuple(picks.get(name, value) for name, value in zip(parent.names, parent.values, strict=True))
            candidate = Config(parent.names, values)
            if task.space.contains(candidate):
                valid.append(candidate)
            if len(valid) == n:
                break
        return valid


class MixedProposer:
    """The pool that the cost model ranks.

    Known kernel family: the first batch is taken from the policy's proposals. Unknown: from policy and uniform in
    turn. Once something beyond the baseline is measured, also neighbours of the best and a few explorations. The rest
    is uniform, or evolutionary search where the space is too large to score whole; a small space is proposed whole.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        policy: Policy | None = None,
        cost_model: CostModel | None = None,
        known: Callable[[Task], bool] | None = None,
        explorations: int = 4,
    ) -> None:
        self._policy, self._explorations = policy, explorations
        self._known = known or _known_to(policy, cost_model)
        self._uniform, self._neighbours = UniformProposer(rng), NeighbourProposer(rng)
        self._explore = ExplorationProposer(rng)
        self._learned = PolicyProposer(policy, rng) if policy else None
        self._evolution = EvolutionProposer(cost_model, self._learned or self._uniform, rng) if cost_model else None

    def propose(self, task: Task, history: Sequence[Measurement], n: int) -> list[Proposal]:
        tried = [row for row in history if row.proposal.proposed_by != "baseline"]
        sources = (self._middle if best_measured(tried, 1) else self._opening)(task, history, n)
        pool = {proposal.config: proposal for proposal in reversed(sources)}
        ordered = [pool[config] for config in dict.fromkeys(proposal.config for proposal in sources)]
        if task.space.size <= SCORE_WHOLE:
            whole = self._uniform.propose(task, history, SCORE_WHOLE)
            return ordered[:SCORE_WHOLE] + [proposal for proposal in whole if proposal.config not in pool]
        return ordered[:n]

    def _opening(self, task: Task, history: Sequence[Measurement], n: int) -> list[Proposal]:
        if self._learned is None:
            source = self._filling if self._known(task) else self._uniform.propose
            return source(task, history, n)
        if self._known(task):
            return self._learned.propose(task, history, n) or self._filling(task, history, n)
        learned = self._learned.propose(task, history, n // 2)
        uniform = self._uniform.propose(task, history, n - len(learned))
        return _interleave([learned, uniform])

    def _middle(self, task: Task, history: Sequence[Measurement], n: int) -> list[Proposal]:
        explored = self._explore.propose(task, history, self._explorations)
        near = self._neighbours.propose(task, history, n // 4)
        learned = self._learned.propose(task, history, n // 3) if self._learned else []
        rest = max(n - len(explored) - len(near) - len(learned), 0)
        return explored + learned + near + self._filling(task, history, rest)

    def _filling(self, task: Task, history: Sequence[Measurement], n: int) -> list[Proposal]:
        if self._evolution is None or task.space.size <= SCORE_WHOLE:
            return self._uniform.propose(task, history, n)
        evolved = self._evolution.propose(task, history, n // 2)
        return evolved + self._uniform.propose(task, history, n - len(evolved))


def best_measured(history: Sequence[Measurement], n: int) -> list[Config]:
    """Up to n distinct configurations with the least median time, best first."""
    timed = sorted((row.ran for row in history if isinstance(row.ran, Timing)), key=lambda ran: ran.median_s)
    return list(dict.fromkeys(ran.config for ran in timed))[:n]


def _known_to(policy: Policy | None, cost_model: CostModel | None) -> Callable[[Task], bool]:
    """A family counts as known if the policy was trained on it or, without a policy, the cost model's prior was."""
    if policy is not None:
        return policy.known
    return cost_model.known if isinstance(cost_model, LearnedCostModel) else lambda task: False


def _proposals(configs: Iterable[Config], by: str, n: int, measured: set[Config]) -> list[Proposal]:
    distinct = [config for config in dict.fromkeys(configs) if config not in measured]
    return [Proposal(config, by) for config in distinct[:n]]


def _interleave(lists: Sequence[Sequence[T]]) -> list[T]:
    return [item for items in zip_longest(*lists) for item in items if item is not None]


def _members(task: Task, roles: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Parameters of a stage that have a choice."""
    return {p.name: p.values for p in task.spec.kernel.parameters if p.role in roles and len(p.values) > 1}
