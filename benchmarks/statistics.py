"""Whether the numbers can be believed: the real search, final round and verdict on a device whose truth is known.

    python -m benchmarks.statistics [--repeats 100] [--json FILE]

Prints, for noise of 0.5, 2 and 5 % with 3 % of drift and one outlier in a hundred samples: how often a configuration is
told from itself, by how much published numbers are off, how much slower than the best the winner is, and how many
samples that took; then the share of throttled samples that were dropped. Beside each stands what the figure would be
without the measure that it shows (the negative control). tests/test_measuring_statistics.py holds them to their limits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.fakes_device import CONFIGURATIONS, EveryOne, FakeDevice, NoModel, Weather, index_of, landscape_task
from tests.fakes_session import ListLog, ScriptedBuilder
from tuner_daemon.final import run_final
from tuner_daemon.measuring import Parts
from tuner_daemon.records.measurement import Artifact, Timing
from tuner_daemon.records.result import Result
from tuner_daemon.records.task import Task
from tuner_daemon.session import HEATS, Plan, tune
from tuner_daemon.verdict import differs, noise_floor

NOISES = (0.005, 0.02, 0.05)
FIXED = 30  # samples per candidate that adaptive sampling is compared with
PLAN = Plan(batch=20)


@dataclass(frozen=True)
class Job:
    """One job on a fake device, against the truth."""

    bias: float  # of the published speed-up, relative
    seconds_bias: float  # of the published seconds, relative to what the device took on average in the final round
    search_bias: float  # of the least median of the search, relative to that configuration's truth
    regret: float  # how much slower than the best of all the published configuration truly is
    first_regret: float  # the same for the configuration whose first sample was the least
    samples: int  # all of them: search, re-timings and final round
    retimings: float
    disturbed: float
    measured: int
    throttled: int
    kept_throttled: int


@cache
def task() -> Task:
    return landscape_task()


def tuned(device: FakeDevice, plan: Plan = PLAN) -> Job:
    """Tunes all CONFIGURATIONS."""
    log = ListLog()
    parts = Parts(EveryOne(device.seed), NoModel(), ScriptedBuilder(lambda _: 1.0), device, log, clock=device.clock)
    result = tune(task(), "job", parts, plan=plan)
    true_s, rows = device.true_s, [row for row in log.rows if isinstance(row.ran, Timing)]
    best, baseline = (index_of(p.config) for p in (result.best, result.baseline))
    first = min(rows, key=lambda row: row.ran.times_s[0] if isinstance(row.ran, Timing) else np.inf)
    least = min(rows, key=lambda row: row.ran.median_s if isinstance(row.ran, Timing) else np.inf)
    assert isinstance(least.ran, Timing)
    return Job(
        bias=result.best.speedup * true_s[best] / true_s[baseline] - 1,
        seconds_bias=result.best.median_s / (true_s[best] * float(np.mean(device.race_levels))) - 1,
        search_bias=least.ran.median_s / true_s[index_of(least.ran.config)] - 1,
        regret=true_s[best] / true_s.min() - 1,
        first_regret=true_s[index_of(first.ran.config)] / true_s.min() - 1,
        samples=device.samples,
        retimings=result.counters["retimings"],
        disturbed=result.counters["disturbed"],
        measured=result.measured,
        throttled=device.throttled_samples,
        kept_throttled=device.kept_throttled,
    )


def jobs(repeats: int, noise: float, plan: Plan = PLAN, **device: Any) -> list[Job]:
    return [tuned(FakeDevice(seed, Weather(noise), **device), plan) for seed in range(repeats)]


def mean(found: Sequence[Job], name: str) -> float:
    return float(np.mean([getattr(job, name) for job in found]))


def error(found: Sequence[Job], name: str) -> float:
    """Standard error of the mean."""
    return float(np.std([getattr(job, name) for job in found], ddof=1) / np.sqrt(len(found)))


def called_different(pairs: int, noise: float, *, change: float = 0.0, interleaved: bool = True) -> float:
    """Share of pairs that the final round and the verdict tell apart. The second of a pair is slower by ``change``:
    at 0 it is the same configuration under another name."""
    called = 0
    for seed in range(pairs):
        device = FakeDevice(seed, Weather(noise), interleaved=interleaved)
        one, other = (Artifact(c, Path(), "f", "", 0.0) for c in task().space.all()[:2])
        device.true_s[index_of(other.config)] = device.true_s[index_of(one.config)] * (1 + change)
        device.now_s = 100.0 * device.level(np.zeros(1))[0]
        final = run_final(
            one,
            [other],
            lambda entrants, blocks, device=device: device.race(task(), entrants, blocks, 1e3),
            blocks=PLAN.final_blocks,
            heats=HEATS,
            may_go_on=lambda: True,
        )
        own, twin = (np.array(t.times_s) for t in (final.baseline, final.twin))
        if final.finalists:
            called += differs(own, final.times_s()[0], noise_floor(own, twin))
        else:
            called += 1  # it was behind beyond doubt
    return called / pairs
