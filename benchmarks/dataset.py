"""From collected logs to what ships in ``datasets/``.

    python -m benchmarks.dataset log STATE/log … --repeats NOISE/log --into datasets/h200
    python -m benchmarks.dataset spaces STATE/log … --plan datasets/h200-spaces.toml --into datasets/h200-spaces

``log`` merges logs, keeps what passes every check of ``tuner_daemon/learning/screening.py`` (one row for each
configuration of a task, in one clock mode, of the kernels as they are in ``templates/``), writes it without host names
and device identities in single precision, and beside it a README with its figures. ``spaces`` writes every task of a
plan that has been measured whole as a kernel folder for replay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.repeatability import table
from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.intake.plans import PlannedTask, load_plan
from tuner_daemon.intake.specs import available_templates, templates_dir
from tuner_daemon.learning.dataset import Row, values_of
from tuner_daemon.learning.screening import Screened, Wanted, deviation, screen
from tuner_daemon.records.spec import DeviceRequest
from tuner_daemon.retrain import resolver
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.recording import Recording, write_recording

LIMIT_BYTES = 20_000_000
TOLERATED = ("noisy", "unconfirmed", "duplicate")  # in a space that is to be whole: it is what was measured


@dataclass(frozen=True)
class Packed:
    """What was written, and of how many."""

    rows: int
    screened: Screened
    clock_mode: str
    size_bytes: int


def main() -> int:
    options = parse()
    log = opened(options.logs)
    if options.command == "spaces":
        return show_spaces(spaces(log, options.plan, options.into, options.kind))
    packed = packed_log(log, options.into, opened(options.repeats) if options.repeats else None)
    text = readme(packed)
    (options.into / "README.md").write_text(text)
    print(text)
    if packed.size_bytes > LIMIT_BYTES:
        print(f"too large: {packed.size_bytes} bytes, at most {LIMIT_BYTES}", file=sys.stderr)
        return 1
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dataset", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, says in (("log", "merge, check and pack rows"), ("spaces", "write whole spaces for replay")):
        command = commands.add_parser(name, help=says)
        command.add_argument("logs", type=Path, nargs="+", help="folders of logs")
        command.add_argument("--into", type=Path, required=True, help="a folder that is not there yet")
        if name == "log":
            command.add_argument("--repeats", type=Path, nargs="*", help="logs of benchmarks.noise, which confirm rows")
        else:
            command.add_argument("--plan", type=Path, required=True, help="what was collected, with count = all")
            command.add_argument("--kind", default="cuda", help="the device of tasks that name none")
    return parser.parse_args()


def opened(folders: Sequence[Path]) -> ParquetLog:
    """Several logs read as one. Raises FileNotFoundError for a folder that is none."""
    for folder in folders:
        if not (folder / "measurements").is_dir():
            raise FileNotFoundError(f"{folder} is no measurement log: it has no measurements/")
    return ParquetLog(folders[0], folders[1:])


def hashes() -> dict[str, str]:
    """Of the families as they are now."""
    return {name: load_kernel(folder).sha256 for name, folder in available_templates([templates_dir()]).items()}


# -- a log ----------------------------------------------------------------------------------------------------------


def packed_log(
    log: ParquetLog, into: Path, repeats: ParquetLog | None = None, sha256: Mapping[str, str] | None = None
) -> Packed:
    """Writes the rows that pass. ``sha256``: of the kernels that are wanted, by name; by default the templates'."""
    rows: list[Row] = log.read().to_pylist()
    mode = Counter(str(row["clock_mode"] or "free") for row in rows).most_common(1)[0][0] if rows else "free"
    wanted = Wanted(mode, hashes() if sha256 is None else sha256, once=True)
    again = [] if repeats is None else repeats.read().to_pylist()
    screened = screen(rows, resolver(log), wanted, repeats=again)
    log.export(into, keys=[row["key"] for row in screened.rows], single=True)
    size = sum(path.stat().st_size for path in into.rglob("*") if path.is_file())
    return Packed(len(rows), screened, mode, size)


def readme(packed: Packed) -> str:
    """Figures of the packed rows, as Markdown."""
    rows = packed.screened.rows
    left_out = ", ".join(f"{n} {reason}" for reason, n in packed.screened.left_out.items()) or "none"
    outcomes = Counter(row["outcome"] for row in rows)
    error_norms = [row["error_norm"] for row in rows if row["error_norm"] is not None]
    figures = [
        ("rows", f"{len(rows):,} ({', '.join(f'{n:,} {outcome}' for outcome, n in outcomes.most_common())})"),
        ("left out", f"{left_out}, of {packed.rows:,}"),
        ("size", f"{packed.size_bytes / 1e6:.1f} MB"),
        ("device", ", ".join(_distinct(rows, "device_name"))),
        ("driver, runtime", f"{', '.join(_distinct(rows, 'driver'))}; {', '.join(_distinct(rows, 'runtime'))}"),
        ("compiler", ", ".join(_distinct(rows, "compiler"))),
        ("clocks", f"policy {', '.join(_distinct(rows, 'clock_policy'))}, mode {packed.clock_mode}{_clocks(rows)}"),
        ("recorded", _days(rows)),
        ("noise within a row", _noise(rows)),
        ("largest error norm", f"{max(error_norms, default=0.0):.1e}"),
    ]
    families = table("family, shapes, rows, ok, failed", [_family_cells(name, own) for name, own in by_variant(rows)])
    return f"{table('figure, value', figures)}\n\n{families}\n"


def by_variant(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows by kernel and the problem's text values: what is a binary of its own."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        texts = [str(value) for value in values_of(row["problem"]).values() if isinstance(value, str)]
        found.setdefault(" ".join([row["kernel"], *texts]), []).append(row)
    return sorted(found.items())


def _family_cells(name: str, rows: Sequence[Row]) -> tuple[object, ...]:
    shapes = {json.dumps(values_of(row["problem"]), sort_keys=True) for row in rows}
    ok = sum(row["outcome"] == "ok" for row in rows)
    return name, len(shapes), f"{len(rows):,}", f"{ok:,}", f"{len(rows) - ok:,}"


def _distinct(rows: Sequence[Row], column: str) -> list[str]:
    return sorted({str(row[column]) for row in rows if row[column]})


def _clocks(rows: Sequence[Row]) -> str:
    """The range of SM clocks that was read while rows were measured."""
    read = [row["sm_mhz"] for row in rows if row["sm_mhz"]]
    if not read:
        return ""
    low, high = min(low for low, _ in read), max(high for _, high in read)
    below = sum(low < 0.97 * high for low, _ in read) / len(read)
    return f"; SM clock {low} to {high} MHz, below 97 % of its highest in {below:.1%} of the rows"


def _days(rows: Sequence[Row]) -> str:
    days = sorted({f"{row['started_at']:%Y-%m-%d}" for row in rows})
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""


def _noise(rows: Sequence[Row]) -> str:
    spreads = sorted(deviation(row["times_s"]) for row in rows if row["times_s"] and len(row["times_s"]) > 2)
    if not spreads:
        return "unknown: no row has three samples"
    high = spreads[int(0.95 * (len(spreads) - 1))]
    return (
        f"median absolute deviation of a row's samples over their median: {statistics.median(spreads):.2%} in half of "
        f"{len(spreads):,} rows, {high:.2%} in 95 %"
    )


# -- whole spaces ---------------------------------------------------------------------------------------------------


def spaces(log: ParquetLog, plan: Path, into: Path, kind: str) -> list[Recording]:
    """Raises KernelError for a task of the plan that has not been measured whole."""
    planned = load_plan(plan, template_dirs=[templates_dir()], default_device=DeviceRequest(kind))
    return [_space(log, task, into) for task in planned if task.count is None]


def _space(log: ParquetLog, task: PlannedTask, into: Path) -> Recording:
    kernel, problem = task.spec.kernel, task.spec.problem
    screened = screen(log.read(job=task.job).to_pylist(), resolver(log))
    unsound = [key for key, reason in screened.why.items() if reason not in TOLERATED]
    words = (f"{v:g}" if isinstance(v, float) else str(v) for v in problem.values())
    folder = into / "-".join([kernel.name, *words])
    return write_recording(folder, kernel, problem, log.measurements(task.job), unsound)


def show_spaces(recordings: Sequence[Recording]) -> int:
    cells: list[Sequence[Any]] = [
        (r.folder.name, r.size, r.ok, r.size - r.ok - r.unsure, r.unsure, _kilobytes(r.folder)) for r in recordings
    ]
    print(table("space, configurations, ok, failed, disturbed, kB", cells))
    return 0


def _kilobytes(folder: Path) -> str:
    return f"{sum(path.stat().st_size for path in folder.iterdir()) / 1e3:.0f}"


if __name__ == "__main__":
    sys.exit(main())
