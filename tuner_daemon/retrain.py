"""One offline retrain job: fit a challenger from the whole log, compare it with the champion, promote or refuse."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cost_model import Prior
from tuner_daemon.errors import KernelError, ModelError
from tuner_daemon.intake.kernels import kernel_from_declaration
from tuner_daemon.interfaces import MeasurementLog
from tuner_daemon.learning.cost import load_prior
from tuner_daemon.learning.dataset import Resolver, Row, TaskRows, group, usable
from tuner_daemon.learning.policy import Policy, load_policy
from tuner_daemon.learning.screening import screen
from tuner_daemon.learning.training import Judgement, Trained, judge, train_on
from tuner_daemon.records.kernel import Kernel

HELD_OUT_SHARE = 0.2
"""Of every task's rows. Which ones follows from a hash of the row, so that no model of this log ever saw them."""

MARGIN = 0.02
"""A challenger whose loss is larger by no more than this is not worse: two trainings on one log differ by as much."""

DRAWN = 4
"""Proposals of the policy whose best counts: few, since a task has tens of held-out rows."""

WORST_REGRET = 20.0


class Store(Protocol):
    """The model store; see storage.models."""

    def current(self) -> Any: ...

    def publish(self, files: Mapping[str, bytes], metadata: Mapping[str, Any]) -> str: ...

    def promote(self, version: str) -> None: ...


class LearningSettings(Protocol):
    """See settings.RetrainSettings."""

    @property
    def policy_steps(self) -> int: ...

    @property
    def threads(self) -> int: ...

    @property
    def min_rows(self) -> int: ...

    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class RetrainReport:
    """What a retrain job did. ``loss``: mean natural log of (best of what the models choose / best there is)."""

    promoted: bool
    reason: str
    version: str = ""  # of the challenger; empty if none was trained
    champion: str = ""
    rows: int = 0  # of the log
    left_out: Mapping[str, int] = field(default_factory=dict)  # reason -> rows that were not learned from
    tasks: int = 0
    loss: float | None = None
    champion_loss: float | None = None
    wall_s: float = 0.0
    judgements: tuple[Judgement, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        head = f"{'promoted' if self.promoted else 'not promoted'}: {self.reason} ({self.wall_s:.0f} s)"
        left_out = [f"  {n} left out: {reason}" for reason, n in self.left_out.items()]
        return "\n".join(
            [head, *left_out, *(self._line(kernel) for kernel in sorted({j.kernel for j in self.judgements}))]
        )

    def _line(self, kernel: str) -> str:
        """Means over the kernel's tasks; times as multiples of the best held-out one."""
        own = [j for j in self.judgements if j.kernel == kernel]
        mean = {
            "rank correlation": np.mean([j.rank_correlation for j in own]),
            "first choice of the cost model": np.mean([1 + j.regret[1] for j in own]),
            f"best of {DRAWN} by the policy": np.mean([j.policy.get(DRAWN, math.nan) for j in own]),
            f"best of {DRAWN} drawn uniformly": np.mean([j.uniform[DRAWN] for j in own]),
        }
        rows = sum(j.rows for j in own)
        return f"  {kernel}: {rows} held-out rows of {len(own)} tasks; " + ", ".join(
            f"{k} {v:.2f}" for k, v in mean.items()
        )


def retrain(log: MeasurementLog, store: Store, settings: LearningSettings) -> RetrainReport:
    """Trains policy and cost model from the whole log and promotes them unless the models in use are better."""
    began_s = time.monotonic()
    rows: list[Row] = log.read().to_pylist()
    kernel_of = resolver(log)
    screened = screen(rows, kernel_of)
    kept, held_out = split(screened.rows)
    tasks, exam = usable(group(kept, kernel_of)), usable(group(held_out, kernel_of))
    if len(rows) < settings.min_rows or not tasks or not exam:
        reason = (
            f"the log has {len(rows)} rows in {len(tasks)} usable tasks, {len(exam)} with enough held-out rows to "
            f"judge a model on; want at least {settings.min_rows} rows and one such task"
        )
        wall_s, left_out = time.monotonic() - began_s, screened.left_out
        return RetrainReport(False, reason, rows=len(rows), left_out=left_out, tasks=len(tasks), wall_s=wall_s)
    trained = train_on(tasks, seed=settings.seed, steps=settings.policy_steps, threads=settings.threads)
    judgements = tuple(judge(task, trained.prior, trained.policy, seed=settings.seed) for task in exam)
    loss = loss_of(judgements)
    champion = store.current()
    champion_loss = _champion_loss(champion, exam, settings.seed)
    promoted = champion_loss is None or loss <= champion_loss + MARGIN
    version = store.publish(files_of(trained), _metadata(trained, rows, judgements, loss, champion_loss))
    if promoted:
        store.promote(version)
    return RetrainReport(
        promoted=promoted,
        reason=_reason(version, loss, champion_loss),
        version=version,
        champion=champion.version if champion else "",
        rows=len(rows),
        left_out=screened.left_out,
        tasks=len(tasks),
        loss=loss,
        champion_loss=champion_loss,
        wall_s=time.monotonic() - began_s,
        judgements=judgements,
    )


def resolver(log: MeasurementLog) -> Resolver:
    """kernel_sha256 -> the kernel, rebuilt from the declaration that the log keeps."""
    files = log.declarations()
    known: dict[str, Kernel | None] = {}

    def kernel_of(sha256: str) -> Kernel | None:
        if sha256 not in known:
            try:
                known[sha256] = kernel_from_declaration(files[sha256].read_text(), sha256) if sha256 in files else None
            except KernelError:
                known[sha256] = None  # written by a version that declared kernels otherwise
        return known[sha256]

    return kernel_of


def split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """(to learn from, held out)."""
    kept: list[Row] = []
    held_out: list[Row] = []
    for row in rows:
        identity = json.dumps(
            [row["kernel"], sorted(dict(row["problem"]).items()), sorted(dict(row["config"]).items())]
        )
        share = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4]) / 2**32
        (held_out if share < HELD_OUT_SHARE else kept).append(row)
    return kept, held_out


def loss_of(judgements: Sequence[Judgement]) -> float:
    """Mean over tasks: log ratio to the best of the cost model's first 1, 2, 4 and 8 choices, on average, plus that of
    the policy's best of 4. NaN without tasks."""
    if not judgements:
        return math.nan
    each = [
        np.mean([math.log1p(min(regret, WORST_REGRET)) for regret in j.regret.values()])
        + math.log(j.policy.get(DRAWN, 1.0))
        for j in judgements
    ]
    return float(np.mean(each))


def files_of(trained: Trained) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="tunerd-train-") as folder:
        trained.save(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _champion_loss(champion: Any, exam: Sequence[TaskRows], seed: int) -> float | None:
    """None if there is no champion that this version can use."""
    if champion is None:
        return None
    try:
        prior: Prior = load_prior(champion.folder)
        policy: Policy = load_policy(champion.folder)
    except ModelError:
        return None
    return loss_of([judge(task, prior, policy, seed=seed) for task in exam])


def _metadata(
    trained: Trained,
    rows: Sequence[Row],
    judgements: Sequence[Judgement],
    loss: float,
    champion_loss: float | None,
) -> dict[str, Any]:
    keys = sorted(str(row["key"]) for row in rows)
    return {
        "log_sha256": hashlib.sha256("\n".join(keys).encode()).hexdigest(),
        "log_rows": len(rows),
        "tasks": trained.tasks,
        "kernels": sorted(trained.kernels),
        "loss": loss,
        "champion_loss": champion_loss,
        "held_out": [asdict(judgement) for judgement in judgements],
    }


def _reason(version: str, loss: float, champion_loss: float | None) -> str:
    if champion_loss is None:
        return f"{version}: there is no model in use that it could be worse than; loss on held-out rows {loss:.3f}"
    relation = "is not worse than" if loss <= champion_loss + MARGIN else "is worse than"
    return f"{version}: loss on held-out rows {loss:.3f} {relation} the champion's {champion_loss:.3f}"
