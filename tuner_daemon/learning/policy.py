"""The learned policy at work: an actor network in plain numpy, and the weights' files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from tuner_daemon.errors import ModelError
from tuner_daemon.learning.decisions import STATE_SCHEMA, STATE_SIZE, Decision, Episode
from tuner_daemon.records.space import Config
from tuner_daemon.records.task import Task

WEIGHTS_FILE = "policy.safetensors"
MANIFEST_FILE = "policy.json"
TENSORS = ("mean", "scale", "w0", "b0", "w1", "b1", "w_mu", "b_mu", "std")

Weights = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Policy:
    """A Gaussian over one action in [-1, 1] per decision. ``groups``: kernel families of the training log.

    ``weights``: ``mean`` and ``scale`` standardise a state (d,); ``w0`` (h, d), ``b0``, ``w1`` (h, h), ``b1``: two ReLU
    layers; ``w_mu`` (1, h), ``b_mu``: the mean before tanh; ``std`` (1,): the deviation, alike for all states.
    """

    weights: Weights
    groups: frozenset[str] = frozenset()

    def known(self, task: Task) -> bool:
        return task.spec.kernel.name in self.groups

    def mean(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n,) squashed means at (n, STATE_SIZE) states."""
        w = self.weights
        h = np.clip((states - w["mean"]) * w["scale"], -5.0, 5.0)
        h = np.maximum(h @ w["w0"].T + w["b0"], 0.0)
        h = np.maximum(h @ w["w1"].T + w["b1"], 0.0)
        squashed: NDArray[np.float32] = np.tanh(h @ w["w_mu"].T + w["b_mu"])[:, 0]
        return squashed

    @property
    def std(self) -> float:
        """Deviation of the action about its mean."""
        return float(self.weights["std"][0])

    def sample(self, task: Task, n: int, rng: np.random.Generator, *, temperature: float = 1.0) -> list[Config]:
        """Up to n valid configurations, repeats included, in order of drawing: one walk over the decisions each."""
        episode = Episode(task.spec.kernel, task.spec.problem, task.device)
        walker = task.space.walker(episode.order)
        walk = walker.start(n)
        states = episode.start(n)
        for decided, decision in enumerate(episode.decisions):
            allowed = walker.options(walk)
            means = self.mean(states)
            noise = rng.standard_normal(len(means), dtype=np.float32)
            actions = np.clip(means + temperature * self.std * noise, -1.0, 1.0)
            picks = _nearest(decision, actions, allowed)
            walk = walker.choose(walk, picks)
            states = episode.step(states, decided, picks)
        return walker.finish(walk)

    def log_likelihood(self, episode: Episode, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """(n,) log probability of configurations given as (n, t) value indices in the space's order.

        Each decision's Gaussian is restricted to the parameter's declared values; constraints are not considered.
        """
        states, actions = episode.states_of(indices)
        total = np.zeros(len(indices))
        for decided, decision in enumerate(episode.decisions):
            means = self.mean(states[:, decided])[:, None]
            chosen = -0.5 * ((actions[:, decided] - means[:, 0]) / self.std) ** 2
            every = -0.5 * ((decision.actions[None, :] - means) / self.std) ** 2
            total += chosen - np.logaddexp.reduce(every, axis=1)
        return total

    def save(self, folder: Path) -> None:
        """Writes weights (safetensors) and a manifest (JSON) into an existing folder."""
        save_file({name: np.ascontiguousarray(self.weights[name]) for name in TENSORS}, folder / WEIGHTS_FILE)
        manifest = {"format": 1, "schema": STATE_SCHEMA, "groups": sorted(self.groups)}
        (folder / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2) + "\n")


def load_policy(folder: Path) -> Policy:
    """Raises ModelError if files are missing, damaged, or of another state schema."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST_FILE).read_text())
        weights = load_file(folder / WEIGHTS_FILE)
        schema, groups = str(manifest["schema"]), frozenset(manifest["groups"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise ModelError(f"policy {folder}: {error}") from error
    if schema != STATE_SCHEMA:
        raise ModelError(f"policy {folder}: made for states {schema}, want {STATE_SCHEMA}")
    _check_shapes(folder, weights)
    return Policy(weights, groups)


def _check_shapes(folder: Path, weights: Weights) -> None:
    missing = sorted(set(TENSORS) - set(weights))
    if missing:
        raise ModelError(f"policy {folder}: lacks {', '.join(missing)}")
    first, second = weights["b0"].size, weights["b1"].size
    states, hidden = (STATE_SIZE,), {"w0": (first, STATE_SIZE), "b0": (first,), "w1": (second, first), "b1": (second,)}
    want = {"mean": states, "scale": states, **hidden, "w_mu": (1, second), "b_mu": (1,), "std": (1,)}
    for name, shape in want.items():
        if weights[name].shape != shape or weights[name].dtype.kind != "f":
            found = f"{weights[name].dtype} {weights[name].shape}"
            raise ModelError(f"policy {folder}: {name} is {found}, want floats {shape}")
    if not all(np.isfinite(weights[name]).all() for name in TENSORS):
        raise ModelError(f"policy {folder}: weights are not finite")


def _nearest(decision: Decision, actions: NDArray[np.float32], allowed: NDArray[np.bool_]) -> NDArray[np.intp]:
    """(n,) value indices nearest to the actions among the allowed; ties go to the earlier value."""
    distance = np.abs(decision.actions[None, :] - actions[:, None])
    nearest: NDArray[np.intp] = np.argmin(np.where(allowed, distance, np.inf), axis=1)
    return nearest
