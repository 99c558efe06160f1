"""From rows of the measurement log to arrays that models learn from."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_model import TrainingSet
from tuner_daemon.learning.decisions import Episode
from tuner_daemon.learning.features import feature_matrix
from tuner_daemon.learning.quantities import Columns, problem_numbers
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.kernel import Kernel, Value
from tuner_daemon.records.measurement import Outcome

Row = Mapping[str, Any]
Resolver = Callable[[str], Kernel | None]
"""kernel_sha256 -> the kernel rebuilt from its declaration; None where that is lost."""

UPPER_SHARE = 0.3
REWARD_RANGE = (-3.0, 4.0)
FAILURE_REWARD = -3.0
MIN_ROWS = 4
"""A task with fewer measured times cannot say what is fast in it."""


@dataclass(frozen=True)
class Transitions:
    """Decisions of many episodes, those of an episode one after the other.

    ``states``: (n, d) float32; ``actions``: (n,) in [-1, 1]; ``rewards``: (n,), zero but at ``terminals`` (n,) bool;
    ``upper``: (n,) bool, the decision belongs to the better part of its task.
    """

    states: NDArray[np.float32]
    actions: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminals: NDArray[np.bool_]
    upper: NDArray[np.bool_]


@dataclass(frozen=True)
class TaskRows:
    """The distinct configurations tried in one task. ``indices``: (n, p) value indices in declared order;
    ``log_s``: (n,) log seconds, NaN for failures, the median where one was measured more than once."""

    key: str  # kernel, language, problem, device and clock mode
    kernel: Kernel
    problem: Mapping[str, Value]
    device: DeviceInfo
    indices: NDArray[np.int32]
    log_s: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.log_s)

    def columns(self) -> Columns:
        """Parameter name -> (n,) values."""
        return {p.name: _array(p.values)[self.indices[:, at]] for at, p in enumerate(self.kernel.parameters)}

    def features(self) -> NDArray[np.float32]:
        return feature_matrix(self.kernel, self.problem, self.device, self.columns(), len(self))

    def episode(self) -> Episode:
        return Episode(self.kernel, self.problem, self.device)

    def anchor_log_s(self) -> float:
        return problem_numbers(self.kernel, self.problem, self.device)["roofline_s"] * math.log(2.0)

    def take(self, rows: NDArray[np.integer]) -> TaskRows:
        return TaskRows(self.key, self.kernel, self.problem, self.device, self.indices[rows], self.log_s[rows])


def group(rows: Iterable[Row], resolver: Resolver) -> list[TaskRows]:
    """Tasks in order of first appearance. Left out: disturbed rows, rows whose kernel or values cannot be resolved."""
    kernels: dict[str, Kernel | None] = {}
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        if row["outcome"] == Outcome.DISTURBED.value:
            continue
        sha256 = row["kernel_sha256"]
        if sha256 not in kernels:
            kernels[sha256] = resolver(sha256)
        if kernels[sha256] is not None:
            by_task.setdefault(task_key(row), []).append(row)
    tasks = [_task(key, found, kernels[found[0]["kernel_sha256"]]) for key, found in by_task.items()]
    return [task for task in tasks if task is not None and len(task)]


def usable(tasks: Iterable[TaskRows]) -> list[TaskRows]:
    """Those with enough measured times to learn from."""
    return [task for task in tasks if np.isfinite(task.log_s).sum() >= MIN_ROWS]


def families(tasks: Iterable[TaskRows]) -> frozenset[str]:
    """Names of the kernels."""
    return frozenset(task.kernel.name for task in tasks)


def training_set(tasks: Sequence[TaskRows], *, rows_per_task: int, rng: np.random.Generator) -> TrainingSet:
    """Features and log times; a uniform sample of tasks with more rows than rows_per_task."""
    parts = [task.take(_sample(len(task), rows_per_task, rng)) for task in tasks]
    return TrainingSet(
        x=np.concatenate([part.features() for part in parts]),
        log_s=np.concatenate([part.log_s for part in parts]),
        task=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        anchor_log_s=np.array([part.anchor_log_s() for part in parts]),
    )


def transitions(tasks: Sequence[TaskRows], *, rows_per_task: int, rng: np.random.Generator) -> Transitions:
    """Decisions of every task's rows: at most rows_per_task drawn from all, and as many from the upper part.

    Rewards are standardised with all rows of their task, whatever is drawn.
    """
    parts = [_task_transitions(task, rows_per_task, rng) for task in tasks]
    return Transitions(
        np.concatenate([part.states for part in parts]),
        np.concatenate([part.actions for part in parts]),
        np.concatenate([part.rewards for part in parts]),
        np.concatenate([part.terminals for part in parts]),
        np.concatenate([part.upper for part in parts]),
    )


def rewards(log_s: NDArray[np.float64]) -> NDArray[np.float32]:
    """(n,) standardised log speed within a task, clipped; a failure is as bad as the worst clipped time."""
    measured = log_s[np.isfinite(log_s)]
    score = (measured.mean() - log_s) / max(float(measured.std()), 1e-6)
    return np.where(np.isfinite(score), np.clip(score, *REWARD_RANGE), FAILURE_REWARD).astype(np.float32)


def upper_part(log_s: NDArray[np.float64], share: float = UPPER_SHARE) -> NDArray[np.bool_]:
    """(n,) among the fastest share of the measured; at least one."""
    return log_s <= np.nanquantile(log_s, share)


def _task_transitions(task: TaskRows, rows_per_task: int, rng: np.random.Generator) -> Transitions:
    reward, upper = rewards(task.log_s), upper_part(task.log_s)
    drawn = _sample(len(task), rows_per_task, rng)
    best = np.flatnonzero(upper)
    drawn = np.union1d(drawn, best[_sample(len(best), rows_per_task, rng)])
    states, actions = task.episode().states_of(task.indices[drawn])
    n, steps = actions.shape
    last = np.zeros((n, steps), dtype=np.bool_)
    last[:, -1] = True
    return Transitions(
        states.reshape(n * steps, -1),
        actions.reshape(-1),
        np.where(last, reward[drawn][:, None], np.float32(0.0)).reshape(-1),
        last.reshape(-1),
        np.repeat(upper[drawn], steps),
    )


def _sample(n: int, most: int, rng: np.random.Generator) -> NDArray[np.intp]:
    return np.arange(n) if n <= most else np.sort(rng.choice(n, size=most, replace=False))


def task_key(row: Row) -> str:
    """Rows under one key may be compared: same kernel, problem, device and clock mode."""
    problem = json.dumps(values_of(row["problem"]), sort_keys=True)
    parts = (row["kernel_sha256"], row.get("language"), problem, row["device_name"], row.get("clock_mode"))
    return "|".join(str(part) for part in parts)


def _task(key: str, rows: Sequence[Row], kernel: Kernel | None) -> TaskRows | None:
    if kernel is None:
        return None
    positions = [{json.dumps(value): at for at, value in enumerate(p.values)} for p in kernel.parameters]
    names = [p.name for p in kernel.parameters]
    times: dict[tuple[int, ...], list[float]] = {}
    relative = all(row.get("baseline_median_s") for row in rows if row["outcome"] == Outcome.OK.value)
    for row in rows:
        config = values_of(row["config"])
        index = tuple(
            position.get(json.dumps(config.get(name)), -1) for name, position in zip(names, positions, strict=True)
        )
        if -1 not in index:
            found = times.setdefault(index, [])
            if row["outcome"] == Outcome.OK.value:
                found.append(math.log(row["median_s"]) - (math.log(row["baseline_median_s"]) if relative else 0.0))
    if not times:
        return None
    level = _level(rows) if relative else 0.0
    log_s = np.array([np.median(found) + level if found else math.nan for found in times.values()])
    problem = values_of(rows[0]["problem"])
    return TaskRows(key, kernel, problem, device_of(rows[0]), np.array(list(times), dtype=np.int32), log_s)


def _level(rows: Sequence[Row]) -> float:
    """Mean log seconds of the baseline: times relative to each session's own baseline are free of drift."""
    logs = [math.log(row["baseline_median_s"]) for row in rows if row["outcome"] == Outcome.OK.value]
    return float(np.mean(logs)) if logs else 0.0


def _value(raw: Any) -> Any:
    """What a map's cell means: the log holds JSON scalars as text, other tables hold the values themselves."""
    return _parsed(raw) if isinstance(raw, str) else raw


@lru_cache(maxsize=1 << 16)
def _parsed(text: str) -> Any:
    """A log of many rows has few distinct values."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def values_of(mapping: Mapping[str, Any] | Iterable[tuple[str, Any]] | None) -> dict[str, Any]:
    """A map column's items: pyarrow gives a list of pairs."""
    return {name: _value(raw) for name, raw in (mapping.items() if isinstance(mapping, Mapping) else mapping or ())}


def device_of(row: Row) -> DeviceInfo:
    attributes = {
        name: float(value) for name, value in values_of(row.get("device_attributes")).items() if value is not None
    }
    kind = row.get("device_kind") or ("cpu" if row.get("language") == "cpu" else "cuda")
    return DeviceInfo(
        kind, 0, row["device_name"], row.get("device_uuid") or "", row.get("arch") or "", attributes=attributes
    )


def _array(values: Sequence[Value]) -> NDArray[np.generic]:
    """Numbers keep their kind; text beside numbers stays what it is."""
    mixed = len({isinstance(value, str) for value in values}) > 1
    return np.array(values, dtype=object) if mixed else np.array(values)
