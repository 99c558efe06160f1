"""``tunerd clocks``: what root does to clocks, with the real NVML binding over a library told what to answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nvml import StandIn, compiled
from tuner_daemon.errors import ClockError
from tuner_daemon.runners.clock_lease import Lease, leased, read_lease, write_lease
from tuner_daemon.runners.locking import lock, release, status
from tuner_daemon.runners.nvml import Nvml

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="the stand-in is compiled")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn(tmp_path, library)
    stand_in.set({"gpus": "2", "0.sm": "locked", "1.sm": "locked"})
    stand_in.load(monkeypatch)
    return stand_in


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    return tmp_path / "leases"


def test_a_lock_is_asked_of_the_driver_and_told_in_a_lease(nvml: StandIn, leases: Path) -> None:
    [granted] = lock(["1"], 1590, leases=leases)
    assert nvml.changes() == ["reset 1 0", "lock 1 1590"]
    assert read_lease(leases, "GPU-1") == granted
    assert (granted.mhz, granted.pid, granted.stale()) == (1590, os.getpid(), "")
    zero, one = status(leases=leases)
    assert (zero.lease, zero.reading.sm_mhz) == (None, 1980)
    assert (one.lease, one.reading.sm_mhz, one.stale) == (granted, 1590, "")


def test_letting_go_lets_go_of_what_is_leased_and_of_what_is_named(nvml: StandIn, leases: Path) -> None:
    lock(["0"], 1590, leases=leases)
    assert release([], leases=leases) == ["GPU-0"]
    assert leased(leases) == []
    assert release([], leases=leases) == []
    assert release(["1"], leases=leases) == ["GPU-1"], "also when the lease is gone"
    assert nvml.changes() == ["reset 0 0", "lock 0 1590", "reset 0 0", "reset 1 0"]


def test_a_new_lock_lets_go_of_what_an_earlier_life_left_behind(nvml: StandIn, leases: Path) -> None:
    write_lease(leases, Lease("GPU-0", 1200, 1, "an earlier boot", 0.0))
    (leases / "GPU-gone.json").write_text("{")
    lock(["GPU-1"], 1590, leases=leases)
    assert sorted(nvml.changes()) == ["lock 1 1590", "reset 0 0", "reset 1 0"]
    assert leased(leases) == ["GPU-1"]


def test_all_are_every_gpu_once(nvml: StandIn, leases: Path) -> None:
    assert [lease.uuid for lease in lock(["all", "0"], 1590, leases=leases)] == ["GPU-0", "GPU-1"]
    with pytest.raises(ClockError, match=r'no GPU "2".*GPU-0, GPU-1'):
        lock(["2"], 1590, leases=leases)


def test_the_base_clock_is_asked_of_the_driver_where_it_knows_it(nvml: StandIn, leases: Path) -> None:
    nvml.say(base="1095")
    [granted] = lock(["0"], None, leases=leases)
    assert granted.mhz == 1095
    for answer in ("1980", "-1"):  # the highest clock is not the base clock
        nvml.say(base=answer)
        with pytest.raises(ClockError, match="--mhz"):
            lock(["0"], None, leases=leases)
        assert leased(leases) == []


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"fail nvmlDeviceSetGpuLockedClocks": "4"}, "Insufficient Permissions.*root"),
        ({"fail nvmlDeviceSetGpuLockedClocks": "3"}, "Not Supported.*observe"),
        ({"fail nvmlDeviceSetGpuLockedClocks": "999"}, "dmesg"),
        ({"1.mig": "1"}, "MIG.*observe"),
        ({"fail nvmlDeviceGetCount_v2": "15"}, "dmesg"),
    ],
)
def test_a_refusal_comes_with_its_remedy_and_leaves_nothing_locked(
    nvml: StandIn, leases: Path, answers: dict[str, str], words: str
) -> None:
    nvml.set(answers)
    with pytest.raises(ClockError, match=words):
        lock(["1"], 1590, leases=leases)
    assert leased(leases) == []
    assert not nvml.changes() or nvml.changes()[-1] == "reset 1 0"
    for key in answers:
        nvml.unset(key)
    assert lock(["1"], 1590, leases=leases)


def test_when_the_second_gpu_refuses_the_first_is_let_go(nvml: StandIn, leases: Path) -> None:
    nvml.set({"1.mig": "1"})
    with pytest.raises(ClockError, match="GPU-1"):
        lock(["0", "1"], 1590, leases=leases)
    assert leased(leases) == []
    changes = nvml.changes()
    assert changes.index("lock 0 1590") < len(changes) - 1 - changes[::-1].index("reset 0 0")


def test_a_call_that_hangs_ends_the_command_with_a_remedy(nvml: StandIn, leases: Path) -> None:
    session = Nvml(limit_s=0.2)
    nvml.set({"hang nvmlDeviceSetGpuLockedClocks": ""})
    with pytest.raises(ClockError, match=r"did not answer.*reboot"):
        lock(["0"], 1590, leases=leases, nvml=session)
    nvml.unset("hang nvmlDeviceSetGpuLockedClocks")
    assert leased(leases) == []


def test_letting_go_that_is_refused_is_an_error_after_all_were_tried(nvml: StandIn, leases: Path) -> None:
    lock(["all"], 1590, leases=leases)
    nvml.set({"fail nvmlDeviceResetGpuLockedClocks": "4"})
    with pytest.raises(ClockError, match=r"GPU-0 cannot be released.*root"):
        release([], leases=leases)
    assert nvml.changes()[-2:] == ["reset 0 0", "reset 1 0"]
    assert leased(leases) == [], "the daemon must not take it for held"


def test_a_lease_that_cannot_be_written_lets_the_clock_go(nvml: StandIn, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ClockError, match="lease cannot be written"):
        lock(["0"], 1590, leases=blocked / "leases")
    assert nvml.changes()[-1] == "reset 0 0"


# -- the command, in a process of its own ------------------------------------------------------------------------


def tunerd(nvml: StandIn, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tuner_daemon.cli", "clocks", *words]
    return subprocess.run(command, env=nvml.environment(), capture_output=True, text=True, timeout=30)


def test_the_command_locks_tells_and_lets_go(nvml: StandIn, leases: Path) -> None:
    where = f"--leases={leases}"
    held = tunerd(nvml, "lock", "--gpus=0,1", "--mhz=1590", where)
    assert (held.returncode, held.stdout) == (0, "GPU-0: held at 1590 MHz\nGPU-1: held at 1590 MHz\n"), held.stderr
    told = tunerd(nvml, "status", where)
    assert "GPU-1: held at 1590 MHz, SM clock 1980 MHz, 45 C, 300 W" in told.stdout
    facts = json.loads(tunerd(nvml, "status", "--json", where).stdout)
    assert [gpu["lease"]["mhz"] for gpu in facts] == [1590, 1590]
    gone = tunerd(nvml, "release", where)
    assert (gone.returncode, gone.stdout) == (0, "GPU-0: let go\nGPU-1: let go\n")
    assert tunerd(nvml, "release", where).stdout == "no clock is held\n"


def test_the_command_says_in_one_line_why_it_failed(nvml: StandIn, leases: Path) -> None:
    nvml.set({"fail nvmlDeviceSetGpuLockedClocks": "4"})
    refused = tunerd(nvml, "lock", "--gpus=0", "--mhz=1590", f"--leases={leases}")
    assert refused.returncode == 1
    assert refused.stderr.startswith("tunerd: GPU-0 cannot be locked")
    assert refused.stderr.count("\n") == 1
    assert leased(leases) == []
    wrong = tunerd(nvml, "lock", "--mhz=fast", f"--leases={leases}")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "--mhz" in wrong.stderr


def test_the_unit_may_leave_the_frequency_to_the_driver(nvml: StandIn, leases: Path) -> None:
    nvml.set({"0.base": "1095"})
    assert "1095 MHz" in tunerd(nvml, "lock", "--gpus=0", "--mhz=", f"--leases={leases}").stdout
