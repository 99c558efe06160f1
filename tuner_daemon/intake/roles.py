"""The role of a parameter that was declared without one, from names that are well known in the field."""

from __future__ import annotations

import re

from tuner_daemon.records.roles import ROLES

__all__ = ["ROLES", "role_of"]

# In order: the first pattern that matches the whole name, lower-cased, decides. ``_?`` lets block_m and blockm be one.
_PATTERNS: tuple[tuple[str, str], ...] = (
    (
        r"(block_?size|block_?dim|work_?group|wg_?size|threads?|local_?size|lws|num_threads|ntx|tbx?)(_?x|_?0)?",
        "thread_x",
    ),
    (r"(block_?size|block_?dim|work_?group|threads?|local_?size|lws)(_?y|_?1)|nty|tby", "thread_y"),
    (r"(block_?size|block_?dim|work_?group|threads?|local_?size|lws)(_?z|_?2)|ntz|tbz", "thread_z"),
    (r"(num|n)_?warps?|warps?(_per_block)?|mdimc|mdim_?a?|block_?x|bdimx", "thread_x"),
    (r"ndimc|ndim_?b?|block_?y|bdimy", "thread_y"),
    (r"kdimc|block_?z|bdimz", "thread_z"),
    (r"(block|tile|cta|tb|macro_?tile|mt)(_?size)?_?m|bm|mwg|tile_?rows|block_?rows", "tile_m"),
    (r"(block|tile|cta|tb|macro_?tile|mt)(_?size)?_?n|bn|nwg|tile_?cols|block_?cols", "tile_n"),
    (r"(block|tile|cta|tb|macro_?tile|mt)(_?size)?_?k|bk|kwg|depth_?u", "tile_k"),
    (
        r"(tile_?size|work_?per_?thread|elements?_per_thread|items_per_thread|wpt|coarsen(ing)?|ept|ipt)(_?x|_?n)?",
        "work_x",
    ),
    (r"(tile_?size|work_?per_?thread|elements?_per_thread|wpt|coarsen(ing)?|ept)(_?y|_?m)", "work_y"),
    (
        r"(tile_?size|work_?per_?thread|elements?_per_thread|wpt|coarsen(ing)?|ept|z_iterations)(_?z)?|z_?it(erations)?",
        "work_z",
    ),
    (r"tile_?x|thread_?n|tn|wptn|nwi|rn|outer_?x", "work_x"),
    (r"tile_?y|thread_?m|tm|wptm|mwi|rm|outer_?y", "work_y"),
    (r"tile_?z|outer_?z", "work_z"),
    (r"vw[mnkabcd]?|vec\w*|\w*_?vector(_?(size|width|type|len(gth)?))?|\w+_vec|simd\w*|vload\w*", "vector_width"),
    (r"\w*unroll\w*|kwi|inner_unroll_factor\d*|loop_?unroll", "unroll"),
    (r"(num|n)_?stages?|stages?|pipeline\w*|prefetch\w*|double_?buffer\w*|buffers?", "stages"),
    (r"sa|sb|sc|(use_?)?(shared|shmem|smem|lds|local_?mem\w*)\w*|\w+_(shmem|smem|shared)|cache_(a|b)", "shared"),
    (r"(use_?)?(read_?only|ldg|constant|texture|const_?mem\w*)\w*", "read_only"),
    (r"(use_?)?pad(ding|ded)?\w*|\w+_pad(ding)?", "padding"),
    (r"(\w+_)?layout(_\w+)?|(\w+_)?(row|col(umn)?)_?major|(\w+_)?trans(pose[d]?)?(_\w+)?|soa|aos|use_soa", "layout"),
    (
        r"(\w+_)?order(_\w+)?|swizzle\w*|group_?size(_?m)?|group_?m|raster\w*|loop_?perm\w*|tile_?stride_?[xyz]?|str[mn]",
        "order",
    ),
    (r"split_?k?\w*|k_?split\w*|gsu|global_?split_?u|num_?splits?|grid_?stride", "split"),
    (r"(\w+_)?reduc(e|tion)(_\w+)?|use_?shuffle|shuffle|atomics?|use_?atomics?", "reduction"),
    (r"use_\w+|enable_\w+|is_\w+|has_\w+|with_\w+", "flag"),
)
_COMPILED = tuple((re.compile(pattern), role) for pattern, role in _PATTERNS)


def role_of(name: str) -> str:
    """A member of ROLES; ``other`` for a name that says nothing."""
    lowered = name.lower()
    return next((role for pattern, role in _COMPILED if pattern.fullmatch(lowered)), "other")
