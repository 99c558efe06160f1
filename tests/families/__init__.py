"""The shipped families: every folder of ``templates/``, with the truth and the problems of a module of its name here.

Such a module has, for a family whose arguments are named as in its kernel.toml:

    EDGE_PROBLEMS, TINY_PROBLEMS   at least five each: edges of all kinds; small enough to be run thread by thread
    inputs(problem, rng)           what the kernel reads, by argument, in storage types (bfloat16 as its bits)
    expected(problem, inputs)      every output in double precision
    TOLERANCE                      dtype -> bound on ||got - want|| / ||want|| of every output
    TUNED, LARGE_PROBLEM           what differs from the baseline in a configuration that beats it there, on a GPU
    NEEDS_BARRIER                  values without which barriers do not matter; None where there is no barrier

and, with a source in C, ``TUNED_ON_CPU``, ``LARGE_PROBLEM_ON_CPU`` and ``SLIP_IN_C``, a right text of kernel.c and a
wrong one in its place, which shows with the values of ``SLIP_NEEDS``, if any are needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.records.kernel import Kernel, Value
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.worker.arrays import numbers

TEMPLATES = Path(__file__).parent.parent.parent / "templates"

Problem = Mapping[str, Value]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Family:
    """One family and what is known of it. ``module``: see above."""

    name: str
    kernel: Kernel
    module: ModuleType

    @property
    def edge_problems(self) -> Sequence[Problem]:
        problems: Sequence[Problem] = self.module.EDGE_PROBLEMS
        return problems

    @property
    def tiny_problems(self) -> Sequence[Problem]:
        problems: Sequence[Problem] = self.module.TINY_PROBLEMS
        return problems

    @cached_property
    def variants(self) -> Sequence[Problem]:
        """One problem for every set of text values, which is to say for every binary that a configuration has."""
        return _variants([*self.edge_problems, *self.tiny_problems])

    @cached_property
    def tiny_variants(self) -> Sequence[Problem]:
        """Of the tiny problems alone."""
        return _variants(self.tiny_problems)

    @property
    def on_cpu(self) -> bool:
        return "cpu" in self.kernel.sources

    @property
    def edge_problems_on_cpu(self) -> Sequence[Problem]:
        return [p for p in self.edge_problems if self.is_for_cpu(p)]

    def is_for_cpu(self, problem: Problem) -> bool:
        """Sources in C are in float32."""
        return self.on_cpu and problem.get("dtype", "float32") == "float32"

    @property
    def baseline(self) -> Mapping[str, Value]:
        assert self.kernel.baseline is not None
        return self.kernel.baseline

    def space(self, problem: Problem) -> ParamSpace:
        return _space(self.name, tuple(problem.items()))

    def sampled(self, count: int, seed: int, problem: Problem) -> list[Config]:
        return self.space(problem).sample(count, np.random.default_rng(seed))

    def spec(self, problem: Problem, kind: str = "cpu", kernel: Kernel | None = None) -> KernelSpec:
        return KernelSpec(kernel or self.kernel, problem, DeviceRequest(kind), name=f"{self.name}.toml")

    def inputs(self, problem: Problem, seed: int = 0) -> Arrays:
        arrays: Arrays = self.module.inputs(problem, np.random.default_rng(seed))
        return arrays

    def expected(self, problem: Problem, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        outputs: dict[str, NDArray[np.float64]] = self.module.expected(problem, inputs)
        return outputs

    def tolerance(self, problem: Problem) -> float:
        """By the problem's own dtype, or that of the only kind of output there is."""
        bounds: Mapping[str, float] = self.module.TOLERANCE
        if "dtype" in problem:
            return bounds[str(problem["dtype"])]
        return bounds["float32"] if "float32" in bounds else max(bounds.values())

    def excess(self, problem: Problem, got: Arrays, wanted: Mapping[str, NDArray[np.float64]]) -> float:
        """The error over the tolerance: right up to 1."""
        error = self.error(got, wanted)
        if error == 0.0:
            return 0.0
        allowed = self.tolerance(problem)
        return error / allowed if allowed else float("inf")

    def error(self, got: Mapping[str, NDArray[Any]], wanted: Mapping[str, NDArray[np.float64]]) -> float:
        """The worst output's, in norm or (a quarter) at its worst element; infinite where anything is not a number."""
        outputs = [a for a in self.kernel.arguments if a.kind in ("output", "inout")]
        assert set(got) == set(wanted) == {a.name for a in outputs}
        return max(error(got[a.name], wanted[a.name]) for a in outputs)


def error(got: NDArray[Any], wanted: NDArray[np.float64]) -> float:
    """As :meth:`Family.error`, of one output in its storage type; 16 bits without a sign are a bfloat16."""
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    values = numbers(got, "bfloat16" if got.dtype == np.uint16 else str(got.dtype)).astype(np.float64)
    if not np.array_equal(np.isfinite(values), np.isfinite(wanted)):
        return float("inf")
    finite = np.isfinite(wanted)
    difference, scale = (values - wanted)[finite], wanted[finite]
    if not difference.any():
        return 0.0
    if not scale.any():
        return float("inf")
    norm = np.linalg.norm(difference) / np.linalg.norm(scale)
    return float(max(norm, np.abs(difference).max() / np.abs(scale).max() / 4))


def binary(problem: Problem) -> tuple[Value, ...]:
    """What a problem's binaries depend on: its text values."""
    return tuple(value for _, value in sorted(problem.items()) if isinstance(value, str))


def _variants(problems: Sequence[Problem]) -> Sequence[Problem]:
    first: dict[tuple[Value, ...], Problem] = {}
    for problem in problems:
        first.setdefault(binary(problem), problem)
    return list(first.values())


FAMILIES = tuple(sorted(path.parent.name for path in TEMPLATES.glob("*/kernel.toml")))


@cache
def family(name: str) -> Family:
    return Family(name, load_kernel(TEMPLATES / name), importlib.import_module(f"{__name__}.{name}"))


@cache
def _space(name: str, problem: tuple[tuple[str, Value], ...]) -> ParamSpace:
    return ParamSpace(family(name).kernel, dict(problem))


ON_CPU = tuple(name for name in FAMILIES if family(name).on_cpu)
