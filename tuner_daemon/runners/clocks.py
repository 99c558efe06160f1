"""Clock policies, and what a device's clocks say about a measurement. Nothing here changes any clock."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from tuner_daemon.errors import ClockError, MissingPartError
from tuner_daemon.records.device import Clocks
from tuner_daemon.runners.clock_lease import Lease, lease_reader
from tuner_daemon.runners.nvml import CALL_LIMIT_S, Nvml, NvmlError, NvmlGpu, Reading

logger = logging.getLogger(__name__)

POLICIES = ("lock", "verify", "observe")

FIRST_LOOK_S, LOOK_EVERY_S = 0.003, 0.1
"""While a measurement runs: soon at first, for it may be short, and ever less often, for a look is not for nothing."""

IDLE, LOCKED, POWER_CAP = 0x1, 0x2, 0x4
REASONS = {
    IDLE: "idle",
    LOCKED: "application or locked clocks",
    POWER_CAP: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clock setting",
}
"""NVML's clock-event reasons."""

FRESH_S = 0.02
"""Measurements that follow each other so closely share the look between them."""

TOLERANCE_MHZ = 15  # a step of the clocks that GPUs have
FALL = 0.95
"""A free clock that falls below this share of what it was within one measurement has dropped."""

_REMEDY = 'start tunerd-clocks.service, or set clock_policy = "verify" or "observe"'


class ClockReader(Protocol):
    def read(self) -> Reading: ...


class NoClocks:
    """A device without NVML: nothing is known."""

    def read(self) -> Reading:
        return Reading()


class NvmlClocks:
    """Reads the device with this UUID. Raises MissingPartError without NVML or such a device."""

    def __init__(self, uuid: str, *, limit_s: float = CALL_LIMIT_S) -> None:
        try:
            self._session = Nvml(limit_s=limit_s)
            self._gpu = NvmlGpu(self._session, uuid)
        except NvmlError as error:
            raise MissingPartError(f"NVML does not tell of {uuid}: {error}") from error

    @property
    def driver_version(self) -> str:
        try:
            return self._session.driver_version()
        except NvmlError:
            return ""

    def read(self) -> Reading:
        return self._gpu.read()


@dataclass(frozen=True)
class Looks:
    """All readings of one measurement, in order of time."""

    before: Reading
    during: tuple[Reading, ...]
    after: Reading

    @property
    def all(self) -> tuple[Reading, ...]:
        return (self.before, *self.during, self.after)

    @property
    def loaded(self) -> tuple[Reading, ...]:
        """Those that tell the clock under load: taken while it ran, and not while the GPU waited for the host."""
        return tuple(r for r in self.during if r.sm_mhz is not None and not (r.reasons or 0) & IDLE)


class Watch:
    """Looks before, during and after what runs inside ``with``; then ``looks`` has them. ``earlier``: the watch over
    what was run before."""

    def __init__(self, reader: ClockReader, earlier: Watch | None = None) -> None:
        self._reader = reader
        self._last = None if earlier is None or not earlier.is_fresh() else earlier.looks.after
        self._ended_s = -float("inf")
        self._during: list[Reading] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.looks: Looks = Looks(Reading(), (), Reading())

    def is_fresh(self) -> bool:
        """Whether its last look still tells how things are."""
        return time.monotonic() - self._ended_s < FRESH_S

    def __enter__(self) -> Self:
        self._before = self._reader.read() if self._last is None else self._last
        if self._before != Reading():  # else there is nothing to see
            self._thread = threading.Thread(target=self._look_on, name="clocks", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()  # a call that hangs is given up by the reader
        self.looks = Looks(self._before, tuple(self._during), self._reader.read())
        self._ended_s = time.monotonic()

    def _look_on(self) -> None:
        pause_s = FIRST_LOOK_S
        while not self._over.wait(pause_s):
            self._during.append(self._reader.read())
            pause_s = min(3 * pause_s, LOOK_EVERY_S)


@dataclass(frozen=True)
class Seen:
    """What the looks at one measurement amount to. ``disturbance``: why it does not count, empty if it does."""

    clocks: Clocks
    disturbance: str = ""


@dataclass
class Keeper:
    """Keeps one policy on one device. ``lease`` reads the lease of a UUID. Raises ClockError from ``require`` and
    ``judge`` under the policy ``lock`` alone."""

    policy: str
    uuid: str = ""
    reader: ClockReader = field(default_factory=NoClocks)
    lease: Callable[[str], Lease | None] = field(default_factory=lease_reader)
    _effective: bool | None = None  # is the clock where the lease says? As the last measurement under load showed
    _warned: set[str] = field(default_factory=set)
    _watch: Watch | None = None  # the last

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise MissingPartError(f'there is no clock policy "{self.policy}"; set one of {", ".join(POLICIES)}')

    @property
    def mode(self) -> str:
        """What a measurement that begins now is expected to be marked with."""
        return "locked" if self._effective is not False and self._held_mhz() is not None else "free"

    def require(self) -> None:
        """Raises ClockError under the policy ``lock`` without a lease that counts."""
        if self.policy == "lock" and self._held_mhz() is None:
            raise ClockError(f'clock_policy = "lock", but {self._why_not_held()}; {_REMEDY}')

    def watch(self) -> Watch:
        self._watch = Watch(self.reader, self._watch)
        return self._watch

    def judge(self, looks: Looks) -> Seen:
        """Raises ClockError under the policy ``lock`` where the clock is not the lease's under load."""
        held_mhz, moved = self._held_mhz(), ""
        if self.policy != "observe" and held_mhz is None:
            self._warn(f"rows are marked free: {self._why_not_held()}")
        if held_mhz is not None:
            at = [abs((r.sm_mhz or 0) - held_mhz) <= TOLERANCE_MHZ for r in looks.loaded]
            if at:
                self._effective = any(at)
            elif _span(looks.all) is None:
                self._effective = False
            moved = _moved(looks.loaded, at, held_mhz) if any(at) else ""
        if held_mhz is not None and self._effective is False:
            self._complain(held_mhz, looks)
        locked = held_mhz is not None and self._effective is True
        disturbance = _disturbance(looks, locked=locked) or moved
        return Seen(observed(looks, self.policy, "locked" if locked else "free"), disturbance)

    def _held_mhz(self) -> int | None:
        if self.policy == "observe" or isinstance(self.reader, NoClocks):
            return None
        lease = self.lease(self.uuid)
        return None if lease is None or lease.stale() else lease.mhz

    def _why_not_held(self) -> str:
        if isinstance(self.reader, NoClocks):
            return "NVML tells nothing of this device, whose clock can so be neither held nor verified"
        lease = self.lease(self.uuid)
        if lease is None:
            return f"no lease says that the clock of {self.uuid} is held"
        return f"the lease of {self.uuid} is stale ({lease.stale()})"

    def _complain(self, held_mhz: int, looks: Looks) -> None:
        """The lock was accepted, and does nothing."""
        seen, unseen = _span(looks.loaded), _span(looks.all) is None
        but = f"under load it runs at {seen[0]} to {seen[1]} MHz" if seen else "it was elsewhere when last under load"
        words = f"{self.uuid} should be held at {held_mhz} MHz, but {'NVML does not tell its clock' if unseen else but}"
        if self.policy == "lock":
            self._effective = None  # the next job finds out for itself
            raise ClockError(f"{words}; restart tunerd-clocks.service with a clock that the GPU can hold, or {_REMEDY}")
        self._warn(f"rows are marked free: {words}")

    def _warn(self, words: str) -> None:
        if words not in self._warned:
            self._warned.add(words)
            logger.warning("%s", words)


def observed(looks: Looks, policy: str = "observe", mode: str = "free") -> Clocks:
    """All looks as one record: lowest and highest SM clock under load (else of all), the hottest and busiest, all
    reasons seen."""
    mem = [r.mem_mhz for r in looks.all if r.mem_mhz is not None]
    reasons = 0
    for reading in looks.all:
        reasons |= reading.reasons or 0
    return Clocks(
        policy=policy,
        mode=mode,
        sm_mhz=_span(looks.loaded) or _span(looks.all),
        mem_mhz=mem[-1] if mem else None,
        temperature_c=_highest([r.temperature_c for r in looks.all]),
        power_w=_highest([r.power_w for r in looks.all]),
        reasons=reasons,
    )


def reason_names(bits: int) -> str:
    """In words; unknown bits as a number."""
    names = [name for bit, name in REASONS.items() if bits & bit]
    unknown = bits & ~sum(REASONS)
    return ", ".join([*names, *([f"unknown reason {unknown:#x}"] if unknown else [])])


def bad_reasons(bits: int, *, locked: bool) -> int:
    """Those that make a measurement count for nothing. A free clock under the power cap is as the kernel makes it: the
    same kernel meets the same cap tomorrow. A clock that should be held has no business there."""
    return bits & ~(IDLE | LOCKED | (0 if locked else POWER_CAP))


def _disturbance(looks: Looks, *, locked: bool) -> str:
    bits = 0
    for reading in looks.all:
        bits |= bad_reasons(reading.reasons or 0, locked=locked)
    if bits:
        return f"clock-event reasons: {reason_names(bits)}"
    others = sorted({pid for reading in looks.all for pid in reading.others})
    if others:
        return f"other processes compute on the GPU: {', '.join(map(str, others))}"
    return "" if locked else _fallen(looks.loaded)


def _fallen(loaded: Sequence[Reading]) -> str:
    """A free clock may rise while it warms up; if it falls without a cap that explains it, something is wrong."""
    highest = 0
    for reading in loaded:
        assert reading.sm_mhz is not None
        if reading.sm_mhz < FALL * highest and not (reading.reasons or 0) & POWER_CAP:
            return f"the SM clock fell from {highest} to {reading.sm_mhz} MHz while it ran"
        highest = max(highest, reading.sm_mhz)
    return ""


def _moved(loaded: Sequence[Reading], at: Sequence[bool], held_mhz: int) -> str:
    """A held clock may come up from idle once; after that, and above, it stays."""
    arrived = at.index(True)
    strays = [r for n, r in enumerate(loaded) if not at[n] and (n > arrived or (r.sm_mhz or 0) > held_mhz)]
    if not strays:
        return ""
    return f"the SM clock was at {strays[0].sm_mhz} MHz while it ran, and should be held at {held_mhz}"


def _span(readings: Sequence[Reading]) -> tuple[int, int] | None:
    sm = [r.sm_mhz for r in readings if r.sm_mhz is not None]
    return (min(sm), max(sm)) if sm else None


def _highest(values: Sequence[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)
