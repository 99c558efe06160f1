"""Finished pieces of an evaluation, kept so that it can go on where it stopped. A piece is one training or one search;
its name is the hash of everything that it depends on, the program included."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tuner_daemon
from tuner_daemon.errors import ModelError
from tuner_daemon.evaluation.methods import Models, curve, method_named, source_of
from tuner_daemon.evaluation.recorded import Recorded
from tuner_daemon.learning.cost import load_prior
from tuner_daemon.learning.policy import load_policy
from tuner_daemon.learning.training import train_on
from tuner_daemon.storage import files

_LIBRARIES = ("numpy", "xgboost-cpu", "torch", "d3rlpy")
_APART = ("cli", "worker", "summary.py", "plots.py", "run.py", "folds.py")  # no piece depends on these


@dataclass(frozen=True)
class Training:
    """``train``: places in the list of recordings; ``steps``: of the policy, 0 leaves it out."""

    train: tuple[int, ...]
    seed: int
    steps: int

    def key(self, spaces: Sequence[Recorded]) -> str:
        digests = sorted(spaces[at].digest for at in self.train)
        return _hash(["training", digests, self.seed, self.steps])


@dataclass(frozen=True)
class Search:
    """``training``: None for a method that learns nothing elsewhere."""

    space: int
    method: str
    seed: int
    measurements: int
    training: Training | None

    def key(self, spaces: Sequence[Recorded]) -> str:
        model = self.training.key(spaces) if self.training else ""
        about = [self.method, source_of(self.method), self.seed, self.measurements]
        return _hash(["search", spaces[self.space].digest, *about, model])


class Pieces:
    """A folder of pieces; processes may share it."""

    def __init__(self, folder: Path, spaces: Sequence[Recorded]) -> None:
        self.folder, self.spaces = folder, spaces

    def done(self, piece: Training | Search) -> bool:
        return self._path(piece).exists()

    def do(self, piece: Training | Search) -> None:
        """Does and keeps it."""
        if self.done(piece):
            return
        if isinstance(piece, Training):
            self._train(piece)
        else:
            ratio = curve(self.spaces[piece.space], piece.method, self._models(piece), piece.measurements, piece.seed)
            self._keep(piece, ratio)

    def ratio(self, search: Search) -> list[float]:
        """best/optimum after each measurement. Raises OSError if the piece is not done."""
        found: list[float] = json.loads(self._path(search).read_text())["ratio"]
        return found

    def _keep(self, search: Search, ratio: list[float]) -> None:
        about = {"space": self.spaces[search.space].name, "method": search.method, "seed": search.seed}
        path = self._path(search)
        files.make_folder(path.parent)
        files.publish_bytes(path, json.dumps({**about, "ratio": ratio}).encode())

    def _train(self, training: Training) -> None:
        path = self._path(training)
        files.make_folder(path.parent)
        tasks = [self.spaces[at].rows for at in training.train]
        trained = train_on(tasks, seed=training.seed, steps=training.steps, threads=1)
        temp = files.temporary(path)
        temp.mkdir()
        try:
            trained.save(temp)
            (temp / "training.json").write_text(json.dumps(asdict(training)))
            files.publish_folder(temp, path)
        finally:
            shutil.rmtree(temp, ignore_errors=True)

    def _models(self, search: Search) -> Models:
        if search.training is None:
            return Models()
        method = method_named(search.method)
        folder = self._path(search.training)
        try:
            return Models(_prior(folder), _policy(folder) if method.policy else None)
        except ModelError as error:
            raise ModelError(f"{error}; remove {folder} to train anew") from error

    def _path(self, piece: Training | Search) -> Path:
        key = piece.key(self.spaces)
        if isinstance(piece, Training):
            return self.folder / "models" / key
        return self.folder / "runs" / key[:2] / f"{key}.json"


_prior = cache(load_prior)
_policy = cache(load_policy)


@cache
def program() -> str:
    """Hash of the sources and of the releases of the libraries that decide what comes out."""
    digest = hashlib.sha256()
    root = Path(tuner_daemon.__file__).parent
    for top in (root, root.parent / "cost_model"):
        for path in sorted(top.rglob("*.py")):
            name = path.relative_to(root.parent)
            if not set(name.parts) & set(_APART):
                digest.update(f"\n{name}\n".encode() + path.read_bytes())
    digest.update(json.dumps({name: _release(name) for name in _LIBRARIES}).encode())
    return digest.hexdigest()


def _release(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def _hash(what: list[Any]) -> str:
    return hashlib.sha256(json.dumps([program(), *what]).encode()).hexdigest()[:32]
