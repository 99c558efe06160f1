"""How the daemon's log looks: one line per event, as text or as JSON, and not more of them than a person can use."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

Format = Literal["text", "json"]

LONGEST = 2000
"""Characters of a message; what a compiler says at length is in the job's result and in the measurement log."""

BURST, PER_S = 100, 10.0
"""Lines of one kind of event: at once, and in the long run."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def configure(kind: Format) -> None:
    """The log goes to stderr, where the service manager collects it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    handler.addFilter(RateLimit())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return dict(getattr(record, "fields", {}))


def event_of(record: logging.LogRecord) -> str:
    """Of a line that is no event: the place that it comes from."""
    return str(getattr(record, "event", f"{record.name}:{record.lineno}"))


class TextFormatter(logging.Formatter):
    """``LEVEL message [exception]``; names of files and messages of compilers cannot break out of their line."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname} {_cut(record.getMessage())}"
        if skipped := getattr(record, "skipped", 0):
            line += f" ({skipped} more of these were not logged)"
        if record.exc_info:
            line += f" | {_cut(self.formatException(record.exc_info), keep_end=True)}"
        return _CONTROL.sub(lambda found: repr(found[0])[1:-1], line)


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, event, message, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": event_of(record),
            "message": _cut(record.getMessage()),
            **{name: _cut(value) if isinstance(value, str) else value for name, value in fields_of(record).items()},
        }
        if skipped := getattr(record, "skipped", 0):
            told["skipped"] = skipped
        if record.exc_info:
            told["exception"] = _cut(self.formatException(record.exc_info), keep_end=True)
        return json.dumps(told, default=str)


def _cut(text: str, *, keep_end: bool = False) -> str:
    if len(text) <= LONGEST:
        return text
    return f"[...]{text[-LONGEST:]}" if keep_end else f"{text[:LONGEST]}[...]"


@dataclass
class _Bucket:
    left: float = BURST
    at_s: float = 0.0
    skipped: int = 0


@dataclass
class RateLimit(logging.Filter):
    """Lets through so many lines of each kind; the next one that comes through says how many did not."""

    clock_s: Callable[[], float] = time.monotonic
    _buckets: dict[str, _Bucket] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def filter(self, record: logging.LogRecord) -> bool:
        with self._lock:
            now_s = self.clock_s()
            bucket = self._buckets.setdefault(event_of(record), _Bucket(at_s=now_s))
            bucket.left = min(BURST, bucket.left + PER_S * (now_s - bucket.at_s))
            bucket.at_s = now_s
            if bucket.left < 1:
                bucket.skipped += 1
                return False
            bucket.left -= 1
            record.skipped, bucket.skipped = bucket.skipped, 0
            return True
