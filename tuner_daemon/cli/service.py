"""``tunerd serve``: signals, the watcher, sd_notify, and the daemon's loop."""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping
from functools import partial
from types import FrameType
from typing import Any

import sdnotify

from tuner_daemon.cli.client import load
from tuner_daemon.cli.workshop import Workshop
from tuner_daemon.daemon import Daemon
from tuner_daemon.intake.specs import priority_of
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.settings import Settings
from tuner_daemon.storage.results import restore_results
from tuner_daemon.storage.spool import Spool
from tuner_daemon.storage.status import write_status
from tuner_daemon.storage.watcher import Watcher


def run_daemon(settings: Settings) -> None:
    """Returns after SIGTERM or SIGINT, when the current round is in the log."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    spool = Spool(settings.spool_dir)
    spool.lock()
    restore_results(spool.results)
    with Workshop(settings) as workshop:
        daemon = Daemon(
            spool=spool,
            engine=workshop.engine,
            load=partial(load, settings),
            priority_of=priority_of,
            allowed=partial(refusal, settings),
            publish_status=partial(_publish, settings, workshop),
            notify=sdnotify.SystemdNotifier().notify,
            poll_s=settings.poll_s,
        )

        def on_signal(_signal: int, _frame: FrameType | None) -> None:
            daemon.stop.set()
            daemon.wake.set()

        signal.signal(signal.SIGTERM, on_signal)
        signal.signal(signal.SIGINT, on_signal)
        with Watcher(spool.incoming, daemon.wake):
            daemon.serve()


def refusal(settings: Settings, spec: KernelSpec) -> str | None:
    """Why this daemon will not run the spec, or None."""
    if spec.device.kind == "cpu" and not settings.allow_cpu_kernels:
        return (
            'device.kind = "cpu" runs host code, which is off here; '
            "set allow_cpu_kernels = true in the settings to allow it"
        )
    return None


def _publish(settings: Settings, workshop: Workshop, facts: Mapping[str, Any]) -> None:
    write_status(settings.state_dir, {**facts, "devices": workshop.devices()})
