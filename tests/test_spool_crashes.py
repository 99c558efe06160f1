"""The process may end at any step that changes the disk: every spec is then in exactly one folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spools import SPEC, Clock, claim_first, drop_spec, spool_at, whole_specs
from tuner_daemon.storage import files
from tuner_daemon.storage.spool import STATES, Spool


class _Crash(BaseException):
    """The process ends here."""


_STEPS = [
    (os, "replace"),
    (os, "unlink"),
    (os, "fsync"),
    (os, "mkdir"),
    (os, "rename"),
    (files, "rename_to_free"),
    (files, "write_synced"),
    (shutil, "rmtree"),
]


def _crash_at(patch: pytest.MonkeyPatch, n: int, after: bool) -> None:
    """Ends the process before (or right after) the n-th step that changes the disk."""
    steps = 0

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            steps += 1
            number = steps
            if number == n and not after:
                raise _Crash
            result = real(*args, **kwargs)
            if number == n:
                raise _Crash
            return result

        return step

    for module, name in _STEPS:
        patch.setattr(module, name, wrap(getattr(module, name)))


def last_step(root: Path, clock: Clock, action: str) -> Callable[[], object]:
    """A daemon's life up to ``action``, which is returned."""
    spool = spool_at(root, clock)
    if action.startswith("recover"):
        for _ in range(2 if action == "recover to hold" else 1):
            spool_at(root, clock).recover()
            claim_first(spool_at(root, clock), clock)
        return spool_at(root, clock).recover
    entry = whole_specs(spool, clock)[0]
    if action == "claim":
        return lambda: spool.claim(entry)
    claimed = spool.claim(entry)
    assert claimed is not None
    ends: dict[str, Callable[[], object]] = {
        "finish": lambda: spool.finish(claimed, "j"),
        "fail": lambda: spool.fail(claimed, "why"),
        "hold": lambda: spool.hold(claimed, "why"),
        "release": lambda: spool.release(claimed),
    }
    return ends[action]


@pytest.fixture
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the process, not of the machine: what was written is there, synced or not."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.usefixtures("_no_waiting_for_the_disk")
@pytest.mark.parametrize("kind", ["file", "folder", "file with companions"])
@pytest.mark.parametrize("action", ["claim", "finish", "fail", "release", "recover", "recover to hold"])
def test_a_crash_at_any_step_leaves_the_spec_in_exactly_one_place(tmp_path: Path, action: str, kind: str) -> None:
    crashes = 0
    for n in range(1, 80):
        finished = []
        for after in (False, True):
            root, clock = tmp_path / f"{n}-{after}" / "spool", Clock()
            name = drop_kind(spool_at(root, clock), kind)
            step = last_step(root, clock, action)
            with pytest.MonkeyPatch.context() as patch:
                _crash_at(patch, n, after)
                try:
                    step()
                    finished.append(True)
                except _Crash:
                    crashes += 1
            assert len(places_of(root, name)) == 1, f"crash {'after' if after else 'before'} step {n}"
            spool = spool_at(root, clock)
            spool.recover()
            where = places_of(root, name)
            assert len(where) == 1
            assert where[0] != "active"
            assert all(path.name.endswith(".attempts") for path in (root / "active").iterdir())
            if where == ["incoming"]:
                spool.finish(claim_first(spool, clock), "j")
                assert places_of(root, name) == ["done"]
        if len(finished) == 2:
            break
    assert crashes > 4
    assert finished


def drop_kind(spool: Spool, kind: str) -> str:
    if kind == "folder":
        (spool.incoming / "a").mkdir()
        (spool.incoming / "a" / "spec.toml").write_text(SPEC)
        return "a"
    if kind == "file":
        return drop_spec(spool).name
    (spool.incoming / "x.cu").write_text("//")
    return drop_spec(spool, text='[sources]\ncuda = "x.cu"\n').name


def places_of(root: Path, name: str) -> list[str]:
    return [state for state in STATES for path in (root / state).iterdir() if path.name == name]


@pytest.mark.usefixtures("_no_waiting_for_the_disk")
@pytest.mark.parametrize("extra", [False, True])
def test_a_crash_while_submitting_drops_all_or_nothing(tmp_path: Path, extra: bool) -> None:
    source = tmp_path / "b.toml"
    source.write_text(SPEC)
    (tmp_path / "b.cu").write_text("//")
    outcomes = set()
    crashed = True
    for n in range(2, 120):
        root, clock = tmp_path / str(n), Clock()
        spool = spool_at(root, clock)
        with pytest.MonkeyPatch.context() as patch:
            _crash_at(patch, n // 2, after=bool(n % 2))
            try:
                spool.submit(source, extra=[tmp_path / "b.cu"] if extra else [])
                crashed = False
            except _Crash:
                crashed = True
        dropped = whole_specs(spool_at(root, clock), clock)
        outcomes.add((crashed, len(dropped)))
        for entry in dropped:
            whole = entry.path if not extra else entry.path / "spec.toml"
            assert whole.read_text() == SPEC
            assert not extra or (entry.path / "b.cu").read_text() == "//"
        if not crashed:
            break
    assert outcomes == {(True, 0), (True, 1), (False, 1)}
    assert source.read_text() == SPEC


def test_a_spool_that_copies_and_deletes_would_lose_specs(tmp_path: Path) -> None:
    """Negative control of the crash tests: the same crashes, with the usual way to move a file."""

    def copy_and_delete(source: Path, target: Path) -> None:
        data = source.read_bytes()
        source.unlink()
        target.write_bytes(data)

    found = []
    for n in range(1, 8):
        root, clock = tmp_path / str(n), Clock()
        spool = spool_at(root, clock)
        drop_spec(spool)
        entry = whole_specs(spool, clock)[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "rename_to_free", copy_and_delete)
            _crash_at(patch, n, after=True)
            try:
                spool.claim(entry)
            except _Crash:
                found.append(len(places_of(root, "a.toml")))
    assert 0 in found
