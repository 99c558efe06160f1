"""The process may end at any call that changes the disk: nothing is lost, and nothing is there twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.faults import compiled, quick_folder, run_under_faults

DRIVER = "tests.soak.crash_driver"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("stride", "at_least"), [pytest.param(1, 200, marks=pytest.mark.slow, id="all"), pytest.param(13, 30, id="few")]
)
def test_a_crash_at_any_call_loses_nothing_and_doubles_nothing(tmp_path: Path, stride: int, at_least: int) -> None:
    """Of appending, compaction, results, moves in the spool and model swaps; enumerated, so there is no seed."""
    with quick_folder(tmp_path) as folder:
        found = run_under_faults(DRIVER, compiled(tmp_path), folder=str(folder), stride=stride)
    print("crash points {points} in {scenarios} actions, lost {lost}, duplicated {duplicated}".format(**found))
    assert found["points"] >= at_least
    assert found["scenarios"] == 30
    assert (found["lost"], found["duplicated"]) == (0, 0)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.slow, id="all"), pytest.param(5, id="few")])
def test_without_the_compaction_naming_its_inputs_crashes_would_double_rows(tmp_path: Path, stride: int) -> None:
    """Negative control: the same crashes."""
    with quick_folder(tmp_path) as folder:
        found = run_under_faults(DRIVER, compiled(tmp_path), folder=str(folder), stride=stride, inputs_listed=False)
    print("without the list of inputs: crash points {points}, duplicated {duplicated}".format(**found))
    assert found["duplicated"] > 0
