"""The role of a parameter that was declared without one, from names that are well known in the field."""

from __future__ import annotations

import re

from tuner_daemon.records.roles import ROLES

__all__ = ["ROLES", "role_of"]

_THREADS = r"(block_?size|block_?dim|work_?group(_?size)?|wg_?size|threads?|local_?size|lws|bdim)"
_TILE = r"(block|tile|cta|tb|macro_?tile|mt)(_?size)?"
_WORK = r"(work|tile_?size|(work|elements?|items?|outputs?)_?per_?thread|wpt|coarsen(ing)?|ept|ipt)"

# In order: the first pattern that matches the whole name, lower-cased, decides. ``_?`` lets block_m and blockm be one.
_PATTERNS: tuple[tuple[str, str], ...] = (
    (rf"{_THREADS}(_?[x0])?|num_threads|ntx|tbx?|(num_?|n_?)?warps?(_per_block)?|mdimc|block_?x", "thread_x"),
    (rf"{_THREADS}_?[y1]|nty|tby|ndimc|block_?y", "thread_y"),
    (rf"{_THREADS}_?[z2]|ntz|tbz|kdimc|block_?z", "thread_z"),
    (rf"{_TILE}_?m|bm|mwg|(tile|block)_?rows", "tile_m"),
    (rf"{_TILE}_?n|bn|nwg|(tile|block)_?cols", "tile_n"),
    (rf"{_TILE}_?k|bk|kwg|depth_?u", "tile_k"),
    (rf"{_WORK}(_?[xn])?|tile_?x|thread_?n|tn|nwi|rn|outer_?x", "work_x"),
    (rf"{_WORK}_?[ym]|tile_?y|thread_?m|tm|mwi|rm|outer_?y", "work_y"),
    (rf"{_WORK}_?[zk]|tile_?z|outer_?z|z_?it(erations)?", "work_z"),
    (r"vw[mnkabcd]?|vec\w*|(\w+_)?vector(_?(size|width|type|len(gth)?))?|\w+_vec|simd\w*|vload\w*", "vector_width"),
    (r"\w*unroll\w*|kwi", "unroll"),
    (r"(num_?|n_?)?stages?|pipeline\w*|prefetch\w*|double_?buffer\w*|buffers?", "stages"),
    (r"s[abc]|(use_?)?(shared|shmem|smem|lds|local_?mem)\w*|\w+_(shmem|smem|shared)|cache_[ab]", "shared"),
    (r"(use_?)?(read_?only|ldg|constant|const_?mem|texture)\w*", "read_only"),
    (r"(use_?)?pad\w*|\w+_pad(ding)?", "padding"),
    (r"(\w+_)?(layout|(row|col|column)_?major|trans(posed?)?)(_\w+)?|(use_)?(soa|aos)|mdima|ndimb", "layout"),
    (r"(\w+_)?order(_\w+)?|swizzle\w*|group_?(size_?)?m?|raster\w*|loop_?perm\w*|tile_?stride\w*|str[mn]", "order"),
    (r"split\w*|k_?split\w*|gsu|global_?split_?u|num_?splits?|grid_?stride", "split"),
    (r"(\w+_)?reduc(e|tion)(_\w+)?|(use_?)?(shuffle|atomics?)", "reduction"),
    (r"(use|enable|is|has|with)_\w+", "flag"),
)
_COMPILED = tuple((re.compile(pattern), role) for pattern, role in _PATTERNS)


def role_of(name: str) -> str:
    """A member of ROLES; ``other`` for a name that says nothing."""
    lowered = name.lower()
    return next((role for pattern, role in _COMPILED if pattern.fullmatch(lowered)), "other")
