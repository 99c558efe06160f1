"""What every test may rely on: one thread per library, no settings of the person at the keyboard, no shared state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.nvml import StandIn

# Before numpy, torch and xgboost are imported, here and in the children that tests start: two test processes with a
# thread per core each would only get in each other's way.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A test that forgets to name its state folder gets one of its own, never that of an installed daemon."""
    for name in os.environ:
        if name.startswith("TUNERD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.nvml import compiled

    return compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """NVML's stand-in, loaded."""
    from tests.nvml import StandIn

    stand_in = StandIn(tmp_path, nvml_library)
    stand_in.load(monkeypatch)
    return stand_in
