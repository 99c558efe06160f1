"""Commands: each one gathers its parts, calls one function and shows what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tuner_daemon.cli.options import ManyPaths

if TYPE_CHECKING:
    from tuner_daemon.settings import Settings

app = typer.Typer(
    name="tunerd",
    help="Tune GPU kernels: drop a spec, get a verified winner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
log_app = typer.Typer(help="The measurement log.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(log_app, name="log")
clocks_app = typer.Typer(
    help="GPU clocks: what root locks for the daemon.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(clocks_app, name="clocks")

SettingsFile = Annotated[
    Path | None, typer.Option("--settings", help="Settings file (default: $TUNERD_SETTINGS, /etc/tuner-daemon)")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


@app.command()
def serve(
    settings_file: SettingsFile = None,
    log_format: Annotated[
        Literal["text", "json"], typer.Option("--log-format", help="One line per event, as text or as JSON.")
    ] = "text",
) -> None:
    """Run the daemon in the foreground."""
    from tuner_daemon.cli.service import run_daemon

    run_daemon(lambda: _settings(settings_file), log_format)


@app.command()
def submit(
    specs: Annotated[list[Path], typer.Argument(help="Spec files, or folders with a spec.toml")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the results and print them.")] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Give up waiting after so many seconds.")] = 3600.0,
    as_json: Json = False,
    settings_file: SettingsFile = None,
) -> None:
    """Drop specs into the watched folder."""
    from tuner_daemon.cli.client import drop, is_running, wait_for
    from tuner_daemon.cli.show import show_result

    settings = _settings(settings_file)
    names = [drop(settings, spec) for spec in specs]
    if not wait:
        _print({"submitted": names} if as_json else "\n".join(f"submitted {name}" for name in names))
        return
    if not is_running(settings):
        print("tunerd: no daemon is running; waiting for one to start (tunerd serve)", file=sys.stderr)
    failed = False
    for name in names:
        answer = wait_for(settings, name, timeout_s)
        failed |= "reason" in answer and "result" not in answer
        if as_json:
            _print(answer)
        elif "result" in answer:
            show_result(answer["result"])
        else:
            print(f"tunerd: {name}: {answer['reason']}", file=sys.stderr)
    raise typer.Exit(1 if failed else 0)


@app.command()
def tune(
    spec: Annotated[Path, typer.Argument(help="A spec file, or a folder with a spec.toml")],
    as_json: Json = False,
    settings_file: SettingsFile = None,
) -> None:
    """Tune one spec here and now, with a progress bar; same engine and log as the daemon."""
    from tuner_daemon.cli.client import load
    from tuner_daemon.cli.interrupts import stop_on_signals
    from tuner_daemon.cli.show import progress_bar, show_result
    from tuner_daemon.cli.workshop import Workshop

    settings = _settings(settings_file)
    loaded = load(settings, spec)
    with stop_on_signals() as stop, Workshop(settings) as workshop:
        if as_json:
            _print(dict(workshop.engine.answer(loaded, stop=stop).result))
            return
        with progress_bar() as observe:
            answer = workshop.engine.answer(loaded, observe=observe, stop=stop)
    show_result(answer.result, known=answer.known)


@app.command()
def check(
    spec: Annotated[Path, typer.Argument(help="A spec file, or a folder with a spec.toml")],
    as_json: Json = False,
    settings_file: SettingsFile = None,
) -> None:
    """Say everything about a spec that can be said without running it."""
    from tuner_daemon.cli.client import load
    from tuner_daemon.engine import job_of
    from tuner_daemon.records.space import ParamSpace

    loaded = load(_settings(settings_file), spec)
    space = ParamSpace(loaded.kernel, loaded.problem)
    if baseline := loaded.kernel.baseline:
        space.config(baseline)
    facts = {
        "kernel": loaded.kernel.name,
        "job": job_of(loaded),
        "device": loaded.device.kind,
        "problem": dict(loaded.problem),
        "parameters": {p.name: len(p.values) for p in loaded.kernel.parameters},
        "space_size": space.size,
        "space_size_exact": space.size_exact,
        "budget": {"measurements": loaded.budget.measurements, "seconds": loaded.budget.seconds},
    }
    if as_json:
        _print(facts)
    else:
        about = "" if space.size_exact else "about "
        sizes = ", ".join(f"{name} = {value}" for name, value in loaded.problem.items())
        _print(f"{loaded.kernel.name} ({sizes}) on {loaded.device.kind}: {about}{space.size} valid configurations; ok")


@app.command()
def status(as_json: Json = False, settings_file: SettingsFile = None) -> None:
    """Show queue, running job, devices, models, last retrain and log size."""
    from tuner_daemon.cli.client import gather_status
    from tuner_daemon.cli.show import show_status

    facts = gather_status(_settings(settings_file))
    if as_json:
        _print(facts)
    else:
        show_status(facts)


@app.command()
def retrain(as_json: Json = False, settings_file: SettingsFile = None) -> None:
    """Run one offline retrain job: fit, evaluate, promote or refuse, say why."""
    from tuner_daemon.cli.workshop import run_retrain

    report = run_retrain(_settings(settings_file))
    _print(report.as_dict() if as_json else report.text())


@app.command()
def collect(
    plan: Annotated[Path, typer.Argument(help="A plan: [[task]] tables with template, problems and count")],
    seconds: Annotated[float | None, typer.Option("--seconds", min=0.0, help="Stop after so long.")] = None,
    settings_file: SettingsFile = None,
) -> None:
    """Measure widely and without bias, for pretraining. A second call goes on where the first one stopped."""
    from tuner_daemon.cli.workshop import run_collect

    run_collect(_settings(settings_file), plan, lambda line: print(line, file=sys.stderr), seconds)


@app.command(cls=ManyPaths)
def evaluate(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Logs, and folders or files of recorded spaces, to leave out in turn")
    ] = None,
    train: Annotated[list[Path] | None, typer.Option("--train", help="Instead: learn from these …")] = None,
    test: Annotated[list[Path] | None, typer.Option("--test", help="… and search these.")] = None,
    leave_out: Annotated[str, typer.Option("--leave-out", help="What to leave out.")] = "device,shape,family",
    measurements: Annotated[int, typer.Option("--measurements", min=1, help="Of each search.")] = 96,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Searches per space and method.")] = 25,
    training_seeds: Annotated[int, typer.Option("--training-seeds", min=1, help="Trainings they share.")] = 3,
    policy_steps: Annotated[int, typer.Option("--policy-steps", min=0, help="0 leaves the policy out.")] = 4000,
    methods: Annotated[str | None, typer.Option("--methods", help="Names with commas between them.")] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Where finished pieces are kept.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes (default: one per core).")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every run to this file.")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Write the curves to this file, as SVG.")] = None,
    settings_file: SettingsFile = None,
) -> None:
    """Say what learning is worth on recorded spaces that it has not seen. Stopped, it goes on where it was."""
    import os

    from tuner_daemon.cli.evaluate import publish, run_evaluate, show
    from tuner_daemon.evaluation.methods import DEFAULT_METHODS
    from tuner_daemon.evaluation.run import Wanted

    chosen = tuple(methods.split(",")) if methods else DEFAULT_METHODS
    wanted = Wanted(measurements, seeds, min(seeds, training_seeds), chosen, policy_steps)
    kept = folder or _settings(settings_file).state_dir / "evaluation"
    processes = jobs or len(os.sched_getaffinity(0))
    found = run_evaluate(paths or [], train or [], test or [], leave_out, wanted, kept.absolute(), processes)
    publish(found, json_file, plot_file)
    show(found)


@log_app.command("stats")
def log_stats(as_json: Json = False, settings_file: SettingsFile = None) -> None:
    """Count rows, parts and bytes, by kernel and outcome."""
    from tuner_daemon.cli.show import show_facts

    facts = _log(settings_file).stats()
    if as_json:
        _print(facts)
    else:
        show_facts("measurement log", facts)


@log_app.command("verify")
def log_verify(as_json: Json = False, settings_file: SettingsFile = None) -> None:
    """Read every part and compare it with its checksum."""
    log = _log(settings_file)
    damaged = log.verify()
    facts = {
        "parts": len(log.part_names()),
        "damaged": damaged,
        "skipped": dict(log.skipped),
        "unverified": log.unverified(),
    }
    lines = [
        *(f"damaged: {part}: {reason}" for part, reason in damaged.items()),
        *(f"skipped: {part}: {reason}" for part, reason in log.skipped.items()),
        *(f"no manifest, page checksums only: {part}" for part in log.unverified()),
        f"{facts['parts']} parts, {'every one is whole' if not damaged else f'{len(damaged)} damaged'}",
    ]
    _print(facts if as_json else "\n".join(lines))
    raise typer.Exit(1 if damaged else 0)


@log_app.command("compact")
def log_compact(as_json: Json = False, settings_file: SettingsFile = None) -> None:
    """Merge small parts into large ones."""
    report = _log(settings_file).compact()
    if as_json:
        _print({"merged": report.merged, "written": report.written, "rows": report.rows})
    elif report.merged:
        _print(f"{report.merged} parts merged into {report.written}, {report.rows} rows")
    else:
        _print("nothing to merge")


@log_app.command("export")
def log_export(
    folder: Annotated[Path, typer.Argument(help="A new folder, or a log to add to")],
    kernel: Annotated[str | None, typer.Option("--kernel", help="Only rows of this kernel.")] = None,
    settings_file: SettingsFile = None,
) -> None:
    """Write the rows as a log of its own, without host names, device identities and paths."""
    _print(f"{_log(settings_file).export(folder, kernel=kernel)} rows written to {folder}")


@log_app.command("import")
def log_import(
    path: Annotated[Path, typer.Argument(help="Another log's folder, or a Parquet file with its columns")],
    settings_file: SettingsFile = None,
) -> None:
    """Add the rows of another log that are not here yet."""
    _print(f"{_log(settings_file).import_parts(path)} rows added")


Gpus = Annotated[str, typer.Option("--gpus", help="Indices or UUIDs with commas between them, or all.")]
Leases = Annotated[Path | None, typer.Option("--leases", help="Folder of the leases (for trying things out).")]


@clocks_app.command("lock")
def clocks_lock(
    gpus: Gpus = "all",
    mhz: Annotated[str, typer.Option("--mhz", help='SM clock, or "base".')] = "base",
    leases: Leases = None,
) -> None:
    """Hold the SM clock of GPUs at one frequency, and say so in leases. Needs root."""
    from tuner_daemon.cli.clocks import lock

    _print(lock(gpus, mhz, leases))


@clocks_app.command("release")
def clocks_release(gpus: Gpus = "", leases: Leases = None) -> None:
    """Let go of every GPU that has a lease, and of those named. Needs root."""
    from tuner_daemon.cli.clocks import release

    _print(release(gpus, leases))


@clocks_app.command("status")
def clocks_status(as_json: Json = False, leases: Leases = None) -> None:
    """Show clock, temperature, power, clock-event reasons and lease of every GPU."""
    from tuner_daemon.cli.clocks import status

    _print(status(leases, as_json=as_json))


def _settings(file: Path | None) -> Settings:
    from tuner_daemon.settings import load_settings

    return load_settings(file)


def _log(settings_file: Path | None) -> Any:
    from tuner_daemon.storage.log import ParquetLog

    return ParquetLog(_settings(settings_file).log_dir)


def _print(what: object) -> None:
    print(what if isinstance(what, str) else json.dumps(what, indent=2, default=str))
