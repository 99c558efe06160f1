"""A sample of a log's rows, measured again in a session of their own: what their times can be trusted to.

    python -m benchmarks.noise STATE/log --state NOISE --rows 500

The rows of the second session go to the log under ``--state``, by which ``benchmarks.dataset log --repeats`` leaves out
what was not confirmed. Times are compared as they are, and relative to each session's own baseline.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dataset import opened
from benchmarks.problems import run_apart, settings_for
from benchmarks.repeatability import seconds, table
from tuner_daemon.cli.workshop import Workshop
from tuner_daemon.collect import Place, Wanted
from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.intake.specs import available_templates, templates_dir
from tuner_daemon.learning.dataset import Row, values_of
from tuner_daemon.learning.screening import CONFIRMED, screen
from tuner_daemon.measuring import Bench, Parts
from tuner_daemon.records.kernel import Kernel
from tuner_daemon.records.measurement import Measurement, Proposal, Timing
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.retrain import resolver

CLASSES = ((0.0, 20e-6), (20e-6, 200e-6), (200e-6, math.inf))  # seconds: short ones are noisier


@dataclass(frozen=True)
class Pair:
    """One row and its repeat. ``relative``: the ratio of the times relative to the baselines; None without those."""

    kernel: str
    first_s: float
    again_s: float | None  # None: it failed this time
    outcome: str
    relative: float | None

    @property
    def ratio(self) -> float | None:
        return None if self.again_s is None else self.again_s / self.first_s


def main() -> int:
    options = parse()
    log = opened(options.logs)
    rows = screen(log.read().to_pylist(), resolver(log)).rows
    chosen = sampled(rows, options.rows, options.tasks, options.seed)
    pairs = repeated(chosen, options.state, stop_after_s=options.seconds)
    print(f"{len(pairs)} of {sum(map(len, chosen.values()))} rows of {len(chosen)} tasks measured again\n")
    print(spread_table(pairs))
    if options.json:
        options.json.write_text(json.dumps([asdict(pair) for pair in pairs]))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.noise", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", type=Path, nargs="+", help="folders of logs")
    parser.add_argument("--state", type=Path, required=True, help="folder for this session's log and build cache")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--tasks", type=int, default=50, help="from so many tasks at most: each takes its own inputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--json", type=Path, help="write every pair here, too")
    return parser.parse_args()


def sampled(rows: Sequence[Row], count: int, tasks: int, seed: int) -> dict[str, list[Row]]:
    """Job -> rows with a time, drawn uniformly from drawn jobs; as many of each job as there are, or as it takes."""
    by_job: dict[str, list[Row]] = {}
    for row in rows:
        if row["outcome"] == "ok" and row["proposed_by"] != "baseline":
            by_job.setdefault(row["job"], []).append(row)
    rng = np.random.default_rng(seed)
    jobs = sorted(rng.choice(sorted(by_job), size=min(tasks, len(by_job)), replace=False)) if by_job else []
    each = math.ceil(count / max(1, len(jobs)))
    drawn = {str(job): rng.permutation(len(by_job[job]))[:each] for job in jobs}
    return {job: [by_job[job][at] for at in sorted(places)] for job, places in drawn.items()}


def repeated(chosen: Mapping[str, Sequence[Row]], state: Path, *, stop_after_s: float = math.inf) -> list[Pair]:
    """Measures the rows' configurations again. Rows of kernels that have changed since are left out."""
    stop_at = time.monotonic() + stop_after_s
    families = available_templates([templates_dir()])
    pairs: list[Pair] = []
    kind = next((row["device_kind"] for rows in chosen.values() for row in rows), "cpu")
    with Workshop(settings_for(state, kind)) as workshop:
        for job, rows in chosen.items():
            kernel = load_kernel(families[rows[0]["kernel"]]) if rows[0]["kernel"] in families else None
            if time.monotonic() > stop_at:
                break
            if kernel is not None and kernel.sha256 == rows[0]["kernel_sha256"]:
                pairs += _again(workshop.parts_for(DeviceRequest(kind)), kernel, job, rows)
    return pairs


def _again(parts: Parts, kernel: Kernel, job: str, rows: Sequence[Row]) -> list[Pair]:
    spec = KernelSpec(kernel, values_of(rows[0]["problem"]), DeviceRequest(rows[0]["device_kind"]))
    task = Task(spec, ParamSpace(kernel, spec.problem), parts.runner.device_for(spec))
    parts.log.remember(kernel)
    place = Place(Wanted(task, f"again-{job}"), Bench(task, f"again-{job}", parts), known=False)
    place.best_s = min(row["median_s"] for row in rows)
    baseline = [Proposal(task.space.config(kernel.baseline), "baseline")] if kernel.baseline else []
    proposals = [*baseline, *(Proposal(_config(task, row), "again") for row in rows)]
    built = list(place.bench.start(proposals).items)
    again: dict[str, Measurement] = {}
    place.measure(proposals, built, lambda row: again.__setitem__(row.ran.config.key, row), lambda: False)
    # Rows as they were logged, with what the baseline took at their time.
    again |= {row.ran.config.key: row for row in parts.log.measurements(f"again-{job}")}
    return [_pair(row, found) for row in rows if (found := again.get(_config(task, row).key))]


def _config(task: Task, row: Row) -> Config:
    return task.space.config(values_of(row["config"]))


def _pair(row: Row, again: Measurement) -> Pair:
    if not isinstance(again.ran, Timing):
        return Pair(row["kernel"], row["median_s"], None, str(again.ran.outcome), None)
    relative = None
    if row["baseline_median_s"] and again.baseline_median_s:
        relative = again.ran.median_s / again.baseline_median_s / (row["median_s"] / row["baseline_median_s"])
    return Pair(row["kernel"], row["median_s"], again.ran.median_s, "ok", relative)


def spread_table(pairs: Sequence[Pair]) -> str:
    """By length of the launch, and of all."""
    classes = [(f"{seconds(low)} to {seconds(high)}", low, high) for low, high in CLASSES[:-1]]
    classes = [*classes, (f"from {seconds(CLASSES[-1][0])}", *CLASSES[-1]), ("all", 0.0, math.inf)]
    cells = [_cells(name, [pair for pair in pairs if low <= pair.first_s < high]) for name, low, high in classes]
    columns = "time, rows, failed now, median difference, 95 % below, relative to baseline, 95 % below, not confirmed"
    return table(columns, cells)


def _cells(name: str, pairs: Sequence[Pair]) -> Sequence[Any]:
    absolute = np.array([abs(math.log(p.ratio)) for p in pairs if p.ratio is not None])
    relative = np.array([abs(math.log(p.relative)) for p in pairs if p.relative is not None])
    refuted = sum(d > math.log(CONFIRMED) for d in (relative if len(relative) else absolute))
    failed = sum(p.ratio is None for p in pairs)
    return (name, len(pairs), failed, *_quantiles(absolute), *_quantiles(relative), int(refuted))


def _quantiles(differences: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[str, str]:
    if not len(differences):
        return "", ""
    return f"{np.expm1(np.median(differences)):.2%}", f"{np.expm1(np.quantile(differences, 0.95)):.2%}"


if __name__ == "__main__":
    run_apart("benchmarks.noise")
