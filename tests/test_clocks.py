"""Clock policies and disturbances, with the real NVML binding over a library that is told what to answer."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pynvml
import pytest

from tests.nvml import HELD, StandIn, keeper
from tuner_daemon.errors import ClockError, MissingPartError
from tuner_daemon.runners.clock_lease import LONGEST_S, Lease
from tuner_daemon.runners.clocks import (
    REASONS,
    Keeper,
    Looks,
    NvmlClocks,
    Seen,
    bad_reasons,
    observed,
    reason_names,
)
from tuner_daemon.runners.nvml import Nvml, NvmlError, NvmlGpu, Reading, Refusal

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="the stand-in is compiled")


def judged(kept: Keeper, ran: Callable[[], None] = lambda: time.sleep(0.05)) -> Seen:
    with kept.watch() as watch:
        ran()
    return kept.judge(watch.looks)


# -- reading ---------------------------------------------------------------------------------------------------


def test_the_real_binding_reads_the_device(nvml: StandIn) -> None:
    nvml.say(sm="1755", reasons="0x6", temperature="61", power_mw="512500")
    assert NvmlClocks("GPU-0").read() == Reading(1755, 2619, 61.0, 512.5, 6)
    assert NvmlClocks("GPU-0").driver_version == "stand-in 1.0"


def test_a_question_that_a_device_cannot_answer_leaves_the_others(nvml: StandIn) -> None:
    nvml.set({"fail nvmlDeviceGetTemperature": "3", "fail nvmlDeviceGetCurrentClocksEventReasons": "13"})
    reading = NvmlClocks("GPU-0").read()
    assert (reading.sm_mhz, reading.temperature_c, reading.reasons) == (1980, None, None)


def test_each_of_several_gpus_is_read_by_its_own_name(nvml: StandIn) -> None:
    nvml.set({"gpus": "3", "0.sm": "1000", "1.sm": "1100", "2.sm": "1200"})
    assert [NvmlClocks(f"GPU-{n}").read().sm_mhz for n in (2, 0, 1)] == [1200, 1000, 1100]
    with pytest.raises(MissingPartError, match="GPU-3"):
        NvmlClocks("GPU-3")


def test_the_lease_of_one_gpu_is_not_anothers(nvml: StandIn) -> None:
    nvml.set({"gpus": "2", "0.sm": str(HELD), "1.sm": str(HELD)})
    lease = Lease.now("GPU-0", HELD)
    first, second = (
        Keeper("verify", uuid, NvmlClocks(uuid), lambda asked: lease if asked == "GPU-0" else None)
        for uuid in ("GPU-0", "GPU-1")
    )
    assert (judged(first).clocks.mode, judged(second).clocks.mode) == ("locked", "free")


def test_a_mig_instance_has_the_clocks_of_its_gpu(nvml: StandIn) -> None:
    nvml.say(mig="1", sm="1234", pids=f"{os.getpid()} 1")
    gpu = NvmlGpu(Nvml(), "GPU-i")
    assert gpu.mig
    assert gpu.read() == Reading(1234, 2619, 45.0, 300.0, 0, others=())
    nvml.say(mig="0")
    with pytest.raises(NvmlError) as caught:
        NvmlGpu(Nvml(), "GPU-i")
    assert caught.value.refusal is Refusal.ABSENT


def test_without_library_or_driver_clocks_are_a_missing_part(nvml: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    NvmlClocks("GPU-0")
    nvml.unset("gpus")
    with pytest.raises(MissingPartError, match="GPU-0"):
        NvmlClocks("GPU-0")

    def no_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    with pytest.raises(NvmlError) as caught:
        Nvml()
    assert caught.value.refusal is Refusal.ABSENT


def test_a_call_that_hangs_is_given_up_once_and_for_all(nvml: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    clocks = NvmlClocks("GPU-0", limit_s=0.2)
    assert clocks.read().sm_mhz == 1980
    nvml.set({"hang nvmlDeviceGetPowerUsage": ""})
    began_s = time.monotonic()
    readings = [clocks.read() for _ in range(20)]
    assert time.monotonic() - began_s < 3.0, "each of them would take 0.2 s"
    assert readings == [Reading()] * 20
    assert len([record for record in caplog.records if "given up" in record.message]) == 1
    nvml.unset("hang nvmlDeviceGetPowerUsage")  # lets the thread end


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetHandleByUUID"])
def test_a_start_that_hangs_is_a_missing_part(nvml: StandIn, call: str) -> None:
    nvml.set({f"hang {call}": ""})
    with pytest.raises(MissingPartError, match="did not answer"):
        NvmlClocks("GPU-0", limit_s=0.2)
    nvml.unset(f"hang {call}")
    assert NvmlClocks("GPU-0", limit_s=0.2).read().sm_mhz == 1980


def test_a_process_can_end_while_a_call_hangs(nvml: StandIn) -> None:
    nvml.set({"hang nvmlDeviceGetPowerUsage": ""})
    script = "from tuner_daemon.runners.clocks import NvmlClocks; print(NvmlClocks('GPU-0', limit_s=0.2).read().sm_mhz)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=nvml.environment(), capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "None\n"


# -- policies --------------------------------------------------------------------------------------------------


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(MissingPartError, match="lock, verify, observe"):
        Keeper("pin")


def test_a_held_clock_that_is_where_the_lease_says_is_locked(nvml: StandIn) -> None:
    nvml.say(sm=str(HELD), reasons="0x2")
    for policy in ("verify", "lock"):
        kept = keeper(policy)
        kept.require()
        assert kept.mode == "locked"
        seen = judged(kept)
        assert (seen.clocks.policy, seen.clocks.mode, seen.clocks.sm_mhz) == (policy, "locked", (HELD, HELD))
        assert seen.disturbance == ""


def test_observing_takes_no_note_of_a_lease(nvml: StandIn) -> None:
    nvml.say(sm=str(HELD))
    kept = keeper("observe")
    kept.require()
    assert (kept.mode, judged(kept).clocks.mode) == ("free", "free")


def test_without_a_lease_verify_marks_free_and_lock_refuses(nvml: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    nvml.say(sm=str(HELD))
    kept = keeper("verify", held_mhz=None)
    kept.require()
    assert [judged(kept).clocks.mode for _ in range(2)] == ["free", "free"]
    assert kept.mode == "free"
    assert len([r for r in caplog.records if r.levelno == logging.WARNING and "no lease" in r.message]) == 1
    with pytest.raises(ClockError, match=r"no lease.*tunerd-clocks\.service.*verify"):
        keeper("lock", held_mhz=None).require()


def test_a_lock_that_has_no_effect_is_found_out_under_load(nvml: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    nvml.say(sm="1980")
    kept = keeper("verify")
    assert kept.mode == "locked"
    seen = judged(kept)
    assert (seen.clocks.mode, seen.disturbance, kept.mode) == ("free", "", "free")
    assert "1980 to 1980 MHz" in caplog.text
    nvml.say(sm=str(HELD))
    assert judged(kept).clocks.mode == "locked"  # it does now
    nvml.say(sm="1980")
    with pytest.raises(ClockError, match=r"1590 MHz.*1980.*tunerd-clocks"):
        judged(keeper("lock"))


def test_a_device_that_waits_for_the_host_shows_no_clock_under_load(nvml: StandIn) -> None:
    nvml.say(sm="345", reasons="0x1")
    kept = keeper("verify")
    assert judged(kept).clocks.mode == "free"  # not seen yet
    nvml.say(sm=str(HELD), reasons="0x2")
    assert judged(kept).clocks.mode == "locked"
    nvml.say(sm="345", reasons="0x1")
    assert judged(kept).clocks.mode == "locked"  # as last seen
    nvml.say(reasons="0x0")
    assert judged(kept).clocks.mode == "free"


@pytest.mark.parametrize(
    ("boot", "age_s"), [("another", 0.0), ("", LONGEST_S + 1), ("", -1e6)], ids=["boot", "old", "future"]
)
def test_a_stale_lease_counts_as_none(nvml: StandIn, boot: str, age_s: float) -> None:
    nvml.say(sm=str(HELD))
    lease = Lease.now("GPU-0", HELD)
    lease = replace(lease, boot_id=boot or lease.boot_id, since_unix_s=lease.since_unix_s - age_s)
    with pytest.raises(ClockError, match="stale"):
        Keeper("lock", "GPU-0", NvmlClocks("GPU-0"), lambda _: lease).require()


def test_a_device_without_nvml_is_free_and_cannot_be_locked(caplog: pytest.LogCaptureFixture) -> None:
    kept = Keeper("verify", "cpu")
    kept.require()
    assert judged(kept).clocks.mode == kept.mode == "free"
    assert "tells nothing" in caplog.text
    with pytest.raises(ClockError, match="observe"):
        Keeper("lock", "cpu").require()


def test_when_nvml_is_given_up_nothing_is_locked_any_more(nvml: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    nvml.say(sm=str(HELD))
    kept, strict = keeper("verify"), keeper("lock")
    assert judged(kept).clocks.mode == judged(strict).clocks.mode == "locked"
    nvml.set({"hang nvmlDeviceGetClockInfo": ""})
    assert judged(kept).clocks.mode == "free"  # its first look hangs
    assert judged(kept).clocks.mode == kept.mode == "free"
    assert "given up" in caplog.text
    with pytest.raises(ClockError, match="does not tell its clock"):
        judged(strict)
    nvml.unset("hang nvmlDeviceGetClockInfo")


# -- disturbances ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bit", range(64))
def test_every_reason_but_idle_and_locked_disturbs_a_held_clock(nvml: StandIn, bit: int) -> None:
    nvml.say(sm=str(HELD), reasons=hex(1 << bit))
    seen = judged(keeper(), lambda: time.sleep(0.015))
    assert bool(seen.disturbance) == (bit > 1)
    if bit > 1:
        assert REASONS.get(1 << bit, f"unknown reason {1 << bit:#x}") in seen.disturbance
    assert seen.clocks.reasons == 1 << bit


def test_a_free_clock_may_meet_its_power_cap_and_nothing_else() -> None:
    bits = [1 << bit for bit in range(64)]
    assert [bit for bit in bits if not bad_reasons(bit, locked=False)] == [1, 2, 4]
    assert [bit for bit in bits if not bad_reasons(bit, locked=True)] == [1, 2]
    assert reason_names(0x4 | 1 << 40) == "software power cap, unknown reason 0x10000000000"


def test_a_throttle_in_mid_run_is_seen_though_it_is_over_at_the_end(nvml: StandIn) -> None:
    nvml.say(sm=str(HELD))

    def ran() -> None:
        nvml.say(reasons="0x40")
        time.sleep(0.05)
        nvml.say(reasons="0")

    assert "hardware thermal slowdown" in judged(keeper(), ran).disturbance
    assert judged(keeper()).disturbance == ""


def test_a_held_clock_that_drops_in_mid_run_is_a_disturbance(nvml: StandIn) -> None:
    def ran() -> None:
        time.sleep(0.05)
        nvml.say(sm="1200")
        time.sleep(0.15)

    nvml.say(sm=str(HELD))
    seen = judged(keeper(), ran)
    assert "1200 MHz" in seen.disturbance
    assert seen.clocks.mode == "locked"
    assert seen.clocks.sm_mhz == (1200, HELD)


def looks(*sm: int, reasons: int = 0) -> Looks:
    return Looks(Reading(345, reasons=1), tuple(Reading(mhz, reasons=reasons) for mhz in sm), Reading(345, reasons=1))


@pytest.mark.parametrize(
    ("held", "sm", "reasons", "disturbed"),
    [
        (HELD, (HELD, HELD - 15, HELD), 0, False),
        (HELD, (345, HELD, HELD), 0, False),  # comes up from idle
        (HELD, (HELD, 1200, HELD), 0, True),
        (HELD, (1980, HELD, HELD), 0, True),  # was held only later
        (HELD, (HELD, 1980), 0, True),
        (None, (345, 1980, 1965), 0, False),
        (None, (1980, 1200, 1980), 0, True),
        (None, (1980, 1200, 1980), 4, False),  # its own power cap
    ],
)
def test_how_a_clock_may_move_while_a_candidate_runs(
    held: int | None, sm: tuple[int, ...], reasons: int, disturbed: bool
) -> None:
    class Some:
        def read(self) -> Reading:
            return Reading()

    kept = Keeper("verify", "u", Some(), lambda _: None if held is None else Lease.now("u", held))
    assert bool(kept.judge(looks(*sm, reasons=reasons)).disturbance) == disturbed


def test_another_process_on_the_gpu_is_a_disturbance_and_our_own_is_not(nvml: StandIn) -> None:
    nvml.say(sm=str(HELD), pids=f"{os.getpid()}")
    assert judged(keeper()).disturbance == ""
    with subprocess.Popen(["sleep", "60"]) as own:
        nvml.say(pids=f"{os.getpid()} {own.pid}")
        assert judged(keeper()).disturbance == ""
        own.kill()
    dead = own.pid
    nvml.say(pids=f"{os.getpid()} {dead} 1")
    assert judged(keeper()).disturbance == "other processes compute on the GPU: 1"
    nvml.say(pids="1 4194000")
    assert judged(keeper()).disturbance == "", "numbers of another namespace tell nothing"


def test_a_process_that_is_there_for_a_moment_is_noticed(nvml: StandIn) -> None:
    def ran() -> None:
        nvml.say(pids=f"{os.getpid()} 1")
        time.sleep(0.05)
        nvml.say(pids=f"{os.getpid()}")

    nvml.say(sm=str(HELD), pids=f"{os.getpid()}")
    assert "other processes" in judged(keeper(), ran).disturbance


def test_all_looks_become_one_record() -> None:
    seen = observed(
        Looks(Reading(345, 2619, 40.0, 300.0, 1), (Reading(1980, reasons=4),), Reading(1755, 2619, 55.0, None, 4))
    )
    assert seen.sm_mhz == (1980, 1980), "under load"
    assert (seen.mem_mhz, seen.temperature_c, seen.power_w, seen.reasons) == (2619, 55.0, 300.0, 5)
    assert observed(Looks(Reading(1, reasons=1), (), Reading(2))).sm_mhz == (1, 2)
    assert observed(Looks(Reading(), (), Reading())).sm_mhz is None


def test_measurements_that_follow_each_other_share_the_look_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting:
        count = 0

        def read(self) -> Reading:
            self.count += 1
            return Reading(sm_mhz=self.count)

    reader = Counting()
    kept = Keeper("observe", "u", reader)
    monkeypatch.setattr("tuner_daemon.runners.clocks.FRESH_S", 60.0)
    with kept.watch() as first:
        pass
    with kept.watch() as second:
        pass
    assert second.looks.before is first.looks.after
    monkeypatch.setattr("tuner_daemon.runners.clocks.FRESH_S", 0.0)
    with kept.watch() as third:
        pass
    assert third.looks.before not in (first.looks.after, second.looks.after)
