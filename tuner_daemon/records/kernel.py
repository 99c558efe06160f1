"""A kernel folder as data: what ``kernel.toml`` declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuner_daemon.records.expression import Expression

Value = int | float | bool | str
"""What a parameter or a problem variable may hold."""


@dataclass(frozen=True)
class Source:
    """One source file. ``entry`` is the function's name, or a C++ name expression such as ``ns::f<BM, BN>``."""

    language: str  # "cuda" | "cpu"
    file: Path  # absolute
    entry: str


@dataclass(frozen=True)
class ProblemVariable:
    """A size or a type that a spec chooses. ``values`` lists what is allowed; otherwise an int in [min, max]."""

    name: str
    type: str = "int"  # "int" | "float" | "str"
    min: int | float | None = None
    max: int | float | None = None
    default: Value | None = None
    values: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """A tunable parameter: its distinct values in declared order, and its role for the learned models."""

    name: str
    values: tuple[Value, ...]
    role: str


@dataclass(frozen=True)
class Launch:
    """Launch geometry: up to three expressions each over parameters and problem variables."""

    block: tuple[Expression, ...]
    grid: tuple[Expression, ...]
    shared_bytes: Expression


@dataclass(frozen=True)
class Argument:
    """One kernel argument, in call order."""

    name: str
    kind: str  # "input" | "output" | "inout" | "scalar" | "constant" | "workspace"
    dtype: str  # a dtype, or the name of a problem variable that holds one
    shape: tuple[Expression, ...] = ()  # empty for scalars
    fill: str = "normal"  # normal | uniform | arange | zeros | integers | sorted | name of a .npy file
    value: Expression | None = None  # scalars
    low: Expression | None = None  # of the fills integers and sorted: the least value …
    high: Expression | None = None  # … and the one past the greatest (integers), or the greatest itself (sorted)


@dataclass(frozen=True)
class Reference:
    """What a candidate's outputs are compared with; exactly one of the three is set."""

    sources: Mapping[str, Source] = field(default_factory=dict)  # language -> slow and plainly right source
    config: Mapping[str, Value] | None = None  # a configuration known to be good
    arrays: Mapping[str, Path] | None = None  # output argument -> .npy file


@dataclass(frozen=True)
class Work:
    """Operations and compulsory bytes of one launch, for the roofline and the models. Either may be absent."""

    flops: Expression | None = None
    bytes: Expression | None = None


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel folder. ``sha256`` covers every source and the canonical declaration."""

    name: str
    folder: Path
    sources: Mapping[str, Source]  # language -> source
    problem: tuple[ProblemVariable, ...]
    parameters: tuple[Parameter, ...]
    constraints: tuple[Expression, ...]
    launch: Launch
    arguments: tuple[Argument, ...]
    reference: Reference
    baseline: Mapping[str, Value] | None  # None: the first valid configuration that runs
    work: Work
    reduction_length: Expression | None  # terms summed into one output element; scales the tolerance
    tolerance: float | None  # the kernel's own bound on ||out - ref|| / ||ref||; may only tighten
    sha256: str
    declaration: str  # canonical JSON of kernel.toml's tables: enough to compute features without the sources
