"""Walks a checked syntax tree for whole arrays, element by element as Python would.

An element that Python would raise on (division by zero, too large) is not an error but undefined, so that ``and`` and
``or`` can protect it: ``b != 0 and a % b == 0``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner_daemon.records._scalars import ARITHMETIC, MAGNITUDE_CAP, ORDER

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Vector:
    """Values of dtype bool, int64, float64 or text, and where they are defined (None: everywhere).

    ``bound`` is a magnitude that no integer in ``values`` exceeds: arithmetic whose result is bound to fit needs no
    check per element.
    """

    values: NDArray[Any]
    defined: Mask | None = None
    bound: int = 1


def array_value(node: ast.expr, names: Mapping[str, Any]) -> Vector:
    """Raises KeyError (unknown name), TypeError (text used as a number)."""
    match node:
        case ast.Constant(value=value):
            return _vector(value)
        case ast.Name(id=name):
            return _vector(names[name])
        case ast.BinOp(op=op, left=left, right=right):
            return _arithmetic(op, _number(left, names), _number(right, names))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _truth(operand, names)
            return Vector(~inner.values, inner.defined)
        case ast.UnaryOp(operand=operand):
            inner = _plain(_number(operand, names))
            return Vector(-inner.values, inner.defined, inner.bound)
        case ast.BoolOp(op=op, values=values):
            combine = _or if isinstance(op, ast.Or) else _and
            return reduce(combine, (_truth(value, names) for value in values))
        case ast.Compare():
            return _compare(node, names)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _CALLS[name]([_number(arg, names) for arg in args])
    raise TypeError(f"uses {type(node).__name__}")


def _vector(value: Any) -> Vector:
    array = np.asarray(value)
    if array.dtype.kind == "O":
        array = np.asarray(array.tolist())
    if array.dtype.kind == "b" or array.dtype.kind == "U":
        return Vector(array)
    if array.dtype.kind == "f":
        wide = array.astype(np.float64, copy=False)
        finite = np.isfinite(wide)
        return Vector(wide) if finite.all() else Vector(np.where(finite, wide, 0.0), finite)
    if array.dtype.kind not in "iu":
        raise TypeError(f"reads an array of {array.dtype}, want numbers or text")
    if not array.size:
        return Vector(array.astype(np.int64))
    bound = max(abs(int(array.min())), abs(int(array.max())))
    if bound <= MAGNITUDE_CAP:
        return Vector(array.astype(np.int64, copy=False), None, bound)
    small = (array <= MAGNITUDE_CAP) & (array >= -MAGNITUDE_CAP)
    return Vector(np.where(small, array, 0).astype(np.int64), small, MAGNITUDE_CAP)


def _number(node: ast.expr, names: Mapping[str, Any]) -> Vector:
    vector = array_value(node, names)
    if vector.values.dtype.kind == "U":
        raise TypeError("uses text as a number")
    return vector


def _plain(vector: Vector) -> Vector:
    """Truth values as the integers 0 and 1."""
    if vector.values.dtype.kind == "b":
        return Vector(vector.values.astype(np.int64), vector.defined, 1)
    return vector


def _truth(node: ast.expr, names: Mapping[str, Any]) -> Vector:
    vector = _number(node, names)
    return vector if vector.values.dtype.kind == "b" else Vector(vector.values != 0, vector.defined)


def _and(a: Vector, b: Vector) -> Vector:
    return Vector(a.values & b.values, _guarded(a.defined, b.defined, a.values))


def _or(a: Vector, b: Vector) -> Vector:
    return Vector(a.values | b.values, _guarded(a.defined, b.defined, ~a.values))


def _guarded(first: Mask | None, second: Mask | None, reached: Mask) -> Mask | None:
    """Where the first is defined and the second, if Python would have looked at it at all."""
    return _both(first, None if second is None else second | ~reached)


def _both(first: Mask | None, second: Mask | None) -> Mask | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _compare(node: ast.Compare, names: Mapping[str, Any]) -> Vector:
    left = array_value(node.left, names)
    chain: Vector | None = None
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = array_value(comparator, names)
        link = Vector(_compared(op, left.values, right.values), _both(left.defined, right.defined))
        chain = link if chain is None else _and(chain, link)
        left = right
    assert chain is not None
    return chain


def _compared(op: ast.cmpop, left: NDArray[Any], right: NDArray[Any]) -> Mask:
    text = {left.dtype.kind, right.dtype.kind} & {"U"}
    if isinstance(op, ast.Eq | ast.NotEq):
        if text and left.dtype.kind != right.dtype.kind:  # text never equals a number
            equal = np.zeros(np.broadcast_shapes(left.shape, right.shape), dtype=np.bool_)
        else:
            equal = np.asarray(left == right)
        return equal if isinstance(op, ast.Eq) else ~equal
    if text:
        raise TypeError("orders text")
    return np.asarray(ORDER[type(op)](left, right))


def _arithmetic(op: ast.operator, a: Vector, b: Vector) -> Vector:
    a, b = _plain(a), _plain(b)
    defined = _both(a.defined, b.defined)
    divisor = b.values
    if isinstance(op, ast.Div | ast.FloorDiv | ast.Mod):
        nonzero = divisor != 0
        if not nonzero.all():
            defined, divisor = _both(defined, nonzero), np.where(nonzero, divisor, 1)
    if isinstance(op, ast.Div) or "f" in (a.values.dtype.kind, b.values.dtype.kind):
        return _floats(ARITHMETIC[type(op)], a.values, divisor, defined)
    return _integers(op, Vector(a.values, None, a.bound), Vector(divisor, None, b.bound), defined)


def _floats(operation: Callable[[Any, Any], Any], a: NDArray[Any], b: NDArray[Any], defined: Mask | None) -> Vector:
    with np.errstate(all="ignore"):
        values = np.asarray(operation(a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)))
    finite = np.isfinite(values)
    if finite.all():
        return Vector(values, defined)
    return Vector(np.where(finite, values, 0.0), _both(defined, finite))


def _integers(op: ast.operator, a: Vector, b: Vector, defined: Mask | None) -> Vector:
    bound = {ast.Mult: a.bound * b.bound, ast.FloorDiv: a.bound, ast.Mod: b.bound}.get(type(op), a.bound + b.bound)
    left = a.values
    if isinstance(op, ast.Mult) and bound > MAGNITUDE_CAP:
        # A float64 product is within one part in 2**52: where it is far below 2**63, the int64 product is exact.
        fits = np.abs(left.astype(np.float64) * b.values.astype(np.float64)) < 1.5 * MAGNITUDE_CAP
        left, defined = np.where(fits, left, 0), _both(defined, fits)
    values = np.asarray(ARITHMETIC[type(op)](left, b.values))
    if bound <= MAGNITUDE_CAP:
        return Vector(values, defined, bound)
    small = np.abs(values) <= MAGNITUDE_CAP
    return Vector(np.where(small, values, 0), _both(defined, small), MAGNITUDE_CAP)


def _extreme(pick: Callable[[Any, Any], Any], arguments: list[Vector]) -> Vector:
    # Python's min(True, False) is a truth value, but min(True, 2) is a number: so does NumPy.
    values = reduce(pick, (argument.values for argument in arguments))
    defined = reduce(_both, (argument.defined for argument in arguments))
    return Vector(np.asarray(values), defined, max(argument.bound for argument in arguments))


def _abs(arguments: list[Vector]) -> Vector:
    inner = _plain(arguments[0])
    return Vector(np.abs(inner.values), inner.defined, inner.bound)


def _ceil_div(arguments: list[Vector]) -> Vector:
    dividend, divisor = _plain(arguments[0]), arguments[1]
    floor = _arithmetic(ast.FloorDiv(), Vector(-dividend.values, dividend.defined, dividend.bound), divisor)
    return Vector(-floor.values, floor.defined, floor.bound)


_CALLS: Mapping[str, Callable[[list[Vector]], Vector]] = {
    "min": lambda arguments: _extreme(np.minimum, arguments),
    "max": lambda arguments: _extreme(np.maximum, arguments),
    "abs": _abs,
    "ceil_div": _ceil_div,
}
