"""Whitelisted, vectorised expressions of kernel.toml (constraints, launch geometry, shapes, work).

Python's syntax and Python's meaning for a small part of the language: numbers, names, ``+ - * / // %``, unary minus,
comparisons (also chained), ``and``, ``or``, ``not``, ``min``, ``max``, ``abs``, ``ceil_div``, and text constants
compared with ``==`` or ``!=``. ``and`` and ``or`` give truth values. Nothing is ever compiled or executed: the syntax
tree is walked, once per value or once per array.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.errors import ExpressionError
from tuner_daemon.records._arrays import Vector, array_value
from tuner_daemon.records._intervals import Interval, interval_value
from tuner_daemon.records._scalars import FUNCTIONS, MAGNITUDE_CAP, scalar_value

__all__ = ["DEPTH_CAP", "FUNCTIONS", "LENGTH_CAP", "MAGNITUDE_CAP", "Expression", "Number"]

Number = int | float | bool

LENGTH_CAP = 1000
DEPTH_CAP = 60

_STRINGS = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_NUMBER_LIKE = re.compile(r"(?<!\w)\.?\d[\w.]*")
_NUMBER = re.compile(r"(\d[\d_]*\.?\d*|\.\d+)([eE]\d*)?")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ALLOWED = "numbers, names, + - * / // %, comparisons, and, or, not, min, max, abs and ceil_div"


@dataclass(frozen=True)
class Expression:
    """A parsed expression. Equality and hash are those of ``text``."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Raises ExpressionError for anything the whitelist refuses."""
        expression = cls(text)
        _ = expression._parsed
        return expression

    @property
    def names(self) -> frozenset[str]:
        """Names the expression reads."""
        return self._parsed[1]

    @cached_property
    def _parsed(self) -> tuple[ast.expr, frozenset[str]]:
        return _parsed(self.text)

    def __getstate__(self) -> dict[str, str]:
        return {"text": self.text}

    def evaluate(self, names: Mapping[str, Number | str]) -> Number:
        """One value, as Python would give. Raises ExpressionError: unknown name, division by zero, too large.

        Integers stay exact up to 2**62 in magnitude; anything beyond, and any float that is not finite, is refused.
        """
        try:
            value = scalar_value(self._parsed[0], names)
        except _Undefined as error:
            raise self._error(error, names) from error
        if isinstance(value, str):
            raise ExpressionError(f'"{self.text}" is text, want a number')
        return value

    def evaluate_arrays(self, names: Mapping[str, NDArray[np.generic] | Number | str]) -> NDArray[np.generic]:
        """Broadcast over arrays; undefined elements (division by zero, too large) are masked: see ``holds``.

        The result has the broadcast shape of all the arrays given, also of those the expression does not read. It is
        a plain array where every element is defined, else a ``numpy.ma.MaskedArray``. Above 2**53, integers divided
        by ``/`` or compared with floats are rounded to float64 first. Raises ExpressionError: unknown name, text used
        as a number.
        """
        values, defined = self._vector(names)
        return values if defined is None else np.ma.MaskedArray(values, mask=~defined)

    def holds(self, names: Mapping[str, NDArray[np.generic] | Number | str]) -> NDArray[np.bool_]:
        """As a constraint: true where defined and truthy. Shape as for ``evaluate_arrays``."""
        values, defined = self._vector(names)
        truthy = values != 0 if values.dtype != np.bool_ else values.astype(np.bool_, copy=False)
        return np.asarray(truthy if defined is None else truthy & defined, dtype=np.bool_)

    def may_hold(self, bounds: Mapping[str, Interval]) -> NDArray[np.bool_]:
        """False only where no values within the bounds make the constraint hold. bounds: for every name it reads."""
        with np.errstate(all="ignore"):
            value = interval_value(self._parsed[0], bounds)
        return np.asarray((value.low != 0) | (value.high != 0), dtype=np.bool_)

    def conjuncts(self) -> tuple[Expression, ...]:
        """Expressions that hold together exactly where this one does: its parts, where it is an ``and``."""
        tree = self._parsed[0]
        if not (isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And)):
            return (self,)
        try:
            parts = [Expression.parse(ast.unparse(part)) for part in tree.values]
        except ExpressionError:  # unparsed text may be longer than what was written
            return (self,)
        return tuple(small for part in parts for small in part.conjuncts())

    def _vector(
        self, names: Mapping[str, NDArray[np.generic] | Number | str]
    ) -> tuple[NDArray[np.generic], NDArray[np.bool_] | None]:
        try:
            vector: Vector = array_value(self._parsed[0], names)
        except _Undefined as error:
            raise self._error(error, names) from error
        if vector.values.dtype.kind == "U":
            raise ExpressionError(f'"{self.text}" is text, want a number')
        shape = np.broadcast_shapes(*(np.shape(value) for value in names.values()))
        values = np.array(np.broadcast_to(vector.values, shape))
        if vector.defined is None or bool(np.all(vector.defined)):
            return values, None
        return values, np.array(np.broadcast_to(vector.defined, shape), dtype=np.bool_)

    def _error(self, error: Exception, names: Iterable[str]) -> ExpressionError:
        if isinstance(error, KeyError):
            unknown = str(error.args[0])
            known = list(names)
            near = difflib.get_close_matches(unknown, known, n=1)
            remedy = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(known) or 'none'}"
            return ExpressionError(f'"{self.text}" reads the unknown name "{unknown}"', remedy=remedy)
        if isinstance(error, ZeroDivisionError):
            return ExpressionError(f'"{self.text}" divides by zero')
        too_large = isinstance(error, OverflowError)
        return ExpressionError(f'"{self.text}" {"is too large (beyond 2**62)" if too_large else error}')


_Undefined = (KeyError, ZeroDivisionError, OverflowError, TypeError)


# Trees live as long as their expressions. This only spares parsing a template anew for each spec; it is small because
# strangers fill it: a tree may be a hundred times as large as its text.
@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[ast.expr, frozenset[str]]:
    """The checked syntax tree and the names in it. Raises ExpressionError."""
    if len(text) > LENGTH_CAP:
        raise ExpressionError(
            f'"{text[:20]}…" has {len(text)} characters', remedy=f"write it in {LENGTH_CAP} or split it"
        )
    _check_characters(text)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "too deeply nested"
        raise ExpressionError(f"{_shown(text)} is not an expression ({reason})", remedy=f"use {_ALLOWED}") from error
    names: set[str] = set()
    pending: list[tuple[ast.expr, int]] = [(tree, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > DEPTH_CAP:
            raise ExpressionError(f"{_shown(text)} is nested too deeply", remedy=f"keep it under {DEPTH_CAP} levels")
        if isinstance(node, ast.Name):
            names.add(node.id)
        pending.extend((child, depth + 1) for child in _children(node, text))
    return tree, frozenset(names)


def _check_characters(text: str) -> None:
    """Keeps from Python's parser what it would warn about or reinterpret (escapes, ``1and 2``, look-alike letters)."""
    bare = _STRINGS.sub('""', text)
    glued = next((m.group() for m in _NUMBER_LIKE.finditer(bare) if not _NUMBER.fullmatch(m.group())), None)
    if glued is not None:
        raise ExpressionError(f'{_shown(text)} has "{glued}", want a number', remedy="put a space after a number")
    if not bare.isascii() or "\\" in text or "\0" in text:
        raise ExpressionError(f"{_shown(text)} has a character that is not allowed", remedy=f"use {_ALLOWED}")


def _shown(text: str) -> str:
    """The expression as an error message may print it."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")


def _children(node: ast.expr, text: str) -> list[ast.expr]:
    """Sub-expressions of an allowed node. Raises ExpressionError for any other."""
    match node:
        case ast.Name():
            return []
        case ast.Constant(value=value) if isinstance(value, int | float):
            if abs(value) > MAGNITUDE_CAP if isinstance(value, int) else not abs(value) < float("inf"):
                raise ExpressionError(f"{_shown(text)} has a number that is too large", remedy="stay below 2**62")
            return []
        case ast.BinOp(op=op, left=left, right=right) if isinstance(op, _OPERATORS):
            return [left, right]
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            return [operand]
        case ast.BoolOp(values=values):
            return values
        case ast.Compare(ops=ops) if all(isinstance(op, _COMPARISONS) for op in ops):
            return _compared(node, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            _check_arguments(name, args, text)
            return args
        case ast.Constant(value=str()):
            raise ExpressionError(f"{_shown(text)} has text", remedy="text can only be compared with == or !=")
        case _:
            what = type(node.op if isinstance(node, ast.BinOp | ast.UnaryOp) else node).__name__
            raise ExpressionError(f"{_shown(text)} uses {what}, which is not allowed", remedy=f"use {_ALLOWED}")


def _compared(node: ast.Compare, text: str) -> list[ast.expr]:
    """Operands of a comparison, without its text constants where ``==`` or ``!=`` allows them."""
    operands = [node.left, *node.comparators]
    constants = [o for o in operands if isinstance(o, ast.Constant) and isinstance(o.value, str)]
    if constants and not all(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
        raise ExpressionError(f"{_shown(text)} orders text", remedy="text can only be compared with == or !=")
    return [operand for operand in operands if operand not in constants]


def _check_arguments(name: str, args: list[ast.expr], text: str) -> None:
    least, most = FUNCTIONS[name]
    if not least <= len(args) <= most:
        want = str(least) if least == most else f"at least {least}"
        raise ExpressionError(f"{_shown(text)} calls {name} with {len(args)} arguments, want {want}")
