"""Collection plans: what a task's table means, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel_folders import write_kernel
from tuner_daemon.errors import SpecError
from tuner_daemon.intake.plans import PlannedTask, load_plan
from tuner_daemon.records.spec import DeviceRequest

TASK = """
[[task]]
template = "scale"
count = {count}
seed = 3
problems = [{{ n = 128 }}, {{ n = 256 }}]
{more}
"""


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    folder = tmp_path / "templates"
    write_kernel(folder / "scale")
    return folder


def planned(templates: Path, count: str = "5", more: str = "") -> list[PlannedTask]:
    plan = templates.parent / "plan.toml"
    plan.write_text(TASK.format(count=count, more=more))
    return load_plan(plan, template_dirs=[templates], default_device=DeviceRequest("cpu"))


def test_a_plan_is_a_task_per_problem_and_names_its_rows_the_same_each_time(templates: Path) -> None:
    first, second = planned(templates)
    assert [first.spec.problem["n"], second.spec.problem["n"]] == [128, 256]
    assert (first.count, first.seed, first.binaries) == (5, 3, second.binaries)
    assert first.job != second.job
    assert [task.job for task in planned(templates)] == [first.job, second.job]


def test_all_is_every_configuration(templates: Path) -> None:
    assert planned(templates, '"all"')[0].count is None


def test_values_narrow_the_space_of_a_task_and_the_kernel_stays_the_same(templates: Path) -> None:
    whole = planned(templates)[0]
    task = planned(templates, more="values = { WORK = [4, 1], USE_LDG = [true] }")[0]
    values = {p.name: p.values for p in task.spec.kernel.parameters}
    assert values["WORK"] == (1, 4)
    assert values["USE_LDG"] == (True,)
    assert values["LAYOUT"] == ("row", "col")
    assert task.spec.kernel.sha256 == whole.spec.kernel.sha256
    assert task.spec.kernel.declaration == whole.spec.kernel.declaration
    assert task.job != whole.job
    assert task.binaries != whole.binaries


@pytest.mark.parametrize(
    ("values", "problem", "key"),
    [
        ("{ WORKS = [1] }", "is no parameter of scale", "task[0].values.WORKS"),
        ("{ WORK = [1, 3] }", "has 3, which it never is", "task[0].values.WORK"),
        ("{ USE_LDG = [1] }", "has 1, which it never is", "task[0].values.USE_LDG"),
        ("{ WORK = [] }", "want at least 1", "task[0].values.WORK"),
        ("{ WORK = 1 }", "list", "task[0].values.WORK"),
    ],
)
def test_values_that_are_none_of_the_kernels_are_refused(templates: Path, values: str, problem: str, key: str) -> None:
    with pytest.raises(SpecError, match=problem) as refused:
        planned(templates, more=f"values = {values}")
    assert refused.value.key == key
