"""Builds CUDA kernels to cubins with nvcc, where NVRTC is not installed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tuner_daemon.builders.cache import BuildCache, Compiled, Rejected
from tuner_daemon.builders.command import CommandBuilder
from tuner_daemon.builders.compiling import Compilation, CompileUnit, Decided
from tuner_daemon.builders.cubin import compiled_cubin, real_arch
from tuner_daemon.builders.processes import Limits

OPTIONS = ("-cubin", "-std=c++17", "-O3", "-Xptxas=-v")


class NvccBuilder(CommandBuilder):
    """A Builder of cubins; ``entry`` names a ``__global__`` function, with its namespaces, but no template."""

    language = "cuda"
    suffix = ".cu"
    remedy = "install the CUDA toolkit and add its bin folder to the PATH, or install the extra tuner-daemon[cuda]"

    def __init__(
        self,
        cache: BuildCache,
        *,
        arch: str,
        jobs: int,
        timeout_s: float = 120.0,
        memory_bytes: int = 8 << 30,
        output_bytes: int = 256 << 20,
        command: str = "nvcc",
    ) -> None:
        limits = Limits(timeout_s, memory_bytes, output_bytes)
        super().__init__(cache, command=command, jobs=jobs, limits=limits)
        self._arch = real_arch(arch)

    @property
    def compiler(self) -> str:
        version = re.search(r"\bV(\d[\d.]*)", self._version)
        return f"nvcc {version[1]}" if version else "nvcc"

    @cached_property
    def _version(self) -> str:
        return self._ask(["--version"])

    def _identity(self) -> str:
        return "\n".join([self._version, self._arch, *OPTIONS])

    def arguments(self, source: Path, headers: Path, binary: Path) -> Sequence[str]:
        return [*OPTIONS, f"-arch={self._arch}", f"-I{headers}", "-o", str(binary), str(source)]

    def _compilation(self, unit: CompileUnit) -> Compilation:
        if "<" in unit.entry:
            detail = f"the entry {unit.entry} is a template, which only NVRTC instantiates; install tuner-daemon[cuda]"
            return Decided(Rejected(detail, lasting=False))
        return super()._compilation(unit)

    def accept(self, unit: CompileUnit, binary: bytes, output: str, build_s: float) -> Compiled | Rejected:
        return compiled_cubin(binary, unit.entry, output, build_s)
