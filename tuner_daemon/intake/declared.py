"""Turns the validated tables of kernel.toml into records, and checks what a schema cannot: that names fit together."""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence

from tuner_daemon.errors import ExpressionError
from tuner_daemon.intake.documents import Document, Keys
from tuner_daemon.intake.roles import ROLES, role_of
from tuner_daemon.intake.schema import (
    DTYPES,
    FILLS,
    INTEGER_DTYPES,
    RANGE_FILLS,
    ArgumentTable,
    KernelTables,
    ProblemTable,
    shown,
)
from tuner_daemon.records.expression import FUNCTIONS, Expression
from tuner_daemon.records.kernel import Argument, Launch, Parameter, ProblemVariable, Value, Work

MAX_SIZE = 2**31 - 1

_TRUE_DIVISION = re.compile(r"(?<!/)/(?!/)|\d\.|\.\d")


def nearest(name: str, known: Iterable[str]) -> str:
    """A remedy for an unknown name."""
    listed = list(known)
    near = difflib.get_close_matches(name, listed, n=1)
    return f'did you mean "{near[0]}"?' if near else f"known: {', '.join(listed) or 'none'}"


class Declared:
    """The variables and parameters of a kernel, and what may be said about them."""

    def __init__(self, tables: KernelTables, document: Document) -> None:
        """Raises the document's error for a declaration that cannot be right."""
        self.tables, self.document = tables, document
        self.problem = tuple(self._variable(name, table) for name, table in tables.problem.items())
        self.parameters = tuple(self._parameter(name) for name in tables.parameters)
        for name in tables.problem:
            self._check_name(name, ("problem", name))
            if name in tables.parameters:
                raise document.fault(("parameters", name), "is a problem variable, too", remedy="rename one of them")
        self._kinds = {v.name: v.type for v in self.problem} | {p.name: _kind(p.values) for p in self.parameters}
        # One value per name, of the right kind: whether an expression makes sense does not depend on which.
        self._samples: dict[str, Value] = {n: "text" if kind == "str" else 1 for n, kind in self._kinds.items()}

    def expression(self, text: str, keys: Keys) -> Expression:
        """Parsed, with every name in it declared. Raises with file, key and line."""
        try:
            parsed = Expression.parse(text)
            parsed.evaluate_arrays(self._samples)
        except ExpressionError as error:
            remedy = error.remedy or "text can only be compared with == or !="
            raise self.document.fault(keys, error.problem, remedy=remedy, near=text) from error
        return parsed

    def optional(self, text: str | None, keys: Keys) -> Expression | None:
        return None if text is None else self.expression(text, keys)

    def expressions(self, texts: Sequence[str], keys: Keys) -> tuple[Expression, ...]:
        return tuple(self.expression(text, (*keys, i)) for i, text in enumerate(texts))

    def launch(self) -> Launch:
        table = self.tables.launch
        if table is None:
            if "cuda" in self.tables.sources:
                raise self.document.fault(("launch",), "is missing", remedy="give block and grid")
            return Launch((), (), Expression.parse("0"))
        return Launch(
            self.expressions(table.block, ("launch", "block")),
            self.expressions(table.grid, ("launch", "grid")),
            self.expression(table.shared_bytes, ("launch", "shared_bytes")),
        )

    def work(self) -> Work:
        table = self.tables.work
        return Work(
            self.optional(table.flops, ("work", "flops")),
            self.optional(table.bytes, ("work", "bytes")),
        )

    def arguments(self) -> tuple[Argument, ...]:
        built: list[Argument] = []
        for i, table in enumerate(self.tables.arguments):
            if any(argument.name == table.name for argument in built):
                raise self.document.fault(("arguments", i, "name"), f'is "{table.name}" again', remedy="rename it")
            built.append(self._scalar(table, i) if table.kind == "scalar" else self._array(table, i))
        if self.tables.sources and not any(argument.kind in ("output", "inout") for argument in built):
            raise self.document.fault(("arguments",), "has no output", remedy='give one kind = "output" or "inout"')
        return tuple(built)

    def config(self, values: Mapping[str, Value], keys: Keys) -> dict[str, Value]:
        """A configuration of every parameter, with its declared values. Raises for unknown, missing or other values."""
        for name in values:
            if name not in self.tables.parameters:
                remedy = nearest(name, self.tables.parameters)
                raise self.document.fault((*keys, name), "is not a parameter", remedy=remedy)
        missing = [parameter.name for parameter in self.parameters if parameter.name not in values]
        if missing:
            raise self.document.fault(keys, f"does not say {', '.join(missing)}", remedy="name every parameter")
        return {p.name: self._declared_value(p, values[p.name], (*keys, p.name)) for p in self.parameters}

    def _declared_value(self, parameter: Parameter, value: Value, keys: Keys) -> Value:
        if value not in parameter.values:
            choices = ", ".join(shown(v) for v in parameter.values[:20])
            raise self.document.fault(keys, f"is {shown(value)}", remedy=f"want one of {choices}")
        return parameter.values[parameter.values.index(value)]

    def _check_name(self, name: str, keys: Keys) -> None:
        if keyword.iskeyword(name) or name in FUNCTIONS:
            raise self.document.fault(keys, "is a word with a meaning of its own", remedy="choose another name")

    def _parameter(self, name: str) -> Parameter:
        table, keys = self.tables.parameters[name], ("parameters", name)
        self._check_name(name, keys)
        values = tuple(table.values)
        if len({"number" if isinstance(v, int | float) and not isinstance(v, bool) else type(v) for v in values}) > 1:
            raise self.document.fault(
                keys, "mixes kinds of values", remedy="want all numbers, all text or all booleans"
            )
        twice = next((v for i, v in enumerate(values) if v in values[:i]), None)
        if twice is not None:
            raise self.document.fault(keys, f"has the value {shown(twice)} twice", remedy="remove one")
        if isinstance(values[0], str):
            self._check_macros(values, keys)
        role = role_of(name) if table.role is None else table.role
        if role not in ROLES:
            raise self.document.fault((*keys, "role"), f"is {shown(role)}", remedy=nearest(role, ROLES))
        return Parameter(name, values, role)

    def _check_macros(self, values: Sequence[Value], keys: Keys) -> None:
        """Text values reach the source as NAME_VALUE: they must still differ there."""
        macros = [re.sub(r"\W", "_", str(value), flags=re.ASCII).upper() for value in values]
        if len(set(macros)) < len(macros):
            twice = next(m for i, m in enumerate(macros) if m in macros[:i])
            raise self.document.fault(
                keys, f"has values that are one in a source ({twice})", remedy="letters, digits and _ must differ"
            )

    def _variable(self, name: str, table: ProblemTable) -> ProblemVariable:
        keys = ("problem", name)
        kind = table.type or (_kind(table.values) if table.values else None if table.default is None else "")
        kind = _kind([table.default]) if kind == "" and table.default is not None else kind or "int"
        if kind == "bool":
            raise self.document.fault(keys, "is a truth value", remedy="use 0 and 1, or text")
        if kind == "str" and (table.min is not None or table.max is not None):
            raise self.document.fault(keys, "is text with a min or max", remedy="list its values instead")
        low, high = table.min, table.max
        if kind == "int":
            low = 1 if low is None else low
            high = max(MAX_SIZE, low) if high is None else high
        if low is not None and high is not None and low > high:
            raise self.document.fault(keys, f"has min {low} above max {high}", remedy="swap them")
        variable = ProblemVariable(name, kind, low, high, None, tuple(table.values or ()))
        for i, value in enumerate(variable.values):
            self._check_choice(variable, value, (*keys, "values", i))
        if table.default is None:
            return variable
        default = check_value(self.document, variable, table.default, (*keys, "default"))
        return ProblemVariable(name, kind, low, high, default, variable.values)

    def _check_choice(self, variable: ProblemVariable, value: Value, keys: Keys) -> None:
        if _kind([value]) != variable.type and not (variable.type == "float" and _kind([value]) == "int"):
            raise self.document.fault(keys, f"is {shown(value)}", remedy=f"want {_NOUN[variable.type]}")

    def _scalar(self, table: ArgumentTable, i: int) -> Argument:
        keys = ("arguments", i)
        for key in _given(table, "shape", "low", "high"):
            raise self.document.fault((*keys, key), "is given for a scalar", remedy="remove it")
        if table.value is None and table.name not in self._kinds:
            remedy = f'add value = "<expression>", or {nearest(table.name, self._kinds)}'
            raise self.document.fault((*keys, "name"), f'is "{table.name}", which has no value', remedy=remedy)
        value = self.expression(table.name if table.value is None else table.value, (*keys, "value"))
        floats = any(self._kinds[name] == "float" for name in value.names) or _TRUE_DIVISION.search(value.text)
        dtype = table.dtype or ("float32" if floats else "int32")
        self._check_dtype(dtype, keys)
        return Argument(table.name, "scalar", dtype, (), "normal", value)

    def _array(self, table: ArgumentTable, i: int) -> Argument:
        keys = ("arguments", i)
        if table.name in self.tables.parameters:
            raise self.document.fault((*keys, "name"), "is a parameter, too", remedy="rename one: it is a #define")
        if table.value is not None:
            raise self.document.fault((*keys, "value"), "is given for an array", remedy='remove it, or kind = "scalar"')
        if not table.shape:
            raise self.document.fault((*keys, "shape"), "is missing", remedy='add it, such as shape = ["n"]')
        if table.dtype is None:
            raise self.document.fault((*keys, "dtype"), "is missing", remedy='add it, such as dtype = "float32"')
        self._check_dtype(table.dtype, keys)
        if table.fill not in FILLS and not table.fill.endswith(".npy"):
            remedy = f"{nearest(table.fill, FILLS)}, or a .npy file"
            raise self.document.fault((*keys, "fill"), f"is {shown(table.fill)}", remedy=remedy)
        shape = self.expressions(table.shape, (*keys, "shape"))
        if table.kind == "workspace":
            for key in _given(table, "fill", "low", "high"):
                raise self.document.fault((*keys, key), "is given for a workspace", remedy="remove it: it is zero")
            return Argument(table.name, table.kind, table.dtype, shape, "zeros")
        low, high = self._range(table, keys)
        return Argument(table.name, table.kind, table.dtype, shape, table.fill, None, low, high)

    def _range(self, table: ArgumentTable, keys: Keys) -> tuple[Expression | None, Expression | None]:
        """The bounds of a fill that has some."""
        if table.fill not in RANGE_FILLS:
            for key in _given(table, "low", "high"):
                remedy = f"remove it, or fill = {shown(RANGE_FILLS[0])}"
                raise self.document.fault((*keys, key), f"is given for the fill {shown(table.fill)}", remedy=remedy)
            return None, None
        variable = next((v for v in self.problem if v.name == table.dtype), None)
        types = variable.values if variable is not None else (table.dtype,)
        if not set(types) <= set(INTEGER_DTYPES):
            problem = f"is {shown(table.dtype)}, which the fill {shown(table.fill)} does not go with"
            raise self.document.fault((*keys, "dtype"), problem, remedy=f"want one of {', '.join(INTEGER_DTYPES)}")
        if table.high is None:
            raise self.document.fault((*keys, "high"), "is missing", remedy=f"the fill {shown(table.fill)} needs it")
        low = self.expression("0" if table.low is None else table.low, (*keys, "low"))
        high = self.expression(table.high, (*keys, "high"))
        for key, bound in (("low", low), ("high", high)):
            mine = next((name for name in bound.names if name in self.tables.parameters), None)
            if mine is not None:
                problem = f"depends on the parameter {mine}"
                raise self.document.fault((*keys, key), problem, remedy="all candidates are given the same contents")
        if not low.names and not high.names:
            wrong = range_fault(table.fill, float(low.evaluate({})), float(high.evaluate({})))
            if wrong:
                raise self.document.fault((*keys, "high"), wrong, remedy="raise it")
        return low, high

    def _check_dtype(self, dtype: str, keys: Keys) -> None:
        if dtype in DTYPES:
            return
        variable = next((v for v in self.problem if v.name == dtype and v.type == "str"), None)
        if variable is None:
            types = (*DTYPES, *(v.name for v in self.problem if v.type == "str"))
            raise self.document.fault((*keys, "dtype"), f"is {shown(dtype)}", remedy=nearest(dtype, types))
        for value in variable.values:
            if value not in DTYPES:
                at = ("problem", dtype, "values")
                raise self.document.fault(at, f"has {shown(value)}", remedy=nearest(str(value), DTYPES))


def _given(table: ArgumentTable, *keys: str) -> list[str]:
    """Those of the keys that do not hold their default."""
    return [key for key in keys if getattr(table, key) != ArgumentTable.model_fields[key].default]


def range_fault(fill: str, low: float, high: float) -> str:
    """What is wrong with the bounds of integers; empty if nothing is."""
    if high > low or (high == low and fill == "sorted"):
        return ""
    return f"is {high:g}, which leaves nothing from {low:g} on"


_NOUN = {"int": "an integer", "float": "a number", "str": "text"}


def check_value(document: Document, variable: ProblemVariable, value: Value, keys: Keys) -> Value:
    """The value as the variable's type has it. Raises for a wrong type, out of range, or not among the values."""
    kind, given = variable.type, _kind([value])
    if given != kind and not (kind == "float" and given == "int"):
        positive = " positive" if kind == "int" and variable.min == 1 else ""
        want = f"want a{positive} integer" if positive else f"want {_NOUN[kind]}"
        raise document.fault(keys, f"is {shown(value)}", remedy=want)
    if variable.values:
        if value not in variable.values:
            choices = ", ".join(shown(v) for v in variable.values[:20])
            raise document.fault(keys, f"is {shown(value)}", remedy=f"want one of {choices}")
    elif not isinstance(value, str):
        if variable.min is not None and value < variable.min:
            raise document.fault(keys, f"is {shown(value)}", remedy=f"want at least {variable.min}")
        if variable.max is not None and value > variable.max:
            raise document.fault(keys, f"is {shown(value)}", remedy=f"want at most {variable.max}")
    return float(value) if kind == "float" else value


def _kind(values: Sequence[Value]) -> str:
    """ "bool", "int", "float" or "str" of values that are all of one kind."""
    names = {type(value).__name__ for value in values}
    return "float" if names == {"int", "float"} else sorted(names)[0]
