"""Candidates that crash, hang and run out of everything leave the runner as it was: on the processor."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from benchmarks import fault_storm
from benchmarks.fault_storm import storm
from tests.waiting import command_line
from tests.zoo_kernels import FAULTS, faulty
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.gcc import GccBuilder
from tuner_daemon.errors import DeviceError
from tuner_daemon.interfaces import Effort
from tuner_daemon.records.measurement import Failure, Timing
from tuner_daemon.runners.cpu import CpuRunner


def test_a_storm_of_faults_costs_a_worker_each_and_nothing_else(tmp_path: Path) -> None:
    problem = {"n": 500, "rounds": 50}
    seen = storm("cpu", 22, tmp_path, good_every=4, problem=problem)
    assert seen.wrong("cpu") == []
    assert {fault for fault, _ in seen.outcomes} == set(FAULTS)
    assert seen.canaries == seen.abnormal_ends == seen.faults == 22
    assert seen.workers == 23
    assert len(seen.good_s) == 6
    assert workers() == []


def workers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if "tuner_daemon.worker" in command_line(p)]


def test_a_worker_whose_canary_fails_is_replaced_and_the_count_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch that fails leaves the worker alive, with a canary due."""
    builder = GccBuilder(BuildCache(tmp_path / "cache", 1 << 28), jobs=2)
    runner = CpuRunner(builder)
    task = faulty({"n": 100, "rounds": 5}).task(tmp_path / "kernel", runner.device)
    artifacts = fault_storm.built(builder, task)
    good = artifacts["none"]
    assert isinstance(runner.run(task, good, Effort()), Timing)
    missing = type(good)(good.config, good.path, "no_such_function", good.sha256, 0.0)
    assert isinstance(runner.run(task, missing, Effort()), Failure)
    assert (runner.abnormal_ends, runner.canaries_passed, runner.workers_started) == (1, 0, 1)
    runner.settle()
    assert (runner.canaries_passed, runner.workers_started) == (1, 1)
    assert isinstance(runner.run(task, missing, Effort()), Failure)
    (worker,) = workers()
    assert Path(f"/proc/{worker.pid}/oom_score_adj").read_text().strip() == "1000"
    worker.kill()
    assert isinstance(runner.run(task, good, Effort()), Timing)
    assert (runner.canaries_passed, runner.workers_started) == (2, 2)
    monkeypatch.setattr("tuner_daemon.runners.child.Child._command", lambda *_: ("false",))
    assert isinstance(runner.run(task, missing, Effort()), Failure)
    runner.close()
    with pytest.raises(DeviceError, match="does not start"):
        runner.settle()
    assert runner.canaries_passed == 2
    builder.close()
