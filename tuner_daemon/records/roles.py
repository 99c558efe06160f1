"""Roles of tunable parameters: the vocabulary that kernels and learned models share."""

from __future__ import annotations

STAGES: tuple[tuple[str, ...], ...] = (
    ("thread_x", "thread_y", "thread_z", "tile_m", "tile_n", "tile_k"),
    ("work_x", "work_y", "work_z", "vector_width", "unroll", "stages"),
    ("shared", "read_only", "padding", "layout", "order"),
    ("reduction", "split", "flag", "other"),
)
"""Thread organisation and tiles -> work per thread -> memory path -> reduction and the rest."""

ROLES: tuple[str, ...] = tuple(role for stage in STAGES for role in stage)
"""Every role, in the order in which a policy decides them."""
