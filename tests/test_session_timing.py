"""What a session does about disturbances and drift, and what it tells of its work."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fakes_session import ListLog, NearestModel, ScriptedRunner, scripted_task, valley
from tests.test_session import SLOW, parts
from tuner_daemon.errors import JobInterruptedError, TuningError
from tuner_daemon.interfaces import Effort
from tuner_daemon.measuring import Bench
from tuner_daemon.progress import Progress
from tuner_daemon.records.measurement import Failure, Outcome, Proposal, Timing
from tuner_daemon.records.result import Verdict
from tuner_daemon.records.space import Config
from tuner_daemon.records.spec import Budget
from tuner_daemon.session import tune


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
    runner.jump, ticks = jump, iter(range(100_000))
    bench = parts(runner=runner, clock=lambda: float(next(ticks)))
    result = tune(scripted_task(seconds=1e6), "job", bench)
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
