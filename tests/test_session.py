"""One job, against a scripted landscape."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes_session import (
    ListLog,
    NearestModel,
    ScriptedBuilder,
    ScriptedRunner,
    UniformPart,
    scripted_task,
    valley,
)
from tuner_daemon.answers import NO_MODEL
from tuner_daemon.errors import DeviceError, JobInterruptedError, TuningError
from tuner_daemon.measuring import Parts
from tuner_daemon.plan import Plan
from tuner_daemon.progress import Progress
from tuner_daemon.records.device import Clocks
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.measurement import Failure, Measurement, Outcome, Proposal, Timing
from tuner_daemon.records.result import Verdict
from tuner_daemon.records.space import Config
from tuner_daemon.session import holds, shortlist, tune
from tuner_daemon.verdict import judge

SLOW = {"A": 1, "B": 128}


def parts(landscape: Callable[[Config], float | Outcome] = valley, **changes: Any) -> Parts:
    builder, runner = ScriptedBuilder(landscape), ScriptedRunner(landscape)
    # A clock that ticks once a look: how busy the machine is must not decide when the baseline is timed again.
    ticks = itertools.count()
    given = {
        "clock": lambda: 1e-3 * next(ticks),
        "proposer": UniformPart(),
        "cost_model": NearestModel(),
        "builder": builder,
        "runner": runner,
    }
    return Parts(**{**given, "log": ListLog(), "host": "here", **changes})


def test_the_winner_is_faster_and_the_log_has_every_measurement() -> None:
    bench = parts()
    result = tune(scripted_task(baseline=SLOW), "job", bench)
    assert result.verdict is Verdict.FASTER
    assert valley(result.best.config) <= 1.7e-3
    assert result.baseline.config.as_dict() == SLOW
    assert result.best.speedup == pytest.approx(valley(result.baseline.config) / valley(result.best.config), rel=0.05)
    assert result.measured == len(bench.log.measurements("job")) == 32
    assert sum(result.outcomes.values()) == 32


def test_without_a_model_it_works_from_its_own_measurements_and_says_so() -> None:
    model = NearestModel()
    result = tune(scripted_task(), "job", parts(cost_model=model))
    assert NO_MODEL in result.notes
    assert result.models == {"policy": "", "cost_model": ""}
    assert model.fits >= 4
    named = tune(scripted_task(), "job", parts(policy_version="v1"))
    assert NO_MODEL not in named.notes


def test_a_model_that_learns_beats_one_that_does_not() -> None:
    class Blind(NearestModel):
        def predict(self, task: Any, configs: Any) -> Any:
            return super().predict(task, configs) * 0

    def mean_time(model: NearestModel) -> float:
        bench = parts(cost_model=model)
        tune(scripted_task(baseline=SLOW, measurements=20), "job", bench)
        times = [m.ran.median_s for m in bench.log.measurements("job")[1:] if isinstance(m.ran, Timing)]
        return sum(times) / len(times)

    assert mean_time(NearestModel()) < 0.9 * mean_time(Blind())


class Satisfied(NearestModel):
    """Predicts that everything is slow, and is sure of it."""

    def predict(self, task: Any, configs: Any) -> Any:
        return super().predict(task, configs) * 0 + 1.0

    def spread(self, task: Any, configs: Any) -> Any:
        return super().predict(task, configs) * 0 + 1e-3


def test_a_search_with_nothing_left_to_gain_ends_early_and_says_so() -> None:
    result = tune(scripted_task(measurements=32), "job", parts(cost_model=Satisfied()), plan=Plan(stop_after=9))
    assert 9 <= result.measured < 32
    assert any(note.startswith("stopped early") for note in result.notes)
    for plan, model in ((Plan(stop_after=None), Satisfied()), (Plan(stop_after=9), NearestModel())):
        whole = tune(scripted_task(measurements=32), "job", parts(cost_model=model), plan=plan)
        assert whole.measured == 32
        assert not any(note.startswith("stopped early") for note in whole.notes)


def test_the_budget_of_measurements_is_kept_and_nothing_is_measured_twice() -> None:
    runner = ScriptedRunner()
    result = tune(scripted_task(measurements=13), "job", parts(runner=runner))
    assert result.measured == 13
    assert len(set(runner.ran)) == len(runner.ran) == 13


def test_the_budget_of_seconds_ends_the_search() -> None:
    result = tune(scripted_task(seconds=1e-9), "job", parts())
    assert result.measured == 1  # the baseline
    assert result.verdict is Verdict.SAME


def test_a_small_space_is_exhausted_and_the_job_ends() -> None:
    task = scripted_task(constraints=("A * B <= 2",), measurements=500)
    assert task.space.size == 3
    assert tune(task, "job", parts()).measured == 3


def test_an_interrupted_job_goes_on_from_the_log() -> None:
    stop, log = threading.Event(), ListLog()
    first = ScriptedRunner(on_run=lambda n: stop.set() if n == 12 else None)
    with pytest.raises(JobInterruptedError):
        tune(scripted_task(), "job", parts(runner=first, log=log), stop=stop)
    assert len(log.rows) == len(first.ran) == 12  # not the whole round
    second = ScriptedRunner()
    result = tune(scripted_task(), "job", parts(runner=second, log=log))
    assert result.measured == 32
    assert not set(first.ran) & set(second.ran)
    assert len(log.rows) == len({row.key for row in log.rows}) == 32


def test_one_bad_candidate_costs_one_row() -> None:
    bad = {1: Outcome.CRASHED, 2: Outcome.TIMED_OUT, 4: Outcome.BUILD_FAILED, 8: Outcome.WRONG_RESULT}

    def landscape(config: Config) -> float | Outcome:
        return bad.get(int(config["A"]), valley(config))

    bench = parts(landscape)
    result = tune(scripted_task(measurements=36), "job", bench)
    failures = [m for m in bench.log.measurements("job") if m.ran.outcome is not Outcome.OK]
    assert set(result.outcomes) == {"ok", *bad.values()}
    assert all(not hasattr(m.ran, "times_s") for m in failures)
    assert result.best.config["A"] == 16


def test_a_baseline_that_fails_is_replaced_by_the_first_that_runs_with_a_note() -> None:
    def landscape(config: Config) -> float | Outcome:
        return Outcome.CRASHED if config.as_dict() == SLOW else valley(config)

    result = tune(scripted_task(baseline=SLOW), "job", parts(landscape))
    assert result.baseline.config.as_dict() != SLOW
    assert any("the baseline failed (crashed" in note for note in result.notes)


def test_a_kernel_that_never_runs_ends_early_with_the_reason() -> None:
    runner = ScriptedRunner(lambda _: Outcome.WRONG_RESULT)
    with pytest.raises(TuningError, match=r"no configuration gave right results \(.*wrong_result.*scripted"):
        tune(scripted_task(measurements=1000), "job", parts(runner=runner))
    assert len(runner.ran) < 36


def test_a_flat_landscape_is_not_called_faster() -> None:
    result = tune(scripted_task(baseline=SLOW), "job", parts(lambda _: 1e-3))
    assert result.verdict is not Verdict.FASTER
    assert result.best.config == result.baseline.config


def test_a_device_with_its_own_cores_runs_while_the_next_round_is_chosen_and_built() -> None:
    def built_while_running(shares_cores: bool) -> list[bool]:
        builder, seen = ScriptedBuilder(), list[bool]()

        def on_run(n: int) -> None:
            if n in (2, 10):  # the first of a round of eight
                before, deadline = n - 1 + 8, time.monotonic() + (0.1 if shares_cores else 5.0)
                while len(builder.built) <= before and time.monotonic() < deadline:
                    time.sleep(0.001)
                seen.append(len(builder.built) > before)

        runner = ScriptedRunner(shares_cores=shares_cores, on_run=on_run)
        tune(scripted_task(measurements=25), "job", parts(builder=builder, runner=runner))
        return seen

    assert built_while_running(False) == [True, True]
    assert built_while_running(True) == [False, False]


def test_a_seed_decides_what_is_measured_however_long_running_takes() -> None:
    def measured(pause_s: float) -> list[str]:
        runner, ticks = ScriptedRunner(shares_cores=False, on_run=lambda _: time.sleep(pause_s)), iter(range(100_000))
        bench = parts(runner=runner, clock=lambda: float(next(ticks)))
        tune(scripted_task(measurements=28, seconds=1e6), "job", bench)
        return [row.ran.config.key for row in bench.log.measurements("job")]

    assert measured(0.0) == measured(0.005)


def test_an_error_while_choosing_beside_a_round_ends_the_job() -> None:
    class Breaking(UniformPart):
        def propose(self, task: Any, history: Any, n: int) -> Any:
            if len(history) > 8:
                raise TuningError("no more")
            return super().propose(task, history, n)

    with pytest.raises(TuningError, match="no more"):
        tune(scripted_task(), "job", parts(runner=ScriptedRunner(shares_cores=False), proposer=Breaking()))


def test_progress_shows_built_measured_failed_incumbent_and_speed_up() -> None:
    seen: list[Progress] = []
    tune(scripted_task(baseline=SLOW), "job", parts(), observe=seen.append)
    assert [p.phase for p in seen[:1]] == ["baseline"]
    assert seen[-1].phase == "final"
    assert seen[-1].measured == seen[-1].built == 32
    assert seen[-1].speedup is not None
    assert seen[-1].speedup > 1
    assert [p.measured for p in seen[:-1]] == list(range(1, 33))


def test_the_shortlist_takes_the_least_predicted_and_keeps_one_place_for_exploration() -> None:
    task = scripted_task()
    configs = task.space.all()[:6]
    who = ["policy", "policy", "uniform", "uniform", "explore", "explore"]
    scored = [Proposal(c, w, float(i)) for i, (c, w) in enumerate(zip(configs, who, strict=True))]
    assert [p.proposed_by for p in shortlist(scored, 3)] == ["policy", "policy", "explore"]
    assert [p.config for p in shortlist(scored[::-1], 1)] == [configs[0]]


def test_the_plan_bounds_the_finalists() -> None:
    entrants: list[int] = []

    class Counting(ScriptedRunner):
        def race(self, task: Any, artifacts: Any, blocks: int, timeout_s: float) -> Any:
            entrants.append(len(artifacts))
            assert blocks == 4
            return super().race(task, artifacts, blocks, timeout_s)

    quiet = Counting(lambda config: 1e-3 + 1e-9 * int(config["A"]), noise=1e-4)
    tune(scripted_task(), "job", parts(runner=quiet), plan=Plan(finalists=2, final_blocks=12))
    assert entrants == [4, 4, 4]  # three heats of the baseline under two names, and two


def test_a_noisy_device_gets_more_heats_and_what_is_clearly_behind_leaves() -> None:
    entrants: list[int] = []

    class Counting(ScriptedRunner):
        def race(self, task: Any, artifacts: Any, blocks: int, timeout_s: float) -> Any:
            entrants.append(len(artifacts))
            return super().race(task, artifacts, blocks, timeout_s)

    tune(scripted_task(), "job", parts(runner=Counting(noise=0.02)), plan=Plan(final_share=1e3))
    assert entrants[0] == 2 + 8
    assert entrants == sorted(entrants, reverse=True)
    assert entrants[-1] < 10
    assert len(entrants) == 12


def test_a_finalist_that_fails_in_one_heat_is_out_and_the_others_keep_all_their_samples() -> None:
    class Fickle(ScriptedRunner):
        heats = 0

        def race(self, task: Any, artifacts: Any, blocks: int, timeout_s: float) -> Any:
            self.heats += 1
            ran = super().race(task, artifacts, blocks, timeout_s)
            if self.heats == 2:
                ran[2] = Failure(ran[2].config, Outcome.WRONG_RESULT, "once")
            return ran

    judged: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:

        def seen(*given: Any) -> Any:
            judged.append(given)
            return judge(*given)

        patch.setattr("tuner_daemon.session.judge", seen)
        tune(scripted_task(), "job", parts(runner=Fickle(lambda _: 1e-3)), plan=Plan(finalists=4, final_share=0))
    own, twin, finalists = judged[0]
    assert own.shape == twin.shape == (30,)
    assert finalists.shape == (3, 30)


def test_a_daemon_that_is_asked_to_stop_does_not_wait_for_the_whole_final_round() -> None:
    stop = threading.Event()

    class Stopping(ScriptedRunner):
        heats = 0

        def race(self, task: Any, artifacts: Any, blocks: int, timeout_s: float) -> Any:
            self.heats += 1
            stop.set()
            return super().race(task, artifacts, blocks, timeout_s)

    runner = Stopping()
    with pytest.raises(JobInterruptedError):
        tune(scripted_task(), "job", parts(runner=runner), stop=stop)
    assert runner.heats == 1


def test_rows_of_another_clock_mode_count_as_not_measured() -> None:
    log = ListLog()
    tune(scripted_task(measurements=8), "job", parts(runner=ScriptedRunner(clock_mode="free"), log=log))
    same, other = ScriptedRunner(clock_mode="free"), ScriptedRunner(clock_mode="locked")
    tune(scripted_task(measurements=8), "job", parts(runner=same, log=ListLog(list(log.rows))))
    assert same.ran == []
    result = tune(scripted_task(measurements=8), "job", parts(runner=other, log=log))
    assert len(other.ran) == result.measured == 8
    assert result.clocks.mode == "locked"


def test_failures_hold_at_any_clock_but_disturbances_do_not() -> None:
    def row(ran: Any) -> Measurement:
        return replace(next(iter(log.rows)), ran=ran)

    log = ListLog()
    tune(scripted_task(measurements=1), "job", parts(log=log))
    config = log.rows[0].ran.config
    locked = Clocks(mode="locked")
    assert holds(row(Failure(config, Outcome.BUILD_FAILED, "")), "locked")
    assert not holds(row(Failure(config, Outcome.DISTURBED, "", clocks=locked)), "locked")
    assert not holds(row(Failure(config, Outcome.TIMED_OUT, "")), "locked")
    assert holds(row(Failure(config, Outcome.TIMED_OUT, "", clocks=locked)), "locked")


def test_when_the_clocks_are_let_go_under_way_the_job_goes_on_without_mixing() -> None:
    runner = ScriptedRunner(clock_mode="locked")

    def let_go(n: int) -> None:
        if n == 10:
            runner.clock_mode = "free"

    runner.on_run = let_go
    bench = parts(runner=runner)
    result = tune(scripted_task(baseline=SLOW), "job", bench)
    rows = bench.log.measurements("job")
    assert {row.ran.clocks.mode for row in rows} == {"locked", "free"}
    assert result.clocks.mode == "free"
    baselines = [row for row in rows if row.config == SLOW]
    assert [row.ran.clocks.mode for row in baselines] == ["locked", "free"]
    later = rows[rows.index(baselines[1]) + 1 :]
    baseline = baselines[1].ran
    assert isinstance(baseline, Timing)
    assert [row.baseline_median_s for row in later] == pytest.approx([baseline.median_s] * len(later), rel=0.03)
    assert result.measured == sum(row.ran.clocks.mode == "free" for row in rows)


def test_rows_of_another_device_or_driver_do_not_count_as_measured() -> None:
    log = ListLog()
    tune(scripted_task(), "job", parts(log=log))
    elsewhere = replace(log.rows[0].device, uuid="another")
    log.rows = [replace(row, device=elsewhere) for row in log.rows]
    again = ScriptedRunner()
    result = tune(scripted_task(), "job", parts(log=log, runner=again))
    assert len(again.ran) == result.measured == 32


def test_a_candidate_whose_launch_has_no_value_costs_one_row() -> None:
    task = scripted_task()
    launch = replace(task.spec.kernel.launch, grid=(Expression.parse("128 // (A - 2)"),))
    task = replace(task, spec=replace(task.spec, kernel=replace(task.spec.kernel, launch=launch)))
    bench = parts()
    assert tune(task, "job", bench).outcomes["launch_failed"] >= 1
    failed = [row.ran for row in bench.log.measurements("job") if isinstance(row.ran, Failure)]
    assert all("divides by zero" in ran.detail for ran in failed)


def test_a_device_that_breaks_takes_no_row_with_it() -> None:
    def breaks(n: int) -> None:
        if n == 5:
            raise DeviceError("the canary died")

    bench = parts(runner=ScriptedRunner(on_run=breaks))
    with pytest.raises(DeviceError):
        tune(scripted_task(), "job", bench)
    assert len(bench.log.measurements("job")) == 4


def test_a_baseline_that_does_not_build_any_more_is_no_other_configuration() -> None:
    log = ListLog()
    tune(scripted_task(baseline=SLOW), "job", parts(log=log))

    def gone(config: Config) -> float | Outcome:
        return Outcome.BUILD_FAILED if config.as_dict() == SLOW else valley(config)

    with pytest.raises(TuningError, match="does not build any more"):
        tune(scripted_task(baseline=SLOW), "job", parts(gone, log=log))
