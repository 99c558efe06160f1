"""The benchmark programs of measuring, tiny and on the CPU; what they say about numbers that are known."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import kernel_tuner_side, repeatability, throughput
from benchmarks.problems import FIVE, NARROW, half_bound, matmul, narrowed, replaced, template
from tuner_daemon.records.device import Clocks
from tuner_daemon.records.measurement import Timing
from tuner_daemon.records.space import Config, ParamSpace

TINY = [matmul(32, 32, 32, {"UNROLL": 8})]


# -- problems and variants of kernels ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FIVE)
def test_the_good_configurations_are_configurations(kind: str) -> None:
    for problem in FIVE[kind]:
        spec = problem.spec(template(problem.family), kind)
        space = ParamSpace(spec.kernel, spec.problem)
        assert space.contains({**(spec.kernel.baseline or {}), **problem.good}), problem.name


@pytest.mark.parametrize("family", NARROW)
def test_a_narrow_space_fits_a_small_budget(family: str, tmp_path: Path) -> None:
    kernel = narrowed(family, tmp_path)
    problem = next(p for p in FIVE["cpu"] if p.family == family)
    assert ParamSpace(kernel, problem.spec(kernel, "cpu").problem).size == 48
    assert kernel.sha256 != template(family).sha256


def test_the_broken_variant_promises_half_of_the_threads_it_is_launched_with(tmp_path: Path) -> None:
    spec, configs = throughput.trapped(matmul(64, 64, 64), half_bound(tmp_path))
    assert "HALF_BOUND ? THREADS / 2 : THREADS" in spec.kernel.sources["cuda"].file.read_text()
    assert [config["HALF_BOUND"] for config in configs].index(1) == throughput.HONEST // 2
    assert len(set(configs)) == throughput.HONEST + 1


def test_a_variant_of_a_text_that_has_changed_is_refused() -> None:
    with pytest.raises(ValueError, match="0 times"):
        replaced("BM = 16", "BM = 32", "BM = 64")


# -- repeatability ----------------------------------------------------------------------------------------------


def test_spread_tells_noise_within_a_worker_from_a_shift_between_workers() -> None:
    rng = np.random.default_rng(0)

    def worker(factor: float) -> Timing:
        times_s = 1e-3 * factor * (1 + 0.01 * rng.standard_normal(400))
        return Timing(Config((), ()), tuple(map(float, times_s)), None, 0.0, Clocks(sm_mhz=(1965, 1980), reasons=4))

    still = repeatability.spread_of("still", [worker(1.0) for _ in range(3)])
    shifted = repeatability.spread_of("shifted", [worker(1.0), worker(1.0), worker(1.05)])
    assert still.within == pytest.approx(0.01, rel=0.15)
    assert shifted.within == pytest.approx(0.01, rel=0.15)
    assert still.shift < 0.003
    assert shifted.shift == pytest.approx(0.05, abs=0.003)
    assert 0.005 < still.tens < 0.03
    assert (still.sm_mhz, still.reasons, still.samples) == ((1965, 1980), 4, 400)


def test_a_binary_is_called_the_same_as_itself_and_another_different() -> None:
    rng = np.random.default_rng(0)

    def race(other: float) -> Any:
        return np.array([[1.0], [1.0], [other], [other]]) * np.exp(rng.normal(0.0, 0.01, (4, 30)))

    same = repeatability.self_raced("same", lambda: race(1.0), 100)
    assert same.faster + same.slower <= 5
    assert repeatability.self_raced("faster", lambda: race(0.9), 10).faster == 10
    assert repeatability.self_raced("slower", lambda: race(1.1), 10).slower == 10


def test_repeatability_runs_on_this_machine(tmp_path: Path) -> None:
    (spread,) = repeatability.spreads(tmp_path, "cpu", TINY, sessions=2, samples=10)
    assert spread.median_s > 0
    assert spread.samples == 10
    (race,) = repeatability.self_races(tmp_path, "cpu", TINY, pairs=1, blocks=8)
    assert race.pairs == 1
    (twice,) = repeatability.tuned_twice(tmp_path, "cpu", TINY, (1, 2), 2, "narrow", 8)
    assert twice.difference >= 0
    printed = repeatability.spread_table([spread]) + repeatability.self_race_table([race])
    assert "matmul 32 x 32 x 32" in printed + repeatability.twice_table([twice])


# -- throughput -------------------------------------------------------------------------------------------------


def test_throughput_measures_every_configuration_of_the_list() -> None:
    spec = TINY[0].spec(template("matmul"), "cpu")
    configs = throughput.sampled(spec, 2, seed=0)
    run = throughput.ours(spec, configs)
    assert sorted(run.times_s) == [0, 1]
    assert run.per_minute == pytest.approx(120 / run.wall_s)
    assert sum(run.parts_s.values()) == pytest.approx(run.wall_s)
    assert "2 ok" in throughput.runs_table([run])


def test_no_more_shared_memory_than_every_launch_may_have() -> None:
    spec = matmul(64, 64, 64).spec(template("matmul"), "cuda")
    drawn = ParamSpace(spec.kernel, spec.problem).sample(400, np.random.default_rng(0))
    assert max(throughput.shared_bytes(spec, c) for c in drawn) > throughput.SHARED_BYTES
    configs = throughput.sampled(spec, 96, seed=0)
    assert len(set(configs)) == 96
    assert max(throughput.shared_bytes(spec, c) for c in configs) <= throughput.SHARED_BYTES


def test_kernel_tuner_is_given_the_same_macros_launches_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = matmul(70, 40, 8).spec(template("matmul"), "cuda")
    config = ParamSpace(spec.kernel, spec.problem).config({**(spec.kernel.baseline or {}), "UNROLL": 8})
    asked = json.loads(json.dumps(throughput.request_for(spec, [config], verify=True)))
    given: dict[str, Any] = {}

    def tune_kernel(*positional: Any, **named: Any) -> Any:
        given.update(named, positional=positional)
        return [{"candidate": 0, "time": 2.0, "compile_time": 100.0}], {"device_name": "none"}

    monkeypatch.setitem(sys.modules, "kernel_tuner", SimpleNamespace(tune_kernel=tune_kernel, __version__="0"))
    monkeypatch.setitem(sys.modules, "constraint", SimpleNamespace(FunctionConstraint=lambda f: f))
    reply = kernel_tuner_side.tuned(asked)
    name, source, grid, arguments, parameters = given["positional"]
    assert (name, grid({"candidate": 0}), parameters["block_size_x"]) == ("matmul", [15, 1, 1], [256])
    assert "__launch_bounds__" in source
    assert given["defines"]["UNROLL"]({"candidate": 0}) == "8"
    assert given["defines"]["DTYPE_FLOAT32"]({"candidate": 0}) == "1"
    assert given["smem_args"]["size"]({"candidate": 0}) == 4 * 16 * 32
    assert given["restrictions"][0](0, 256)
    assert not given["restrictions"][0](0, 128)
    np.testing.assert_allclose(given["answer"][2], arguments[0] @ arguments[1], rtol=1e-5)
    run = throughput.run_of("Kernel Tuner", reply)
    assert (run.times_s, run.failures, run.parts_s["compile"]) == ({0: 2e-3}, {}, 0.1)


def test_a_rival_that_breaks_off_is_said_to_have_done_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "ROOT", Path("/nowhere"))
    monkeypatch.setattr(sys, "path", [])
    spec = matmul(64, 64, 64).spec(template("matmul"), "cuda")
    run = throughput.theirs(spec, throughput.sampled(spec, 1, seed=0), verify=False)
    assert "benchmarks" in run.ended
    assert run.times_s == {}
    assert not throughput.caught(run)


def test_a_failed_launch_is_caught_only_if_the_others_have_their_times() -> None:
    honest = {n: 1e-3 for n in range(throughput.HONEST + 1) if n != throughput.HONEST // 2}
    failed = {throughput.HONEST // 2: "launch_failed: 256 threads per block"}
    assert throughput.caught(throughput.Run("tunerd", 1.0, honest, failed))
    assert not throughput.caught(throughput.Run("tunerd", 1.0, {0: 1e-3}, failed))
    wins = throughput.Run("naive", 1.0, {**honest, throughput.HONEST // 2: 1e-6})
    assert not throughput.caught(wins)
    assert "the failed launch |" in throughput.trap_table([wins])
