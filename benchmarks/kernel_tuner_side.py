"""Kernel Tuner's half of ``benchmarks.throughput``, in a process of its own: a failed launch may end it.

    python -m benchmarks.kernel_tuner_side REQUEST.json REPLY.json

The only place that imports kernel_tuner (the extra [bench]).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ATOL = 1e-2  # sums of 4096 products of unit normals: 64 in norm, and a wrong one is off by as much


def main() -> int:
    request, reply = (Path(name) for name in sys.argv[1:])
    reply.write_text(json.dumps(tuned(json.loads(request.read_text()))))
    return 0


def tuned(request: Mapping[str, Any]) -> dict[str, Any]:
    """request: ``source``, ``entry``, ``sizes``, ``candidates`` (each with ``defines``, ``threads``, ``grid`` and
    ``shared_bytes``), ``verify``, ``iterations``. Raises what Kernel Tuner raises."""
    import kernel_tuner
    from constraint import FunctionConstraint

    candidates = request["candidates"]
    arguments, answer = inputs(request["sizes"])
    began_s = time.perf_counter()
    # One parameter that numbers the candidates, so that its space is the list, and costs nothing to make.
    results, environment = kernel_tuner.tune_kernel(
        request["entry"],
        request["source"],
        lambda p: candidates[p["candidate"]]["grid"],
        arguments,
        {"candidate": list(range(len(candidates))), "block_size_x": sorted({c["threads"] for c in candidates})},
        grid_div_x=[],
        grid_div_y=[],
        grid_div_z=[],
        restrictions=[FunctionConstraint(lambda number, threads: candidates[number]["threads"] == threads)],
        answer=answer if request["verify"] else None,
        atol=ATOL,
        smem_args={"size": lambda p: candidates[p["candidate"]]["shared_bytes"]},
        defines={name: defined(candidates, name) for name in candidates[0]["defines"]},
        compiler_options=["-std=c++17"],
        iterations=request["iterations"],
        strategy="brute_force",
        lang="CUDA",
        quiet=True,
    )
    return {
        "wall_s": time.perf_counter() - began_s,
        "version": kernel_tuner.__version__,
        "device": str(environment.get("device_name", "")),
        "results": [row(result) for result in results],
    }


def defined(candidates: list[Mapping[str, Any]], name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda p: str(candidates[p["candidate"]]["defines"][name])


def inputs(sizes: Mapping[str, int]) -> tuple[list[Any], list[Any]]:
    """Arguments of the matmul family, and what Kernel Tuner is to find in them afterwards."""
    m, n, k = (sizes[name] for name in ("m", "n", "k"))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (k, n)))
    sums, tickets = np.zeros((m + 255) * (n + 255) + 4, np.float32), np.zeros(-(-m // 16) * -(-n // 16), np.int32)
    arguments = [a, b, np.zeros((m, n), np.float32), sums, tickets, *(np.int32(size) for size in (m, n, k))]
    return arguments, [None, None, a @ b, *[None] * 5]


def row(result: Mapping[str, Any]) -> dict[str, Any]:
    """``time_s`` is None for what it skipped, with its word for why."""
    time_ms, error = result.get("time"), result.get("__error__")
    timed = isinstance(time_ms, int | float) and error is None
    return {
        "candidate": int(result["candidate"]),
        "time_s": float(time_ms) * 1e-3 if timed and time_ms is not None else None,
        "error": "" if error is None else str(error),
        **{
            f"{part}_s": float(result.get(f"{part}_time", 0.0)) * 1e-3
            for part in ("compile", "verification", "benchmark")
        },
    }


if __name__ == "__main__":
    sys.exit(main())
