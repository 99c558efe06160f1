from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tuner_daemon.builders.elf import exported_functions, find_kernel, kernels

ELF64 = b"\x7fELF\x02\x01"


def test_exported_functions_are_those_that_a_library_defines_for_others(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(
        "int other(void); static int s(void) { return other(); } int f(void) { return s(); }\nint v;"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-O0", "-o", "a.so", "a.c"], cwd=tmp_path, check=True)
    names = exported_functions((tmp_path / "a.so").read_bytes())
    assert "f" in names
    assert not {"s", "v", "other"} & set(names)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"text", ELF64 + bytes(20), ELF64 + b"\xff" * 200])
def test_a_damaged_file_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="ELF"):
        exported_functions(content)


def test_a_file_without_sections_holds_nothing() -> None:
    assert kernels(ELF64 + bytes(70)) == []


def test_a_kernel_is_found_by_name_or_by_what_it_is_mangled_to() -> None:
    names = ["plain", "_Z3addPf", "_ZN2ns3addEPf", "_ZN2ns5scaleILi4EEEvPf"]
    assert find_kernel(names, "plain") == "plain"
    assert find_kernel(names, "add") == "_Z3addPf"
    assert find_kernel(names, "ns::add") == "_ZN2ns3addEPf"
    assert find_kernel(names, "ns::scale") == "_ZN2ns5scaleILi4EEEvPf"


def test_a_kernel_that_is_not_there_or_is_overloaded_is_said_to_be_so() -> None:
    with pytest.raises(LookupError, match="ad is not defined in the source; it holds _Z3addPf"):
        find_kernel(["_Z3addPf"], "ad")
    with pytest.raises(LookupError, match="add is ambiguous"):
        find_kernel(["_Z3addPf", "_Z3addPd"], "add")
    with pytest.raises(LookupError, match="holds no __global__ function"):
        find_kernel([], "add")
