"""Configurations and the space of valid ones."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.errors import ExpressionError, KernelError
from tuner_daemon.records._components import EmptyError, Listed, Open, components, enumerate_component, lexicographic
from tuner_daemon.records._moves import nearest, neighbour_rows
from tuner_daemon.records._rules import Mask, Rows, Rule, values_array
from tuner_daemon.records._walker import PrefixWalker, WalkState
from tuner_daemon.records.kernel import Kernel, Parameter, Value

__all__ = ["Config", "ParamSpace", "PrefixWalker", "WalkState"]


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

    The parameters fall into parts that no constraint ties together. Each part is listed by itself, so that a space of
    10^12 configurations is counted exactly and sampled uniformly without listing it. A part too large to list is drawn
    from by completing listed prefixes at random and keeping what is valid, and its size is estimated.
    """

    parameters: tuple[Parameter, ...]
    listed: bool  # every valid configuration can be listed: at most list_limit of them
    size: int  # number of valid configurations, exact wherever it can be counted (see size_exact)
    size_exact: bool
    sha256: str  # of names, values, constraints and the problem's values they read

    def __init__(
        self,
        kernel: Kernel,
        problem: Mapping[str, Value],
        *,
        list_limit: int = 2_000_000,
        among: NDArray[np.integer] | None = None,
    ) -> None:
        """Raises KernelError if the constraints leave nothing (naming the constraint that empties the space).

        ``among``: (n, d) positions of values; only these configurations count, such as those that were recorded.
        """
        self.parameters = kernel.parameters
        self._file = kernel.folder / "kernel.toml"
        self._names = tuple(parameter.name for parameter in self.parameters)
        self._counts = tuple(len(parameter.values) for parameter in self.parameters)
        self._position = [{value: i for i, value in enumerate(p.values)} for p in self.parameters]
        self._values = [values_array(parameter) for parameter in self.parameters]
        self._rules = self._bind(kernel, problem)
        self._among: frozenset[bytes] | None = None
        self._parts: list[Listed | Open] = []
        if among is not None:
            self._parts.append(self._listing_of(kernel, problem, among))
        for axes in components(self._rules, len(self.parameters)) if among is None else ():
            try:
                self._parts.append(enumerate_component(axes, self._rules, self._counts, list_limit))
            except EmptyError as error:
                raise self._empty(kernel, str(error), problem) from error
        self.size = math.prod(part.size for part in self._parts)
        self.size_exact = all(part.exact for part in self._parts)
        self.listed = self.size_exact and self.size <= list_limit
        self._walkers: dict[tuple[str, ...], PrefixWalker] = {}
        self.sha256 = self._digest(kernel)

    # --- whole space

    def all(self) -> list[Config]:
        """Every valid configuration in lexicographic order; only if ``listed`` (ValueError otherwise)."""
        return self._configs(self._table)

    def all_indices(self) -> NDArray[np.int32]:
        """(size, d) what ``all`` gives, as positions of values; only if ``listed`` (ValueError otherwise)."""
        return self._table.astype(np.int32)

    def first(self) -> Config:
        """The lexicographically first valid configuration."""
        row = np.zeros((1, len(self._names)), dtype=np.int16)
        for part in self._parts:
            row[:, part.axes] = part.first()
        return self._configs(row)[0]

    # --- membership

    def contains(self, config: Config | Mapping[str, Value]) -> bool:
        """Whether it has exactly this space's parameters, with declared values that the constraints allow."""
        values = config.as_dict() if isinstance(config, Config) else config
        if set(values) != set(self._names):
            return False
        row = [position.get(values[name]) for name, position in zip(self._names, self._position, strict=True)]
        return None not in row and bool(self.valid(np.array([row], dtype=np.int32))[0])

    def config(self, values: Mapping[str, Value]) -> Config:
        """The valid configuration with these values. Raises KernelError naming what is wrong with them."""
        for name in values:
            if name not in self._names:
                raise KernelError("is not a parameter", file=self._file, key=name, remedy=f"known: {self._listing}")
        row: list[int] = []
        for parameter, position in zip(self.parameters, self._position, strict=True):
            if parameter.name not in values:
                raise KernelError("has no value", file=self._file, key=parameter.name)
            value = values[parameter.name]
            if value not in position:
                allowed = ", ".join(map(repr, parameter.values[:20]))
                raise KernelError(f"is {value!r}", file=self._file, key=parameter.name, remedy=f"use one of {allowed}")
            row.append(position[value])
        rows = np.array([row], dtype=np.int16)
        for rule in self._rules:
            if not rule.check([rows[:, axis] for axis in rule.axes])[0]:
                raise KernelError(f'does not satisfy "{rule.written}"', file=self._file, key="configuration")
        if not self.valid(rows)[0]:
            raise KernelError("is not among the listed configurations", file=self._file, key="configuration")
        return self._configs(rows)[0]

    def valid(self, rows: NDArray[np.integer]) -> Mask:
        """(n,) whether each of the (n, d) rows of positions satisfies every constraint."""
        good: Mask = np.asarray(((rows >= 0) & (rows < np.array(self._counts))).all(axis=1), dtype=np.bool_)
        checked = np.where(good[:, None], rows, 0).astype(np.int16)
        for rule in self._rules:
            good &= rule.check([checked[:, axis] for axis in rule.axes])
        if self._among is not None:
            good &= np.fromiter((row.tobytes() in self._among for row in checked), dtype=np.bool_, count=len(checked))
        return good

    # --- drawing

    def sample(self, n: int, rng: np.random.Generator) -> list[Config]:
        """Up to n distinct valid configurations, uniformly."""
        return self._configs(self._sample(n, rng))

    def neighbours(self, config: Config, rng: np.random.Generator, n: int, *, changes: int = 2) -> list[Config]:
        """Up to n distinct valid configurations that differ from config in at least one and at most ``changes``
        parameters. Where there are more than n, each number of changes is about as likely as any other."""
        row = self.indices([config])[0].astype(np.int16)
        return self._configs(neighbour_rows(row, self._counts, self.valid, rng, n, changes))

    # --- arrays

    def encode(self, configs: Sequence[Config]) -> NDArray[np.float32]:
        """(n, d) in [-1, 1]: log2-scaled for positive numbers, by rank otherwise."""
        rows = self.indices(configs)
        x = np.zeros(rows.shape, dtype=np.float32)
        for j, codes in enumerate(self._codes):
            x[:, j] = codes[rows[:, j]]
        return x

    def decode(self, x: NDArray[np.float32]) -> list[Config]:
        """Nearest valid configurations to (n, d) points; decode(encode(c)) == c.

        Nearest in Euclidean distance; where a part of the space is too large to list and the nearest values of its
        parameters are not valid together, value by value instead.
        """
        rows = np.zeros(x.shape, dtype=np.int16)
        for part in self._parts:
            codes = [self._codes[axis] for axis in part.axes]
            rows[:, part.axes] = nearest(part, x[:, part.axes], codes, self._counts)
        return self._configs(rows)

    def columns(self, configs: Sequence[Config]) -> dict[str, NDArray[np.generic]]:
        """Parameter name -> (n,) values: what Expression.evaluate_arrays takes."""
        return self.columns_at(self.indices(configs))

    def columns_at(self, rows: NDArray[np.integer]) -> dict[str, NDArray[np.generic]]:
        """Parameter name -> (n,) values at the (n, d) positions."""
        return {name: self._values[j][rows[:, j]] for j, name in enumerate(self._names)}

    def indices(self, configs: Sequence[Config]) -> NDArray[np.int32]:
        """(n, d) positions of the values in their declared order. Raises KernelError for a value not declared."""
        rows = np.empty((len(configs), len(self._names)), dtype=np.int32)
        names = self._names
        try:
            values = [c.values if c.names == names else tuple(c[name] for name in names) for c in configs]
            for j, (position, column) in enumerate(zip(self._position, zip(*values, strict=True), strict=bool(values))):
                rows[:, j] = list(map(position.__getitem__, column))
        except (KeyError, ValueError, IndexError) as error:
            raise KernelError(f"is not of this space ({error})", file=self._file, key="configuration") from error
        return rows

    def from_indices(self, rows: NDArray[np.int32]) -> list[Config]:
        """Configurations at (n, d) positions. Raises ValueError if one of them is not valid."""
        good = self.valid(rows)
        if not good.all():
            raise ValueError(f"row {int(np.argmin(good))} is not a valid configuration")
        return self._configs(rows.astype(np.int16))

    def walker(self, order: Sequence[str]) -> PrefixWalker:
        """For building many configurations value by value in the given parameter order, without dead ends."""
        key = tuple(order)
        if key not in self._walkers:
            self._walkers[key] = PrefixWalker(self.parameters, self._parts, key, self._configs)
        return self._walkers[key]

    # --- inside

    @cached_property
    def _table(self) -> Rows:
        if not self.listed:
            raise ValueError(f"a space of {self.size} configurations is not listed")
        rows = self._rows_at(np.arange(self.size))
        return rows[lexicographic(rows, self._counts)]

    @cached_property
    def _codes(self) -> list[NDArray[np.float32]]:
        return [_code(values) for values in self._values]

    @property
    def _listing(self) -> str:
        return ", ".join(self._names)

    def _bind(self, kernel: Kernel, problem: Mapping[str, Value]) -> list[Rule]:
        rules: list[Rule] = []
        for expression in kernel.constraints:
            try:
                bound = [Rule.bind(p, expression.text, self.parameters, problem) for p in expression.conjuncts()]
            except ExpressionError as error:
                raise KernelError(error.problem, file=self._file, key="constraints", remedy=error.remedy) from error
            for rule in bound:
                if not rule.axes and not rule.check([]).all():
                    raise self._empty(kernel, rule.written, problem)
                rules.extend([rule] if rule.axes else [])
        return rules

    def _listing_of(self, kernel: Kernel, problem: Mapping[str, Value], among: NDArray[np.integer]) -> Listed:
        """One part that holds the valid ones of these rows."""
        rows = among[self.valid(among)].astype(np.int16)
        if not len(rows):
            raise self._empty(kernel, "the list of configurations", problem)
        rows = rows[lexicographic(rows, self._counts)]
        rows = rows[np.append(True, (rows[1:] != rows[:-1]).any(axis=1))]  # np.unique takes ten times as long
        self._among = frozenset(row.tobytes() for row in rows)
        return Listed(tuple(range(len(self._names))), rows)

    def _empty(self, kernel: Kernel, constraint: str, problem: Mapping[str, Value]) -> KernelError:
        at = ", ".join(f"{name} = {value!r}" for name, value in problem.items())
        return KernelError(
            f'"{constraint}" leaves no configuration of {kernel.name}{f" at {at}" if at else ""}',
            file=self._file,
            key="constraints",
            remedy="relax it, add parameter values, or ask for another problem",
        )

    def _digest(self, kernel: Kernel) -> str:
        read = {name: value for rule in self._rules for name, value in rule.problem.items()}
        values = [[parameter.name, list(parameter.values)] for parameter in self.parameters]
        listed = [] if self._among is None else [hashlib.sha256(b"".join(sorted(self._among))).hexdigest()]
        canonical = json.dumps([values, [c.text for c in kernel.constraints], read, *listed], sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def _configs(self, rows: Rows) -> list[Config]:
        columns = [[p.values[i] for i in rows[:, j].tolist()] for j, p in enumerate(self.parameters)]
        return [Config(self._names, values) for values in zip(*columns, strict=True)]

    def _rows_at(self, ranks: NDArray[np.int64]) -> Rows:
        """Rows of the product of listed parts, by their rank in it."""
        rows = np.empty((len(ranks), len(self._names)), dtype=np.int16)
        for part in self._parts:
            assert isinstance(part, Listed)
            ranks, at = np.divmod(ranks, part.size)
            rows[:, part.axes] = part.rows[at]
        return rows

    def _sample(self, n: int, rng: np.random.Generator) -> Rows:
        if self.size_exact and self.size < 2**62:
            return self._rows_at(rng.choice(self.size, size=min(n, self.size), replace=False))
        rows = np.empty((0, len(self._names)), dtype=np.int16)
        for _ in range(8):  # repeats are dropped: sequential draws without replacement stay uniform
            drawn = [part.draw(n, rng) for part in self._parts]
            fresh = np.empty((min(map(len, drawn)), len(self._names)), dtype=np.int16)
            for part, values in zip(self._parts, drawn, strict=True):
                fresh[:, part.axes] = values[: len(fresh)]
            rows = np.concatenate((rows, fresh))
            rows = rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
            if len(rows) >= n:
                break
        return rows[:n]


def _code(values: NDArray[np.generic]) -> NDArray[np.float32]:
    """(v,) distinct codes in [-1, 1] of a parameter's values."""
    count = len(values)
    if values.dtype.kind in "if" and count > 1 and np.all(values.astype(np.float64) > 0):
        logs = np.log2(values.astype(np.float64))
        logged = np.asarray(2 * (logs - logs.min()) / max(np.ptp(logs), 1e-300) - 1, dtype=np.float32)
        if len(np.unique(logged)) == count:
            return logged
    rank = np.arange(count) if values.dtype.kind == "U" else np.argsort(np.argsort(values))
    scaled = 2 * rank / max(count - 1, 1) - (1 if count > 1 else 0)
    return np.asarray(scaled, dtype=np.float32)
