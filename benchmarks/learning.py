"""What the learned models are worth on a device that they have not seen: ``python -m benchmarks.learning --data DIR``.

DIR holds recorded spaces: kernel folders, each with one Parquet file per device, as ``storage.hub.import_hub`` writes
them. For every kernel with at least two devices, each device is held out in turn, with all
that was recorded on it.
Prints best/optimum, geometric mean over seeds: ``cost model``: the eight that it ranks first in the whole space;
``policy N`` and ``uniform N``: the best of its first eight among N proposals of either; then the loop (batches of
eight) with and without what was learned.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cost_model import Prior, SessionModel
from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.learning.dataset import TaskRows
from tuner_daemon.learning.features import features
from tuner_daemon.learning.policy import Policy
from tuner_daemon.learning.proposers import PolicyProposer, UniformProposer
from tuner_daemon.learning.training import train_on
from tuner_daemon.records.measurement import Outcome, Proposal
from tuner_daemon.records.space import Config, ParamSpace
from tuner_daemon.records.spec import DeviceRequest, KernelSpec
from tuner_daemon.records.task import Task
from tuner_daemon.storage.recorded import load_recorded, recorded_files

POOLS = (16, 64, 256)
BATCH, BATCHES = 8, 7


@dataclass(frozen=True)
class Recorded:
    """One recorded device of one kernel."""

    name: str
    task: Task
    rows: TaskRows
    log_s: dict[Config, float]  # NaN for failures; what was not recorded is absent

    @property
    def best(self) -> float:
        return float(np.nanmin(self.rows.log_s))

    def ratio(self, configs: Sequence[Config]) -> float:
        """log(best of configs / optimum); the slowest time if all failed."""
        times = [self.log_s.get(config, math.nan) for config in configs]
        worst = float(np.nanmax(self.rows.log_s))
        return float(np.nanmin([worst, *times])) - self.best


def main() -> None:
    options = parse()
    spaces = [space for folder in sorted(options.data.iterdir()) if folder.is_dir() for space in recorded(folder)]
    for held_out in spaces:
        others = [space.rows for space in spaces if space.rows.device.name != held_out.rows.device.name]
        same = [rows for rows in others if rows.kernel.name == held_out.rows.kernel.name]
        if not same:
            continue
        began_s = time.perf_counter()
        trained = train_on(others, seed=options.seed, steps=options.steps, threads=options.threads)
        print(f"{held_out.name}: trained on {len(others)} spaces in {time.perf_counter() - began_s:.0f} s")
        report(held_out, trained.prior, trained.policy, options.seeds)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4000, help="of policy training; 0 leaves the policy out")
    parser.add_argument("--seed", type=int, default=0, help="of training")
    parser.add_argument("--seeds", type=int, default=8, help="of proposals")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def recorded(folder: Path) -> Iterator[Recorded]:
    kernel = load_kernel(folder)
    problem = {v.name: v.default if v.default is not None else v.values[0] for v in kernel.problem}
    space = ParamSpace(kernel, problem)
    for index, file in enumerate(recorded_files(folder)):
        found = load_recorded(folder, index=index)
        configs = [config for config in space.all() if found.contains(config.as_dict())]
        results = [found.lookup(config.as_dict()) for config in configs]
        log_s = np.array([math.log(np.median(times)) if how is Outcome.OK else math.nan for how, times in results])
        rows = TaskRows(file.stem, kernel, problem, found.device, space.indices(configs), log_s)
        task = Task(KernelSpec(kernel, problem, DeviceRequest("replay", index)), space, found.device)
        yield Recorded(file.stem, task, rows, dict(zip(configs, log_s.tolist(), strict=True)))


def report(held_out: Recorded, prior: Prior, policy: Policy | None, seeds: int) -> None:
    def eight(configs: Sequence[Config]) -> float:
        order = np.argsort(-prior.score(features(held_out.task, configs)), kind="stable")[:8]
        return held_out.ratio([configs[at] for at in order])

    show("cost model, whole space", [eight(list(held_out.log_s))])
    for n in POOLS:
        if policy is not None:
            show(f"policy {n}", [eight(proposed(held_out.task, PolicyProposer(policy, rng), n)) for rng in rngs(seeds)])
        show(f"uniform {n}", [eight(proposed(held_out.task, UniformProposer(rng), n)) for rng in rngs(seeds)])
    for name, make in (
        ("learned elsewhere", lambda: SessionModel(prior, trusted=True)),
        ("prior not trusted", lambda: SessionModel(prior, trusted=False)),
        ("cold", lambda: SessionModel(None, trusted=False)),
    ):
        curves = np.exp(np.mean([curve(held_out, make, rng) for rng in rngs(min(seeds, 4))], axis=0))
        print(f"  {name:24}" + "  ".join(f"{BATCH * (at + 1)}: {curves[at]:.2f}" for at in (0, 1, 2, BATCHES - 1)))


def curve(held_out: Recorded, make: Callable[[], SessionModel], rng: np.random.Generator) -> list[float]:
    """log(best/optimum) after each batch of a search over the whole space; one of each batch is drawn at random."""
    x, log_s, model = held_out.rows.features(), held_out.rows.log_s, make()
    tried: list[int] = []
    found = []
    for _ in range(BATCHES):
        predicted = model.predict(x) + 1e-9 * rng.random(len(x))
        fresh = np.setdiff1d(np.arange(len(x)), tried)
        ranked = fresh[np.argsort(predicted[fresh])][: BATCH - 1]
        tried += [*ranked.tolist(), int(rng.choice(np.setdiff1d(fresh, ranked)))]
        model.fit(x[tried], log_s[tried])
        found.append(held_out.ratio([list(held_out.log_s)[at] for at in tried]))
    return found


def rngs(seeds: int) -> list[np.random.Generator]:
    return [np.random.default_rng(seed) for seed in range(seeds)]


def proposed(task: Task, proposer: PolicyProposer | UniformProposer, n: int) -> list[Config]:
    proposals: list[Proposal] = proposer.propose(task, [], n)
    return [proposal.config for proposal in proposals]


def show(what: str, ratios: Sequence[float]) -> None:
    print(f"  {what:24}{math.exp(float(np.mean(ratios))):.2f}", flush=True)


if __name__ == "__main__":
    main()
