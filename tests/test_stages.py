"""Where a candidate's time went."""

from __future__ import annotations

import pytest

from tuner_daemon.worker.stages import Stages


def test_time_is_counted_by_stage_and_every_note_is_passed_on() -> None:
    ticks, notes = iter([0.0, 1.0, 1.0, 3.0, 3.0, 3.5, 3.5, 7.5]), list[tuple[int, str]]()
    stages = Stages(lambda *note: notes.append(note), clock=lambda: next(ticks))
    for stage in ("loading", "checking", "checking odd sizes: n = 67", "checking"):
        stages(0, stage)
    assert stages.spent_s() == pytest.approx({"loading": 1.0, "checking": 2.0 + 4.0, "checking_odd_sizes": 0.5})
    assert notes == [(0, s) for s in ("loading", "checking", "checking odd sizes: n = 67", "checking")]
