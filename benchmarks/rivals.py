"""Other people's searches on recorded spaces: Kernel Tuner in simulation mode, and Optuna's TPE. Extra ``[bench]``.

Each search gets a space object of its own, and gives log seconds of distinct configurations in the order in which it
asked for them, NaN for failures.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tuner_daemon.evaluation.methods import Method, Models
from tuner_daemon.evaluation.recorded import Recorded

STRATEGIES = (
    *("random_sample", "diff_evo", "genetic_algorithm", "greedy_mls", "ordered_greedy_mls", "greedy_ils", "mls"),
    *("dual_annealing", "basinhopping", "minimize", "simulated_annealing", "pso", "firefly_algorithm", "bayes_opt"),
    *("hybrid_vndx", "adaptive_tabu_greywolf"),
)
"""Of Kernel Tuner, all of its own that search a single objective without a further library."""

REJECTIONS = 2000  # of TPE in a row; then uniform draws take over, so that no budget is left unspent
KERNEL = "recorded"


def kernel_tuner(space: Recorded, strategy: str, measurements: int, seed: int) -> list[float]:
    """At the strategy's defaults; its budget is the number of distinct configurations. Raises ImportError without the
    extra."""
    from constraint import FunctionConstraint
    from kernel_tuner import tune_kernel

    parameters = {p.name: list(p.values) for p in space.kernel.parameters}
    random.seed(seed)
    np.random.seed(seed)
    with tempfile.TemporaryDirectory(prefix="search-") as folder, _quiet():
        cache = Path(folder) / "cache.json"
        cache.write_text(json.dumps(_cache(space, parameters)))
        results, _ = tune_kernel(
            KERNEL,
            f"__global__ void {KERNEL}() {{}}",
            1,
            [],
            parameters,
            restrictions=[FunctionConstraint(lambda *values: values in space.log_s)],
            block_size_names=list(parameters)[:1],
            strategy=strategy,
            strategy_options={"max_fevals": measurements},
            cache=str(cache),
            simulation_mode=True,
            lang="CUDA",
            quiet=True,
        )
    asked = dict.fromkeys(tuple(result[name] for name in parameters) for result in results)
    return [space.log_s[values] for values in asked][:measurements]


def _cache(space: Recorded, parameters: dict[str, list[Any]]) -> dict[str, Any]:
    """What Kernel Tuner would have written while measuring the whole space; times in milliseconds."""
    zeros = dict.fromkeys(("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time"), 0)
    entries = {}
    for values, log_s in space.log_s.items():
        failed = math.isnan(log_s)
        time_ms: Any = "RuntimeFailedConfig" if failed else 1e3 * math.exp(log_s)
        entries[",".join(map(str, values))] = {**dict(zip(parameters, values, strict=True)), "time": time_ms, **zeros}
    return {
        "device_name": space.device.name,
        "kernel_name": KERNEL,
        "problem_size": 1,
        "tune_params_keys": list(parameters),
        "tune_params": parameters,
        "objective": "time",
        "cache": entries,
    }


def optuna_tpe(space: Recorded, measurements: int, seed: int) -> list[float]:
    """Constraints by rejection: what is not in the space is pruned at once and costs nothing; so is a repeat. Raises
    ImportError without the extra."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rng = np.random.default_rng(seed)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    choices = {p.name: list(p.values) for p in space.kernel.parameters if len(p.values) > 1}
    fixed = {p.name: p.values[0] for p in space.kernel.parameters if len(p.values) == 1}
    asked: dict[tuple[Any, ...], float] = {}
    refused = 0
    worst = space.worst + math.log(2.0)  # a failure is told as twice the slowest time
    while len(asked) < min(measurements, len(space.log_s)):
        trial = study.ask()
        values = {name: trial.suggest_categorical(name, options) for name, options in choices.items()} | fixed
        key = tuple(values[p.name] for p in space.kernel.parameters)
        if key in space.log_s and key not in asked:
            asked[key] = space.log_s[key]
            study.tell(trial, worst if math.isnan(asked[key]) else asked[key])
            refused = 0
            continue
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        refused += 1
        if refused == REJECTIONS:
            break
    return [*asked.values(), *_rest(space, asked, measurements - len(asked), rng)]


def _rest(space: Recorded, asked: dict[tuple[Any, ...], float], count: int, rng: np.random.Generator) -> list[float]:
    fresh = [log_s for key, log_s in space.log_s.items() if key not in asked]
    return [fresh[at] for at in rng.permutation(len(fresh))[: max(count, 0)]]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _method(strategy: str) -> Method:
    def search(space: Recorded, models: Models, measurements: int, rng: np.random.Generator) -> list[float]:
        del models
        seed = int(rng.integers(2**31))
        return kernel_tuner(space, strategy, measurements, seed)

    return Method(strategy, f"Kernel Tuner's {strategy} at its defaults", search)


def _tpe(space: Recorded, models: Models, measurements: int, rng: np.random.Generator) -> list[float]:
    del models
    return optuna_tpe(space, measurements, int(rng.integers(2**31)))


METHODS: dict[str, Method] = {
    **{strategy: _method(strategy) for strategy in STRATEGIES},
    "optuna_tpe": Method("optuna_tpe", "Optuna's TPE at its defaults, constraints by rejection", _tpe),
}
