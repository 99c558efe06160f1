"""The cost model as a session uses it: features of configurations in, log seconds out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cost_model import DamagedPriorError, Prior, SessionModel
from tuner_daemon.errors import ModelError
from tuner_daemon.learning.features import FEATURE_NAMES, FEATURE_SCHEMA, features
from tuner_daemon.learning.quantities import problem_numbers
from tuner_daemon.records.measurement import Measurement, Outcome, Timing
from tuner_daemon.records.space import Config
from tuner_daemon.records.task import Task


def load_prior(folder: Path) -> Prior:
    """Raises ModelError if the folder holds no usable prior for the present features."""
    try:
        prior = Prior.load(folder, schema=FEATURE_SCHEMA)
    except DamagedPriorError as error:
        raise ModelError(f"cost model {error}") from error
    if prior.width != len(FEATURE_NAMES):
        raise ModelError(f"cost model {folder}: made for {prior.width} features, want {len(FEATURE_NAMES)}")
    return prior


def anchor_log_s(task: Task) -> float:
    """Natural log of the task's roofline seconds; NaN if its work or the device's peaks are unknown."""
    return problem_numbers(task.spec.kernel, task.spec.problem, task.device)["roofline_s"] * math.log(2.0)


class LearnedCostModel:
    """``CostModel`` with or without a prior. One instance serves one task at a time; ``fit`` starts the task anew."""

    def __init__(self, prior: Prior | None = None, *, version: str = "", seed: int = 0, threads: int = 1) -> None:
        self._prior = None if prior is None else prior.with_threads(threads)
        self._version, self._seed, self._threads = version, seed, threads
        self._task: Task | None = None
        self._model: SessionModel | None = None

    @property
    def version(self) -> str:
        return self._version

    def known(self, task: Task) -> bool:
        """The task's kernel family was in the log that the prior was trained on."""
        return self._prior is not None and task.spec.kernel.name in self._prior.groups

    def fit(self, task: Task, history: Sequence[Measurement]) -> None:
        """Aligns the prior to the task's measurements and refits the residual; disturbed rows say nothing."""
        model = self._model_for(task)
        rows = [row.ran for row in history if row.ran.outcome is not Outcome.DISTURBED]
        if not rows:
            return
        log_s = [math.log(ran.median_s) if isinstance(ran, Timing) else math.nan for ran in rows]
        model.fit(features(task, [ran.config for ran in rows]), np.array(log_s))

    def predict(self, task: Task, configs: Sequence[Config]) -> NDArray[np.float32]:
        """Log seconds, (n,)."""
        if not configs:
            return np.zeros(0, dtype=np.float32)
        return self._model_for(task).predict(features(task, configs)).astype(np.float32)

    def spread(self, task: Task, configs: Sequence[Config]) -> NDArray[np.float32]:
        """(n,) deviation of log seconds to expect from predictions; NaN before there is evidence."""
        if not configs:
            return np.zeros(0, dtype=np.float32)
        return self._model_for(task).spread(features(task, configs)).astype(np.float32)

    def _model_for(self, task: Task) -> SessionModel:
        if self._model is None or self._task is not task:
            self._task = task
            self._model = SessionModel(
                self._prior,
                trusted=self.known(task),
                anchor_log_s=anchor_log_s(task),
                seed=self._seed,
                threads=self._threads,
            )
        return self._model
