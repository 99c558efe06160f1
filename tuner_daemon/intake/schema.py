"""The tables of kernel.toml and of a spec: which keys there are, and what each may hold."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from tuner_daemon.errors import InputError
from tuner_daemon.intake.documents import Document, Keys

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint32", "uint8", "int8")
INTEGER_DTYPES = ("int32", "int64", "uint32", "uint8", "int8")
RANGE_FILLS = ("integers", "sorted")
FILLS = ("normal", "uniform", "arange", "zeros", *RANGE_FILLS)
MAX_PARAMETERS = 64
MAX_VALUES = 4096
MAX_TEXT = 64

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ENTRY = re.compile(r"[A-Za-z_][A-Za-z0-9_:<>, ()*&]{0,255}")

Kind = Literal["cuda", "cpu", "replay"]


def _identifier(name: str) -> str:
    if not _IDENTIFIER.fullmatch(name):
        raise PydanticCustomError("name", "want letters, digits and _, at most 64, not starting with a digit")
    return name


def _entry(name: str) -> str:
    if not _ENTRY.fullmatch(name):
        raise PydanticCustomError("entry", "want a function's name or a C++ name expression")
    return name


def _value(value: object) -> object:
    if not isinstance(value, bool | int | float | str):
        raise PydanticCustomError("value", "want a number, a truth value or text")
    if isinstance(value, str) and not (value.isprintable() and 0 < len(value) <= MAX_TEXT):
        raise PydanticCustomError("text", f"want 1 to {MAX_TEXT} printable characters")
    if isinstance(value, int) and abs(value) > 2**53:
        raise PydanticCustomError("integer", "want at most 2**53")
    return value


def _number(value: object) -> object:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise PydanticCustomError("number", "want a number")
    return value


def _expression(value: object) -> object:
    """A bare number is an expression, too."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _listed(value: object) -> object:
    return [value] if isinstance(value, str | int) else value


def _as(key: str) -> BeforeValidator:
    """Lets a table with one main key be written as that key's value alone."""
    return BeforeValidator(lambda value: value if isinstance(value, dict | BaseModel) else {key: value})


Identifier = Annotated[str, AfterValidator(_identifier)]
Entry = Annotated[str, AfterValidator(_entry)]
Scalar = Annotated[bool | int | float | str, BeforeValidator(_value)]
Number = Annotated[int | float, BeforeValidator(_number)]
Values = Annotated[list[Scalar], Field(min_length=1, max_length=MAX_VALUES)]
Text = Annotated[str, BeforeValidator(_expression)]  # of an expression, parsed by the loader
Axes = Annotated[list[Text], BeforeValidator(_listed), Field(min_length=1, max_length=3)]
Name = Annotated[str, Field(min_length=1, max_length=128)]


class Table(BaseModel):
    """Strict: a wrong type or an unknown key is an error, never a guess."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, tables: object) -> object:
        if not isinstance(tables, Mapping):
            return tables
        for key in tables:
            if key not in cls.model_fields:
                near = difflib.get_close_matches(str(key), cls.model_fields, n=1)
                hint = f'did you mean "{near[0]}"?' if near else f"known keys: {', '.join(cls.model_fields)}"
                raise PydanticCustomError("unknown_key", "{hint}", {"name": str(key), "hint": hint})
        return tables


class SourceTable(Table):
    file: Name
    entry: Entry | None = None


class ProblemTable(Table):
    type: Literal["int", "float", "str"] | None = None
    min: Number | None = None
    max: Number | None = None
    default: Scalar | None = None
    values: Values | None = None


class ParameterTable(Table):
    values: Values
    role: str | None = None


class ConstraintsTable(Table):
    all: Annotated[list[Text], Field(max_length=256)] = []


class LaunchTable(Table):
    block: Axes
    grid: Axes
    shared_bytes: Text = "0"


class ArgumentTable(Table):
    name: Identifier
    kind: Literal["input", "output", "inout", "scalar", "constant", "workspace"]
    dtype: Name | None = None
    shape: Annotated[list[Text], BeforeValidator(_listed), Field(max_length=8)] = []
    fill: Name = "normal"
    value: Text | None = None
    low: Text | None = None
    high: Text | None = None


class ReferenceTable(Table):
    source: Annotated[SourceTable, _as("file")] | None = None
    cuda: Annotated[SourceTable, _as("file")] | None = None
    cpu: Annotated[SourceTable, _as("file")] | None = None
    config: dict[str, Scalar] | None = None
    arrays: dict[str, Name] | None = None


class BaselineTable(Table):
    config: dict[str, Scalar]


class WorkTable(Table):
    flops: Text | None = None
    bytes: Text | None = None


class KernelTables(Table):
    """kernel.toml."""

    name: Identifier
    sources: dict[Literal["cuda", "cpu"], Annotated[SourceTable, _as("file")]] = {}
    problem: dict[Identifier, ProblemTable] = {}
    parameters: Annotated[
        dict[Identifier, Annotated[ParameterTable, _as("values")]], Field(min_length=1, max_length=MAX_PARAMETERS)
    ]
    constraints: ConstraintsTable = ConstraintsTable()
    launch: LaunchTable | None = None
    arguments: Annotated[list[ArgumentTable], Field(max_length=64)] = []
    reference: ReferenceTable | None = None
    baseline: BaselineTable | None = None
    work: WorkTable = WorkTable()
    tolerance: Annotated[float, Field(gt=0, le=1)] | None = None
    reduction_length: Text | None = None


class BudgetTable(Table):
    measurements: Annotated[int, Field(ge=1, le=100_000)] | None = None
    seconds: Annotated[float, Field(ge=1, le=86_400)] | None = None


class DeviceTable(Table):
    kind: Kind | None = None
    index: Annotated[int, Field(ge=0, le=1023)] = 0


class OptionsTable(Table):
    force: bool = False
    priority: Annotated[int, Field(ge=-100, le=100)] = 0


class SpecTables(Table):
    """A spec, without the kernel tables that it may carry."""

    template: Name | None = None
    kernel: Name | None = None
    problem: dict[str, Scalar] = {}
    budget: BudgetTable = BudgetTable()
    device: DeviceTable = DeviceTable()
    options: OptionsTable = OptionsTable()


T = TypeVar("T", bound=Table)


def validated(model: type[T], tables: Mapping[str, Any], document: Document) -> T:
    """The tables as a model. Raises the document's error for the first thing that is wrong, with key and line."""
    try:
        return model.model_validate(dict(tables))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        # An unknown key is most often why another one seems to be missing: say that first.
        first = next((fault for fault in faults if fault["type"] == "unknown_key"), faults[0])
        raise _fault(document, first) from error


def _fault(document: Document, error: ErrorDetails) -> InputError:
    keys: Keys = tuple(key for key in error["loc"] if key != "[key]")
    context = error.get("ctx", {})
    match error["type"]:
        case "unknown_key":
            return document.fault((*keys, context["name"]), "is not a known key", remedy=str(context["hint"]))
        case "missing":
            return document.fault(keys, "is missing", remedy="add it")
        case "literal_error":
            return document.fault(keys, f"is {shown(error['input'])}", remedy=_choices(error))
    want = _WANTED.get(error["type"], error["msg"]).format(**context)
    return document.fault(keys, f"is {shown(error['input'])}", remedy=want)


_WANTED = {
    "int_type": "want an integer",
    "int_from_float": "want an integer",
    "float_type": "want a number",
    "bool_type": "want true or false",
    "string_type": "want text",
    "string_too_short": "want some text",
    "string_too_long": "want at most {max_length} characters",
    "list_type": "want a list",
    "dict_type": "want a table",
    "model_type": "want a table",
    "model_attributes_type": "want a table",
    "greater_than": "want more than {gt}",
    "greater_than_equal": "want at least {ge}",
    "less_than_equal": "want at most {le}",
    "too_short": "want at least {min_length}",
    "too_long": "want at most {max_length}",
}


def _choices(error: ErrorDetails) -> str:
    expected = str(error.get("ctx", {}).get("expected", ""))
    choices = re.findall(r"'([^']*)'", expected)
    return f"want one of {', '.join(choices)}"


def shown(value: object) -> str:
    """A value as an error message may print it."""
    match value:
        case bool():
            text = str(value).lower()
        case str():
            text = f'"{value}"'
        case dict():
            text = "a table"
        case list():
            text = "a list"
        case _:
            text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
