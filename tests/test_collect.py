"""Collection: wide, unbiased, resumable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.fakes_session import ListLog, NearestModel, ScriptedBuilder, ScriptedRunner, UniformPart, scripted_task
from tuner_daemon.collect import BATCH, PLACES, STRATUM_SHARE, Wanted, plan_of
from tuner_daemon.collect import collect as collect_all
from tuner_daemon.measuring import Parts
from tuner_daemon.records.kernel import Parameter
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Ran
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.records.task import Task


def parts(**changes: Any) -> Parts:
    given = {"runner": ScriptedRunner(), "builder": ScriptedBuilder(), "log": ListLog()}
    return Parts(**{"proposer": UniformPart(), "cost_model": NearestModel(), **given, **changes})


def collect(task: Task, job: str, bench: Parts, n: int, seed: int) -> int:
    return collect_all([Wanted(task, job)], bench, n, seed).measured


def test_the_baseline_and_uniform_draws_are_measured_failures_included() -> None:
    def landscape(config: Any) -> float | Outcome:
        return Outcome.CRASHED if config["A"] == 2 else 1e-3

    bench = parts(runner=ScriptedRunner(landscape))
    task = scripted_task(baseline={"A": 1, "B": 1})
    assert collect(task, "job", bench, 30, seed=1) in (30, 31)
    rows = bench.log.measurements("job")
    assert rows[0].proposal.proposed_by == "baseline"
    assert {row.proposal.proposed_by for row in rows[1:]} <= {"uniform", "stratum"}
    assert {row.ran.outcome for row in rows} == {Outcome.OK, Outcome.CRASHED}


def test_a_second_call_measures_only_what_is_missing() -> None:
    log = ListLog()
    task = scripted_task()
    first = collect(task, "job", parts(log=log), 20, seed=1)
    log.rows = log.rows[:7]  # a crash took the rest
    assert collect(task, "job", parts(log=log), 20, seed=1) == first - 7
    assert collect(task, "job", parts(log=log), 20, seed=1) == 0
    assert len({row.key for row in log.rows}) == len(log.rows) == first


def test_the_same_seed_draws_the_same_configurations_and_another_seed_others() -> None:
    task = scripted_task()
    assert plan_of(task, 12, 1) == plan_of(task, 12, 1)
    assert plan_of(task, 12, 1) != plan_of(task, 12, 2)


class Counting(ScriptedBuilder):
    """Keeps what it was asked to build, and what was running when it was."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def build(self, spec: KernelSpec, configs: Sequence[Config]) -> Any:
        self.asked += [config.key for config in configs]
        return super().build(spec, configs)


def test_problems_of_one_kernel_share_their_binaries() -> None:
    builder, log, efforts = Counting(), ListLog(), list[tuple[str, bool]]()

    class Noting(ScriptedRunner):
        def run(self, task: Task, artifact: Artifact, effort: Any) -> Ran:
            efforts.append((str(task.spec.problem), effort.known))
            return super().run(task, artifact, effort)

    task = scripted_task()
    other = Task(replace(task.spec, problem={**task.spec.problem, "extra": 2}), task.space, task.device)
    bench = parts(builder=builder, log=log, runner=Noting())
    done = collect_all([Wanted(task, "one"), Wanted(other, "two")], bench, 12, seed=1)
    assert done.measured == len(log.rows) == 2 * len(builder.asked)
    assert len(set(builder.asked)) == len(builder.asked)
    assert {row.ran.config.key for row in log.measurements("one")} == set(builder.asked)
    assert {row.ran.config.key for row in log.measurements("two")} == set(builder.asked)
    assert {known for problem, known in efforts if "extra" in problem} == {True}
    assert {known for problem, known in efforts if "extra" not in problem} == {False}
    builder.asked.clear()
    log.rows = [row for row in log.rows if row.job == "one"]
    again = collect_all([Wanted(task, "one"), Wanted(other, "two")], bench, 12, seed=1)
    assert again.measured == len(builder.asked) == len(log.measurements("two"))


def test_what_was_disturbed_is_run_once_more_also_at_the_end() -> None:
    shaken = Counter[str]()

    class Shaken(ScriptedRunner):
        def run(self, task: Task, artifact: Artifact, effort: Any) -> Ran:
            shaken[artifact.config.key] += 1
            if artifact.config["A"] == 2 and shaken[artifact.config.key] == 1:
                return Failure(artifact.config, Outcome.DISTURBED, "somebody else was there")
            return super().run(task, artifact, effort)

    log, task = ListLog(), scripted_task(constraints=("A <= 2", "B <= 2"))
    done = collect_all([Wanted(task, "job")], parts(log=log, runner=Shaken()), None, seed=1)
    assert done.measured == len(log.rows) == task.space.size == 4
    assert {row.ran.outcome for row in log.rows} == {Outcome.OK}
    assert sorted(shaken.values()) == [1, 1, 2, 2]


def test_without_a_number_the_space_is_measured_whole() -> None:
    log, task = ListLog(), scripted_task()
    assert collect_all([Wanted(task, "job")], parts(log=log), None, seed=1).measured == task.space.size
    assert {row.ran.config for row in log.rows} == set(task.space.all())


def test_no_value_of_a_parameter_is_rare() -> None:
    """A value that one configuration in four hundred has, in a uniform draw of a hundred."""
    task = scripted_task(constraints=("A != 1 or B == 1",), values=tuple(range(1, 21)))
    kernel = replace(task.spec.kernel, parameters=(*task.spec.kernel.parameters, Parameter("C", (1, 2, 3), "other")))
    spec = replace(task.spec, kernel=kernel)
    task = Task(spec, ParamSpace(kernel, spec.problem), task.device)
    chosen = plan_of(task, 100, seed=3)
    counts = Counter(pair for p in chosen for pair in p.config.as_dict().items())
    for parameter in kernel.parameters:
        least = max(1, int(STRATUM_SHARE * 100 / len(parameter.values)))
        valid = {v: sum(c[parameter.name] == v for c in task.space.all()) for v in parameter.values}
        for value in parameter.values:
            assert counts[parameter.name, value] >= min(least, valid[value])
    drawn = task.space.sample(100, np.random.default_rng(3))
    assert min(Counter(c["A"] for c in drawn).get(v, 0) for v in range(1, 21)) < 1, "the draw alone has rare values"
    assert sum(p.proposed_by == "uniform" for p in chosen) > 60


def test_a_baseline_outside_of_a_narrowed_space_is_measured_all_the_same() -> None:
    task = scripted_task(baseline={"A": 1, "B": 1}, values=(2, 4, 8))
    chosen = plan_of(task, None, seed=0)
    assert chosen[0].proposed_by == "baseline"
    assert chosen[0].config.as_dict() == {"A": 1, "B": 1}
    assert len(chosen) == 1 + task.space.size


def test_many_problems_are_measured_a_few_at_a_time() -> None:
    """A worker keeps the inputs of a few: none is made anew for every batch."""
    order: list[int] = []

    class Noting(ScriptedRunner):
        def run(self, task: Task, artifact: Artifact, effort: Any) -> Ran:
            order.append(int(task.spec.problem["extra"]))
            return super().run(task, artifact, effort)

    task, log = scripted_task(), ListLog()
    many = [
        Wanted(Task(replace(task.spec, problem={"extra": n}), task.space, task.device), f"job {n}")
        for n in range(2 * PLACES + 1)
    ]
    done = collect_all(many, parts(runner=Noting(), log=log), 2 * BATCH, seed=1)
    assert done.measured == len(log.rows) == len(many) * len(plan_of(task, 2 * BATCH, 1))
    assert [n // PLACES for n in order] == sorted(n // PLACES for n in order)


def test_asked_to_stop_it_measures_no_more_and_goes_on_later() -> None:
    log, task = ListLog(), scripted_task()
    whole = len(plan_of(task, 20, 1))
    seen: list[Any] = []
    bench = parts(log=log)
    stopped = collect_all([Wanted(task, "job")], bench, 20, seed=1, on_each=seen.append, stop=lambda: len(seen) > 2)
    assert stopped.measured == len(log.rows) == 3 < whole
    assert collect_all([Wanted(task, "job")], parts(log=log), 20, seed=1, stop=lambda: True).measured == 0
    assert collect_all([Wanted(task, "job")], parts(log=log), 20, seed=1).measured == whole - 3
