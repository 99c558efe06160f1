"""Runs C kernels on the processor."""

from __future__ import annotations

from tuner_daemon.interfaces import Builder
from tuner_daemon.runners.measuring import WorkerRunner


class CpuRunner(WorkerRunner):
    """A Runner of shared objects. Candidates are host code: they run in the worker, with the rights of this user."""

    kind = "cpu"

    def __init__(
        self, builder: Builder | None = None, *, index: int = 0, clock_policy: str = "observe", compiler: str = ""
    ) -> None:
        super().__init__(builder, index=index, clock_policy=clock_policy, compiler=compiler)

    @property
    def shares_cores(self) -> bool:
        return True
