"""Requests as the child understands them: plain numbers, every expression evaluated by the parent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Array:
    """An array argument. ``kind`` is input, output, inout, or constant (filled by symbol, not passed)."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    fill: str  # normal | uniform | arange | zeros | integers | sorted | absolute path of a .npy file
    low: int = 0  # integers and sorted: the least value …
    high: int = 0  # … and one more than the greatest (integers), or the greatest (sorted)

    @property
    def read(self) -> bool:
        return self.kind != "output"

    @property
    def written(self) -> bool:
        return self.kind in ("output", "inout")


@dataclass(frozen=True)
class Scalar:
    """An argument passed by value."""

    name: str
    dtype: str
    value: float | int


@dataclass(frozen=True)
class Scratch:
    """A workspace argument: which buffer it is depends on the program, and on nothing that candidates share."""

    name: str


Argument = Array | Scalar | Scratch


@dataclass(frozen=True)
class Program:
    """A binary, the symbol to call in it, and how to launch it (the geometry is unused by a cpu device)."""

    path: Path
    entry: str
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0  # dynamic
    scratch: tuple[Array, ...] = ()  # memory for each workspace argument; without it, a null pointer


@dataclass(frozen=True)
class Problem:
    """What candidates are fed and compared with. ``key`` covers every field."""

    key: str
    arguments: tuple[Argument, ...]
    reference: Program | None
    reference_arguments: tuple[Argument, ...]  # the same arrays; scalars may differ
    stored: Mapping[str, Path]  # output -> .npy file; used where there is no reference program
    reduction_length: float
    tolerance: float | None

    @property
    def arrays(self) -> tuple[Array, ...]:
        return tuple(a for a in self.arguments if isinstance(a, Array))


@dataclass(frozen=True)
class Candidate:
    program: Program
    problem: Problem
    floor_s: float  # no device of this kind is faster
    edge: Edge | None = None


@dataclass(frozen=True)
class Edge:
    """The same program at a small problem with odd sizes, which ``sizes`` tells in words."""

    program: Program
    problem: Problem
    sizes: str


def parse_argument(raw: Mapping[str, Any]) -> Argument:
    if "value" in raw:
        return Scalar(raw["name"], raw["dtype"], raw["value"])
    if raw["kind"] == "workspace":
        return Scratch(raw["name"])
    return _array(raw)


def _array(raw: Mapping[str, Any]) -> Array:
    bounds = raw.get("low", 0), raw.get("high", 0)
    return Array(raw["name"], raw["kind"], raw["dtype"], tuple(raw["shape"]), raw["fill"], *bounds)


def parse_program(raw: Mapping[str, Any]) -> Program:
    return Program(
        Path(raw["path"]),
        raw["entry"],
        _three(raw["grid"]),
        _three(raw["block"]),
        raw["shared_bytes"],
        tuple(map(_array, raw["scratch"])),
    )


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = sizes
    return x, y, z


def parse_problem(raw: Mapping[str, Any]) -> Problem:
    reference = raw["reference"]
    return Problem(
        key=json.dumps(raw, sort_keys=True),
        arguments=tuple(map(parse_argument, raw["arguments"])),
        reference=parse_program(reference) if reference else None,
        reference_arguments=tuple(map(parse_argument, raw["reference_arguments"])),
        stored={name: Path(path) for name, path in raw["stored"].items()},
        reduction_length=raw["reduction_length"],
        tolerance=raw["tolerance"],
    )


def parse_candidate(raw: Mapping[str, Any]) -> Candidate:
    edge = raw.get("edge")
    return Candidate(
        parse_program(raw["program"]),
        parse_problem(raw["problem"]),
        raw["floor_s"],
        Edge(parse_program(edge["program"]), parse_problem(edge["problem"]), edge["sizes"]) if edge else None,
    )
