"""The twins of wgmma and its kin notice what a GPU would not say: wrong descriptors, missing fences, early copies."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.emulator import EmulatedError, Emulator
from tests.families import Problem, family
from tuner_daemon.builders.preamble import preamble
from tuner_daemon.records.kernel import Kernel, Value
from tuner_daemon.records.space import Config

PROBLEM: Problem = {"m": 72, "n": 136, "k": 200, "dtype": "bfloat16", "a_layout": "row", "b_layout": "row"}
CHANGED: dict[str, Value] = {
    "MMA": "wgmma",
    "BM": 64,
    "BN": 128,
    "BK": 32,
    "WM": 64,
    "WN": 128,
    "STAGES": 3,
    "IN_FLIGHT": 1,
    "LAYOUT": "swizzled",
    "SPLIT_K": 2,
    "STORE": "shared",
}
WRONG_RESULT = ""
FAULTS = {
    "eight lines lie closer": ("EIGHT_LINES = 16", "EIGHT_LINES = 8", WRONG_RESULT),
    "the next panel is elsewhere": ("NEXT_PANEL = From::PANEL_BYTES", "NEXT_PANEL = 1024", WRONG_RESULT),
    "another swizzle is told": (
        "== 64 ? 1 : (From::PANEL == 32 ? 2 : 3)",
        "== 64 ? 1 : 3",
        "does not begin where its swizzle does",
    ),
    "lines are swizzled otherwise": ("/ (8 / CHUNKS) % CHUNKS", "% CHUNKS", WRONG_RESULT),
    "stages begin anywhere": ("stages += (1024", "stages += 0 * (1024", "goes on past its swizzle"),
    "no fence of what was copied": ("        fence_async_proxy();\n", "", "has not been fenced"),
    "a step begins before it has arrived": ("wait_for_copies<AHEAD - 1>", "wait_for_copies<AHEAD>", "being written"),
    "copies run too far ahead": ("IN_FLIGHT : 0)", "0 : 0)", "being written"),
    "a step is not waited for": ("wgmma_wait<IN_FLIGHT>", "wgmma_wait<2>", "being written"),
    "sums are used while they grow": ("    wgmma_wait<0>();\n", "", WRONG_RESULT),
    "the count is left behind": ("if (threadIdx.x == 0) finished[tile] = 0;", "", WRONG_RESULT),
}

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator is compiled with g++")


def with_fault(kernel: Kernel, folder: Path, right: str, wrong: str) -> Kernel:
    text = kernel.sources["cuda"].file.read_text()
    assert text.count(right) == 1
    file = folder / "kernel.cu"
    file.write_text(text.replace(right, wrong))
    return dataclasses.replace(kernel, sources={"cuda": dataclasses.replace(kernel.sources["cuda"], file=file)})


def error(kernel: Kernel, folder: Path) -> float:
    """Over the tolerance, after a second launch on the same workspace."""
    of = family("matmul_half")
    config = Config.of({**of.baseline, **CHANGED})
    assert of.space(PROBLEM).contains(config)
    inputs = of.inputs(PROBLEM)
    got = Emulator(folder).run(kernel, config, PROBLEM, inputs, launches=2)
    return of.error(got, of.expected(PROBLEM, inputs)) / of.tolerance(PROBLEM)


def test_the_products_of_warpgroups_are_right(tmp_path: Path) -> None:
    assert error(family("matmul_half").kernel, tmp_path) <= 1.0


@pytest.mark.parametrize(("right", "wrong", "message"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_noticed(right: str, wrong: str, message: str, tmp_path: Path) -> None:
    kernel = with_fault(family("matmul_half").kernel, tmp_path, right, wrong)
    if message == WRONG_RESULT:
        assert not error(kernel, tmp_path) <= 1.0
    else:
        with pytest.raises(EmulatedError, match=message):
            error(kernel, tmp_path)


def serialized(text: str, folder: Path) -> bool:
    """Whether the assembler waits after every wgmma: it says so, and only so."""
    config = Config.of({**family("matmul_half").baseline, **CHANGED})
    (folder / "config.h").write_text(preamble(family("matmul_half").kernel.parameters, config, PROBLEM))
    (folder / "kernel.cu").write_text(text)
    command = ["nvcc", "-cubin", "-arch=sm_90a", "-std=c++17", "-Xptxas=-v", "-include", str(folder / "config.h")]
    files = ["-o", str(folder / "kernel.cubin"), str(folder / "kernel.cu")]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=True)
    assert "Used" in done.stderr
    return "serialized" in done.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="the assembler's remarks come from nvcc")
def test_products_of_warpgroups_follow_each_other_without_waiting(tmp_path: Path) -> None:
    text = family("matmul_half").kernel.sources["cuda"].file.read_text()
    assert not serialized(text, tmp_path)
    touched = text.replace("wgmma_wait<IN_FLIGHT>();", "wgmma_wait<IN_FLIGHT>(); sum[0][0] *= 2.0f;")
    assert touched != text
    assert serialized(touched, tmp_path)
