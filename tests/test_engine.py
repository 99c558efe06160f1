"""The engine: the same question is answered once."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest

from tests.fakes_session import ListLog, NearestModel, ScriptedBuilder, ScriptedRunner, UniformPart, scripted_task
from tuner_daemon.engine import Engine, job_of
from tuner_daemon.errors import JobInterruptedError
from tuner_daemon.measuring import Parts
from tuner_daemon.records.measurement import Measurement
from tuner_daemon.records.result import Result
from tuner_daemon.records.spec import Budget, DeviceRequest, KernelSpec, Options


@dataclass
class DictResults:
    kept: dict[str, dict[str, Any]] = field(default_factory=dict)

    def read(self, job: str) -> dict[str, Any] | None:
        return self.kept.get(job)

    def write(self, result: Result, rows: list[Measurement]) -> None:
        budget = result.spec.budget
        spent = {"measurements": budget.measurements, "seconds": budget.seconds}
        device = asdict(result.device)
        self.kept[result.job] = {"spec": {"budget": spent}, "verdict": str(result.verdict), "device": device}


@dataclass
class Shop:
    """An engine with scripted parts, and what was asked of it."""

    log: ListLog = field(default_factory=ListLog)
    runner: ScriptedRunner = field(init=False)

    def __post_init__(self) -> None:
        self.runner = ScriptedRunner(on_run=self._leased)

    def _leased(self, _: int) -> None:
        assert self.held == ["replay"], "a candidate runs without the device's lease"

    held: list[str] = field(default_factory=list)
    busy: int = 0  # times that the lease is found taken

    def engine(self) -> Engine:
        def parts_for(request: DeviceRequest) -> Parts:
            ticks = itertools.count()
            return Parts(
                UniformPart(),
                NearestModel(),
                ScriptedBuilder(),
                self.runner,
                self.log,
                clock=lambda: 1e-3 * next(ticks),
            )

        @contextlib.contextmanager
        def lease(request: DeviceRequest, wait: Callable[[str], None]) -> Iterator[None]:
            while self.busy > 0:
                self.busy -= 1
                wait("4711")
            self.held.append(request.kind)
            yield
            self.held.pop()

        return Engine(DictResults(), parts_for, lease)


def spec(**changes: Any) -> KernelSpec:
    return replace(scripted_task(measurements=16).spec, **changes)


def test_the_same_spec_again_is_answered_from_what_is_known() -> None:
    shop = Shop()
    engine = shop.engine()
    first = engine.answer(spec())
    ran = len(shop.runner.ran)
    again = engine.answer(spec(name="another name.toml"))
    assert (first.known, again.known) == (False, True)
    assert again.result == first.result
    assert len(shop.runner.ran) == ran == 16
    assert not shop.held


def test_a_larger_budget_goes_on_from_the_measurements_of_the_smaller() -> None:
    shop = Shop()
    engine = shop.engine()
    engine.answer(spec())
    more = engine.answer(spec(budget=Budget(24, 60.0)))
    assert not more.known
    assert len(shop.log.rows) == 24
    assert engine.answer(spec(budget=Budget(8, 60.0))).known


@pytest.mark.parametrize("name", ["uuid", "driver", "compiler", "runtime"])
def test_an_answer_of_another_device_driver_or_compiler_is_no_answer(name: str) -> None:
    shop = Shop()
    engine = shop.engine()
    engine.answer(spec())
    changes: dict[str, Any] = {name: "another"}
    shop.runner.device = replace(shop.runner.device, **changes)
    assert not engine.answer(spec()).known
    assert engine.answer(spec()).known


def test_a_taken_device_is_waited_for_and_the_wait_is_shown() -> None:
    shop = Shop(busy=1)
    seen: list[str] = []
    shop.engine().answer(spec(), observe=lambda progress: seen.append(progress.phase))
    assert seen[0] == "waiting for replay 0, used by process 4711"
    assert len(shop.runner.ran) == 16


def test_waiting_for_a_device_ends_when_the_daemon_is_asked_to_stop() -> None:
    shop, stop = Shop(busy=1000), threading.Event()
    stop.set()
    with pytest.raises(JobInterruptedError, match="waiting for replay 0"):
        shop.engine().answer(spec(), stop=stop)
    assert not shop.runner.ran


def test_force_measures_everything_again() -> None:
    shop = Shop()
    engine = shop.engine()
    engine.answer(spec())
    assert not engine.answer(spec(options=Options(force=True))).known
    assert len(shop.runner.ran) == len(shop.log.rows) == 32


def test_another_problem_kernel_or_device_is_another_job() -> None:
    one = spec()
    others = [
        replace(one, problem={"n": 3}),
        replace(one, device=DeviceRequest("cpu")),
        replace(one, device=DeviceRequest("replay", 1)),
        replace(one, kernel=replace(one.kernel, sha256="6" * 64)),
    ]
    assert len({job_of(s) for s in [one, *others]}) == 5
    assert job_of(replace(one, budget=Budget(1, 1.0), name="x", options=Options(priority=3))) == job_of(one)
