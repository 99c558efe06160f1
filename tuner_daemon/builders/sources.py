"""Reads a source with the headers it includes from its kernel folder, and refuses what would reach outside.

The screen looks at directives wherever they stand, in comments too, so that no trick with comments, raw strings or
spliced lines hides one. It keeps a CUDA source from quoting the server's files in an error message; C for the ``cpu``
device is a program that runs here, which is why settings must allow that device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tuner_daemon.errors import KernelError
from tuner_daemon.records.kernel import Source

TREE_LIMIT_BYTES = 8 << 20
TREE_LIMIT_FILES = 256

# Every pattern is linear in the text: a source must not be able to hold up intake.
_SPACE = r"[ \t\f\v]*"
_HASH = r"(?:\#|%:|\?\?=)"
_DIRECTIVE = re.compile(
    rf"(?:^|\*/){_SPACE}{_HASH}{_SPACE}(?:(?P<comment>/\*)|"
    rf"(?P<word>include_next|include|import|embed)\b{_SPACE}(?P<operand>[^\n]*))",
    re.MULTILINE,
)
_PROBE = re.compile(rf"\b__has_(?:include|include_next|embed)\b{_SPACE}\({_SPACE}(?P<operand>[^\n]*)")
_OPERAND = re.compile(r'"(?P<quoted>[^"\n]+)"|<(?P<angled>[^>\n]+)>')
_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t\f\v]*\n")
_BETWEEN_STRINGS = re.compile(r'"\s*"')
_ESCAPE = re.compile(r"\\(?:x(?P<hex>[0-9A-Fa-f]+)|(?P<octal>[0-7]{1,3}))")
_ASSEMBLER_FILE = re.compile(r'incbin|"[^"\n]*\.include\b', re.IGNORECASE)


class SourceRefusedError(KernelError):
    """A source reaches, or could reach, outside its kernel folder; or it is too large."""


@dataclass(frozen=True)
class SourceTree:
    """A source file's text and its headers' texts, under the names by which ``#include`` names them."""

    name: str
    text: str
    headers: Mapping[str, str]


def read_source(source: Source, folder: Path) -> SourceTree:
    """Follows includes that the folder can answer; the others are left to the compiler's own folders.

    Raises SourceRefusedError for what the screen refuses, KernelError for a file that cannot be read.
    """
    root = folder.resolve()
    text = _read(source.file)
    headers: dict[str, str] = {}
    found: dict[str, Path] = {}
    left = [(source.file.resolve(), text)]
    total_bytes = len(text)
    while left:
        file, content = left.pop()
        for name in _included_names(file, content):
            header = _inside(name, file, root)
            if header is None:
                continue
            if found.setdefault(name, header) != header:
                raise SourceRefusedError(
                    f"{name!r} names two different headers", file=file, remedy="rename one of them"
                )
            if name not in headers:
                headers[name] = _read(header)
                total_bytes += len(headers[name])
                left.append((header, headers[name]))
        if total_bytes > TREE_LIMIT_BYTES or len(headers) > TREE_LIMIT_FILES:
            raise SourceRefusedError(f"is larger than {TREE_LIMIT_BYTES >> 20} MiB with its headers", file=source.file)
    return SourceTree(source.file.name, text, headers)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(TREE_LIMIT_BYTES + 1)
    except OSError as error:
        raise KernelError(f"cannot be read ({error.strerror})", file=file) from error
    # Whatever bytes a comment holds go to the compiler as they are.
    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _included_names(file: Path, text: str) -> Iterator[str]:
    if "\0" in text:
        raise SourceRefusedError("holds a NUL byte", file=file)
    plain = _SPLICE.sub("", text)
    if any(_ASSEMBLER_FILE.search(_joined_strings(seen)) for seen in (plain, _without_comments(plain))):
        raise SourceRefusedError("uses .incbin or an assembler .include, which reads other files", file=file)
    for probe in _PROBE.finditer(plain):
        _literal_name(probe["operand"], file)
    for directive in _DIRECTIVE.finditer(plain):
        if directive["comment"]:
            raise SourceRefusedError("has a comment between a # and its directive", file=file)
        if directive["word"] == "embed":
            raise SourceRefusedError("uses #embed, which reads other files", file=file)
        yield _literal_name(directive["operand"], file)


def _without_comments(text: str) -> str:
    pieces, at = [], 0
    while (start := text.find("/*", at)) >= 0 and (end := text.find("*/", start + 2)) >= 0:
        pieces.append(text[at:start])
        at = end + 2
    return " ".join([*pieces, text[at:]])


def _joined_strings(text: str) -> str:
    """Adjacent string literals as one, numeric escapes resolved: what the assembler would see."""
    return _ESCAPE.sub(_unescape, _BETWEEN_STRINGS.sub("", text))


def _unescape(escape: re.Match[str]) -> str:
    code = int(escape["hex"], 16) if escape["hex"] else int(escape["octal"], 8)
    return chr(code) if code < 0x80 else " "


def _literal_name(operand: str, file: Path) -> str:
    literal = _OPERAND.match(operand)
    if literal is None:
        raise SourceRefusedError("has an #include that does not name its file literally", file=file)
    name = literal["quoted"] or literal["angled"]
    if name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts:
        remedy = "include headers of the kernel folder only"
        raise SourceRefusedError(f"includes {name!r}, outside its kernel folder", file=file, remedy=remedy)
    return name


def _inside(name: str, includer: Path, root: Path) -> Path | None:
    for base in (includer.parent, root):
        if (base / name).is_file():
            real = (base / name).resolve()
            if not real.is_relative_to(root):
                raise SourceRefusedError(f"includes {name!r}, a link out of its kernel folder", file=includer)
            return real
    return None
