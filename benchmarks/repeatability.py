"""Whether measuring again gives the same answer: ``python -m benchmarks.repeatability --kind cuda``.

spread  fixed configurations of five problems: within a worker, and between workers that are started anew
aa      one binary under four names through the race and the verdict: how often it is called different from itself
tuned   the five problems tuned twice from nothing with different seeds; then the two winners race each other
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.problems import (
    FIVE,
    Problem,
    built,
    good_config,
    narrowed,
    run_apart,
    settings_for,
    station,
    task_on,
    template,
)
from tuner_daemon.cli.workshop import Station, Workshop
from tuner_daemon.records.kernel import Kernel
from tuner_daemon.records.measurement import Artifact, Timing
from tuner_daemon.records.result import Verdict
from tuner_daemon.records.spec import Budget
from tuner_daemon.records.task import Task
from tuner_daemon.verdict import judge

Samples = NDArray[np.float64]

RACE_TIMEOUT_S = 120.0
TEN = 10
PARTS = ("spread", "aa", "tuned")


@dataclass(frozen=True)
class Spread:
    """Of one configuration; shares of its median."""

    problem: str
    median_s: float
    within: float  # standard deviation of the samples of one worker over their mean: the median worker's
    tens: float  # largest difference between medians of ten samples of one worker: the worst worker's
    shift: float  # largest difference between medians of whole workers
    samples: int
    sm_mhz: tuple[int, int] | None
    reasons: int  # clock event reasons seen, NVML's bits


@dataclass(frozen=True)
class SelfRaces:
    """One binary against itself."""

    problem: str
    pairs: int
    faster: int  # called faster than itself
    slower: int  # itself called faster than it
    floor: float  # median noise floor


@dataclass(frozen=True)
class Twice:
    """Two jobs that knew nothing of each other."""

    problem: str
    verdicts: tuple[str, str]
    median_s: tuple[float, float]  # as published
    difference: float  # of the published medians
    same_winner: bool
    in_tie_set: bool  # one winner is a member of the other's tie set
    raced: float  # second winner's time over the first's, raced against each other
    apart: bool  # called different in that race

    @property
    def agree(self) -> bool:
        return self.same_winner or self.in_tie_set or not self.apart


def main() -> int:
    options = parse()
    began_s = time.monotonic()
    problems = FIVE[options.kind]
    done: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory(prefix="tunerd-bench-") as folder:
        state = Path(folder)
        if "spread" in options.parts:
            done["spread"] = spreads(state, options.kind, problems, options.sessions, options.samples)
            print(spread_table(done["spread"]), flush=True)
        if "aa" in options.parts:
            done["aa"] = self_races(state, options.kind, problems, options.pairs, options.blocks)
            print(self_race_table(done["aa"]), flush=True)
        if "tuned" in options.parts:
            done["tuned"] = tuned_twice(
                state, options.kind, problems, options.seeds, options.measurements, options.space, options.blocks
            )
            print(twice_table(done["tuned"]), flush=True)
    print(f"took {time.monotonic() - began_s:.0f} s")
    if options.json:
        options.json.write_text(json.dumps({part: [asdict(row) for row in rows] for part, rows in done.items()}))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.repeatability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kind", choices=sorted(FIVE), default="cpu")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=PARTS, help="of spread,aa,tuned")
    parser.add_argument("--sessions", type=int, default=5, help="workers started anew, for spread")
    parser.add_argument("--samples", type=int, default=200, help="of each problem in each worker, for spread")
    parser.add_argument("--pairs", type=int, default=100, help="in all, for aa")
    parser.add_argument("--blocks", type=int, default=30, help="in a race")
    parser.add_argument("--seeds", type=int, nargs=2, default=(1, 2), help="of the two searches, for tuned")
    parser.add_argument("--measurements", type=int, default=48, help="budget of each job, for tuned")
    parser.add_argument(
        "--space", choices=("full", "narrow"), default="full", help="narrow: 48 configurations of each family"
    )
    parser.add_argument("--json", type=Path, help="write everything here, too")
    return parser.parse_args()


# -- spread ----------------------------------------------------------------------------------------------------


def spreads(state: Path, kind: str, problems: Sequence[Problem], sessions: int, samples: int) -> list[Spread]:
    seen: dict[str, list[Timing]] = {problem.name: [] for problem in problems}
    for _ in range(sessions):
        with station(settings_for(state, kind)) as opened:
            for problem in problems:
                task, artifact = good_artifact(opened, problem, kind)
                (timing,) = raced(opened, task, [artifact], samples)
                seen[problem.name].append(timing)
    return [spread_of(name, timings) for name, timings in seen.items()]


def spread_of(problem: str, workers: Sequence[Timing]) -> Spread:
    times_s = [np.array(worker.times_s) for worker in workers]
    medians_s = np.array([np.median(t) for t in times_s])
    clocks = [worker.clocks for worker in workers]
    mhz = [m for c in clocks if c.sm_mhz is not None for m in c.sm_mhz]
    reasons = 0
    for c in clocks:
        reasons |= c.reasons
    return Spread(
        problem,
        float(np.median(medians_s)),
        within=float(np.median([np.std(t, ddof=1) / np.mean(t) for t in times_s])),
        tens=max(range_of(medians_of_ten(t)) for t in times_s),
        shift=range_of(medians_s),
        samples=min(len(t) for t in times_s),
        sm_mhz=(min(mhz), max(mhz)) if mhz else None,
        reasons=reasons,
    )


def medians_of_ten(times_s: Samples) -> Samples:
    """Of consecutive samples; what is left over at the end is not used, unless that is all there is."""
    whole = len(times_s) // TEN * TEN
    medians: Samples = np.median(times_s[:whole].reshape(-1, TEN) if whole else times_s[None], axis=1)
    return medians


def range_of(values: Samples) -> float:
    return float((values.max() - values.min()) / np.median(values))


# -- one binary against itself ---------------------------------------------------------------------------------


def self_races(state: Path, kind: str, problems: Sequence[Problem], pairs: int, blocks: int) -> list[SelfRaces]:
    with station(settings_for(state, kind)) as opened:
        rows = []
        for number, problem in enumerate(problems):
            share = pairs // len(problems) + (number < pairs % len(problems))
            task, artifact = good_artifact(opened, problem, kind)
            named = [renamed(artifact, state / f"{number}-{name}") for name in ("own", "twin", "other", "its-twin")]
            rows.append(self_raced(problem.name, partial(times_of, opened, task, named, blocks), share))
        return rows


def self_raced(problem: str, race: Callable[[], Samples], pairs: int) -> SelfRaces:
    """``race``: (4, blocks) seconds of the same binary."""
    judged = [verdicts(race()) for _ in range(pairs)]
    floors = [floor for _, _, floor in judged]
    return SelfRaces(
        problem,
        pairs,
        faster=sum(faster for faster, _, _ in judged),
        slower=sum(slower for _, slower, _ in judged),
        floor=float(np.median(floors)) if floors else 0.0,
    )


def verdicts(times_s: Samples) -> tuple[bool, bool, float]:
    """Whether the other is called faster than this one, whether this one is called faster than the other, and the
    noise floor. times_s: (4, blocks) seconds of this one under two names, and of the other under two."""
    own, twin, other, its_twin = times_s
    forward, backward = judge(own, twin, other[None]), judge(other, its_twin, own[None])
    return forward.verdict is Verdict.FASTER, backward.verdict is Verdict.FASTER, forward.noise_floor


def renamed(artifact: Artifact, path: Path) -> Artifact:
    """The same binary in a file of its own."""
    shutil.copyfile(artifact.path, path)
    return replace(artifact, path=path)


# -- tuned twice -----------------------------------------------------------------------------------------------


def tuned_twice(
    state: Path,
    kind: str,
    problems: Sequence[Problem],
    seeds: Sequence[int],
    measurements: int,
    space: str,
    blocks: int,
) -> list[Twice]:
    families = sorted({problem.family for problem in problems})
    narrow = state / "narrow"
    kernels = {name: template(name) if space == "full" else narrowed(name, narrow) for name in families}
    first, second = (
        tuned(state / f"run{number}", kind, problems, kernels, seed, measurements) for number, seed in enumerate(seeds)
    )
    with station(settings_for(state, kind)) as opened:
        return [
            compared(opened, problem, kernels[problem.family], kind, pair, blocks)
            for problem, *pair in zip(problems, first, second, strict=True)
        ]


def tuned(
    state: Path,
    kind: str,
    problems: Sequence[Problem],
    kernels: Mapping[str, Kernel],
    seed: int,
    measurements: int,
) -> list[Mapping[str, Any]]:
    """result.json of each problem, from a state folder of its own."""
    budget = Budget(measurements, 600.0)
    with Workshop(settings_for(state, kind, seed=seed)) as workshop:
        specs = [problem.spec(kernels[problem.family], kind, budget) for problem in problems]
        return [workshop.engine.answer(spec).result for spec in specs]


def compared(
    opened: Station,
    problem: Problem,
    kernel: Kernel,
    kind: str,
    results: Sequence[Mapping[str, Any]],
    blocks: int,
) -> Twice:
    spec = problem.spec(kernel, kind)
    task = task_on(opened, spec)
    first, second = (task.space.config(result["best"]["config"]) for result in results)
    one, other = (built(opened, spec, config) for config in (first, second))
    times_s = times_of(opened, task, [one, one, other, other], blocks)
    faster, slower, _ = verdicts(times_s) if first != second else (False, False, 0.0)
    median_s = [float(result["best"]["median_s"]) for result in results]
    ties = [[task.space.config(tie) for tie in result["ties"]] for result in results]
    return Twice(
        problem.name,
        verdicts=(str(results[0]["verdict"]), str(results[1]["verdict"])),
        median_s=(median_s[0], median_s[1]),
        difference=abs(median_s[0] - median_s[1]) / min(median_s),
        same_winner=first == second,
        in_tie_set=second in ties[0] or first in ties[1],
        raced=float(np.exp(np.median(np.log(times_s[2] / times_s[0])))),
        apart=faster or slower,
    )


# -- on the device ---------------------------------------------------------------------------------------------


def good_artifact(opened: Station, problem: Problem, kind: str) -> tuple[Task, Artifact]:
    spec = problem.spec(template(problem.family), kind)
    return task_on(opened, spec), built(opened, spec, good_config(spec, problem))


def raced(opened: Station, task: Task, artifacts: Sequence[Artifact], blocks: int) -> list[Timing]:
    """Raises RuntimeError if one of them does not give right results: all here do."""
    ran = opened.runner.race(task, artifacts, blocks, RACE_TIMEOUT_S)
    timings = [r for r in ran if isinstance(r, Timing)]
    if len(timings) < len(ran):
        raise RuntimeError(f"{task.spec.kernel.name}: {next(r for r in ran if not isinstance(r, Timing))}")
    return timings


def times_of(opened: Station, task: Task, artifacts: Sequence[Artifact], blocks: int) -> Samples:
    """(artifacts, blocks) seconds."""
    return np.array([timing.times_s for timing in raced(opened, task, artifacts, blocks)])


# -- what is printed -------------------------------------------------------------------------------------------


def spread_table(rows: Sequence[Spread]) -> str:
    cells = [
        (
            row.problem,
            seconds(row.median_s),
            f"{row.within:.2%}",
            f"{row.tens:.2%}",
            f"{row.shift:.2%}",
            "" if row.sm_mhz is None else f"{row.sm_mhz[0]} to {row.sm_mhz[1]}",
            f"{row.reasons:#x}",
        )
        for row in rows
    ]
    return table("problem, median, CV within, medians of ten, shift between, SM MHz, reasons", cells) + "\n"


def self_race_table(rows: Sequence[SelfRaces]) -> str:
    cells = [(row.problem, row.pairs, row.faster, row.slower, f"{row.floor:.2%}") for row in rows]
    pairs, different = sum(row.pairs for row in rows), sum(row.faster + row.slower for row in rows)
    totals = ("all", pairs, sum(row.faster for row in rows), sum(row.slower for row in rows), "")
    printed = table("problem, pairs, called faster, called slower, noise floor", [*cells, totals])
    return f"{printed}\n{different} of {pairs} called different from themselves (want at most 5 %)\n"


def twice_table(rows: Sequence[Twice]) -> str:
    cells = [
        (
            row.problem,
            " / ".join(row.verdicts),
            " / ".join(seconds(s) for s in row.median_s),
            f"{row.difference:.2%}",
            yes(row.same_winner),
            yes(row.in_tie_set),
            f"{row.raced:.4f} ({'apart' if row.apart else 'not told apart'})",
        )
        for row in rows
    ]
    printed = table("problem, verdicts, published, difference, same winner, in the tie set, second over first", cells)
    agree, close = sum(row.agree for row in rows), sum(row.difference <= 0.01 for row in rows)
    return (
        f"{printed}\nthe same winner, or one that is not told from it: {agree} of {len(rows)}; "
        f"published times within 1 %: {close} of {len(rows)}\n"
    )


def table(columns: str, rows: Sequence[Sequence[object]]) -> str:
    names = columns.split(", ")
    lines = [names, ["---"] * len(names), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def seconds(s: float) -> str:
    return f"{s * 1e6:.4g} us" if s < 1e-3 else f"{s * 1e3:.4g} ms"


def yes(holds: bool) -> str:
    return "yes" if holds else "no"


if __name__ == "__main__":
    run_apart("benchmarks.repeatability")
