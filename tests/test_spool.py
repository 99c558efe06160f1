"""The spool: no spec is ever lost, doubled, or opened when it is no spec."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spools import SPEC, Clock, claim_first, drop_spec, spool_at, where, whole_specs
from tuner_daemon.errors import DiskFullError, SpecError, SpoolError
from tuner_daemon.storage import files, incoming
from tuner_daemon.storage.spool import MAX_REFUSALS, Fate, Spool, counts_in, is_served


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spool(tmp_path: Path, clock: Clock) -> Spool:
    return spool_at(tmp_path / "spool", clock)


def test_a_dropped_spec_goes_from_incoming_to_active_to_done(spool: Spool, clock: Clock) -> None:
    drop_spec(spool)
    claimed = claim_first(spool, clock)
    assert (claimed.name, claimed.path, claimed.attempts) == ("a.toml", spool.root / "active" / "a.toml", 1)
    assert claimed.path.read_text() == SPEC
    assert spool.counts() == {"incoming": 0, "active": 1, "done": 0, "failed": 0, "hold": 0}
    assert spool.fate("a.toml") == Fate("active")
    spool.finish(claimed, "sgemm-1234", "faster")
    assert where(spool.root) == {"done": ["a.toml"]}
    assert (spool.root / "done" / "a.toml.job").read_text().split("\n")[0] == "sgemm-1234"
    fate = spool.fate("a.toml")
    assert fate is not None
    assert (fate.state, fate.job, fate.answer, fate.reason) == ("done", "sgemm-1234", "faster", "")
    assert not list((spool.root / "active").iterdir())


@pytest.mark.parametrize("state", ["failed", "hold"])
def test_a_spec_that_fails_or_is_held_lies_beside_the_reason(spool: Spool, clock: Clock, state: str) -> None:
    drop_spec(spool)
    move = {"failed": spool.fail, "hold": spool.hold}[state]
    move(claim_first(spool, clock), "problem.m is missing\nsecond line")
    assert where(spool.root) == {state: ["a.toml"]}
    assert (spool.root / state / "a.toml.reason.txt").read_text() == "problem.m is missing\nsecond line\n"
    fate = spool.fate("a.toml")
    assert fate is not None
    assert (fate.state, fate.job) == (state, None)
    assert fate.reason.startswith("problem.m")


def test_a_second_spec_of_the_same_name_does_not_replace_the_first(spool: Spool, clock: Clock) -> None:
    for n in range(3):
        drop_spec(spool, text=f"# {n}\n{SPEC}")
        spool.finish(claim_first(spool, clock), f"job-{n}")
    assert where(spool.root) == {"done": ["a-2.toml", "a-3.toml", "a.toml"]}
    assert (spool.root / "done" / "a-2.toml.job").read_text() == "job-1\n"


def test_hidden_and_temporary_names_are_ignored(spool: Spool, clock: Clock) -> None:
    for name in (".a.toml", "b.toml.tmp", "c.toml~"):
        drop_spec(spool, name)
    assert whole_specs(spool, clock) == []
    assert spool.counts()["incoming"] == spool.unsettled == 0
    assert len(list(spool.incoming.iterdir())) == 3


def test_what_is_no_file_is_moved_away_unopened(spool: Spool, clock: Clock, tmp_path: Path) -> None:
    secret = tmp_path / "secret.toml"
    secret.write_text("password")
    os.mkfifo(spool.incoming / "fifo.toml")  # opening it would block for ever
    (spool.incoming / "link.toml").symlink_to(secret)
    (spool.incoming / "dangling.toml").symlink_to(tmp_path / "nowhere")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(spool.incoming / "s.toml"))
    (spool.incoming / "job").mkdir()
    (spool.incoming / "job" / "spec.toml").symlink_to(secret)
    (spool.incoming / "readme.txt").write_text("hello")
    (spool.incoming / "nothing").mkdir()
    drop_spec(spool)
    assert [entry.name for entry in whole_specs(spool, clock)] == ["a.toml"]
    moved = ["dangling.toml", "fifo.toml", "job", "link.toml", "nothing", "readme.txt", "s.toml"]
    assert where(spool.root) == {"incoming": ["a.toml"], "failed": moved}
    reasons = {name: (spool.root / "failed" / f"{name}.reason.txt").read_text() for name in moved}
    assert "symbolic link" in reasons["link.toml"]
    assert "FIFO" in reasons["fifo.toml"]
    assert "spec.toml is a symbolic link" in reasons["job"]
    assert ".toml or .json" in reasons["readme.txt"]
    assert "holds a spec.toml" in reasons["nothing"]
    assert secret.read_text() == "password"


def test_a_spec_that_turns_into_a_link_after_the_scan_is_not_taken(spool: Spool, clock: Clock, tmp_path: Path) -> None:
    path = drop_spec(spool)
    entry = whole_specs(spool, clock)[0]
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert spool.claim(entry) is None
    assert where(spool.root) == {"failed": ["a.toml"]}


def test_a_spec_that_its_owner_takes_back_is_no_error(spool: Spool, clock: Clock) -> None:
    path = drop_spec(spool)
    entry = whole_specs(spool, clock)[0]
    path.unlink()
    assert spool.claim(entry) is None
    assert where(spool.root) == {}


def test_names_are_made_safe(spool: Spool, clock: Clock) -> None:
    drop_spec(spool, "my spec; rm -rf $(HOME)\n.toml")
    claimed = claim_first(spool, clock)
    assert claimed.name == "my_spec__rm_-rf___HOME__.toml"
    assert incoming.safe_name("-" * 300 + "x" * 300 + ".toml") == "x" * 120 + ".toml"
    assert incoming.safe_name("...toml") == "spec.toml"


def test_of_an_owners_flood_the_oldest_are_looked_at_and_the_others_stay_where_they_are(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path, queue_limit=10, clock_s=clock)
    for n in range(30):
        os.utime(drop_spec(spool, f"flood-{29 - n:02}.toml"), ns=(n, n))
    os.utime(drop_spec(spool, "other.toml"), ns=(99, 99))
    for n in range(20):
        (spool.incoming / f"beside-{n}.cu").write_text("//")  # takes no place in the queue
    real = os.DirEntry.stat
    owners = {"other.toml": 7}

    def as_owned(look: incoming.Incoming) -> Iterator[tuple[str, os.stat_result]]:
        with os.scandir(look._folder) as found:
            for entry in found:
                if entry.name.endswith(".toml"):
                    status = list(real(entry, follow_symlinks=False))
                    status[4] = owners.get(entry.name, 5)
                    full = entry.stat(follow_symlinks=False)
                    extra = {"st_mtime_ns": full.st_mtime_ns, "st_ctime_ns": full.st_ctime_ns}
                    yield entry.name, os.stat_result(status, extra)

    monkeypatch.setattr(incoming.Incoming, "_list", as_owned)
    names = [entry.name for entry in whole_specs(spool, clock)]
    assert names == [*(f"flood-{29 - n:02}.toml" for n in range(10)), "other.toml"]
    assert spool.left == 20
    assert spool.counts()["incoming"] == 31
    for entry in spool.scan():
        assert spool.claim(entry) is not None
    assert len(whole_specs(spool, clock)) == 10
    assert spool.left == 10


def test_junk_is_moved_away_a_little_at_a_time(spool: Spool, clock: Clock) -> None:
    for n in range(MAX_REFUSALS + 10):
        (spool.incoming / f"{n:03}.txt").write_text("hello")
    spool.scan()
    assert len(where(spool.root)["failed"]) == MAX_REFUSALS
    assert spool.unsettled == 10  # looked at again soon
    spool.scan()
    assert where(spool.root).keys() == {"failed"}
    assert spool.unsettled == 0


def test_submit_drops_a_whole_spec_under_a_free_name(spool: Spool, clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "gemm.toml"
    path.write_text(SPEC)
    assert spool.submit(path) == "gemm.toml"
    spool.finish(claim_first(spool, clock), "j")
    assert spool.submit(path) == "gemm-2.toml"  # the first one is in done/, where --wait would find it
    assert spool.submit(path, as_name="other.toml") == "other.toml"
    assert (spool.incoming / "gemm-2.toml").read_text() == SPEC
    assert (spool.incoming / "gemm-2.toml").stat().st_mode & 0o777 == 0o660


def test_submit_drops_a_folder_when_the_spec_names_files(spool: Spool, clock: Clock, tmp_path: Path) -> None:
    path, source, kernel = tmp_path / "gemm.toml", tmp_path / "gemm.cu", tmp_path / "mine"
    path.write_text(SPEC)
    source.write_text("// cuda")
    kernel.mkdir()
    (kernel / "kernel.toml").write_text("")
    assert spool.submit(path, extra=[source, kernel]) == "gemm"
    claimed = claim_first(spool, clock)
    assert claimed.path == spool.root / "active" / "gemm"
    found = sorted(str(p.relative_to(claimed.path)) for p in claimed.path.rglob("*"))
    assert found == ["gemm.cu", "mine", "mine/kernel.toml", "spec.toml"]
    assert spool.submit(claimed.path, as_name="again") == "again"  # a folder is dropped as it is


def test_submit_refuses_what_is_no_spec(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SpecError, match="must end in"):
        spool.submit(tmp_path / "x.txt")
    with pytest.raises(SpecError, match=r"no spec\.toml"):
        spool.submit(tmp_path / "folder")
    with pytest.raises(SpecError, match="does not exist"):
        spool.submit(tmp_path / "none.toml")
    assert not list(spool.incoming.iterdir())


def test_two_clients_that_want_one_name_both_get_one(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gemm.toml"
    path.write_text(SPEC)
    real = files.rename_to_free

    def race(source: Path, target: Path) -> None:
        monkeypatch.setattr(files, "rename_to_free", real)
        target.write_text("the other client's")
        real(source, target)

    monkeypatch.setattr(files, "rename_to_free", race)
    assert spool.submit(path) == "gemm-2.toml"
    assert (spool.incoming / "gemm.toml").read_text() == "the other client's"


def test_a_job_that_brings_the_daemon_down_twice_is_held(spool: Spool, clock: Clock) -> None:
    drop_spec(spool)
    assert claim_first(spool, clock).attempts == 1
    spool = spool_at(spool.root, clock)  # the daemon died, and starts again
    spool.recover()
    assert where(spool.root) == {"incoming": ["a.toml"]}
    assert claim_first(spool, clock).attempts == 2
    spool = spool_at(spool.root, clock)
    spool.recover()
    assert where(spool.root) == {"hold": ["a.toml"]}
    assert "ended 2 times" in (spool.root / "hold" / "a.toml.reason.txt").read_text()
    (spool.root / "hold" / "a.toml").rename(spool.incoming / "a.toml")  # a person tries again
    assert claim_first(spool, clock).attempts == 1


def test_recovery_brings_back_a_result_that_was_put_aside(spool: Spool) -> None:
    (spool.results / ".job-1.old").mkdir()
    spool.recover()
    assert [path.name for path in spool.results.iterdir()] == ["job-1"]


def test_being_asked_to_stop_is_no_attempt(spool: Spool, clock: Clock) -> None:
    drop_spec(spool)
    for _ in range(5):
        claimed = claim_first(spool, clock)
        assert claimed.attempts == 1
        spool.release(claimed)
    assert where(spool.root) == {"incoming": ["a.toml"]}


def test_a_process_that_ends_itself_excuses_what_is_active(spool: Spool, clock: Clock) -> None:
    drop_spec(spool)
    for _ in range(5):
        assert claim_first(spool, clock).attempts == 1
        spool.excuse()
        assert where(spool.root) == {"incoming": ["a.toml"]}
        spool = spool_at(spool.root, clock)
        spool.recover()
    for attempts in (1, 2):  # negative control: unexcused, it counts
        assert claim_first(spool, clock).attempts == attempts
        spool = spool_at(spool.root, clock)
        spool.recover()
    assert where(spool.root) == {"hold": ["a.toml"]}


def test_a_new_spec_under_an_old_name_starts_at_no_attempts(spool: Spool, clock: Clock) -> None:
    drop_spec(spool)
    claim_first(spool, clock)
    drop_spec(spool, text="# another\n" + SPEC)
    spool = spool_at(spool.root, clock)
    spool.recover()
    assert where(spool.root) == {"incoming": ["a-2.toml", "a.toml"]}
    attempts = {}
    for _ in range(2):
        claimed = claim_first(spool, clock)
        attempts[claimed.name] = claimed.attempts
        spool.finish(claimed, "j")
    assert attempts == {"a.toml": 1, "a-2.toml": 2}


def test_a_full_disk_leaves_the_spec_waiting(spool: Spool, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    drop_spec(spool)
    entry = whole_specs(spool, clock)[0]
    with monkeypatch.context() as full:
        for write in ("write_synced", "copy_regular"):
            full.setattr(files, write, _raiser(OSError(28, "No space left on device")))
        with pytest.raises(DiskFullError):
            spool.claim(entry)
        with pytest.raises(DiskFullError):
            spool.submit(spool.incoming / "a.toml")
    assert where(spool.root) == {"incoming": ["a.toml"]}
    claimed = claim_first(spool, clock)
    with monkeypatch.context() as full:
        full.setattr(files, "write_synced", _raiser(OSError(28, "No space left on device")))
        with pytest.raises(DiskFullError):
            spool.finish(claimed, "j")
    spool.finish(claimed, "j")
    assert where(spool.root) == {"done": ["a.toml"]}


def test_a_failed_fsync_is_final(spool: Spool, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    drop_spec(spool)
    entry = whole_specs(spool, clock)[0]
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", _raiser(OSError(5, "Input/output error")))
        with pytest.raises(SpoolError, match="Input/output"):
            spool.claim(entry)
    with pytest.raises(SpoolError, match="restart"):
        spool.scan()
    fresh = spool_at(spool.root, clock)
    fresh.recover()
    assert where(spool.root) == {"incoming": ["a.toml"]}


def _raiser(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def test_only_one_daemon_works_on_a_spool(spool: Spool) -> None:
    spool.lock()
    other = spool_at(spool.root)
    with pytest.raises(SpoolError, match="another daemon"):
        other.lock()
    spool.unlock()
    other.lock()
    other.unlock()


def test_anybody_can_see_whether_a_daemon_serves_and_nothing_is_made_by_looking(spool: Spool, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert not is_served(nowhere)
    assert set(counts_in(nowhere).values()) == {0}
    assert not nowhere.exists()
    assert not is_served(spool.root)
    spool.lock()
    assert is_served(spool.root)
    spool.unlock()
    assert not is_served(spool.root)


def test_a_look_at_the_moment_of_the_start_does_not_keep_the_daemon_out(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spool.root / ".lock").touch()
    look = os.open(spool.root / ".lock", os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(look, fcntl.LOCK_UN))
    spool.lock()
    os.close(look)
    assert is_served(spool.root)


def test_folders_on_different_file_systems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Spool(tmp_path)
    real = Path.stat

    def elsewhere(self: Path, **kwargs: Any) -> os.stat_result:
        status = real(self, **kwargs)
        return os.stat_result((*status[:2], status.st_dev + 1, *status[3:])) if self.name == "done" else status

    monkeypatch.setattr(Path, "stat", elsewhere)
    with pytest.raises(SpoolError, match="different file systems"):
        Spool(tmp_path)


def test_a_folder_that_cannot_be_moved_is_reported_once_and_passed_over(
    spool: Spool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spool.incoming / "mine").mkdir()
    (spool.incoming / "mine" / "spec.toml").write_text(SPEC)
    entry = whole_specs(spool, clock)[0]
    with monkeypatch.context() as foreign:
        foreign.setattr(files, "rename_to_free", _raiser(PermissionError(13, "Permission denied")))
        assert spool.claim(entry) is None
        assert whole_specs(spool, clock) == []
    assert "group-writable" in (spool.root / "failed" / "mine.reason.txt").read_text()
