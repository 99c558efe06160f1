"""A tiled kernel with a known cost surface on several devices: what tests of the learned models work on."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Argument, Kernel, Launch, Parameter, ProblemVariable, Reference, Value, Work
from tuner_daemon.records.measurement import Failure, Measurement, Outcome, Proposal, Timing
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task

PARAMETERS = (
    Parameter("MODE", ("direct", "staged"), "layout"),
    Parameter("TX", (1, 2, 4, 8), "work_x"),
    Parameter("TY", (1, 2, 4, 8), "work_y"),
    Parameter("BX", (8, 16, 32, 64, 128, 256), "thread_x"),
    Parameter("BY", (1, 2, 4, 8, 16), "thread_y"),
    Parameter("VEC", (1, 2, 4), "vector_width"),
    Parameter("SHARED", (False, True), "shared"),
)


def tiled_kernel(name: str = "tiled", parameters: Sequence[Parameter] = PARAMETERS) -> Kernel:
    """c = f(a) over an n×n array; 4,032 valid configurations."""
    parse = Expression.parse
    square = (parse("n"), parse("n"))
    return Kernel(
        name=name,
        folder=Path("/nowhere"),
        sources={},
        problem=(ProblemVariable("n"), ProblemVariable("dtype", type="str", values=("float32",))),
        parameters=tuple(parameters),
        constraints=(parse("BX * BY <= 1024"), parse("BX * BY >= 32"), parse("VEC <= TX or not SHARED")),
        launch=Launch(
            (parse("BX"), parse("BY")),
            (parse("ceil_div(n, BX * TX)"), parse("ceil_div(n, BY * TY)")),
            parse("SHARED * 4 * BX * TX * BY * TY"),
        ),
        arguments=(Argument("a", "input", "dtype", square), Argument("c", "output", "dtype", square)),
        reference=Reference(),
        baseline=None,
        work=Work(parse("100 * n * n"), parse("8 * n * n")),
        reduction_length=None,
        tolerance=None,
        sha256=f"sha-{name}",
        declaration="",
    )


def device(name: str = "small", sms: int = 40, *, kind: str = "cuda") -> DeviceInfo:
    attributes = {
        "sm_count": sms,
        "warp_size": 32,
        "max_threads_per_sm": 2048,
        "max_blocks_per_sm": 32,
        "registers_per_sm": 65536,
        "shared_bytes_per_block": 99 * 1024,
        "shared_bytes_per_sm": 100 * 1024,
        "l2_bytes": sms * 5e4,
        "clock_hz": 1.5e9,
        "peak_flops": sms * 2e11,
        "peak_bytes_per_s": sms * 1e10,
        "compute_capability": 80,
    }
    return DeviceInfo(kind, 0, name, f"uuid-{name}", "sm_80", attributes=attributes)


def tiled_task(where: DeviceInfo | None = None, *, n: int = 2048, kernel: Kernel | None = None) -> Task:
    chosen = kernel or tiled_kernel()
    problem: dict[str, Value] = {"n": n, "dtype": "float32"}
    where = where or device()
    return Task(KernelSpec(chosen, problem, DeviceRequest(where.kind)), ParamSpace(chosen, problem), where)


def true_log_s(task: Task, configs: Sequence[Config]) -> NDArray[np.float64]:
    """(n,) a smooth surface with one valley whose place depends a little on the device; NaN where the launch fails."""
    c = {name: np.asarray(column) for name, column in task.space.columns(configs).items()}
    threads = np.log2(c["BX"].astype(float) * c["BY"])
    work = np.log2(c["TX"].astype(float) * c["TY"])
    sms = math.log2(task.device.attributes["sm_count"])
    cost = (
        0.10 * (threads - 7.5) ** 2 + 0.12 * (work - 0.5 * sms) ** 2 + 0.02 * (np.log2(c["TX"].astype(float)) - 1) ** 2
    )
    cost = (
        cost + np.where(c["SHARED"], -0.3, 0.0) - 0.1 * np.log2(c["VEC"].astype(float)) + 0.2 * (c["MODE"] == "direct")
    )
    log_s = math.log(1e-3) - sms * math.log(2) + cost
    return np.where(threads + work > 14, np.nan, log_s)


def measured(task: Task, configs: Sequence[Config], *, job: str = "job") -> list[Measurement]:
    """Log rows of these configurations."""
    return [
        _row(task, config, float(log_s), job) for config, log_s in zip(configs, true_log_s(task, configs), strict=True)
    ]


def _row(task: Task, config: Config, log_s: float, job: str) -> Measurement:
    failed = math.isnan(log_s)
    ran = (
        Failure(config, Outcome.LAUNCH_FAILED, "too much") if failed else Timing(config, (math.exp(log_s),), None, 0.0)
    )
    kernel = task.spec.kernel
    return Measurement(
        job=job,
        kernel=kernel.name,
        kernel_sha256=kernel.sha256,
        language="cuda",
        problem=task.spec.problem,
        config=config.as_dict(),
        space_sha256=task.space.sha256,
        ran=ran,
        device=task.device,
        round=0,
        proposal=Proposal(config, "uniform"),
        host="here",
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def as_rows(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """What the log's table gives as Python objects: maps are lists of pairs, their values JSON text."""
    return [
        {
            "kernel": m.kernel,
            "kernel_sha256": m.kernel_sha256,
            "language": m.language,
            "problem": [(name, json.dumps(value)) for name, value in m.problem.items()],
            "config": [(name, json.dumps(value)) for name, value in m.config.items()],
            "outcome": m.ran.outcome.value,
            "median_s": m.ran.median_s if isinstance(m.ran, Timing) else None,
            "baseline_median_s": m.baseline_median_s,
            "clock_mode": m.ran.clocks.mode,
            "device_kind": m.device.kind,
            "device_name": m.device.name,
            "device_uuid": m.device.uuid,
            "arch": m.device.arch,
            "device_attributes": list(m.device.attributes.items()),
        }
        for m in measurements
    ]


def log_of(devices: Sequence[DeviceInfo], rows: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """A uniformly sampled log of the tiled kernel, ``rows`` per device."""
    rng = np.random.default_rng(seed)
    tasks = [tiled_task(where) for where in devices]
    return [row for task in tasks for row in as_rows(measured(task, task.space.sample(rows, rng)))]
