"""Whose turn it is among the specs that wait: the highest priority first, within one the owner who was served least
recently, and of an owner the oldest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

READS_PER_SCAN = 512
"""A spec whose priority has not been read yet counts as priority 0: a flood must not keep the daemon reading."""


class Entry(Protocol):
    """A spec that waits."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def owner(self) -> int: ...

    @property
    def mtime_ns(self) -> int: ...


class Queue:
    """What the last scan saw, in order. The folder is the truth: nothing here outlives a restart."""

    def __init__(self, priority_of: Callable[[Path], int]) -> None:
        self._priority_of = priority_of
        self._priorities: dict[tuple[str, int], int] = {}  # of waiting specs, by name and mtime: each is read once
        self._waiting: dict[int, dict[int, deque[Entry]]] = {}  # priority -> owner -> oldest first
        self._turns: dict[int, int] = {}  # owner -> when last served, counted in turns

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def replace(self, entries: Sequence[Entry]) -> None:
        """Takes up what a scan found, each owner's oldest first."""
        self._learn_priorities(entries)
        self._waiting = {}
        for entry in entries:
            owners = self._waiting.setdefault(self._priorities.get(_version(entry), 0), {})
            owners.setdefault(entry.owner, deque()).append(entry)

    def pop(self) -> Entry:
        """The spec whose turn it is. Raises ValueError if nothing waits."""
        priority = max(self._waiting)
        owners = self._waiting[priority]
        owner = min(owners, key=lambda owner: (self._turns.get(owner, 0), owner))
        entry = owners[owner].popleft()
        self._turns[owner] = 1 + max(self._turns.values(), default=0)
        if not owners[owner]:
            del owners[owner]
        if not owners:
            del self._waiting[priority]
        return entry

    def _learn_priorities(self, entries: Sequence[Entry]) -> None:
        known, self._priorities = self._priorities, {}
        unread = 0
        for entry in entries if len(entries) > 1 else ():
            version = _version(entry)
            if version in known:
                self._priorities[version] = known[version]
            elif unread < READS_PER_SCAN:
                unread += 1
                self._priorities[version] = self._priority_of(entry.path)


def _version(entry: Entry) -> tuple[str, int]:
    return entry.name, entry.mtime_ns
