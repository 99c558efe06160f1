"""A disk that fails at one call: no row is wrong, a full disk is waited for, and nothing is believed after a failed
fsync."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.faults import compiled, quick_folder, run_under_faults

DRIVER = "tests.soak.fault_driver"
FOUND = "faults {faults} at the first {first} calls, wrong {wrong}, restarts {restarts}, pauses {pauses}"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("stride", "at_least"), [pytest.param(1, 700, marks=pytest.mark.slow, id="all"), pytest.param(31, 17, id="few")]
)
def test_whatever_call_fails_every_job_ends_with_right_rows(tmp_path: Path, stride: int, at_least: int) -> None:
    """EIO, ENOSPC and short writes at each of the first 300 calls; enumerated, so there is no seed."""
    with quick_folder(tmp_path) as folder:
        found = run_under_faults(DRIVER, compiled(tmp_path), folder=str(folder), calls=300, stride=stride)
    print(f"{FOUND}, longest {{longest_ms}} ms".format(first=300, **found))
    assert found["calls"] >= 300
    assert found["faults"] >= at_least
    assert found["wrong"] == 0
    assert found["pauses"] > 0
    assert found["restarts"] >= found["fsyncs"] > 0
    assert found["longest_ms"] < 10_000


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.slow, id="all"), pytest.param(5, id="few")])
def test_a_daemon_that_believes_a_failed_fsync_would_be_noticed(tmp_path: Path, stride: int) -> None:
    """Negative control."""
    with quick_folder(tmp_path) as folder:
        found = run_under_faults(
            DRIVER, compiled(tmp_path), folder=str(folder), calls=40, stride=stride, believing=True
        )
    print(f"believing: {FOUND}".format(first=40, **found))
    assert found["wrong"] > 0
