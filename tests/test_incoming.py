"""When a spec in incoming/ is whole."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.spools import SPEC, Clock, claim_first, drop_spec, spool_at, where, whole_specs
from tuner_daemon.storage import files, incoming
from tuner_daemon.storage.spool import Spool


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spool(tmp_path: Path, clock: Clock) -> Spool:
    return spool_at(tmp_path / "spool", clock)


def test_a_file_written_in_place_is_taken_when_nothing_changes_for_a_second(spool: Spool, clock: Clock) -> None:
    path = drop_spec(spool, text="template")
    assert spool.scan() == []
    assert spool.unsettled == 1
    clock.now_s += incoming.WRITTEN_S / 2
    path.write_text(SPEC)  # the writer goes on
    clock.now_s += incoming.WRITTEN_S
    assert spool.scan() == []
    clock.now_s += incoming.WRITTEN_S / 2
    assert spool.scan() == []  # too soon after the last scan
    clock.now_s += incoming.WRITTEN_S / 2
    assert [entry.name for entry in spool.scan()] == ["a.toml"]
    assert spool.unsettled == 0


def test_a_renamed_file_is_taken_sooner(spool: Spool, clock: Clock) -> None:
    hidden = drop_spec(spool, ".a.toml")
    time.sleep(2 * files.TICK_S)
    hidden.rename(spool.incoming / "a.toml")
    drop_spec(spool, "b.toml")
    assert spool.scan() == []
    clock.now_s += incoming.RENAMED_S
    assert [entry.name for entry in spool.scan()] == ["a.toml"]
    assert spool.unsettled == 1


@pytest.mark.parametrize("age_s", [-86_400, 86_400], ids=["a day old", "a day ahead"])
def test_a_clock_that_is_set_makes_nothing_whole(spool: Spool, clock: Clock, age_s: int) -> None:
    path = drop_spec(spool)
    os.utime(path, (time.time() + age_s,) * 2)
    assert spool.scan() == []


def test_a_file_that_is_open_for_writing_waits_up_to_a_minute(spool: Spool, clock: Clock) -> None:
    path = drop_spec(spool)
    with path.open("a"):
        assert whole_specs(spool, clock) == []
        clock.now_s += incoming.OPEN_S / 2
        assert spool.scan() == []
        clock.now_s += incoming.OPEN_S / 2
        assert [entry.name for entry in spool.scan()] == ["a.toml"]
    other = drop_spec(spool, "b.toml")
    with other.open("a"):
        whole_specs(spool, clock)
    assert [entry.name for entry in spool.scan()] == ["a.toml", "b.toml"]  # closed: it was quiet for long enough


def test_a_file_written_to_after_it_was_whole_is_not_taken_yet(spool: Spool, clock: Clock) -> None:
    path = drop_spec(spool)
    entry = whole_specs(spool, clock)[0]
    time.sleep(2 * files.TICK_S)
    path.write_text(SPEC + "# and more\n")
    assert spool.claim(entry) is None
    assert where(spool.root) == {"incoming": ["a.toml"]}
    assert spool.scan() == []
    claim_first(spool, clock)


def test_an_empty_file_is_still_being_written(spool: Spool, clock: Clock) -> None:
    drop_spec(spool, text="").chmod(0o600)
    spool.scan()
    clock.now_s += incoming.RENAMED_S
    assert spool.scan() == []


def test_a_folder_is_taken_when_nothing_in_it_changes(spool: Spool, clock: Clock) -> None:
    job = spool.incoming / "job"
    (job / "deep").mkdir(parents=True)
    (job / "spec.toml").write_text(SPEC)
    spool.scan()
    (job / "deep" / "kernel.cu").write_text("//")
    clock.now_s += incoming.WRITTEN_S
    assert spool.scan() == []
    claimed = claim_first(spool, clock)
    assert (claimed.path / "deep" / "kernel.cu").read_text() == "//"
    spool.finish(claimed, "j")
    assert where(spool.root) == {"done": ["job"]}
