"""From runs to figures: best/optimum after so many measurements, how many it takes, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.evaluation.run import Run

Floats = NDArray[np.float64]

AFTER = (5, 8, 10, 20, 32, 50, 96)
WITHIN, BY = 1.05, 50
LEVELS = (1.05, 1.01)
REFERENCE = "full"


@dataclass(frozen=True)
class Curves:
    """All runs of one split: method -> space -> (seeds, measurements) best/optimum, seeds in order."""

    split: str
    ratio: Mapping[str, Mapping[str, Floats]]

    def methods(self) -> list[str]:
        return list(self.ratio)

    def spaces(self) -> list[str]:
        return list(next(iter(self.ratio.values())))

    def typical(self, method: str) -> Floats:
        """(measurements,) geometric mean over spaces of the median over seeds."""
        logs = [np.log(np.median(runs, axis=0)) for runs in self.ratio[method].values()]
        typical: Floats = np.exp(np.mean(logs, axis=0))
        return typical


def curves_of(runs: Sequence[Run]) -> list[Curves]:
    """One for each split, in order of appearance."""
    gathered: dict[str, dict[str, dict[str, list[Run]]]] = {}
    for run in runs:
        gathered.setdefault(run.split, {}).setdefault(run.method, {}).setdefault(run.space, []).append(run)
    return [
        Curves(split, {name: {at: _stacked(found) for at, found in spaces.items()} for name, spaces in methods.items()})
        for split, methods in gathered.items()
    ]


def _stacked(runs: Sequence[Run]) -> Floats:
    return np.array([run.ratio for run in sorted(runs, key=lambda run: run.seed)])


def summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Of each split: figures of every method, differences to the full loop, and what depends on the training seed."""
    found = []
    for curves in curves_of(runs):
        found.append(
            {
                "split": curves.split,
                "spaces": len(curves.spaces()),
                "methods": {name: figures(curves, name) for name in curves.methods()},
                "against": {
                    other: against(curves, other)
                    for other in curves.methods()
                    if REFERENCE in curves.ratio and other != REFERENCE
                },
                "training_seeds": by_training_seed([run for run in runs if run.split == curves.split]),
            }
        )
    return found


def figures(curves: Curves, method: str) -> dict[str, Any]:
    """``after``: n -> typical best/optimum; ``within``: share of runs within 5 % by 50, mean over spaces; ``needed``:
    level -> median over spaces of the median number of measurements until there, None if it is not reached."""
    typical = curves.typical(method)
    runs = curves.ratio[method]
    return {
        "after": {str(n): float(typical[n - 1]) for n in AFTER if n <= len(typical)},
        "within": float(np.mean([np.mean(reached(ratio, WITHIN) <= BY) for ratio in runs.values()])),
        "needed": {
            f"{level:.2f}": finite(float(np.median([np.median(reached(ratio, level)) for ratio in runs.values()])))
            for level in LEVELS
        },
    }


def reached(ratio: Floats, level: float) -> Floats:
    """(seeds,) measurements until best/optimum is at most ``level``; inf where it never is."""
    good = ratio <= level
    return np.where(good.any(axis=1), good.argmax(axis=1) + 1.0, np.inf)


def against(curves: Curves, other: str) -> dict[str, Any]:
    """The full loop's best/optimum over the other method's, in the same space with the same seed.

    ``after``: n -> [geometric mean over spaces, its standard error as a factor, share of spaces where the full loop is
    not worse]; ``worst``: the largest such mean at any n, and where. Below 1 the full loop is better.
    """
    differences = np.array(
        [np.mean(np.log(own) - np.log(curves.ratio[other][at]), axis=0) for at, own in curves.ratio[REFERENCE].items()]
    )
    mean = differences.mean(axis=0)
    # Of one space there is no spread over spaces: over its seeds, then, which says less.
    spread = differences if len(differences) > 1 else _of_one_space(curves, other)
    error = spread.std(axis=0, ddof=min(1, len(spread) - 1)) / math.sqrt(len(spread))
    typical = curves.typical(REFERENCE) / curves.typical(other)
    worst = int(np.argmax(typical))
    return {
        "after": {
            str(n): [
                math.exp(mean[n - 1]),
                math.exp(error[n - 1]),
                float(np.mean(differences[:, n - 1] <= 1e-9)),
            ]
            for n in AFTER
            if n <= len(mean)
        },
        "worst": {"factor": float(typical[worst]), "after": worst + 1},
    }


def _of_one_space(curves: Curves, other: str) -> Floats:
    """(seeds, measurements) log ratios."""
    (space,) = curves.spaces()
    ratios: Floats = np.log(curves.ratio[REFERENCE][space] / curves.ratio[other][space])
    return ratios


def by_training_seed(runs: Sequence[Run]) -> dict[str, dict[str, list[float]]]:
    """Method -> n -> typical best/optimum with the models of each training seed."""
    seeds = sorted({run.training_seed for run in runs if run.training_seed is not None})
    found: dict[str, dict[str, list[float]]] = {}
    for seed in seeds:
        for curves in curves_of([run for run in runs if run.training_seed == seed]):
            for method in curves.methods():
                typical = curves.typical(method)
                for n in AFTER:
                    if n <= len(typical):
                        found.setdefault(method, {}).setdefault(str(n), []).append(float(typical[n - 1]))
    return found


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
