"""How a session spends its budget."""

from __future__ import annotations

from dataclasses import dataclass

from tuner_daemon.interfaces import Effort

LAUNCHES = 20  # that checking and warming up make at most, beside the samples
SLOWEST = 10.0  # times the baseline: the launches that a candidate's time limit has room for


@dataclass(frozen=True)
class Plan:
    """Of one session."""

    batch: int = 8  # measured per round, between refits
    pool: int = 512  # proposals that the cost model ranks
    samples: int = 15  # of what may be the best; the final round takes more of the finalists
    finalists: int = 8
    final_blocks: int = 30
    final_share: float = 0.25  # of the time spent so far that may go into more blocks than that
    drop_factor: float = 3.0  # a first launch slower than this times the incumbent gets no more samples
    margin: float = 0.02  # what is slower than the incumbent by more than this gets no more samples than show it
    patience: int = 24  # this many failures with no success end the job
    stop_after: int | None = 24  # measurements before a search may end because nothing is left to gain; None: never
    first_timeout_s: float = 30.0
    heat_timeout_s: float = 25.0
    final_limit_s: float = 180.0  # a final round that takes longer ends with the blocks that it has


DEFAULT_PLAN = Plan()


def first_effort(plan: Plan, limit_s: float) -> Effort:
    """For the baseline, before anything is known. ``limit_s``: the budget's."""
    return Effort(samples=plan.samples, timeout_s=_longest_s(plan, limit_s))


def effort(plan: Plan, limit_s: float, baseline_s: float, incumbent_s: float) -> Effort:
    """For one candidate, when the best so far would take ``incumbent_s`` now."""
    timeout_s = min(5.0 + SLOWEST * baseline_s * (LAUNCHES + plan.samples), _longest_s(plan, limit_s))
    return Effort(plan.samples, plan.drop_factor * incumbent_s, timeout_s, (1 + plan.margin) * incumbent_s)


def _longest_s(plan: Plan, limit_s: float) -> float:
    return min(plan.first_timeout_s, max(1.0, limit_s))
