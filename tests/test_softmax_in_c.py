"""softmax in C, where it is like no other family's: it takes bfloat16, and writes past the caches."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.emulator import SANITIZERS, Emulator
from tests.families import family
from tuner_daemon.records.kernel import Kernel
from tuner_daemon.records.space import Config
from tuner_daemon.worker.arrays import to_bfloat16

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the source is compiled with gcc")

OF = family("softmax")
PROBLEMS = [problem for problem in OF.tiny_problems if problem["dtype"] == "bfloat16"]


def worst_error(emulator: Emulator, kernel: Kernel, config: Config | None) -> float:
    """In units of the tolerance, over the small problems in bfloat16, every other one at addresses of odd alignment."""
    errors = []
    for number, problem in enumerate(PROBLEMS):
        inputs = OF.inputs(problem, seed=number)
        got = emulator.run(kernel, config, problem, inputs, language="cpu", unaligned=number % 2 == 1)
        errors.append(OF.error(got, OF.expected(problem, inputs)) / OF.tolerance(problem))
    return max(errors)


def test_it_takes_bfloat16_in_every_kind_of_cache(tmp_path: Path) -> None:
    emulator = Emulator(tmp_path, *SANITIZERS)
    configs = OF.sampled(200, 5, PROBLEMS[0])
    for cache in (0, 1, 2):
        config = next(c for c in configs if c["CACHE"] == cache and c["VEC"] == 8 and c["STREAM"])
        assert worst_error(emulator, OF.kernel, config) <= 1.0, config.as_dict()
    assert worst_error(emulator, OF.kernel, None) <= 1.0


def share_rounded_right(emulator: Emulator, kernel: Kernel, config: Config) -> float:
    """Of the elements: those that are the bfloat16 next to the truth."""
    problem = {**PROBLEMS[0], "rows": 37, "cols": 16}
    inputs = OF.inputs(problem)
    got = emulator.run(kernel, config, problem, inputs, language="cpu")["y"]
    return float(np.mean(got == to_bfloat16(OF.expected(problem, inputs)["y"].astype(np.float32))))


def test_results_are_rounded_to_the_next_bfloat16(tmp_path: Path) -> None:
    text = OF.kernel.sources["cpu"].file.read_text()
    rounding = "(wide + 0x7fff + (wide >> 16 & 1)) >> 16"
    assert rounding in text
    file = tmp_path / "kernel.c"
    file.write_text(text.replace(rounding, "wide >> 16"))
    cutting = dataclasses.replace(OF.kernel, sources={"cpu": dataclasses.replace(OF.kernel.sources["cpu"], file=file)})
    config = next(c for c in OF.sampled(200, 6, PROBLEMS[0]) if c["CACHE"] == 1)
    emulator = Emulator(tmp_path)
    assert share_rounded_right(emulator, OF.kernel, config) > 0.98
    assert share_rounded_right(emulator, cutting, config) < 0.9
