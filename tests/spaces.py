"""Spaces to look at, and Python's own word on what is in them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Kernel, Launch, Parameter, Reference, Value, Work
from tuner_daemon.records.space import Config, ParamSpace, PrefixWalker


def kernel(parameters: Mapping[str, Sequence[Value]], constraints: Sequence[str] = ()) -> Kernel:
    return Kernel(
        name="k",
        folder=Path("/nowhere/k"),
        sources={},
        problem=(),
        parameters=tuple(Parameter(name, tuple(values), "other") for name, values in parameters.items()),
        constraints=tuple(map(Expression.parse, constraints)),
        launch=Launch((), (), Expression.parse("0")),
        arguments=(),
        reference=Reference(sources={}),
        baseline=None,
        work=Work(),
        reduction_length=None,
        tolerance=None,
        sha256="",
        declaration="{}",
    )


def space(
    parameters: Mapping[str, Sequence[Value]],
    constraints: Sequence[str] = (),
    problem: Mapping[str, Value] | None = None,
    *,
    list_limit: int = 2_000_000,
) -> ParamSpace:
    return ParamSpace(kernel(parameters, constraints), problem or {}, list_limit=list_limit)


def brute_force(
    parameters: Mapping[str, Sequence[Value]], constraints: Sequence[str], problem: Mapping[str, Value]
) -> list[tuple[Value, ...]]:
    """Python's own word on every combination, in lexicographic order of declared positions."""
    functions = {"__builtins__": {}, "min": min, "max": max, "abs": abs, "ceil_div": lambda a, b: -(-a // b)}
    valid = []
    for values in itertools.product(*parameters.values()):
        names = {**problem, **dict(zip(parameters, values, strict=True))}
        try:
            if all(eval(text, functions, names) for text in constraints):
                valid.append(values)
        except ZeroDivisionError:
            continue
    return valid


def walk(walker: PrefixWalker, n: int, rng: np.random.Generator) -> list[Config]:
    """Every parameter decided uniformly among its options."""
    state = walker.start(n)
    while not walker.done(state):
        options = walker.options(state)
        state = walker.choose(state, np.argmax(rng.random(options.shape) * options, axis=1))
    return walker.finish(state)


SGEMM: dict[str, list[Value]] = {
    "BM": [16, 32, 64, 128],
    "BN": [16, 32, 64, 128],
    "TM": [1, 2, 4, 8],
    "TN": [1, 2, 4, 8],
    "block": [32, 64, 128, 256],
    "LAYOUT": ["row", "col"],
    "SHARED": [True, False],
    "ALPHA": [0.5, 1.0],
}
SGEMM_RULES = [
    "block == (BM//TM)*(BN//TN)",
    "m % BM == 0 and n % BN == 0",
    'LAYOUT == "row" or not SHARED',
    "32 <= block < 256",
]
