"""Figures for Prometheus: what is counted is what is logged, and nothing is open unless the settings say so."""

from __future__ import annotations

import logging
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.rows import measurement
from tests.waiting import wait_until
from tuner_daemon.cli import metrics
from tuner_daemon.errors import SettingsError
from tuner_daemon.events import tell
from tuner_daemon.settings import MetricsSettings, Settings
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.models import ModelStore
from tuner_daemon.storage.spool import Spool

logger = logging.getLogger("tuner_daemon.tests")


def settings(state: Path, **wanted: Any) -> Settings:
    return Settings(state_dir=state, metrics=MetricsSettings(**wanted))


@pytest.fixture(autouse=True)
def _no_handler_stays() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.setLevel(logging.INFO)
    yield
    root.setLevel(level)
    for handler in set(root.handlers) - set(before):
        root.removeHandler(handler)


def samples(text: str) -> dict[str, float]:
    """Name, with a label's value after a colon -> value."""
    return {
        ":".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_nothing_is_published_unless_asked(tmp_path: Path) -> None:
    handlers = list(logging.getLogger().handlers)
    assert metrics.publish(settings(tmp_path), threading.Event()) is None
    assert logging.getLogger().handlers == handlers


def test_events_are_counted_and_the_state_folder_is_looked_at(tmp_path: Path) -> None:
    made = settings(tmp_path)
    spool = Spool(made.spool_dir)
    (spool.incoming / "a.toml").write_text("x")
    ParquetLog(made.log_dir).append([measurement(n) for n in range(6)])
    store = ModelStore(made.models_dir)
    store.promote(store.publish({"policy.json": b"{}"}, {}))
    registry = CollectorRegistry()
    registry.register(metrics.StateFolder(made))
    logging.getLogger().addHandler(metrics.Counted(registry))
    for verdict in ("faster", "faster", "failed"):
        tell(logger, logging.INFO, "job", "a job", verdict=verdict)
    for outcome in ("ok", "ok", "crashed"):
        tell(logger, logging.INFO, "candidate", "one", outcome=outcome, build_s=0.5, run_s=0.25, device_s=0.125)
    found = samples(generate_latest(registry).decode())
    assert found["tunerd_jobs_total:faster"] == 2
    assert found["tunerd_jobs_total:failed"] == 1
    assert found["tunerd_candidates_total:ok"] == 2
    assert found["tunerd_candidates_total:crashed"] == 1
    assert found["tunerd_build_seconds_total"] == 1.5
    assert found["tunerd_run_seconds_total"] == 0.75
    assert found["tunerd_device_busy_seconds_total"] == 0.375
    assert found["tunerd_queue_specs:incoming"] == 1
    assert found["tunerd_log_rows"] == 6
    assert found["tunerd_log_damaged_parts"] == 0
    assert 0 <= found["tunerd_model_age_seconds"] < 60
    assert found["tunerd_disk_free_bytes"] > 0


def test_a_state_folder_that_is_not_there_yet_has_no_figures_and_no_error(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(metrics.StateFolder(settings(tmp_path / "nowhere")))
    found = samples(generate_latest(registry).decode())
    assert "tunerd_model_age_seconds" not in found
    assert not (tmp_path / "nowhere").exists()


def test_the_port_is_open_on_this_machine_only(tmp_path: Path) -> None:
    port = free_port()
    metrics.publish(settings(tmp_path, port=port), threading.Event())
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert "tunerd_queue_specs:incoming" in samples(answer.read().decode())
    listening = Path("/proc/net/tcp").read_text()
    assert f"0100007F:{port:04X}" in listening
    assert f"00000000:{port:04X}" not in listening
    with pytest.raises(SettingsError, match=r"metrics\.port cannot be had"):
        metrics.publish(settings(tmp_path, port=port), threading.Event())


def test_the_file_is_written_again_and_again_and_a_folder_that_is_gone_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "collector"
    folder.mkdir()
    file = folder / "tunerd.prom"
    stop = threading.Event()
    metrics.publish(settings(tmp_path, textfile=str(file), every_s=0.05), stop)
    wait_until(file.exists)
    file.unlink()
    folder.rmdir()
    wait_until(lambda: "the metrics cannot be written" in caplog.text)
    folder.mkdir()
    wait_until(file.exists)
    assert "tunerd_log_rows" in samples(file.read_text())
    stop.set()
    wait_until(lambda: "metrics" not in {thread.name for thread in threading.enumerate()})
