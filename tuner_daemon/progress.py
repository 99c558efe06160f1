"""What a person watching a job wants to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tuner_daemon.measuring import Bench
from tuner_daemon.records.measurement import Measurement, Timing

COUNTED = ("build_cache_hits", "identical_binaries", "samples", "retimings", "repeated", "disturbed")


@dataclass(frozen=True)
class Progress:
    """A job under way."""

    phase: str  # baseline | search | final
    built: int
    measured: int
    failed: int
    budget: int
    elapsed_s: float
    baseline_s: float | None = None
    incumbent_s: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)  # as in the result

    @property
    def speedup(self) -> float | None:
        return self.baseline_s / self.incumbent_s if self.baseline_s and self.incumbent_s else None


Observer = Callable[[Progress], None]


def progress(
    phase: str,
    rows: Sequence[Measurement],
    budget: int,
    elapsed_s: float,
    baseline_s: float | None,
    counted: Mapping[str, float],
) -> Progress:
    times = [m.ran.median_s for m in rows if isinstance(m.ran, Timing)]
    return Progress(
        phase=phase,
        built=sum(m.artifact is not None for m in rows),
        measured=len(rows),
        failed=len(rows) - len(times),
        budget=budget,
        elapsed_s=elapsed_s,
        baseline_s=baseline_s,
        incumbent_s=min(times, default=None),
        counters=counted,
    )


def counters(bench: Bench, elapsed_s: float) -> dict[str, float]:
    """Where the time went. ``run_share`` is of running candidates, ``device_busy_share`` of their launches alone; what
    a worker was doing meanwhile is told by ``worker_..._s``."""
    elapsed_s = max(elapsed_s, 1e-9)
    return {
        "build_s": bench.build_s,
        "run_share": bench.watch.seconds.get("run", 0.0) / elapsed_s,
        "device_busy_share": bench.device_s / elapsed_s,
        **{f"worker_{stage}_s": spent_s for stage, spent_s in bench.stages_s.items()},
        **{name: float(bench.counters[name]) for name in COUNTED},
    }
