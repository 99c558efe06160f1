"""What root does to GPU clocks: ``tunerd clocks lock``, ``release`` and ``status``. Nothing else here needs root."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tuner_daemon.errors import ClockError
from tuner_daemon.runners.clock_lease import LEASES, Lease, leased, read_lease, remove_lease, write_lease
from tuner_daemon.runners.nvml import Nvml, NvmlError, NvmlGpu, Reading, Refusal

_REMEDIES = {
    Refusal.ABSENT: "is the NVIDIA driver loaded (nvidia-smi)? In a container, is the GPU passed in?",
    Refusal.PERMISSION: "run it as root on the host: `systemctl start tunerd-clocks`; a container may not lock clocks",
    Refusal.UNSUPPORTED: 'this GPU or driver cannot lock clocks: leave clock_policy = "observe"',
    Refusal.HUNG: "the driver hangs: see `dmesg`, reset the GPU or reboot",
    Refusal.OTHER: "see `dmesg` and `nvidia-smi -q`",
}


@dataclass(frozen=True)
class GpuClocks:
    """A GPU's clock and lease, for people and programs. ``stale``: why the lease does not count, empty if it does."""

    uuid: str
    reading: Reading
    lease: Lease | None
    stale: str


def lock(gpus: Sequence[str], mhz: int | None, *, leases: Path = LEASES, nvml: Nvml | None = None) -> list[Lease]:
    """Locks the SM clock of every GPU named (indices, UUIDs, or "all") at ``mhz``, by default the base clock. All or
    none: raises ClockError with a remedy, every clock let go."""
    session = _session(nvml)
    chosen = _chosen(session, gpus)
    release([gpu.uuid for gpu in chosen], leases=leases, nvml=session, forgiving=True)  # of an earlier life
    granted: list[Lease] = []
    try:
        for gpu in chosen:
            granted.append(_lock_one(gpu, mhz, leases))
    except (ClockError, OSError) as error:
        for gpu in chosen:
            with suppress(OSError):
                remove_lease(leases, gpu.uuid)
            _release_one(gpu, forgiving=True)
        if isinstance(error, ClockError):
            raise
        raise ClockError(f"the lease cannot be written: {error}; no clock is locked") from error
    return granted


def release(
    gpus: Sequence[str], *, leases: Path = LEASES, nvml: Nvml | None = None, forgiving: bool = False
) -> list[str]:
    """Lets go of the GPUs named, and of every other that has a lease. The leases go first: a clock that stays locked
    against our will must not be taken for one that is held. UUIDs of those let go. Raises ClockError, after all have
    been tried, unless ``forgiving``."""
    held = leased(leases)
    try:
        for uuid in held:
            remove_lease(leases, uuid)
    except OSError as error:
        raise ClockError(f"the lease cannot be removed: {error}; {_REMEDIES[Refusal.PERMISSION]}") from error
    try:
        session = _session(nvml)
        known = session.uuids()
        chosen = _chosen(session, [*gpus, *(uuid for uuid in held if uuid in known)])
    except ClockError:
        if forgiving:
            return []
        raise
    except NvmlError as error:
        raise _refused("GPUs cannot be listed", error) from error
    refused = [refusal for gpu in chosen if (refusal := _release_one(gpu, forgiving=forgiving))]
    if refused:
        raise refused[0]
    return [gpu.uuid for gpu in chosen]


def status(*, leases: Path = LEASES, nvml: Nvml | None = None) -> list[GpuClocks]:
    """Of every GPU. Raises ClockError."""
    session = _session(nvml)
    found = []
    for gpu in _chosen(session, ["all"]):
        lease = read_lease(leases, gpu.uuid)
        found.append(GpuClocks(gpu.uuid, gpu.read(), lease, lease.stale() if lease else ""))
    return found


def _session(nvml: Nvml | None) -> Nvml:
    try:
        return nvml or Nvml()
    except NvmlError as error:
        raise _refused("NVML does not start", error) from error


def _chosen(nvml: Nvml, names: Sequence[str]) -> list[NvmlGpu]:
    """Each GPU once. Raises ClockError for a name that is none."""
    try:
        known = nvml.uuids()
        uuids: list[str] = []
        for name in names:
            uuids += known if name == "all" else [_uuid(name, known)]
        return [NvmlGpu(nvml, uuid) for uuid in dict.fromkeys(uuids)]
    except NvmlError as error:
        raise _refused("GPUs cannot be listed", error) from error


def _uuid(name: str, known: Sequence[str]) -> str:
    if name in known:
        return name
    if name.isdecimal() and int(name) < len(known):
        return known[int(name)]
    raise ClockError(f'there is no GPU "{name}"; there are {len(known)}: {", ".join(known)}')


def _lock_one(gpu: NvmlGpu, mhz: int | None, leases: Path) -> Lease:
    try:
        if gpu.mig:
            raise ClockError(
                f"{gpu.uuid} is split into MIG instances, which share one clock; "
                'switch MIG off (nvidia-smi -mig 0), or leave clock_policy = "observe"'
            )
        chosen = mhz or gpu.base_mhz()
        if not chosen:
            raise ClockError(f"{gpu.uuid} does not tell its base clock; name it (data sheet): --mhz N")
        gpu.lock(chosen)
    except NvmlError as error:
        raise _refused(f"{gpu.uuid} cannot be locked", error) from error
    lease = Lease.now(gpu.uuid, chosen)
    write_lease(leases, lease)
    return lease


def _release_one(gpu: NvmlGpu, *, forgiving: bool) -> ClockError | None:
    try:
        gpu.release()
    except NvmlError as error:
        return None if forgiving else _refused(f"{gpu.uuid} cannot be released", error)
    return None


def _refused(what: str, error: NvmlError) -> ClockError:
    return ClockError(f"{what}: {error}; {_REMEDIES[error.refusal]}")
