"""Measurements to store, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tuner_daemon.records.device import Clocks, DeviceInfo
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.measurement import Artifact, Failure, Measurement, Outcome, Proposal, Ran, Timing
from tuner_daemon.records.space import Config

DEVICE = DeviceInfo(
    kind="cuda",
    index=1,
    name="NVIDIA H200",
    uuid="GPU-1234",
    arch="sm_90",
    driver="580.1",
    runtime="13.0",
    compiler="nvrtc 13.0",
    attributes={"sm_count": 132.0, "peak_flops": 6.7e13},
)
CLOCKS = Clocks("verify", "locked", (1200, 1980), 3201, 41.0, 512.5, 4)


def measurement(
    n: int = 0,
    *,
    job: str = "job",
    kernel: str = "sgemm",
    ran: Ran | None = None,
    device: DeviceInfo = DEVICE,
    started_at: datetime = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC),
    config: Mapping[str, Value] | None = None,
) -> Measurement:
    """The n-th of a job; a Timing unless ``ran`` says otherwise."""
    chosen = Config.of(config or {"BM": n, "SPLIT": True, "ALPHA": 0.5, "LAYOUT": "nn"})
    if ran is None:
        ran = Timing(chosen, (1e-3 + n * 1e-6, 2e-3, 3e-3), 9e-4, 1e-7, CLOCKS, 0.75)
    return Measurement(
        job=job,
        kernel=kernel,
        kernel_sha256="k" * 64,
        language="cuda",
        problem={"m": 4096, "beta": 1.0, "dtype": "float32"},
        config=chosen.as_dict(),
        space_sha256="s" * 64,
        ran=replace(ran, config=chosen),
        device=device,
        round=n,
        proposal=Proposal(chosen, "policy", -6.9),
        host="node1",
        started_at=started_at,
        artifact=Artifact(chosen, Path("/cache/x.cubin"), "sgemm", "a" * 64, 0.16, 128, 4096, 0, True),
        baseline_median_s=2e-3,
        policy_version="p1",
        cost_model_version="c1",
    )


def failure(n: int = 0, outcome: Outcome = Outcome.BUILD_FAILED) -> Measurement:
    """The n-th of a job, failed."""
    ran = Failure(Config((), ()), outcome, "error: <no such> register & more", None, CLOCKS, 0.4)
    return replace(measurement(n, ran=ran), artifact=None)
