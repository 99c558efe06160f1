"""Collection: wide, unbiased, resumable."""

from __future__ import annotations

from typing import Any

from tests.fakes_session import ListLog, NearestModel, ScriptedBuilder, ScriptedRunner, UniformPart, scripted_task
from tuner_daemon.collect import collect, plan_of
from tuner_daemon.measuring import Parts
from tuner_daemon.records.measurement import Outcome


def parts(**changes: Any) -> Parts:
    given = {"runner": ScriptedRunner(), "builder": ScriptedBuilder(), "log": ListLog()}
    return Parts(**{"proposer": UniformPart(), "cost_model": NearestModel(), **given, **changes})


def test_the_baseline_and_uniform_draws_are_measured_failures_included() -> None:
    def landscape(config: Any) -> float | Outcome:
        return Outcome.CRASHED if config["A"] == 2 else 1e-3

    bench = parts(runner=ScriptedRunner(landscape))
    task = scripted_task(baseline={"A": 1, "B": 1})
    assert collect(task, "job", bench, 30, seed=1) in (30, 31)
    rows = bench.log.measurements("job")
    assert rows[0].proposal.proposed_by == "baseline"
    assert {row.proposal.proposed_by for row in rows[1:]} == {"uniform"}
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
