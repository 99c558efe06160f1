"""Exceptions: what is wrong with the input or with the machine.

A bad *candidate* is never an exception; it is a :class:`tuner_daemon.records.Failure`.
"""

from __future__ import annotations

from pathlib import Path


class TunerError(Exception):
    """Base of every exception this package raises on purpose."""


class InputError(TunerError):
    """Something a person wrote cannot be used.

    The message reads ``<file>[:<line>]: <key> <problem>; <remedy>``.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        key: str | None = None,
        line: int | None = None,
        remedy: str | None = None,
    ) -> None:
        self.problem, self.file, self.key, self.line, self.remedy = problem, file, key, line, remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        where = "" if self.file is None else f"{Path(self.file).name}:{f'{self.line}:' if self.line else ''} "
        what = f"{self.key} {self.problem}" if self.key else self.problem
        return f"{where}{what}{f'; {self.remedy}' if self.remedy else ''}"


class SpecError(InputError):
    """A dropped spec is malformed, or asks for what its kernel does not declare."""


class KernelError(InputError):
    """A kernel folder is malformed: its kernel.toml, or a file that it names."""


class ExpressionError(InputError):
    """An expression uses what the whitelist refuses, an unknown name, or has no value."""


class SettingsError(InputError):
    """The settings file or a TUNERD_* variable is malformed."""


class MissingPartError(TunerError):
    """A library, compiler or device that this operation needs is not on this machine."""


class ClockError(MissingPartError):
    """GPU clocks cannot be locked or let go, or are not where the clock policy wants them."""


class DeviceError(TunerError):
    """The device itself is broken: the canary kernel fails, or the driver is gone."""


class BuildError(TunerError):
    """The disk fails under a compiler or the build cache: nothing can be said of any candidate."""


class LogError(TunerError):
    """The measurement log cannot be written, or cannot be trusted."""


class SpoolError(TunerError):
    """The spool folders cannot be used (not on one file system, not writable)."""


class ModelError(TunerError):
    """A stored model is absent, damaged, or made for other features."""


class TuningError(TunerError):
    """A job ends without an answer: no configuration of the kernel gives right results."""


class JobInterruptedError(TunerError):
    """The daemon was asked to stop; the job's measurements are in the log and it goes on from there."""


class DiskFullError(TunerError):
    """No space is left where the spool, the log or the models live. Nothing acknowledged is lost; the same call
    succeeds once there is space."""
