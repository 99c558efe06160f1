"""An evaluation from its recordings to its runs: trainings first, then searches, one process per core."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from tuner_daemon.evaluation.folds import Fold
from tuner_daemon.evaluation.methods import DEFAULT_METHODS, method_named
from tuner_daemon.evaluation.pieces import Pieces, Search, Training, program
from tuner_daemon.evaluation.recorded import Recorded, load

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
AHEAD = 4  # pieces per process that wait in its queue: enough to keep it busy, few enough to stop soon

Said = Callable[[int, int, str], None]
"""(pieces done, pieces in all, what is being done)"""


@dataclass(frozen=True)
class Wanted:
    """``seeds``: searches per space and method; they take the ``training_seeds`` models in turn."""

    measurements: int = 96
    seeds: int = 25
    training_seeds: int = 3
    methods: tuple[str, ...] = DEFAULT_METHODS
    policy_steps: int = 4000

    def usable_methods(self) -> tuple[str, ...]:
        """Without a policy, those that do without."""
        return tuple(name for name in self.methods if self.policy_steps or not method_named(name).policy)


@dataclass(frozen=True)
class Run:
    """One search: best/optimum after each measurement. ``known``: the kernel was among those trained on."""

    split: str
    left_out: str
    space: str
    method: str
    seed: int
    training_seed: int | None
    known: bool
    ratio: tuple[float, ...]


def evaluate(
    folds: Sequence[Fold],
    spaces: Sequence[Recorded],
    paths: Sequence[Path],
    wanted: Wanted,
    folder: Path,
    *,
    jobs: int,
    say: Said = lambda done, total, what: None,
) -> list[Run]:
    """Does what is not yet in ``folder`` and gives all runs. ``paths``: where each process reads ``spaces`` from.

    Raises what a piece raises; InputError for a method that does not exist.
    """
    planned = [(fold, search) for fold in folds for search in _searches(fold, wanted)]
    searches = list(dict.fromkeys(search for _, search in planned))
    trainings = list(dict.fromkeys(search.training for search in searches if search.training))
    pieces = Pieces(folder, spaces)
    total, done = len(trainings) + len(searches), 0
    for what, part in (("training", trainings), ("searching", searches)):
        left = [piece for piece in part if not pieces.done(piece)]
        done += len(part) - len(left)
        say(done, total, what)
        for _ in _each(left, folder, paths, min(jobs, len(left))):
            done += 1
            say(done, total, what)
    return [_run(fold, search, pieces) for fold, search in planned]


def _searches(fold: Fold, wanted: Wanted) -> Iterator[Search]:
    for space in fold.test:
        for name in wanted.usable_methods():
            for seed in range(wanted.seeds):
                training = Training(fold.train, seed % wanted.training_seeds, wanted.policy_steps)
                learns = method_named(name).learns()
                yield Search(space, name, seed, wanted.measurements, training if learns else None)


def _run(fold: Fold, search: Search, pieces: Pieces) -> Run:
    space = pieces.spaces[search.space]
    known = space.kernel.name in {pieces.spaces[at].kernel.name for at in fold.train}
    training_seed = search.training.seed if search.training else None
    ratio = tuple(pieces.ratio(search))
    return Run(fold.split, fold.left_out, space.name, search.method, search.seed, training_seed, known, ratio)


# -- one process per core -----------------------------------------------------------------------------------------

_mine: Pieces | None = None  # of a worker process


def _open(folder: Path, paths: Sequence[Path], expected: str) -> None:
    global _mine
    if program() != expected:
        raise RuntimeError("the program was changed while it ran; start again")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which lets running pieces end
    _mine = Pieces(folder, load(paths))


def _do(piece: Training | Search) -> None:
    assert _mine is not None
    _mine.do(piece)


def _each(pieces: Sequence[Training | Search], folder: Path, paths: Sequence[Path], jobs: int) -> Iterator[None]:
    """One item per finished piece. Interrupted, it waits for the pieces under way only."""
    if not pieces:
        return
    with _single_threaded(), ProcessPoolExecutor(jobs, get_context("spawn"), _open, (folder, paths, program())) as pool:
        waiting, running = list(reversed(pieces)), set[Future[None]]()
        try:
            while waiting or running:
                while waiting and len(running) < AHEAD * jobs:
                    running.add(pool.submit(_do, waiting.pop()))
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                    yield
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Processes started in here have one thread each for linear algebra: there are as many of them as cores."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
