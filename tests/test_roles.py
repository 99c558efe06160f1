"""Roles of parameters that were declared without one."""

from __future__ import annotations

import pytest

from tuner_daemon.intake.roles import ROLES, role_of
from tuner_daemon.records.roles import STAGES

WELL_KNOWN = {
    "thread_x": [
        "block_size_x",
        "BLOCK_SIZE_X",
        "block_size",
        "num_warps",
        "MDIMC",
        "threads",
        "BLOCK_SIZE",
        "block_x",
    ],
    "thread_y": ["block_size_y", "NDIMC", "block_y", "local_size_1"],
    "thread_z": ["block_size_z", "block_z"],
    "tile_m": ["BM", "BLOCK_M", "MWG", "BLOCK_SIZE_M", "TILE_M"],
    "tile_n": ["BN", "BLOCK_N", "NWG", "BLOCK_SIZE_N", "tile_n"],
    "tile_k": ["BK", "BLOCK_K", "KWG", "BLOCK_SIZE_K"],
    "work_x": ["tile_size_x", "TN", "WORK", "items_per_thread", "WPT", "tile_size", "coarsening"],
    "work_y": ["tile_size_y", "TM", "WPTM"],
    "work_z": ["tile_size_z", "Z_ITERATIONS"],
    "vector_width": ["VWM", "VWN", "VEC", "vector_size", "vec_width", "VECTOR", "simd_width"],
    "unroll": ["unroll", "UNROLL_K", "loop_unroll_factor_channel", "KWI", "INNER_UNROLL_FACTOR0"],
    "stages": ["num_stages", "STAGES", "prefetch", "double_buffer"],
    "shared": ["SA", "SB", "use_shmem", "use_shared_mem", "USE_SMEM", "shared_memory"],
    "read_only": ["read_only", "use_ldg", "USE_CONSTANT_MEMORY", "USE_LDG"],
    "padding": ["use_padding", "PAD", "pad_a", "padding"],
    "layout": ["layout", "LAYOUT_A", "USE_SOA", "row_major", "MDIMA", "transpose_b"],
    "order": ["loop_order", "GROUP_SIZE_M", "swizzle", "tile_stride_x", "STRM"],
    "reduction": ["reduction", "use_shuffle", "REDUCE", "reduction_strategy"],
    "split": ["SPLIT_K", "split_k", "num_splits"],
    "flag": ["use_method", "enable_fusion", "is_fast"],
    "other": ["PRECISION", "banana", "x", "method"],
}


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, names in WELL_KNOWN.items() for name in names])
def test_a_well_known_name_has_its_role(role: str, name: str) -> None:
    assert role_of(name) == role


def test_the_roles_are_those_of_the_field_in_order_of_decision() -> None:
    assert set(WELL_KNOWN) == set(ROLES)
    assert len(set(ROLES)) == len(ROLES)
    assert [role for stage in STAGES for role in stage] == list(ROLES)
    for before, after in (("tile_m", "work_x"), ("stages", "shared"), ("order", "reduction"), ("flag", "other")):
        assert ROLES.index(before) < ROLES.index(after)


def test_any_name_has_some_role_and_long_ones_take_no_time() -> None:
    for name in ("", "_", "é", "use_" * 5000, "a_" * 5000 + "!", "vec" * 5000):
        assert role_of(name) in ROLES
