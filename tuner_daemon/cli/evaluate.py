"""``tunerd evaluate``: which recordings, the progress bar, the table, the files."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tuner_daemon.errors import InputError
from tuner_daemon.evaluation.folds import SPLITS, Fold, given, leave_out
from tuner_daemon.evaluation.methods import method_named
from tuner_daemon.evaluation.pieces import program
from tuner_daemon.evaluation.plots import svg
from tuner_daemon.evaluation.recorded import Recorded, joined, load
from tuner_daemon.evaluation.run import Run, Wanted, evaluate
from tuner_daemon.evaluation.summary import REFERENCE, curves_of, summary
from tuner_daemon.storage import files

JSON_FORMAT = 1


def run_evaluate(
    paths: Sequence[Path],
    train: Sequence[Path],
    test: Sequence[Path],
    splits: str,
    wanted: Wanted,
    folder: Path,
    jobs: int,
) -> dict[str, Any]:
    """What ``--json`` writes. Raises InputError for what cannot be evaluated."""
    for name in wanted.methods:
        method_named(name)
    if bool(paths) == bool(train or test) or bool(train) != bool(test):
        raise InputError("name recordings to leave out in turn, or --train and --test")
    everything = [*paths, *train, *test]
    if paths:
        spaces = load(paths)
        folds = [fold for split in _splits(splits) for fold in leave_out(split, spaces)]
        if not folds:
            raise InputError("there is nothing left to train on, or nothing to search", remedy="name more recordings")
    else:
        spaces, (learned, searched) = joined(load(train), load(test))
        folds = given(learned, searched)
        if both := [spaces[at].name for at in searched if at in learned]:
            print(f"tunerd: trained on what is searched: {', '.join(both)}", file=sys.stderr)
    with _progress() as say:
        runs = evaluate(folds, spaces, everything, wanted, folder, jobs=jobs, say=say)
    return document(folds, spaces, wanted, runs)


def document(folds: Sequence[Fold], spaces: Sequence[Recorded], wanted: Wanted, runs: Sequence[Run]) -> dict[str, Any]:
    """See docs/evaluation.md."""
    return {
        "format": JSON_FORMAT,
        **asdict(wanted),
        "methods": {name: method_named(name).about for name in wanted.usable_methods()},
        "program": program(),
        "spaces": [_about(space) for space in spaces],
        "folds": [
            {
                "split": fold.split,
                "left_out": fold.left_out,
                "train": [spaces[at].name for at in fold.train],
                "test": [spaces[at].name for at in fold.test],
            }
            for fold in folds
        ],
        "summary": summary(runs),
        "runs": [asdict(run) for run in runs],
    }


def _about(space: Recorded) -> dict[str, Any]:
    return {
        "name": space.name,
        "kernel": space.kernel.name,
        "device": space.device.name,
        "problem": dict(space.rows.problem),
        "configurations": len(space.rows),
        "failures": sum(map(math.isnan, space.rows.log_s.tolist())),
        "optimum_s": float(f"{math.exp(space.optimum):.9g}"),
    }


def publish(found: Mapping[str, Any], json_file: Path | None, plot_file: Path | None) -> None:
    """Writes what was asked for. Raises InputError where it cannot be written."""
    runs = [Run(**{**run, "ratio": tuple(run["ratio"])}) for run in found["runs"]]
    texts: dict[Path | None, Callable[[], str]] = {
        json_file: lambda: json.dumps(found) + "\n",
        plot_file: lambda: svg(curves_of(runs)),
    }
    for path, text in texts.items():
        if path is None:
            continue
        try:
            files.make_folder(path.absolute().parent)
            files.publish_bytes(path.absolute(), text().encode())
        except OSError as error:
            raise InputError(f"cannot be written: {error}", file=path) from error


def show(found: Mapping[str, Any]) -> None:
    """Tables of every split."""
    console = Console()
    for part in found["summary"]:
        console.print(_figures(part))
        console.print(_differences(part))


def _figures(part: Mapping[str, Any]) -> Table:
    after = list(next(iter(part["methods"].values()))["after"])
    what = {"given": "as given"}.get(part["split"], f"one {part['split']} left out")
    title = f"{what}, {part['spaces']} spaces: best/optimum after n; share within 5 % by 50; n until there"
    table = _table(title, "after", *after, "by 50", "to 5 %", "to 1 %")
    for name, row in part["methods"].items():
        needed = ["never" if n is None else f"{n:g}" for n in row["needed"].values()]
        table.add_row(_short(name), *(f"{row['after'][n]:.3f}" for n in after), f"{row['within']:.2f}", *needed)
    return table


def _differences(part: Mapping[str, Any]) -> Table:
    """Paired: the same space and seed."""
    after = [n for n in next(iter(part["methods"].values()))["after"] if n in ("8", "32", "96")]
    title = f"{REFERENCE} over others, paired: ratio ± standard error, spaces where not worse"
    table = _table(title, "after", *after, "worst")
    for other, row in part["against"].items():
        cells = [
            f"{mean:.3f}±{100 * (error - 1):.1f}% {100 * share:.0f}%"
            for mean, error, share in (row["after"][n] for n in after)
        ]
        table.add_row(_short(other), *cells, f"{row['worst']['factor']:.3f} after {row['worst']['after']}")
    for name, by in part["training_seeds"].items():
        cells = [f"{min(by[n]):.3f} to {max(by[n]):.3f}" for n in after]
        table.add_row(_short(name), *cells, "by training seed", style="dim")
    return table


def _table(title: str, *columns: str) -> Table:
    """One that fits into 80 columns."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for at, column in enumerate(columns):
        table.add_column(column, no_wrap=True, justify="right" if at else "left")
    return table


def _short(name: str) -> str:
    return name.rpartition(":")[2]


def _splits(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in SPLITS]:
        raise InputError(f"{', '.join(unknown)} cannot be left out", remedy=f"known: {', '.join(SPLITS)}")
    return names


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        row = bar.add_task("loading", total=None)

        def say(done: int, total: int, what: str) -> None:
            bar.update(row, completed=done, total=total, description=what)

        yield say
