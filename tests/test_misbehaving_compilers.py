"""Compilers that hang, flood, die or are left alone; what is built is still right, and nothing stays behind."""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.builds import CONFIGS, artifact, needs_nvrtc, one, refusal
from tests.fakes import KERNEL_C, KERNEL_CU, spec_for, vector_add_kernel
from tests.waiting import command_line, wait_until
from tuner_daemon.builders import command
from tuner_daemon.builders.cache import BuildCache, Compiled, Rejected
from tuner_daemon.builders.compiling import Compilation, CompileUnit, CompilingBuilder, Decided
from tuner_daemon.builders.gcc import GccBuilder
from tuner_daemon.errors import BuildError, DiskFullError, MissingPartError
from tuner_daemon.records.measurement import Failure


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "cache", 1 << 28)


@pytest.fixture
def gcc(cache: BuildCache) -> Iterator[GccBuilder]:
    builder = GccBuilder(cache, jobs=2)
    yield builder
    builder.close()


# A compiler that misbehaves: a script in gcc's place, with GCC's answer to the question what it is.

FakeGcc = Callable[[str], str]


@pytest.fixture
def fake_gcc(tmp_path: Path) -> FakeGcc:
    def make(script: str) -> str:
        file = tmp_path / "fake-gcc"
        identify = "case \"$*\" in *-###*) echo 'gcc version 0'; exit 0;; esac"
        file.write_text(f"#!/bin/sh\n{identify}\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return str(file)

    return make


def sleepers(marker: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if marker in (p.info["cmdline"] or [])]


def test_a_missing_compiler_says_what_to_do(cache: BuildCache, tmp_path: Path) -> None:
    builder = GccBuilder(cache, jobs=1, command="no-such-gcc")
    kernel = vector_add_kernel(tmp_path / "k")
    with pytest.raises(MissingPartError, match="no-such-gcc is not on the PATH; install gcc"):
        builder.build(spec_for(kernel), CONFIGS)
    with pytest.raises(MissingPartError, match="install gcc"):
        builder.build_reference(spec_for(kernel))
    builder.close()


def test_a_hanging_compiler_is_killed_and_not_remembered(cache: BuildCache, tmp_path: Path, fake_gcc: FakeGcc) -> None:
    kernel = vector_add_kernel(tmp_path / "k")
    builder = GccBuilder(cache, jobs=2, timeout_s=0.5, command=fake_gcc("sleep 27.1828 & sleep 27.1828"))
    items = list(builder.build(spec_for(kernel), CONFIGS[:2]))
    assert [refusal(item) for item in items] == ["fake-gcc was stopped after 0.5 s"] * 2
    assert all(item.build_s is not None and item.build_s >= 0.5 for item in items)
    assert not sleepers("27.1828")
    assert not list((tmp_path / "cache").rglob("*.json"))
    builder.close()


def test_a_compiler_that_floods_its_messages_is_ended(cache: BuildCache, tmp_path: Path, fake_gcc: FakeGcc) -> None:
    kernel = vector_add_kernel(tmp_path / "k")
    builder = GccBuilder(cache, jobs=1, output_bytes=1 << 20, command=fake_gcc("exec yes 'kernel.c:1: error: no' >&2"))
    detail = refusal(one(builder, kernel, "cpu"))
    assert len(detail) <= 1400
    builder.close()


def test_a_compiler_that_runs_out_of_memory_is_not_remembered(cache: BuildCache, tmp_path: Path) -> None:
    kernel = vector_add_kernel(tmp_path / "k")
    small = GccBuilder(cache, jobs=1, memory_bytes=24 << 20)
    monkey = GccBuilder(cache, jobs=1)
    assert "24 MiB of memory" in refusal(one(small, kernel, "cpu"))
    artifact(one(monkey, kernel, "cpu"))
    small.close()
    monkey.close()


FULL_DISK = "echo 'as: /tmp/x.s: error: No space left on device' >&2; exit 1"


def test_a_full_disk_under_the_compiler_is_no_candidates_failure(
    cache: BuildCache, tmp_path: Path, fake_gcc: FakeGcc, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = GccBuilder(cache, jobs=1, command=fake_gcc(FULL_DISK))
    kernel = vector_add_kernel(tmp_path / "k")
    with monkeypatch.context() as full:
        full.setattr(command, "_is_nearly_full", lambda folder, n_bytes: True)
        with pytest.raises(DiskFullError, match="No space left"):
            one(builder, kernel, "cpu")
    # A source that makes its compiler say so does not stop the daemon.
    assert "No space left" in refusal(one(builder, kernel, "cpu"))
    builder.close()


def test_a_full_disk_for_temporary_files_is_no_candidates_failure(
    gcc: GccBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = vector_add_kernel(tmp_path / "k")
    for code, expected in ((errno.ENOSPC, DiskFullError), (errno.EIO, BuildError), (errno.EACCES, PermissionError)):
        with monkeypatch.context() as broken:
            broken.setattr(tempfile, "TemporaryDirectory", _raiser(OSError(code, os.strerror(code))))
            with pytest.raises(expected):
                one(gcc, kernel, "cpu")
    artifact(one(gcc, kernel, "cpu"))


def _raiser(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_building_begins_at_the_call(cache: BuildCache, tmp_path: Path, fake_gcc: FakeGcc) -> None:
    builder = GccBuilder(cache, jobs=1, command=fake_gcc(f"touch {tmp_path}/started; exit 1"))
    stream = builder.build(spec_for(vector_add_kernel(tmp_path / "k")), CONFIGS[:1])
    wait_until((tmp_path / "started").exists)
    assert isinstance(next(stream), Failure)
    builder.close()


def test_results_come_in_order_of_completion(cache: BuildCache, tmp_path: Path, fake_gcc: FakeGcc) -> None:
    script = 'for last; do case "$last" in *.c) unit=$last;; esac; done\ngrep -q "BLOCK 32" $unit && sleep 1\nexit 1'
    builder = GccBuilder(cache, jobs=2, command=fake_gcc(script))
    slow, fast = CONFIGS[0], CONFIGS[-1]
    items = builder.build(spec_for(vector_add_kernel(tmp_path / "k")), [slow, fast])
    assert [item.config for item in items] == [fast, slow]
    builder.close()


@pytest.mark.parametrize("end", ["close the stream", "drop the stream", "close the builder"])
def test_an_abandoned_build_leaves_no_process(cache: BuildCache, tmp_path: Path, fake_gcc: FakeGcc, end: str) -> None:
    builder = GccBuilder(cache, jobs=2, command=fake_gcc(f"echo >> {tmp_path}/starts; sleep 16.1803"))
    stream = builder.build(spec_for(vector_add_kernel(tmp_path / "k")), CONFIGS)
    wait_until(lambda: len(sleepers("16.1803")) == 2)
    if end == "close the stream":
        stream.close()
        assert list(stream) == []
    elif end == "drop the stream":
        del stream
    else:
        builder.close()
        assert list(stream) == []
    wait_until(lambda: not sleepers("16.1803"))
    time.sleep(0.1)
    assert (tmp_path / "starts").read_text() == "\n\n"  # the other two were never started
    builder.close()


def test_a_truncated_binary_is_built_again(gcc: GccBuilder, tmp_path: Path) -> None:
    kernel = vector_add_kernel(tmp_path / "k")
    first = artifact(one(gcc, kernel, "cpu"))
    whole = first.path.read_bytes()
    first.path.write_bytes(whole[:100])
    again = artifact(one(gcc, kernel, "cpu"))
    assert not again.cached
    assert again.path.read_bytes() == whole
    assert artifact(one(gcc, kernel, "cpu")).cached


class QueueingBuilder(CompilingBuilder):
    """Candidates take until they are let go; references are there at once."""

    language = "cpu"
    compiler = "none"

    def __init__(self, cache: BuildCache, let_go: threading.Event) -> None:
        super().__init__(cache, jobs=1)
        self.let_go = let_go

    def _identity(self) -> str:
        return "queueing"

    def _compilation(self, unit: CompileUnit) -> Compilation:
        built = Decided(Compiled(unit.text.encode(), unit.entry, 0.0))
        return built if "reference" in unit.entry else Held(built, self.let_go)


@dataclasses.dataclass(frozen=True)
class Held:
    built: Decided
    let_go: threading.Event

    def run(self) -> Compiled | Rejected:
        self.let_go.wait(30.0)
        return self.built.run()

    def stop(self) -> None:
        self.let_go.set()


def test_a_reference_does_not_wait_for_the_candidates_in_the_queue(cache: BuildCache, tmp_path: Path) -> None:
    let_go = threading.Event()
    builder = QueueingBuilder(cache, let_go)
    spec = spec_for(vector_add_kernel(tmp_path / "k", cuda=KERNEL_CU, cpu=KERNEL_C), "cpu")
    items = builder.build(spec, CONFIGS)
    assert "reference" in builder.build_reference(spec).entry
    assert not let_go.is_set(), "no candidate is built yet"
    let_go.set()
    assert len([artifact(item) for item in items]) == len(CONFIGS)
    builder.close()


ORPHAN = """
import sys
from pathlib import Path
from tests.fakes import spec_for, vector_add_kernel
from tests.builds import CONFIGS, SLOW_CU
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.nvrtc import NvrtcBuilder
folder = Path(sys.argv[1])
builder = NvrtcBuilder(BuildCache(folder / "cache", 1 << 20), arch="sm_90", jobs=1)
stream = builder.build(spec_for(vector_add_kernel(folder / "k", cuda=SLOW_CU), "cuda"), CONFIGS[:1])
print(builder.compiler, flush=True)
next(stream)
"""


@needs_nvrtc
def test_workers_end_when_the_daemon_is_killed(tmp_path: Path, root: Path) -> None:
    daemon = subprocess.Popen([sys.executable, "-c", ORPHAN, str(tmp_path)], cwd=root, stdout=subprocess.PIPE)
    with daemon:
        assert daemon.stdout is not None
        assert b"NVRTC" in daemon.stdout.readline()
        family = psutil.Process(daemon.pid).children(recursive=True)
        assert any("forkserver" in command_line(process) for process in family)
        daemon.kill()
    _, alive = psutil.wait_procs(family, timeout=15.0)
    assert not alive
