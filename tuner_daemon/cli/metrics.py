"""Figures for Prometheus: what events tell is counted, what the state folder holds is looked at when asked.

On a port of this machine only, or as a file for the node exporter's textfile collector. Neither unless the settings say
so.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, start_http_server, write_to_textfile
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tuner_daemon.cli.logs import fields_of
from tuner_daemon.errors import LogError, SettingsError
from tuner_daemon.settings import Settings
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.models import ModelStore
from tuner_daemon.storage.spool import counts_in

logger = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"


class Counted(logging.Handler):
    """Counts events as they are logged, before any are left out."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(logging.INFO)
        self._jobs = Counter("tunerd_jobs", "Specs that ended, by verdict or fate.", ["verdict"], registry=registry)
        self._candidates = Counter("tunerd_candidates", "Rows of the log.", ["outcome"], registry=registry)
        self._build_s = Counter("tunerd_build_seconds", "Compiling candidates, all compilers.", registry=registry)
        self._run_s = Counter("tunerd_run_seconds", "Running candidates, checks included.", registry=registry)
        self._device_s = Counter("tunerd_device_busy_seconds", "Launches of candidates alone.", registry=registry)

    def emit(self, record: logging.LogRecord) -> None:
        event, fields = getattr(record, "event", ""), fields_of(record)
        if event == "job":
            self._jobs.labels(fields["verdict"]).inc()
        elif event == "candidate":
            self._candidates.labels(fields["outcome"]).inc()
            self._build_s.inc(fields["build_s"])
            self._run_s.inc(fields["run_s"])
            self._device_s.inc(fields["device_s"])


class StateFolder(Collector):
    """Queue, models, log and disk, as they are now."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._log = ParquetLog(settings.log_dir)

    def collect(self) -> Iterator[Metric]:
        queue = GaugeMetricFamily("tunerd_queue_specs", "Specs by the folder they lie in.", labels=["state"])
        for state, count in counts_in(self._settings.spool_dir).items():
            queue.add_metric([state], count)
        yield queue
        if (age_s := self._model_age_s()) is not None:
            yield GaugeMetricFamily("tunerd_model_age_seconds", "Since the models in use were made.", age_s)
        try:
            log = self._log.stats()
        except (LogError, OSError):
            log = {}
        for name, text in (("rows", "Rows"), ("parts", "Part files"), ("bytes", "Bytes")):
            if name in log:
                yield GaugeMetricFamily(f"tunerd_log_{name}", f"{text} of the measurement log.", log[name])
        if "damaged" in log:
            yield GaugeMetricFamily("tunerd_log_damaged_parts", "Parts that are not read.", len(log["damaged"]))
        if self._settings.state_dir.is_dir():
            free = shutil.disk_usage(self._settings.state_dir).free
            yield GaugeMetricFamily("tunerd_disk_free_bytes", "Where the state folder lies.", free)

    def _model_age_s(self) -> float | None:
        version = ModelStore(self._settings.models_dir).current_version()
        try:
            made_s = (self._settings.models_dir / version).stat().st_mtime if version else None
        except OSError:
            return None
        return None if made_s is None else max(0.0, time.time() - made_s)


def publish(settings: Settings, stop: threading.Event) -> CollectorRegistry | None:
    """Begins to publish if the settings say where; files are written until ``stop`` is set. Raises SettingsError for a
    port that cannot be had."""
    wanted = settings.metrics
    if not wanted.port and not wanted.textfile:
        return None
    registry = CollectorRegistry()
    registry.register(StateFolder(settings))
    logging.getLogger().addHandler(Counted(registry))
    if wanted.port:
        try:
            start_http_server(wanted.port, LOOPBACK, registry)
        except OSError as error:
            raise SettingsError(f"cannot be had: {error}", key="metrics.port", remedy="name another port") from error
    if wanted.textfile:
        with suppress(OSError):
            Path(wanted.textfile).parent.mkdir(parents=True, exist_ok=True)
        arguments = (registry, Path(wanted.textfile), wanted.every_s, stop)
        threading.Thread(target=_write_again_and_again, args=arguments, daemon=True, name="metrics").start()
    return registry


def _write_again_and_again(registry: CollectorRegistry, file: Path, every_s: float, stop: threading.Event) -> None:
    failed, stopping = False, False
    while not stopping:
        try:
            write_to_textfile(str(file), registry)
            failed = False
        except OSError as error:  # a full disk, a folder that is gone: the figures are old, and nothing else is wrong
            if not failed:
                logger.warning("the metrics cannot be written: %s", error)
            failed = True
        stopping = stop.wait(every_s)
