"""What the benchmarks of measuring run: problems of the shipped families, and variants of their kernel folders."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from tuner_daemon.cli.workshop import Station, open_station
from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.intake.specs import templates_dir
from tuner_daemon.records.kernel import Kernel, Value
from tuner_daemon.records.measurement import Artifact, Failure
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.spec import Budget, DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.settings import Settings

TILED: Mapping[str, Value] = {"BM": 128, "BN": 128, "BK": 16, "TM": 8, "TN": 8, "VEC": 4, "UNROLL": 8, "STAGES": 2}
SMALLER: Mapping[str, Value] = {**TILED, "BM": 64, "BN": 64, "TM": 4, "TN": 4}
ROWWISE: Mapping[str, Value] = {"VEC": 4, "WORK": 8, "CACHE": 2, "ONLINE": 1, "REDUCE": "shuffle", "EXP": "fast"}


@dataclass(frozen=True)
class Problem:
    """A family at a size, with what differs from the baseline in a good configuration."""

    family: str
    sizes: Mapping[str, int]
    good: Mapping[str, Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.family} {' x '.join(map(str, self.sizes.values()))}"

    def spec(self, kernel: Kernel, kind: str, budget: Budget | None = None) -> KernelSpec:
        defaults = {v.name: v.default for v in kernel.problem if v.default is not None}
        return KernelSpec(kernel, {**defaults, **self.sizes}, DeviceRequest(kind), budget or Budget())


def matmul(m: int, n: int, k: int, good: Mapping[str, Value] = TILED) -> Problem:
    return Problem("matmul", {"m": m, "n": n, "k": k}, good)


def softmax(rows: int, cols: int) -> Problem:
    return Problem("softmax", {"rows": rows, "cols": cols}, ROWWISE)


FIVE: Mapping[str, Sequence[Problem]] = {
    # Some 5 us, 70 us, 0.1 ms, 0.4 ms and 3 ms on an H200.
    "cuda": (
        softmax(1024, 1024),
        softmax(8192, 4096),
        matmul(1024, 1024, 1024, SMALLER),
        matmul(2048, 2048, 2048),
        matmul(4096, 4096, 4096),
    ),
    "cpu": (
        softmax(64, 256),
        softmax(512, 1000),
        matmul(64, 64, 64, SMALLER),
        matmul(128, 128, 128, SMALLER),
        matmul(256, 256, 256),
    ),
}

NARROW: Mapping[str, Mapping[str, Sequence[Value]]] = {
    "matmul": {
        "BM": (64, 128),
        "BN": (64, 128),
        "BK": (16,),
        "TM": (8,),
        "TN": (4, 8),
        "VEC": (4,),
        "UNROLL": (8,),
        "STAGES": (1, 2, 3),
        "FRAGMENTS": (1,),
        "TRANSPOSE": (1,),
        "PAD": (0, 4),
        "ORDER": ("rows",),
        "SPLIT_K": (1,),
        "RASTER": (8,),
    },
    "softmax": {
        "ROW_THREADS": (32, 128, 256, 512),
        "ROWS": (1, 2),
        "VEC": (1, 4),
        "WORK": (1, 8),
        "STEPS": (1,),
        "UNROLL": (1,),
        "PREFETCH": (0,),
        "ONLINE": (1,),
        "CACHE": (0, 2),
        "REDUCE": ("shuffle",),
        "EXP": ("fast",),
        "STREAM": (0,),
    },
}
"""Spaces of 48 configurations, as somebody writes them who knows the kernel: a small budget measures all of it."""


def settings_for(state: Path, kind: str, *, seed: int = 0) -> Settings:
    return Settings.model_validate(
        {"state_dir": state, "allow_cpu_kernels": True, "device": {"kind": kind}, "search": {"seed": seed}}
    )


def template(family: str) -> Kernel:
    return load_kernel(templates_dir() / family)


def narrowed(family: str, folder: Path) -> Kernel:
    """The family with the values of NARROW; the baseline is the first configuration."""
    copy = shutil.copytree(templates_dir() / family, folder / family)
    text = (copy / "kernel.toml").read_text()
    for name, values in NARROW[family].items():
        listed = ", ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in values)
        text = replaced(rf"^{name} = {{ values = \[[^]]*\]", f"{name} = {{ values = [{listed}]", text)
    (copy / "kernel.toml").write_text(replaced(r"^\[baseline\]\nconfig = .*\n", "", text))
    return load_kernel(copy)


def half_bound(folder: Path) -> Kernel:
    """The matmul family with one more parameter: HALF_BOUND = 1 promises half the threads that the launch has, so
    that every launch fails."""
    copy = shutil.copytree(templates_dir() / "matmul", folder / "half_bound")
    source, declaration = copy / "kernel.cu", copy / "kernel.toml"
    bound = "__launch_bounds__(HALF_BOUND ? THREADS / 2 : THREADS)"
    source.write_text(replaced(r"__launch_bounds__\(THREADS, MIN_BLOCKS\)", bound, source.read_text()))
    text = replaced(r"^(RASTER = .*)$", r'\1\nHALF_BOUND = { values = [0, 1], role = "flag" }', declaration.read_text())
    declaration.write_text(replaced(r", RASTER = 1 }", ", RASTER = 1, HALF_BOUND = 0 }", text))
    return load_kernel(copy)


def replaced(pattern: str, by: str, text: str) -> str:
    """Raises ValueError unless the pattern is there exactly once."""
    new, count = re.subn(pattern, by, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{pattern!r} is there {count} times, want once")
    return new


@contextmanager
def station(settings: Settings) -> Iterator[Station]:
    """A compile pool and a runner with a worker of its own, until the end of the block."""
    opened = open_station(settings, DeviceRequest(settings.device.kind))
    try:
        yield opened
    finally:
        opened.runner.close()
        opened.builder.close()


def task_on(opened: Station, spec: KernelSpec) -> Task:
    return Task(spec, ParamSpace(spec.kernel, spec.problem), opened.runner.device_for(spec))


def good_config(spec: KernelSpec, problem: Problem) -> Config:
    return ParamSpace(spec.kernel, spec.problem).config({**(spec.kernel.baseline or {}), **problem.good})


def built(opened: Station, spec: KernelSpec, config: Config) -> Artifact:
    (item,) = opened.builder.build(spec, [config])
    if isinstance(item, Failure):
        raise RuntimeError(f"{spec.kernel.name}: {item.detail}")
    return item


def run_apart(module: str) -> NoReturn:
    """Runs the module's ``main`` in this process's stead, so that there is no main module with heavy imports: every
    worker of a compile pool would import it again."""
    code = f"import sys; from {module} import main; sys.exit(main())"
    os.execv(sys.executable, [sys.executable, "-c", code, *sys.argv[1:]])
