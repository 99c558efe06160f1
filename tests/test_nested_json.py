"""JSON nested so deeply that Python's parser gives up counts as damage, wherever it lies, and never ends the daemon.

Found by fuzzing: the parser raises RecursionError, which is no ValueError.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cost_model import DamagedPriorError, Prior
from tests.rows import measurement
from tuner_daemon.errors import KernelError, ModelError
from tuner_daemon.learning.policy import load_policy
from tuner_daemon.runners.child import _message
from tuner_daemon.runners.clock_lease import read_lease
from tuner_daemon.storage.hub import import_hub
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.models import ModelStore
from tuner_daemon.storage.parts import manifest_path
from tuner_daemon.storage.results import read_result
from tuner_daemon.storage.status import read_status

DEEP = "[" * 100_000


def test_a_status_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(DEEP)
    assert read_status(tmp_path) is None


def test_a_champion_falls_back_and_a_history_counts_as_none(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    versions = [store.publish({"policy.json": b"{}"}, {}) for _ in range(2)]
    for version in versions:
        store.promote(version)
    (tmp_path / versions[1] / "manifest.json").write_text(DEEP)
    current = store.current()
    assert current is not None
    assert current.version == versions[0]
    (tmp_path / "promoted.json").write_text(DEEP)
    assert store.promoted() == []
    assert store.current() is None


@pytest.mark.parametrize("manifest", [DEEP, "[]", "1", '{"digest": 1}'])
def test_a_models_manifest_that_is_no_table_is_damage(tmp_path: Path, manifest: str) -> None:
    store = ModelStore(tmp_path)
    version = store.publish({"policy.json": b"{}"}, {})
    (tmp_path / version / "manifest.json").write_text(manifest)
    with pytest.raises(ModelError):
        store.load(version)


def test_a_policy_and_a_prior_are_damaged(tmp_path: Path) -> None:
    for name in ("policy.json", "prior.json"):
        (tmp_path / name).write_text(DEEP)
    with pytest.raises(ModelError):
        load_policy(tmp_path)
    with pytest.raises(DamagedPriorError):
        Prior.load(tmp_path, schema="s")


def test_a_part_whose_manifest_it_is_is_damaged(tmp_path: Path) -> None:
    log = ParquetLog(tmp_path)
    log.append([measurement()])
    manifest_path(next(tmp_path.rglob("part-*.parquet"))).write_text(DEEP)
    assert len(ParquetLog(tmp_path).stats()["damaged"]) == 1


def test_a_result_counts_as_absent_and_a_lease_as_none(tmp_path: Path) -> None:
    (tmp_path / "job-1").mkdir()
    (tmp_path / "job-1" / "result.json").write_text(DEEP)
    assert read_result(tmp_path, "job-1") is None
    (tmp_path / "GPU-1.json").write_text(DEEP)
    (tmp_path / "GPU-1").write_text(DEEP)
    assert read_lease(tmp_path, "GPU-1") is None


def test_a_recordings_sidecar_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(DEEP)
    with pytest.raises(KernelError, match="not a recording's sidecar"):
        import_hub(tmp_path / "a.json", tmp_path / "a.parquet", tmp_path / "out")


@pytest.mark.parametrize(
    "line", [DEEP, "1", "[]", "{}", "null", '{"id": 1}', '{"id": 1, "reply": 2}', '{"id": 1, "candidate": 0}', "\ufffd"]
)
def test_a_child_that_sends_no_message_is_not_itself_any_more(line: str) -> None:
    with pytest.raises(EOFError):
        _message(line.encode())
    assert _message(b'{"id": 1, "reply": {}}') == {"id": 1, "reply": {}}
    assert _message(b'{"id": 1, "candidate": 0, "stage": "timing"}')["stage"] == "timing"
