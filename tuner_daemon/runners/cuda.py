"""Runs cubins on a CUDA device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tuner_daemon.errors import MissingPartError
from tuner_daemon.interfaces import Builder
from tuner_daemon.records.measurement import Artifact
from tuner_daemon.runners import plan
from tuner_daemon.runners.checks import build_checks
from tuner_daemon.runners.clocks import NvmlClocks
from tuner_daemon.runners.measuring import Planned, WorkerRunner


class CudaRunner(WorkerRunner):
    """A Runner of cubins. The context lives in the worker: this process never makes one."""

    kind = "cuda"

    def __init__(
        self, builder: Builder | None = None, *, index: int = 0, clock_policy: str = "observe", compiler: str = ""
    ) -> None:
        super().__init__(builder, index=index, clock_policy=clock_policy, compiler=compiler)

        self._built_checks: Artifact | None = None

    @property
    def shares_cores(self) -> bool:
        return False

    def _refusal(self, planned: Planned) -> str:
        return plan.refusal(planned.request["program"], planned.artifact, self.device)

    def _checks(self) -> str | None:
        if self.builder is not None and (self._built_checks is None or not self._built_checks.path.exists()):
            self._built_checks = build_checks(self.builder)
        return None if self._built_checks is None else str(self._built_checks.path.resolve())

    def _meet(self, said: dict[str, Any]) -> None:
        first = self._device is None
        super()._meet(said)
        if first and self._device is not None:
            self._keeper.uuid = self._device.uuid
            try:
                clocks = NvmlClocks(self._device.uuid)
            except MissingPartError:
                return  # clocks stay unknown; only the policy "lock" needs them
            self._keeper.reader = clocks
            self._device = replace(self._device, driver=clocks.driver_version or self._device.driver)
