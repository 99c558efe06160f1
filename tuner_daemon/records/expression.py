"""Whitelisted, vectorised expressions of kernel.toml (constraints, launch geometry, shapes, work)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Number = int | float | bool


@dataclass(frozen=True)
class Expression:
    """A parsed expression. Equality and hash are those of ``text``."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Raises ExpressionError for anything the whitelist refuses."""
        raise NotImplementedError

    @property
    def names(self) -> frozenset[str]:
        """Names the expression reads."""
        raise NotImplementedError

    def evaluate(self, names: Mapping[str, Number | str]) -> Number:
        """One value, as Python would give. Raises ExpressionError: unknown name, division by zero, too large."""
        raise NotImplementedError

    def evaluate_arrays(self, names: Mapping[str, NDArray[np.generic] | Number | str]) -> NDArray[np.generic]:
        """Broadcast over arrays; undefined elements (division by zero) are masked: see ``holds``."""
        raise NotImplementedError

    def holds(self, names: Mapping[str, NDArray[np.generic] | Number | str]) -> NDArray[np.bool_]:
        """As a constraint: true where defined and truthy."""
        raise NotImplementedError
