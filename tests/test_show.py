"""What a person reads of a result."""

from __future__ import annotations

from typing import Any

import pytest

from tuner_daemon.cli.show import show_result

CONFIG = {"BLOCK": 64}
RESULT: dict[str, Any] = {
    "kernel": {"name": "scale"},
    "device": {"name": "a device"},
    "verdict": "faster",
    "reason": "2.00x the baseline",
    "best": {
        "config": CONFIG,
        "median_s": 1e-3,
        "ci_s": [1e-3, 1e-3],
        "speedup": 2.0,
        "error_norm": 2e-7,
        "proposed_by": "policy",
    },
    "baseline": {"config": CONFIG, "median_s": 2e-3, "ci_s": [2e-3, 2e-3]},
    "measured": 8,
    "space_size": 16,
    "outcomes": {"ok": 8},
    "wall_s": {"total": 1.0},
    "models": {"policy": ""},
}


@pytest.mark.parametrize(
    ("error_norm", "words", "others"),
    [
        (2e-7, "verified, relative error 2.0e-07", "recorded"),
        (None, "recorded times; nothing was run", "verified"),
    ],
)
def test_only_what_was_run_here_is_called_verified(
    capsys: pytest.CaptureFixture[str], error_norm: float | None, words: str, others: str
) -> None:
    show_result({**RESULT, "best": {**RESULT["best"], "error_norm": error_norm}})
    shown = capsys.readouterr().out
    assert f"proposed by policy; {words}" in shown
    assert others not in shown
