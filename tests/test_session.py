"""One job, against a scripted landscape."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
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
from tuner_daemon.errors import JobInterruptedError, TuningError
from tuner_daemon.interfaces import Effort
from tuner_daemon.measuring import Bench, Parts
from tuner_daemon.records.measurement import Failure, Outcome, Proposal, Timing
from tuner_daemon.records.result import Verdict
from tuner_daemon.records.space import Config
from tuner_daemon.records.spec import Budget
from tuner_daemon.session import Plan, Progress, shortlist, tune
from tuner_daemon.verdict import judge

SLOW = {"A": 1, "B": 128}


def parts(landscape: Callable[[Config], float | Outcome] = valley, **changes: Any) -> Parts:
    builder, runner = ScriptedBuilder(landscape), ScriptedRunner(landscape)
    given = {"proposer": UniformPart(), "cost_model": NearestModel(), "builder": builder, "runner": runner}
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


class Disturbed(ScriptedRunner):
    """The nth run of each configuration is disturbed, for the given n."""

    def __init__(self, *turns: int, key: str = "", **fields: Any) -> None:
        super().__init__(**fields)
        self.turns, self.key, self.seen = turns, key, Counter[str]()

    def run(self, task: Any, artifact: Any, effort: Any) -> Any:
        ran = super().run(task, artifact, effort)
        if effort.known or (self.key and artifact.config.key != self.key):
            return ran
        self.seen[artifact.config.key] += 1
        disturbed = self.seen[artifact.config.key] in self.turns
        return Failure(artifact.config, Outcome.DISTURBED, "throttled") if disturbed else ran


def test_a_disturbed_measurement_is_repeated_once_later_and_leaves_one_row() -> None:
    runner = Disturbed(1)
    bench = parts(runner=runner)
    result = tune(scripted_task(), "job", bench)
    assert result.outcomes == {"ok": 32}
    assert result.measured == len(bench.log.measurements("job")) == 32
    assert result.counters["disturbed"] == 32
    assert set(runner.seen.values()) == {2}


def test_what_is_disturbed_again_is_a_row_but_not_a_measured_configuration() -> None:
    task = scripted_task()
    bench = parts(runner=Disturbed(1, 2, key=task.space.all()[5].key))
    result = tune(replace(task, spec=replace(task.spec, budget=Budget(100, 60.0))), "job", bench)
    assert result.outcomes == {"ok": task.space.size - 1, "disturbed": 1}
    assert result.measured == task.space.size - 1
    assert len(bench.log.measurements("job")) == task.space.size


def test_a_baseline_that_is_disturbed_for_a_while_stays_the_baseline() -> None:
    task = scripted_task(baseline=SLOW)
    runner = Disturbed(1, 2, 3, 4, key=task.space.config(SLOW).key)
    result = tune(task, "job", parts(runner=runner))
    assert result.baseline.config.as_dict() == SLOW
    assert result.outcomes == {"ok": 32}


def test_a_disturbed_heat_of_the_final_round_is_run_again() -> None:
    class Fickle(ScriptedRunner):
        heats = 0

        def race(self, task: Any, artifacts: Any, blocks: int, timeout_s: float) -> Any:
            self.heats += 1
            if self.heats in (1, 3):
                return [Failure(a.config, Outcome.DISTURBED, "throttled") for a in artifacts]
            return super().race(task, artifacts, 4 if self.heats == 2 else blocks, timeout_s)  # some blocks dropped

    runner = Fickle(noise=1e-4)
    result = tune(scripted_task(baseline=SLOW), "job", parts(runner=runner))
    assert result.verdict is Verdict.FASTER
    assert result.counters["disturbed_heats"] == 2
    assert runner.heats == 2 + 4  # 4 + 10 + 10 + 10 blocks


def test_a_final_round_that_is_always_disturbed_publishes_nothing() -> None:
    class Restless(ScriptedRunner):
        def race(self, task: Any, artifacts: Any, blocks: int, timeout_s: float) -> Any:
            return [Failure(a.config, Outcome.DISTURBED, "power cap") for a in artifacts]

    with pytest.raises(TuningError, match="disturbed throughout the final round: power cap"):
        tune(scripted_task(), "job", parts(runner=Restless()))


class Drifting(ScriptedRunner):
    """Everything becomes slower by a half over the job."""

    def _times(self, config: Config, n: int) -> Any:
        ran = super()._times(config, n)
        factor = 1 + 0.5 * min(len(self.ran), 32) / 32
        return replace(ran, times_s=tuple(t * factor for t in ran.times_s)) if isinstance(ran, Timing) else ran


def test_rows_keep_raw_times_and_what_the_baseline_took_then() -> None:
    ticks = iter(range(100_000))
    bench = parts(runner=Drifting(noise=1e-4), clock=lambda: float(next(ticks)))
    tune(scripted_task(baseline=SLOW, seconds=1e6), "job", bench)
    rows = [m for m in bench.log.measurements("job") if isinstance(m.ran, Timing)]
    true = np.array([valley(m.ran.config) / valley(rows[0].ran.config) for m in rows])
    raw = np.array([m.ran.median_s for m in rows if isinstance(m.ran, Timing)])
    relative = raw / np.array([m.baseline_median_s for m in rows])
    assert np.abs(relative / true - 1).max() < 0.12
    assert np.abs(raw / raw[0] / true - 1).max() > 0.4, "uncorrected: the control"
    assert len({m.baseline_median_s for m in rows}) > 4


def test_models_and_proposers_see_times_without_drift() -> None:
    class Watching(NearestModel):
        seen: Sequence[Any] = ()

        def fit(self, task: Any, history: Any) -> None:
            super().fit(task, history)
            self.seen = history

    model, ticks = Watching(), iter(range(100_000))
    tune(
        scripted_task(baseline=SLOW, seconds=1e6),
        "job",
        parts(runner=Drifting(noise=1e-4), cost_model=model, clock=lambda: float(next(ticks))),
    )
    assert len(model.seen) > 16
    assert all(m.ran.median_s == pytest.approx(valley(m.ran.config), rel=0.12) for m in model.seen)


class Jumping(ScriptedRunner):
    """Takes ``jump`` times as long from the 13th candidate on."""

    jump = 1.0

    def _times(self, config: Config, n: int) -> Any:
        ran = super()._times(config, n)
        factor = self.jump if len(self.ran) > 12 else 1.0
        return replace(ran, times_s=tuple(t * factor for t in ran.times_s)) if isinstance(ran, Timing) else ran


@pytest.mark.parametrize(("jump", "repeats"), [(1.0, False), (1.004, False), (1.05, True)])
def test_a_block_in_which_the_baseline_jumped_is_run_again_as_far_as_it_may_win(jump: float, repeats: bool) -> None:
    runner = Jumping(lambda config: 1e-3 * (1 + 0.02 * int(config["A"]) / 128), noise=1e-4)
    runner.jump = jump
    bench = parts(runner=runner)
    result = tune(scripted_task(), "job", bench)
    again = [key for key, n in Counter(runner.ran).items() if n > 1]
    assert bool(again) is repeats
    assert len(again) == len(runner.ran) - 32 == result.counters["repeated"] <= 8
    assert len(bench.log.measurements("job")) == 32


def test_a_bench_can_forget_a_device_that_has_become_another() -> None:
    task, runner = scripted_task(), ScriptedRunner(noise=1e-4)
    bench = Bench(task, "job", parts(runner=runner))

    def measured(n: int) -> list[Any]:
        proposals = [Proposal(c, "uniform") for c in task.space.all()[:n]]
        return bench.measure(bench.start(proposals), Effort, 0)

    rows = measured(2)
    bench.follow(bench.artifacts[rows[0].ran.config.key], rows[0].ran)
    assert bench.ratios(rows)[0] == pytest.approx(1.0, rel=1e-3)
    measured(2)
    assert (len(runner.ran), bench.counters["identical_binaries"]) == (2, 2)
    bench.forget()
    assert np.isnan(bench.ratios(rows)).all()
    measured(2)
    assert len(runner.ran) == 4


def test_after_a_restart_the_baseline_is_timed_again_at_once() -> None:
    stop, log = threading.Event(), ListLog()
    first = ScriptedRunner(on_run=lambda n: stop.set() if n == 12 else None)
    with pytest.raises(JobInterruptedError):
        tune(scripted_task(), "job", parts(runner=first, log=log), stop=stop)
    result = tune(scripted_task(), "job", parts(runner=ScriptedRunner(lambda c: 2 * float(valley(c))), log=log))
    assert result.counters["retimings"] >= 1
    later = [m.baseline_median_s for m in log.rows[12:]]
    assert later == pytest.approx([2 * valley(log.rows[0].ran.config)] * len(later), rel=0.03)


def test_counters_tell_of_builds_samples_and_the_device() -> None:
    class Timed(ScriptedRunner):
        def _times(self, config: Config, n: int) -> Any:
            return replace(super()._times(config, n), device_s=0.25)

    seen: list[Progress] = []
    ticks = iter(range(100_000))
    bench = parts(runner=Timed(), clock=lambda: float(next(ticks)))
    result = tune(scripted_task(seconds=1e6), "job", bench, observe=seen.append)
    assert result.counters["build_s"] == pytest.approx(32 * 0.01)
    assert result.counters["build_cache_hits"] == 0
    assert result.counters["samples"] >= 32 * 15
    assert 0.01 < result.counters["device_busy_share"] < 1
    assert {"build_s", "build_cache_hits", "device_busy_share", "samples"} <= set(seen[-1].counters)
