"""What the parts cost on this machine: ``make bench``. One line per figure, the best of a few repeats."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.intake.specs import templates_dir
from tuner_daemon.learning.cost import LearnedCostModel
from tuner_daemon.learning.features import features
from tuner_daemon.learning.proposers import MixedProposer
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.measurement import Measurement, Proposal, Timing
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.storage.log import ParquetLog

DEVICE = DeviceInfo("cpu", 0, "bench", "bench", "x86_64")
ROWS: dict[str, Value] = {"a_layout": "row", "b_layout": "row"}
PROBLEM: dict[str, Value] = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float32", **ROWS}
PARTS, ROWS_PER_PART = 200, 8


def main() -> None:
    spec = KernelSpec(load_kernel(templates_dir() / "matmul"), PROBLEM)
    space = ParamSpace(spec.kernel, spec.problem)
    task = Task(spec, space, DEVICE)
    show("tunerd --help", best_s(start_help), "")
    show("matmul's space, made", best_s(lambda: ParamSpace(spec.kernel, spec.problem)), f"{space.size} configurations")
    rng = np.random.default_rng(0)
    show("1000 uniform samples", best_s(lambda: space.sample(1000, rng)), "")
    thousand = space.sample(1000, rng)
    show("1000 configurations' features", best_s(lambda: features(task, thousand)), "")
    history = [row(task, config, 1e-3 * (1 + i % 17)) for i, config in enumerate(thousand[: 8 * 7])]
    model = LearnedCostModel()
    show("cost model refitted to 56 rows", best_s(lambda: model.fit(task, history)), "no prior")
    proposer = MixedProposer(rng, cost_model=model)
    show("a pool of 512 proposed", best_s(lambda: proposer.propose(task, history, 512)), "no policy")
    with tempfile.TemporaryDirectory() as folder:
        bench_log(Path(folder), [row(task, config, 1e-3) for config in space.sample(PARTS * ROWS_PER_PART, rng)])


def bench_log(folder: Path, rows: list[Measurement]) -> None:
    """Appending is durable, so that what is timed is mostly fsync."""
    log = ParquetLog(folder)
    began_s = time.perf_counter()
    for begin in range(0, len(rows), ROWS_PER_PART):
        log.append(rows[begin : begin + ROWS_PER_PART])
    show(f"{ROWS_PER_PART} rows appended", (time.perf_counter() - began_s) / PARTS, f"mean of {PARTS}")
    show(f"{len(rows)} rows read", best_s(lambda: ParquetLog(folder).read()), f"from {PARTS} parts")
    log.compact()
    show(f"{len(rows)} rows read", best_s(lambda: ParquetLog(folder).read()), "compacted")


def row(task: Task, config: Config, median_s: float) -> Measurement:
    return Measurement(
        job="bench",
        kernel=task.spec.kernel.name,
        kernel_sha256=task.spec.kernel.sha256,
        language=task.spec.language,
        problem=task.spec.problem,
        config=config.as_dict(),
        space_sha256=task.space.sha256,
        ran=Timing(config, (median_s,) * 7, None, 0.0),
        device=task.device,
        round=0,
        proposal=Proposal(config, "uniform"),
        host="bench",
        started_at=datetime.now(UTC),
    )


def start_help() -> None:
    subprocess.run([sys.executable, "-m", "tuner_daemon.cli", "--help"], capture_output=True, check=True)


def best_s(action: Callable[[], object], repeats: int = 3) -> float:
    """Seconds of the fastest repeat."""

    def timed() -> Iterator[float]:
        for _ in range(repeats):
            began_s = time.perf_counter()
            action()
            yield time.perf_counter() - began_s

    return min(timed())


def show(what: str, spent_s: float, note: str) -> None:
    print(f"{what:32} {spent_s * 1e3:9.1f} ms  {note}".rstrip())


if __name__ == "__main__":
    main()
