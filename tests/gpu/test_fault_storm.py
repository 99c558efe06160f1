"""Two hundred candidates that break the device leave it, and the time of a good one, as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fault_storm import storm
from tests.zoo_kernels import FAULTS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def test_a_storm_of_faults_leaves_the_device_as_it_was(tmp_path: Path) -> None:
    seen = storm("cuda", 200, tmp_path, good_every=4)
    assert seen.wrong("cuda") == []
    assert {fault for fault, _ in seen.outcomes} == set(FAULTS)
    assert seen.canaries == seen.abnormal_ends == seen.faults == 200
    assert seen.largest_deviation < 0.01
    assert abs(seen.free_before - seen.free_after) < 64 << 20
