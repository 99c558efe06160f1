"""TOML and JSON texts as plain values, with the line of every key; hostile documents are refused early."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner_daemon.errors import InputError

Keys = tuple[str | int, ...]

DEPTH_CAP = 12
_SCAN_DEPTH = 40  # of brackets, before parsing
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)")
_HEADER = re.compile(r"\s*(\[\[?)([^\[\]]+)\]")
_ASSIGNED = re.compile(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")


@dataclass(frozen=True)
class Document:
    """A parsed file: its tables, and where they came from."""

    file: Path
    text: str
    tables: dict[str, Any]
    error: type[InputError]

    def fault(self, keys: Keys, problem: str, *, remedy: str | None = None, near: str | None = None) -> InputError:
        """The error to raise about the value at ``keys``. near: text to look for from that key's line on."""
        return self.error(problem, file=self.file, key=dotted(keys), line=self.line(keys, near), remedy=remedy)

    def line(self, keys: Keys, near: str | None = None) -> int | None:
        """The line of the key, or of the deepest table around it that can be found."""
        is_json = self.text.lstrip().startswith("{")
        found = _json_line(self.text, keys) if is_json else _toml_line(self.text, keys)
        if near:
            lines = self.text.splitlines()
            start = (found or 1) - 1
            return next((i + 1 for i in range(start, len(lines)) if near in lines[i]), found)
        return found


def parse(text: str, file: Path, error: type[InputError]) -> Document:
    """TOML, or JSON if it starts with a brace. Raises ``error`` with the line where it is not either."""
    if not text.strip():
        raise error("is empty", file=file, remedy="see the README for an example")
    _scan(text, file, error)
    is_json = file.suffix == ".json" or text.lstrip().startswith("{")
    try:
        tables = _json(text) if is_json else tomllib.loads(text)
    except json.JSONDecodeError as bad:
        raise error(f"is not JSON: {bad.msg}", file=file, line=bad.lineno, remedy="correct the syntax") from bad
    except tomllib.TOMLDecodeError as bad:
        at = _AT_LINE.search(str(bad))
        reason = _AT_LINE.sub("", str(bad))
        line = int(at.group(1)) if at else text.count("\n") + 1
        raise error(f"is not TOML: {reason}", file=file, line=line, remedy="correct the syntax") from bad
    except _DuplicateKeyError as bad:
        twice = _json_line(text, (str(bad),))
        raise error(f'has the key "{bad}" twice', file=file, line=twice, remedy="remove one") from bad
    except (ValueError, RecursionError) as bad:
        reason = str(bad) if isinstance(bad, _NotFiniteError) else "a number is too long, or the nesting too deep"
        raise error(f"cannot be read: {reason}", file=file, remedy="simplify it") from bad
    if not isinstance(tables, dict):
        raise error("is not a table", file=file, remedy="write keys and values at the top level")
    document = Document(file, text, tables, error)
    _check_values(document)
    return document


def dotted(keys: Sequence[str | int]) -> str:
    """("arguments", 0, "shape") -> "arguments[0].shape"."""
    written = ""
    for key in keys:
        written += f"[{key}]" if isinstance(key, int) else f".{key}" if written else key
    return written


class _DuplicateKeyError(Exception):
    """A JSON object has a key twice."""


class _NotFiniteError(ValueError):
    """A JSON text has NaN or Infinity."""


def _json(text: str) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(items)
        if len(table) < len(items):
            raise _DuplicateKeyError(Counter(key for key, _ in items).most_common(1)[0][0])
        return table

    def constant(name: str) -> float:
        raise _NotFiniteError(f"{name} is not a number here")

    return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)


def _scan(text: str, file: Path, error: type[InputError]) -> None:
    """Refuses what the parsers would take very long, or very deep, to refuse."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[{\]}]", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    dots = max(re.split(r"[{,\[\n]", part)[-1].count(".") for part in re.split(r"=|\]", text))
    if deepest > _SCAN_DEPTH or dots > _SCAN_DEPTH:
        raise error("is nested too deeply", file=file, remedy="tables here are at most three deep")


def _check_values(document: Document) -> None:
    """Raises for values that no key takes: not finite, huge, dates, unprintable text, deep nesting."""
    for keys, value in _walk(document.tables):
        if len(keys) > DEPTH_CAP:
            raise document.fault(keys[:2], "is nested too deeply", remedy="tables here are at most three deep")
        if isinstance(value, float) and not math.isfinite(value):
            raise document.fault(keys, f"is {value}", remedy="want a finite number")
        if isinstance(value, int) and abs(value) > 2**62:
            raise document.fault(keys, "is too large", remedy="integers go up to 2**62")
        for name in value if isinstance(value, dict) else ():
            _check_text(document, keys, name)
        if isinstance(value, str):
            _check_text(document, keys, value)
        elif not isinstance(value, int | float | dict | list):
            raise document.fault(keys, f"is a {type(value).__name__}", remedy="want a number, a truth value or text")


def _check_text(document: Document, keys: Keys, value: str) -> None:
    if any(0xD800 <= ord(c) <= 0xDFFF for c in value):
        raise document.fault(keys, f"has a lone surrogate ({value[:20]!a})", remedy="want valid Unicode text")
    if not value.replace("\n", " ").replace("\t", " ").isprintable():
        raise document.fault(keys, f"has an unprintable character ({value[:20]!a})", remedy="want printable text")


def _walk(tables: dict[str, Any]) -> Iterator[tuple[Keys, Any]]:
    pending: list[tuple[Keys, Any]] = [((), tables)]
    while pending:
        keys, value = pending.pop()
        yield keys, value
        if len(keys) > DEPTH_CAP:
            continue
        if isinstance(value, dict):
            pending.extend(((*keys, name), inner) for name, inner in value.items())
        elif isinstance(value, list):
            pending.extend(((*keys, i), inner) for i, inner in enumerate(value))


def _toml_line(text: str, keys: Keys) -> int | None:
    """The longest prefix of ``keys`` that a header or an assignment names."""
    table: Keys = ()
    counts: dict[str, int] = {}
    best, depth = None, 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            name = header.group(2).strip()
            table = _split(name)
            if header.group(1) == "[[":
                counts[name] = counts.get(name, -1) + 1
                table = (*table, counts[name])
            here = table
        elif assigned := _ASSIGNED.match(line):
            here = (*table, *_split(assigned.group(1)))
        else:
            continue
        if len(here) > depth and keys[: len(here)] == here:
            best, depth = number, len(here)
    return best


def _split(name: str) -> Keys:
    return tuple(part.strip().strip("\"'") for part in name.split("."))


def _json_line(text: str, keys: Keys) -> int | None:
    at, found = 0, False
    for key in keys:
        if isinstance(key, str) and (match := re.compile(re.escape(json.dumps(key)) + r"\s*:").search(text, at)):
            at, found = match.end(), True
    return text[:at].count("\n") + 1 if found else None
