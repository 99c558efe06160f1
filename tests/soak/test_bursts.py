"""Many specs at once, and specs that take their time: each is taken once, and whole."""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from watchdog.observers import inotify_c

from tests.fakes_session import scripted_task
from tests.spools import Clock, spool_at, where
from tuner_daemon.daemon import Daemon
from tuner_daemon.engine import Answer
from tuner_daemon.intake.specs import priority_of
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.storage import files, incoming
from tuner_daemon.storage.incoming import Entry
from tuner_daemon.storage.spool import Spool
from tuner_daemon.storage.watcher import Watcher

SEED = 45
WITHIN_S = 90.0
GIVEN_UP_S = 800.0  # whatever else the machine does
PAUSE_S, HELD_PAUSE_S = 0.9, 50.0
SPEC = 'template = "matmul"\n[problem]\nm = 64\nn = 64\nk = 64\n'
BURST = """
import os, sys
staged, incoming, count, text = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
for n in range(count):
    with open(f"{staged}/{n:06}.toml", "w") as file:
        file.write(text)
print("ready", flush=True)
sys.stdin.readline()
for n in range(count):
    os.rename(f"{staged}/{n:06}.toml", f"{incoming}/{n:06}.toml")
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What survives a power failure is another test's matter: here it would be the disk that is timed."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Burst:
    """Another process that renames ``count`` specs in as fast as it can, when told."""

    def __init__(self, spool: Spool, count: int) -> None:
        staged = spool.root / ".staged"
        staged.mkdir()
        command = [sys.executable, "-c", BURST, str(staged), str(spool.incoming), str(count), SPEC]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def wait(self) -> None:
        assert self._line() == "done"

    def close(self) -> None:
        self.process.communicate("\n", timeout=30)


class StalledReads:
    """The module ``os`` for watchdog: reading waits until ``go`` is set, so that the kernel's queue overflows."""

    def __init__(self, go: threading.Event) -> None:
        self._go = go

    def read(self, descriptor: int, count: int) -> bytes:
        self._go.wait()
        return os.read(descriptor, count)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@dataclass
class Recorder:
    """An engine that only notes what it is asked, and stops the daemon after ``last``."""

    last: int
    stop: threading.Event
    served: Counter[str] = field(default_factory=Counter)

    def answer(self, spec: KernelSpec, **_: Any) -> Answer:
        self.served[spec.name] += 1
        if self.served.total() >= self.last:
            self.stop.set()
        return Answer("job", {"verdict": "same"}, known=True)


def serve(spool: Spool, count: int, wake: threading.Event) -> Counter[str]:
    """A daemon's loop until it has served ``count`` specs, or much longer than it may take."""
    stop, task = threading.Event(), scripted_task()
    engine = Recorder(count, stop)

    def load(path: Path) -> KernelSpec:
        return KernelSpec(task.spec.kernel, task.spec.problem, task.spec.device, name=path.name)

    parts: dict[str, Any] = {
        "spool": spool,
        "engine": engine,
        "load": load,
        "priority_of": priority_of,
        "allowed": lambda _: None,
        "publish_status": lambda _: None,
        "stop": stop,
        "wake": wake,
    }
    daemon = Daemon(**parts)
    alarm = threading.Timer(GIVEN_UP_S, stop.set)
    alarm.start()
    daemon.serve()
    alarm.cancel()
    return engine.served


class SeenSpool(Spool):
    """Notes when the scan had seen so many specs."""

    def __init__(self, root: Path, count: int) -> None:
        super().__init__(root, queue_limit=count)
        self.names, self.count, self.all_seen_s = set[str](), count, float("inf")

    def scan(self) -> list[Entry]:
        found = super().scan()
        self.names.update(entry.name for entry in found)
        if len(self.names) >= self.count:
            self.all_seen_s = min(self.all_seen_s, time.monotonic())
        return found


@contextlib.contextmanager
def watching(spool: Spool, wake: threading.Event, how: str, burst: Burst) -> Iterator[None]:
    """Begins the burst under a watcher that works ("on"), under none ("off"), or under one that reads too late."""
    if how == "off":
        burst.begin()
        yield
        return
    go = threading.Event()
    if how == "on":
        go.set()
    with pytest.MonkeyPatch.context() as stalled:
        stalled.setattr(inotify_c, "os", StalledReads(go))
        with Watcher(spool.incoming, wake) as watcher:
            assert watcher.watching
            burst.begin()
            if how == "overflowed":
                burst.wait()
            go.set()
            yield


@pytest.mark.parametrize("how", ["on", "off", "overflowed"])
@pytest.mark.parametrize("count", [500, pytest.param(50_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_each_spec_of_a_burst_is_seen_once(in_memory: Path, count: int, how: str) -> None:
    spool, wake = SeenSpool(in_memory / "spool", count), threading.Event()
    burst = Burst(spool, count)
    began_s = time.monotonic()
    with watching(spool, wake, how, burst):
        served = serve(spool, count, wake)
    served_s, seen_s = time.monotonic() - began_s, spool.all_seen_s - began_s
    burst.close()
    twice = sum(times > 1 for times in served.values())
    print(f"inotify {how}: specs {count}, taken {len(served)}, twice {twice}, seen in {seen_s:.1f} s, ", end="")
    print(f"all through in {served_s:.1f} s")
    assert set(served.values()) == {1}
    assert served.keys() == {f"{n:06}.toml" for n in range(count)}
    assert {state: len(names) for state, names in where(spool.root).items()} == {"done": count}
    assert seen_s <= WITHIN_S


def test_events_alone_miss_some(in_memory: Path) -> None:
    """Negative control: a daemon that believed its events would not know of most of these specs."""
    count = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()) + 4000
    spool, go = Spool(in_memory / "spool"), threading.Event()
    burst = Burst(spool, count)
    told: set[str] = set()
    with pytest.MonkeyPatch.context() as stalled:
        stalled.setattr(inotify_c, "os", StalledReads(go))
        with Listener(spool.incoming, told):
            burst.begin()
            burst.wait()
            go.set()
            quiet_since_s, known = time.monotonic(), 0
            while time.monotonic() - quiet_since_s < 1.0:
                time.sleep(0.05)
                if len(told) > known:
                    quiet_since_s, known = time.monotonic(), len(told)
    burst.close()
    there = len(list(spool.incoming.iterdir()))
    print(f"specs {there}, known from events {len(told)}, missed {there - len(told)}")
    assert there == count
    assert 0 < len(told) < count


class Listener:
    """Notes the names in watchdog's events, as a daemon without scans would."""

    def __init__(self, folder: Path, told: set[str]) -> None:
        from watchdog.events import FileSystemEvent, FileSystemEventHandler
        from watchdog.observers import Observer

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                for path in (event.src_path, event.dest_path):
                    if (name := Path(os.fsdecode(path)).name).endswith(".toml"):
                        told.add(name)

        self.observer = Observer()
        self.observer.schedule(Handler(), str(folder), recursive=False)

    def __enter__(self) -> None:
        self.observer.start()

    def __exit__(self, *_: object) -> None:
        self.observer.stop()
        self.observer.join(timeout=30)


@dataclass
class Writer:
    """Writes a spec in pieces, pausing; ``held``: with the file open all the while, else opened for each piece."""

    path: Path
    pieces: list[str]
    pauses_s: list[float]
    held: bool
    file: Any = None

    def write(self) -> float | None:
        """The next piece; the pause after it, None after the last."""
        if self.file is None:
            self.file = self.path.open("a")
        self.file.write(self.pieces.pop(0))
        self.file.flush()
        if not (self.held and self.pieces):
            self.file.close()
            self.file = None
        return self.pauses_s.pop(0) if self.pieces else None


def slow_writers(folder: Path, count: int, rng: random.Random) -> dict[str, Writer]:
    probe = folder / ".probe"
    with probe.open("w"):
        tells = files.is_open_for_writing(probe)
    writers = {}
    for n in range(count):
        held = tells and n % 4 == 0
        pieces = f"# {n}\n{SPEC}[options]\nforce = true\n".splitlines(keepends=True)
        longest_s = HELD_PAUSE_S if held and n % 8 == 0 else PAUSE_S
        pauses_s = [rng.uniform(0.0, longest_s) for _ in pieces]
        writers[f"{n:04}.toml"] = Writer(folder / f"{n:04}.toml", pieces, pauses_s, held)
    return writers


def taken_early(root: Path, count: int) -> tuple[int, Counter[str], float]:
    """Specs taken before they were whole, how often each was taken, and for how long it went on, in virtual seconds.

    Files are real, time is not: no test of pauses may depend on how busy the machine is.
    """
    rng, clock = random.Random(SEED), Clock()
    spool = spool_at(root, clock)
    writers = slow_writers(spool.incoming, count, rng)
    due = [(clock.now_s + rng.uniform(0.0, 20.0), name) for name in writers]
    heapq.heapify(due)
    early, taken, began_s = 0, Counter[str](), clock.now_s
    next_scan_s = clock.now_s
    while (due or taken.total() < count) and clock.now_s < began_s + 3600:
        if due and due[0][0] <= next_scan_s:
            clock.now_s, name = heapq.heappop(due)
            if (pause_s := writers[name].write()) is not None:
                heapq.heappush(due, (clock.now_s + pause_s, name))
            continue
        clock.now_s = next_scan_s
        next_scan_s += rng.uniform(0.15, 0.5)
        for entry in spool.scan():
            early += bool(writers[entry.name].pieces)
            claimed = spool.claim(entry)
            assert claimed is not None
            taken[entry.name] += 1
            if not writers[entry.name].pieces:
                spool.finish(claimed, "job")
            else:
                (spool.root / "active" / claimed.name).unlink()
                writers[entry.name].pieces.clear()
                due = [item for item in due if item[1] != entry.name]
                heapq.heapify(due)
    return early, taken, clock.now_s - began_s


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_slow_writers_are_waited_for(tmp_path: Path, count: int) -> None:
    early, taken, went_on_s = taken_early(tmp_path / "spool", count)
    print(f"writers {count} (seed {SEED}) over {went_on_s:.0f} virtual s, read early {early}, taken {len(taken)}")
    assert early == 0
    assert len(taken) == count
    assert set(taken.values()) == {1}
    assert where(tmp_path / "spool") == {"done": sorted(taken)}


def test_a_shorter_wait_would_read_them_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: one gap for all, which is enough for what was renamed in."""
    monkeypatch.setattr(incoming, "WRITTEN_S", incoming.RENAMED_S)
    early, taken, _ = taken_early(tmp_path / "spool", 60)
    print(f"read early {early} of {len(taken)}")
    assert early > 10
