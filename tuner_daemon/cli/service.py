"""``tunerd serve``: signals, the watcher, sd_notify, and the daemon's loop."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sdnotify

from tuner_daemon.cli import logs
from tuner_daemon.cli.client import load
from tuner_daemon.cli.defaults import default_device
from tuner_daemon.cli.workshop import Workshop
from tuner_daemon.daemon import Daemon
from tuner_daemon.errors import SettingsError
from tuner_daemon.events import tell
from tuner_daemon.intake.specs import priority_of
from tuner_daemon.records.spec import KernelSpec
from tuner_daemon.settings import Settings
from tuner_daemon.storage.spool import Spool
from tuner_daemon.storage.status import write_status
from tuner_daemon.storage.watcher import Watcher

logger = logging.getLogger(__name__)

LONGEST_STOP_S = 25.0
"""A daemon asked to stop waits so long for what a compiler or a device is at; the service manager kills after 40 s."""


@dataclass
class Signals:
    """Flags that the handlers set, and nothing else. SIGTERM, SIGINT: stop. SIGHUP: read the settings again."""

    stop: threading.Event = field(default_factory=threading.Event)
    reload: threading.Event = field(default_factory=threading.Event)
    wake: threading.Event = field(default_factory=threading.Event)

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self._raise(self.stop))
        signal.signal(signal.SIGHUP, lambda _number, _frame: self._raise(self.reload))

    def _raise(self, flag: threading.Event) -> None:
        flag.set()
        self.wake.set()


def run_daemon(read_settings: Callable[[], Settings], log_format: logs.Format = "text") -> None:
    """Returns after SIGTERM or SIGINT, when what has been measured is in the log; takes up new settings on SIGHUP,
    between two jobs, or keeps the old ones if the new ones are wrong."""
    logs.configure(log_format)
    settings, signals = read_settings(), Signals()
    signals.install()
    if settings.metrics.port or settings.metrics.textfile:
        from tuner_daemon.cli import metrics

        metrics.publish(settings, signals.stop)
    while not signals.stop.is_set():
        signals.reload.clear()
        _serve(settings, signals)
        try:
            settings = read_settings()
        except SettingsError as error:
            tell(logger, logging.ERROR, "settings", "the settings stay as they were: %s", error)


def _serve(settings: Settings, signals: Signals) -> None:
    spool = Spool(settings.spool_dir, queue_limit=settings.queue_limit)
    spool.lock()
    ended = threading.Event()
    threading.Thread(target=_insist, args=(signals.stop, ended, spool), daemon=True).start()
    with Workshop(settings) as workshop, Watcher(spool.incoming, signals.wake):
        if settings.device.kind == "cuda":  # a GPU that is not there must not cost the specs that wait for it
            workshop.require(default_device(settings))
        daemon = Daemon(
            spool=spool,
            engine=workshop.engine,
            load=partial(load, settings),
            priority_of=priority_of,
            allowed=partial(refusal, settings),
            publish_status=partial(_publish, settings, workshop),
            notify=sdnotify.SystemdNotifier().notify,
            poll_s=settings.poll_s,
            stop=signals.stop,
            reload=signals.reload,
            wake=signals.wake,
        )
        daemon.serve()
    ended.set()
    spool.unlock()


def _insist(stop: threading.Event, ended: threading.Event, spool: Spool) -> None:
    """Ends the process if it does not end by itself once asked to. What has been acknowledged is in the log, the spec
    goes back to the queue, and the workers end with the pipes from this process."""
    stop.wait()
    if not ended.wait(LONGEST_STOP_S):
        logger.warning("still busy %g s after being asked to stop: ending at once", LONGEST_STOP_S)
        spool.excuse()
        os._exit(0)


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
