"""Device memory goes back as soon as nobody needs it, and not when the garbage collector comes by."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from weakref import WeakSet

import pytest

from tests.increment import increment_candidate, random_candidate
from tuner_daemon.worker import harness
from tuner_daemon.worker.cpu_device import CpuBuffer, CpuDevice
from tuner_daemon.worker.device import NoMemoryError
from tuner_daemon.worker.messages import Array, Candidate, Edge
from tuner_daemon.worker.workspace import Workspaces

EFFORT = {"samples": 3, "drop_above_s": None, "timeout_s": 60.0}
SCRATCH = Array("scratch", "workspace", "float32", (1000,), "zeros")


class SmallDevice(CpuDevice):
    """Has ``most`` bytes."""

    def __init__(self, most: int = 1 << 30) -> None:
        super().__init__(0)
        self.most = most
        self._buffers: WeakSet[CpuBuffer] = WeakSet()

    @property
    def used(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers)

    def free_bytes(self) -> int:
        return self.most - self.used

    def allocate(self, nbytes: int) -> CpuBuffer:
        if nbytes > self.most - self.used:
            raise NoMemoryError(f"{nbytes} bytes of {self.most - self.used}")
        buffer = super().allocate(nbytes)
        self._buffers.add(buffer)
        return buffer


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def with_scratch(candidate: Candidate) -> Candidate:
    program = replace(candidate.program, scratch=(SCRATCH,))
    return replace(candidate, program=program, edge=Edge(program, candidate.problem, "n = 4"))


def wrong(folder: Path) -> Candidate:
    """Its last element is not what is stored."""
    candidate = increment_candidate(folder)
    stored = folder / "wrong.npy"
    stored.write_bytes((folder / "out.npy").read_bytes()[:-4] + b"\0\0\0\0")
    return replace(candidate, problem=replace(candidate.problem, key="wrong", stored={"y": stored}))


@pytest.mark.parametrize(
    ("make", "outcome"), [(increment_candidate, "ok"), (random_candidate, "ok"), (wrong, "wrong_result")]
)
def test_a_candidate_leaves_none_of_its_own_behind(
    tmp_path: Path, make: Callable[[Path], Candidate], outcome: str
) -> None:
    device, candidate = SmallDevice(), with_scratch(make(tmp_path))
    workspaces = Workspaces(device)
    workspaces.of(candidate.problem)
    before = device.used
    reply = harness.run(workspaces, device, candidate, EFFORT, lambda *_: None)
    assert (reply["outcome"], device.used) == (outcome, before), reply


def test_nor_do_those_that_race(tmp_path: Path) -> None:
    device, candidate = SmallDevice(), with_scratch(random_candidate(tmp_path))
    workspaces = Workspaces(device)
    workspaces.of(candidate.problem)
    before = device.used
    reply = harness.Race(workspaces, device, [candidate, candidate], lambda *_: None).run(3, 60.0)
    assert [result["outcome"] for result in reply["results"]] == ["ok", "ok"]
    assert device.used == before


def test_a_problem_has_all_the_memory_that_there_is(tmp_path: Path) -> None:
    """That of other problems, and of the attempt to do without."""
    candidate = random_candidate(tmp_path)
    arrays_bytes, scratch_bytes = 32, 4000
    needy = replace(candidate.problem, key="needy", reference=with_scratch(candidate).program)
    for missing_bytes in (0, 1):
        workspaces = Workspaces(SmallDevice(arrays_bytes + scratch_bytes - missing_bytes))
        workspaces.of(candidate.problem)
        if missing_bytes:
            with pytest.raises(NoMemoryError):
                workspaces.of(needy)
        else:
            workspaces.of(needy)


@pytest.mark.parametrize(("slots", "most"), [(5, 1 << 20), (4, 4 * 32 + 31)])
def test_slots_are_as_many_as_there_is_memory_for_even_if_others_take_it(
    tmp_path: Path, slots: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fourth is the spare one, the fifth and later ones are for launches in a row."""
    device = SmallDevice()
    device.rotation_bytes = 1 << 20
    workspace = Workspaces(device).of(random_candidate(tmp_path).problem)
    assert len(workspace.every_slot) == 4
    device.most = most  # from now on
    monkeypatch.setattr(device, "free_bytes", lambda: 1 << 30)
    workspace.widen(4)
    assert len(workspace.every_slot) == slots
