"""One offline training run from the log, and what its models are worth on tasks that they have not seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cost_model import Prior, rank_correlation, top_k_regret
from tuner_daemon.learning.dataset import (
    Resolver,
    Row,
    TaskRows,
    families,
    group,
    training_set,
    transitions,
    usable,
)
from tuner_daemon.learning.features import FEATURE_SCHEMA
from tuner_daemon.learning.policy import Policy

COST_MODEL_ROWS = 4000
"""Rows per task that the cost model is trained on, at most."""

POLICY_ROWS = 1000
"""Rows per task that the critics are trained on, at most; the actor sees as many of the upper part."""

DRAWS = 25
BEST_OF = (4, 8, 16, 64)
TOP = (1, 2, 4, 8)


@dataclass(frozen=True)
class Trained:
    """Two models and what they were made from."""

    policy: Policy | None  # None: trained with steps = 0
    prior: Prior
    kernels: frozenset[str]
    tasks: int
    rows: int

    def save(self, folder: Path) -> None:
        """Writes both models' files into an existing folder."""
        self.prior.save(folder)
        if self.policy is not None:
            self.policy.save(folder)


@dataclass(frozen=True)
class Judgement:
    """Figures of one task. Ratios: best time found over the best time known, at least 1.

    ``regret``: k -> relative loss of measuring only the k that the prior ranks first; ``policy``, ``uniform``: N ->
    geometric mean ratio of the best of N rows drawn by the policy's likelihood, and uniformly.
    """

    task: str
    kernel: str
    device: str
    rows: int
    known: bool  # another task of the same kernel was trained on
    rank_correlation: float
    regret: Mapping[int, float]
    policy: Mapping[int, float]
    uniform: Mapping[int, float]


def train(rows: Iterable[Row], resolver: Resolver, *, seed: int, steps: int = 4000, threads: int = 2) -> Trained:
    """Fits the cost model's prior and, with steps > 0, the policy. Raises ValueError if no task has enough rows."""
    return train_on(usable(group(rows, resolver)), seed=seed, steps=steps, threads=threads)


def train_on(tasks: Sequence[TaskRows], *, seed: int, steps: int = 4000, threads: int = 2) -> Trained:
    """As :func:`train`, from grouped rows."""
    if not tasks:
        raise ValueError("no task in the log has enough measured times to learn from")
    kernels = families(tasks)
    rng = np.random.default_rng(seed)
    data = training_set(tasks, rows_per_task=COST_MODEL_ROWS, rng=rng)
    prior = Prior.train(data, schema=FEATURE_SCHEMA, groups=kernels, seed=seed, threads=threads)
    policy = _policy(tasks, kernels, rng, seed=seed, steps=steps) if steps else None
    return Trained(policy, prior, kernels, len(tasks), sum(len(task) for task in tasks))


def _policy(
    tasks: Sequence[TaskRows], kernels: frozenset[str], rng: np.random.Generator, *, seed: int, steps: int
) -> Policy:
    from tuner_daemon.learning.policy_training import PolicySettings, train_policy  # torch: seconds to import

    data = transitions(tasks, rows_per_task=POLICY_ROWS, rng=rng)
    # One thread: batches this small take as long on two, which then only spend twice the processor time.
    return train_policy(data, groups=kernels, seed=seed, threads=1, settings=PolicySettings(steps=steps))


def evaluate(
    rows: Iterable[Row], resolver: Resolver, *, seed: int, steps: int = 0, threads: int = 2, holdouts: int = 4
) -> list[Judgement]:
    """Leave one task out, for the ``holdouts`` tasks with most rows. With steps > 0 the policy is judged, too.

    A log of a single task is split in two halves, of which the second is judged.
    """
    tasks = usable(group(rows, resolver))
    judgements = []
    for seen, held_out in _splits(tasks, holdouts, np.random.default_rng(seed)):
        trained = train_on(seen, seed=seed, steps=steps, threads=threads)
        judgements.append(judge(held_out, trained.prior, trained.policy, seed=seed))
    return judgements


def judge(task: TaskRows, prior: Prior, policy: Policy | None, *, seed: int) -> Judgement:
    """Any pair of models on one task's rows, in replay."""
    predicted = -prior.score(task.features())
    measured = np.isfinite(task.log_s)
    rng = np.random.default_rng(seed)
    likelihood = None if policy is None else policy.log_likelihood(task.episode(), task.indices)
    return Judgement(
        task=task.key,
        kernel=task.kernel.name,
        device=task.device.name,
        rows=len(task),
        known=task.kernel.name in prior.groups,
        rank_correlation=rank_correlation(predicted[measured], task.log_s[measured]),
        regret={k: top_k_regret(predicted, task.log_s, k) for k in TOP},
        policy={} if likelihood is None else {n: best_of(task.log_s, n, likelihood, rng) for n in BEST_OF},
        uniform={n: best_of(task.log_s, n, np.zeros(len(task)), rng) for n in BEST_OF},
    )


def best_of(log_s: NDArray[np.float64], n: int, log_weight: NDArray[np.float64], rng: np.random.Generator) -> float:
    """Geometric mean over 25 draws of (best of n rows / best of all); n rows drawn without replacement by weight.

    Source of the draw: the Gumbel-top-k trick. A draw of failures only counts as the slowest time.
    """
    keys = log_weight + rng.gumbel(size=(DRAWS, len(log_s)))
    drawn = np.argsort(-keys, axis=1)[:, :n]
    times = np.where(np.isfinite(log_s), log_s, np.nanmax(log_s))[drawn]
    return float(np.exp(np.mean(times.min(axis=1) - np.nanmin(log_s))))


def _splits(
    tasks: Sequence[TaskRows], holdouts: int, rng: np.random.Generator
) -> list[tuple[list[TaskRows], TaskRows]]:
    if len(tasks) == 1:
        (task,) = tasks
        shuffled = rng.permutation(len(task))
        halves = [task.take(np.sort(half)) for half in np.array_split(shuffled, 2)]
        return [([halves[0]], halves[1])] if len(usable(halves)) == 2 else []
    largest = sorted(range(len(tasks)), key=lambda at: -len(tasks[at]))[:holdouts]
    return [([task for at, task in enumerate(tasks) if at != out], tasks[out]) for out in largest]
