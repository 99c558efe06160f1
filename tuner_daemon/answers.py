"""What of a judgement is published."""

from __future__ import annotations

from collections.abc import Mapping

from tuner_daemon.records.measurement import Failure, Ran, Timing
from tuner_daemon.records.result import Published
from tuner_daemon.records.space import Config
from tuner_daemon.records.task import Task
from tuner_daemon.verdict import Interval

NO_MODEL = "no model yet: this job worked from its own measurements alone"


def published(
    task: Task, timing: Timing, seconds: Interval, speedup: Interval, proposed_by: Mapping[str, str]
) -> Published:
    """``proposed_by``: by configuration key."""
    return Published(
        config=timing.config,
        median_s=seconds.median,
        ci_s=(seconds.low, seconds.high),
        speedup=speedup.median,
        speedup_ci=(speedup.low, speedup.high),
        roofline_fraction=roofline_fraction(task, timing.config, seconds.median),
        error_norm=timing.error_norm,
        proposed_by=proposed_by[timing.config.key],
    )


def notes(with_models: bool, declared_baseline: Ran | None, stopped: str = "") -> tuple[str, ...]:
    """What a reader of the result should know. ``stopped``: why the search ended before its budget."""
    said = [] if with_models else [NO_MODEL]
    if stopped:
        said.append(stopped)
    if isinstance(declared_baseline, Failure):
        said.append(
            f"the baseline failed ({declared_baseline.outcome}: {declared_baseline.detail}); "
            "speed-ups are relative to the first configuration that gave right results"
        )
    return tuple(said)


def roofline_fraction(task: Task, config: Config, median_s: float) -> float | None:
    """Attained share of the roofline (Williams et al. 2009): least possible time over measured time."""
    work, attributes = task.spec.kernel.work, task.device.attributes
    names = {**task.spec.problem, **config.as_dict()}
    bounds = [
        float(amount.evaluate(names)) / attributes[peak]
        for amount, peak in ((work.flops, "peak_flops"), (work.bytes, "peak_bytes_per_s"))
        if amount is not None and attributes.get(peak)
    ]
    return max(bounds) / median_s if bounds else None
