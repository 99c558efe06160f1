"""What the daemon is doing and what the last retrain job did, for ``tunerd status``: JSON files, replaced by rename."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner_daemon.errors import SpoolError
from tuner_daemon.storage import files

_STATUS, _RETRAIN = "status.json", "retrain.json"


def write_status(root: Path, status: Mapping[str, Any]) -> None:
    """What the daemon is doing now. Raises SpoolError, DiskFullError."""
    _replace(root / _STATUS, status)


def read_status(root: Path) -> dict[str, Any] | None:
    """The last status; None if there is none or it cannot be read."""
    return _read(root / _STATUS)


def write_retrain(root: Path, report: Mapping[str, Any]) -> None:
    """What a retrain job did, whether or not it promoted anything. Raises SpoolError, DiskFullError."""
    _replace(root / _RETRAIN, report)


def read_retrain(root: Path) -> dict[str, Any] | None:
    """The last retrain job's report; None if there is none or it cannot be read."""
    return _read(root / _RETRAIN)


def _replace(path: Path, facts: Mapping[str, Any]) -> None:
    """Readers see the old facts or the new ones, never a half. Not synced: nothing is lost that was not said before."""
    with files.Guard(SpoolError)(f"{path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        temp = files.temporary(path)
        try:
            temp.write_text(json.dumps(facts, indent=1, default=str))
            temp.replace(path)
        except OSError:
            temp.unlink(missing_ok=True)
            raise


def _read(path: Path) -> dict[str, Any] | None:
    try:
        facts = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) else None
