"""``benchmarks.kernels`` on a GPU: both sides in one process, and the same result from both."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import kernels
from benchmarks.cases import Case
from benchmarks.problems import settings_for
from tuner_daemon.cli.workshop import Workshop

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

CASES = (
    (Case("softmax", {"rows": 513, "cols": 1000}), 1e-5),
    (Case("rmsnorm", {"rows": 64, "cols": 3000, "dtype": "bfloat16"}), 1e-2),
    (Case("matmul_half", {"m": 512, "n": 384, "k": 256, "dtype": "float16"}), 1e-2),
    (Case("histogram", {"n": 100_000, "bins": 100}), 1e-9),
)


@pytest.fixture(scope="module")
def options() -> argparse.Namespace:
    pytest.importorskip("pycuda.driver")
    pytest.importorskip("torch")
    return argparse.Namespace(kind="cuda", measurements=4, seconds=30.0, launches=10)


@pytest.fixture(scope="module")
def side(options: argparse.Namespace) -> Iterator[kernels.Side]:
    with kernels.Side(options) as opened:
        yield opened


@pytest.mark.parametrize(("case", "bound"), CASES, ids=lambda value: getattr(value, "family", None))
def test_a_winner_and_the_librarys_call_are_timed_and_agree(
    case: Case, bound: float, options: argparse.Namespace, side: kernels.Side, tmp_path: Path
) -> None:
    with Workshop(settings_for(tmp_path, "cuda")) as workshop:
        compared = kernels.compare(workshop, side, case, options)
    assert compared.difference is not None
    assert compared.difference <= bound
    assert compared.speed is not None
    assert 0.01 < compared.speed < 100
    assert compared.limits.registers
    assert compared.limits.copy_share is not None
    assert compared.limits.copy_share < 1.2
    assert "occupied" in compared.held_back
