"""What people see: the progress bar, a result, the status."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tuner_daemon.progress import Progress as State


@contextmanager
def progress_bar() -> Iterator[Callable[[State], None]]:
    """Candidates built and measured, the incumbent and the speed-up, on stderr."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[phase]}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} measured, {task.fields[built]} built, {task.fields[failed]} failed"),
        TextColumn("[bold]{task.fields[incumbent]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        row = bar.add_task("tune", total=None, phase="baseline", built=0, failed=0, incumbent="")

        def observe(state: State) -> None:
            incumbent = "" if state.incumbent_s is None else f"best {seconds(state.incumbent_s)}"
            if state.speedup is not None:
                incumbent += f", {state.speedup:.2f}x"
            bar.update(
                row,
                completed=state.measured,
                total=state.budget,
                phase=state.phase,
                built=state.built,
                failed=state.failed,
                incumbent=incumbent,
            )

        yield observe


def show_result(result: Mapping[str, Any], *, known: bool = False) -> None:
    """A result.json as a person reads it."""
    best, baseline = result["best"], result["baseline"]
    head = f"{result['kernel']['name']} on {result['device']['name']}: {result['verdict']}"
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in result["outcomes"].items())
    error = best["error_norm"]
    checked = "recorded times; nothing was run" if error is None else f"verified, relative error {error:.1e}"
    lines = [
        f"proposed by {best['proposed_by'] or '?'}; {checked}",
        f"{result['measured']} measured of {result['space_size']} valid configurations ({outcomes})",
        ", ".join(f"{name} {spent:.1f} s" for name, spent in result["wall_s"].items()),
        f"models: {', '.join(sorted(set(result['models'].values()) - {''})) or 'none'}",
        *(f"note: {note}" for note in result.get("notes", ())),
    ]
    console = Console()
    console.print(Text(head + (" (known already; nothing was measured)" if known else ""), style="bold"))
    console.print(Text(f"  {result['reason']}"), soft_wrap=True)
    console.print(_comparison(best, baseline))
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)


def _comparison(best: Mapping[str, Any], baseline: Mapping[str, Any]) -> Table:
    table = Table("", "median", "95 % interval", "speed-up", "configuration")
    for name, row in (("best", best), ("baseline", baseline)):
        low, high = row["ci_s"]
        gain = f"{row.get('speedup', 1.0):.2f}x"
        table.add_row(name, seconds(row["median_s"]), f"{seconds(low)} to {seconds(high)}", gain, config(row["config"]))
    return table


def show_status(facts: Mapping[str, Any]) -> None:
    """The answer of gather_status()."""
    show_facts(f"tunerd: {facts['state']}", {k: v for k, v in facts.items() if k != "state"})


def show_facts(title: str, facts: Mapping[str, Any]) -> None:
    table = Table("", "", title=title, show_header=False)
    for name, value in facts.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{k} {v}" for k, v in value.items()) or "none"
        table.add_row(name.replace("_", " "), Text(str(value if value not in (None, []) else "none")))
    Console().print(table)


def seconds(value_s: float) -> str:
    """With a unit that suits."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if value_s * factor >= 1 or unit == "us":
            return f"{value_s * factor:.3g} {unit}"
    raise AssertionError


def config(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
