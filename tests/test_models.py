"""The model store."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tuner_daemon.errors import DiskFullError, ModelError
from tuner_daemon.storage import files, models
from tuner_daemon.storage.models import ModelStore

CONTENTS = {
    "policy.safetensors": b"weights",
    "policy.json": b"{}",
    "cost_model.ubj": b"trees",
    "cost_model.json": b"{}",
}
METADATA = {"feature_schema": "f1", "log_fingerprint": "abc", "metrics": {"regret": 0.1}}


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


_SECONDS = count()


def _identity(moment: datetime) -> datetime:
    return moment


def _champions(store: ModelStore, n: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """n versions a second apart, each promoted in turn."""
    versions = []
    for _ in range(n):
        second = next(_SECONDS)
        moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
        monkeypatch.setattr(models, "_now", partial(_identity, moment))
        versions.append(store.publish({**CONTENTS, "policy.json": str(second).encode()}, METADATA))
        store.promote(versions[-1])
    return versions


def test_a_promoted_version_is_current_with_all_it_was_published_with(store: ModelStore) -> None:
    assert store.current() is None
    assert store.current_version() is None
    version = store.publish(CONTENTS, METADATA)
    assert store.current() is None  # published is not promoted
    store.promote(version)
    current = store.current()
    assert current is not None
    assert (current.version, current.folder, dict(current.files)) == (version, store.folder / version, CONTENTS)
    assert {name: current.metadata[name] for name in METADATA} == METADATA
    assert current.metadata["created_at"] == current.created_at.isoformat()
    assert store.current_version() == version
    assert (store.folder / "current").readlink() == Path(version)


def test_the_link_tells_cheaply_that_the_champion_changed(store: ModelStore) -> None:
    first, second = store.publish(CONTENTS, {}), store.publish(CONTENTS, {})
    assert first != second
    for version in (first, second, first):
        store.promote(version)
        assert store.current_version() == version


@pytest.mark.parametrize("file", [*CONTENTS, "manifest.json"])
def test_a_damaged_champion_falls_back_to_the_one_before(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    first, second = _champions(store, 2, monkeypatch)
    path = store.folder / second / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    current = store.current()
    assert current is not None
    assert current.version == first
    assert list(store.damaged) == [second]
    with pytest.raises(ModelError):
        store.promote(second)
    (store.folder / first / file).unlink()
    assert store.current() is None


def test_the_last_three_champions_are_kept(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = _champions(store, 5, monkeypatch)
    assert store.versions() == store.promoted() == versions[-3:]
    assert store.current_version() == versions[-1]


def test_a_refused_challenger_pushes_no_champion_out(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _champions(store, 2, monkeypatch)
    refused = []
    for _ in range(4):
        monkeypatch.setattr(models, "_now", partial(_identity, datetime(2026, 1, 1, 0, 30, tzinfo=UTC)))
        refused.append(store.publish(CONTENTS, {}))
    assert store.current_version() == first[-1]
    assert store.versions() == [*first, *sorted(refused)]
    monkeypatch.setattr(models, "_now", partial(_identity, datetime(2026, 1, 1, 0, 59, tzinfo=UTC)))
    last = store.publish(CONTENTS, {})
    store.promote(last)
    assert store.versions() == [*first, last]


@pytest.mark.parametrize(
    "name", ["policy.pkl", "policy.pt", "../x.json", ".x.json", "manifest.json", "a/b.json", "code.py"]
)
def test_only_formats_without_code_are_stored(store: ModelStore, name: str) -> None:
    with pytest.raises(ModelError, match="model file"):
        store.publish({name: b""}, {})
    assert store.versions() == []


def test_a_link_to_elsewhere_is_no_champion(store: ModelStore, tmp_path: Path) -> None:
    store.promote(store.publish(CONTENTS, {}))
    (store.folder / "current").unlink()
    (store.folder / "current").symlink_to(tmp_path)
    assert store.current_version() is None
    assert store.current() is not None  # the history knows the last good one
    with pytest.raises(ModelError, match="not the name"):
        store.load("../models")


def test_a_file_replaced_by_a_link_is_damage(store: ModelStore, tmp_path: Path) -> None:
    version = store.publish(CONTENTS, {})
    store.promote(version)
    copy = tmp_path / "copy"
    copy.write_bytes(CONTENTS["policy.json"])
    (store.folder / version / "policy.json").unlink()
    (store.folder / version / "policy.json").symlink_to(copy)
    assert store.current() is None


class _Crash(BaseException):
    """The process ends here."""


def test_a_crash_at_any_step_of_promotion_leaves_a_champion(tmp_path: Path) -> None:
    crashes = 0
    for n in range(1, 30):
        store = ModelStore(tmp_path / str(n))
        old = store.publish(CONTENTS, {})
        store.promote(old)
        steps = 0
        with pytest.MonkeyPatch.context() as patch:

            def wrap(real: Any, n: int = n) -> Any:
                def step(*args: Any, **kwargs: Any) -> Any:
                    nonlocal steps
                    steps += 1
                    if steps == n:
                        raise _Crash
                    return real(*args, **kwargs)

                return step

            for name in ("replace", "rename", "symlink", "mkdir", "fsync"):
                patch.setattr(os, name, wrap(getattr(os, name)))
            patch.setattr(files, "rename_to_free", wrap(files.rename_to_free))
            try:
                new = store.publish(CONTENTS, {"new": True})
                store.promote(new)
            except _Crash:
                crashes += 1
            else:
                break
        current = ModelStore(store.folder).current()
        assert current is not None
        assert current.version == old or current.metadata.get("new")
        newest = store.publish(CONTENTS, {"newest": True})
        store.promote(newest)
        assert store.current_version() == newest
    assert crashes > 8


def test_a_full_disk_leaves_no_half_version(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "fsync_tree", full)
        with pytest.raises(DiskFullError):
            store.publish(CONTENTS, {})
    assert not list(store.folder.iterdir())
    assert store.publish(CONTENTS, {})


def test_the_manifest_names_every_file_with_its_hash(store: ModelStore) -> None:
    version = store.publish(CONTENTS, METADATA)
    manifest = json.loads((store.folder / version / "manifest.json").read_text())
    assert set(manifest["files"]) == set(CONTENTS)
    assert all(len(entry["sha256"]) == 64 for entry in manifest["files"].values())
    assert manifest["metadata"] == METADATA
