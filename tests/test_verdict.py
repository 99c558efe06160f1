"""The verdict: honest about noise, on samples that did not choose the winner."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tuner_daemon.records.result import Verdict
from tuner_daemon.verdict import judge

BLOCKS = 30


def samples(
    rng: np.random.Generator, seconds: float, *, noise: float, drift: NDArray[np.float64]
) -> NDArray[np.float64]:
    return seconds * drift * np.exp(rng.normal(0.0, noise, BLOCKS))


def drift(rng: np.random.Generator, size: float) -> NDArray[np.float64]:
    """A slow swing shared by everything that runs in the same block."""
    return np.exp(size * np.sin(np.linspace(0, 3, BLOCKS) + rng.uniform(0, 6)))


def test_a_faster_finalist_is_called_faster_with_an_interval_around_the_truth() -> None:
    rng = np.random.default_rng(1)
    swing = drift(rng, 0.03)
    own, twin, fast = (samples(rng, s, noise=0.01, drift=swing) for s in (2e-3, 2e-3, 1e-3))
    judgement = judge(own, twin, fast[None])
    assert judgement.verdict is Verdict.FASTER
    assert judgement.winner == 0
    assert judgement.speedup.low < 2.0 < judgement.speedup.high
    assert judgement.speedup.high - judgement.speedup.low < 0.05


def test_the_same_binary_under_two_names_is_seldom_called_faster() -> None:
    rng = np.random.default_rng(2)
    called = 0
    for _ in range(300):
        swing = drift(rng, 0.03)
        own, twin, other = (samples(rng, 1e-3, noise=0.02, drift=swing) for _ in range(3))
        called += judge(own, twin, other[None]).verdict is Verdict.FASTER
    assert called <= 15


def test_without_pairing_drift_would_be_called_a_difference() -> None:
    """The negative control: samples of separate times, each under its own drift."""
    rng = np.random.default_rng(3)
    called = 0
    for _ in range(100):
        level = np.exp(rng.normal(0.0, 0.05, 2))
        own = samples(rng, 1e-3 * level[0], noise=0.005, drift=np.ones(BLOCKS))
        other = samples(rng, 1e-3 * level[1], noise=0.005, drift=np.ones(BLOCKS))
        twin = own * np.exp(rng.normal(0.0, 0.005, BLOCKS))
        called += judge(own, twin, other[None]).verdict is Verdict.FASTER
    assert called > 15


def test_a_slower_winner_is_never_published() -> None:
    rng = np.random.default_rng(4)
    own, twin, slow = (samples(rng, s, noise=0.01, drift=np.ones(BLOCKS)) for s in (1e-3, 1e-3, 1.2e-3))
    judgement = judge(own, twin, slow[None])
    assert judgement.winner is None
    assert judgement.verdict is Verdict.SAME
    assert judgement.speedup.median == 1.0


def test_a_gain_below_the_noise_floor_is_not_called_faster() -> None:
    rng = np.random.default_rng(5)
    swing = np.ones(BLOCKS)
    own, twin, other = (samples(rng, s, noise=0.1, drift=swing) for s in (1e-3, 1e-3, 0.97e-3))
    judgement = judge(own, twin, other[None])
    assert judgement.verdict is not Verdict.FASTER
    assert judgement.noise_floor > 0.01


def test_finalists_that_cannot_be_told_apart_are_ties() -> None:
    rng = np.random.default_rng(6)
    swing = np.ones(BLOCKS)
    times = np.stack([samples(rng, s, noise=0.01, drift=swing) for s in (1e-3, 1.001e-3, 1.5e-3)])
    own, twin = (samples(rng, 3e-3, noise=0.01, drift=swing) for _ in range(2))
    judgement = judge(own, twin, times)
    assert judgement.winner in (0, 1)
    assert judgement.ties == (1 - judgement.winner,)


def test_choosing_and_reporting_on_the_same_blocks_would_overstate_the_winner() -> None:
    rng = np.random.default_rng(7)
    split, naive = [], []
    for _ in range(60):
        own, twin = (samples(rng, 1.2e-3, noise=0.05, drift=np.ones(BLOCKS)) for _ in range(2))
        times = np.stack([samples(rng, 1e-3, noise=0.05, drift=np.ones(BLOCKS)) for _ in range(16)])
        split.append(judge(own, twin, times).speedup.median)
        naive.append(float(np.exp(np.median(np.log(own / times), axis=1).max())))
    assert np.mean(split) == pytest.approx(1.2, rel=0.01)
    assert np.mean(naive) > 1.22


def test_with_no_finalist_the_baseline_stands() -> None:
    times = np.full(BLOCKS, 1e-3)
    judgement = judge(times, times, np.empty((0, BLOCKS)))
    assert (judgement.verdict, judgement.winner) == (Verdict.SAME, None)


def test_too_few_blocks_decide_nothing_however_clear_they_look() -> None:
    for blocks in (2, 3, 8, 11):
        baseline, fast = np.full(blocks, 1e-3), np.full((1, blocks), 0.5e-3)
        judgement = judge(baseline, baseline, fast)
        assert (judgement.verdict, judgement.winner) == (Verdict.UNDECIDED, None)
        assert f"time allowed {blocks} blocks" in judgement.reason
    assert judge(np.full(12, 1e-3), np.full(12, 1e-3), np.full((1, 12), 0.5e-3)).verdict is Verdict.FASTER
