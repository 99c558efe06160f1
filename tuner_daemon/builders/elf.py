"""The little of ELF64 that is needed to find functions in shared objects and cubins without loading them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_SYMTAB, _DYNSYM = 2, 11
_FUNCTION, _LOCAL = 2, 0
_CUDA_ENTRY = 0x10  # st_other of a __global__ function


def exported_functions(shared_object: bytes) -> list[str]:
    """Names of the functions that a shared object exports. Raises ValueError if it is no ELF64 file."""
    return [name for name, _ in _functions(shared_object, _DYNSYM)]


def kernels(cubin: bytes) -> list[str]:
    """Names (mangled, where C++) of the ``__global__`` functions of a cubin. Raises ValueError if it is no ELF64."""
    return [name for name, other in _functions(cubin, _SYMTAB) if other & _CUDA_ENTRY]


def find_kernel(names: list[str], entry: str) -> str:
    """The symbol of ``entry`` among a cubin's kernels: itself if extern "C", else the one that it is mangled to.

    Raises LookupError, with what there is instead, if none or more than one fits.
    """
    if entry in names:
        return entry
    parts = [part for part in entry.split("::") if part]
    nested = "".join(f"{len(part)}{part}" for part in parts)
    starts = (f"_ZN{nested}E", f"_ZN{nested}I") if len(parts) > 1 else (f"_Z{nested}",)
    fitting = [name for name in names if name.startswith(starts)]
    if len(fitting) == 1:
        return fitting[0]
    held = ", ".join(names[:8]) or "no __global__ function"
    problem = "is ambiguous" if fitting else "is not defined"
    raise LookupError(f"the entry {entry} {problem} in the source; it holds {held}")


def _functions(binary: bytes, table_type: int) -> Iterator[tuple[str, int]]:
    """(name, st_other) of the table's defined functions that are not local."""
    try:
        sections = list(_sections(binary))
        for kind, offset, size, link in sections:
            if kind != table_type:
                continue
            _, names_offset, names_size, _ = sections[link]
            names = binary[names_offset : names_offset + names_size]
            for at in range(offset, offset + size, 24):
                name, info, other, index = struct.unpack_from("<IBBH", binary, at)
                if info & 0xF == _FUNCTION and info >> 4 != _LOCAL and index != 0:
                    yield names[name : names.index(b"\0", name)].decode("utf-8", "replace"), other
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError("damaged ELF file") from error


def _sections(binary: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(type, offset, size, link) of every section."""
    if binary[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a little-endian ELF64 file")
    (table,) = struct.unpack_from("<Q", binary, 40)
    entry_bytes, count = struct.unpack_from("<HH", binary, 58)
    for at in range(table, table + entry_bytes * count, entry_bytes or 64):
        kind, offset, size, link = struct.unpack_from("<4xI16xQQI", binary, at)
        yield kind, offset, size, link
