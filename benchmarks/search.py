"""Our search beside others', on the same recorded spaces with the same budget: ``python -m benchmarks.search PATH…``.

PATH: what ``tunerd evaluate`` takes. Each device is left out in turn (``--leave-out``), and its spaces are searched by
the full loop with what was learned on the others, by the same loop without, by Kernel Tuner's strategies in simulation
mode and by Optuna's TPE, the last two at their defaults (extra ``[bench]``). All ask for distinct configurations, and a
failure costs one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rivals import METHODS as RIVALS
from tuner_daemon.evaluation.folds import SPLITS, leave_out
from tuner_daemon.evaluation.recorded import load
from tuner_daemon.evaluation.run import Wanted, evaluate
from tuner_daemon.evaluation.summary import summary

OURS = ("random", "floor", "full")

GOALS: Mapping[str, str] = {
    "device": "after 8: at most 1.06; after 32: 1.03; within 5 % by 50: 0.92; median to within 5 %: 5",
    "shape": "after 8: at most 1.03; after 32: 1.01; within 5 % by 50: 0.97; median to within 5 %: 3",
    "family": "never above random + 3 %; after 32: at most 1.12; within 5 % by 50: 0.60; median to within 5 %: 40",
}
"""What the full loop should reach."""


def main() -> None:
    options = parse()
    spaces = load(options.paths)
    rivals = [f"benchmarks.rivals:{name}" for name in options.rivals.split(",") if name]
    wanted = Wanted(
        options.measurements,
        options.seeds,
        min(options.training_seeds, options.seeds),
        (*OURS, *rivals),
        options.policy_steps,
    )
    runs = evaluate(
        leave_out(options.leave_out, spaces),
        spaces,
        options.paths,
        wanted,
        options.out.absolute(),
        jobs=options.jobs,
        say=say,
    )
    print(file=sys.stderr)
    for part in summary(runs):
        print(table(part))
        print(f"goals of the full loop, {part['split']} left out: {GOALS[part['split']]}")
        if options.json:
            options.json.write_text(json.dumps(part, indent=1) + "\n")


def table(part: Mapping[str, Any]) -> str:
    """Markdown, best after 32 first."""
    methods = part["methods"]
    after = list(next(iter(methods.values()))["after"])
    order = "32" if "32" in after else after[-1]
    head = ["best/optimum after", *after, "within 5 % by 50", "median to 5 %", "to 1 %"]
    lines = [head, ["---"] * len(head)]
    for name, row in sorted(methods.items(), key=lambda item: item[1]["after"][order]):
        needed = ["never" if n is None else f"{n:g}" for n in row["needed"].values()]
        lines.append([shown(name), *(f"{row['after'][n]:.3f}" for n in after), f"{row['within']:.2f}", *needed])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(name: str) -> str:
    module, _, own = name.rpartition(":")
    return own if not module else RIVALS[own].about


def say(done: int, total: int, what: str) -> None:
    print(f"\r{what}: {done} of {total} pieces", end="", file=sys.stderr, flush=True)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--leave-out", choices=sorted(SPLITS), default="device")
    parser.add_argument("--rivals", default=",".join(RIVALS), help="names with commas between them")
    parser.add_argument("--measurements", type=int, default=96)
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--training-seeds", type=int, default=3)
    parser.add_argument("--policy-steps", type=int, default=4000)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=Path("build/search"), help="where finished pieces are kept")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
