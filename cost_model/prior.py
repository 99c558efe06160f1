"""What was learned on other tasks: gradient-boosted trees on times standardised within each task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_model.boosting import xgboost

FAILURE_MARGIN = 0.5
"""A failure's score lies this many standard deviations below the slowest 5 % of its task."""

METADATA_FILE = "prior.json"
_FORMAT = 2


class DamagedPriorError(ValueError):
    """The stored prior is incomplete, unreadable, or was made for other features."""


@dataclass(frozen=True)
class TrainingSet:
    """Rows of several tasks. ``x``: (n, d) float32, NaN where absent; ``log_s``: (n,), NaN for failures;
    ``task``: (n,) task of each row, 0-based; ``anchor_log_s``: (tasks,) roofline log seconds, NaN if unknown;
    ``weight``: (n,) or None for tasks weighted alike beyond ``Hyperparameters.task_rows`` rows."""

    x: NDArray[np.float32]
    log_s: NDArray[np.float64]
    task: NDArray[np.int64]
    anchor_log_s: NDArray[np.float64]
    weight: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Hyperparameters:
    """Values found to work on brute-forced tuning spaces of several kernels and devices."""

    rounds: int = 300
    max_depth: int = 8
    eta: float = 0.08
    subsample: float = 0.8
    colsample_bytree: float = 0.6
    task_rows: int = 2000  # beyond this many rows a task weighs no more
    members: int = 3  # models that differ in their seed and are averaged


def standardise(log_s: NDArray[np.float64]) -> tuple[NDArray[np.float64], float, float]:
    """(n,) scores of one task (higher is faster, failures below the slow end), mean and deviation of its log times."""
    measured = log_s[np.isfinite(log_s)]
    if measured.size == 0:
        return np.zeros(log_s.shape), 0.0, 1.0
    mean, deviation = float(measured.mean()), float(measured.std())
    score = (mean - log_s) / max(deviation, 1e-6)
    slow = np.quantile(score[np.isfinite(score)], 0.05) - FAILURE_MARGIN
    return np.where(np.isfinite(score), score, slow), mean, deviation


class Prior:
    """A trained prior: a few boosters that are averaged. ``schema`` names the features it was made for, ``groups`` what
    it has seen (kernel families)."""

    def __init__(
        self,
        boosters: Sequence[xgboost.Booster],
        *,
        schema: str,
        groups: frozenset[str],
        offset: float,
        deviation: float,
    ) -> None:
        self._boosters = tuple(boosters)
        self.schema, self.groups = schema, groups
        self.offset, self.deviation = offset, deviation

    @classmethod
    def train(
        cls,
        data: TrainingSet,
        *,
        schema: str,
        groups: frozenset[str],
        seed: int,
        threads: int = 2,
        hyperparameters: Hyperparameters | None = None,
    ) -> Prior:
        """Raises ValueError if there is not a single measured time."""
        if not np.isfinite(data.log_s).any():
            raise ValueError("no measured times to learn from")
        chosen = hyperparameters or Hyperparameters()
        target, weight, offset, deviation = _targets(data, chosen.task_rows)
        parameters = asdict(chosen)
        rounds, members = parameters.pop("rounds"), parameters.pop("members")
        del parameters["task_rows"]
        parameters |= {"objective": "reg:squarederror", "tree_method": "hist", "nthread": threads}
        matrix = xgboost.QuantileDMatrix(data.x, label=target, weight=weight, nthread=threads)
        boosters = [
            xgboost.train(parameters | {"seed": seed * members + member}, matrix, num_boost_round=rounds)
            for member in range(members)
        ]
        return cls(boosters, schema=schema, groups=groups, offset=offset, deviation=deviation)

    @property
    def width(self) -> int:
        """Features that it was trained on."""
        return max(int(booster.num_features()) for booster in self._boosters)

    def score(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n,) standard deviations faster than the task's mean, from (n, d) features."""
        mean: NDArray[np.float64] = self._each(x).mean(axis=0)
        return mean

    def disagreement(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n,) standard deviation of the members' log seconds about their mean."""
        spread: NDArray[np.float64] = self.deviation * self._each(x).std(axis=0)
        return spread

    def _each(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.array([booster.inplace_predict(x) for booster in self._boosters], dtype=np.float64)

    def log_s(self, x: NDArray[np.float32], anchor_log_s: float) -> NDArray[np.float64]:
        """(n,) log seconds, the level taken from the roofline; without one (NaN) the level is arbitrary."""
        level = 0.0 if np.isnan(anchor_log_s) else anchor_log_s + self.offset
        return level - self.deviation * self.score(x)

    def with_threads(self, threads: int) -> Prior:
        """The same prior; predicts with so many threads from now on."""
        for booster in self._boosters:
            booster.set_param({"nthread": threads})
        return self

    def save(self, folder: Path) -> None:
        """Writes the trees as UBJSON and the rest as JSON into an existing folder."""
        for member, booster in enumerate(self._boosters):
            booster.save_model(folder / booster_file(member))
        metadata = {
            "format": _FORMAT,
            "schema": self.schema,
            "groups": sorted(self.groups),
            "offset": self.offset,
            "deviation": self.deviation,
            "members": len(self._boosters),
        }
        (folder / METADATA_FILE).write_text(json.dumps(metadata, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path, *, schema: str) -> Prior:
        """Raises DamagedPriorError if files are missing, damaged, or of another feature schema."""
        try:
            metadata: dict[str, Any] = json.loads((folder / METADATA_FILE).read_text())
            files = [folder / booster_file(member) for member in range(int(metadata["members"]))]
            if not files:
                raise ValueError("no members")
            prior = cls(
                [xgboost.Booster(model_file=file) for file in files],
                schema=str(metadata["schema"]),
                groups=frozenset(metadata["groups"]),
                offset=float(metadata["offset"]),
                deviation=float(metadata["deviation"]),
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError, xgboost.core.XGBoostError) as error:
            raise DamagedPriorError(f"{folder}: {error}") from error
        if prior.schema != schema or metadata.get("format") != _FORMAT:
            raise DamagedPriorError(f"{folder}: made for features {prior.schema}, want {schema}")
        if not np.isfinite([prior.offset, prior.deviation]).all():
            raise DamagedPriorError(f"{folder}: offset and deviation are not finite")
        return prior


def booster_file(member: int) -> str:
    """Name of a member's file."""
    return f"prior-{member}.ubj"


def _targets(data: TrainingSet, task_rows: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float, float]:
    """Scores and weights of all rows; median over tasks of (mean log time - anchor) and of the deviation."""
    target = np.zeros(data.log_s.shape)
    weight = np.ones(data.log_s.shape) if data.weight is None else data.weight.astype(np.float64)
    offsets, deviations = [], []
    for task in range(len(data.anchor_log_s)):
        rows = np.flatnonzero(data.task == task)
        if not np.isfinite(data.log_s[rows]).any():
            weight[rows] = 0.0
            continue
        target[rows], mean, deviation = standardise(data.log_s[rows])
        weight[rows] *= min(1.0, task_rows / len(rows))
        offsets.append(mean - data.anchor_log_s[task])
        deviations.append(deviation)
    known = [offset for offset in offsets if np.isfinite(offset)]
    return target, weight, float(np.median(known)) if known else 0.0, float(np.median(deviations))
