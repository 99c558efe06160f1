"""Whose turn it is: priority first, then the owner who waited longest, then age."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuner_daemon.queue import READS_PER_SCAN, Queue


@dataclass(frozen=True)
class Item:
    name: str
    owner: int = 0
    mtime_ns: int = 0

    @property
    def path(self) -> Path:
        return Path(self.name)


def urgency(path: Path) -> int:
    return int(path.name.split("-")[1]) if "-" in path.name else 0


def drained(queue: Queue) -> list[str]:
    names = []
    while queue:
        names.append(queue.pop().name)
    return names


def test_owners_take_turns_within_a_priority() -> None:
    queue = Queue(urgency)
    queue.replace([*(Item(f"a{n}", 1) for n in range(4)), Item("b", 2), Item("c", 3), Item("a-9", 1)])
    assert drained(queue) == ["a-9", "b", "c", "a0", "a1", "a2", "a3"]
    alone = Queue(urgency)  # negative control: one owner, oldest first
    alone.replace([Item(name) for name in ("a0", "a1", "b")])
    assert drained(alone) == ["a0", "a1", "b"]


def test_nobody_starves_while_another_always_has_something_urgent() -> None:
    """A turn after the last one served would always come to the same owner here."""
    queue, served = Queue(urgency), []
    for n in range(12):
        waiting = [Item(f"a{n}", 1), Item(f"b{n}", 2), *([Item(f"c{n}-9", 3)] if n % 2 else [])]
        queue.replace(waiting)
        served.append(queue.pop().owner)
    assert [served.count(owner) for owner in (1, 2, 3)] == [3, 3, 6]


def test_turns_are_remembered_from_scan_to_scan() -> None:
    queue, served = Queue(urgency), []
    for _ in range(6):
        queue.replace([Item("a", 1), Item("b", 2), Item("c", 3)])
        served.append(queue.pop().name)
    assert served == ["a", "b", "c", "a", "b", "c"]


def test_a_flood_is_read_a_part_at_a_time_and_each_spec_once() -> None:
    read: list[str] = []

    def priority_of(path: Path) -> int:
        read.append(path.name)
        return int(path.name == "last")

    queue = Queue(priority_of)
    flood = [*(Item(f"s{n}") for n in range(READS_PER_SCAN)), Item("last")]
    queue.replace(flood)
    assert len(read) == READS_PER_SCAN
    assert queue.pop().name == "s0"  # the last one is not known to be urgent yet
    queue.replace(flood)
    assert queue.pop().name == "last"
    assert len(read) == len(set(read)) == len(flood)


def test_a_spec_that_is_rewritten_is_read_again_and_one_alone_is_not_read() -> None:
    read: list[str] = []

    def priority_of(path: Path) -> int:
        read.append(path.name)
        return 0

    queue = Queue(priority_of)
    queue.replace([Item("a")])
    assert read == []
    queue.replace([Item("a"), Item("b")])
    queue.replace([Item("a", mtime_ns=1), Item("b")])
    assert read == ["a", "b", "a"]
