"""What keeps wrong and noisy rows of the measurement log out of learning, and out of logs that are given away.

Every check has its reason, under which the rows it leaves out are counted:

    unknown kernel        its declaration is lost, or it has values that the kernel never has, or another hash is wanted
    disturbed             something else was going on
    no time               a time that is not positive and finite, or a median that is not that of its samples
    unverified            nobody compared its output with the reference's
    faster than possible  below the roofline's floor
    noisy                 its own samples disagree
    other clocks          of another clock mode than the log's, where one is wanted
    duplicate             the same row again, or the same configuration where each is wanted once
    unconfirmed           the same configuration, measured again, ended differently or took another time

Failures have no time, and teach as they are.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner_daemon.errors import ExpressionError
from tuner_daemon.learning.dataset import Resolver, Row, device_of, task_key, values_of
from tuner_daemon.records.kernel import Kernel, Value
from tuner_daemon.records.measurement import Outcome
from tuner_daemon.records.roofline import floor_s

NOISE = 0.15  # median absolute deviation of a row's samples over their median
CONFIRMED = 1.25  # how far apart two times of one configuration may lie, as a ratio
SAME_MEDIAN = 1e-6
_WRONG = {Outcome.WRONG_RESULT.value, Outcome.LAUNCH_FAILED.value, Outcome.CRASHED.value, Outcome.BUILD_FAILED.value}


@dataclass(frozen=True)
class Wanted:
    """What a log is screened for. None: anything."""

    clock_mode: str | None = None
    sha256: Mapping[str, str] | None = None  # kernel -> the hash that its rows must have
    once: bool = False  # each configuration of a task


@dataclass(frozen=True)
class Screened:
    """Rows in their order, and how many were left out for which reason. ``why``: key of a row -> that reason."""

    rows: list[Row]
    left_out: Mapping[str, int] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)


def screen(
    rows: Iterable[Row], kernel_of: Resolver, wanted: Wanted | None = None, *, repeats: Iterable[Row] = ()
) -> Screened:
    """The rows that pass. ``repeats``: of another session; they confirm or refute, and are not among the result."""
    checks = _Checks(kernel_of, wanted or Wanted())
    rows = list(rows)
    faults = [checks.reason(row) for row in rows]
    identities = [_identity(row) for row in rows]
    sound = [pair for pair, fault in zip(zip(identities, rows, strict=True), faults, strict=True) if not fault]
    refuted = _refuted([*sound, *((_identity(row), row) for row in repeats if not checks.reason(row))])
    kept: list[Row] = []
    counts: Counter[str] = Counter()
    why: dict[str, str] = {}
    seen: set[str] = set()
    for row, fault, identity in zip(rows, faults, identities, strict=True):
        reason = fault or checks.repeated(row, identity, seen) or ("unconfirmed" if identity in refuted else "")
        if not fault:
            seen |= {row["key"], identity}
        if reason:
            counts[reason] += 1
            why.setdefault(row["key"], reason)
        else:
            kept.append(row)
    return Screened(kept, dict(sorted(counts.items())), why)


class _Checks:
    """Of one row by itself."""

    def __init__(self, kernel_of: Resolver, wanted: Wanted) -> None:
        self._kernel_of, self._wanted = kernel_of, wanted
        self._values: dict[str, dict[str, set[str]]] = {}  # hash -> parameter -> its values, as JSON
        self._floors_s: dict[str, float] = {}  # by task, where the work is that of the problem alone

    def reason(self, row: Row) -> str:
        """Why it is left out; empty if it is not."""
        kernel = self._kernel_of(row["kernel_sha256"])
        if kernel is None or self._is_foreign(row, kernel):
            return "unknown kernel"
        if row["outcome"] == Outcome.DISTURBED.value:
            return "disturbed"
        if self._wanted.clock_mode is not None and (row.get("clock_mode") or "free") != self._wanted.clock_mode:
            return "other clocks"
        return self._fault_of_times(row, kernel) if row["outcome"] == Outcome.OK.value else ""

    def repeated(self, row: Row, identity: str, seen: set[str]) -> str:
        return "duplicate" if row["key"] in seen or (self._wanted.once and identity in seen) else ""

    def _is_foreign(self, row: Row, kernel: Kernel) -> bool:
        sha256 = row["kernel_sha256"]
        if self._wanted.sha256 is not None and self._wanted.sha256.get(row["kernel"]) != sha256:
            return True
        if sha256 not in self._values:
            self._values[sha256] = {p.name: {json.dumps(v) for v in p.values} for p in kernel.parameters}
        known, config = self._values[sha256], values_of(row["config"])
        return set(config) != set(known) or any(json.dumps(v) not in known[name] for name, v in config.items())

    def _fault_of_times(self, row: Row, kernel: Kernel) -> str:
        times_s, median_s = list(row["times_s"] or ()), row["median_s"]
        if not times_s or not all(_is_time(t) for t in [*times_s, median_s]):
            return "no time"
        if abs(statistics.median(times_s) - median_s) > SAME_MEDIAN * median_s:
            return "no time"
        error_norm = row.get("error_norm")
        if not (error_norm is not None and math.isfinite(error_norm)) and row.get("device_kind") != "replay":
            return "unverified"
        if median_s < self._floor_s(row, kernel):
            return "faster than possible"
        return "noisy" if len(times_s) > 2 and deviation(times_s) > NOISE else ""

    def _floor_s(self, row: Row, kernel: Kernel) -> float:
        names: dict[str, Value] = {**values_of(row["problem"]), **values_of(row["config"])}
        work = [expression for expression in (kernel.work.flops, kernel.work.bytes) if expression is not None]
        of_problem = not any(p.name in expression.names for p in kernel.parameters for expression in work)
        task = task_key(row)
        if not of_problem or task not in self._floors_s:
            try:
                self._floors_s[task] = floor_s(kernel, names, device_of(row))
            except ExpressionError:
                self._floors_s[task] = 0.0
        return self._floors_s[task]


def deviation(times_s: Sequence[float]) -> float:
    """Median absolute deviation over the median: what one sample in two is off by."""
    median_s = statistics.median(times_s)
    return statistics.median(abs(t - median_s) for t in times_s) / median_s


def _is_time(value: Any) -> bool:
    return isinstance(value, float) and 0.0 < value < math.inf


def _identity(row: Row) -> str:
    return f"{task_key(row)}|{json.dumps(values_of(row['config']), sort_keys=True)}"


def _refuted(rows: Iterable[tuple[str, Row]]) -> set[str]:
    """Configurations of tasks whose measurements contradict each other."""
    by_identity: dict[str, list[Row]] = {}
    for identity, row in rows:
        by_identity.setdefault(identity, []).append(row)
    return {identity for identity, same in by_identity.items() if len(same) > 1 and _contradictory(same)}


def _contradictory(rows: Sequence[Row]) -> bool:
    """Relative to the baseline of each session, where all have one."""
    timed = [row for row in rows if row["outcome"] == Outcome.OK.value]
    if not timed:
        return False
    if any(row["outcome"] in _WRONG for row in rows):
        return True
    relative = all(row.get("baseline_median_s") for row in timed)
    times = [row["median_s"] / (row["baseline_median_s"] if relative else 1.0) for row in timed]
    return bool(max(times) > CONFIRMED * min(times))
