"""The smallest candidate: y = x + 1 for x = 0, 1, 2, 3, with stored outputs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from tuner_daemon.worker.messages import Array, Candidate, Problem, Program

SOURCE = "void increment(const float *x, float *y) { for (int i = 0; i < 4; ++i) y[i] = x[i] + 1; }"


def stored_problem(folder: Path) -> Problem:
    np.save(folder / "out.npy", np.arange(1.0, 5.0))
    x, y = Array("x", "input", "float32", (4,), "arange"), Array("y", "output", "float32", (4,), "zeros")
    return Problem("k", (x, y), None, (x, y), {"y": folder / "out.npy"}, 1.0, None)


def increment_candidate(folder: Path) -> Candidate:
    """Compiled with gcc."""
    source, library = folder / "increment.c", folder / "increment.so"
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return Candidate(Program(library, "increment"), stored_problem(folder), 0.0)


def random_candidate(folder: Path) -> Candidate:
    """The same on random inputs, and its own reference: seven input sets."""
    program = increment_candidate(folder).program
    x, y = Array("x", "input", "float32", (4,), "normal"), Array("y", "output", "float32", (4,), "zeros")
    return Candidate(program, Problem("k", (x, y), program, (x, y), {}, 1.0, None), 0.0)
