"""Candidates built, checked and timed per minute, of one given list, from a cold start with empty caches.

    python -m benchmarks.throughput --kind cuda --against kernel_tuner

Against Kernel Tuner (the extra [bench]) on the same source, configurations, sizes and device, one tool after the other,
and what a launch that fails does to either. The clock starts before anything is opened and stops after the last
candidate; of ours it covers the start of the worker and the compile pool, and the reference.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.problems import Problem, half_bound, matmul, run_apart, settings_for, template
from benchmarks.repeatability import seconds, table
from tuner_daemon.builders.preamble import preamble
from tuner_daemon.cli.workshop import Workshop
from tuner_daemon.interfaces import Effort
from tuner_daemon.measuring import Bench, Building
from tuner_daemon.plan import DEFAULT_PLAN
from tuner_daemon.records.kernel import Kernel
from tuner_daemon.records.measurement import Measurement, Outcome, Proposal, Timing
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.records.task import Task

ROOT = Path(__file__).resolve().parent.parent
PROBLEMS: Mapping[str, Problem] = {"cuda": matmul(4096, 4096, 4096), "cpu": matmul(128, 128, 128)}
SHARED_BYTES = 48 << 10  # Kernel Tuner does not ask the driver for more, and launches that need it fail
ITERATIONS = 7  # Kernel Tuner's default
HONEST = 7  # candidates beside the one whose launch fails


@dataclass(frozen=True)
class Run:
    """One tool's way through the list. ``ended``: why it did not come to its end."""

    tool: str
    wall_s: float
    times_s: Mapping[int, float]  # candidate's number -> median or mean seconds, as the tool says
    failures: Mapping[int, str] = field(default_factory=dict)
    ended: str = ""
    parts_s: Mapping[str, float] = field(default_factory=dict)  # add up to wall_s
    stages_s: Mapping[str, float] = field(default_factory=dict)  # of running, in the worker

    @property
    def per_minute(self) -> float:
        return 60 * (len(self.times_s) + len(self.failures)) / self.wall_s

    @property
    def best(self) -> int | None:
        return min(self.times_s, key=self.times_s.__getitem__, default=None)


def main() -> int:
    options = parse()
    problem = PROBLEMS[options.kind]
    spec = problem.spec(template(problem.family), options.kind)
    configs = sampled(spec, options.count, options.seed)
    profile = cProfile.Profile() if options.profile else None
    with profile or nullcontext():
        runs = [ours(spec, configs)]
    rivals = [] if options.against is None else [True, False] if options.unverified else [True]
    runs += [theirs(spec, configs, verify=verify) for verify in rivals]
    print(f"{problem.name}, {len(configs)} configurations\n\n{runs_table(runs)}\n")
    traps = []
    if options.kind == "cuda":
        traps = trap(problem, against=options.against is not None)
        print(f"one launch that fails among {HONEST} honest ones\n\n{trap_table(traps)}\n")
    if profile is not None:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(40)
    if options.json:
        options.json.write_text(json.dumps({"runs": [asdict(r) for r in runs], "trap": [asdict(r) for r in traps]}))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kind", choices=sorted(PROBLEMS), default="cpu")
    parser.add_argument("--count", type=int, default=96, help="configurations")
    parser.add_argument("--seed", type=int, default=0, help="of their choice")
    parser.add_argument("--against", choices=("kernel_tuner",), help="the other tool; needs the extra [bench] and cuda")
    parser.add_argument("--unverified", action="store_true", help="the other tool once more, without its check")
    parser.add_argument("--profile", action="store_true", help="where this process spent its share")
    parser.add_argument("--json", type=Path, help="write everything here, too")
    return parser.parse_args()


def sampled(spec: KernelSpec, count: int, seed: int) -> list[Config]:
    """Uniform, of those that need no more shared memory than every launch may have."""
    drawn = ParamSpace(spec.kernel, spec.problem).sample(8 * count, np.random.default_rng(seed))
    return [config for config in drawn if shared_bytes(spec, config) <= SHARED_BYTES][:count]


def shared_bytes(spec: KernelSpec, config: Config) -> int:
    return int(spec.kernel.launch.shared_bytes.evaluate({**spec.problem, **config.as_dict()}))


# -- ours ------------------------------------------------------------------------------------------------------


def ours(spec: KernelSpec, configs: Sequence[Config]) -> Run:
    """As a job does it, but for the choice of candidates: all are built ahead, and measured in batches."""
    numbers = {config.key: number for number, config in enumerate(configs)}
    with tempfile.TemporaryDirectory(prefix="tunerd-bench-") as folder:
        began_s = time.perf_counter()
        with Workshop(settings_for(Path(folder), spec.device.kind)) as workshop:
            parts = workshop.parts_for(spec.device)
            bench = Bench(
                Task(spec, ParamSpace(spec.kernel, spec.problem), parts.runner.device_for(spec)), "bench", parts
            )
            opened_s = time.perf_counter() - began_s
            rows = measured(bench, configs)
            wall_s = time.perf_counter() - began_s
    timed = {numbers[r.ran.config.key]: r.ran.median_s for r in rows if isinstance(r.ran, Timing)}
    failed = {
        numbers[r.ran.config.key]: f"{r.ran.outcome}: {r.ran.detail}" for r in rows if not isinstance(r.ran, Timing)
    }
    spent_s = bench.watch.seconds
    rest_s = wall_s - opened_s - sum(spent_s.values())
    parts_s = {"opening": opened_s, "waiting for builds": spent_s["build"], "running": spent_s["run"], "rest": rest_s}
    stages_s = {**bench.stages_s, "launches": bench.device_s}
    return Run("tunerd", wall_s, timed, failed, parts_s=parts_s, stages_s=stages_s)


def measured(bench: Bench, configs: Sequence[Config]) -> list[Measurement]:
    building = bench.start([Proposal(config, "given") for config in configs])
    rows: list[Measurement] = []
    for round_ in range(len(configs)):
        batch = Building(building.proposals, islice(building.items, DEFAULT_PLAN.batch))
        if not bench.measure(batch, lambda: effort(rows), round_, on_each=rows.append):
            break
    return rows


def effort(rows: Sequence[Measurement]) -> Effort:
    """As a session's: candidates far behind the best so far get one sample, others as many as show where they are."""
    plan = DEFAULT_PLAN
    best_s = min((r.ran.median_s for r in rows if isinstance(r.ran, Timing)), default=None)
    if best_s is None:
        return Effort(plan.samples, timeout_s=plan.first_timeout_s)
    return Effort(plan.samples, plan.drop_factor * best_s, plan.first_timeout_s, (1 + plan.margin) * best_s)


# -- Kernel Tuner's --------------------------------------------------------------------------------------------


def theirs(spec: KernelSpec, configs: Sequence[Config], *, verify: bool) -> Run:
    """In a process of its own; what ends that is what ended the run."""
    tool = f"Kernel Tuner, {'verified' if verify else 'unverified'}"
    with tempfile.TemporaryDirectory(prefix="tunerd-bench-") as folder:
        request, reply = (Path(folder) / name for name in ("request.json", "reply.json"))
        request.write_text(json.dumps(request_for(spec, configs, verify=verify)))
        # The driver keeps what it has translated under the user's home, unless told otherwise.
        environment = {**os.environ, "CUDA_CACHE_PATH": folder, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path))}
        began_s = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.kernel_tuner_side", str(request), str(reply)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0 or not reply.exists():
            words = done.stdout.strip().splitlines() or [f"exit status {done.returncode}"]
            return Run(tool, time.perf_counter() - began_s, {}, ended=words[-1])
        return run_of(tool, json.loads(reply.read_text()))


def run_of(tool: str, reply: Mapping[str, Any]) -> Run:
    rows = reply["results"]
    return Run(
        f"{tool} ({reply['version']})",
        reply["wall_s"],
        {row["candidate"]: row["time_s"] for row in rows if row["time_s"] is not None},
        {row["candidate"]: row["error"] for row in rows if row["time_s"] is None},
        parts_s={part: sum(row[f"{part}_s"] for row in rows) for part in ("compile", "verification", "benchmark")},
    )


def request_for(spec: KernelSpec, configs: Sequence[Config], *, verify: bool) -> dict[str, Any]:
    """What ``benchmarks.kernel_tuner_side`` reads."""
    source = spec.kernel.sources["cuda"]
    return {
        "source": source.file.read_text(),
        "entry": source.entry,
        "sizes": {name: size for name, size in spec.problem.items() if isinstance(size, int)},
        "candidates": [candidate_for(spec, config) for config in configs],
        "verify": verify,
        "iterations": ITERATIONS,
    }


def candidate_for(spec: KernelSpec, config: Config) -> dict[str, Any]:
    """The same macros and the same launch."""
    launch, names = spec.kernel.launch, {**spec.problem, **config.as_dict()}
    lines = preamble(spec.kernel.parameters, config, spec.problem).splitlines()
    grid = [int(e.evaluate(names)) for e in launch.grid]
    return {
        "defines": dict(line.split(maxsplit=2)[1:] for line in lines),
        "threads": int(np.prod([int(e.evaluate(names)) for e in launch.block])),
        "grid": [*grid, *[1] * (3 - len(grid))],
        "shared_bytes": shared_bytes(spec, config),
    }


# -- a launch that fails ---------------------------------------------------------------------------------------


def trap(problem: Problem, *, against: bool) -> list[Run]:
    with tempfile.TemporaryDirectory(prefix="tunerd-bench-") as folder:
        spec, configs = trapped(problem, half_bound(Path(folder)))
        runs = [ours(spec, configs)]
        if against:
            runs += [theirs(spec, configs, verify=verify) for verify in (False, True)]
        return runs


def trapped(problem: Problem, kernel: Kernel) -> tuple[KernelSpec, list[Config]]:
    """Honest configurations with one in their middle that cannot be launched."""
    spec = problem.spec(kernel, "cuda")
    space = ParamSpace(spec.kernel, spec.problem)
    good: dict[str, Any] = {**(kernel.baseline or {}), **problem.good}
    stages, rasters = (1, 2, 3, 4), (1, 8)
    honest = [space.config({**good, "STAGES": s, "RASTER": r}) for s in stages for r in rasters][:HONEST]
    broken = space.config({**good, "HALF_BOUND": 1})
    return spec, [*honest[: HONEST // 2], broken, *honest[HONEST // 2 :]]


# -- what is printed -------------------------------------------------------------------------------------------


def runs_table(runs: Sequence[Run]) -> str:
    rows = [
        (
            run.tool,
            run.ended or f"{len(run.times_s)} ok, {len(run.failures)} failed",
            f"{run.wall_s:.1f} s",
            f"{run.per_minute:.0f}",
            "" if run.best is None else f"number {run.best}, {seconds(run.times_s[run.best])}",
            ", ".join(f"{name} {spent_s:.1f} s" for name, spent_s in run.parts_s.items()),
        )
        for run in runs
    ]
    ratios = [
        f"{runs[0].per_minute / run.per_minute:.1f} times the rate of {run.tool}" for run in runs[1:] if run.times_s
    ]
    stages = [
        f"{run.tool}, while running: {', '.join(f'{name} {spent_s:.2f} s' for name, spent_s in run.stages_s.items())}"
        for run in runs
        if run.stages_s
    ]
    return "\n\n".join([table("tool, candidates, wall, per minute, best, spent on", rows), *stages, *ratios])


def trap_table(runs: Sequence[Run]) -> str:
    broken = HONEST // 2
    rows = [
        (
            run.tool,
            run.ended or f"{len(run.times_s)} timed, {len(run.failures)} failed",
            run.failures.get(broken) or (seconds(run.times_s[broken]) if broken in run.times_s else "no result"),
            "" if run.best is None else "the failed launch" if run.best == broken else "an honest one",
        )
        for run in runs
    ]
    return table("tool, run, the failed launch, winner", rows)


def caught(run: Run) -> bool:
    """The failed launch is a failed launch, and all the others have their times."""
    said = run.failures.get(HONEST // 2, "")
    return said.startswith(Outcome.LAUNCH_FAILED) and len(run.times_s) == HONEST


if __name__ == "__main__":
    run_apart("benchmarks.throughput")
