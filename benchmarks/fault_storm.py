"""Candidates that break the device, with a good one in between: ``python -m benchmarks.fault_storm --kind cuda|cpu``.

Says whether the good one's time moved, whether the canary passed after every abnormal end, and what became of the
device's memory.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.zoo_kernels import FAULTS, THREADS, faulty
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.cuda import cuda_builder
from tuner_daemon.builders.gcc import GccBuilder
from tuner_daemon.interfaces import Builder, Effort
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.measurement import Artifact, Failure, Outcome, Timing
from tuner_daemon.records.task import Task
from tuner_daemon.runners.cpu import CpuRunner
from tuner_daemon.runners.cuda import CudaRunner
from tuner_daemon.runners.measuring import WorkerRunner

PROBLEMS: Mapping[str, Mapping[str, Value]] = {
    "cuda": {"n": 1 << 20, "rounds": 16000},  # about a millisecond on a large GPU
    "cpu": {"n": 2000, "rounds": 200},
}
HANGS_EVERY = 20  # candidates
TIMEOUT_S = {"cuda": 2.0, "cpu": 1.0}  # of those that hang
PATIENCE_S = 30.0
SAMPLES = 11


@dataclass
class Storm:
    """What happened. ``good_s``: medians of the good candidate, in order."""

    good_s: list[float] = field(default_factory=list)
    outcomes: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    faults: int = 0
    canaries: int = 0
    abnormal_ends: int = 0
    workers: int = 0
    free_before: int = 0
    free_after: int = 0
    wall_s: float = 0.0

    @property
    def largest_deviation(self) -> float:
        """Of a median of the good candidate from the median of them all."""
        middle = statistics.median(self.good_s)
        return max(abs(seconds / middle - 1.0) for seconds in self.good_s)

    @property
    def usual_deviation(self) -> float:
        """That nine in ten of those medians do not exceed."""
        middle = statistics.median(self.good_s)
        return statistics.quantiles((abs(seconds / middle - 1.0) for seconds in self.good_s), n=10)[-1]

    def wrong(self, kind: str) -> list[tuple[str, Outcome]]:
        return [(fault, outcome) for fault, outcome in self.outcomes if outcome is not expected(fault, kind)]


def expected(fault: str, kind: str) -> Outcome:
    """A processor knows no launch bounds: there the candidate exits."""
    return Outcome.CRASHED if kind == "cpu" and fault == "launch_bounds" else FAULTS[fault]


def storm(kind: str, count: int, folder: Path, *, good_every: int, problem: Mapping[str, Value] | None = None) -> Storm:
    """Runs ``count`` faults, and the good candidate after every ``good_every`` of them."""
    runner: WorkerRunner = CudaRunner() if kind == "cuda" else CpuRunner()
    cache = BuildCache(folder / "cache", 1 << 30)
    builder = cuda_builder(cache, arch=runner.device.arch, jobs=4) if kind == "cuda" else GccBuilder(cache, jobs=2)
    runner.builder = builder
    try:
        task = faulty(problem or PROBLEMS[kind]).task(folder / "kernel", runner.device)
        return _run(runner, task, built(builder, task), kind, count, good_every)
    finally:
        runner.close()
        builder.close()


def built(builder: Builder, task: Task) -> dict[str, Artifact]:
    """By fault."""
    configs = [task.space.config({"THREADS": THREADS, "FAULT": fault}) for fault in ("none", *FAULTS)]
    artifacts = {}
    for item in builder.build(task.spec, configs):
        if isinstance(item, Failure):
            raise SystemExit(f"{item.config['FAULT']} does not build: {item.detail}")
        artifacts[str(item.config["FAULT"])] = item
    return artifacts


def _run(
    runner: WorkerRunner, task: Task, artifacts: Mapping[str, Artifact], kind: str, count: int, good_every: int
) -> Storm:
    seen, began_s = Storm(), time.monotonic()
    quick = [fault for fault in FAULTS if FAULTS[fault] is not Outcome.TIMED_OUT]

    def run_good() -> None:
        ran = runner.run(task, artifacts["none"], Effort(samples=SAMPLES, timeout_s=PATIENCE_S))
        if not isinstance(ran, Timing):
            raise SystemExit(f"the good candidate fails after {seen.faults} faults: {ran.outcome}: {ran.detail}")
        seen.good_s.append(ran.median_s)

    run_good()
    seen.free_before = runner.free_bytes
    for number in range(count):
        fault = "infinite_loop" if number % HANGS_EVERY == HANGS_EVERY // 2 else quick[number % len(quick)]
        timeout_s = TIMEOUT_S[kind] if fault == "infinite_loop" else PATIENCE_S
        ran = runner.run(task, artifacts[fault], Effort(samples=SAMPLES, timeout_s=timeout_s))
        seen.outcomes[fault, ran.outcome if isinstance(ran, Failure) else Outcome.OK] += 1
        seen.faults += 1
        if seen.faults % good_every == 0:
            run_good()
    runner.settle()
    seen.canaries, seen.abnormal_ends = runner.canaries_passed, runner.abnormal_ends
    seen.workers, seen.free_after = runner.workers_started, runner.free_bytes
    seen.wall_s = time.monotonic() - began_s
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.fault_storm", description=__doc__)
    parser.add_argument("--kind", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--good-every", type=int, default=2, help="faults between two runs of the good candidate")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tunerd-storm-") as folder:
        seen = storm(options.kind, options.count, Path(folder), good_every=options.good_every)
    for (fault, outcome), times in sorted(seen.outcomes.items()):
        print(f"{fault:16} {outcome:14} {times:4}")
    print(
        f"faults: {seen.faults} in {seen.wall_s:.0f} s, with another outcome than expected: {seen.wrong(options.kind)}"
    )
    print(f"canaries passed: {seen.canaries} of {seen.abnormal_ends} abnormal ends; workers started: {seen.workers}")
    print(
        f"good candidate: {len(seen.good_s)} runs, median {statistics.median(seen.good_s) * 1e6:.1f} us, "
        f"nine in ten within {seen.usual_deviation:.2%} of it, all within {seen.largest_deviation:.2%}"
    )
    print(f"device memory: {(seen.free_before - seen.free_after) / (1 << 20):.1f} MiB less free than at the start")
    return 0 if not seen.wrong(options.kind) and seen.canaries == seen.abnormal_ends == seen.faults else 1


if __name__ == "__main__":
    sys.exit(main())
