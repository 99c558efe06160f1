"""How often a candidate is launched, and what for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.increment import increment_candidate, random_candidate
from tuner_daemon.worker import harness
from tuner_daemon.worker.cpu_device import CpuDevice
from tuner_daemon.worker.messages import Candidate
from tuner_daemon.worker.warmth import Warmth
from tuner_daemon.worker.workspace import Workspaces


class CountingDevice(CpuDevice):
    """Every launch takes ``launch_s``, says its clock."""

    def __init__(self, launch_s: float) -> None:
        super().__init__(0)
        self.launch_s = launch_s
        self.cold: list[bool] = []
        self.launches = 0  # that are not timed

    def launch(self, *calls: Any) -> None:
        super().launch(*calls)
        self.launches += len(calls)

    def time(self, calls: Sequence[Any], *, cold: bool) -> float:
        super().time(calls, cold=cold)
        self.cold.append(cold)
        return self.launch_s


def prepared(device: CountingDevice, candidate: Candidate) -> Workspaces:
    """With the reference's launches behind it."""
    workspaces = Workspaces(device)
    workspaces.of(candidate.problem)
    device.launches = 0
    return workspaces


@pytest.mark.parametrize(
    ("launch_s", "drop_above_s", "warm", "samples"),
    [
        (1e-4, None, 3, 5),  # one input set is checked, three launches warm up
        (1e-2, None, 2, 5),  # the launch that was checked is one of the three
        (1.0, None, 1, 5),  # too slow to be launched again and again
        (1e-4, 5e-5, 3, 1),  # slower than wanted: one sample
    ],
)
def test_a_candidate_is_launched_no_more_often_than_its_worth(
    tmp_path: Path, launch_s: float, drop_above_s: float | None, warm: int, samples: int
) -> None:
    device = CountingDevice(launch_s)
    effort = {"samples": 5, "drop_above_s": drop_above_s, "timeout_s": 60.0}
    reply = harness.run(Workspaces(device), device, increment_candidate(tmp_path), effort, lambda *_: None)
    assert reply["outcome"] == "ok", reply
    assert (device.cold.count(False), device.cold.count(True)) == (warm, 1 + samples)
    assert reply["times_s"] == [launch_s] * samples
    assert reply["warm_median_s"] == launch_s


@pytest.mark.parametrize(("launch_s", "drop_above_s"), [(1e-2, 5e-3), (1e-4, 2e-5)])
def test_a_hopeless_candidate_is_launched_once(tmp_path: Path, launch_s: float, drop_above_s: float) -> None:
    device, candidate = CountingDevice(launch_s), random_candidate(tmp_path)
    effort = {"samples": 5, "drop_above_s": drop_above_s, "timeout_s": 60.0}
    reply = harness.run(prepared(device, candidate), device, candidate, effort, lambda *_: None)
    assert (reply["outcome"], reply["times_s"], reply["warm_median_s"]) == ("ok", [launch_s], None)
    assert (device.cold, device.launches) == ([True], 0)


@pytest.mark.parametrize(("launch_s", "timed"), [(1.2e-2, 2), (1.02e-2, 5 + 2 + 4), (0.5e-3, 5 + 6 + 3)])
def test_a_long_candidate_that_is_behind_keeps_the_times_of_its_checks(
    tmp_path: Path, launch_s: float, timed: int
) -> None:
    """Two sets, and one launch more on a set that it has not seen. What may win after all is sampled."""
    device, candidate = CountingDevice(launch_s), random_candidate(tmp_path)
    effort = {"steps": [5], "drop_above_s": 3e-2, "beat_s": 1e-2 if launch_s > 1e-3 else 1e-4, "timeout_s": 60.0}
    reply = harness.run(prepared(device, candidate), device, candidate, effort, lambda *_: None)
    assert (reply["outcome"], len(device.cold)) == ("ok", timed), reply
    assert device.launches == (1 if timed == 2 else 2), "an address that it has not seen is for those that may win"
    assert len(reply["times_s"]) == (2 if timed == 2 else 5)


@pytest.mark.parametrize(("beat_s", "cold"), [(None, 15), (2e-4, 15), (5e-5, 3)])
def test_sampling_ends_where_a_candidate_cannot_win(tmp_path: Path, beat_s: float | None, cold: int) -> None:
    device = CountingDevice(1e-4)
    effort = {"steps": [3, 7, 15], "drop_above_s": 1.0, "beat_s": beat_s, "timeout_s": 60.0}
    reply = harness.run(Workspaces(device), device, increment_candidate(tmp_path), effort, lambda *_: None)
    assert len(reply["times_s"]) == device.cold.count(True) - 1 == cold


def test_a_reply_tells_how_long_the_device_worked(tmp_path: Path) -> None:
    device = CountingDevice(1e-4)
    effort = {"steps": [3], "drop_above_s": None, "timeout_s": 60.0, "known": True}
    reply = harness.run(Workspaces(device), device, increment_candidate(tmp_path), effort, lambda *_: None)
    assert reply["device_s"] == pytest.approx(1e-4 * len(device.cold))
    assert len(device.cold) == 1 + 3 + 3, "one check, warm-up, samples"


class TestWarmth:
    """50 ms of work, and pauses of up to 100 ms."""

    def warmth(self, times_s: Sequence[float]) -> Warmth:
        ticks = iter(times_s)
        return Warmth(0.05, 0.1, clock=lambda: next(ticks))

    def test_a_device_that_has_not_worked_is_cold(self) -> None:
        assert self.warmth([1.0]).left_s() == 0.05

    def test_work_warms_it(self) -> None:
        warmth = self.warmth([1.0, 1.02, 1.02, 1.03, 1.06, 1.06])
        warmth.begin()
        warmth.end()
        assert warmth.left_s() == pytest.approx(0.03)
        warmth.begin()
        warmth.end()
        assert warmth.left_s() == 0.0

    def test_a_pause_cools_it(self) -> None:
        warmth = self.warmth([1.0, 1.06, 1.15, 1.17, 1.17, 1.18, 1.18])
        warmth.begin()
        warmth.end()
        assert warmth.left_s() == 0.0, "a short pause does not"
        assert warmth.left_s() == 0.05
        warmth.begin()
        warmth.end()
        assert warmth.left_s() == pytest.approx(0.04)


def test_launches_in_a_row_have_buffers_of_their_own(tmp_path: Path) -> None:
    """As many as the caches could hold, and no more than there are launches."""
    device, candidate = CountingDevice(1e-5), random_candidate(tmp_path)
    device.short_s = 2e-5
    for rotation_bytes, slots in [(0, 3), (5 * 32, 5), (1 << 20, 4)]:
        device.rotation_bytes = rotation_bytes
        workspaces = prepared(device, candidate)
        effort = {"samples": 3, "drop_above_s": None, "timeout_s": 60.0}
        reply = harness.run(workspaces, device, candidate, effort, lambda *_: None)
        assert reply["outcome"] == "ok"
        assert len(workspaces.of(candidate.problem).slots) == min(slots, 4), "four in a row"
