"""Publishes and promotes one model after another until it is killed; says when it has begun."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from tuner_daemon.storage.models import ModelStore


def run(folder: Path, source: Path) -> None:
    store = ModelStore(folder)
    contents = {path.name: path.read_bytes() for path in source.iterdir()}
    print("begun", flush=True)
    for number in count():
        store.promote(store.publish(contents, {"number": number}))


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]))
