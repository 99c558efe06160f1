"""What a client of the daemon does: load a spec, drop it, wait for its answer, look at the status."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tuner_daemon.cli.defaults import default_budget, default_device, template_dirs
from tuner_daemon.errors import SpecError
from tuner_daemon.intake.specs import load_spec
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.settings import Settings
from tuner_daemon.storage import companions
from tuner_daemon.storage.results import ResultStore
from tuner_daemon.storage.spool import Spool, counts_in, is_served
from tuner_daemon.storage.status import read_retrain, read_status

POLL_S = 0.05


def load(settings: Settings, path: Path) -> KernelSpec:
    """The spec at ``path`` with this installation's templates and defaults. Raises SpecError, KernelError."""
    return load_spec(
        path,
        template_dirs=template_dirs(settings),
        default_device=default_device(settings),
        default_budget=default_budget(settings),
    )


def drop(settings: Settings, path: Path) -> str:
    """Puts a spec, with the kernel files that it names, into the watched folder; the name it got there."""
    if not path.exists():
        raise SpecError("does not exist", file=path, remedy="give the path of a spec file or folder")
    return Spool(settings.spool_dir).submit(path, extra=companions.beside(path))


def is_running(settings: Settings) -> bool:
    """Whether a daemon serves this installation."""
    return is_served(settings.spool_dir)


def wait_for(settings: Settings, name: str, timeout_s: float) -> dict[str, Any]:
    """{"result": …} of a dropped spec, or {"reason": …} why there is none."""
    spool, results = Spool(settings.spool_dir), ResultStore(settings.spool_dir / "results")
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        fate = spool.fate(name)
        if fate is not None and fate.state == "done" and fate.job is not None:
            result = results.read(fate.job)
            if result is not None:
                return {"spec": name, "job": fate.job, "result": result}
        if fate is not None and fate.state in ("failed", "hold"):
            return {"spec": name, "reason": fate.reason}
        time.sleep(POLL_S)
    return {"spec": name, "reason": f"no answer within {timeout_s:.0f} s; is the daemon running? see tunerd status"}


def gather_status(settings: Settings) -> dict[str, Any]:
    """Queue, running job, models and log, read from the state folder; the daemon need not run, and nothing is made.

    Without a daemon ``state`` is "not running", and what it said last is under ``last_state`` and ``last_running``.
    """
    from tuner_daemon.storage.log import ParquetLog
    from tuner_daemon.storage.models import ModelStore

    current = ModelStore(settings.models_dir).current()
    published = read_status(settings.state_dir) or {"state": None}
    if not is_served(settings.spool_dir):
        last = {f"last_{key}": published.pop(key, None) for key in ("state", "running")}
        published = {"state": "not running", **published, **last}
    log = ParquetLog(settings.log_dir).stats()
    return {
        "state": published.pop("state"),
        "queue": counts_in(settings.spool_dir),
        "running": published.pop("running", None),
        "devices": published.pop("devices", {}),
        "models": current.version if current else None,
        "last_retrain": _last_retrain(settings),
        "log": log,
        **published,
    }


def _last_retrain(settings: Settings) -> dict[str, Any] | None:
    report = read_retrain(settings.state_dir)
    return None if report is None else {name: report.get(name) for name in ("finished_at", "promoted", "reason")}
