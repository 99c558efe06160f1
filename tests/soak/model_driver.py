"""Spoils the champion's files one after another and asks the daemon's own workshop for its models each time.

A process of its own, since a file might end it: ``python -m tests.soak.model_driver '{"folder": "…", "files": 200,
"seed": 1}'``.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cost_model import Hyperparameters, Prior, TrainingSet
from cost_model.prior import booster_file
from tests.learning_tasks import tiled_task, true_log_s
from tests.soak import hostile_models as hostile
from tuner_daemon.cli.workshop import Models, Workshop
from tuner_daemon.learning.decisions import STATE_SIZE
from tuner_daemon.learning.features import FEATURE_SCHEMA, features
from tuner_daemon.learning.policy import Policy
from tuner_daemon.settings import Settings
from tuner_daemon.storage.models import ModelStore

MANIFEST = "manifest.json"
FILES = ("policy.safetensors", "policy.json", booster_file(0), "prior.json", MANIFEST)
TASK = tiled_task()


def model_files(folder: Path, seed: int) -> dict[str, bytes]:
    """Small models that work."""
    rng, h = np.random.default_rng(seed), 16
    shapes = {
        "mean": (STATE_SIZE,),
        "scale": (STATE_SIZE,),
        "w0": (h, STATE_SIZE),
        "b0": (h,),
        "w1": (h, h),
        "b1": (h,),
    }
    shapes |= {"w_mu": (1, h), "b_mu": (1,), "std": (1,)}
    weights = {name: rng.uniform(0.1, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    configs = TASK.space.sample(200, rng)
    data = TrainingSet(
        features(TASK, configs), true_log_s(TASK, configs), np.zeros(len(configs), np.int64), np.array([np.nan])
    )
    prior = Prior.train(
        data,
        schema=FEATURE_SCHEMA,
        groups=frozenset({"tiled"}),
        seed=seed,
        threads=1,
        hyperparameters=Hyperparameters(10),
    )
    folder.mkdir(parents=True)
    Policy(weights, frozenset({"tiled"})).save(folder)
    prior.save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def works(models: Models) -> bool:
    if models.policy is None:
        return False
    configs = models.policy.sample(TASK, 4, np.random.default_rng(0))
    return bool(configs) and bool(np.isfinite(models.cost_model.score(features(TASK, configs))).all())


@dataclass(frozen=True)
class Case:
    """New bytes for one file. ``vouched``: the manifest is forged to fit."""

    name: str
    file: str
    data: bytes
    vouched: bool = False

    def apply(self, version: Path) -> None:
        (version / self.file).write_bytes(self.data)
        if self.vouched:
            manifest = version / MANIFEST
            manifest.write_bytes(hostile.forged(manifest.read_bytes(), self.file, self.data))


def crafted(whole: dict[str, bytes], marker: Path) -> list[Case]:
    """Every payload and bomb in every place, with a manifest that vouches for it and without."""
    contents = hostile.payloads(marker) | hostile.bombs()
    targets = [(file, vouched) for file in FILES for vouched in (False, True) if (file, vouched) != (MANIFEST, True)]
    return [
        *(Case(name, file, data, vouched) for name, data in contents.items() for file, vouched in targets),
        *(Case(name, "policy.pkl", data, vouched=True) for name, data in hostile.payloads(marker).items()),
        Case("elsewhere", "../escaped.json", b"{}", vouched=True),
        *(Case("swapped", a, whole[b], vouched=True) for a in FILES[:-1] for b in FILES[:-1] if a != b),
    ]


def corrupted(whole: dict[str, bytes], rng: random.Random, n: int) -> list[Case]:
    kinds = list(hostile.CORRUPTIONS.items())
    files = [rng.choice(FILES) for _ in range(n)]
    return [
        Case(kinds[i % len(kinds)][0], file, kinds[i % len(kinds)][1](whole[file], rng)) for i, file in enumerate(files)
    ]


def main(folder: str, files: int, seed: int) -> dict[str, int]:
    logging.disable(logging.CRITICAL)
    root, rng, count = Path(folder), random.Random(seed), Counter[str]()
    marker, settings = root / "payload-ran", Settings(state_dir=root / "state")
    store = ModelStore(settings.models_dir)
    versions = [store.publish(model_files(root / str(number), number), {}) for number in (1, 2)]
    for version in versions:
        store.promote(version)
    champion, kept = store.folder / versions[1], root / "kept"
    shutil.copytree(champion, kept)
    whole = {path.name: path.read_bytes() for path in kept.iterdir()}
    cases = crafted(whole, marker)
    chosen = [*rng.sample(cases, min(len(cases), files * 2 // 3)), *corrupted(whole, rng, files)][:files]
    for case in chosen:
        case.apply(champion)
        with Workshop(settings) as workshop:
            models = workshop.models()
        count["working"] += works(models)
        count["fell_back"] += models.version == versions[0]
        if not works(models):
            print(f"no working model after {case.name} in {case.file}, vouched: {case.vouched}", file=sys.stderr)
        shutil.rmtree(champion)
        shutil.copytree(kept, champion)
    return {"files": len(chosen), "payloads_run": int(marker.exists()), **count}


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))
