"""What is trained on, and what is then searched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner_daemon.evaluation.recorded import Recorded


@dataclass(frozen=True)
class Fold:
    """Places in the list of all recordings. ``split``: device, shape, family, or "given" for two lists of a person."""

    split: str
    left_out: str
    train: tuple[int, ...]
    test: tuple[int, ...]


def given(train: Sequence[int], test: Sequence[int]) -> list[Fold]:
    return [Fold("given", "", tuple(train), tuple(test))]


def leave_out(split: str, spaces: Sequence[Recorded]) -> list[Fold]:
    """One fold for each device, shape or family. What is left out is left out whole: no recording of that device, of
    that kernel at that problem, of that kernel. Of a device or shape, what is searched is of kernels that remain.

    Raises KeyError for another split.
    """
    group_of = SPLITS[split]
    folds = []
    for out in dict.fromkeys(map(group_of, spaces)):
        train = tuple(i for i, space in enumerate(spaces) if group_of(space) != out)
        known = {spaces[i].kernel.name for i in train}
        test = tuple(
            i
            for i, space in enumerate(spaces)
            if group_of(space) == out and (split == "family" or space.kernel.name in known)
        )
        if train and test:
            folds.append(Fold(split, out, train, test))
    return folds


SPLITS: dict[str, Callable[[Recorded], str]] = {
    "device": lambda space: str(space.device.name),
    "shape": lambda space: f"{space.kernel.name} {space.shape}",
    "family": lambda space: space.kernel.name,
}
