"""Small kernel folders to load, and to spoil."""

from __future__ import annotations

from pathlib import Path

KERNEL = """\
name = "scale"

[sources]
cuda = "kernel.cu"
cpu = { file = "kernel.c", entry = "scale_cpu" }

[problem]
n = { type = "int", min = 1, max = 1048576 }
alpha = { type = "float", default = 2 }
dtype = { values = ["float32", "float64"], default = "float32" }

[parameters]
block_size_x = [32, 64, 128]
WORK = { values = [1, 2, 4], role = "work_x" }
LAYOUT = ["row", "col"]
USE_LDG = [true, false]

[constraints]
all = [
    "n % WORK == 0",
    "LAYOUT == 'row' or WORK == 1",
]

[launch]
block = "block_size_x"
grid = ["ceil_div(n, block_size_x * WORK)"]

[[arguments]]
name = "x"
kind = "input"
dtype = "dtype"
shape = ["n"]

[[arguments]]
name = "y"
kind = "output"
dtype = "dtype"
shape = ["n"]

[[arguments]]
name = "n"
kind = "scalar"

[[arguments]]
name = "alpha"
kind = "scalar"

[reference]
cuda = "reference.cu"
cpu = "reference.c"

[baseline]
config = { block_size_x = 64, WORK = 1, LAYOUT = "row", USE_LDG = false }

[work]
flops = "n"
bytes = "8 * n"
"""

SOURCES = ("kernel.cu", "kernel.c", "reference.cu", "reference.c")


def write_kernel(folder: Path, text: str = KERNEL, *, without: tuple[str, ...] = ()) -> Path:
    """The folder with ``text`` as its kernel.toml, and its sources except those named. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.toml").write_text(text)
    for name in SOURCES:
        if name not in without:
            (folder / name).write_text(f"// {name}\n")
    return folder


def changed(old: str, new: str, text: str = KERNEL) -> str:
    """The text with one passage replaced; the passage must be there, or the test would test nothing."""
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)
