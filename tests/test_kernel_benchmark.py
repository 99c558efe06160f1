"""``benchmarks.kernels``: its problems, the library's calls, what it says of limits, and a small run on a CPU."""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import kernels, library_side
from benchmarks.cases import CASES, Case
from benchmarks.library import library_call, library_name
from benchmarks.limits import Limits, held_back, limits_of
from benchmarks.problems import settings_for
from tests.families import FAMILIES, family
from tuner_daemon.cli.workshop import Workshop
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.measurement import Artifact
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.worker.occupancy import occupancy

H200 = DeviceInfo(
    "cuda",
    0,
    "NVIDIA H200",
    "",
    "sm_90",
    attributes={
        "sm_count": 132.0,
        "warp_size": 32.0,
        "max_threads_per_sm": 2048.0,
        "max_blocks_per_sm": 32.0,
        "registers_per_sm": 65536.0,
        "shared_bytes_per_sm": 233472.0,
        "compute_capability": 90.0,
        "clock_hz": 1.98e9,
        "peak_flops": 6.69e13,
        "peak_bytes_per_s": 4.8e12,
    },
)


# -- problems -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CASES)
def test_every_case_is_a_problem_of_its_family(kind: str) -> None:
    for case in CASES[kind]:
        if case.family in FAMILIES:
            kernel = family(case.family).kernel
            known = {v.name: v for v in kernel.problem}
            assert set(case.problem) <= set(known), case.name
            problem = {name: case.problem.get(name, v.default) for name, v in known.items()}
            assert None not in problem.values(), case.name
            filled = {name: value for name, value in problem.items() if value is not None}
            assert ParamSpace(kernel, filled).size > 100, case.name


def test_names_of_cases_are_distinct() -> None:
    names = [case.name for case in CASES["cuda"]]
    assert len(set(names)) == len(names)
    assert "attention 4x16x4096x4096 128 no" in names


def test_a_family_without_problems_is_refused() -> None:
    with pytest.raises(ValueError, match="no problem of gemm"):
        kernels.chosen(argparse.Namespace(kind="cuda", families="matmul,gemm", goals_only=False))
    only = kernels.chosen(argparse.Namespace(kind="cuda", families="matmul", goals_only=True))
    assert {case.family for case in only} == {"matmul"}


# -- the library ----------------------------------------------------------------------------------------------------


def tensors(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """bfloat16 arrives as its bits."""
    bits = {key: array.view(np.int16) if array.dtype == np.uint16 else array for key, array in arrays.items()}
    found = {key: torch.from_numpy(np.ascontiguousarray(array)) for key, array in bits.items()}
    return {key: t.view(torch.bfloat16) if t.dtype == torch.int16 else t for key, t in found.items()}


def comparable(name: str, problem: Mapping[str, Any]) -> bool:
    """Attention with fewer queries than keys: torch's causal mask is another one."""
    return name != "attention" or problem["causal"] == "no" or problem["q_len"] == problem["kv_len"]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_librarys_call_does_the_familys_work(name: str) -> None:
    own = family(name)
    problems = [p for p in own.tiny_problems if comparable(name, p)]
    assert library_name(name)
    compared = 0
    for problem in problems:
        arrays = own.inputs(problem)
        given = tensors(arrays)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # sparse CSR is in beta
            call = library_call(torch, name, problem, given)
            assert call is not None
            got = call().double().numpy()
        (wanted,) = own.expected(problem, arrays).values()
        tolerance = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}.get(str(problem.get("dtype")), 1e-6)
        scale = np.linalg.norm(wanted.reshape(-1)) or 1.0
        assert np.linalg.norm((got.reshape(wanted.shape) - wanted).reshape(-1)) <= tolerance * scale, problem
        compared += 1
    assert compared >= 2


def test_a_family_that_the_library_has_not_is_none() -> None:
    assert library_call(torch, "own", {}, {}) is None
    problem = {"causal": "yes", "q_len": 1, "kv_len": 2}
    with pytest.raises(ValueError, match="causal"):
        library_call(torch, "attention", problem, dict.fromkeys("QKV"))


# -- timing side by side --------------------------------------------------------------------------------------------


class Counted:
    """Takes twice as long cold; every call is noted."""

    def __init__(self, seconds: float, order: list[str], name: str) -> None:
        self.seconds, self.order, self.name = seconds, order, name

    def enqueue(self) -> None:
        self.order.append(self.name)


def sample_s(call: Any, cold: bool) -> float:
    call.enqueue()
    return float(call.seconds * (2 if cold else 1))


def test_sides_take_turns_and_are_warmed_up_alike() -> None:
    order: list[str] = []
    calls = {"ours": Counted(1e-3, order, "a"), "theirs": Counted(3e-3, order, "b")}
    found = library_side.timed(sample_s, calls, 50)
    assert found["ours"] == {"warm_s": 1e-3, "cold_s": 2e-3, "warm_spread": 0.0, "cold_spread": 0.0}
    assert found["theirs"]["cold_s"] == 6e-3
    each = library_side.WARM_UPS + 50
    assert "".join(order) == ("a" * each + "b" * each) * library_side.TURNS


class Memory:
    address = 0

    def __init__(self, nbytes: int) -> None:
        self.written = np.zeros(nbytes, np.uint8)

    def write(self, data: Any) -> None:
        self.written[:] = data

    def fill(self, byte: int) -> None:
        self.written[:] = byte


class Device:
    """Holds memory; a loaded program is a call that takes a millisecond."""

    def allocate(self, nbytes: int) -> Memory:
        return Memory(nbytes)

    def load(self, program: Any) -> Any:
        def bind(arguments: Any) -> Any:
            self.bound = arguments
            return Counted(1e-3, [], "ours")

        return SimpleNamespace(occupancy=0.5, bind=bind, unload=lambda: None)


def request(name: str, problem: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    from tuner_daemon.runners import plan

    own = family(name)
    spec = own.spec(problem, "cuda")
    artifact = Artifact(own.space(problem).config(own.baseline), Path("a.cubin"), name, "", 0.0)
    return {"family": name, "sizes": problem, "launches": 4, **plan.at_problem(spec, artifact, None), **more}


def test_our_side_alone_is_timed_where_there_is_no_library() -> None:
    bench: Any = SimpleNamespace(device=Device(), torch=None, sample_s=sample_s)
    answer = library_side.side_by_side(bench, json.loads(json.dumps(request("reduction", REDUCTION))))
    assert answer["library"] == ""
    assert (answer["occupancy"], answer["ours"]["warm_s"]) == (0.5, 1e-3)
    assert "theirs" not in answer
    x = bench.device.bound[0].written.view(np.float32)
    assert len(x) == 3 * 50
    assert np.abs(x).max() > 0


REDUCTION = {"rows": 3, "cols": 50, "operation": "sum", "dtype": "float32"}


def test_a_call_of_the_library_that_fails_is_told_and_ours_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError("not implemented")

    monkeypatch.setattr(library_side, "library_call", failing)
    monkeypatch.setattr(library_side, "_tensor", lambda *_: None)
    bench: Any = SimpleNamespace(device=Device(), torch=torch, sample_s=sample_s)
    answer = library_side.side_by_side(bench, request("reduction", REDUCTION))
    assert answer["library"] == "torch.sum, torch.amax fails: not implemented"
    assert answer["ours"]["cold_s"] == 2e-3


def test_results_are_compared_in_double_precision() -> None:
    ours = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert library_side._apart(ours, ours) == 0.0
    assert library_side._apart(ours + 0.01 * ours, ours) == pytest.approx(0.01, rel=1e-4)


# -- limits ---------------------------------------------------------------------------------------------------------


def limits(name: str, problem: Mapping[str, Any], values: Mapping[str, Any], median_s: float, **more: Any) -> Limits:
    own = family(name)
    config = {**own.baseline, **values}
    artifact = Artifact(Config.of(config), Path(), name, "", 0.0, more.pop("registers", 40), 0, more.pop("spills", 0))
    names = {**problem, **config}
    return limits_of(own.kernel, names, H200, artifact, median_s, **more)


def test_a_reduction_is_bound_by_bytes_and_a_large_tile_by_its_registers() -> None:
    problem = {"rows": 1, "cols": 1 << 28, "operation": "sum", "dtype": "float32"}
    found = limits("reduction", problem, {}, 0.25e-3, copy_bytes_per_s=4.2e12, occupancy=0.75)
    assert found.bound == "bytes"
    assert found.bytes_per_s == pytest.approx(4 * ((1 << 28) + 1) / 0.25e-3)
    assert found.copy_share == pytest.approx(1.0226, rel=1e-3)
    assert "bound by bytes and little else: 102% of a copy's bandwidth" in held_back(found)
    assert "no spills" in held_back(found)
    slow = limits("reduction", problem, {}, 0.5e-3, registers=200, spills=64, occupancy=0.125)
    assert slow.limiter == "registers"
    assert "1 blocks on each, limited by 200 registers for each of 256 threads" in held_back(slow)
    assert "bound by bytes: 45% of peak bandwidth" in held_back(slow)
    assert "64 bytes spilled" in held_back(slow)


def test_waves_and_their_tail() -> None:
    one = Limits(1, 1, 1, 1, None, None, None, "", 32, 0, 0, 256, 66, 1, "threads", 0.5, 0.5)
    assert "50% of one wave: the device is not full" in held_back(one)
    assert "1.5 waves, the last leaves 25% idle" in held_back(replace(one, waves=1.5))
    assert held_back(replace(one, waves=2.0)).endswith("2.0 waves; no spills")


def test_what_limits_residency_is_what_occupancy_is_made_of() -> None:
    found = limits("reduction", REDUCTION, {}, 1e-3, registers=64)
    share = occupancy(H200.attributes, threads=256, registers=64, shared_bytes=found.shared_bytes)
    assert found.per_sm is not None
    assert share == found.per_sm * 256 / 2048


# -- a run ----------------------------------------------------------------------------------------------------------


def test_a_small_run_on_the_processor(tmp_path: Path) -> None:
    options = argparse.Namespace(kind="cpu", measurements=3, seconds=20.0, launches=5)
    case = Case("softmax", {"rows": 8, "cols": 40}, of_library=1.0)
    with Workshop(settings_for(tmp_path, "cpu")) as workshop, kernels.Side(options) as side:
        compared = kernels.compare(workshop, side, case, options)
    assert compared.measured >= 3
    assert compared.speed is None
    assert compared.missed == []
    assert compared.warm_s is not None
    assert compared.warm_s > 0
    printed = kernels.speed_table([compared]) + kernels.limits_table([compared]) + kernels.told(compared)
    assert "softmax 8x40" in printed
    assert json.loads(json.dumps(kernels.as_json(compared)))["config"]["ROWS"] >= 1


def test_a_goal_that_is_missed_is_named() -> None:
    limit = Limits(1, 1, 1, 1, None, None, 0.8, "bytes", 32, 0, 0, 256, 66, 1, "threads", 0.5, 0.5)
    case = Case("softmax", {}, of_library=1.0, of_copy=0.9)
    item = kernels.Compared(case, {}, 1, 1, 2e-3, 3e-3, "torch", 1.9e-3, 3e-3, 0.0, limit, "", {})
    assert item.speed == pytest.approx(0.95)
    assert item.missed == ["library", "copy"]
    assert replace(item, library_warm_s=2.1e-3, limits=replace(limit, copy_share=0.9)).missed == []
    assert replace(item, library_warm_s=None).missed == ["copy"]
