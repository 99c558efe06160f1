"""``tunerd`` with an audit hook: what Python opens and which processes it starts, a line each, into a file.

    python -m tests.soak.audited LOG COMMAND…

A path is written once. What libraries open in C is not seen, nor what a child does: that a child was started is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

STARTS = (
    "subprocess.Popen",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
)


def watch(log: str) -> None:
    """Never to be undone: Python has no way to take a hook away."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    seen: set[str] = set()
    here = Path.cwd()

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            line = f"open {str(here / os.fsdecode(arguments[0]))!r}"
        elif event.startswith(STARTS):
            line = f"start {event} {arguments[0]!r}"
        else:
            return
        if line not in seen:
            if len(seen) < 200_000:
                seen.add(line)
            os.write(descriptor, f"{line}\n".encode(errors="backslashreplace"))

    sys.addaudithook(hook)


if __name__ == "__main__":
    watch(sys.argv[1])
    from tuner_daemon.cli import main

    sys.argv = ["tunerd", *sys.argv[2:]]
    main()
