"""The zoo: kernels that cheat, and honest ones that could be taken for cheats.

``zoo/cheats`` pretend to be a matrix-vector product, whose reference is ``zoo/reference.inl``; each of ``zoo/honest``
brings its own. An ``.inl`` file is both CUDA and C, through ``zoo/portable.h``; a ``.cu`` file is CUDA alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import ROOT
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import (
    Argument,
    Kernel,
    Launch,
    Parameter,
    ProblemVariable,
    Reference,
    Source,
    Value,
    Work,
)
from tuner_daemon.records.measurement import Outcome
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task

ZOO = ROOT / "tests" / "zoo"
THREADS = 64
Shapes = Mapping[str, tuple[str, ...]]

CHEATS: dict[str, tuple[Outcome, str]] = {
    "no_op": (Outcome.WRONG_RESULT, "not finite"),
    "half_the_rows": (Outcome.WRONG_RESULT, "not finite"),
    "half_the_terms": (Outcome.WRONG_RESULT, "in norm"),
    "stale_output": (Outcome.WRONG_RESULT, "in norm"),
    "stale_first_output": (Outcome.WRONG_RESULT, "in norm"),
    "right_for_5_calls": (Outcome.WRONG_RESULT, "in norm"),
    "right_for_15_calls": (Outcome.WRONG_RESULT, "in norm"),
    "nothing_after_12_calls": (Outcome.WRONG_RESULT, "not finite"),
    "slow_start": (Outcome.WRONG_RESULT, "in norm"),
    "memo_by_pointer": (Outcome.WRONG_RESULT, "in norm"),
    "memo_by_first_element": (Outcome.WRONG_RESULT, "in norm"),
    "memo_by_pointer_and_first_elements": (Outcome.WRONG_RESULT, "in norm"),
    "memo_of_the_first_call": (Outcome.WRONG_RESULT, "in norm"),
    "nan_fill": (Outcome.WRONG_RESULT, "not finite"),
    "one_nan": (Outcome.WRONG_RESULT, "1 of [0-9]+ elements are not finite"),
    "infinite": (Outcome.WRONG_RESULT, "not finite"),
    "overwritten_input": (Outcome.WRONG_RESULT, "changed its input a"),
    "one_overwritten_element": (Outcome.WRONG_RESULT, "changed its input a"),
    "before_the_start": (Outcome.WRONG_RESULT, "out of bounds of y: [1-4] bytes before"),
    "past_the_end": (Outcome.WRONG_RESULT, "out of bounds of y: [1-4] bytes past"),
    "far_past_the_end": (Outcome.WRONG_RESULT, "out of bounds of y: 1 bytes past"),
    "past_the_end_of_an_input": (Outcome.WRONG_RESULT, "out of bounds of x: [1-4] bytes past"),
    "past_the_end_when_timed": (Outcome.WRONG_RESULT, "out of bounds of y: [1-4] bytes past"),
    "constant_output": (Outcome.WRONG_RESULT, "in norm"),
    "zero_output": (Outcome.WRONG_RESULT, "in norm"),
    "half_operands": (Outcome.WRONG_RESULT, "in norm"),
    "bfloat16_operands": (Outcome.WRONG_RESULT, "in norm"),
    "half_result": (Outcome.WRONG_RESULT, "in norm"),
    "fixed_shape": (Outcome.WRONG_RESULT, "with rows = 67, cols = 95"),
    "no_remainder": (Outcome.WRONG_RESULT, "with rows = 67, cols = 95"),
    "no_remaining_columns": (Outcome.WRONG_RESULT, "with rows = 67, cols = 95"),
    "skips_if_the_first_is_zero": (Outcome.WRONG_RESULT, ""),
    "skips_zero_rows": (Outcome.WRONG_RESULT, ""),
    "skips_zero_vectors": (Outcome.WRONG_RESULT, ""),
    "repeated_pointer": (Outcome.WRONG_RESULT, "in norm"),
    "remembered_pointer": (Outcome.WRONG_RESULT, ""),
    "new_pointer_after_the_first_calls": (Outcome.WRONG_RESULT, "not finite"),
    "adds_to_the_output": (Outcome.WRONG_RESULT, "not finite"),
    "neighbour": (Outcome.WRONG_RESULT, ""),
    "last_row_missing": (Outcome.WRONG_RESULT, "1 of [0-9]+ elements are not finite"),
    "soon_after_another": (Outcome.WRONG_RESULT, ""),
    "soon_after_another_on_known_data": (Outcome.WRONG_RESULT, ""),
    "two_parts_in_ten_thousand": (Outcome.WRONG_RESULT, "in norm"),
}
"""In both languages: what becomes of it, and what its detail says."""

ONLY_IN_A_ROW = ("soon_after_another", "soon_after_another_on_known_data")
"""Honest where launches are timed one at a time, as they are on a processor."""

CUDA_CHEATS: dict[str, tuple[Outcome, str]] = {
    "launch_bounds": (Outcome.LAUNCH_FAILED, "threads per block"),
    "uninitialised_shared": (Outcome.WRONG_RESULT, ""),
}

FAULTS: dict[str, Outcome] = {
    "illegal_address": Outcome.CRASHED,
    "misaligned": Outcome.CRASHED,
    "trap": Outcome.CRASHED,
    "out_of_memory": Outcome.CRASHED,
    "stack_overflow": Outcome.CRASHED,
    "launch_bounds": Outcome.LAUNCH_FAILED,  # in C: an exit
    "infinite_loop": Outcome.TIMED_OUT,
}


@dataclass(frozen=True)
class Animal:
    """A kernel before it has a folder. ``arguments``: name, kind, type, sizes; scalars have no sizes."""

    name: str
    text: str
    reference: str
    arguments: tuple[tuple[str, ...], ...]
    problem: Mapping[str, Value]
    elements: str  # what threads are shared out over
    headers: tuple[str, ...] = ("portable.h",)
    length: str | None = None  # terms in a sum
    fills: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # of fills that have bounds
    parameters: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()

    def kernel(self, folder: Path) -> Kernel:
        """Writes its sources into the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        headers = "".join((ZOO / header).read_text() for header in self.headers)
        for suffix in ("c", "cu"):
            (folder / f"kernel.{suffix}").write_text(headers + self.text)
            (folder / f"reference.{suffix}").write_text(headers.replace("CANDIDATE", "UNUSED") + self.reference)
        parse = Expression.parse
        parameters = {"THREADS": (THREADS,), **self.parameters}
        facts = [
            self.name,
            headers,
            self.text,
            self.reference,
            dict(self.problem),
            {k: [*v] for k, v in parameters.items()},
        ]
        return Kernel(
            name="zoo",
            folder=folder,
            sources={
                "cpu": Source("cpu", folder / "kernel.c", "zoo"),
                "cuda": Source("cuda", folder / "kernel.cu", "zoo"),
            },
            problem=tuple(_variable(name, value) for name, value in self.problem.items()),
            parameters=tuple(Parameter(name, values, "other") for name, values in parameters.items()),
            constraints=tuple(map(parse, self.constraints)),
            launch=Launch((parse("THREADS"),), (parse(f"ceil_div({self.elements}, THREADS)"),), parse("0")),
            arguments=tuple(map(self._argument, self.arguments)),
            reference=Reference(
                sources={
                    "cpu": Source("cpu", folder / "reference.c", "zoo_reference"),
                    "cuda": Source("cuda", folder / "reference.cu", "zoo_reference"),
                }
            ),
            baseline=None,
            work=Work(),
            reduction_length=parse(self.length) if self.length else None,
            tolerance=None,
            sha256=hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
            declaration="{}",
        )

    def task(self, folder: Path, device: DeviceInfo) -> Task:
        kernel = self.kernel(folder)
        spec = KernelSpec(kernel, self.problem, DeviceRequest(device.kind))
        return Task(spec, ParamSpace(kernel, self.problem), device)

    def _argument(self, row: tuple[str, ...]) -> Argument:
        name, kind, dtype, *sizes = row
        if kind == "scalar":
            return Argument(name, kind, dtype)
        shape, fill = tuple(map(Expression.parse, sizes)), self.fills.get(name, "normal")
        if name not in self.ranges:
            return Argument(name, kind, dtype, shape, fill)
        low, high = map(Expression.parse, self.ranges[name])
        return Argument(name, kind, dtype, shape, fill, None, low, high)


def _variable(name: str, value: Value) -> ProblemVariable:
    if isinstance(value, str):
        return ProblemVariable(name, "str", values=(value,))
    return ProblemVariable(name, "float" if isinstance(value, float) else "int", min=1, max=1 << 24)


PRODUCT = (
    ("a", "input", "dtype", "rows", "cols"),
    ("x", "input", "dtype", "cols"),
    ("y", "output", "dtype", "rows"),
    ("rows", "scalar", "int32"),
    ("cols", "scalar", "int32"),
)
SIZES: dict[str, Value] = {"rows": 320, "cols": 96}


def cheat(name: str) -> Animal:
    file = ZOO / "cheats" / f"{name}.inl"
    text = (file if file.exists() else file.with_suffix(".cu")).read_text()
    reference = (ZOO / "reference.inl").read_text()
    problem = {**SIZES, "dtype": "float32"}
    return Animal(name, text, reference, PRODUCT, problem, "rows", ("portable.h", "product.h"), "cols")


def faulty(problem: Mapping[str, Value]) -> Animal:
    """The parameter FAULT says what it does; ``none`` is a good candidate. ``problem``: n and rounds."""
    text, reference = ((ZOO / f"{name}.inl").read_text() for name in ("faults", "faults_reference"))
    arguments = (
        ("x", "input", "float32", "n"),
        ("y", "output", "float32", "n"),
        ("n", "scalar", "int32"),
        ("rounds", "scalar", "int32"),
    )
    return Animal("faults", text, reference, arguments, problem, "n", parameters={"FAULT": ("none", *FAULTS)})


def _honest(
    name: str,
    arguments: Sequence[tuple[str, ...]],
    problem: Mapping[str, Value],
    elements: str = "n",
    length: str | None = None,
    fills: Mapping[str, str] | None = None,
    constraints: tuple[str, ...] = (),
    ranges: Mapping[str, tuple[str, str]] | None = None,
) -> Animal:
    scalars = tuple((size, "scalar", "float32" if isinstance(v, float) else "int32") for size, v in problem.items())
    text = (ZOO / "honest" / f"{name}.inl").read_text()
    candidate, _, reference = text.partition("KERNEL(zoo_reference")
    shared = candidate.partition("KERNEL(zoo,")[0]
    return Animal(
        name,
        candidate,
        f"{shared}KERNEL(zoo_reference{reference}",
        (*arguments, *scalars),
        problem,
        elements,
        length=length,
        fills=fills or {},
        ranges=ranges or {},
        constraints=constraints,
    )


def _matvec(dtype: str, parameters: Mapping[str, tuple[Value, ...]]) -> Animal:
    text, reference = (ZOO / "honest" / "matvec.inl").read_text(), (ZOO / "reference.inl").read_text()
    problem = {**SIZES, "dtype": dtype}
    return Animal(f"matvec_{dtype}", text, reference, PRODUCT, problem, "rows", length="cols", parameters=parameters)


def _map(name: str, dtype: str = "float32", out: str | None = None, n: int = 5000) -> Animal:
    return _honest(name, (("x", "input", dtype, "n"), ("y", "output", out or dtype, "n")), {"n": n})


SCRATCH = _honest(
    "scratch",
    (
        ("x", "input", "float32", "n"),
        ("y", "output", "float32", "n"),
        ("scratch", "workspace", "float32", "THREADS * ceil_div(n, THREADS)"),
    ),
    {"n": 3000},
)
HONEST = (
    _matvec("float32", {"SUM": ("plain", "double", "compensated", "blocks"), "UNROLL": (1, 2, 4, 8)}),
    _matvec("float64", {"SUM": ("plain", "compensated"), "UNROLL": (1, 4)}),
    _matvec("float16", {"SUM": ("plain", "blocks"), "UNROLL": (2,)}),
    _matvec("bfloat16", {"SUM": ("plain", "blocks"), "UNROLL": (2,)}),
    _honest("axpy", (("x", "input", "float32", "n"), ("y", "inout", "float32", "n")), {"n": 3000, "alpha": 0.3}),
    _honest(
        "total",
        (("x", "input", "float32", "n"), ("total", "inout", "float32", "4")),
        {"n": 4000},
        length="n",
        fills={"total": "zeros", "x": "uniform"},
    ),
    _honest(
        "histogram",
        (("x", "input", "uint8", "n"), ("counts", "inout", "int32", "16")),
        {"n": 2000},
        fills={"counts": "zeros"},
    ),
    _map("hash", "uint32"),
    _honest(
        "gather",
        (("index", "input", "int32", "n"), ("table", "input", "int64", "16"), ("y", "output", "int64", "n")),
        {"n": 3000},
        fills={"index": "uniform"},
    ),
    _honest(
        "csr",
        (
            ("offsets", "input", "int32", "rows + 1"),
            ("columns", "input", "int32", "nonzeros"),
            ("values", "input", "float32", "nonzeros"),
            ("x", "input", "float32", "cols"),
            ("y", "output", "float32", "rows"),
        ),
        {"rows": 300, "cols": 90, "nonzeros": 2500},
        "rows",
        "cols",
        fills={"offsets": "sorted", "columns": "integers"},
        ranges={"offsets": ("0", "nonzeros"), "columns": ("0", "cols")},
    ),
    SCRATCH,
    _honest(
        "bytes_dot",
        (
            ("a", "input", "int8", "rows", "cols"),
            ("b", "input", "int8", "rows", "cols"),
            ("y", "output", "int32", "rows"),
        ),
        {"rows": 100, "cols": 257},
        "rows",
    ),
    _map("denormals"),
    _map("large"),
    _map("logarithm"),
    _honest(
        "argmax",
        (("x", "input", "float32", "rows", "cols"), ("y", "output", "int32", "rows")),
        {"rows": 64, "cols": 100},
        "rows",
    ),
    _honest(
        "normalise",
        (
            ("x", "input", "float32", "rows", "cols"),
            ("y", "output", "float32", "rows", "cols"),
            ("norms", "output", "float32", "rows"),
        ),
        {"rows": 64, "cols": 100},
        "rows",
        "cols",
    ),
    _honest(
        "transpose",
        (("x", "input", "float64", "rows", "cols"), ("y", "output", "float64", "cols", "rows")),
        {"rows": 50, "cols": 41},
        "rows * cols",
    ),
    _map("stencil"),
    _map("gelu"),
    _map("positive", out="bool"),
    _honest(
        "conjugate_product",
        (("x", "input", "complex64", "n"), ("y", "input", "complex64", "n"), ("z", "output", "complex64", "n")),
        {"n": 2000},
    ),
    _honest(
        "filter",
        (("weights", "constant", "float32", "8"), ("x", "input", "float32", "n"), ("y", "output", "float32", "n")),
        {"n": 1000},
    ),
    _map("tiny", "float64", n=1),
    _honest(
        "fours",
        (("x", "input", "float32", "n"), ("y", "output", "float32", "n")),
        {"n": 1024},
        constraints=("n % 4 == 0",),
    ),
)
