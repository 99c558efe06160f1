from __future__ import annotations

from tuner_daemon.builders.diagnostics import Usage, first_errors, is_passing, ptxas_usage

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1fPf' for 'sm_90a'
ptxas info    : Function properties for _Z1fPf
    40 bytes stack frame, 36 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 4096 bytes smem, 40 bytes cumulative stack size
ptxas info    : Compiling entry function 'g' for 'sm_90a'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
"""


def test_usage_is_that_of_the_kernel_asked_for() -> None:
    assert ptxas_usage(PTXAS, "_Z1fPf") == Usage(255, 4096, 36)
    assert ptxas_usage(PTXAS, "g") == Usage(10, 0, 0)
    assert ptxas_usage(PTXAS, "h") == Usage()


def test_errors_are_told_from_warnings() -> None:
    output = "k.c:1:2: warning: unused\nk.c: In function 'f':\nk.c:3:4: error: no\n2 errors detected in it\n"
    assert first_errors(output) == "k.c:3:4: error: no"
    assert first_errors("\n only\n this \n") == "only\nthis"
    assert first_errors("") == ""
    assert len(first_errors("error " * 10_000)) == 1200


def test_only_errors_of_the_source_are_lasting() -> None:
    assert not is_passing("k.c:3:4: error: 'x' undeclared")
    assert is_passing("cc1: error: out of memory allocating 65536 bytes")
    assert is_passing("gcc: internal compiler error: Segmentation fault signal terminated program cc1")
    assert is_passing("")
