"""Who suggests what to measure next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.learning_tasks import PARAMETERS, device, log_of, measured, tiled_kernel, tiled_task, true_log_s
from tuner_daemon.interfaces import Proposer
from tuner_daemon.learning.cost import LearnedCostModel
from tuner_daemon.learning.dataset import group, transitions
from tuner_daemon.learning.policy import Policy
from tuner_daemon.learning.policy_training import PolicySettings, train_policy
from tuner_daemon.learning.proposers import (
    SCORE_WHOLE,
    EvolutionProposer,
    ExplorationProposer,
    MixedProposer,
    NeighbourProposer,
    PolicyProposer,
    UniformProposer,
    best_measured,
)
from tuner_daemon.records.kernel import Kernel, Parameter
from tuner_daemon.records.measurement import Measurement, Proposal
from tuner_daemon.records.roles import STAGES
from tuner_daemon.records.space import Config
from tuner_daemon.records.task import Task


@pytest.fixture(scope="module")
def policy() -> Policy:
    kernel = tiled_kernel()
    tasks = group(log_of([device("small", 40), device("large", 120)], 400), {kernel.sha256: kernel}.get)
    data = transitions(tasks, rows_per_task=400, rng=np.random.default_rng(0))
    settings = PolicySettings(steps=300, batch=128, hidden=48)
    return train_policy(data, groups=frozenset({"tiled"}), seed=0, threads=1, settings=settings)


def large_kernel() -> Kernel:
    """More configurations than are proposed whole."""
    return tiled_kernel("tiled", (*PARAMETERS, Parameter("UNROLL", (1, 2, 4, 8, 16), "unroll")))


def history_of(task: Task, n: int, seed: int = 0) -> list[Measurement]:
    return measured(task, task.space.sample(n, np.random.default_rng(seed)))


Make = Callable[[np.random.Generator, Policy], Proposer]
MAKERS: dict[str, Make] = {
    "uniform": lambda rng, policy: UniformProposer(rng),
    "neighbour": lambda rng, policy: NeighbourProposer(rng),
    "policy": lambda rng, policy: PolicyProposer(policy, rng),
    "evolution": lambda rng, policy: EvolutionProposer(LearnedCostModel(), UniformProposer(rng), rng),
    "explore": lambda rng, policy: ExplorationProposer(rng),
    "mixed": lambda rng, policy: MixedProposer(rng, policy=policy, cost_model=LearnedCostModel()),
    "mixed, no models": lambda rng, policy: MixedProposer(rng),
}


@pytest.fixture(params=sorted(MAKERS))
def make(request: pytest.FixtureRequest, policy: Policy) -> Callable[[int], Proposer]:
    maker = MAKERS[request.param]
    return lambda seed: maker(np.random.default_rng(seed), policy)


def test_proposals_are_distinct_valid_and_not_measured_yet(make: Callable[[int], Proposer]) -> None:
    task = tiled_task(kernel=large_kernel())
    history = history_of(task, 40)
    proposals = make(0).propose(task, history, 64)
    configs = [proposal.config for proposal in proposals]
    assert 0 < len(configs) <= 64
    assert len(set(configs)) == len(configs)
    assert all(task.space.contains(config) for config in configs)
    assert not set(configs) & {row.ran.config for row in history}
    assert {p.proposed_by for p in proposals} <= {"uniform", "neighbour", "policy", "evolution", "explore"}


def test_a_seed_determines_the_proposals(make: Callable[[int], Proposer]) -> None:
    task = tiled_task(kernel=large_kernel())
    history = history_of(task, 40)
    first, again, other = (make(seed).propose(task, history, 32) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_a_space_that_is_exhausted_has_no_proposals(make: Callable[[int], Proposer]) -> None:
    small = tuple(Parameter(p.name, p.values[:1] if p.name != "BX" else (32, 64), p.role) for p in PARAMETERS)
    task = tiled_task(kernel=tiled_kernel(parameters=small))
    everything = measured(task, task.space.all())
    assert task.space.size == 2
    assert make(0).propose(task, everything, 8) == []
    assert len(MixedProposer(np.random.default_rng(0)).propose(task, everything[:1], 8)) == 1


def test_neighbours_change_at_most_two_parameters_of_the_four_best() -> None:
    task = tiled_task()
    history = history_of(task, 40)
    best = best_measured(history, 4)

    def changes(config: Config) -> int:
        return min(sum(a != b for a, b in zip(config.values, parent.values, strict=True)) for parent in best)

    near = NeighbourProposer(np.random.default_rng(0)).propose(task, history, 60)
    uniform = UniformProposer(np.random.default_rng(0)).propose(task, history, 60)
    assert {changes(proposal.config) for proposal in near} == {1, 2}
    assert max(changes(proposal.config) for proposal in uniform) > 2
    assert NeighbourProposer(np.random.default_rng(0)).propose(task, [], 60) == []


def test_best_measured_ignores_failures_and_repeats() -> None:
    task = tiled_task()
    history = history_of(task, 60)
    twice = history + history
    best = best_measured(twice, 5)
    times = true_log_s(task, best)
    assert len(set(best)) == 5
    assert np.all(np.diff(times) >= 0)
    assert times[0] == np.nanmin(true_log_s(task, [row.ran.config for row in history]))


def test_the_policys_proposals_are_faster_than_uniform_ones(policy: Policy) -> None:
    task = tiled_task(device("middle", 80))
    learned = PolicyProposer(policy, np.random.default_rng(0)).propose(task, [], 128)
    uniform = UniformProposer(np.random.default_rng(0)).propose(task, [], 128)
    assert len(learned) == len(uniform) == 128
    assert median(task, learned) < median(task, uniform) - 0.3


def median(task: Task, proposals: list[Proposal]) -> float:
    return float(np.nanmedian(true_log_s(task, [proposal.config for proposal in proposals])))


def test_256_policy_proposals_take_a_tenth_of_a_second(policy: Policy) -> None:
    task = tiled_task(kernel=large_kernel())
    proposer = PolicyProposer(policy, np.random.default_rng(0))
    took_s = []
    for _ in range(3):
        began_s = time.process_time()
        assert len(proposer.propose(task, [], 256)) == 256
        took_s.append(time.process_time() - began_s)
    assert min(took_s) < 0.4  # 40 ms on one idle core


def test_evolution_finds_what_the_cost_model_likes_better_than_as_many_uniform_ones() -> None:
    task = tiled_task(kernel=large_kernel())
    model = LearnedCostModel()
    history = history_of(task, 120)
    model.fit(task, history)
    rng = np.random.default_rng(0)
    evolved = EvolutionProposer(model, UniformProposer(rng), rng).propose(task, history, 16)
    uniform = UniformProposer(rng).propose(task, history, 400)
    scores = [np.sort(model.predict(task, [p.config for p in found]))[:16].mean() for found in (evolved, uniform)]
    assert scores[0] < scores[1]


def test_an_exploration_redraws_one_stage_of_the_best_only() -> None:
    task = tiled_task()
    history = history_of(task, 40)
    parent = best_measured(history, 1)[0]
    stage_of = {p.name: next(at for at, roles in enumerate(STAGES) if p.role in roles) for p in PARAMETERS}
    seen = set()
    for seed in range(12):
        for proposal in ExplorationProposer(np.random.default_rng(seed)).propose(task, history, 4):
            changed = {name for name in parent.names if proposal.config[name] != parent[name]}
            assert len({stage_of[name] for name in changed}) == 1
            seen |= {stage_of[name] for name in changed}
    assert len(seen) > 1


def test_a_known_family_opens_with_the_policy_and_an_unknown_one_with_half_of_it(policy: Policy) -> None:
    kernel = large_kernel()
    mixed = MixedProposer(np.random.default_rng(0), policy=policy)
    known = mixed.propose(tiled_task(kernel=kernel), [], 64)
    stranger = tiled_task(kernel=tiled_kernel("stranger", kernel.parameters))
    unknown = mixed.propose(stranger, [], 64)
    assert {p.proposed_by for p in known[:8]} == {"policy"}
    assert Counter(p.proposed_by for p in unknown[:8]) == {"policy": 4, "uniform": 4}
    assert {p.proposed_by for p in MixedProposer(np.random.default_rng(0)).propose(stranger, [], 64)} == {"uniform"}


def test_failures_alone_do_not_end_the_opening(policy: Policy) -> None:
    task = tiled_task(kernel=large_kernel())
    failures = [row for row in history_of(task, 600) if best_measured([row], 1) == []]
    proposals = MixedProposer(np.random.default_rng(0), policy=policy).propose(task, failures, 64)
    assert failures
    assert {p.proposed_by for p in proposals} == {"policy"}


def test_a_measured_baseline_alone_does_not_end_the_opening(policy: Policy) -> None:
    task = tiled_task(kernel=large_kernel())
    (row,) = history_of(task, 1)
    baseline = replace(row, proposal=Proposal(row.ran.config, "baseline"))
    proposer = MixedProposer(np.random.default_rng(0), policy=policy)
    assert {p.proposed_by for p in proposer.propose(task, [baseline], 64)} == {"policy"}
    assert "neighbour" in {p.proposed_by for p in proposer.propose(task, [row], 64)}


def test_later_batches_draw_on_every_source(policy: Policy) -> None:
    task = tiled_task(kernel=large_kernel())
    model = LearnedCostModel()
    history = history_of(task, 24)
    model.fit(task, history)
    proposals = MixedProposer(np.random.default_rng(0), policy=policy, cost_model=model).propose(task, history, 256)
    assert {p.proposed_by for p in proposals} == {"explore", "policy", "neighbour", "evolution", "uniform"}
    assert 0 < sum(p.proposed_by == "explore" for p in proposals) <= 4


def test_a_small_space_is_proposed_whole() -> None:
    task = tiled_task()
    history = history_of(task, 24)
    assert task.space.size <= SCORE_WHOLE < tiled_task(kernel=large_kernel()).space.size
    proposals = MixedProposer(np.random.default_rng(0)).propose(task, history, 64)
    assert {p.config for p in proposals} == set(task.space.all()) - {row.ran.config for row in history}
