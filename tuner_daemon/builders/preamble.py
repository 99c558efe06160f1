"""The block of #defines that makes one candidate out of a kernel's source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tuner_daemon.errors import KernelError
from tuner_daemon.records.kernel import Parameter, Value
from tuner_daemon.records.space import Config


def preamble(parameters: Sequence[Parameter], config: Config | None, problem: Mapping[str, Value]) -> str:
    """One ``#define`` a line: every parameter's value, and the problem's text values.

    Integers are written as they are, booleans as 1 or 0, floats as Python's repr. A text value ``v`` of a name ``N``
    becomes ``#define N_V 1`` (upper case; whatever is no letter or digit becomes ``_``). The problem's numbers are
    left out: the kernel receives them as arguments, so that one binary serves every size. Without a config only the
    problem's macros are defined. Raises KernelError where two values would define the same macro.
    """
    lines: dict[str, str] = {}
    for name, text in _macros(parameters, config, problem):
        if name in lines:
            raise KernelError(f"defines the macro {name} twice", key="parameters", remedy="rename one of the values")
        lines[name] = f"#define {name} {text}\n"
    return "".join(lines.values())


def with_source(defines: str, file_name: str, source: str) -> str:
    """The translation unit: the defines, then the source under its own name and line numbers."""
    quoted = file_name.replace("\\", "\\\\").replace('"', '\\"')
    return f'{defines}#line 1 "{quoted}"\n{source}'


def text_macro(name: str, value: str) -> str:
    """The macro that stands for a text value: ``text_macro("dtype", "float32") == "DTYPE_FLOAT32"``."""
    return re.sub(r"[^A-Za-z0-9]", "_", f"{name}_{value}").upper()


def _macros(
    parameters: Sequence[Parameter], config: Config | None, problem: Mapping[str, Value]
) -> Iterator[tuple[str, str]]:
    if config is not None:
        for parameter in parameters:
            yield _parameter_macro(parameter, config[parameter.name])
    for name in sorted(problem):
        value = problem[name]
        if isinstance(value, str):
            yield text_macro(name, value), "1"


def _parameter_macro(parameter: Parameter, value: Value) -> tuple[str, str]:
    if not isinstance(value, str):
        return parameter.name, str(int(value)) if isinstance(value, bool) else repr(value)
    macro = text_macro(parameter.name, value)
    alike = [v for v in parameter.values if isinstance(v, str) and text_macro(parameter.name, v) == macro]
    if len(set(alike)) > 1:
        raise KernelError(f"values {alike} share the macro {macro}", key=parameter.name, remedy="rename one of them")
    return macro, "1"
