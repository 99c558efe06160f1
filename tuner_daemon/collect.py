"""Wide, unbiased measurement: what the models are pretrained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tuner_daemon.interfaces import Effort
from tuner_daemon.measuring import Bench, Parts
from tuner_daemon.records.measurement import Measurement, Proposal
from tuner_daemon.records.space import Config
from tuner_daemon.records.task import Task

BATCH = 16
SAMPLES = 5


def collect(
    task: Task,
    job: str,
    parts: Parts,
    n: int,
    seed: int,
    *,
    timeout_s: float = 30.0,
    on_each: Callable[[Measurement], None] = lambda _: None,
) -> int:
    """Measures the baseline and n uniformly drawn configurations; returns how many were measured now. A candidate that
    takes longer than ``timeout_s`` to check and time is recorded as timed out.

    Rows already in the log under ``job`` are not measured again. The draw depends on the space and the seed alone, so
    that every problem of one kernel is measured on the same configurations, whose binaries are built once.
    """
    parts.log.remember(task.spec.kernel)
    done = {m.ran.config.key for m in parts.log.measurements(job)}
    wanted = [p for p in plan_of(task, n, seed) if p.config.key not in done]
    bench, effort = Bench(task, job, parts), Effort(SAMPLES, timeout_s=timeout_s)
    for begin in range(0, len(wanted), BATCH):
        batch = wanted[begin : begin + BATCH]
        bench.measure(bench.start(batch), lambda: effort, round_=0, on_each=on_each)
    return len(wanted)


def plan_of(task: Task, n: int, seed: int) -> list[Proposal]:
    """The baseline, then up to n distinct configurations drawn uniformly from the space."""

    def distinct() -> Iterator[Config]:
        baseline = task.spec.kernel.baseline
        if baseline is not None:
            yield task.space.config(baseline)
        yield from task.space.sample(n, np.random.default_rng(seed))

    first = task.spec.kernel.baseline is not None
    configs = list(dict.fromkeys(distinct()))
    return [Proposal(c, "baseline" if first and i == 0 else "uniform") for i, c in enumerate(configs)]
