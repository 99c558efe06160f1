"""Occupancy from a kernel's resources, by the rules of NVIDIA's occupancy calculator (compute capability 7 to 12)."""

from __future__ import annotations

from collections.abc import Mapping

_REGISTER_UNIT = 256  # registers are given to warps in this many
_SHARED_UNIT = 128
_RESERVED_SHARED = 1024  # per block, kept by the system
_RESERVES_FROM = 80  # compute capability


def occupancy(attributes: Mapping[str, float], *, threads: int, registers: int, shared_bytes: int) -> float | None:
    """Active warps per multiprocessor over their limit, in [0, 1]. ``shared_bytes``: static and dynamic, per block.
    None where the device does not tell its limits."""
    limit = attributes.get("max_threads_per_sm", 0) // attributes.get("warp_size", 32)
    if not limit:
        return None
    warps = -(-threads // int(attributes.get("warp_size", 32)))
    blocks = min(resident(attributes, threads=threads, registers=registers, shared_bytes=shared_bytes).values())
    return blocks * warps / limit


def resident(attributes: Mapping[str, float], *, threads: int, registers: int, shared_bytes: int) -> dict[str, int]:
    """Blocks that a multiprocessor holds at a time, by what limits them: the least of them is how many it holds."""
    warps = -(-threads // int(attributes.get("warp_size", 32)))
    limit = attributes.get("max_threads_per_sm", 0) // attributes.get("warp_size", 32)
    return {
        "threads": int(limit) // warps,
        "blocks": int(attributes.get("max_blocks_per_sm", 0)) or 32,
        "registers": _by_registers(attributes, warps, registers),
        "shared memory": _by_shared(attributes, shared_bytes),
    }


def _by_registers(attributes: Mapping[str, float], warps: int, registers: int) -> int:
    per_warp = -(-registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
    if not per_warp:
        return 1 << 30
    partitions = 4  # schedulers, each with a quarter of the registers
    return int(attributes.get("registers_per_sm", 65536)) // partitions // per_warp * partitions // warps


def _by_shared(attributes: Mapping[str, float], shared_bytes: int) -> int:
    reserved = _RESERVED_SHARED if attributes.get("compute_capability", 0) >= _RESERVES_FROM else 0
    per_block = -(-(shared_bytes + reserved) // _SHARED_UNIT) * _SHARED_UNIT
    return int(attributes.get("shared_bytes_per_sm", 0)) // per_block if per_block else 1 << 30
