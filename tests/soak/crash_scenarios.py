"""What the daemon does to its disk, one action each, and what must hold wherever the process ends in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from tests.rows import DEVICE, measurement
from tests.spools import Clock, claim_first, spool_at
from tests.test_results import example_result
from tests.test_spool_crashes import drop_kind, last_step, places_of
from tuner_daemon.records.measurement import Measurement
from tuner_daemon.storage import compaction, parts
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.models import ModelStore
from tuner_daemon.storage.results import read_result, restore_results, winning_source, write_result

Action = Callable[[], object]
APRIL = datetime(2026, 4, 1, tzinfo=UTC)
MODEL = {"policy.safetensors": b"weights", "policy.json": b"{}", "prior.ubj": b"trees", "prior.json": b"{}"}


@dataclass(frozen=True)
class Found:
    """After a crash, recovery, and the same action again."""

    lost: int = 0
    duplicated: int = 0


@dataclass(frozen=True)
class Scenario:
    """``prepare`` brings a folder to where the action, which it returns, begins; ``check`` looks at what a crash left,
    goes on as a restarted daemon would, and counts."""

    name: str
    prepare: Callable[[Path], Action]
    check: Callable[[Path], Found]


# -- the log ---------------------------------------------------------------------------------------------------

OLD_ROWS = [measurement(n) for n in range(4)]
NEW_ROWS = [measurement(4), measurement(5, started_at=APRIL), measurement(6, device=replace(DEVICE, name="another"))]


def prepare_append(root: Path, before: list[Measurement]) -> Action:
    log = ParquetLog(root / "log")
    for row in before:
        log.append([row])
    return lambda: log.append(NEW_ROWS)


def check_append(root: Path, before: list[Measurement]) -> Found:
    """What was acknowledged is there; a job that goes on writes what is missing."""
    log = ParquetLog(root / "log")
    there = {row.key: row for row in log.measurements("job")}
    assert all(there[key] == row for row in NEW_ROWS if (key := row.key) in there)
    lost = sum(row.key not in there for row in before)
    log.append([row for row in NEW_ROWS if row.key not in there])
    return replace(_looked_at(root, len(before) + len(NEW_ROWS)), lost=lost)


def _looked_at(root: Path, expected: int) -> Found:
    """Rows are counted as they are stored, before equal keys are read as one."""
    log = ParquetLog(root / "log")
    assert log.verify() == {}
    stored, read = int(log.stats()["rows"]), len(log.measurements("job"))
    return Found(lost=expected - read, duplicated=stored - read)


def prepare_compaction(root: Path) -> Action:
    prepare_append(root, OLD_ROWS)()
    ParquetLog(root / "log").append([measurement(7, started_at=APRIL)])
    return ParquetLog(root / "log").compact


def check_compaction(root: Path) -> Found:
    rows = len(OLD_ROWS) + len(NEW_ROWS) + 1
    at_once = _looked_at(root, rows)
    ParquetLog(root / "log").compact()
    after = _looked_at(root, rows)
    assert ParquetLog(root / "log").stats()["parts"] == 3
    assert after == Found()
    return at_once


def prepare_interrupted_compaction(root: Path) -> Action:
    """The compact is there and so are all its inputs."""
    action = prepare_compaction(root)
    with mock.patch.object(compaction, "_delete"):
        action()
    return ParquetLog(root / "log").compact


@contextmanager
def without_list_of_inputs() -> Iterator[None]:
    """Negative control: a compaction that does not say what it replaces."""
    write = parts.write

    def silent(folder: Path, table: Any, *, name: str | None = None, inputs: Sequence[str] = ()) -> parts.Part:
        del inputs
        return write(folder, table, name=name)

    with mock.patch.object(parts, "write", silent):
        yield


# -- results and models ----------------------------------------------------------------------------------------


def write_example(root: Path, verdict_reason: str) -> Path:
    result = replace(example_result(root), reason=verdict_reason)
    return write_result(root / "results", result, defines="\n", source=winning_source(result), rows=OLD_ROWS)


def prepare_result(root: Path, older: bool) -> Action:
    example_result(root)
    if older:
        write_example(root, "older")
    return lambda: write_example(root, "newer")


def check_result(root: Path, older: bool) -> Found:
    job = example_result(root).job
    lost = 0
    for recovered in (False, True):
        if recovered:
            restore_results(root / "results")
        found = read_result(root / "results", job)
        assert found is None or found["reason"] in ("older", "newer")
        lost += older and found is None
    write_example(root, "newest")
    found = read_result(root / "results", job)
    assert found is not None
    assert found["reason"] == "newest"
    return Found(lost=lost)


def prepare_models(root: Path, champions: int) -> Action:
    store = ModelStore(root / "models")
    for n in range(champions):
        store.promote(store.publish(MODEL, {"number": n}))

    def swap() -> None:
        store.promote(store.publish(MODEL, {"number": champions}))

    return swap


def check_models(root: Path, champions: int) -> Found:
    current = ModelStore(root / "models").current()
    assert current is None or current.metadata["number"] in (champions - 1, champions)
    lost = int(current is None and champions > 0)
    store = ModelStore(root / "models")
    newest = store.publish(MODEL, {"number": champions + 1})
    store.promote(newest)
    assert store.current_version() == newest
    assert len(store.promoted()) <= 3
    return Found(lost=lost)


# -- the spool -------------------------------------------------------------------------------------------------


def prepare_move(root: Path, kind: str, action: str) -> Action:
    drop_kind(spool_at(root / "spool"), kind)
    return last_step(root / "spool", Clock(), action)


def check_move(root: Path, kind: str) -> Found:
    """In one folder, and not in active/ after recovery; a spec that waits can be served."""
    name = "a" if kind == "folder" else "a.toml"
    first, clock = places_of(root / "spool", name), Clock()
    spool = spool_at(root / "spool", clock)
    spool.recover()
    then = places_of(root / "spool", name)
    assert "active" not in then
    assert all(path.name.endswith(".attempts") for path in (root / "spool" / "active").iterdir())
    if then == ["incoming"]:
        spool.finish(claim_first(spool, clock), "job")
        assert places_of(root / "spool", name) == ["done"]
    places = [len(first), len(then)]
    return Found(lost=places.count(0), duplicated=sum(n > 1 for n in places))


MOVES = ("claim", "finish", "fail", "hold", "release", "recover", "recover to hold")
KINDS = ("file", "folder", "file with companions")


def scenarios() -> list[Scenario]:
    return [
        Scenario("append to an empty log", partial(prepare_append, before=[]), partial(check_append, before=[])),
        Scenario("append", partial(prepare_append, before=OLD_ROWS), partial(check_append, before=OLD_ROWS)),
        Scenario("compaction", prepare_compaction, check_compaction),
        Scenario("an interrupted compaction", prepare_interrupted_compaction, check_compaction),
        Scenario("result", partial(prepare_result, older=False), partial(check_result, older=False)),
        Scenario("result over an older one", partial(prepare_result, older=True), partial(check_result, older=True)),
        *(
            Scenario(f"model swap after {n}", partial(prepare_models, champions=n), partial(check_models, champions=n))
            for n in (0, 1, 4)
        ),
        *(
            Scenario(f"{move}, {kind}", partial(prepare_move, kind=kind, action=move), partial(check_move, kind=kind))
            for kind in KINDS
            for move in MOVES
        ),
    ]
