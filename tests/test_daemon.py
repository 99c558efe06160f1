"""The daemon's turn: every spec ends somewhere with a reason, and the daemon goes on with the next one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fakes_session import scripted_task
from tuner_daemon.daemon import Daemon
from tuner_daemon.engine import Answer
from tuner_daemon.errors import (
    DeviceError,
    DiskFullError,
    InputError,
    JobInterruptedError,
    LogError,
    MissingPartError,
    SpecError,
    TuningError,
)
from tuner_daemon.progress import Progress
from tuner_daemon.records.spec import KernelSpec


@dataclass(frozen=True)
class Item:
    name: str
    path: Path
    mtime_ns: int = 0
    owner: int = 0


@dataclass
class ListSpool:
    """Folders as lists."""

    incoming: list[str] = field(default_factory=list)
    done: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    recovered: int = 0
    vanishing: bool = False
    unsettled: int = 0
    left: int = 0

    def recover(self) -> None:
        self.recovered += 1

    def scan(self) -> list[Item]:
        return [Item(name, Path(name)) for name in self.incoming]

    def claim(self, entry: Item) -> Item | None:
        self.incoming.remove(entry.name)
        return None if self.vanishing else entry

    def release(self, claimed: Item) -> None:
        self.incoming.append(claimed.name)

    def finish(self, claimed: Item, job: str) -> None:
        self.done[claimed.name] = job

    def fail(self, claimed: Item, reason: str) -> None:
        self.failed[claimed.name] = reason

    def hold(self, claimed: Item, reason: str) -> None:
        self.held[claimed.name] = reason

    def counts(self) -> Mapping[str, int]:
        return {"incoming": len(self.incoming)}


@dataclass
class ScriptedEngine:
    """Raises what the spec's name asks for, else answers."""

    raises: Mapping[str, Exception] = field(default_factory=dict)
    served: list[str] = field(default_factory=list)

    def answer(self, spec: KernelSpec, *, observe: Any, stop: threading.Event) -> Answer:
        self.served.append(spec.name)
        if spec.name in self.raises:
            raise self.raises[spec.name]
        observe(Progress("search", 1, 1, 0, 8, 0.1, counters={"device_busy_share": 0.5}))
        return Answer(f"job-{spec.name}", {"verdict": "faster"}, known=False)


def make(spool: ListSpool, engine: ScriptedEngine, **changes: Any) -> tuple[Daemon, list[dict[str, Any]], list[str]]:
    published: list[dict[str, Any]] = []
    notes: list[str] = []

    def load(path: Path) -> KernelSpec:
        if path.name.startswith("bad"):
            raise SpecError("is not TOML", file=path, remedy="see the README")
        spec = scripted_task().spec
        return KernelSpec(spec.kernel, spec.problem, spec.device, spec.budget, spec.options, path.name)

    given: dict[str, Any] = {
        "spool": spool,
        "engine": engine,
        "load": load,
        "priority_of": lambda path: 0,
        "allowed": lambda spec: None,
        "publish_status": lambda facts: published.append(dict(facts)),
        "notify": notes.append,
        "poll_s": 0.01,
    }
    return Daemon(**{**given, **changes}), published, notes


def serve_until(
    daemon: Daemon, done: Callable[[], bool], *, meanwhile: Callable[[], None] = lambda: None, wait_s: float = 5.0
) -> None:
    """Serves in a thread until ``done()``, or as long as is waited for it, and then stops the daemon."""
    thread = threading.Thread(target=daemon.serve)
    thread.start()
    meanwhile()
    for _ in range(round(wait_s / 0.01)):
        if done():
            break
        threading.Event().wait(0.01)
    daemon.stop.set()
    daemon.wake.set()
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "error", [TuningError("nothing ran"), InputError("no such key"), MissingPartError("no compiler; install gcc")]
)
def test_a_job_that_cannot_be_answered_ends_in_failed_and_the_next_one_is_served(error: Exception) -> None:
    spool = ListSpool(["one", "two"])
    daemon, _, _ = make(spool, ScriptedEngine({"one": error}))
    assert daemon.serve_one()
    assert daemon.serve_one()
    assert not daemon.serve_one()
    assert spool.failed == {"one": str(error)}
    assert spool.done == {"two": "job-two"}


def test_a_spec_that_cannot_be_read_ends_in_failed_with_the_reason() -> None:
    spool = ListSpool(["bad.toml"])
    engine = ScriptedEngine()
    daemon, _, _ = make(spool, engine)
    daemon.serve_one()
    assert spool.failed == {"bad.toml": "bad.toml: is not TOML; see the README"}
    assert engine.served == []


def test_a_spec_that_is_not_allowed_here_is_refused_before_anything_runs() -> None:
    spool, engine = ListSpool(["one"]), ScriptedEngine()
    daemon, _, _ = make(spool, engine, allowed=lambda spec: "not here")
    daemon.serve_one()
    assert (spool.failed, engine.served) == ({"one": "not here"}, [])


def test_an_interrupted_job_goes_back_to_the_queue() -> None:
    spool = ListSpool(["one"])
    daemon, _, _ = make(spool, ScriptedEngine({"one": JobInterruptedError("stopped")}))
    daemon.serve_one()
    assert spool.incoming == ["one"]
    assert not spool.failed
    assert not spool.done


def test_a_broken_device_ends_the_daemon_and_the_spec_is_neither_done_nor_failed() -> None:
    spool = ListSpool(["one"])
    daemon, _, _ = make(spool, ScriptedEngine({"one": DeviceError("the canary died")}))
    with pytest.raises(DeviceError):
        daemon.serve_one()
    assert not spool.failed
    assert not spool.done


def test_what_nobody_foresaw_holds_the_spec_and_the_next_one_is_served() -> None:
    spool = ListSpool(["one", "two"])
    daemon, _, _ = make(spool, ScriptedEngine({"one": KeyError("spec")}))
    daemon.serve_one()
    daemon.serve_one()
    assert "KeyError" in spool.held["one"]
    assert spool.done == {"two": "job-two"}


def test_a_log_that_cannot_be_trusted_ends_the_daemon() -> None:
    spool = ListSpool(["one"])
    daemon, _, _ = make(spool, ScriptedEngine({"one": LogError("fsync failed")}))
    with pytest.raises(LogError):
        daemon.serve_one()
    assert not spool.held


def test_the_most_urgent_spec_is_served_first_and_equals_in_order() -> None:
    spool, engine = ListSpool(["a", "b", "c"]), ScriptedEngine()
    daemon, _, _ = make(spool, engine, priority_of=lambda path: 5 if path.name == "b" else 0)
    while daemon.serve_one():
        pass
    assert engine.served == ["b", "a", "c"]


def test_a_waiting_spec_is_read_for_its_priority_once() -> None:
    spool, read = ListSpool([f"s{i}" for i in range(20)]), list[str]()

    def priority_of(path: Path) -> int:
        read.append(path.name)
        return 0

    daemon, _, _ = make(spool, ScriptedEngine(), priority_of=priority_of)
    while daemon.serve_one():
        pass
    assert len(spool.done) == 20
    assert sorted(read) == sorted(set(read))


def test_status_and_log_say_when_specs_are_left_where_they_are(caplog: pytest.LogCaptureFixture) -> None:
    class FullSpool(ListSpool):
        def scan(self) -> list[Item]:
            self.left = 40_000
            return super().scan()

    daemon, published, _ = make(FullSpool(["a", "b"]), ScriptedEngine())
    while daemon.serve_one():
        pass
    assert published[-1]["left_in_incoming"] == 40_000
    assert caplog.text.count("40000 specs stay in incoming/") == 1


def test_a_full_folder_is_not_scanned_before_every_job() -> None:
    class SlowSpool(ListSpool):
        scans = 0

        def scan(self) -> list[Item]:
            self.scans += 1
            time.sleep(0.02)
            return super().scan()

    spool = SlowSpool([f"s{n}" for n in range(200)])
    daemon, _, _ = make(spool, ScriptedEngine())
    while daemon.serve_one():
        pass
    assert len(spool.done) == 200
    assert spool.scans < 100


def test_a_spec_that_vanishes_between_scan_and_claim_is_no_error() -> None:
    spool = ListSpool(["one"], vanishing=True)
    daemon, _, _ = make(spool, ScriptedEngine())
    assert daemon.serve_one()
    assert not daemon.serve_one()


def test_serving_recovers_first_and_stops_when_told_with_every_spec_served() -> None:
    spool = ListSpool(["one", "two"])
    engine = ScriptedEngine()
    daemon, published, notes = make(spool, engine)
    serve_until(daemon, lambda: len(spool.done) == 2)
    assert spool.recovered == 1
    assert spool.done == {"one": "job-one", "two": "job-two"}
    assert (notes[0], notes[-1]) == ("READY=1", "STOPPING=1")
    assert "WATCHDOG=1" in notes
    assert [p["state"] for p in published if p["state"] != "tuning"][-2:] == ["waiting", "stopped"]


def test_status_shows_the_running_job_with_its_progress() -> None:
    daemon, published, notes = make(ListSpool(["one"]), ScriptedEngine())
    daemon.serve_one()
    running = next(facts["running"] for facts in published if facts["state"] == "tuning")
    assert (running["spec"], running["measured"], running["budget"]) == ("one", 1, 8)
    assert running["counters"] == {"device_busy_share": 0.5}
    assert any(note.startswith("STATUS=one: search, 1 of 8") for note in notes)


def test_the_alarm_clock_wakes_the_loop_before_the_poll_interval_is_over() -> None:
    spool = ListSpool()
    daemon, _, _ = make(spool, ScriptedEngine(), poll_s=30.0)

    def drop() -> None:
        threading.Event().wait(0.05)
        spool.incoming.append("one")
        daemon.wake.set()

    serve_until(daemon, lambda: bool(spool.done), meanwhile=drop, wait_s=2.0)
    assert spool.done == {"one": "job-one"}


def test_a_reload_is_taken_up_between_jobs_and_does_not_count_as_stopping() -> None:
    spool, engine = ListSpool(["one", "two"]), ScriptedEngine()
    reload = threading.Event()
    daemon, published, notes = make(spool, engine, reload=reload, allowed=lambda spec: reload.set())
    daemon.serve()
    assert spool.done == {"one": "job-one"}
    assert spool.incoming == ["two"]
    assert "STOPPING=1" not in notes
    assert published[-1]["state"] == "waiting"


def test_a_full_disk_pauses_the_daemon_and_loses_nothing() -> None:
    class FullSpool(ListSpool):
        full = 3

        def finish(self, claimed: Item, job: str) -> None:
            self.full -= 1
            if self.full >= 0:
                raise DiskFullError("no space left")
            super().finish(claimed, job)

    spool, engine = FullSpool(["one", "two"]), ScriptedEngine()
    daemon, _, notes = make(spool, engine)
    serve_until(daemon, lambda: len(spool.done) == 2)
    assert spool.done == {"one": "job-one", "two": "job-two"}
    assert engine.served == ["one", "two"]  # the answer of the first was not measured again
    assert "STATUS=waiting for disk space" in notes


def test_a_job_that_finds_the_disk_full_goes_back_to_the_queue() -> None:
    spool = ListSpool(["one"])
    daemon, _, _ = make(spool, ScriptedEngine({"one": DiskFullError("no space left")}))
    with pytest.raises(DiskFullError):  # so that the loop waits before it takes another
        daemon.serve_one()
    assert spool.incoming == ["one"]


def test_a_disk_that_is_full_at_the_start_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    class FullSpool(ListSpool):
        full = 3

        def recover(self) -> None:
            self.full -= 1
            if self.full >= 0:
                raise DiskFullError("no space left")
            super().recover()

    spool = FullSpool(["one"])
    daemon, _, notes = make(spool, ScriptedEngine())
    serve_until(daemon, lambda: len(spool.done) == 1)
    assert (spool.recovered, spool.done) == (1, {"one": "job-one"})
    assert notes.count("STATUS=waiting for disk space") == 3
    assert len([record for record in caplog.records if "the disk is full" in record.message]) == 1


def test_a_status_that_cannot_be_written_ends_no_job() -> None:
    def full(facts: Mapping[str, Any]) -> None:
        raise DiskFullError("no space left")

    spool = ListSpool(["one"])
    daemon, _, notes = make(spool, ScriptedEngine(), publish_status=full)
    serve_until(daemon, lambda: len(spool.done) == 1)
    assert spool.done == {"one": "job-one"}
    assert notes[-1] == "STOPPING=1"
