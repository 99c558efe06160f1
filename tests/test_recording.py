"""Recorded spaces that are written from a log, and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes_session import DEVICE
from tests.kernel_folders import write_kernel
from tests.rows import measurement
from tuner_daemon.errors import KernelError
from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.interfaces import Effort
from tuner_daemon.records.kernel import Kernel, Value
from tuner_daemon.records.measurement import Artifact, Failure, Measurement, Outcome, Timing
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.runners.replay import ReplayRunner
from tuner_daemon.storage.recorded import load_recorded
from tuner_daemon.storage.recording import write_recording

PROBLEM: dict[str, Value] = {"n": 1024, "alpha": 2.0, "dtype": "float32"}


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    whole = load_kernel(write_kernel(tmp_path / "scale"))
    return replace(whole, parameters=tuple(replace(p, values=p.values[:2]) for p in whole.parameters))


def rows_of(kernel: Kernel) -> list[Measurement]:
    """Every configuration, the last one failed."""
    configs = ParamSpace(kernel, PROBLEM).all()
    rows = [
        measurement(n, ran=Timing(c, (1e-5 * (n + 1), 3e-5), None, 1e-7), config=c.as_dict(), device=DEVICE)
        for n, c in enumerate(configs)
    ]
    failed = Failure(configs[-1], Outcome.WRONG_RESULT, "is wrong")
    return [*rows[:-1], replace(rows[-1], ran=failed)]


def replayed(folder: Path, configs: Sequence[Config]) -> list[Timing | Failure]:
    kernel = load_kernel(folder)
    problem = {v.name: v.default for v in kernel.problem if v.default is not None}
    spec = KernelSpec(kernel, problem, DeviceRequest("replay"))
    task, runner = Task(spec, ParamSpace(kernel, problem), DEVICE), ReplayRunner(load_recorded)
    return [runner.run(task, Artifact(c, Path(), "", c.key, 0.0), Effort(9)) for c in configs]


def test_a_space_is_replayed_as_it_was_measured(kernel: Kernel, tmp_path: Path) -> None:
    rows = rows_of(kernel)
    written = write_recording(tmp_path / "recorded", kernel, PROBLEM, rows)
    assert (written.size, written.ok, written.unsure) == (len(rows), len(rows) - 1, 0)
    recorded = load_kernel(tmp_path / "recorded")
    assert [p.values for p in recorded.parameters] == [p.values for p in kernel.parameters]
    assert [p.role for p in recorded.parameters] == [p.role for p in kernel.parameters]
    assert recorded.constraints == kernel.constraints
    assert recorded.launch == kernel.launch
    assert recorded.work == kernel.work
    assert recorded.baseline == kernel.baseline
    assert {v.name: v.default for v in recorded.problem} == PROBLEM
    again = replayed(tmp_path / "recorded", [row.ran.config for row in rows])
    for row, ran in zip(rows, again, strict=True):
        assert ran.outcome == row.ran.outcome
        if isinstance(row.ran, Timing):
            assert isinstance(ran, Timing)
            assert ran.times_s == pytest.approx(row.ran.times_s, rel=1e-7)
    space = load_recorded(tmp_path / "recorded")
    assert (space.device.name, space.device.uuid, space.device.attributes) == (DEVICE.name, "", DEVICE.attributes)


def test_a_space_with_a_gap_is_refused(kernel: Kernel, tmp_path: Path) -> None:
    rows = rows_of(kernel)
    with pytest.raises(KernelError, match=r"1 of \d+ configurations of scale have no row, such as block_size_x = 32"):
        write_recording(tmp_path / "recorded", kernel, PROBLEM, rows[1:])
    assert not (tmp_path / "recorded").exists()


def test_a_row_that_is_not_believed_is_recorded_as_disturbed_unless_it_was_measured_again(
    kernel: Kernel, tmp_path: Path
) -> None:
    rows = rows_of(kernel)
    again = replace(rows[1], job="again")
    unsound = [rows[0].key, rows[1].key]
    written = write_recording(tmp_path / "recorded", kernel, PROBLEM, [*rows, again], unsound)
    assert written.unsure == 1
    first, second = replayed(tmp_path / "recorded", [row.ran.config for row in rows[:2]])
    assert first.outcome is Outcome.DISTURBED
    assert second.outcome is Outcome.OK


def test_a_baseline_that_was_not_measured_is_none(kernel: Kernel, tmp_path: Path) -> None:
    narrow = replace(
        kernel, parameters=tuple(replace(p, values=(32,)) if "size" in p.name else p for p in kernel.parameters)
    )
    write_recording(tmp_path / "recorded", narrow, PROBLEM, rows_of(narrow))
    assert load_kernel(tmp_path / "recorded").baseline is None
