"""Configurations as the cost model sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.learning.quantities import (
    DEVICE_ATTRIBUTES,
    Columns,
    Floats,
    device_numbers,
    launch_numbers,
    problem_numbers,
    role_numbers,
)
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.kernel import Kernel, Value
from tuner_daemon.records.roles import ROLES
from tuner_daemon.records.space import Config
from tuner_daemon.records.task import Task

SLOTS = {role: 4 if role in ("flag", "other") else 2 for role in ROLES}
"""How many parameters of one role are told apart; further ones count in the role's product only."""

_ROLE_NAMES = tuple(
    name for role in ROLES for name in (*(f"{role}_{slot}" for slot in range(SLOTS[role])), f"{role}_product")
)
_LAUNCH_NAMES = (
    "block_x",
    "threads",
    "blocks",
    "shared_bytes",
    "outputs_per_thread",
    "outputs_per_block",
    "flops_per_thread",
    "bytes_per_thread",
    "warp_efficiency",
    "warp_row",
    "registers",
    "resident_blocks",
    "occupancy",
    "waves",
    "tail",
    "blocks_per_sm",
)
_SHAPE_NAMES = (
    "side_m",
    "side_n",
    "tile_area",
    "tile_reuse",
    "tile_aspect",
    "micro_tile",
    "micro_reuse",
    "vector_bytes_per_thread",
    "intensity_over_balance",
    "tile_intensity_over_balance",
    "edge_use",
    "shared_share",
    "instruction_parallelism",
    "in_flight",
)
_PROBLEM_NAMES = (
    "flops",
    "bytes",
    "outputs",
    "intensity",
    "roofline_s",
    "element_bytes",
    *(f"size_{i}" for i in range(4)),
)
_DEVICE_NAMES = (*DEVICE_ATTRIBUTES, "balance", "is_cpu")

FEATURE_NAMES: tuple[str, ...] = (
    *(f"role.{name}" for name in _ROLE_NAMES),
    *(f"launch.{name}" for name in _LAUNCH_NAMES),
    *(f"shape.{name}" for name in _SHAPE_NAMES),
    *(f"problem.{name}" for name in _PROBLEM_NAMES),
    *(f"device.{name}" for name in _DEVICE_NAMES),
)
"""Column names of :func:`features`, in order."""

_MEANING = 2  # raise when a feature's meaning changes under the same name
FEATURE_SCHEMA: str = hashlib.sha256(f"{_MEANING}\n{chr(10).join(FEATURE_NAMES)}".encode()).hexdigest()[:16]
"""Stored with every model: a model made for other features is not used."""


def features(task: Task, configs: Sequence[Config]) -> NDArray[np.float32]:
    """(n, d) float32, columns as in FEATURE_NAMES; NaN where a role or an attribute is absent."""
    columns = task.space.columns(configs)
    return feature_matrix(task.spec.kernel, task.spec.problem, task.device, columns, len(configs))


def feature_matrix(
    kernel: Kernel, problem: Mapping[str, Value], device: DeviceInfo, columns: Columns, n: int
) -> NDArray[np.float32]:
    """As :func:`features`, from parameter columns; needs no space, so rows of a log can be described without one."""
    roles = role_numbers(kernel, columns)
    work = sum((value for axis in "xyz" for value in roles.get(f"work_{axis}", [])), start=np.zeros(n))
    launch = launch_numbers(kernel, problem, device, columns, n, work)
    wanted = problem_numbers(kernel, problem, device)
    numbers = device_numbers(device)
    shape = _shape_numbers(roles, launch, wanted, numbers, n)
    out = np.full((n, len(FEATURE_NAMES)), np.nan, dtype=np.float32)
    _fill_roles(out, roles)
    at = len(_ROLE_NAMES)
    for group, names in ((launch, _LAUNCH_NAMES), (shape, _SHAPE_NAMES)):
        for name in names:
            out[:, at] = group[name]
            at += 1
    out[:, at:] = [*(wanted[name] for name in _PROBLEM_NAMES), *(numbers[name] for name in _DEVICE_NAMES)]
    return out


def _fill_roles(out: NDArray[np.float32], roles: Mapping[str, list[Floats]]) -> None:
    at = 0
    for role in ROLES:
        values = roles.get(role, [])
        for slot, value in enumerate(values[: SLOTS[role]]):
            out[:, at + slot] = value
        if values:
            out[:, at + SLOTS[role]] = np.sum(values, axis=0)
        at += SLOTS[role] + 1


def _shape_numbers(
    roles: Mapping[str, list[Floats]],
    launch: Mapping[str, Floats],
    problem: Mapping[str, float],
    device: Mapping[str, float],
    n: int,
) -> dict[str, Floats]:
    """(n,) each, log2: the block's tile and the thread's tile, what they reuse, and their share of the device."""

    def total(*names: str) -> Floats:
        return sum((value for name in names for value in roles.get(name, [])), start=np.zeros(n))

    side_m = total("tile_m") if "tile_m" in roles else total("thread_y", "work_y")
    side_n = total("tile_n") if "tile_n" in roles else total("thread_x", "work_x")
    work = total("work_x", "work_y", "work_z")
    vector = total("vector_width")
    unroll = np.maximum(total("unroll"), 0.0)
    tile_reuse = _harmonic(side_m, side_n)
    return {
        "side_m": side_m,
        "side_n": side_n,
        "tile_area": side_m + side_n,
        "tile_reuse": tile_reuse,
        "tile_aspect": side_m - side_n,
        "micro_tile": work,
        "micro_reuse": _harmonic(total("work_x"), total("work_y")),
        "vector_bytes_per_thread": vector + problem["element_bytes"],
        "intensity_over_balance": np.full(n, problem["intensity"] - device["balance"]),
        "tile_intensity_over_balance": tile_reuse + 1.0 - problem["element_bytes"] - device["balance"],
        "edge_use": launch["outputs_per_block"] - side_m - side_n,
        "shared_share": launch["shared_bytes"] - device["shared_bytes_per_sm"],
        "instruction_parallelism": vector + unroll + work,
        "in_flight": launch["threads"] + launch["resident_blocks"] + vector + unroll + work,
    }


def _harmonic(a: Floats, b: Floats) -> Floats:
    """log2 of a·b/(a+b) from log2 a and log2 b: operations per element loaded of an a×b tile."""
    return a + b - np.logaddexp2(a, b)
