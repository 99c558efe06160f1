"""Interval arithmetic over checked syntax trees: what a constraint may still become once some names are undecided.

Every result encloses all values the expression can take where it is defined, so "cannot hold" is always right while
"may hold" can be wrong. Ordinary float64 suffices: rounding is monotone, and what passes 2**52 is widened.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of any broadcastable shapes; a truth value is 0 or 1. Text has no bounds, ``unknown`` stands for it."""

    low: Floats
    high: Floats

    @classmethod
    def of(cls, low: Any, high: Any) -> Interval:
        return cls(np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64))


UNKNOWN = Interval.of(-np.inf, np.inf)


def interval_value(node: ast.expr, names: Mapping[str, Interval]) -> Interval:
    """Bounds of the expression. Raises KeyError for an unknown name. Run it under ``np.errstate(all="ignore")``:
    infinite bounds are ordinary here."""
    match node:
        case ast.Constant(value=str()):
            return UNKNOWN
        case ast.Constant(value=value):
            return Interval.of(value, value)
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(op=op, left=left, right=right):
            return _ARITHMETIC[type(op)](interval_value(left, names), interval_value(right, names))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _not(_truth(interval_value(operand, names)))
        case ast.UnaryOp(operand=operand):
            return _negative(interval_value(operand, names))
        case ast.BoolOp(op=op, values=values):
            pick = np.maximum if isinstance(op, ast.Or) else np.minimum
            return _each(pick, [_truth(interval_value(value, names)) for value in values])
        case ast.Compare():
            return _compare(node, names)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _CALLS[name]([interval_value(arg, names) for arg in args])
    raise TypeError(f"uses {type(node).__name__}")


def _each(pick: Callable[[Any, Any], Any], parts: list[Interval]) -> Interval:
    return Interval(reduce(pick, (p.low for p in parts)), reduce(pick, (p.high for p in parts)))


def _truth(a: Interval) -> Interval:
    zero_inside = (a.low <= 0) & (a.high >= 0)
    return Interval.of(~zero_inside, ~((a.low == 0) & (a.high == 0)))


def _not(a: Interval) -> Interval:
    return Interval(1 - a.high, 1 - a.low)


def _negative(a: Interval) -> Interval:
    return Interval(-a.high, -a.low)


def _widened(low: Floats, high: Floats) -> Interval:
    """Unbounded where a bound is not a number (inf - inf), and wider where integers are no longer exact."""
    slack = 1e-12
    low = np.where(np.abs(low) > 2.0**52, low - np.abs(low) * slack, low)
    high = np.where(np.abs(high) > 2.0**52, high + np.abs(high) * slack, high)
    return Interval(np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high))


def _add(a: Interval, b: Interval) -> Interval:
    return _widened(a.low + b.low, a.high + b.high)


def _corners(operation: Callable[[Any, Any], Any], a: Interval, b: Interval) -> Interval:
    """Bounds of an operation that is monotone in either operand; unbounded where a corner has no value."""
    corners = np.broadcast_arrays(*(operation(x, y) for x in (a.low, a.high) for y in (b.low, b.high)))
    stacked = np.stack(corners)
    return _widened(np.min(stacked, axis=0), np.max(stacked, axis=0))  # NaN in any corner makes both NaN


def _quotient(operation: Callable[[Any, Any], Any], a: Interval, b: Interval) -> Interval:
    quotient = _corners(operation, a, b)
    by_zero = (b.low <= 0) & (b.high >= 0)
    return Interval(np.where(by_zero, -np.inf, quotient.low), np.where(by_zero, np.inf, quotient.high))


def _modulo(a: Interval, b: Interval) -> Interval:
    """[0, b) for a positive divisor, exact where the dividend stays between two multiples of a known divisor."""
    low = np.where(b.low >= 0, 0.0, b.low)
    high = np.where(b.high <= 0, 0.0, b.high)
    same = (b.low == b.high) & (np.floor_divide(a.low, b.low) == np.floor_divide(a.high, b.low))
    same &= np.isfinite(a.low) & np.isfinite(a.high) & (np.abs(a.low) < 2.0**52) & (np.abs(a.high) < 2.0**52)
    first, last = np.remainder(a.low, b.low), np.remainder(a.high, b.low)
    exact_low, exact_high = np.minimum(first, last), np.maximum(first, last)
    same &= (b.low != 0) & np.isfinite(exact_low) & np.isfinite(exact_high)
    return _widened(np.where(same, exact_low, low), np.where(same, exact_high, high))


def _compare(node: ast.Compare, names: Mapping[str, Interval]) -> Interval:
    links, left = [], interval_value(node.left, names)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = interval_value(comparator, names)
        links.append(_ORDER[type(op)](left, right))
        left = right
    return _each(np.minimum, links)


def _less(a: Interval, b: Interval) -> Interval:
    return Interval.of(a.high < b.low, a.low < b.high)


def _at_most(a: Interval, b: Interval) -> Interval:
    return Interval.of(a.high <= b.low, a.low <= b.high)


def _equal(a: Interval, b: Interval) -> Interval:
    points = (a.low == a.high) & (b.low == b.high) & (a.low == b.low) & (np.abs(a.low) < 2.0**52)
    return Interval.of(points, (a.low <= b.high) & (b.low <= a.high))


def _abs(parts: list[Interval]) -> Interval:
    a = parts[0]
    ends = np.abs(a.low), np.abs(a.high)
    zero_inside = (a.low <= 0) & (a.high >= 0)
    return Interval(np.where(zero_inside, 0.0, np.minimum(*ends)), np.maximum(*ends))


_ARITHMETIC: Mapping[type[ast.operator], Callable[[Interval, Interval], Interval]] = {
    ast.Add: _add,
    ast.Sub: lambda a, b: _add(a, _negative(b)),
    ast.Mult: lambda a, b: _corners(np.multiply, a, b),
    ast.Div: lambda a, b: _quotient(np.divide, a, b),
    ast.FloorDiv: lambda a, b: _quotient(np.floor_divide, a, b),
    ast.Mod: _modulo,
}
_ORDER: Mapping[type[ast.cmpop], Callable[[Interval, Interval], Interval]] = {
    ast.Lt: _less,
    ast.LtE: _at_most,
    ast.Gt: lambda a, b: _less(b, a),
    ast.GtE: lambda a, b: _at_most(b, a),
    ast.Eq: _equal,
    ast.NotEq: lambda a, b: _not(_equal(a, b)),
}
_CALLS: Mapping[str, Callable[[list[Interval]], Interval]] = {
    "min": lambda parts: _each(np.minimum, parts),
    "max": lambda parts: _each(np.maximum, parts),
    "abs": _abs,
    "ceil_div": lambda parts: _negative(_quotient(np.floor_divide, _negative(parts[0]), parts[1])),
}
