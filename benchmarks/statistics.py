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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.fakes_device import CONFIGURATIONS, EveryOne, FakeDevice, NoModel, Weather, index_of, landscape_task
from tests.fakes_session import ListLog, ScriptedBuilder
from tuner_daemon.final import Final, run_final
from tuner_daemon.measuring import Parts
from tuner_daemon.plan import Plan
from tuner_daemon.records.measurement import Artifact, Measurement, Timing
from tuner_daemon.records.task import Task
from tuner_daemon.session import HEATS, tune
from tuner_daemon.verdict import differs, noise_floor

NOISES = (0.005, 0.02, 0.05)
FIXED = 30  # samples per candidate that adaptive sampling is compared with
SPREADS = (0.1, 0.05)
"""Of log times. The second best of 200 is then 3 or 1.5 % slower than the best; in the seed log, with 0.8, some 8 %."""

THROTTLED = 0.2  # of the time
PLAN = Plan(batch=20, pool=20)
THIRTY = replace(PLAN, samples=FIXED)


@dataclass(frozen=True)
class Job:
    """One job on a fake device, against the truth."""

    bias: float  # of the published speed-up, relative
    seconds_bias: float  # of the published seconds, relative to what the device took on average in the final round
    search_bias: float  # of the search's best number, had it been published as a speed-up
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
    least_ratio, least = min((relative(row), index_of(row.ran.config)) for row in rows if row.baseline_median_s)
    return Job(
        bias=result.best.speedup * true_s[best] / true_s[baseline] - 1,
        seconds_bias=result.best.median_s / (true_s[best] * float(np.mean(device.race_levels))) - 1,
        search_bias=true_s[least] / true_s[baseline] / least_ratio - 1,
        regret=true_s[best] / true_s.min() - 1,
        first_regret=true_s[index_of(first.ran.config)] / true_s.min() - 1,
        samples=device.samples,
        retimings=result.counters["retimings"],
        disturbed=result.counters["disturbed"],
        measured=result.measured,
        throttled=device.throttled_samples,
        kept_throttled=device.kept_throttled,
    )


def relative(row: Measurement) -> float:
    """To the baseline at the same moment, as the log has it."""
    assert isinstance(row.ran, Timing)
    assert row.baseline_median_s is not None
    return row.ran.median_s / row.baseline_median_s


def jobs(repeats: int, noise: float, *, throttled: float = 0.0, **device: Any) -> list[Job]:
    """Two mirrored ones for each repeat."""
    return [
        tuned(FakeDevice(seed, Weather(noise, throttled=throttled), mirrored=mirrored, **device))
        for seed in range(repeats)
        for mirrored in (False, True)
    ]


def mean(found: Sequence[Job], name: str) -> float:
    return float(np.mean([getattr(job, name) for job in found]))


def error(found: Sequence[Job], name: str) -> float:
    """Standard error of the mean; the two of a repeat are not independent."""
    values = np.array([getattr(job, name) for job in found]).reshape(-1, 2).mean(axis=1)
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def called_different(pairs: int, noise: float, *, change: float = 0.0, paired: bool = True) -> float:
    """Share of pairs that the final round and the verdict tell apart. The second of a pair is slower by ``change``:
    at 0 it is the same configuration under another name. Not ``paired``: it is timed ten seconds later instead."""
    one, other = (Artifact(c, Path(), "f", "", 0.0) for c in task().space.all()[:2])
    return float(np.mean([_is_called_different(seed, noise, (one, other), change, paired) for seed in range(pairs)]))


def _is_called_different(seed: int, noise: float, pair: tuple[Artifact, Artifact], change: float, paired: bool) -> bool:
    device = FakeDevice(seed, Weather(noise))
    first, second = (index_of(artifact.config) for artifact in pair)
    device.true_s[second] = device.true_s[first] * (1 + change)

    def final(one: Artifact, other: Artifact) -> Final:
        return run_final(
            one,
            [other],
            lambda entrants, blocks: device.race(task(), entrants, blocks, 1e3),
            blocks=PLAN.final_blocks,
            heats=HEATS,
            may_go_on=lambda: paired,
        )

    seen = final(*pair)
    if not seen.finalists:
        return True  # left behind beyond doubt
    own, twin, times_s = np.array(seen.baseline.times_s), np.array(seen.twin.times_s), seen.times_s()[0]
    if not paired:
        device.now_s += 10.0
        times_s = np.array(final(pair[1], pair[1]).baseline.times_s)
    return differs(own, times_s, noise_floor(own, twin))


def saved(found: Sequence[Job]) -> float:
    """Share of samples that FIXED per candidate would have taken in addition."""
    return 1 - mean(found, "samples") / (FIXED * CONFIGURATIONS)


def dropped(found: Sequence[Job]) -> float:
    """Share of throttled samples that went into no time."""
    return 1 - sum(job.kept_throttled for job in found) / sum(job.throttled for job in found)


def figures(repeats: int, pairs: int) -> Iterator[dict[str, Any]]:
    """One row per noise and landscape, then one with throttling."""
    for spread in SPREADS:
        for noise in NOISES:
            found = jobs(repeats, noise, spread=spread)
            fixed = [tuned(FakeDevice(0, Weather(noise), spread=spread, adaptive=False), THIRTY)]
            yield {
                "landscape": spread,
                "noise": noise,
                "called different": called_different(pairs, noise),
                "unpaired": called_different(pairs, noise, paired=False),
                "2 % slower told": called_different(pairs, noise, change=0.02),
                "bias": (mean(found, "bias"), error(found, "bias")),
                "bias in seconds": (mean(found, "seconds_bias"), error(found, "seconds_bias")),
                "search's best": (mean(found, "search_bias"), error(found, "search_bias")),
                "regret": (mean(found, "regret"), error(found, "regret")),
                "first sample's": (mean(found, "first_regret"), error(found, "first_regret")),
                "samples saved": saved(found),
                "fixed": saved(fixed),
            }
    told, ignored = (jobs(repeats, 0.005, throttled=THROTTLED, flagged=flagged) for flagged in (True, False))
    yield {
        "throttled": THROTTLED,
        "dropped": dropped(told),
        "flag ignored": dropped(ignored),
        "regret": (mean(told, "regret"), error(told, "regret")),
        "measured": mean(told, "measured"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50, help="jobs per row, each done twice with its noise mirrored")
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--json", type=Path, help="write everything here, too")
    options = parser.parse_args()
    rows, head = [], ""
    for row in figures(options.repeats, options.pairs):
        rows.append(row)
        if head != (head := f"| {' | '.join(row)} |"):
            print(head, "|" + "---|" * len(row), sep="\n")
        print(f"| {' | '.join(map(shown, row.values()))} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))
    return 0


def shown(value: float | tuple[float, float]) -> str:
    if isinstance(value, tuple):
        return f"{value[0]:.2%} ± {value[1]:.2%}"
    return f"{value:.1%}" if value <= 1 else f"{value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
