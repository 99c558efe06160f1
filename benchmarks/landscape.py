"""What there is to find in a log's tasks: ``python -m benchmarks.landscape datasets/h200``.

For every family and shape: valid configurations, how many were measured, the share that failed, the best time and the
baseline's and median time over it, and how many configurations lie within 5 % of the best.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.dataset import opened
from benchmarks.repeatability import seconds, table
from tuner_daemon.learning.dataset import Resolver, Row, task_key, values_of
from tuner_daemon.learning.screening import screen
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.retrain import resolver

CLOSE = 1.05
DRAWN = ("uniform", "complete")  # what stands for the whole space


@dataclass(frozen=True)
class Landscape:
    """One task. Shares and the median are those of uniform draws; the best is that of all rows."""

    family: str
    problem: str
    size: int  # of the space
    measured: int
    drawn: int
    failed_share: float
    best_s: float
    baseline: float | None  # over the best
    median: float  # over the best
    close: int  # measured within 5 % of the best
    close_share: float


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.landscape", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", type=Path, nargs="+", help="folders of logs")
    parser.add_argument("--json", type=Path, help="write everything here, too")
    options = parser.parse_args()
    log = opened(options.logs)
    kernel_of = resolver(log)
    found = landscapes(screen(log.read().to_pylist(), kernel_of).rows, kernel_of)
    print(landscape_table(found))
    if options.json:
        options.json.write_text(json.dumps([asdict(item) for item in found], indent=2))
    return 0


def landscapes(rows: Sequence[Row], kernel_of: Resolver) -> list[Landscape]:
    """Of every task in which anything ran, by family and shape."""
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        by_task.setdefault(task_key(row), []).append(row)
    found = (_landscape(own, kernel_of) for own in by_task.values())
    return sorted((item for item in found if item is not None), key=lambda item: (item.family, item.problem))


def _landscape(rows: Sequence[Row], kernel_of: Resolver) -> Landscape | None:
    kernel = kernel_of(rows[0]["kernel_sha256"])
    times_s = list(_times_s(rows))
    drawn = [row for row in rows if row["proposed_by"] in DRAWN] or rows
    drawn_s = list(_times_s(drawn))
    if kernel is None or not drawn_s:
        return None
    problem = values_of(rows[0]["problem"])
    best_s = min(times_s)
    baseline_s = next(_times_s([row for row in rows if row["proposed_by"] == "baseline"]), None)
    return Landscape(
        family=kernel.name,
        problem=", ".join(f"{name} {value}" for name, value in problem.items()),
        size=ParamSpace(kernel, problem).size,
        measured=len({json.dumps(values_of(row["config"]), sort_keys=True) for row in rows}),
        drawn=len(drawn),
        failed_share=1 - len(drawn_s) / len(drawn),
        best_s=best_s,
        baseline=None if baseline_s is None else baseline_s / best_s,
        median=statistics.median(drawn_s) / best_s,
        close=sum(t <= CLOSE * best_s for t in times_s),
        close_share=sum(t <= CLOSE * best_s for t in drawn_s) / len(drawn_s),
    )


def _times_s(rows: Sequence[Row]) -> Iterator[float]:
    return (float(row["median_s"]) for row in rows if row["outcome"] == "ok")


def landscape_table(found: Sequence[Landscape]) -> str:
    cells = [
        (
            item.family,
            item.problem,
            f"{item.size:,}",
            item.measured,
            f"{item.failed_share:.1%}",
            seconds(item.best_s),
            "" if item.baseline is None else f"{item.baseline:.2f}",
            f"{item.median:.2f}",
            f"{item.close} ({item.close_share:.1%})",
        )
        for item in found
    ]
    columns = "family, problem, space, measured, failed, best, baseline / best, median / best, within 5 % of the best"
    return table(columns, cells)


if __name__ == "__main__":
    sys.exit(main())
