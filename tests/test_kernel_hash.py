"""What the hash of a kernel covers beside its declaration: a change that can change an answer is another kernel."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tests.kernel_folders import SOURCES, write_kernel
from tuner_daemon.intake.kernels import load_kernel


def test_the_hash_covers_the_headers_that_sources_include(tmp_path: Path) -> None:
    folder = write_kernel(tmp_path / "scale")
    (folder / "kernel.c").write_text('#include <math.h>\n#include "sub/a.h"\n')
    (folder / "reference.c").write_text('  # include "r.h"\n#include "of_the_compiler.h"\n')
    (folder / "sub").mkdir()
    (folder / "sub" / "a.h").write_text('#include "b.h"\n')
    names = ("sub/b.h", "r.h")
    for name in (*names, "unused.h"):
        (folder / name).write_text("#define FACTOR 2\n")
    seen = {load_kernel(folder).sha256}
    for name in names:
        (folder / name).write_text("#define FACTOR 3\n")
        seen.add(load_kernel(folder).sha256)
    assert len(seen) == 3
    (folder / "unused.h").write_text("#define FACTOR 3\n")
    assert load_kernel(folder).sha256 in seen


def test_the_hash_of_a_kernel_without_headers_is_that_of_its_named_files(tmp_path: Path) -> None:
    """Logs know kernels by it: looking for headers must not rename those that have none."""
    folder = write_kernel(tmp_path / "scale")
    (folder / "unused.h").write_text("")
    kernel = load_kernel(folder)
    digest = hashlib.sha256(kernel.declaration.encode())
    for name in sorted(SOURCES):
        digest.update(f"\n{name}\n{hashlib.sha256((folder / name).read_bytes()).hexdigest()}".encode())
    assert kernel.sha256 == digest.hexdigest()


def test_the_hash_of_a_recorded_space_covers_its_recordings(tmp_path: Path) -> None:
    (tmp_path / "kernel.toml").write_text('name = "recorded"\n[problem]\n[parameters]\nA = [1, 2]\n')
    (tmp_path / "a.parquet").write_bytes(b"first")
    first = load_kernel(tmp_path).sha256
    (tmp_path / "a.parquet").write_bytes(b"again")
    assert load_kernel(tmp_path).sha256 != first


def test_a_header_outside_the_folder_is_not_looked_at(tmp_path: Path) -> None:
    folder = write_kernel(tmp_path / "scale")
    (tmp_path / "secret.h").write_text("1")
    (folder / "link.h").symlink_to(tmp_path / "secret.h")
    os.mkfifo(folder / "pipe.h")
    (folder / "kernel.c").write_text('#include "../secret.h"\n#include "link.h"\n#include "pipe.h"\n#include MACRO\n')
    first = load_kernel(folder).sha256
    (tmp_path / "secret.h").write_text("2")
    assert load_kernel(folder).sha256 == first
