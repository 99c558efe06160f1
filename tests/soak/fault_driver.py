"""Jobs on a disk that fails once, at one call after another: whatever happens, the log says what was measured.

A daemon's loop, spool, log, results and build cache are real, the device is acted out, so that every row can be
compared with the truth. Run under the library of faults.c:
``python -m tests.soak.fault_driver '{"folder": "…", "calls": 300, "stride": 1}'``.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.fakes import spec_for, vector_add_kernel
from tests.fakes_session import NearestModel, ScriptedRunner, UniformPart
from tests.soak.faults import Fault, Faults
from tuner_daemon.builders.cache import BuildCache, Compiled
from tuner_daemon.builders.compiling import Compilation, CompileUnit, CompilingBuilder, Decided
from tuner_daemon.builders.preamble import preamble
from tuner_daemon.daemon import Daemon
from tuner_daemon.engine import Engine
from tuner_daemon.errors import TunerError
from tuner_daemon.measuring import Parts
from tuner_daemon.plan import Plan
from tuner_daemon.records.measurement import Measurement, Timing
from tuner_daemon.records.space import Config
from tuner_daemon.records.spec import Budget, DeviceRequest, KernelSpec
from tuner_daemon.storage import files
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.results import ResultStore
from tuner_daemon.storage.spool import Spool
from tuner_daemon.storage.status import write_status

JOBS, MEASUREMENTS = 2, 9
STARTS = 4  # of the daemon, for one fault
PATIENCE_S = 10.0
KINDS = (Fault.IO_ERROR, Fault.FULL, Fault.SHORT_WRITE, Fault.SHORT_THEN_FULL)


class CopyingBuilder(CompilingBuilder):
    """The real cache; the binary of a unit is its text."""

    language, compiler = "cpu", "none"

    def _identity(self) -> str:
        return "none"

    def _compilation(self, unit: CompileUnit) -> Compilation:
        return Decided(Compiled(unit.text.encode(), unit.entry, 0.0))


def seconds_of(config: Config) -> float:
    return 1e-3 * (1 + float(config["BLOCK"]) / 32 + float(config["WORK"]) / 8)


class WitnessedLog(ParquetLog):
    """Remembers what it has acknowledged."""

    acknowledged: list[str]

    def append(self, rows: Sequence[Measurement]) -> None:
        super().append(rows)
        self.acknowledged += [row.key for row in rows]


@dataclass
class Life:
    """One installation, through as many starts of its daemon as it takes."""

    root: Path
    acknowledged: list[str] = field(default_factory=list)
    restarts: int = 0
    pauses: int = 0
    waited_s: float = 0.0

    def drop(self) -> None:
        for number in range(JOBS):
            spec = Spool(self.root / "spool").incoming / f"{number}.toml"
            spec.write_text(str(number))
            os.utime(spec, (0, number))  # old enough to be whole at first sight

    def live(self) -> None:
        """Raises TunerError if the daemon ends more often than one fault can make it."""
        while True:
            try:
                self._start()
                return
            except TunerError:
                self.restarts += 1
                if self.restarts > STARTS:
                    raise

    def _start(self) -> None:
        spool, stop, began_s = Spool(self.root / "spool"), threading.Event(), time.monotonic()
        log = WitnessedLog(self.root / "log")
        log.acknowledged = self.acknowledged
        builder = CopyingBuilder(BuildCache(self.root / "cache", 1 << 30), jobs=1)
        parts = Parts(UniformPart(), NearestModel(), builder, ScriptedRunner(seconds_of, noise=0.0), log)
        results = ResultStore(spool.results, preamble=preamble)
        engine = Engine(results, lambda _: parts, lambda *_: nullcontext(), Plan(batch=3, final_blocks=8))

        def notify(note: str) -> None:
            self.pauses += note == "STATUS=waiting for disk space"
            if spool.counts()["done"] == JOBS or time.monotonic() - began_s > PATIENCE_S:
                stop.set()

        def publish(facts: Mapping[str, Any]) -> None:
            write_status(self.root, facts)

        try:
            Daemon(spool, engine, self._load, lambda _: 0, lambda _: None, publish, notify, 0.005, stop).serve()
        finally:
            builder.close()
            self.waited_s = max(self.waited_s, time.monotonic() - began_s)

    def _load(self, path: Path) -> KernelSpec:
        spec = spec_for(vector_add_kernel(self.root.parent / "kernel"), "cpu", n=1 + int(path.read_text()))
        return replace(spec, budget=Budget(MEASUREMENTS, 60.0), device=DeviceRequest("replay"))

    def wrong(self) -> list[str]:
        """What is not as it must be at the end."""
        log, found = ParquetLog(self.root / "log"), list[str]()
        jobs = set(log.read(columns=["job"]).column("job").to_pylist())
        rows = [row for job in jobs for row in log.measurements(job)]
        keys = [row.key for row in rows]
        if (counts := Spool(self.root / "spool").counts())["done"] != JOBS:
            found.append(f"specs {counts}")
        if any(not isinstance(row.ran, Timing) or row.ran.median_s != seconds_of(row.ran.config) for row in rows):
            found.append("rows that were not measured so")
        if missing := set(self.acknowledged) - set(keys):
            found.append(f"{len(missing)} acknowledged rows are gone")
        if len(rows) != JOBS * MEASUREMENTS or len({(row.job, row.ran.config) for row in rows}) != len(rows):
            found.append(f"{len(rows)} rows of {JOBS * MEASUREMENTS}")
        if log.stats()["rows"] != len(rows):
            found.append("rows stored twice")
        if damaged := log.verify():
            found.append(f"unreadable: {damaged}")
        return found


def fail_at(faults: Faults, folder: Path, number: int, kind: Fault) -> Counter[str]:
    life = Life(folder / "state")
    life.drop()
    faults.arm(life.root, number, kind)
    life.live()
    hit = faults.hit
    faults.arm(life.root)
    wrong = life.wrong()
    if hit == "fsync" and not life.restarts:
        wrong.append("an fsync error went by without a restart")
    if hit != "fsync" and kind is Fault.FULL and life.restarts:
        wrong.append("a full disk ended the daemon")
    for what in wrong:
        print(f"{kind.name} at call {number} ({hit}): {what}", file=sys.stderr)
    shutil.rmtree(folder)
    return Counter(
        faults=bool(hit),
        wrong=bool(wrong),
        restarts=life.restarts,
        pauses=life.pauses,
        fsyncs=hit == "fsync",
        longest_ms=round(1e3 * life.waited_s),
    )


def _believe(descriptor: int, path: Path) -> None:
    with suppress(OSError):
        os.fsync(descriptor)


def main(folder: str, calls: int, stride: int, believing: bool = False) -> dict[str, int]:
    logging.disable(logging.CRITICAL)
    with mock.patch.object(files, "_fsync", _believe) if believing else nullcontext():
        return fail_at_each(folder, calls, stride)


def fail_at_each(folder: str, calls: int, stride: int) -> dict[str, int]:
    faults, total, longest_ms = Faults(), Counter[str](), 0
    life = Life(Path(folder, "trace", "state"))
    life.drop()
    faults.arm(life.root)
    life.live()
    seen = faults.calls
    assert not life.wrong()
    one_of_each = {seen.index(letter) + 1 for letter in set(seen[:calls])}
    for number in sorted({*range(1, calls + 1, stride), *one_of_each}):
        for kind in KINDS:
            if kind in (Fault.IO_ERROR, Fault.FULL) or seen[number - 1] == "w":
                found = fail_at(faults, Path(folder, f"{number}-{kind}"), number, kind)
                longest_ms = max(longest_ms, found.pop("longest_ms"))
                total += found
    names = ("faults", "wrong", "restarts", "pauses", "fsyncs")
    return {"calls": len(seen), "longest_ms": longest_ms, **{name: total[name] for name in names}}


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
