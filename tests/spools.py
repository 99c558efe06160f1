"""A spool whose time passes when the test says so."""

from __future__ import annotations

from pathlib import Path

from tuner_daemon.storage import incoming
from tuner_daemon.storage.incoming import Entry
from tuner_daemon.storage.spool import STATES, Claimed, Spool

SPEC = 'template = "matmul"\n'


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def spool_at(root: Path, clock: Clock | None = None) -> Spool:
    return Spool(root, clock_s=clock or Clock())


def drop_spec(spool: Spool, name: str = "a.toml", text: str = SPEC) -> Path:
    path = spool.incoming / name
    path.write_text(text)
    return path


def whole_specs(spool: Spool, clock: Clock) -> list[Entry]:
    spool.scan()
    clock.now_s += incoming.WRITTEN_S
    return spool.scan()


def claim_first(spool: Spool, clock: Clock) -> Claimed:
    claimed = spool.claim(whole_specs(spool, clock)[0])
    assert claimed is not None
    return claimed


def where(root: Path) -> dict[str, list[str]]:
    """State -> names of the specs in it, sidecars left out."""
    return {
        state: names
        for state in STATES
        if (names := sorted(p.name for p in (root / state).iterdir() if not is_sidecar(p.name)))
    }


def is_sidecar(name: str) -> bool:
    return name.startswith(".") or name.endswith(incoming.SIDECAR_SUFFIXES)
