"""Answers from a recorded tuning space instead of a device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from tuner_daemon.interfaces import Effort
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Ran, Timing
from tuner_daemon.records.space import Config
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.records.task import Task


class RecordedSpace(Protocol):
    """Measurements of (nearly) every configuration of a kernel on one device."""

    @property
    def device(self) -> DeviceInfo:
        """The device that was measured."""
        ...

    def contains(self, config: Mapping[str, Value]) -> bool: ...

    def lookup(self, config: Mapping[str, Value]) -> tuple[str, Sequence[float]]:
        """How it ended (an Outcome's value) and times in seconds: all the recorded repeats, or their one summary;
        empty unless "ok"."""
        ...


class Load(Protocol):
    """Reads the recording of one device in a kernel's folder. Raises MissingPartError if it has none."""

    def __call__(self, folder: Path, *, index: int) -> RecordedSpace: ...


KEPT = 4
"""Recordings in memory, the last ones used: a daemon lives long, and a recording may have millions of rows."""

NOT_LOADED = DeviceInfo("replay", 0, "a recorded space", "replay", "replay")


class ReplayRunner:
    """A Runner without a device: nothing is run, and nothing is verified. ``load`` reads a recorded space.

    ``run`` gives the recorded repeats, up to the effort's samples. ``race`` draws a sample per block from the recorded
    repeats, with a generator seeded by the configuration: the same race gives the same samples. Where a single time
    was recorded it stands for every sample; there is no made-up noise, and a verdict then has no width.
    """

    def __init__(self, load: Load, *, seed: int = 0) -> None:
        self._load, self._seed = load, seed
        self._spaces: OrderedDict[tuple[Path, str, int], RecordedSpace] = OrderedDict()
        self._device = NOT_LOADED

    @property
    def device(self) -> DeviceInfo:
        """The device recorded in the space that was used last; a placeholder before any was."""
        return self._device

    @property
    def shares_cores(self) -> bool:
        return False

    @property
    def clock_mode(self) -> str:
        return "free"

    def device_for(self, spec: KernelSpec) -> DeviceInfo:
        """The device on which this spec's kernel was recorded."""
        return self._space(spec).device

    def run(self, task: Task, artifact: Artifact, effort: Effort) -> Ran:
        found = self._found(task, artifact.config)
        if isinstance(found, Failure):
            return found
        dropped = effort.drop_above_s is not None and found[0] > effort.drop_above_s
        return _timing(artifact.config, found[:1] if dropped else found[: max(1, effort.samples)])

    def race(self, task: Task, artifacts: Sequence[Artifact], blocks: int, timeout_s: float) -> list[Ran]:
        del timeout_s  # nothing here takes time
        results: list[Ran] = []
        for artifact in artifacts:
            found = self._found(task, artifact.config)
            if isinstance(found, Failure):
                results.append(found)
            else:
                rng = np.random.default_rng([self._seed, int(artifact.config.key, 16)])
                results.append(_timing(artifact.config, rng.choice(np.array(found), size=blocks).tolist()))
        return results

    def close(self) -> None:
        self._spaces.clear()

    def _found(self, task: Task, config: Config) -> Sequence[float] | Failure:
        space, values = self._space(task.spec), config.as_dict()
        if not space.contains(values):
            return Failure(config, Outcome.LAUNCH_FAILED, "this configuration was not recorded")
        status, times_s = space.lookup(values)
        if status == Outcome.OK:
            return times_s
        return Failure(config, Outcome(status), f"recorded as {status}")

    def _space(self, spec: KernelSpec) -> RecordedSpace:
        # The hash too: another job's folder may lie where the last one's lay.
        recording = spec.kernel.folder, spec.kernel.sha256, spec.device.index
        if recording not in self._spaces:
            self._spaces[recording] = self._load(spec.kernel.folder, index=spec.device.index)
        self._spaces.move_to_end(recording)
        while len(self._spaces) > KEPT:
            self._spaces.popitem(last=False)
        self._device = self._spaces[recording].device
        return self._spaces[recording]


def _timing(config: Config, times_s: Sequence[float]) -> Timing:
    return Timing(config, tuple(float(t) for t in times_s), None, None)
