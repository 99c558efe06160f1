"""Shortens the wait for a dropped spec. The scan is the truth: events get lost in bursts and never come on network file
systems, so the watcher only ever says "look now"."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver

logger = logging.getLogger(__name__)


class Watcher:
    """Sets ``wake`` when something in ``folder`` changes. If it cannot watch, it says so once and the polling goes on.

    Used as a context manager, or by ``start`` and ``stop``.
    """

    def __init__(self, folder: Path, wake: threading.Event) -> None:
        self.folder, self.wake = folder, wake
        self.problem = ""  # why nothing is watched
        self._observer: BaseObserver | None = None

    @property
    def watching(self) -> bool:
        return self._observer is not None and self._observer.is_alive()

    def start(self) -> None:
        """Never raises for what the machine lacks, such as a free inotify instance."""
        from watchdog import events
        from watchdog.observers import Observer

        wake = self.wake

        class _Handler(events.FileSystemEventHandler):
            def on_any_event(self, event: events.FileSystemEvent) -> None:
                wake.set()  # an exception here would end the observer's thread: nothing but this

        # What brings something new. The kernel is not asked for more: every look and every claim would come back as
        # events, each of which costs the daemon as much as the look.
        new = [events.FileCreatedEvent, events.DirCreatedEvent, events.FileMovedEvent, events.DirMovedEvent]
        observer = Observer()
        try:
            observer.schedule(
                _Handler(), str(self.folder), recursive=False, event_filter=[*new, events.FileClosedEvent]
            )
            observer.start()
        except (OSError, RuntimeError) as error:
            self.problem = str(error)
            logger.warning("%s is not watched, only scanned: %s", self.folder, error)
            return
        self._observer = observer

    def stop(self) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            observer.join(timeout=5.0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
