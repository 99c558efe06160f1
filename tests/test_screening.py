"""Every check that keeps rows out of learning, with a planted fault that it catches and nothing else that it does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.learning_tasks import device, tiled_kernel, tiled_task, true_log_s
from tuner_daemon.learning.dataset import Row
from tuner_daemon.learning.screening import CONFIRMED, NOISE, Wanted, deviation, screen
from tuner_daemon.records.kernel import Kernel
from tuner_daemon.records.measurement import Outcome
from tuner_daemon.records.roofline import floor_s

KERNEL = tiled_kernel()
ROWS = 40


def kernel_of(sha256: str) -> Kernel | None:
    return KERNEL if sha256 == KERNEL.sha256 else None


def log(seed: int = 0, *, level: float = 1.0, key: str = "") -> list[dict[str, Any]]:
    """Sound rows of one task, with 2 % of noise; failures among them. Equal seeds draw equal configurations."""
    task = tiled_task(device(), n=512)
    rng = np.random.default_rng([seed, round(100 * level)])
    configs = task.space.sample(ROWS, np.random.default_rng(seed))
    rows = []
    for number, (config, log_s) in enumerate(zip(configs, true_log_s(task, configs), strict=True)):
        times_s = [float(t) for t in level * math.exp(log_s) * (1 + 0.02 * rng.standard_normal(5))]
        ok = not math.isnan(log_s)
        rows.append(
            {
                "key": f"{key}{seed}-{number}",
                "kernel": KERNEL.name,
                "kernel_sha256": KERNEL.sha256,
                "language": "cuda",
                "problem": dict(task.spec.problem),
                "config": config.as_dict(),
                "outcome": str(Outcome.OK if ok else Outcome.LAUNCH_FAILED),
                "times_s": times_s if ok else None,
                "median_s": float(np.median(times_s)) if ok else None,
                "baseline_median_s": level * 1e-4,
                "error_norm": 1e-7 if ok else None,
                "clock_mode": "free",
                "device_kind": "cuda",
                "device_name": task.device.name,
                "device_attributes": dict(task.device.attributes),
            }
        )
    return rows


def timed(rows: list[dict[str, Any]], number: int = 0) -> dict[str, Any]:
    return [row for row in rows if row["outcome"] == "ok"][number]


def retimed(row: dict[str, Any], times_s: list[float]) -> None:
    row.update(times_s=times_s, median_s=float(np.median(times_s)))


def floor_of(row: Row) -> float:
    return floor_s(KERNEL, {**row["problem"], **row["config"]}, device())


def test_sound_rows_pass_failures_included() -> None:
    rows = log()
    assert {row["outcome"] for row in rows} == {"ok", "launch_failed"}
    screened = screen(
        rows, kernel_of, Wanted("free", {KERNEL.name: KERNEL.sha256}, once=True), repeats=log(key="again")
    )
    assert screened.rows == rows
    assert screened.left_out == {}


FAULTS: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "never compared with the reference": ("unverified", lambda row: row.update(error_norm=None)),
    "an output that is not a number": ("unverified", lambda row: row.update(error_norm=math.nan)),
    "disturbed": ("disturbed", lambda row: row.update(outcome="disturbed", times_s=None, median_s=None)),
    "half the roofline's floor": ("faster than possible", lambda row: retimed(row, [floor_of(row) / 2] * 5)),
    "not a number": ("no time", lambda row: row.update(times_s=[math.nan] * 5, median_s=math.nan)),
    "one sample not a number": ("no time", lambda row: row["times_s"].__setitem__(1, math.nan)),
    "negative": ("no time", lambda row: retimed(row, [-t for t in row["times_s"]])),
    "zero": ("no time", lambda row: retimed(row, [0.0] * 5)),
    "infinite": ("no time", lambda row: retimed(row, [math.inf] * 5)),
    "no samples": ("no time", lambda row: row.update(times_s=[])),
    "a median of other samples": ("no time", lambda row: row.update(median_s=0.9 * row["median_s"])),
    "samples that disagree": (
        "noisy",
        lambda row: retimed(row, [row["median_s"] * f for f in (0.7, 0.75, 1.0, 1.4, 1.5)]),
    ),
    "locked clocks in a free log": ("other clocks", lambda row: row.update(clock_mode="locked")),
    "another kernel's hash": ("unknown kernel", lambda row: row.update(kernel_sha256="0" * 64)),
    "a value that the kernel never has": ("unknown kernel", lambda row: row["config"].update(VEC=3)),
    "true in place of one": ("unknown kernel", lambda row: row["config"].update(VEC=True)),
    "a parameter that the kernel lacks": ("unknown kernel", lambda row: row["config"].update(NEW=1)),
    "a parameter too few": ("unknown kernel", lambda row: row["config"].pop("VEC")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_left_out_and_nothing_else(fault: str) -> None:
    reason, plant = FAULTS[fault]
    rows = log()
    spoilt = timed(rows)
    plant(spoilt)
    screened = screen(rows, kernel_of, Wanted("free"))
    assert screened.left_out == {reason: 1}
    assert screened.rows == [row for row in rows if row is not spoilt]


def test_a_kernel_that_has_changed_since_is_another_kernel() -> None:
    rows = log()
    screened = screen(rows, kernel_of, Wanted(sha256={KERNEL.name: "f" * 64}))
    assert screened.left_out == {"unknown kernel": len(rows)}


def test_clock_modes_stay_together_where_none_is_wanted() -> None:
    rows = log()
    timed(rows)["clock_mode"] = "locked"
    assert screen(rows, kernel_of).left_out == {}


def test_the_same_row_counts_once() -> None:
    rows = log()
    screened = screen([*rows, rows[3]], kernel_of)
    assert screened.left_out == {"duplicate": 1}
    assert screened.rows == rows


def test_a_configuration_measured_twice_counts_once_where_that_is_wanted() -> None:
    rows, again = log(), log(key="again")
    assert screen([*rows, *again], kernel_of).left_out == {}
    screened = screen([*rows, *again], kernel_of, Wanted(once=True))
    assert screened.left_out == {"duplicate": len(again)}
    assert screened.rows == rows


def test_a_time_that_a_repeat_does_not_confirm_is_left_out_with_its_twin() -> None:
    rows, again = log(), log(key="again")
    retimed(timed(again), [1.5 * CONFIRMED * t for t in timed(rows)["times_s"]])
    screened = screen(rows, kernel_of, repeats=again)
    assert screened.left_out == {"unconfirmed": 1}
    assert screened.rows == [row for row in rows if row is not timed(rows)]
    assert screen([*rows, *again], kernel_of).left_out == {"unconfirmed": 2}


def test_a_time_whose_repeat_gives_wrong_results_is_left_out() -> None:
    rows, again = log(), log(key="again")
    timed(again).update(outcome="wrong_result", times_s=None, median_s=None)
    assert screen(rows, kernel_of, repeats=again).left_out == {"unconfirmed": 1}


def test_a_repeat_that_ran_out_of_time_refutes_nothing() -> None:
    rows, again = log(), log(key="again")
    timed(again).update(outcome="timed_out", times_s=None, median_s=None)
    assert screen(rows, kernel_of, repeats=again).left_out == {}


def test_a_device_that_has_become_slower_refutes_nothing_its_baseline_has_too() -> None:
    assert screen(log(), kernel_of, repeats=log(level=2.0, key="again")).left_out == {}
    rows, again = log(), log(level=2.0, key="again")
    for row in [*rows, *again]:
        row["baseline_median_s"] = None
    timings = sum(row["outcome"] == "ok" for row in rows)
    assert screen(rows, kernel_of, repeats=again).left_out == {"unconfirmed": timings}


def test_repeats_that_are_unsound_themselves_refute_nothing() -> None:
    rows, again = log(), log(key="again")
    retimed(timed(again), [10 * t for t in timed(rows)["times_s"]])
    timed(again)["error_norm"] = None
    assert screen(rows, kernel_of, repeats=again).left_out == {}


def test_recordings_of_others_need_no_error_of_ours() -> None:
    rows = log()
    for row in rows:
        row.update(device_kind="replay", error_norm=None)
    assert screen(rows, kernel_of).left_out == {}


def test_one_outlier_in_five_is_no_noise() -> None:
    assert deviation([1.0, 1.01, 0.99, 1.02, 9.0]) < NOISE < deviation([0.7, 0.75, 1.0, 1.4, 1.5])
