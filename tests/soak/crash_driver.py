"""Ends a copy of this process at every call that changes the disk, and counts what is lost and what is there twice.

Run under the library of faults.c: ``python -m tests.soak.crash_driver '{"folder": "…", "stride": 1}'``.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from tests.soak.crash_scenarios import Scenario, scenarios, without_list_of_inputs
from tests.soak.faults import Fault, Faults


def points(faults: Faults, scenario: Scenario, folder: Path) -> Iterator[tuple[int, Fault]]:
    """Before every call, and in the middle of every write."""
    folder.mkdir()
    action = scenario.prepare(folder)
    faults.arm(folder)
    action()
    for number, call in enumerate(faults.calls, start=1):
        yield number, Fault.END
        if call == "w":
            yield number, Fault.END_IN_WRITE
    shutil.rmtree(folder)


def crash(faults: Faults, scenario: Scenario, folder: Path, number: int, fault: Fault) -> Counter[str]:
    where = folder / f"{number}-{fault}"
    where.mkdir(parents=True)
    action = scenario.prepare(where)
    if not faults.end_at(where, number, fault, action):  # a write of one byte has no middle
        shutil.rmtree(where)
        return Counter()
    try:
        found = scenario.check(where)
    except Exception as error:
        raise AssertionError(f"{scenario.name}: {fault.name} at call {number}") from error
    if found.lost or found.duplicated:
        print(f"{scenario.name}: {fault.name} at call {number}: {found}", file=sys.stderr)
    shutil.rmtree(where)
    return Counter(points=1, lost=found.lost, duplicated=found.duplicated)


def main(folder: str, stride: int, inputs_listed: bool = True) -> dict[str, int]:
    faults, total, counter = Faults(), Counter[str](), 0
    chosen = scenarios() if inputs_listed else [s for s in scenarios() if s.name == "compaction"]
    for scenario in chosen:
        with nullcontext() if inputs_listed else without_list_of_inputs():
            for number, fault in list(points(faults, scenario, Path(folder, "trace"))):
                counter += 1
                if counter % stride == 0:
                    total += crash(faults, scenario, Path(folder, "crash"), number, fault)
    return {"scenarios": len(chosen), **{name: total[name] for name in ("points", "lost", "duplicated")}}


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
