"""Implicit Q-learning of the policy: the only door to d3rlpy and torch.

Source: Kostrikov et al. 2021, "Offline Reinforcement Learning with Implicit Q-Learning". The critics learn from every
row; the actor's advantage-weighted regression sees the better part of each task only, because a Gaussian extracted
from a log that covers a space evenly spends most of its weight on mediocre configurations.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tuner_daemon.learning.dataset import Transitions
from tuner_daemon.learning.policy import Policy, Weights

with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
    # d3rlpy imports gym, which announces its own end: as warnings, and straight to stderr.
    warnings.simplefilter("ignore")
    import d3rlpy
    from d3rlpy.algos import IQL, IQLConfig
    from d3rlpy.models.encoders import VectorEncoderFactory


@dataclass(frozen=True)
class PolicySettings:
    """Values found to work on brute-forced tuning spaces of several kernels and devices."""

    steps: int = 4000
    batch: int = 256
    hidden: int = 128
    learning_rate: float = 1e-3
    expectile: float = 0.9
    weight_temp: float = 3.0  # 10 collapses
    gamma: float = 1.0  # an episode is one configuration: a reward is worth the same for every decision


def train_policy(
    data: Transitions,
    *,
    groups: frozenset[str],
    seed: int,
    threads: int = 2,
    settings: PolicySettings | None = None,
) -> Policy:
    """Trains critics and actor and returns the actor. Deterministic for a seed and a number of threads.

    Raises ValueError if no decision belongs to the upper part.
    """
    if not data.upper.any():
        raise ValueError("no measured configuration to learn from")
    chosen = settings or PolicySettings()
    mean, scale = _standardisation(data.states)
    algorithm = train_iql(data, mean, scale, seed=seed, threads=threads, settings=chosen)
    return Policy(export_weights(algorithm, mean, scale), groups)


def train_iql(
    data: Transitions,
    mean: NDArray[np.float32],
    scale: NDArray[np.float32],
    *,
    seed: int,
    threads: int,
    settings: PolicySettings,
) -> Any:
    """A trained d3rlpy IQL on states standardised by mean and scale (d,)."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    algorithm = _create(settings, data.states.shape[1])
    batches = _Batches(data, mean, scale, seed)
    impl = algorithm.impl
    for _ in range(settings.steps):
        impl.update_critic(batches.draw(settings.batch, upper=False))
        impl.update_critic_target()
        impl.update_actor(batches.draw(settings.batch, upper=True))
    return algorithm


def _create(settings: PolicySettings, state_size: int) -> IQL:
    encoder = VectorEncoderFactory(hidden_units=[settings.hidden, settings.hidden])
    configuration = IQLConfig(
        actor_learning_rate=settings.learning_rate,
        critic_learning_rate=settings.learning_rate,
        actor_encoder_factory=encoder,
        critic_encoder_factory=encoder,
        value_encoder_factory=encoder,
        batch_size=settings.batch,
        gamma=settings.gamma,
        expectile=settings.expectile,
        weight_temp=settings.weight_temp,
    )
    algorithm = configuration.create(device="cpu:0")
    algorithm.create_impl((state_size,), 1)
    return algorithm


def _standardisation(states: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(d,) mean and 1/deviation; 0 for what never varied, so that it cannot mislead where it does vary."""
    mean, deviation = states.mean(axis=0, dtype=np.float64), states.std(axis=0, dtype=np.float64)
    scale = np.where(deviation > 1e-5, 1.0 / np.maximum(deviation, 1e-5), 0.0)
    return mean.astype(np.float32), scale.astype(np.float32)


class _Batches:
    """Uniform mini-batches of decisions, or of those of the upper part."""

    def __init__(self, data: Transitions, mean: NDArray[np.float32], scale: NDArray[np.float32], seed: int) -> None:
        self._states = torch.from_numpy(np.clip((data.states - mean) * scale, -5.0, 5.0))
        self._actions = torch.from_numpy(data.actions).reshape(-1, 1)
        self._rewards = torch.from_numpy(data.rewards).reshape(-1, 1)
        self._terminals = torch.from_numpy(data.terminals.astype(np.float32)).reshape(-1, 1)
        self._upper = torch.from_numpy(np.flatnonzero(data.upper))
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self, n: int, *, upper: bool) -> d3rlpy.TorchMiniBatch:
        among = len(self._upper) if upper else len(self._states)
        rows = torch.randint(among, (n,), generator=self._generator)
        rows = self._upper[rows] if upper else rows
        following = torch.clamp(rows + 1, max=len(self._states) - 1)  # after a terminal: never read
        ones = torch.ones((n, 1))
        return d3rlpy.TorchMiniBatch(
            observations=self._states[rows],
            actions=self._actions[rows],
            rewards=self._rewards[rows],
            next_observations=self._states[following],
            next_actions=self._actions[following],
            returns_to_go=ones,  # IQL does not use them
            terminals=self._terminals[rows],
            intervals=ones,
            device="cpu:0",
        )


def export_weights(algorithm: Any, mean: NDArray[np.float32], scale: NDArray[np.float32]) -> Weights:
    """The actor's tensors under the names that :class:`Policy` reads."""
    state = {name: tensor.detach().numpy() for name, tensor in algorithm.impl.policy.state_dict().items()}
    with torch.no_grad():
        output = algorithm.impl.policy(torch.zeros((1, len(mean))))
    return {
        "mean": mean,
        "scale": scale,
        "w0": state["_encoder._layers.0.weight"],
        "b0": state["_encoder._layers.0.bias"],
        "w1": state["_encoder._layers.2.weight"],
        "b1": state["_encoder._layers.2.bias"],
        "w_mu": state["_mu.weight"],
        "b_mu": state["_mu.bias"],
        "std": output.logstd.exp().numpy().reshape(1),
    }
