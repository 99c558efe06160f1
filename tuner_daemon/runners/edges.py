"""A second, small problem with odd sizes for every candidate: what is right at one size only is not right.

Sizes are those problem variables of type int that have a least value and no list of values. A kernel's limits say where
it must work, and its constraints on parameters and sizes hold as they do for a search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner_daemon.errors import ExpressionError, KernelError
from tuner_daemon.records.expression import Number
from tuner_daemon.records.kernel import Kernel, ProblemVariable, Value
from tuner_daemon.records.measurement import Artifact
from tuner_daemon.records.space import Config
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.runners import plan

_PRIMES: Mapping[int, Sequence[int]] = {1: (1021,), 2: (67, 131), 3: (37, 67, 53)}
_SMALL_PRIMES = (13, 17, 11, 19)  # for more than three sizes
_MULTIPLES = (2, 8, 32, 128)  # tried in turn where a constraint refuses primes
_MOST_ELEMENTS = 1 << 20  # of any array


def edge(spec: KernelSpec, artifact: Artifact, reference: Artifact | None) -> dict[str, Any] | None:
    """The request's ``edge``: ``program``, ``problem``, ``sizes`` in words. None if the kernel allows no other sizes,
    or none of those tried."""
    kernel, config = spec.kernel, artifact.config
    if kernel.reference.arrays is not None and reference is None:
        return None
    for sizes in _tried(kernel, spec.problem):
        problem = {**spec.problem, **sizes}
        if not _allowed(kernel, problem, config, plan.reference_config(spec)):
            continue
        try:
            request = plan.at_problem(replace(spec, problem=problem), artifact, reference)
        except (ExpressionError, KernelError):
            continue
        if _launches(request["program"]) and _is_small(request["problem"]):
            return {**request, "sizes": ", ".join(f"{name} = {value}" for name, value in sizes.items())}
    return None


def _tried(kernel: Kernel, problem: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """Primes first, each less than the size in question, then multiples of powers of two."""
    sizes = [v for v in kernel.problem if v.type == "int" and v.min is not None and not v.values]
    primes = _PRIMES.get(len(sizes), _SMALL_PRIMES)
    wanted = {variable: primes[i % len(primes)] for i, variable in enumerate(sizes)}
    for multiple in (1, *_MULTIPLES):
        found: dict[str, Value] = {v.name: _size(v, n, multiple, problem[v.name]) for v, n in wanted.items()}
        if any(value != problem[name] for name, value in found.items()):
            yield found


def _size(variable: ProblemVariable, wanted: int, multiple: int, asked: Value) -> int:
    """A multiple near the wanted size, less than what was asked where the limits allow it."""
    assert isinstance(asked, int)
    assert variable.min is not None
    least = -(-int(variable.min) // multiple) * multiple
    size = max(least, min(-(-wanted // multiple) * multiple, (asked - 1) // multiple * multiple))
    return asked if size > asked else size


def _allowed(kernel: Kernel, problem: Mapping[str, Value], *configs: Config | None) -> bool:
    for config in configs:
        if config is None:
            continue
        names: dict[str, Number | str] = {**problem, **config.as_dict()}
        try:
            if not all(constraint.evaluate(names) for constraint in kernel.constraints):
                return False
        except ExpressionError:
            return False
    return True


def _launches(program: Mapping[str, Any]) -> bool:
    return bool(min(*program["grid"], *program["block"]) >= 1 and program["shared_bytes"] >= 0)


def _is_small(problem: Mapping[str, Any]) -> bool:
    for argument in problem["arguments"]:
        elements = 1
        for size in argument.get("shape", ()):
            elements *= size
        if elements > _MOST_ELEMENTS:
            return False
    return True
