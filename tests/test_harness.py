"""How often a candidate is launched, and what for."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.increment import increment_candidate, random_candidate
from tuner_daemon.worker import harness
from tuner_daemon.worker.cpu_device import CpuBuffer, CpuDevice, CpuLoaded
from tuner_daemon.worker.device import RefusedError
from tuner_daemon.worker.messages import Array, Candidate
from tuner_daemon.worker.verifying import Verification
from tuner_daemon.worker.warmth import Warmth
from tuner_daemon.worker.workspace import Slot, Workspaces


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


@pytest.mark.parametrize(("launch_s", "drop_above_s", "launches"), [(2e-2, 1e-2, 1), (1e-2, 5e-3, 2), (1e-4, 2e-5, 2)])
def test_a_hopeless_candidate_is_launched_once_or_twice_where_the_first_launch_tells_little(
    tmp_path: Path, launch_s: float, drop_above_s: float, launches: int
) -> None:
    device, candidate = CountingDevice(launch_s), random_candidate(tmp_path)
    effort = {"samples": 5, "drop_above_s": drop_above_s, "timeout_s": 60.0}
    reply = harness.run(prepared(device, candidate), device, candidate, effort, lambda *_: None)
    assert (reply["outcome"], reply["times_s"], reply["warm_median_s"]) == ("ok", [launch_s], None)
    assert (device.cold, device.launches) == ([True] * launches, 0)


class LoadingDevice(CountingDevice):
    """The first launch of a program takes longer: the driver loads what is launched first."""

    def __init__(self, launch_s: float, extra_s: float) -> None:
        super().__init__(launch_s)
        self.extra_s = extra_s

    def time(self, calls: Sequence[Any], *, cold: bool) -> float:
        return super().time(calls, cold=cold) + (self.extra_s if len(self.cold) == 1 else 0.0)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("single", [False, True], ids=["seven sets", "one set"])
@pytest.mark.parametrize("launch_s", [5e-5, 1.2e-3])
def test_what_only_the_first_launch_takes_gives_no_candidate_up(
    tmp_path: Path, launch_s: float, single: bool, known: bool
) -> None:
    candidate = increment_candidate(tmp_path) if single else random_candidate(tmp_path)
    limits = {"drop_above_s": 3 * launch_s, "beat_s": 1.02 * launch_s, "timeout_s": 60.0, "known": known}
    device = LoadingDevice(launch_s, 2.9e-3)
    reply = harness.run(prepared(device, candidate), device, candidate, {"samples": 5, **limits}, lambda *_: None)
    assert reply["times_s"] == [launch_s] * 5
    slow = LoadingDevice(launch_s, 2.9e-3)
    slow.launch_s = 20 * launch_s  # negative control: one that is slow in earnest
    reply = harness.run(prepared(slow, candidate), slow, candidate, {"samples": 5, **limits}, lambda *_: None)
    assert len(reply["times_s"]) < 5


class FirstInputs(CountingDevice):
    """Keeps what the first argument held at each timed launch."""

    def __init__(self) -> None:
        super().__init__(2e-3)
        self.given: list[bytes] = []

    def time(self, calls: Sequence[Any], *, cold: bool) -> float:
        self.given += [ctypes.string_at(call.arguments[0].value, 16) for call in calls]
        return super().time(calls, cold=cold)


def test_candidates_of_a_race_are_timed_on_the_same_inputs(tmp_path: Path) -> None:
    orders = set()
    for _ in range(20):
        device, candidate = FirstInputs(), random_candidate(tmp_path)
        race = harness.Race(prepared(device, candidate), device, [candidate, candidate], lambda *_: None)
        assert [r["outcome"] for r in race.run(6, 60.0)["results"]] == ["ok", "ok"]
        timed = device.given[-12:]
        assert timed[0::2] == timed[1::2]
        orders.add(tuple(timed))
    assert len(orders) > 1, "an order that nobody can know"


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


class Cooling(CountingDevice):
    """Is cold again when a candidate has been compared with the reference, which may take long."""

    def __init__(self) -> None:
        super().__init__(2e-3)
        self.is_warm = False
        self.timed_warm: list[bool] = []

    def warm_up(self) -> None:
        self.is_warm = True

    def time(self, calls: Sequence[Any], *, cold: bool) -> float:
        self.timed_warm.append(self.is_warm)
        return super().time(calls, cold=cold)


def test_times_of_checks_are_of_a_warm_device_however_long_comparing_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, candidate = Cooling(), random_candidate(tmp_path)
    verify = Verification.verify

    def cooling(self: Verification, slot: Slot) -> None:
        device.is_warm = False
        verify(self, slot)

    monkeypatch.setattr(Verification, "verify", cooling)
    monkeypatch.setattr(Verification, "look", lambda *_: None)  # sampling is not to be warmed up for again and again
    effort = {"samples": 3, "drop_above_s": None, "timeout_s": 60.0}
    assert harness.run(prepared(device, candidate), device, candidate, effort, lambda *_: None)["outcome"] == "ok"
    assert device.timed_warm == [True] * (6 + 3)


class KeepingTrack(CpuDevice):
    """Of the buffers that there are."""

    def __init__(self) -> None:
        super().__init__(0)
        self.buffers: list[weakref.ref[CpuBuffer]] = []

    def allocate(self, nbytes: int) -> CpuBuffer:
        buffer = super().allocate(nbytes)
        self.buffers.append(weakref.ref(buffer))
        return buffer

    @property
    def alive(self) -> int:
        return sum(buffer() is not None for buffer in self.buffers)


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("entry", ["increment", "absent"])
@pytest.mark.usefixtures("no_garbage_collector")
def test_scratch_memory_is_given_back_with_its_candidate(tmp_path: Path, entry: str) -> None:
    """A search of a thousand candidates must not wait for the garbage collector to have room for the next one."""
    device, candidate = KeepingTrack(), random_candidate(tmp_path)
    workspaces = Workspaces(device)
    workspaces.of(candidate.problem)
    before = device.alive
    scratch = (Array("s", "workspace", "float32", (1 << 20,), "zeros"),)
    greedy = replace(candidate, program=replace(candidate.program, entry=entry, scratch=scratch))
    effort = {"samples": 3, "drop_above_s": None, "timeout_s": 60.0}
    reply = harness.run(workspaces, device, greedy, effort, lambda *_: None)
    assert reply["outcome"] == ("ok" if entry == "increment" else "launch_failed")
    assert len(device.buffers) == before + (entry == "increment")
    assert device.alive == before


def test_a_constant_that_does_not_fit_is_the_candidates_fault_and_unloads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unloaded: list[int] = []

    class Narrow(CpuLoaded):
        def set_constant(self, name: str, data: Any) -> bool:
            raise RefusedError(f"the constant {name} holds 4 bytes, want {data.nbytes}")

        def unload(self) -> None:
            unloaded.append(1)
            super().unload()

    candidate = increment_candidate(tmp_path)
    constant = Array("c", "constant", "float32", (4,), "arange")
    problem = replace(candidate.problem, arguments=(*candidate.problem.arguments, constant))
    device = CpuDevice(0)
    monkeypatch.setattr(device, "load", Narrow)
    effort = {"samples": 3, "drop_above_s": None, "timeout_s": 60.0}
    reply = harness.run(Workspaces(device), device, replace(candidate, problem=problem), effort, lambda *_: None)
    assert (reply["outcome"], reply["detail"]) == ("launch_failed", "the constant c holds 4 bytes, want 16")
    assert unloaded == [1]


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
