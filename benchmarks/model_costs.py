"""What the cost model's parts take on one core: ``python -m benchmarks.model_costs``.

For every template: 10,000 configurations to features, by rows of positions (as in training) and by ``Config`` (as in a
session). Then one refit of the session's model after 16 to 512 measurements, and the ranking of a pool of 512.
Figures are processor time.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from cost_model import Prior, SessionModel, TrainingSet
from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.intake.specs import templates_dir
from tuner_daemon.learning.features import feature_matrix, features
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.kernel import ProblemVariable, Value
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task

CONFIGURATIONS, REPEATS = 10_000, 7
HISTORIES = (16, 32, 64, 128, 256, 512)
DEVICE = DeviceInfo(
    "cuda",
    0,
    "a GPU",
    "none",
    "sm_90",
    attributes={
        "sm_count": 132,
        "warp_size": 32,
        "max_threads_per_sm": 2048,
        "max_blocks_per_sm": 32,
        "registers_per_sm": 65536,
        "shared_bytes_per_sm": 233472,
        "peak_flops": 6.7e13,
        "peak_bytes_per_s": 4.8e12,
    },
)


def main() -> None:
    for task in tasks():
        rng = np.random.default_rng(0)
        configs = task.space.sample(CONFIGURATIONS, rng)
        configs = (configs * (-(-CONFIGURATIONS // len(configs))))[:CONFIGURATIONS]
        columns = task.space.columns(configs)
        kernel, problem = task.spec.kernel, task.spec.problem
        by_rows = milliseconds(
            *[partial(feature_matrix, kernel, problem, task.device, columns, CONFIGURATIONS)] * REPEATS
        )
        by_config = milliseconds(*[partial(features, task, configs)] * REPEATS)
        print(f"{kernel.name:14}{CONFIGURATIONS} rows {by_rows:5.1f} ms, {CONFIGURATIONS} Configs {by_config:5.1f} ms")
    refitting()


def tasks() -> Iterator[Task]:
    for folder in sorted(templates_dir().iterdir()):
        if (folder / "kernel.toml").is_file():
            kernel = load_kernel(folder)
            problem: dict[str, Value] = {v.name: size(v) for v in kernel.problem}
            yield Task(KernelSpec(kernel, problem, DeviceRequest("cuda")), ParamSpace(kernel, problem), DEVICE)


def size(variable: ProblemVariable) -> Value:
    if variable.default is not None:
        return variable.default
    return variable.values[0] if variable.values else 1024


def refitting() -> None:
    """On the last of the templates, with times that are a function of its features and noise."""
    task = max(tasks(), key=lambda one: len(one.spec.kernel.parameters))
    rng = np.random.default_rng(0)
    x = features(task, task.space.sample(4096, rng))
    log_s = 0.1 * np.nan_to_num(x) @ rng.normal(size=x.shape[1]) + 0.05 * rng.normal(size=len(x))
    data = TrainingSet(x, log_s, np.zeros(len(x), dtype=np.int64), np.full(1, np.nan))
    prior = Prior.train(data, schema="", groups=frozenset(), seed=0, threads=1)
    for n in HISTORIES:
        rows = rng.choice(len(x), n, replace=False)
        models = [SessionModel(prior, trusted=True) for _ in range(REPEATS)]
        for model in models:
            model.fit(x[rows[:-8]], log_s[rows[:-8]])  # all but the last batch, as in a session
        fit = milliseconds(*(partial(model.fit, x[rows], log_s[rows]) for model in models))
        rank = milliseconds(*[partial(models[0].predict, x[:512])] * REPEATS)
        print(f"{task.spec.kernel.name}: refit after {n:3} measurements {fit:5.1f} ms, rank 512 {rank:5.1f} ms")


def milliseconds(*calls: Callable[[], object]) -> float:
    """Processor time, median over the calls: what else runs on the machine does not count."""
    took = []
    for call in calls:
        began_s = time.process_time()
        call()
        took.append(time.process_time() - began_s)
    return 1e3 * statistics.median(took)


if __name__ == "__main__":
    main()
