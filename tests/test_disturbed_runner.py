"""A runner under a clock policy: what is disturbed is repeated, and what stays disturbed is no time."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts import affine_kernel
from tests.nvml import HELD, StandIn, keeper
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.gcc import GccBuilder
from tuner_daemon.errors import ClockError
from tuner_daemon.interfaces import Effort
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Ran, Timing
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.runners.clocks import (
    FRESH_S,
    Keeper,
)
from tuner_daemon.runners.cpu import CpuRunner

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="the stand-in is compiled")


@pytest.fixture(scope="module")
def gcc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GccBuilder]:
    builder = GccBuilder(BuildCache(tmp_path_factory.mktemp("cache"), 1 << 28), jobs=1)
    yield builder
    builder.close()


@pytest.fixture(scope="module")
def bench(gcc: GccBuilder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuRunner]:
    """A runner of real candidates whose device has NVML's clocks."""
    runner = CpuRunner(gcc)
    yield runner
    runner.close()


class Trial:
    """One candidate on that runner."""

    def __init__(self, runner: CpuRunner, builder: GccBuilder, folder: Path, kept: Keeper) -> None:
        self.runner = runner
        kernel = affine_kernel(folder / "affine", ["right", "slightly_wrong"])
        spec = KernelSpec(kernel, {"n": 1 << 20}, DeviceRequest("cpu"))
        self.task = Task(spec, ParamSpace(kernel, spec.problem), runner.device)
        runner._keeper, runner.waits_s = kept, (0.02, 0.04, 0.08)
        self.builder = builder

    def artifact(self, behaviour: str = "right") -> Artifact:
        config = self.task.space.config({"BEHAVIOUR": behaviour, "THREADS": 64})
        built = next(iter(self.builder.build(self.task.spec, [config])))
        assert isinstance(built, Artifact)
        return built

    def run(self, behaviour: str = "right") -> Ran:
        return self.runner.run(self.task, self.artifact(behaviour), Effort(samples=3))


def test_a_quiet_measurement_is_made_once_and_marked(
    nvml: StandIn, bench: CpuRunner, gcc: GccBuilder, tmp_path: Path
) -> None:
    nvml.say(sm=str(HELD))
    ran = Trial(bench, gcc, tmp_path, keeper()).run()
    assert isinstance(ran, Timing)
    assert (ran.clocks.policy, ran.clocks.mode) == ("verify", "locked")
    assert bench.clock_mode == "locked"


def test_a_disturbed_measurement_is_repeated_until_the_disturbance_is_over(
    nvml: StandIn, bench: CpuRunner, gcc: GccBuilder, tmp_path: Path
) -> None:
    nvml.say(sm=str(HELD), reasons="0x20")
    trial = Trial(bench, gcc, tmp_path, keeper())
    artifact = trial.artifact()
    bench.waits_s = (0.5, 0.5)
    threading.Timer(0.3, lambda: nvml.say(reasons="0")).start()
    ran = bench.run(trial.task, artifact, Effort(samples=3))
    assert isinstance(ran, Timing)
    assert ran.clocks.reasons == 0, "nothing of the disturbed measurement is left"


@pytest.mark.parametrize(
    ("answers", "reason"), [({"reasons": "0x8"}, "hardware slowdown"), ({"pids": f"{os.getpid()} 1"}, "processes")]
)
def test_what_stays_disturbed_is_no_time_and_says_why(
    nvml: StandIn, bench: CpuRunner, gcc: GccBuilder, tmp_path: Path, answers: dict[str, str], reason: str
) -> None:
    nvml.say(sm=str(HELD), **answers)
    ran = Trial(bench, gcc, tmp_path, keeper()).run()
    assert isinstance(ran, Failure)
    assert ran.outcome is Outcome.DISTURBED
    assert reason in ran.detail
    assert "4 times of 4" in ran.detail


def test_a_wrong_result_is_wrong_on_a_disturbed_device_too(
    nvml: StandIn, bench: CpuRunner, gcc: GccBuilder, tmp_path: Path
) -> None:
    nvml.say(sm=str(HELD), reasons="0x8")
    ran = Trial(bench, gcc, tmp_path, keeper()).run("slightly_wrong")
    assert isinstance(ran, Failure)
    assert ran.outcome is Outcome.WRONG_RESULT
    assert ran.clocks.reasons == 8


def test_the_policy_lock_measures_nothing_without_a_lease(
    nvml: StandIn, bench: CpuRunner, gcc: GccBuilder, tmp_path: Path
) -> None:
    trial = Trial(bench, gcc, tmp_path, keeper("lock", held_mhz=None))
    with pytest.raises(ClockError, match="no lease"):
        trial.run()
    with pytest.raises(ClockError, match="no lease"):
        bench.race(trial.task, [trial.artifact()], 2, 10.0)


def test_a_hanging_nvml_delays_a_candidate_by_its_limit_and_no_more(
    nvml: StandIn, bench: CpuRunner, gcc: GccBuilder, tmp_path: Path
) -> None:
    trial = Trial(bench, gcc, tmp_path, keeper("observe"))
    assert isinstance(trial.run(), Timing)
    nvml.set({"hang nvmlDeviceGetClockInfo": ""})
    time.sleep(2 * FRESH_S)
    began_s = time.monotonic()
    rans = [trial.run() for _ in range(3)]
    assert all(isinstance(ran, Timing) and ran.clocks.sm_mhz is None for ran in rans)
    assert time.monotonic() - began_s < 5.0
    nvml.unset("hang nvmlDeviceGetClockInfo")
