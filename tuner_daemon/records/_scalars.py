"""Walks a checked syntax tree for one value, with Python's own arithmetic."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Scalar = int | float | bool | str

MAGNITUDE_CAP = 2**62
"""Integers beyond this magnitude have no value: the sum of two below it still fits 64 bits."""

FUNCTIONS: Mapping[str, tuple[int, int]] = {"min": (2, 99), "max": (2, 99), "abs": (1, 1), "ceil_div": (2, 2)}
"""Name -> least and most number of arguments."""

ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
ORDER: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALLS: Mapping[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "ceil_div": lambda a, b: -(-a // b),
}


def scalar_value(node: ast.expr, names: Mapping[str, Any]) -> Scalar:
    """Raises KeyError (unknown name), ZeroDivisionError, OverflowError, TypeError (text used as a number)."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=name):
            return _bounded(names[name])
        case ast.BinOp(op=op, left=left, right=right):
            return _bounded(ARITHMETIC[type(op)](_number(left, names), _number(right, names)))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _number(operand, names)
        case ast.UnaryOp(operand=operand):
            return -_number(operand, names)
        case ast.BoolOp(op=op, values=values):
            stop = isinstance(op, ast.Or)
            return stop if any(bool(_number(v, names)) is stop for v in values) else not stop
        case ast.Compare():
            return _compare(node, names)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _bounded(_CALLS[name](*(_number(arg, names) for arg in args)))
    raise TypeError(f"uses {type(node).__name__}")


def _compare(node: ast.Compare, names: Mapping[str, Any]) -> bool:
    left = scalar_value(node.left, names)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = scalar_value(comparator, names)
        if isinstance(op, ast.Eq | ast.NotEq):
            holds = (left == right) is isinstance(op, ast.Eq)
        elif isinstance(left, str) or isinstance(right, str):
            raise TypeError("orders text")
        else:
            holds = bool(ORDER[type(op)](left, right))
        if not holds:
            return False
        left = right
    return True


def _number(node: ast.expr, names: Mapping[str, Any]) -> int | float | bool:
    value = scalar_value(node, names)
    if isinstance(value, str):
        raise TypeError("uses text as a number")
    return value


def _bounded(value: Any) -> Scalar:
    """The value as a Python number or text. Raises OverflowError beyond the cap, TypeError for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, int | float | str):
        raise TypeError(f"reads a {type(value).__name__}, want a number or text")
    if isinstance(value, int) and abs(value) > MAGNITUDE_CAP:
        raise OverflowError
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    return value
