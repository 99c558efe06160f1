from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from tuner_daemon.builders.sources import SourceRefusedError, SourceTree, read_source
from tuner_daemon.errors import KernelError
from tuner_daemon.records.kernel import Source


def tree(folder: Path, text: str, **headers: str) -> SourceTree:
    folder.mkdir(exist_ok=True)
    for name, content in headers.items():
        file = folder / name.replace("__", "/").replace("_h", ".h")
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    (folder / "kernel.cu").write_text(text)
    return read_source(Source("cuda", folder / "kernel.cu", "f"), folder)


def test_headers_of_the_folder_are_followed_and_the_systems_are_left(tmp_path: Path) -> None:
    read = tree(
        tmp_path,
        '#include <math.h>\n  #  include "a.h"\n',
        a_h='#include "sub/b.h"\n',
        sub__b_h='#include "c.h"\n',
        sub__c_h="int c;\n",
        unused_h="int u;\n",
    )
    assert read.headers == {"a.h": '#include "sub/b.h"\n', "sub/b.h": '#include "c.h"\n', "c.h": "int c;\n"}


def test_headers_that_include_each_other_are_read_once(tmp_path: Path) -> None:
    read = tree(tmp_path, '#include "a.h"\n', a_h='#include "b.h"\n', b_h='#include "a.h"\n')
    assert sorted(read.headers) == ["a.h", "b.h"]


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"',
        "#include </etc/passwd>",
        '#include "../secret.h"',
        '#include "sub/../../secret.h"',
        '#include_next "/etc/passwd"',
        '#import "/etc/passwd"',
        '%:include "/etc/passwd"',
        '??=include "/etc/passwd"',
        '#inc\\\nlude "/etc/passwd"',
        '#inc\\  \r\nlude "/etc/passwd"',
        '#/* x */include "/etc/passwd"',
        '#include/* x */"/etc/passwd"',
        '/* x\n */ #include "/etc/passwd"',
        'const char* s = "/*";\n#/* x */include "/etc/passwd"',
        '#define FILE_NAME "/etc/passwd"\n#include FILE_NAME',
        "#embed <kernel.cu>",
        '#if __has_include("/etc/passwd")\n#endif',
        '#if __has_include(/**/"/etc/passwd")\n#endif',
        'asm(".incbin \\"/etc/passwd\\"");',
        'asm(".inc" "bin \\"/etc/passwd\\"");',
        'asm(".inc" /* x */ "bin \\"/etc/passwd\\"");',
        'asm(".\\x69ncbin \\"/etc/passwd\\"");',
        'asm(".INCBIN \\"/etc/passwd\\"");',
        'asm("nop\\n.include \\"/etc/passwd\\"");',
        "int a;\0int b;",
    ],
)
def test_what_reads_other_files_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SourceRefusedError, match=r"kernel\.cu"):
        tree(tmp_path, text)
    with pytest.raises(SourceRefusedError, match=r"a\.h"):
        tree(tmp_path, '#include "a.h"\n', a_h=text)


@pytest.mark.parametrize(
    "text",
    [
        '// #include "/etc/passwd" is not read\n',
        '#include "missing.h"\n',
        "#include <cuda_fp16.h>\n#ifdef __has_include\n#endif\n",
        "struct { int include; } options; int f() { return options.include; }\n",
        'const char* s = "a" "b"; int x = 3 / 2 /* .. */;\n',
        "#pragma unroll 4\n#define STR(x) #x\n#define INCLUDE_ME 1\n",
        "// caf\xe9\n",
    ],
)
def test_harmless_sources_pass(tmp_path: Path, text: str) -> None:
    assert tree(tmp_path, text).text == text


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_not(tmp_path: Path) -> None:
    (tmp_path / "secret.h").write_text("int secret;\n")
    kernel = tmp_path / "kernel"
    kernel.mkdir()
    (kernel / "real.h").write_text("int real;\n")
    (kernel / "inner.h").symlink_to(kernel / "real.h")
    (kernel / "outer.h").symlink_to(tmp_path / "secret.h")
    assert tree(kernel, '#include "inner.h"\n').headers == {"inner.h": "int real;\n"}
    with pytest.raises(SourceRefusedError, match="a link out of its kernel folder"):
        tree(kernel, '#include "outer.h"\n')


def test_one_name_for_two_headers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceRefusedError, match="two different headers"):
        tree(
            tmp_path, '#include "x.h"\n#include "sub/y.h"\n', x_h="", sub__y_h='#include "x.h"\n', sub__x_h="int other;"
        )


def test_bytes_that_are_no_text_reach_the_compiler_unchanged(tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_bytes(b"// caf\xe9\n")
    read = read_source(Source("cuda", tmp_path / "kernel.cu", "f"), tmp_path)
    assert read.text.encode("utf-8", "surrogateescape") == b"// caf\xe9\n"


def test_a_missing_source_is_the_kernels_error(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"kernel\.cu: cannot be read \(No such file"):
        read_source(Source("cuda", tmp_path / "kernel.cu", "f"), tmp_path)


def test_a_tree_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceRefusedError, match="larger than 8 MiB"):
        tree(tmp_path, '#include "a.h"\n', a_h="int x;\n" * (5 << 18))


@pytest.mark.parametrize("piece", ["/*", "*/", "/**/", '"', '" ', "#", "\\ ", '#include"', "*/ "])
def test_no_source_can_hold_up_the_screen(tmp_path: Path, piece: str) -> None:
    started = time.process_time()
    (tmp_path / "kernel.cu").write_text(piece * (1_000_000 // len(piece)))
    with contextlib.suppress(SourceRefusedError):
        read_source(Source("cuda", tmp_path / "kernel.cu", "f"), tmp_path)
    assert time.process_time() - started < 2.0
