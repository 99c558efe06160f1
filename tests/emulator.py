"""Runs the CUDA source of any kernel on the processor: see ``cuda_on_cpu/``.

A kernel is compiled once per configuration and text values of the problem, with its own ``kernel.toml`` saying how
it is launched and with what; ``cuda_on_cpu/<kernel>_twins.h``, if there is one, defines what only that kernel needs.
"""

from __future__ import annotations

import hashlib
import itertools
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.builders.preamble import preamble
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Argument, Kernel, Source, Value
from tuner_daemon.records.space import Config
from tuner_daemon.runners.plan import MOST_REFERENCE_BLOCKS, REFERENCE_THREADS
from tuner_daemon.worker.arrays import canonical, storage

PROGRAMS = Path(__file__).parent / "cuda_on_cpu"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
IGNORE_BARRIERS = "-DIGNORE_BARRIERS"

_CXX = ("g++", "-std=c++20", "-O1", "-fno-strict-aliasing", "-Wall", "-Werror", f"-I{PROGRAMS}")
# nvcc says nothing of these, and their macros make them common.
_ALLOWED = ("unknown-pragmas", "maybe-uninitialized", "sign-compare", "unused", "class-memaccess", "array-bounds")
_ENVIRONMENT = {"ASAN_OPTIONS": "detect_stack_use_after_return=0:detect_leaks=0", "PATH": "/usr/bin:/bin"}
_C_TYPES = {"int32": "int", "int64": "long long", "float32": "float", "float64": "double"}

Names = Mapping[str, Value]
Arrays = Mapping[str, NDArray[Any]]


class EmulatedError(Exception):
    """The program ended with a message instead of results."""


@dataclass(frozen=True)
class Geometry:
    """Of one launch."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int


class Emulator:
    """Compiles into ``folder``, with further options of g++."""

    def __init__(self, folder: Path, *options: str, timeout_s: float = 120.0) -> None:
        self._folder, self._options, self._timeout_s = folder, options, timeout_s
        self._jobs = itertools.count()

    def run(
        self,
        kernel: Kernel,
        config: Config | None,
        problem: Names,
        arrays: Arrays,
        *,
        language: str = "cuda",
        unaligned: bool = False,
        descending: bool = False,
        launches: int = 1,
        shared_bytes: int | None = None,
    ) -> dict[str, NDArray[Any]]:
        """The outputs and inouts by name, as the last launch has left them. Without a config: of the reference.

        ``arrays``: what is read, in storage types. ``unaligned``: every array begins one element past an aligned
        address. ``descending``: blocks and threads run from the last to the first. ``shared_bytes``: instead of what
        the kernel declares. Raises EmulatedError for a program that does not come to its end, CalledProcessError for a
        source that does not compile.
        """
        program = self._program(kernel, config, problem, language)
        names: Names = {**problem, **(config.as_dict() if config else {})}
        geometry = geometry_of(kernel, config, names)
        if shared_bytes is not None:
            geometry = Geometry(geometry.grid, geometry.block, shared_bytes)
        folder = program.parent / f"{next(self._jobs)}"
        folder.mkdir()
        head = [*geometry.grid, *geometry.block, geometry.shared_bytes, int(descending), launches]
        # A reference has no workspace.
        given = [replace(a, kind="null") if a.kind == "workspace" and config is None else a for a in kernel.arguments]
        lines = [_job_line(a, names, arrays, folder, unaligned) for a in given]
        (folder / "job").write_text("\n".join([" ".join(map(str, head)), *lines]) + "\n")
        self._execute(program, folder / "job")
        written = [a for a in kernel.arguments if a.kind in ("output", "inout")]
        return {a.name: _read(folder / f"{a.name}.{launches - 1}", a, names) for a in written}

    def _execute(self, program: Path, job: Path) -> None:
        try:
            done = subprocess.run(
                [str(program), str(job)],
                capture_output=True,
                text=True,
                check=False,
                timeout=self._timeout_s,
                env=_ENVIRONMENT,
            )
        except subprocess.TimeoutExpired as error:
            raise EmulatedError(f"not at its end after {self._timeout_s:g} s") from error
        if done.returncode != 0:
            raise EmulatedError(f"exit status {done.returncode}: {done.stderr}")

    def _program(self, kernel: Kernel, config: Config | None, problem: Names, language: str) -> Path:
        source = (kernel.sources if config is not None else kernel.reference.sources)[language]
        defines = preamble(kernel.parameters, config, problem)
        key = hashlib.sha256(f"{source.file}\n{source.entry}\n{defines}".encode()).hexdigest()[:16]
        folder = self._folder / f"{kernel.name}-{key}"
        program = folder / "program"
        if not program.exists():
            folder.mkdir(exist_ok=True)
            work = folder / f"build-{next(self._jobs)}"
            work.mkdir()
            (work / "config.h").write_text(defines)
            _compile(kernel, source, work, self._options)
            (work / "program").rename(program)
        return program


def geometry_of(kernel: Kernel, config: Config | None, names: Names) -> Geometry:
    """As a GPU's launch would have it; of the reference without a config."""
    if config is None:
        elements = sum(int(np.prod(shape_of(a, names))) for a in kernel.arguments if a.kind in ("output", "inout"))
        blocks = min(MOST_REFERENCE_BLOCKS, -(-elements // REFERENCE_THREADS))
        return Geometry((blocks, 1, 1), (REFERENCE_THREADS, 1, 1), 0)
    launch = kernel.launch
    return Geometry(_three(launch.grid, names), _three(launch.block, names), int(launch.shared_bytes.evaluate(names)))


def _compile(kernel: Kernel, source: Source, folder: Path, options: Sequence[str]) -> None:
    twins = PROGRAMS / f"{kernel.name}_twins.h"
    allowed = [f"-Wno-{warning}" for warning in _ALLOWED]
    defines = [f"-DENTRY={source.entry}", f'-DCONFIG="{folder / "config.h"}"']
    linked: list[str] = []
    if source.language == "cpu":
        linked = [str(folder / "kernel.o")]
        compile_c = ["gcc", "-std=gnu11", "-O1", "-g", "-march=native", *options, "-include", str(folder / "config.h")]
        subprocess.run([*compile_c, "-c", str(source.file), "-o", *linked], check=True)
        defines.append(f"-DPROTOTYPE={_prototype(kernel, source)}")
    else:
        defines.append(f'-DSOURCE="{source.file}"')
        defines += [f'-DTWINS="{twins}"'] if twins.exists() else []
    program = [str(PROGRAMS / "driver.cpp"), *linked, "-lm", "-o", str(folder / "program")]
    subprocess.run([*_CXX, *allowed, *options, *defines, *program], check=True)


def _prototype(kernel: Kernel, source: Source) -> str:
    types = [_C_TYPES[a.dtype] if a.kind == "scalar" else "void *" for a in kernel.arguments]
    return f'extern "C" void {source.entry}({", ".join(types)});'


def _job_line(argument: Argument, names: Names, arrays: Arrays, folder: Path, unaligned: bool) -> str:
    dtype = dtype_of(argument, names)
    if argument.kind == "scalar":
        assert argument.value is not None
        value = np.array(argument.value.evaluate(names), dtype)
        return f"scalar {dtype.itemsize} {int.from_bytes(value.tobytes(), 'little')}"
    path = folder / argument.name
    if argument.kind == "null":
        return f"null 0 0 {path}"
    shape = shape_of(argument, names)
    if argument.kind in ("input", "inout"):
        array = arrays[argument.name]
        assert array.shape == shape, (argument.name, array.shape, shape)
        assert array.dtype == dtype, (argument.name, array.dtype, dtype)
        path.write_bytes(np.ascontiguousarray(array).tobytes())
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return f"{argument.kind} {nbytes} {dtype.itemsize if unaligned else 0} {path}"


def _read(path: Path, argument: Argument, names: Names) -> NDArray[Any]:
    return np.frombuffer(path.read_bytes(), dtype_of(argument, names)).reshape(shape_of(argument, names))


def dtype_of(argument: Argument, names: Names) -> np.dtype[Any]:
    """In storage: bfloat16 as its bits."""
    return storage(canonical(str(names.get(argument.dtype, argument.dtype))))


def shape_of(argument: Argument, names: Names) -> tuple[int, ...]:
    return tuple(int(extent.evaluate(names)) for extent in argument.shape)


def _three(expressions: Sequence[Expression], names: Names) -> tuple[int, ...]:
    sizes = [int(e.evaluate(names)) for e in expressions]
    return (*sizes, *[1] * (3 - len(sizes)))
