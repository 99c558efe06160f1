"""Builds C kernels for the ``cpu`` device with GCC."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tuner_daemon.builders.cache import BuildCache, Compiled, Rejected
from tuner_daemon.builders.command import CommandBuilder
from tuner_daemon.builders.compiling import CompileUnit
from tuner_daemon.builders.elf import exported_functions
from tuner_daemon.builders.processes import Limits

OPTIONS = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC")


class GccBuilder(CommandBuilder):
    """A Builder of shared objects; ``entry`` is the name of a function that the source defines."""

    language = "cpu"
    suffix = ".c"
    remedy = "install gcc, or leave the cpu device out of the settings"

    def __init__(
        self,
        cache: BuildCache,
        *,
        jobs: int,
        timeout_s: float = 60.0,
        memory_bytes: int = 2 << 30,
        output_bytes: int = 64 << 20,
        command: str = "gcc",
    ) -> None:
        limits = Limits(timeout_s, memory_bytes, output_bytes)
        super().__init__(cache, command=command, jobs=jobs, limits=limits)

    @property
    def compiler(self) -> str:
        version = re.search(r"gcc version (\S+)", self._resolved)
        return f"gcc {version[1]}" if version else "gcc"

    @cached_property
    def _resolved(self) -> str:
        """GCC's account of what ``-march=native`` means here, so that a cache folder may be shared by machines."""
        return self._ask(["-march=native", "-###", "-E", "-x", "c", "/dev/null"])

    def _identity(self) -> str:
        return "\n".join([self._resolved, *OPTIONS])

    def arguments(self, source: Path, headers: Path, binary: Path) -> Sequence[str]:
        return [*OPTIONS, "-fno-diagnostics-show-caret", f"-I{headers}", "-o", str(binary), str(source), "-lm"]

    def accept(self, unit: CompileUnit, binary: bytes, output: str, build_s: float) -> Compiled | Rejected:
        try:
            names = exported_functions(binary)
        except ValueError as error:
            return Rejected(f"gcc wrote a {error}", build_s, lasting=False)
        if unit.entry not in names:
            defined = ", ".join(name for name in names if not name.startswith("_")) or "no function"
            return Rejected(f"the entry {unit.entry} is not defined in the source; it exports {defined}", build_s)
        return Compiled(binary, unit.entry, build_s)
