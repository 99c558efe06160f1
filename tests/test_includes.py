"""Which headers a source needs: what a build sees is what a kernel's hash covers and what travels with a spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner_daemon.builders.sources import read_source
from tuner_daemon.errors import KernelError
from tuner_daemon.records.includes import SourceRefusedError, header_files, headers
from tuner_daemon.records.kernel import Source


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_h", ".h")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "kernel.c"


def source(folder: Path, text: str, **files: str) -> Path:
    path = write(folder, **files)
    path.write_text(text)
    return path


def test_headers_carry_the_names_by_which_a_build_sees_them(tmp_path: Path) -> None:
    file = source(
        tmp_path,
        '#include <stdio.h>\n#inc\\\nlude "sub/a.h"\n#include <b.h>\n',
        sub__a_h='#include "c.h"\n',
        sub__c_h="int c;\n",
        b_h='#include "sub/a.h"\n',
        unused_h="",
    )
    found = headers(file, tmp_path)
    assert found == {name: tmp_path / path for name, path in (("sub/a.h",) * 2, ("b.h",) * 2, ("c.h", "sub/c.h"))}
    assert set(found) == set(read_source(Source("cpu", file, "f"), tmp_path).headers)
    assert header_files(file, tmp_path) == [Path("b.h"), Path("sub/a.h"), Path("sub/c.h")]


def test_two_headers_of_one_name_are_both_files_of_the_kernel(tmp_path: Path) -> None:
    file = source(tmp_path, '#include "x.h"\n#include "s/y.h"\n', x_h="", s__y_h='#include "x.h"\n', s__x_h="int s;")
    assert header_files(file, tmp_path) == [Path("s/x.h"), Path("s/y.h"), Path("x.h")]


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x.h", "a/../../x.h", "x\\y.h", "n" * 5000, "none.h", "\udcff", "s"]
)
def test_what_the_folder_does_not_hold_is_the_compilers_business(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "kernel"
    (tmp_path / "x.h").write_text("")
    (folder / "s").mkdir(parents=True)
    file = folder / "kernel.c"
    file.write_bytes(f'#include "{name}"\n#include MACRO\n'.encode("utf-8", "surrogateescape"))
    assert headers(file, folder) == {}


def test_a_tree_without_end_is_refused(tmp_path: Path) -> None:
    file = source(tmp_path, '#include "h0.h"\n')
    for n in range(300):
        (tmp_path / f"h{n}.h").write_text(f'#include "h{n + 1}.h"\n')
    with pytest.raises(SourceRefusedError, match="over 256"):
        headers(file, tmp_path)


def test_a_source_that_is_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="cannot be read"):
        headers(tmp_path, tmp_path)
