"""Which candidates share a measurement."""

from __future__ import annotations

from dataclasses import replace

from tests.fakes_session import ScriptedBuilder, ScriptedRunner, scripted_task
from tests.test_session import parts
from tuner_daemon.interfaces import Effort
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Argument
from tuner_daemon.records.measurement import Artifact, Ran
from tuner_daemon.records.task import Task
from tuner_daemon.session import tune


def test_equal_binaries_share_one_measurement() -> None:
    runner = ScriptedRunner(lambda _: 1e-3)
    task = scripted_task(measurements=12)
    tune(task, "job", parts(runner=runner, builder=ScriptedBuilder(same_binary=True)))
    assert len(runner.ran) == 12  # launched differently: block and grid follow from A and B
    alike = ScriptedRunner(lambda _: 1e-3)
    launch = type(task.spec.kernel.launch)((), (), task.spec.kernel.launch.shared_bytes)
    object.__setattr__(task.spec.kernel, "launch", launch)
    tune(task, "job", parts(runner=alike, builder=ScriptedBuilder(same_binary=True)))
    assert len(alike.ran) == 1


def test_equal_binaries_on_memory_of_other_sizes_are_no_twins() -> None:
    task = scripted_task(measurements=12)
    kernel = task.spec.kernel
    launch = replace(kernel.launch, block=(), grid=())
    scratch = Argument("s", "workspace", "float32", (Expression.parse("A"),))
    kernel = replace(kernel, launch=launch, arguments=(*kernel.arguments, scratch))
    sizes = set[int]()

    class Noting(ScriptedRunner):
        def run(self, task: Task, artifact: Artifact, effort: Effort) -> Ran:
            sizes.add(int(artifact.config["A"]))
            return super().run(task, artifact, effort)

    runner = Noting(lambda _: 1e-3)
    other = replace(task, spec=replace(task.spec, kernel=kernel))
    tune(other, "job", parts(runner=runner, builder=ScriptedBuilder(same_binary=True)))
    assert len(runner.ran) == len(sizes) > 1
