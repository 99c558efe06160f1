"""Headers for NVRTC: the CUDA toolkit's where it is installed, and small substitutes for the C library's.

NVRTC sees no host headers. Kernels include a few of them for types and limits; these hold what device code can use.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

_TYPES = "".join(
    f"typedef {sign}{base} {prefix}int{bits}_t;\ntypedef {sign}{base} {prefix}int_fast{bits}_t;\n"
    for bits, base in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))
    for sign, prefix in (("signed ", ""), ("unsigned ", "u"))
)
_STD_TYPES = "".join(f"using ::{prefix}int{bits}_t; " for bits in (8, 16, 32, 64) for prefix in ("", "u"))
_STDINT = f"""#pragma once
{_TYPES}typedef signed long intptr_t;
typedef unsigned long uintptr_t;
namespace std {{ {_STD_TYPES}using ::intptr_t; using ::uintptr_t; }}
#define INT8_MAX 127
#define INT16_MAX 32767
#define INT32_MAX 2147483647
#define INT32_MIN (-INT32_MAX - 1)
#define INT64_MAX 9223372036854775807L
#define INT64_MIN (-INT64_MAX - 1)
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define UINT32_MAX 4294967295U
#define UINT64_MAX 18446744073709551615UL
"""
_LIMITS = """#pragma once
#define CHAR_BIT 8
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295U
#define LONG_MAX 9223372036854775807L
#define LLONG_MAX 9223372036854775807LL
#define ULLONG_MAX 18446744073709551615ULL
"""
_FLOAT = """#pragma once
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
"""
_MATH = """#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef M_PI
#define M_PI 3.14159265358979323846
#endif
"""
_EMPTY = "#pragma once\n"  # what device code uses of these is built into NVRTC

SUBSTITUTES = {
    **dict.fromkeys(("stdint.h", "cstdint", "inttypes.h", "cinttypes"), _STDINT),
    **dict.fromkeys(("limits.h", "climits"), _LIMITS),
    **dict.fromkeys(("float.h", "cfloat"), _FLOAT),
    **dict.fromkeys(("math.h", "cmath"), _MATH),
    **dict.fromkeys(("stddef.h", "cstddef", "stdio.h", "cstdio", "stdlib.h", "cstdlib"), _EMPTY),
    **dict.fromkeys(("string.h", "cstring", "assert.h", "cassert", "stdbool.h"), _EMPTY),
}
"""Name in ``#include`` -> text."""

WITHOUT_TOOLKIT = dict.fromkeys(("cuda_runtime.h", "cuda.h", "device_launch_parameters.h"), _EMPTY)
"""Included by habit: everything that device code uses of them is built into NVRTC."""


def include_folders(cuda_home: Path | None) -> list[Path]:
    """Folders with CUDA's headers (cuda_fp16.h, mma.h, …): the given toolkit's, the wheels', or the usual place's."""
    homes = [cuda_home] if cuda_home is not None else [*_wheel_folders(), Path("/usr/local/cuda")]
    for home in homes:
        folder = home / "include"
        if (folder / "cuda_fp16.h").is_file():
            return [folder, *([folder / "cccl"] if (folder / "cccl").is_dir() else [])]
    return []


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return sorted((path for place in places for path in Path(place).iterdir() if path.is_dir()), reverse=True)
