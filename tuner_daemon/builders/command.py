"""Builders whose compiler is a command: each compilation in a folder of its own, in threads that wait for it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from tuner_daemon.builders.cache import BuildCache, Compiled, Rejected, raise_for_disk
from tuner_daemon.builders.compiling import Compilation, CompileUnit, CompilingBuilder
from tuner_daemon.builders.diagnostics import first_errors, is_passing, speaks_of_full_disk
from tuner_daemon.builders.processes import CompilerRun, Ended, Limits
from tuner_daemon.errors import DiskFullError, MissingPartError

_IDENTIFY = Limits(timeout_s=20.0)


class CommandBuilder(CompilingBuilder):
    """Subclasses give the command line and read what it wrote.

    ``command``: name or path of the compiler. ``limits``: of each compilation.
    """

    suffix: str  # of the source file
    remedy: str

    def __init__(self, cache: BuildCache, *, command: str, jobs: int, limits: Limits) -> None:
        super().__init__(cache, jobs)
        self._name, self.limits = command, limits

    @abstractmethod
    def arguments(self, source: Path, headers: Path, binary: Path) -> Sequence[str]:
        """The command line without the command. ``headers``: folder with the unit's headers."""

    @abstractmethod
    def accept(self, unit: CompileUnit, binary: bytes, output: str, build_s: float) -> Compiled | Rejected:
        """What a run that ended well made; ``output``: what it printed."""

    @cached_property
    def command(self) -> str:
        """Path of the compiler. Raises MissingPartError."""
        found = shutil.which(self._name)
        if found is None:
            raise MissingPartError(f"{self._name} is not on the PATH; {self.remedy}")
        return found

    def _ask(self, arguments: Sequence[str]) -> str:
        """What the compiler says about itself. Raises MissingPartError if it does not answer."""
        with _blaming_the_disk(), tempfile.TemporaryDirectory(prefix="tunerd-ask-") as folder:
            ended = CompilerRun().run([self.command, *arguments], folder=Path(folder), limits=_IDENTIFY)
        if ended.returncode != 0:
            said = "took too long" if ended.timed_out else first_errors(ended.output, lines=2)
            raise MissingPartError(f"{self.command} does not work ({said}); {self.remedy}")
        return ended.output

    def _compilation(self, unit: CompileUnit) -> Compilation:
        return CommandCompilation(self, unit)


class CommandCompilation:
    """One run of a CommandBuilder's command."""

    def __init__(self, builder: CommandBuilder, unit: CompileUnit) -> None:
        self._builder, self._unit = builder, unit
        self._run = CompilerRun()

    def stop(self) -> None:
        self._run.stop()

    def run(self) -> Compiled | Rejected:
        """Raises DiskFullError, BuildError, OSError if the folder for temporary files cannot be used."""
        with _blaming_the_disk():
            return self._run_in_stage()

    def _run_in_stage(self) -> Compiled | Rejected:
        builder, started = self._builder, time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tunerd-build-", ignore_cleanup_errors=True) as folder:
            stage = Path(folder)
            source, headers, binary = stage / f"unit{builder.suffix}", stage / "headers", stage / "unit.bin"
            source.write_bytes(_encoded(self._unit.text))
            _write_headers(self._unit, headers)
            command = [builder.command, *builder.arguments(source, headers, binary)]
            ended = self._run.run(command, folder=stage, limits=builder.limits)
            build_s = time.monotonic() - started
            if ended.timed_out or ended.returncode != 0:
                return self._refused(ended, stage, build_s)
            return builder.accept(self._unit, binary.read_bytes(), ended.output, build_s)

    def _refused(self, ended: Ended, stage: Path, build_s: float) -> Rejected:
        name, limits = Path(self._builder.command).name, self._builder.limits
        if ended.timed_out:
            return Rejected(f"{name} was stopped after {limits.timeout_s:g} s", build_s, lasting=False)
        if speaks_of_full_disk(ended.output) and _is_nearly_full(stage, limits.output_bytes):
            raise DiskFullError(f"{name}: {first_errors(ended.output, lines=1)}; free some space")
        said = first_errors(ended.output.replace(f"{stage}/headers/", "").replace(f"{stage}/", ""))
        if said and not is_passing(ended.output):
            return Rejected(said, build_s)
        bounds = f"{limits.memory_bytes >> 20} MiB of memory and {limits.output_bytes >> 20} MiB of output"
        detail = f"{name} ended with status {ended.returncode} within {bounds}: {said or 'no message'}"
        return Rejected(detail, build_s, lasting=False)


@contextmanager
def _blaming_the_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise_for_disk(error, "the folder for temporary files")
        raise


def _is_nearly_full(folder: Path, n_bytes: int) -> bool:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize < n_bytes


def _write_headers(unit: CompileUnit, folder: Path) -> None:
    folder.mkdir()
    for name, text in unit.headers.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_encoded(text))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
