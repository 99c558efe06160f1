"""Reads a source with the headers it includes from its kernel folder, and refuses what would reach outside.

The screen looks at directives wherever they stand, in comments too, so that no trick with comments, raw strings or
spliced lines hides one. It keeps a CUDA source from quoting the server's files in an error message; C for the ``cpu``
device is a program that runs here, which is why settings must allow that device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner_daemon.records import includes
from tuner_daemon.records.includes import SPACE, Directive, SourceRefusedError
from tuner_daemon.records.kernel import Source

__all__ = ["SourceRefusedError", "SourceTree", "read_source"]

# Every pattern is linear in the text: a source must not be able to hold up intake.
_PROBE = re.compile(rf"\b__has_(?:include|include_next|embed)\b{SPACE}\({SPACE}(?P<operand>[^\n]*)")
_BETWEEN_STRINGS = re.compile(r'"\s*"')
_ESCAPE = re.compile(r"\\(?:x(?P<hex>[0-9A-Fa-f]+)|(?P<octal>[0-7]{1,3}))")
_ASSEMBLER_FILE = re.compile(r'incbin|"[^"\n]*\.include\b', re.IGNORECASE)


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

    def screened(file: Path, text: str) -> Iterator[str]:
        for name in _included_names(file, text):
            header = includes.find(name, file, root)
            if header is not None and not header.is_relative_to(root):
                raise SourceRefusedError(f"includes {name!r}, a link out of its kernel folder", file=file)
            yield name

    texts = includes.texts(source.file, folder, screened)
    first = next(texts)
    headers: dict[str, includes.Text] = {}
    for text in texts:
        if headers.setdefault(text.name, text).file != text.file:
            raise SourceRefusedError(
                f"{text.name!r} names two different headers", file=source.file, remedy="rename one of them"
            )
    return SourceTree(first.name, first.text, {name: header.text for name, header in headers.items()})


def _included_names(file: Path, text: str) -> Iterator[str]:
    if "\0" in text:
        raise SourceRefusedError("holds a NUL byte", file=file)
    plain = includes.spliced(text)
    if any(_ASSEMBLER_FILE.search(_joined_strings(seen)) for seen in (plain, _without_comments(plain))):
        raise SourceRefusedError("uses .incbin or an assembler .include, which reads other files", file=file)
    for probe in _PROBE.finditer(plain):
        _literal_name(Directive("include", probe["operand"]), file)
    for directive in includes.directives(plain):
        if not directive.word:
            raise SourceRefusedError("has a comment between a # and its directive", file=file)
        if directive.word == "embed":
            raise SourceRefusedError("uses #embed, which reads other files", file=file)
        yield _literal_name(directive, file)


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


def _literal_name(directive: Directive, file: Path) -> str:
    name = directive.name
    if name is None:
        raise SourceRefusedError("has an #include that does not name its file literally", file=file)
    if includes.leads_out(name):
        remedy = "include headers of the kernel folder only"
        raise SourceRefusedError(f"includes {name!r}, outside its kernel folder", file=file, remedy=remedy)
    return name
