"""One user of a device at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tuner_daemon.errors import SpoolError
from tuner_daemon.storage.lease import device_lease

HOLDER = """
import sys, time
from pathlib import Path
from tuner_daemon.storage.lease import device_lease
with device_lease(Path(sys.argv[1]), "cuda", 0, lambda holder: None):
    print("held", flush=True)
    time.sleep(60)
"""


class GivenUpError(Exception):
    """Raised by a waiter that has waited enough."""


def give_up(holder: str) -> None:
    raise GivenUpError(holder)


def test_a_taken_device_is_waited_for_and_its_holder_named_until_the_holder_dies(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(GivenUpError, match=str(holder.pid)), device_lease(tmp_path, "cuda", 0, give_up):
            pass
        with device_lease(tmp_path, "cuda", 1, give_up):  # another device is free
            pass
    finally:
        holder.kill()
        holder.communicate()
    with device_lease(tmp_path, "cuda", 0, give_up):
        pass


def test_a_released_device_is_free(tmp_path: Path) -> None:
    for _ in range(2):
        with device_lease(tmp_path, "cpu", 0, give_up):
            pass


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="lease of cpu 0"), device_lease(tmp_path / "file", "cpu", 0, give_up):
        pass
