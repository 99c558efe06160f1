"""The clocks' lease: whole, its own, and none where it is damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.nvml import HELD
from tuner_daemon.runners.clock_lease import Lease, read_lease, remove_lease, write_lease


def test_a_lease_is_whole_readable_and_its_own(tmp_path: Path) -> None:
    lease = Lease.now("GPU-0", HELD)
    old = os.umask(0o077)
    try:
        write_lease(tmp_path / "leases", lease)
    finally:
        os.umask(old)
    assert read_lease(tmp_path / "leases", "GPU-0") == lease
    assert lease.stale() == ""
    files = list((tmp_path / "leases").iterdir())
    assert [(file.name, file.stat().st_mode & 0o777) for file in files] == [("GPU-0.json", 0o644)]
    assert read_lease(tmp_path / "leases", "GPU-1") is None
    remove_lease(tmp_path / "leases", "GPU-0")
    remove_lease(tmp_path / "leases", "GPU-0")
    assert read_lease(tmp_path / "leases", "GPU-0") is None


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"uuid": "GPU-1", "mhz": 1}', "\x00", '{"uuid": "GPU-0", "mhz": "x"}']
)
def test_a_damaged_lease_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "GPU-0.json").write_text(text)
    assert read_lease(tmp_path, "GPU-0") is None
