"""The stand-in for libnvidia-ml.so.1: compiled once, and told what to answer."""

from __future__ import annotations

import os
import subprocess
from ctypes import CDLL
from pathlib import Path

import pynvml
import pytest

from tuner_daemon.runners.clock_lease import Lease
from tuner_daemon.runners.clocks import Keeper, NvmlClocks

SOURCE = Path(__file__).parent / "nvml_stand_in" / "nvml.c"
HELD = 1590  # MHz


def compiled(folder: Path) -> Path:
    """The library; the real binding finds it in LD_LIBRARY_PATH."""
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return library


def keeper(policy: str = "verify", *, held_mhz: int | None = HELD, uuid: str = "GPU-0") -> Keeper:
    """With a lease on this clock, or none."""
    lease = None if held_mhz is None else Lease.now(uuid, held_mhz)
    return Keeper(policy, uuid, NvmlClocks(uuid, limit_s=0.3), lambda asked: lease if asked == uuid else None)


class StandIn:
    """Its answers, by the names that nvml.c explains."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.control, self.library = folder / "nvml.txt", library
        self.answers: dict[str, str] = {"gpus": "1"}
        self.say()

    def say(self, **answers: str) -> None:
        """Changes answers of GPU 0 from now on (``sm="1980"``)."""
        self.set({f"0.{key}": words for key, words in answers.items()})

    def set(self, answers: dict[str, str]) -> None:
        self.answers |= answers
        self._write()

    def unset(self, key: str) -> None:
        del self.answers[key]
        self._write()

    def changes(self) -> list[str]:
        """What was asked to be changed so far."""
        file = Path(f"{self.control}.changes")
        return file.read_text().splitlines() if file.exists() else []

    def environment(self) -> dict[str, str]:
        """For a process of its own."""
        return {**os.environ, "NVML_STAND_IN": str(self.control), "LD_LIBRARY_PATH": str(self.library.parent)}

    def load(self, patch: pytest.MonkeyPatch) -> None:
        """Into this process, for as long as the test lasts, whatever library is installed."""
        patch.setenv("NVML_STAND_IN", str(self.control))
        patch.setattr(pynvml, "nvmlLib", CDLL(str(self.library)))
        patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def _write(self) -> None:
        draft = self.control.with_suffix(".new")
        draft.write_text("".join(f"{key} {words}\n" for key, words in self.answers.items()))
        draft.rename(self.control)
