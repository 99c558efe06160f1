"""Specs that a stranger might drop: some two hundred made by hand, and as many mutants as are wanted."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.kernel_folders import KERNEL
from tests.soak.attacks import BOMBS, CALLS

TEMPLATE = (
    'template = "matmul"\n[problem]\nm = 64\nn = 64\nk = 64\ndtype = "float32"\n'
    '[budget]\nmeasurements = 8\nseconds = 20.5\n[device]\nkind = "cpu"\n[options]\nforce = false\npriority = 3\n'
)
INLINE = KERNEL.replace(
    'n = { type = "int", min = 1, max = 1048576 }\nalpha = { type = "float", default = 2 }\n'
    'dtype = { values = ["float32", "float64"], default = "float32" }',
    'n = 64\nalpha = 2.5\ndtype = "float32"',
)
JSON = json.dumps({"template": "matmul", "problem": {"m": 64, "n": 64, "k": 64}, "device": {"kind": "cpu"}}, indent=1)
GOOD = (TEMPLATE, INLINE, JSON)
"""Good but for one thing: the daemon that gets them does not allow the device kind ``cpu``, which they all mean."""

TOKENS = (
    *("nan", "-inf", "1e999", "-1", "0", "9223372036854775808", "4611686018427387905", "true", "0x7f", "1_000"),
    *('""', "[]", "{}", "[[]]", "{a={a={}}}", "1979-05-27", "'''", '"""', "#", "=", "\n", "\r", "\t", "\0", ","),
    *("\ufeff", "\ud7ff", "\u202e", "\U0001f680", "\\u0000", "\\ud800", '"\\u001b[2J"', "\\N{DIGIT ONE}", "é"),
    *('"../../../etc/passwd"', '"/etc/passwd"', '"/dev/zero"', '"..%2f"', '"-ccbin=/bin/sh"', '"--help"', '"|id"'),
    *('"$(touch pwned)"', '"`id`"', '"${HOME}"', '"%n%s"', '"{{7*7}}"', '"{0.__class__}"', '"a\\" -DX=\\""', '"; rm"'),
    *("[sources]\n", "[[arguments]]\n", "[reference]\n", 'kernel = "mine"\n', 'fill = "../x.npy"\n', "[compiler]\n"),
    *("[" * 50, "{" * 50, "a." * 50, "9" * 5000, "x" * 5000, '"' + "y" * 5000 + '"', "\n" * 5000, "[a]\n" * 500),
)

VALUES = (*TOKENS, *(json.dumps(text) for text in (*CALLS, *BOMBS)))


def mutants(rng: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """(name, content). Most are wrong, some are not."""
    for n in range(count):
        text = rng.choice(GOOD)
        for _ in range(rng.randint(1, 4)):
            text = rng.choice(MUTATIONS)(text, rng)
        content = bytearray(text.encode("utf-8", "surrogatepass"))
        if n % 5 == 0:
            for _ in range(rng.randint(1, 8)):
                content[rng.randrange(len(content) or 1) :][:1] = bytes([rng.randrange(256)])
                if content:
                    content[rng.randrange(len(content))] = rng.randrange(256)
        yield f"mutant-{n:05}.{rng.choice(['toml', 'json'])}", bytes(content)


def _cut(text: str, rng: random.Random) -> str:
    start = rng.randint(0, len(text))
    return text[:start] + text[rng.randint(start, min(len(text), start + 60)) :]


def _insert(text: str, rng: random.Random) -> str:
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(TOKENS) + text[at:]


def _exchange(text: str, rng: random.Random) -> str:
    """Another value for a key."""
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    mark = "=" if "=" in lines[at] else ":"
    lines[at] = f"{lines[at].partition(mark)[0]}{mark} {rng.choice(VALUES)}"
    return "\n".join(lines)


def _repeat(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return "\n".join(lines)


def _splice(text: str, rng: random.Random) -> str:
    other = rng.choice(GOOD)
    return text[: rng.randint(0, len(text))] + other[rng.randint(0, len(other)) :]


def _truncate(text: str, rng: random.Random) -> str:
    return text[: rng.randint(0, len(text))]


MUTATIONS = (_cut, _insert, _insert, _exchange, _exchange, _exchange, _repeat, _splice, _truncate)

Make = Callable[[Path], None]


def handmade(secret: Path) -> dict[str, Make]:
    """Name -> what puts it there. ``secret``: a file outside that nobody may open."""
    made: dict[str, Make] = {}
    for number, text in enumerate((*CALLS, *BOMBS)):
        inline = INLINE.replace('"n % WORK == 0"', json.dumps(text))
        made[f"attack-{number}.toml"] = partial(_write, content=inline.encode("utf-8", "surrogatepass"))
    for number, place in enumerate(_places(secret)):
        made[f"path-{number}.toml"] = partial(_write, content=place.encode())
    return {**made, **_special(secret)}


def _places(secret: Path) -> Iterator[str]:
    """Every place that takes a file's name, with names that lead out."""
    names = (str(secret), f"../{secret.name}", f"../../../../../../..{secret}", "/dev/zero", "/proc/self/environ", "-")
    for name in (*names, "a/../../x", "..", ".", "/", "~/.ssh/id_rsa", "file:///etc/passwd", "\\\\host\\share", "con"):
        text = json.dumps(name)
        yield INLINE.replace('"kernel.cu"', text)
        yield INLINE.replace('"kernel.c"', text)
        yield INLINE.replace('"reference.c"', text)
        yield TEMPLATE.replace('"matmul"', text)
        yield TEMPLATE.replace('template = "matmul"', f"kernel = {text}")


def _special(secret: Path) -> dict[str, Make]:
    def linked_kernel(path: Path) -> None:
        path.mkdir()
        (path / "spec.toml").write_text(INLINE)
        (path / "kernel.c").symlink_to(secret)

    def linked_folder(path: Path) -> None:
        path.symlink_to(secret.parent)

    def sparse_sources(path: Path) -> None:
        path.mkdir()
        (path / "spec.toml").write_text(INLINE)
        for name in ("kernel.c", "kernel.cu", "reference.c", "reference.cu"):
            (path / name).write_text("/* */\n")
            os.truncate(path / name, 1 << 30)

    def sparse_beside(path: Path) -> None:
        beside = path.parent / "big.c"
        beside.touch()
        os.truncate(beside, 1 << 30)
        path.write_text(INLINE.replace('"kernel.c"', '"big.c"'))

    def deep(path: Path) -> None:
        (path / "/".join(["d"] * 400)).mkdir(parents=True)

    def crowded(path: Path) -> None:
        path.mkdir()
        for n in range(300):
            (path / f"{n}.txt").touch()

    def listening(path: Path) -> None:
        here = os.open(path.parent, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)

    def includes(path: Path) -> None:
        path.mkdir()
        (path / "spec.toml").write_text(INLINE)
        for name in ("kernel.c", "kernel.cu", "reference.c", "reference.cu"):
            (path / name).write_text(
                f'#include "{secret}"\n#include "../{secret.name}"\n__asm__(".incbin \\"{secret}\\"");'
            )

    return {
        "fifo.toml": os.mkfifo,
        "socket.toml": listening,
        "device.toml": lambda path: path.symlink_to("/dev/zero"),
        "link.toml": lambda path: path.symlink_to(secret),
        "linked-folder": linked_folder,
        "linked-kernel": linked_kernel,
        "sparse-sources": sparse_sources,
        "sparse-beside.toml": sparse_beside,
        "deep": deep,
        "crowded": crowded,
        "includes": includes,
        **_odd_texts(),
    }


def _odd_texts() -> dict[str, Make]:
    return {
        "bom.toml": partial(_write, content=b"\xef\xbb\xbf" + TEMPLATE.encode()),
        "two-boms.toml": partial(_write, content=b"\xef\xbb\xbf" * 2 + TEMPLATE.encode()),
        "-rf.toml": partial(_write, content=TEMPLATE.encode()),
        "--help.json": partial(_write, content=b"{}"),
        "$(touch pwned).toml": partial(_write, content=b"x"),
        "a\nb.toml": partial(_write, content=b"x"),
        "\u202egnp.toml": partial(_write, content=b"x"),
        "n" * 250 + ".toml": partial(_write, content=b"x"),
        "no-suffix": partial(_write, content=TEMPLATE.encode()),
        "program.py": partial(_write, content=b"import os"),
    }


def _write(path: Path, *, content: bytes) -> None:
    path.write_bytes(content)
