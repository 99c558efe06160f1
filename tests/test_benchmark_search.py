"""Other people's searches, where they are installed (extra ``[bench]``), and the table beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import rivals, search
from tests.recordings import record
from tuner_daemon.evaluation.methods import Models, method_named
from tuner_daemon.evaluation.recorded import Recorded, load


@pytest.fixture
def space(tmp_path: Path) -> Recorded:
    return load([record(tmp_path)])[0]


@pytest.mark.parametrize("strategy", ["random_sample", "genetic_algorithm"])
def test_kernel_tuner_is_given_the_same_space_and_budget(strategy: str, space: Recorded) -> None:
    pytest.importorskip("kernel_tuner", reason="the extra [bench]")
    method = method_named(f"benchmarks.rivals:{strategy}")
    first, again, other = (method.search(space, Models(), 20, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert len(first) == len(other) == 20
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other, equal_nan=True)
    measured = [log_s for log_s in first if log_s == log_s]
    assert len(set(measured)) == len(measured), "distinct configurations have distinct times here"
    assert set(measured) <= set(space.log_s.values())


def test_tpe_pays_for_valid_configurations_only(space: Recorded) -> None:
    pytest.importorskip("optuna", reason="the extra [bench]")
    times = rivals.optuna_tpe(space, 20, seed=0)
    assert len(times) == 20
    measured = [log_s for log_s in times if log_s == log_s]
    assert len(set(measured)) == len(measured)
    assert len(rivals.optuna_tpe(space, 1000, seed=0)) == len(space.rows), "no more than there are"


def test_the_cache_holds_every_configuration_with_its_failure(space: Recorded) -> None:
    cache = rivals._cache(space, {p.name: list(p.values) for p in space.kernel.parameters})["cache"]
    assert len(cache) == len(space.rows)
    assert sum(entry["time"] == "RuntimeFailedConfig" for entry in cache.values()) == int(
        np.isnan(space.rows.log_s).sum()
    )


def test_the_table_has_the_best_first() -> None:
    def row(after: float) -> dict[str, object]:
        return {"after": {"8": 2.0, "32": after}, "within": 0.5, "needed": {"1.05": 12.0, "1.01": None}}

    part = {"methods": {"random": row(1.5), "benchmarks.rivals:mls": row(1.2), "full": row(1.01)}}
    lines: Sequence[str] = search.table(part).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        "full",
        "Kernel Tuner's mls at its defaults",
        "random",
    ]
    assert "never" in lines[2]
