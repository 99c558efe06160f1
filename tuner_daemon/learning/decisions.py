"""A configuration as a sequence of decisions, one parameter at a time: the policy's states and actions.

Parameters are decided in role order: thread organisation and tiles, work per thread, memory path, the rest. A state
describes device, problem, what has been decided so far per role, and the parameter under decision; an action is one
number in [-1, 1]. Neither depends on the kernel, so that one policy serves all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.learning.quantities import Floats, device_numbers, problem_numbers, value_numbers
from tuner_daemon.records.device import DeviceInfo
from tuner_daemon.records.kernel import Kernel, Parameter, Value
from tuner_daemon.records.roles import ROLES, STAGES

ROLE_LOG2_RANGE: Mapping[str, tuple[float, float]] = {
    "thread_x": (0.0, 10.0),
    "thread_y": (0.0, 8.0),
    "thread_z": (0.0, 6.0),
    "tile_m": (2.0, 9.0),
    "tile_n": (2.0, 9.0),
    "tile_k": (2.0, 8.0),
    "work_x": (0.0, 5.0),
    "work_y": (0.0, 5.0),
    "work_z": (0.0, 5.0),
    "vector_width": (0.0, 4.0),
    "unroll": (-1.0, 6.0),
    "stages": (0.0, 3.0),
}
"""Sizes share one scale per role, so that an action means the same value whatever a kernel's list is."""

_CONTEXT = (
    "is_cpu",
    "balance",
    "sm_count",
    "max_threads_per_sm",
    "shared_bytes_per_sm",
    "registers_per_sm",
    "l2_bytes",
)
_DEVICE = (*_CONTEXT, "warp_size", "peak_flops", "peak_bytes_per_s", "clock_hz", "compute_capability", "vector_bytes")
_PROBLEM = ("flops", "bytes", "outputs", "intensity", "roofline_s", "element_bytes", "size_0", "size_1", "size_2")
_DECIDING = ("values", "low", "high", "slot", "progress")
_PARTIAL = ("threads", "tile", "work", "tile_per_thread", "memory")

STATE_NAMES: tuple[str, ...] = (
    *(f"device.{name}" for name in _DEVICE),
    *(f"problem.{name}" for name in _PROBLEM),
    *(f"{part}.{role}" for part in ("parameters", "decided", "chosen", "options", "deciding") for role in ROLES),
    *(f"deciding.{name}" for name in _DECIDING),
    *(f"stage.{stage}" for stage in range(len(STAGES))),
    *(f"partial.{name}" for name in _PARTIAL),
)
STATE_SIZE = len(STATE_NAMES)

_MEANING = 1  # raise when a state's or an action's meaning changes under the same names
STATE_SCHEMA: str = hashlib.sha256(
    f"{_MEANING}\n{chr(10).join(STATE_NAMES)}\n{sorted(ROLE_LOG2_RANGE.items())}".encode()
).hexdigest()[:16]

_AT = {name: at for at, name in enumerate(STATE_NAMES)}
_STAGE = {role: stage for stage, roles in enumerate(STAGES) for role in roles}


def action_values(parameter: Parameter) -> Floats:
    """(v,) action in [-1, 1] of each declared value: log2 on the role's scale for sizes, rank for the rest."""
    count = len(parameter.values)
    ranks = np.linspace(-1.0, 1.0, count) if count > 1 else np.zeros(1)
    scale = ROLE_LOG2_RANGE.get(parameter.role)
    if scale is None or any(isinstance(value, str) for value in parameter.values):
        return ranks
    numbers = option_numbers(parameter)
    low, high = min(scale[0], float(numbers.min())), max(scale[1], float(numbers.max()))
    return 2.0 * (numbers - low) / (high - low) - 1.0


def option_numbers(parameter: Parameter) -> Floats:
    """(v,) declared values on a log2 scale, as features have them."""
    if any(isinstance(value, str) for value in parameter.values):
        return np.arange(len(parameter.values), dtype=np.float64)
    return value_numbers(parameter, np.array(parameter.values, dtype=np.float64))


@dataclass(frozen=True)
class Decision:
    """One parameter, and what is precomputed of it. ``column`` is its place in the space's order."""

    parameter: Parameter
    role: str
    column: int
    slot: int  # how many parameters of its role come before it
    actions: Floats
    numbers: Floats


class Episode:
    """The decisions of one kernel at one problem on one device. Immutable."""

    def __init__(self, kernel: Kernel, problem: Mapping[str, Value], device: DeviceInfo) -> None:
        ranked = sorted(enumerate(kernel.parameters), key=lambda item: ROLES.index(_role(item[1])))
        slots: dict[str, int] = {}
        decisions = []
        for column, parameter in ranked:
            role = _role(parameter)
            slot = slots.setdefault(role, 0)
            slots[role] += 1
            numbers = option_numbers(parameter)
            decisions.append(Decision(parameter, role, column, slot, action_values(parameter), numbers))
        self.decisions: tuple[Decision, ...] = tuple(decisions)
        self._start = self._start_state(device_numbers(device), problem_numbers(kernel, problem, device))

    @property
    def order(self) -> tuple[str, ...]:
        """Parameter names in the order of decision."""
        return tuple(decision.parameter.name for decision in self.decisions)

    def start(self, n: int) -> NDArray[np.float32]:
        """(n, STATE_SIZE) states before the first decision."""
        states = np.repeat(self._start[None, :], n, axis=0)
        self._point_at(states, 0)
        return states

    def step(self, states: NDArray[np.float32], decided: int, picks: NDArray[np.integer]) -> NDArray[np.float32]:
        """(n, STATE_SIZE) new states after decision ``decided`` took (n,) value indices."""
        decision = self.decisions[decided]
        after = states.copy()
        role, number = decision.role, decision.numbers[picks].astype(np.float32) / 10.0
        after[:, _AT[f"decided.{role}"]] += 1.0
        after[:, _AT[f"chosen.{role}"]] += number
        for name, sign in _PARTIALS_OF.get(role, ()):
            after[:, _AT[f"partial.{name}"]] += sign * number
        if decided + 1 < len(self.decisions):
            self._point_at(after, decided + 1)
        return after

    def states_of(self, indices: NDArray[np.integer]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(n, t, STATE_SIZE) states and (n, t) actions of (n, t) value indices, which are in the space's order."""
        states, actions = [self.start(len(indices))], []
        for decided, decision in enumerate(self.decisions):
            picks = indices[:, decision.column]
            actions.append(decision.actions[picks].astype(np.float32))
            if decided + 1 < len(self.decisions):
                states.append(self.step(states[-1], decided, picks))
        return np.stack(states, axis=1), np.stack(actions, axis=1)

    def _start_state(self, device: Mapping[str, float], problem: Mapping[str, float]) -> NDArray[np.float32]:
        state = np.zeros(STATE_SIZE, dtype=np.float32)
        state[: len(_DEVICE)] = [device[name] / 10.0 for name in _DEVICE]
        state[len(_DEVICE) : len(_DEVICE) + len(_PROBLEM)] = [problem[name] / 10.0 for name in _PROBLEM]
        for decision in self.decisions:
            state[_AT[f"parameters.{decision.role}"]] += 1.0
            state[_AT[f"options.{decision.role}"]] += np.log2(len(decision.numbers)) / 4.0
        return np.nan_to_num(state)

    def _point_at(self, states: NDArray[np.float32], decided: int) -> None:
        decision = self.decisions[decided]
        for role in ROLES:
            states[:, _AT[f"deciding.{role}"]] = float(role == decision.role)
        for stage in range(len(STAGES)):
            states[:, _AT[f"stage.{stage}"]] = float(stage == _STAGE[decision.role])
        numbers = decision.numbers
        told = (
            np.log2(len(numbers)) / 4.0,
            numbers.min() / 10.0,
            numbers.max() / 10.0,
            float(decision.slot),
            decided / len(self.decisions),
        )
        for name, value in zip(_DECIDING, told, strict=True):
            states[:, _AT[f"deciding.{name}"]] = value


def _role(parameter: Parameter) -> str:
    return parameter.role if parameter.role in ROLES else "other"


def _partials() -> dict[str, Sequence[tuple[str, float]]]:
    """Which running products a role's choice enters, and with which sign of its logarithm."""
    partials: dict[str, Sequence[tuple[str, float]]] = {}
    for role in ("thread_x", "thread_y", "thread_z"):
        partials[role] = (("threads", 1.0), ("tile_per_thread", -1.0))
    for role in ("tile_m", "tile_n"):
        partials[role] = (("tile", 1.0), ("tile_per_thread", 1.0), ("memory", 1.0))
    partials["tile_k"] = (("memory", 1.0),)
    for role in ("work_x", "work_y", "work_z"):
        partials[role] = (("work", 1.0), ("memory", 1.0))
    return partials


_PARTIALS_OF = _partials()
