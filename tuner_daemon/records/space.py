"""Configurations and the space of valid ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.kernel import Kernel, Parameter, Value


@dataclass(frozen=True)
class Config:
    """One value per parameter, in the space's order. Made by a ParamSpace, hence valid in it."""

    names: tuple[str, ...]
    values: tuple[Value, ...]

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Config:
        return cls(tuple(values), tuple(values.values()))

    def as_dict(self) -> dict[str, Value]:
        return dict(zip(self.names, self.values, strict=True))

    def __getitem__(self, name: str) -> Value:
        return self.values[self.names.index(name)]

    @cached_property
    def key(self) -> str:
        """Hash of the canonical JSON; the same for the same values in any order."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:24]


class ParamSpace:
    """The valid configurations of a kernel at one problem.

    Works on index matrices: column j holds the position of parameter j's value in its declared values.
    Immutable; safe to share between seeds.
    """

    parameters: tuple[Parameter, ...]
    listed: bool  # every valid configuration is held in memory
    size: int  # number of valid configurations, exact wherever it can be counted (see size_exact)
    size_exact: bool
    sha256: str  # of names, values, constraints and the problem's values they read

    def __init__(self, kernel: Kernel, problem: Mapping[str, Value], *, list_limit: int = 2_000_000) -> None:
        """Raises KernelError if the constraints leave nothing (naming the constraint that empties the space)."""
        raise NotImplementedError

    def contains(self, config: Config | Mapping[str, Value]) -> bool: ...

    def config(self, values: Mapping[str, Value]) -> Config:
        """The valid configuration with these values. Raises KernelError naming what is wrong with them."""

    def all(self) -> list[Config]:
        """Every valid configuration in lexicographic order; only if ``listed``."""

    def first(self) -> Config:
        """The lexicographically first valid configuration."""

    def sample(self, n: int, rng: np.random.Generator) -> list[Config]:
        """Up to n distinct valid configurations, uniformly."""

    def neighbours(self, config: Config, rng: np.random.Generator, n: int, *, changes: int = 2) -> list[Config]:
        """Up to n distinct valid configurations that differ from config in at most ``changes`` parameters."""

    def encode(self, configs: Sequence[Config]) -> NDArray[np.float32]:
        """(n, d) in [-1, 1]: log2-scaled for positive numbers, by rank otherwise."""

    def decode(self, x: NDArray[np.float32]) -> list[Config]:
        """Nearest valid configurations to (n, d) points; decode(encode(c)) == c."""

    def columns(self, configs: Sequence[Config]) -> dict[str, NDArray[np.generic]]:
        """Parameter name -> (n,) values: what Expression.evaluate_arrays takes."""

    def indices(self, configs: Sequence[Config]) -> NDArray[np.int32]:
        """(n, d) positions of the values in their declared order."""

    def from_indices(self, rows: NDArray[np.int32]) -> list[Config]: ...

    def walker(self, order: Sequence[str]) -> PrefixWalker:
        """For building many configurations value by value in the given parameter order, without dead ends."""


class PrefixWalker:
    """n partial configurations decided one parameter at a time.

    ``start(n)`` returns a state; ``options(state)`` an (n, v) mask over the next parameter's values, true where
    at least one valid configuration continues so (exact if listed, by constraint propagation otherwise);
    ``choose(state, picks)`` takes (n,) value indices; ``finish(state)`` gives the configurations (a prefix that
    propagation could not complete is dropped).
    """
