"""Stand-ins shared by tests: a small kernel folder made on the spot, and specs that ask for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

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
from tuner_daemon.records.spec import DeviceRequest, KernelSpec

KERNEL_CU = """\
extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
  const int first = (blockIdx.x * BLOCK + threadIdx.x) * WORK;
  for (int i = first; i < first + WORK && i < n; ++i) c[i] = a[i] + b[i];
}
"""
KERNEL_C = """\
void vector_add(const float *a, const float *b, float *c, int n) {
  for (int first = 0; first < n; first += BLOCK * WORK)
    for (int i = first; i < first + BLOCK * WORK && i < n; ++i) c[i] = a[i] + b[i];
}
"""
REFERENCE_CU = """\
extern "C" __global__ void vector_add_reference(const float* a, const float* b, float* c, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    c[i] = (float)((double)a[i] + (double)b[i]);
}
"""
REFERENCE_C = """\
void vector_add_reference(const float *a, const float *b, float *c, int n) {
  for (int i = 0; i < n; ++i) c[i] = (float)((double)a[i] + (double)b[i]);
}
"""


def vector_add_kernel(
    folder: Path,
    *,
    block: Sequence[int] = (32, 64, 128, 256),
    work: Sequence[int] = (1, 2, 4),
    cuda: str = KERNEL_CU,
    cpu: str = KERNEL_C,
    constraints: Sequence[str] = ("BLOCK * WORK <= 512",),
) -> Kernel:
    """Writes sources for c[i] = a[i] + b[i] (float32, n elements) into folder, in both languages, and declares them.

    ``cuda`` and ``cpu`` replace the candidates' source text, so that a test can make a kernel that is wrong.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"kernel.cu": cuda, "kernel.c": cpu, "reference.cu": REFERENCE_CU, "reference.c": REFERENCE_C}
    for name, text in texts.items():
        (folder / name).write_text(text)
    declared = _declaration(list(block), list(work), list(constraints))
    declaration = json.dumps(declared, sort_keys=True, separators=(",", ":"))
    parse = Expression.parse
    vector = (parse("n"),)
    return Kernel(
        name="vector_add",
        folder=folder,
        sources={
            "cuda": Source("cuda", folder / "kernel.cu", "vector_add"),
            "cpu": Source("cpu", folder / "kernel.c", "vector_add"),
        },
        problem=(ProblemVariable("n", min=1, max=1 << 30),),
        parameters=(Parameter("BLOCK", tuple(block), "thread_x"), Parameter("WORK", tuple(work), "work_x")),
        constraints=tuple(parse(text) for text in constraints),
        launch=Launch((parse("BLOCK"),), (parse("ceil_div(n, BLOCK * WORK)"),), parse("0")),
        arguments=(
            Argument("a", "input", "float32", vector),
            Argument("b", "input", "float32", vector, fill="uniform"),
            Argument("c", "output", "float32", vector, fill="zeros"),
            Argument("n", "scalar", "int32", value=parse("n")),
        ),
        reference=Reference(
            sources={
                "cuda": Source("cuda", folder / "reference.cu", "vector_add_reference"),
                "cpu": Source("cpu", folder / "reference.c", "vector_add_reference"),
            }
        ),
        baseline=None,
        work=Work(parse("n"), parse("12 * n")),
        reduction_length=None,
        tolerance=None,
        sha256=hashlib.sha256("\0".join([*texts.values(), declaration]).encode()).hexdigest(),
        declaration=declaration,
    )


def _declaration(block: list[int], work: list[int], constraints: list[str]) -> dict[str, object]:
    vector = {"dtype": "float32", "shape": ["n"]}
    return {
        "name": "vector_add",
        "sources": {"cuda": "kernel.cu", "cpu": "kernel.c"},
        "problem": {"n": {"type": "int", "min": 1, "max": 1 << 30}},
        "parameters": {"BLOCK": {"values": block, "role": "thread_x"}, "WORK": {"values": work, "role": "work_x"}},
        "constraints": {"all": constraints},
        "launch": {"block": ["BLOCK"], "grid": ["ceil_div(n, BLOCK * WORK)"], "shared_bytes": "0"},
        "arguments": [
            {"name": "a", "kind": "input", **vector},
            {"name": "b", "kind": "input", "fill": "uniform", **vector},
            {"name": "c", "kind": "output", "fill": "zeros", **vector},
            {"name": "n", "kind": "scalar", "dtype": "int32"},
        ],
        "reference": {"cuda": "reference.cu", "cpu": "reference.c"},
        "work": {"flops": "n", "bytes": "12 * n"},
    }


def spec_for(kernel: Kernel, kind: str = "cpu", **problem: Value) -> KernelSpec:
    """A spec for this kernel on a device of this kind; without a problem, n = 1000."""
    return KernelSpec(kernel, dict(problem) or {"n": 1000}, DeviceRequest(kind), name=f"{kernel.name}.toml")
