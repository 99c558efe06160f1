"""What refuses a cheat: with one defence taken away, the cheat that it is there for is believed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.test_device_checks import emulated, needs_gxx
from tests.zoo_kernels import CHEATS, HONEST, ONLY_IN_A_ROW, Animal, cheat
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.gcc import GccBuilder
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.measurement import Artifact
from tuner_daemon.runners import edges, plan
from tuner_daemon.worker import harness, inputs, workspace
from tuner_daemon.worker.checking import Verdict
from tuner_daemon.worker.cpu_device import CpuDevice
from tuner_daemon.worker.device_checks import DeviceChecks
from tuner_daemon.worker.inputs import DRAWS, FEW_DRAWS, contents
from tuner_daemon.worker.messages import Array, Candidate, parse_candidate
from tuner_daemon.worker.verifying import Verification
from tuner_daemon.worker.workspace import Slot, Workspace, Workspaces

DEVICE = DeviceInfo("cpu", 0, "any", "any", "any")
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def gcc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GccBuilder]:
    builder = GccBuilder(BuildCache(tmp_path_factory.mktemp("cache"), 1 << 28), jobs=2)
    yield builder
    builder.close()


def candidate_of(gcc: GccBuilder, animal: Animal, folder: Path) -> Candidate:
    """The first of its configurations."""
    task = animal.task(folder, DEVICE)
    reference = gcc.build_reference(task.spec)
    artifact = next(iter(gcc.build(task.spec, [task.space.first()])))
    assert isinstance(artifact, Artifact), artifact
    # A library of its own: one that stays loaded would keep its static variables.
    copy = replace(artifact, path=Path(shutil.copy(artifact.path, folder / "candidate.so")))
    edge = edges.edge(task.spec, copy, reference)
    return parse_candidate({**plan.at_problem(task.spec, copy, reference), "floor_s": 0.0, "edge": edge})


def run(candidate: Candidate, device: CpuDevice | None = None, workspaces: Workspaces | None = None) -> dict[str, Any]:
    device = device or CpuDevice(0)
    effort = {"samples": 7, "drop_above_s": None, "timeout_s": 60.0}
    reply = harness.run(workspaces or Workspaces(device), device, candidate, effort, lambda *_: None)
    assert isinstance(reply, dict)
    return reply


# Each defence, and the cheat that needs it


def without_stale_outputs(patch: pytest.MonkeyPatch) -> None:
    def poison(slot: Slot) -> None:
        for name, buffer in slot.buffers.items():
            if slot.holds is not None and name not in slot.holds:
                buffer.fill(0xFF)

    patch.setattr(Slot, "restore", poison)


def without_common_heads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inputs, "HEAD", 10**9)
    without_odd_sizes(patch)  # where a set of the same seed begins as at the problem itself


def without_unseen_addresses(patch: pytest.MonkeyPatch) -> None:
    after = Verification.after
    patch.setattr(
        Verification, "after", lambda self, *, in_a_row, thorough=True: after(self, in_a_row=in_a_row, thorough=False)
    )


def without_launches_in_a_row(patch: pytest.MonkeyPatch) -> None:
    after = Verification.after

    def one_at_a_time(self: Verification, *, in_a_row: bool, thorough: bool = True) -> None:
        after(self, in_a_row=False, thorough=thorough)

    patch.setattr(Verification, "after", one_at_a_time)


def without_odd_sizes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(harness, "check_edge", lambda *_: None)


def without_zeros(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(workspace, "DRAWS", tuple(replace(draw, zeros="none") for draw in DRAWS))


def without_looking_at_timed_launches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Verification, "look", lambda *_: None)
    patch.setattr(harness.Trial, "check_last", lambda *_, **__: None)


def without_guards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(workspace, "first_broken", lambda *_: None)


def without_a_tolerance(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tuner_daemon.worker.verifying.judge", lambda *_: Verdict(True, 0.0, 0.0))


DEFENCES: dict[str, Patch] = {
    "stale_output": without_stale_outputs,
    "memo_by_first_element": without_common_heads,
    "new_pointer_after_the_first_calls": without_unseen_addresses,
    "fixed_shape": without_odd_sizes,
    "no_remainder": without_odd_sizes,
    "skips_if_the_first_is_zero": without_zeros,
    "skips_zero_vectors": without_zeros,
    "past_the_end_when_timed": without_looking_at_timed_launches,
    "nothing_after_12_calls": without_looking_at_timed_launches,
    "before_the_start": without_guards,
    "far_past_the_end": without_guards,
    "half_operands": without_a_tolerance,
}


@pytest.mark.parametrize("name", DEFENCES)
def test_without_its_defence_a_cheat_is_believed(
    gcc: GccBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    candidate = candidate_of(gcc, cheat(name), tmp_path)
    refused = run(candidate)
    assert refused["outcome"] == "wrong_result"
    DEFENCES[name](monkeypatch)
    assert run(candidate)["outcome"] == "ok"


# Launches in a row, and a device that compares by itself


class ShortLaunches(CpuDevice):
    """Times several launches at a time, as a GPU does."""

    short_s = 1e-3


@needs_gxx
@pytest.mark.parametrize(
    "name", [*ONLY_IN_A_ROW, "stale_output", "memo_by_pointer_and_first_elements", "skips_zero_rows"]
)
def test_what_cheats_in_a_row_is_refused(gcc: GccBuilder, tmp_path: Path, name: str, emulated_checks: Path) -> None:
    device = ShortLaunches(0)
    workspaces = Workspaces(device)
    workspaces.checks = DeviceChecks(device, emulated_checks)
    reply = run(candidate_of(gcc, cheat(name), tmp_path), device, workspaces)
    assert reply["outcome"] == CHEATS[name][0].value, reply


@needs_gxx
@pytest.mark.parametrize("animal", [HONEST[0], HONEST[4], HONEST[-1]], ids=lambda animal: animal.name)
def test_what_is_honest_in_a_row_is_not(gcc: GccBuilder, tmp_path: Path, animal: Animal, emulated_checks: Path) -> None:
    device = ShortLaunches(0)
    workspaces = Workspaces(device)
    workspaces.checks = DeviceChecks(device, emulated_checks)
    reply = run(candidate_of(gcc, animal, tmp_path), device, workspaces)
    assert reply["outcome"] == "ok", reply


@needs_gxx
def test_checked_one_at_a_time_such_a_cheat_is_believed(
    gcc: GccBuilder, tmp_path: Path, emulated_checks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the test above. It is right where a launch finds its output unwritten."""
    device = ShortLaunches(0)
    workspaces = Workspaces(device)
    workspaces.checks = DeviceChecks(device, emulated_checks)
    without_launches_in_a_row(monkeypatch)
    candidate = candidate_of(gcc, cheat("soon_after_another_on_known_data"), tmp_path)
    assert run(candidate, device, workspaces)["outcome"] == "ok"


def test_one_at_a_time_such_cheats_have_honest_times(gcc: GccBuilder, tmp_path: Path) -> None:
    for name in ONLY_IN_A_ROW:
        assert run(candidate_of(gcc, cheat(name), tmp_path / name))["outcome"] == "ok"


@pytest.fixture(scope="module")
def emulated_checks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emulated(tmp_path_factory.mktemp("checks"))


# Input sets


def test_the_first_sets_have_three_seeds_two_distributions_and_zeros() -> None:
    few = DRAWS[:FEW_DRAWS]
    assert len({draw.seed for draw in few}) == 3
    assert {draw.distribution for draw in few} == {"normal", "uniform"}
    assert [draw.zeros for draw in few] == ["none", "begin", "none"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64", "int32", "bool"])
def test_sets_begin_alike_and_differ_afterwards(dtype: str) -> None:
    array = Array("x", "input", dtype, (20, 50), "normal")
    made = [contents(array, draw, 0, base=7).reshape(-1) for draw in DRAWS]
    alike = [values for values, draw in zip(made, DRAWS, strict=True) if draw.alike]
    assert len({values[: inputs.HEAD].tobytes() for values in alike}) == 1
    assert len({values.tobytes() for values in alike}) == (3 if dtype == "bool" else 5)
    zeros = {draw.zeros: values for values, draw in zip(made, DRAWS, strict=True)}
    assert not zeros["begin"][:125].any()
    assert not zeros["begin"][-1]
    assert zeros["begin"][125:-1].any()
    assert not zeros["all"].any()


def test_every_worker_draws_its_own_numbers_and_constants_are_the_same_in_every_set() -> None:
    array = Array("x", "input", "float32", (100,), "normal")
    assert contents(array, DRAWS[0], 0, 1).tobytes() != contents(array, DRAWS[0], 0, 2).tobytes()
    assert inputs.fresh_seed() != inputs.fresh_seed()
    constant = replace(array, kind="constant")
    assert len({contents(constant, draw, 0, 1).tobytes() for draw in DRAWS}) == 1


# Where candidates are launched


def test_one_set_is_held_back_until_timing_is_over(gcc: GccBuilder, tmp_path: Path) -> None:
    candidate = candidate_of(gcc, HONEST[0], tmp_path)
    space = Workspace(CpuDevice(0), candidate.problem)
    held_back = set()

    class Checked(Verification):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            self.shown: list[int] = []

        def verify(self, slot: Slot) -> None:
            self.shown.append(slot.number)

    for _ in range(40):
        verification = Checked(space.device, space, lambda _: None, lambda _: 0.0, {})
        verification.before()
        (unseen,) = set(range(len(space.sets))) - set(verification.shown)
        assert space.sets[unseen].alike
        held_back.add(unseen)
        assert space.sets[verification.shown[0]].alike, "a candidate that is launched once is not launched on zeros"
        timed = {verification.placed(position).number for position in range(100)}
        assert timed <= {n for n in verification.shown if space.sets[n].alike}, "as a kernel meets them in earnest"
    assert len(held_back) > 1


def test_the_spare_slot_lies_where_no_timed_launch_does(gcc: GccBuilder, tmp_path: Path) -> None:
    space = Workspace(CpuDevice(0), candidate_of(gcc, HONEST[0], tmp_path).problem)
    assert space.spare is not None
    timed = {buffer.address for slot in space.slots for buffer in slot.buffers.values() if hasattr(buffer, "address")}
    spare = {buffer.address for buffer in space.spare.buffers.values() if hasattr(buffer, "address")}
    assert len(timed) == len(space.slots) * len(spare) > 0
    assert not timed & spare


def test_timed_launches_are_looked_at_now_and_then(gcc: GccBuilder, tmp_path: Path) -> None:
    space = Workspace(CpuDevice(0), candidate_of(gcc, HONEST[0], tmp_path).problem)
    looked = []

    class Counting(Verification):
        def verify(self, slot: Slot) -> None:
            looked.append(slot)

    def sampled(spent_s: float) -> list[int]:
        """Samples that were looked at, of seven."""
        verification, numbers = Counting(space.device, space, lambda _: None, lambda _: 0.0, {}), []
        for number in range(7):
            before = len(looked)
            verification.look(space.slots, spent_s)
            numbers += [number] * (len(looked) - before)
        return numbers

    costly = [sampled(1e-12) for _ in range(300)]
    assert {len(numbers) for numbers in costly} == {0, 1}, "most of the time at one, and no more where it costs"
    assert len({number for numbers in costly for number in numbers}) > 3, "which one cannot be known"
    for _ in range(30):
        numbers = sampled(1.0)
        assert numbers == list(range(7 - len(numbers), 7)), "once there was one, at all"
