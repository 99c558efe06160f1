"""Eight hours in virtual time: memory stays flat, the log readable, and a dropped spec is taken up at once."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.models import ModelStore
from tuner_daemon.storage.spool import counts_in

SEED = 20261201
MOST_GROWTH = 0.05
LONGEST_LATENCY_S = 1.0
WARM_UP = 0.25  # of the day


def day(folder: Path, **arguments: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.long_day", json.dumps({"folder": str(folder), "seed": SEED, **arguments})],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def growth(memory: list[list[float]], virtual_s: float) -> float:
    """Of the resident memory, from the time after the warm-up to the end: medians over an eighth of the day."""
    span_s = virtual_s / 8
    after = [size for at_s, size in memory if WARM_UP * virtual_s <= at_s < WARM_UP * virtual_s + span_s]
    end = [size for at_s, size in memory if at_s >= virtual_s - span_s]
    return statistics.median(end) / statistics.median(after) - 1


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("jobs", "hours", "retrains"),
    [pytest.param(5000, 8.0, 7, marks=pytest.mark.slow, id="5000"), pytest.param(40, 0.07, 0, id="40")],
)
def test_a_long_day_leaves_memory_flat_and_the_log_readable(
    in_memory: Path, jobs: int, hours: float, retrains: int
) -> None:
    told = day(in_memory, jobs=jobs, hours=hours, retrains=retrains)
    state = in_memory / "state"
    log, grown = ParquetLog(state / "log"), growth(told["memory"], told["virtual_s"])
    if not retrains:
        log.compact()
    facts, damaged = log.stats(), log.verify()
    rows = Counter(log.read(columns=["job"]).column("job").to_pylist())
    versions = len(ModelStore(state / "models").versions())
    p99_s = percentile(told["latencies_s"], 0.99)
    print(
        f"seed {SEED}: virtual {told['virtual_s'] / 3600:.2f} h in {told['real_s']:.0f} s, jobs {jobs}, retrained "
        f"{told['retrained']} times, models kept {versions}, memory {told['memory'][-1][1] / 1e6:.0f} MB, grown "
        f"{100 * grown:.1f} %, rows {facts['rows']} in {facts['parts']} parts, damaged {len(damaged)}, latency of "
        f"intake p50 {percentile(told['latencies_s'], 0.5):.2f} s, p99 {p99_s:.2f} s, "
        f"longest {max(told['latencies_s']):.2f} s"
    )
    assert {state: n for state, n in counts_in(state / "spool").items() if n} == {"done": jobs}
    assert len(rows) == jobs
    assert set(rows.values()) == {6}
    assert damaged == {}
    assert retrains <= told["retrained"] <= retrains + 1, "the last may fall into the day's last minute"
    assert grown < MOST_GROWTH
    assert p99_s <= LONGEST_LATENCY_S if retrains else p99_s < 10 * LONGEST_LATENCY_S
    assert told["virtual_s"] >= hours * 3600


def test_memory_that_leaks_would_be_seen(in_memory: Path) -> None:
    """Negative control: half a megabyte a job."""
    told = day(in_memory, jobs=40, hours=0.07, retrains=0, leak_bytes=2 << 19)
    assert growth(told["memory"], told["virtual_s"]) > MOST_GROWTH
