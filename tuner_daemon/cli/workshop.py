"""The one place that chooses the parts: which builder, runner, models and log a job works with."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from tuner_daemon.builders.preamble import preamble
from tuner_daemon.cli.defaults import default_device, template_dirs
from tuner_daemon.engine import Engine
from tuner_daemon.errors import ModelError
from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.intake.specs import available_templates
from tuner_daemon.interfaces import Builder, CostModel, Proposer, Runner
from tuner_daemon.learning.cost import LearnedCostModel, load_prior
from tuner_daemon.learning.policy import Policy, load_policy
from tuner_daemon.learning.proposers import MixedProposer
from tuner_daemon.measuring import Parts
from tuner_daemon.plan import DEFAULT_PLAN, Plan
from tuner_daemon.records.kernel import Kernel
from tuner_daemon.records.spec import DeviceRequest
from tuner_daemon.settings import Settings
from tuner_daemon.storage.lease import device_lease
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.models import ModelStore
from tuner_daemon.storage.results import ResultStore
from tuner_daemon.storage.status import write_retrain

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Models:
    """What the current version in the model store holds; empty where there is none yet."""

    version: str = ""
    policy: Policy | None = None
    cost_model: Any = None  # a cost_model.Prior


@dataclass(frozen=True)
class Station:
    """A device with its compile pool; kept for as long as the workshop is open."""

    builder: Builder
    runner: Runner


class Workshop:
    """Holds what outlives a job: stations, log, models. Use as a context manager."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.log = ParquetLog(settings.log_dir)
        self.store = ModelStore(settings.models_dir)
        self._stations: dict[DeviceRequest, Station] = {}
        self._models = Models()
        search = settings.search
        self.engine = Engine(
            results=ResultStore(settings.spool_dir / "results", preamble=preamble),
            parts_for=self.parts_for,
            lease=self.lease,
            plan=Plan(
                batch=search.batch,
                pool=search.pool,
                samples=search.samples,
                finalists=search.finalists,
                final_blocks=search.final_blocks,
                stop_after=DEFAULT_PLAN.stop_after if search.early_stop else None,
            ),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        for station in self._stations.values():
            station.runner.close()
            station.builder.close()
        self._stations.clear()

    def parts_for(self, request: DeviceRequest) -> Parts:
        """Parts for a job on a device. Raises MissingPartError if it, or its compiler, is not on this machine."""
        station = self._station(request)
        models = self.models()
        cost_model: CostModel = LearnedCostModel(models.cost_model, version=models.version if models.cost_model else "")
        rng = np.random.default_rng(self.settings.search.seed)
        proposer: Proposer = MixedProposer(policy=models.policy, cost_model=cost_model, rng=rng)
        return Parts(
            proposer=proposer,
            cost_model=cost_model,
            builder=station.builder,
            runner=station.runner,
            log=self.log,
            policy_version=models.version if models.policy else "",
            host=self.settings.host,
        )

    def require(self, request: DeviceRequest) -> None:
        """Starts the device now, which the first job would do otherwise. Raises MissingPartError, DeviceError."""
        logger.info("device: %s", self._station(request).runner.device.name)

    def _station(self, request: DeviceRequest) -> Station:
        if request not in self._stations:
            self._stations[request] = open_station(self.settings, request)
        return self._stations[request]

    def models(self) -> Models:
        """The models of the store's current version, read again when that has changed. If they cannot be used, such as
        after a change of the features, the latest earlier ones that can."""
        if self._models.version and self.store.current_version() == self._models.version:
            return self._models
        for stored in self.store.whole():
            if stored.version == self._models.version:
                return self._models
            try:
                self._models = Models(stored.version, load_policy(stored.folder), load_prior(stored.folder))
            except ModelError as error:
                if self.store.damaged.get(stored.version) != str(error):
                    logger.warning("models %s are not used: %s", stored.version, error)
                self.store.damaged[stored.version] = str(error)
            else:
                logger.info("models %s loaded", stored.version)
                return self._models
        self._models = Models()
        return self._models

    def lease(self, request: DeviceRequest, wait: Callable[[str], None]) -> AbstractContextManager[None]:
        return device_lease(self.settings.state_dir / "leases", request.kind, request.index, wait)

    def devices(self) -> dict[str, str]:
        """Devices in use so far: "kind index" -> name."""
        return {f"{r.kind} {r.index}": s.runner.device.name for r, s in self._stations.items()}

    def template(self, name: str) -> Kernel:
        """A family by name. Raises KeyError if there is none."""
        return load_kernel(available_templates(template_dirs(self.settings))[name])


def open_station(settings: Settings, request: DeviceRequest) -> Station:
    """Starts the runner and compile pool of a device. Raises MissingPartError."""
    return _STATIONS[request.kind](settings, request)


def _cpu_station(settings: Settings, request: DeviceRequest) -> Station:
    from tuner_daemon.builders.gcc import GccBuilder
    from tuner_daemon.runners.cpu import CpuRunner

    builder = GccBuilder(_cache(settings), jobs=settings.build.jobs, timeout_s=settings.build.timeout_s)
    return Station(builder, CpuRunner(builder, index=request.index, compiler=builder.compiler))


def _cuda_station(settings: Settings, request: DeviceRequest) -> Station:
    from tuner_daemon.builders.cuda import cuda_builder
    from tuner_daemon.builders.nvrtc import start_server
    from tuner_daemon.runners.cuda import CudaRunner

    start_server()
    # The device says what to build for, and the builder what it builds with.
    runner = CudaRunner(index=request.index, clock_policy=settings.clock_policy)
    build = settings.build
    with ExitStack() as on_failure:
        on_failure.callback(runner.close)  # its child holds a context
        builder = cuda_builder(_cache(settings), arch=runner.device.arch, jobs=build.jobs, timeout_s=build.timeout_s)
        runner.builder, runner.compiler = builder, builder.compiler
        on_failure.pop_all()
    return Station(builder, runner)


def _replay_station(settings: Settings, request: DeviceRequest) -> Station:
    from tuner_daemon.builders.replay import ReplayBuilder
    from tuner_daemon.runners.replay import ReplayRunner
    from tuner_daemon.storage.recorded import load_recorded

    del settings, request
    return Station(ReplayBuilder(), ReplayRunner(load_recorded))


_STATIONS: dict[str, Callable[[Settings, DeviceRequest], Station]] = {
    "cpu": _cpu_station,
    "cuda": _cuda_station,
    "replay": _replay_station,
}


def _wait(holder: str) -> None:
    logger.info("waiting for the device, used by process %s", holder)
    time.sleep(1.0)


def _cache(settings: Settings) -> Any:
    from tuner_daemon.builders.cache import BuildCache

    return BuildCache(settings.cache_dir, settings.build.cache_limit_bytes)


def run_retrain(settings: Settings) -> Any:
    """One retrain job over this installation's log and its seed logs; its report is left for ``tunerd status``."""
    from tuner_daemon.retrain import retrain

    log = ParquetLog(settings.log_dir, settings.seed_logs)
    log.compact()
    # Timing on the CPU and training on the same cores would disturb each other.
    with device_lease(settings.state_dir / "leases", "cpu", 0, _wait):
        report = retrain(log, ModelStore(settings.models_dir), settings.retrain)
    write_retrain(settings.state_dir, {"finished_at": datetime.now(UTC), **report.as_dict()})
    return report


def run_collect(settings: Settings, plan: Path, say: Callable[[str], None], seconds: float | None = None) -> None:
    """Works through a collection plan: the problems of one kernel together, so that each candidate is built once. Stops
    after so many seconds; the same call goes on there."""
    from itertools import groupby

    from tuner_daemon.collect import Wanted, collect
    from tuner_daemon.intake.plans import load_plan
    from tuner_daemon.records.space import ParamSpace
    from tuner_daemon.records.task import Task

    stop_at = None if seconds is None else time.monotonic() + seconds

    def stop() -> bool:
        return stop_at is not None and time.monotonic() > stop_at

    with Workshop(settings) as workshop:
        planned = load_plan(plan, template_dirs=template_dirs(settings), default_device=default_device(settings))
        spaced = [(item, ParamSpace(item.spec.kernel, item.spec.problem)) for item in planned]
        for _, group in groupby(spaced, lambda pair: pair[0].binaries + pair[1].sha256):
            items = list(group)
            first = items[0][0]
            if stop():
                say(f"stopped before {first.spec.kernel.name} at {len(items)} problems: the time is up")
                break
            with workshop.lease(first.spec.device, _wait):
                parts = workshop.parts_for(first.spec.device)
                device = parts.runner.device_for(first.spec)
                wanted = [Wanted(Task(item.spec, space, device), item.job, item.timeout_s) for item, space in items]
                done = collect(wanted, parts, first.count, first.seed, stop=stop)
            rate = 60 * done.measured / max(done.wall_s, 1e-9)
            say(
                f"{first.spec.kernel.name} at {len(items)} problems: {done.measured} measured in {done.wall_s:.1f} s, "
                f"{rate:.0f} a minute, device at work {100 * done.busy_share:.0f} % of the time"
            )
