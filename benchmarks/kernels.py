"""How good the families are: each tuned by a job as the daemon runs it, its winner against torch's call for that work.

    python -m benchmarks.kernels --kind cuda --families matmul,softmax --measurements 192 --seconds 40

Of every problem of ``benchmarks/cases.py``: the winner's time, warm and cold (medians of 50 launches), and the
library's in the same process by the same events, in turns; what it attains of a copy's bandwidth, of the roofline; its
registers, spills and occupancy, and what holds it back by these numbers. Models are used if the state folder has any.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, Case
from benchmarks.limits import Limits, held_back, limits_of
from benchmarks.problems import run_apart, settings_for
from benchmarks.repeatability import seconds, table
from tuner_daemon.cli.workshop import Workshop
from tuner_daemon.errors import TunerError
from tuner_daemon.intake.specs import available_templates, templates_dir
from tuner_daemon.interfaces import Effort
from tuner_daemon.measuring import Parts
from tuner_daemon.records.measurement import Artifact, Timing
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import Budget, DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.runners import plan

ROOT = Path(__file__).resolve().parent.parent
LAUNCHES = 50


@dataclass(frozen=True)
class Winner:
    """What a job found for a case, built, and its place in a launch."""

    case: Case
    task: Task
    artifact: Artifact
    result: Mapping[str, Any]  # result.json

    @property
    def names(self) -> Mapping[str, Any]:
        return {**self.task.spec.problem, **self.artifact.config.as_dict()}


@dataclass(frozen=True)
class Compared:
    """One line of the table. Times in seconds; ``library`` is empty where there was none."""

    case: Case
    config: Mapping[str, Any]
    measured: int
    space_size: int
    warm_s: float | None
    cold_s: float
    library: str
    library_warm_s: float | None
    library_cold_s: float | None
    difference: float | None  # of the results, relative
    limits: Limits
    held_back: str
    detail: Mapping[str, Any]

    @property
    def speed(self) -> float | None:
        """The library's time over ours, warm."""
        if self.library_warm_s is None or self.warm_s is None:
            return None
        return self.library_warm_s / self.warm_s

    @property
    def missed(self) -> list[str]:
        """Goals that were not reached, as far as they can be told."""
        pairs = (("library", self.speed, self.case.of_library), ("copy", self.limits.copy_share, self.case.of_copy))
        return [name for name, got, goal in pairs if got is not None and goal is not None and got < goal]


def main() -> int:
    options = parse()
    cases = chosen(options)
    stop_at = time.monotonic() + options.within
    done: list[Compared] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tunerd-bench-") as folder:
        state = options.state or Path(folder)
        with Workshop(settings_for(state, options.kind)) as workshop, Side(options) as side:
            for case in cases:
                began_s = time.monotonic()
                if began_s > stop_at:
                    print(f"stopped before {case.name}: the time is up", flush=True)
                    break
                try:
                    compared = compare(workshop, side, case, options)
                except (TunerError, RuntimeError) as error:
                    failed.append(f"{case.name}: {error}")
                    print(failed[-1], flush=True)
                    continue
                done.append(compared)
                print(f"{case.name}: {told(compared)} ({time.monotonic() - began_s:.0f} s)", flush=True)
                if options.json:
                    options.json.write_text(json.dumps([as_json(item) for item in done], indent=2))
            if side.copy_bytes_per_s:
                print(f"\na copy of 1 GiB: {side.copy_bytes_per_s / 1e12:.3f} TB/s")
    print(f"\n{speed_table(done)}\n\n{limits_table(done)}")
    return 1 if failed or not done else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", choices=sorted(CASES), default="cpu")
    parser.add_argument("--families", default="", help="with commas between them; default: all there are")
    parser.add_argument("--goals-only", action="store_true", help="only problems that have a goal")
    parser.add_argument("--measurements", type=int, default=192, help="of each job")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each job, at most")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds after which no problem is begun")
    parser.add_argument("--launches", type=int, default=LAUNCHES, help="timed, warm and cold each")
    parser.add_argument("--state", type=Path, help="a state folder to keep: its models, log and build cache are used")
    parser.add_argument("--json", type=Path, help="write everything here, too, after every problem")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Case]:
    """Raises ValueError for a family that is not there."""
    wanted = {name for name in options.families.split(",") if name}
    there = available_templates([templates_dir()])
    if unknown := wanted - {case.family for case in CASES[options.kind]}:
        raise ValueError(f"no problem of {', '.join(sorted(unknown))}")
    cases = [case for case in CASES[options.kind] if case.family in there and (not wanted or case.family in wanted)]
    return [case for case in cases if not options.goals_only or case.of_library or case.of_copy]


# -- one problem ----------------------------------------------------------------------------------------------------


def compare(workshop: Workshop, side: Side, case: Case, options: argparse.Namespace) -> Compared:
    winner = tuned(workshop, case, options)
    parts = workshop.parts_for(winner.task.spec.device)
    times = side.times(winner) if options.kind == "cuda" else alone(parts, winner, options.launches)
    ours, theirs = times["ours"], times.get("theirs") or {}
    limits = limits_of(
        winner.task.spec.kernel,
        winner.names,
        winner.task.device,
        winner.artifact,
        ours["warm_s"] or ours["cold_s"],
        occupancy=times["occupancy"],
        copy_bytes_per_s=side.copy_bytes_per_s,
    )
    return Compared(
        case=case,
        config=winner.artifact.config.as_dict(),
        measured=winner.result["measured"],
        space_size=winner.result["space_size"],
        warm_s=ours["warm_s"],
        cold_s=ours["cold_s"],
        library=times["library"],
        library_warm_s=theirs.get("warm_s"),
        library_cold_s=theirs.get("cold_s"),
        difference=times.get("difference"),
        limits=limits,
        held_back=held_back(limits),
        detail={"result": winner.result, "times": times},
    )


def tuned(workshop: Workshop, case: Case, options: argparse.Namespace) -> Winner:
    """By a job as the daemon runs it. Raises TunerError, RuntimeError if the winner cannot be built again."""
    kernel = workshop.template(case.family)
    given = {v.name: case.problem.get(v.name, v.default) for v in kernel.problem}
    problem = {name: value for name, value in given.items() if value is not None}
    budget = Budget(options.measurements, options.seconds)
    spec = KernelSpec(kernel, problem, DeviceRequest(options.kind), budget, name=case.family)
    result = workshop.engine.answer(spec).result
    parts = workshop.parts_for(spec.device)
    task = Task(spec, ParamSpace(kernel, problem), parts.runner.device_for(spec))
    (item,) = parts.builder.build(spec, [task.space.config(result["best"]["config"])])
    if not isinstance(item, Artifact):
        raise RuntimeError(f"the winner cannot be built again: {item.detail}")
    return Winner(case, task, item, result)


def alone(parts: Parts, winner: Winner, launches: int) -> dict[str, Any]:
    """Our side, where there is no other: by the project's own worker. Raises RuntimeError if the winner fails now."""
    ran = parts.runner.run(winner.task, winner.artifact, Effort(launches, timeout_s=60.0, ladder=()))
    if not isinstance(ran, Timing):
        raise RuntimeError(f"the winner fails: {ran.detail}")
    return {
        "ours": {"warm_s": ran.warm_median_s, "cold_s": ran.median_s},
        "library": "",
        "occupancy": ran.occupancy,
    }


class Side:
    """The process in which both sides are timed; started when it is first asked, and anew after it has ended."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self.copy_bytes_per_s: float | None = None

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(60)

    def times(self, winner: Winner) -> dict[str, Any]:
        """Raises RuntimeError if the process ends."""
        if self.copy_bytes_per_s is None:
            self.copy_bytes_per_s = self._ask({"what": "copy"})["bytes_per_s"]
        spec = winner.task.spec
        request = plan.at_problem(spec, winner.artifact, None)
        asked = {"what": "times", "family": spec.kernel.name, "sizes": dict(spec.problem), **request}
        answer = self._ask(asked)
        if answer.get("error"):
            raise RuntimeError(answer["error"])
        return answer

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "benchmarks.library_side"]
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        common = {"index": 0, "launches": self._options.launches}
        self._process.stdin.write(json.dumps({**common, **request}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the other side ended with exit status {self._process.wait(60)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


# -- what is printed ------------------------------------------------------------------------------------------------


def told(item: Compared) -> str:
    speed = "" if item.speed is None else f", {item.speed:.3f} of {item.library}"
    missed = f", missed: {', '.join(item.missed)}" if item.missed else ""
    return f"{seconds(item.warm_s or item.cold_s)}{speed}{missed}; {item.held_back}"


def speed_table(done: Sequence[Compared]) -> str:
    cells = [
        (
            item.case.name,
            _time(item.warm_s),
            _time(item.cold_s),
            item.library,
            _time(item.library_warm_s),
            _time(item.library_cold_s),
            _share(item.speed),
            _share(item.case.of_library),
            _share(item.limits.copy_share),
            _share(item.case.of_copy),
            f"{item.measured} of {item.space_size:,}",
        )
        for item in done
    ]
    columns = (
        "problem, warm, cold, library, its warm, its cold, of the library's speed, goal, of a copy's bandwidth, goal, "
        "measured"
    )
    return table(columns, cells)


def limits_table(done: Sequence[Compared]) -> str:
    cells = [
        (
            item.case.name,
            f"{item.limits.flops_per_s / 1e12:.4g}",
            _share(item.limits.flops_share),
            f"{item.limits.bytes_per_s / 1e9:.4g}",
            _share(item.limits.bytes_share),
            "" if item.limits.registers is None else item.limits.registers,
            item.held_back,
            ", ".join(f"{name} = {value}" for name, value in item.config.items()),
        )
        for item in done
    ]
    return table("problem, TFLOP/s, of peak, GB/s, of peak, registers, what holds it back, configuration", cells)


def as_json(item: Compared) -> dict[str, Any]:
    return {"name": item.case.name, "speed": item.speed, "missed": item.missed, **asdict(item)}


def _time(value: float | None) -> str:
    return "" if value is None else seconds(value)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    run_apart("benchmarks.kernels")
