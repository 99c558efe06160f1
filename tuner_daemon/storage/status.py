"""What the daemon is doing, for ``tunerd status``: one JSON file, replaced by rename."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner_daemon.errors import SpoolError
from tuner_daemon.storage import files

_NAME = "status.json"


def write_status(root: Path, status: Mapping[str, Any]) -> None:
    """Readers see the old status or the new one, never a half. Not synced: it means nothing after a crash.

    Raises SpoolError, DiskFullError.
    """
    with files.Guard(SpoolError)(f"status in {root}"):
        root.mkdir(parents=True, exist_ok=True)
        temp = files.temporary(root / _NAME)
        try:
            temp.write_text(json.dumps(status, indent=1, default=str))
            temp.replace(root / _NAME)
        except OSError:
            temp.unlink(missing_ok=True)
            raise


def read_status(root: Path) -> dict[str, Any] | None:
    """The last status; None if there is none or it cannot be read."""
    try:
        status = json.loads((root / _NAME).read_text())
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) else None
