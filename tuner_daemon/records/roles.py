"""What a tunable parameter does, as the learned models see it."""

from __future__ import annotations

THREADS_AND_TILES = ("thread_x", "thread_y", "thread_z", "tile_m", "tile_n", "tile_k")
WORK_PER_THREAD = ("work_x", "work_y", "work_z", "vector_width", "unroll", "stages")
MEMORY_PATH = ("shared", "read_only", "padding", "layout", "order")
REDUCTION_AND_REST = ("reduction", "split", "flag", "other")

STAGES = (THREADS_AND_TILES, WORK_PER_THREAD, MEMORY_PATH, REDUCTION_AND_REST)
"""Roles by the stage in which they are decided."""

ROLES: tuple[str, ...] = tuple(role for stage in STAGES for role in stage)
"""Every role, in order of decision."""
