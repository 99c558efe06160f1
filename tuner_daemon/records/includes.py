"""Which headers of its folder a source includes: the one rule by which kernels are hashed, carried and built.

Only what stands literally in an ``#include`` counts, in quotes or angles, and only where the folder can answer it:
first beside the file that includes, then at the top of the folder. Everything else is the compiler's business.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tuner_daemon.errors import KernelError

TREE_LIMIT_BYTES = 8 << 20
TREE_LIMIT_FILES = 256

# Every pattern is linear in the text: a source must not be able to hold up intake.
SPACE = r"[ \t\f\v]*"
_HASH = r"(?:\#|%:|\?\?=)"
_DIRECTIVE = re.compile(
    rf"(?:^|\*/){SPACE}{_HASH}{SPACE}(?:(?P<comment>/\*)|"
    rf"(?P<word>include_next|include|import|embed)\b{SPACE}(?P<operand>[^\n]*))",
    re.MULTILINE,
)
_OPERAND = re.compile(r'"(?P<quoted>[^"\n]+)"|<(?P<angled>[^>\n]+)>')
_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t\f\v]*\n")


class SourceRefusedError(KernelError):
    """A source reaches, or could reach, outside its kernel folder; or it is too large."""


@dataclass(frozen=True)
class Directive:
    """A directive that names a file. ``word`` is empty where a comment hides what it is."""

    word: str
    operand: str

    @property
    def name(self) -> str | None:
        """The file as it is written; None unless it is written literally."""
        literal = _OPERAND.match(self.operand)
        return None if literal is None else literal["quoted"] or literal["angled"]


@dataclass(frozen=True)
class Text:
    """A source or header. ``name`` is what the ``#include`` calls it; for the source, its file's name."""

    name: str
    file: Path  # resolved
    text: str


Names = Callable[[Path, str], Iterator[str]]
"""The names that a file with this text includes. May raise SourceRefusedError."""


def spliced(text: str) -> str:
    """The text with continued lines joined, as the compiler sees them."""
    return _SPLICE.sub("", text)


def directives(plain: str) -> Iterator[Directive]:
    """Wherever they stand, in comments too. ``plain`` is spliced."""
    for found in _DIRECTIVE.finditer(plain):
        yield Directive(found["word"] or "", found["operand"] or "")


def leads_out(name: str) -> bool:
    """Whether a name could reach a file outside the folder."""
    return name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts


def included_names(_: Path, text: str) -> Iterator[str]:
    """The literal names that could lie in the folder; what a builder would refuse is passed over."""
    for directive in directives(spliced(text)):
        name = directive.name
        if name is not None and "\0" not in name and not leads_out(name):
            yield name


def headers(source: Path, folder: Path) -> dict[str, Path]:
    """Name in ``#include`` -> resolved file, for every header of the folder that the source needs.

    Builds see the headers under these names. Raises SourceRefusedError as ``texts`` does.
    """
    return {text.name: text.file for text in list(texts(source, folder))[1:]}


def header_files(source: Path, folder: Path) -> list[Path]:
    """The files of ``headers``, relative to the folder, sorted; two of one name are both there."""
    root = folder.resolve()
    return sorted({text.file.relative_to(root) for text in list(texts(source, folder))[1:]})


def texts(source: Path, folder: Path, names: Names = included_names) -> Iterator[Text]:
    """The source, then its headers, each file once for each name. Links out of the folder are not followed.

    Raises SourceRefusedError for more than 8 MiB or 256 headers, KernelError for a file that cannot be read.
    """
    root = folder.resolve()
    first = Text(source.name, source.resolve(), read(source))
    seen: set[tuple[str, Path]] = set()
    left, total_bytes = [first], len(first.text)
    _check_size(source, total_bytes, 0)
    yield first
    while left:
        includer = left.pop()
        for name in names(includer.file, includer.text):
            header = find(name, includer.file, root)
            if header is None or not header.is_relative_to(root) or (name, header) in seen:
                continue
            seen.add((name, header))
            text = Text(name, header, read(header))
            total_bytes += len(text.text)
            _check_size(source, total_bytes, len(seen))
            left.append(text)
            yield text


def _check_size(source: Path, total_bytes: int, count: int) -> None:
    if total_bytes > TREE_LIMIT_BYTES or count > TREE_LIMIT_FILES:
        limits = f"{TREE_LIMIT_BYTES >> 20} MiB with its headers, or has over {TREE_LIMIT_FILES} of them"
        raise SourceRefusedError(f"is larger than {limits}", file=source, remedy="leave out what it does not need")


def find(name: str, includer: Path, root: Path) -> Path | None:
    """The file that ``name`` is for a compiler which looks nowhere else, links resolved; it may be outside ``root``."""
    for base in (includer.parent, root):
        try:
            if (base / name).is_file():
                return (base / name).resolve()
        except (OSError, ValueError):  # a name that no file can have
            continue
    return None


def read(file: Path) -> str:
    """The text with line ends as ``\\n``; bytes that are no UTF-8 go to the compiler as they are.

    Raises KernelError for what cannot be read or is no regular file; what is above the limit is cut just behind it.
    """
    try:
        with open(file, "rb", opener=_without_waiting) as stream:
            content = stream.read(TREE_LIMIT_BYTES + 1)
    except OSError as error:
        raise KernelError(f"cannot be read ({error.strerror})", file=file) from error
    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _without_waiting(path: str, flags: int) -> int:
    """For open(): a FIFO must not hold us up."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a regular file", path)
    return descriptor
