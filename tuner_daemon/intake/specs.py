"""Loads a spec: finds its kernel, and checks the problem against what the kernel declares."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner_daemon.errors import KernelError, SpecError
from tuner_daemon.intake.declared import check_value, nearest, range_fault
from tuner_daemon.intake.documents import Document, parse
from tuner_daemon.intake.files import read_spec_text
from tuner_daemon.intake.kernels import kernel_from_document, load_kernel
from tuner_daemon.intake.schema import DTYPES, KernelTables, SpecTables, shown, validated
from tuner_daemon.records.kernel import Argument, Kernel, Value
from tuner_daemon.records.spec import Budget, DeviceRequest, KernelSpec, Options, spec_in

__all__ = ["available_templates", "load_spec", "priority_of", "read_spec_text", "spec_from_document", "templates_dir"]

_OWN_TABLES = frozenset(KernelTables.model_fields) - {"problem"}
_KEYS = (*SpecTables.model_fields, *sorted(_OWN_TABLES))
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def templates_dir() -> Path:
    """The kernel families that ship with us: the packaged folder, or the checkout's."""
    here = Path(__file__).resolve().parent.parent
    packaged = here / "_templates"
    return packaged if packaged.is_dir() else here.parent / "templates"


def priority_of(path: Path) -> int:
    """``options.priority`` of a waiting spec; 0 where it cannot be read: loading it will say why."""
    file = _spec_file(path)
    try:
        options = parse(read_spec_text(file), file, SpecError).tables.get("options")
    except SpecError:
        return 0
    priority = options.get("priority", 0) if isinstance(options, dict) else 0
    return priority if isinstance(priority, int) else 0


def _spec_file(path: Path) -> Path:
    """The file itself, or the spec in a job's folder (spec.toml where there is none, which is what an error names)."""
    if not path.is_dir() or path.is_symlink():
        return path
    return spec_in(path) or path / "spec.toml"


def available_templates(template_dirs: Sequence[Path]) -> dict[str, Path]:
    """Family name -> kernel folder; the first of the folders that has a family wins."""
    found: dict[str, Path] = {}
    for folder in template_dirs:
        for declaration in sorted(folder.glob("*/kernel.toml")):
            found.setdefault(declaration.parent.name, declaration.parent)
    return found


def load_spec(
    path: Path, *, template_dirs: Sequence[Path], default_device: DeviceRequest, default_budget: Budget
) -> KernelSpec:
    """The spec in a TOML or JSON file, or in a folder's ``spec.toml`` or ``spec.json``. The file is read once.

    Raises SpecError or KernelError with file, key, line and what to do.
    """
    file = _spec_file(path)
    document = parse(read_spec_text(file), file, SpecError)
    name = (path.name if file != path else path.stem).encode("utf-8", "replace").decode()
    return spec_from_document(
        document, name, template_dirs=template_dirs, default_device=default_device, default_budget=default_budget
    )


def spec_from_document(
    document: Document,
    name: str,
    *,
    template_dirs: Sequence[Path],
    default_device: DeviceRequest,
    default_budget: Budget,
) -> KernelSpec:
    """As :func:`load_spec`, from a parsed file. ``name`` is for people."""
    for key in document.tables:
        if key not in _KEYS:
            raise document.fault((key,), "is not a known key", remedy=nearest(key, _KEYS))
    own = {key: value for key, value in document.tables.items() if key in _OWN_TABLES}
    asked = {key: value for key, value in document.tables.items() if key not in _OWN_TABLES}
    tables = validated(SpecTables, asked, document)
    kernel = _kernel(tables, own, document, template_dirs)
    kind = tables.device.kind or default_device.kind
    named = {"kind", "index"} & tables.device.model_fields_set
    device = DeviceRequest(kind, tables.device.index if named else default_device.index)
    _check_language(document, kernel, device)
    budget = Budget(
        tables.budget.measurements or default_budget.measurements,
        tables.budget.seconds or default_budget.seconds,
    )
    options = Options(tables.options.force, tables.options.priority)
    return KernelSpec(kernel, _problem(document, kernel, tables.problem), device, budget, options, name)


def _kernel(tables: SpecTables, own: Mapping[str, Any], document: Document, template_dirs: Sequence[Path]) -> Kernel:
    given = [key for key in ("template", "kernel") if getattr(tables, key) is not None]
    if own:
        given.append(next(iter(own)))
    if len(given) != 1:
        problem = f"has both {given[0]} and {given[1]}" if given else "names no kernel"
        remedy = "want one of template = …, kernel = …, or the kernel's own tables"
        raise SpecError(problem, file=document.file, remedy=remedy)
    if tables.template is not None:
        return _template(tables.template, document, template_dirs)
    if tables.kernel is not None:
        return _beside(tables.kernel, document)
    return _inline(tables, own, document)


def _template(name: str, document: Document, template_dirs: Sequence[Path]) -> Kernel:
    known = available_templates(template_dirs)
    if name not in known:
        raise document.fault(("template",), f"is {shown(name)}, which is not there", remedy=nearest(name, known))
    return load_kernel(known[name])


def _beside(name: str, document: Document) -> Kernel:
    folder = document.file.absolute().parent / name
    if not _PLAIN_NAME.fullmatch(name):
        raise document.fault(("kernel",), f"is {shown(name)}", remedy="name a folder beside the spec")
    if folder.is_symlink():
        raise document.fault(("kernel",), f"is {shown(name)}, a symbolic link", remedy="put the folder itself there")
    if not folder.is_dir():
        beside = [p.parent.name for p in folder.parent.glob("*/kernel.toml")]
        remedy = f"put the folder beside the spec; {nearest(name, beside)}"
        raise document.fault(("kernel",), f"is {shown(name)}, which is not there", remedy=remedy)
    return load_kernel(folder)


def _inline(tables: SpecTables, own: Mapping[str, Any], document: Document) -> Kernel:
    """A kernel whose tables are the spec's own. Its problem's types follow from the values asked for.

    Neither the name of the dropped file nor the order of keys in it is a part of the question: without a name the
    kernel is called as its source file, and its tables are read in the order of their keys.
    """
    kinds = {bool: "bool", int: "int", float: "float", str: "str"}
    declared: dict[str, Any] = {}
    for name, value in tables.problem.items():
        if isinstance(value, bool):
            raise document.fault(("problem", name), f"is {shown(value)}", remedy="use 0 or 1, or text")
        declared[name] = {"type": kinds[type(value)]}
    whole = _in_order({"name": _name_of_source(own), **own, "problem": declared})
    return kernel_from_document(replace(document, tables=whole, error=KernelError), document.file.absolute().parent)


def _name_of_source(own: Mapping[str, Any]) -> str:
    sources = own.get("sources")
    named = [sources.get(language) for language in ("cuda", "cpu")] if isinstance(sources, dict) else []
    files = [value.get("file") if isinstance(value, dict) else value for value in named]
    stem = next((Path(file).stem for file in files if isinstance(file, str)), "")
    return re.sub(r"\W", "_", stem, flags=re.ASCII) or "kernel"


def _in_order(value: Any) -> Any:
    """Tables in the order of their keys, at every depth; lists as they are."""
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(item) for item in value] if isinstance(value, list) else value


def _check_language(document: Document, kernel: Kernel, device: DeviceRequest) -> None:
    if device.kind == "replay":
        return
    keys = ("device", "kind")
    if device.language not in kernel.sources:
        has = ", ".join(kernel.sources) or "no source: it is a recorded space, for the device kind replay"
        problem = f'is "{device.kind}", but {kernel.name} has {has}'
        raise document.fault(keys, problem, remedy=f"ask for another kind, or add sources.{device.language}")
    references = kernel.reference.sources
    if references and device.language not in references:
        problem = f'is "{device.kind}", but the reference of {kernel.name} is for {", ".join(references)}'
        raise document.fault(keys, problem, remedy=f"add reference.{device.language}")


def _problem(document: Document, kernel: Kernel, given: Mapping[str, Value]) -> Mapping[str, Value]:
    """A value for every variable that the kernel declares, in its order."""
    declared = {variable.name: variable for variable in kernel.problem}
    for name in given:
        if name not in declared:
            problem = f"is not declared by {kernel.name}"
            raise document.fault(("problem", name), problem, remedy=nearest(name, declared))
    missing = [v.name for v in kernel.problem if v.name not in given and v.default is None]
    if missing:
        names = ", ".join(f"problem.{name}" for name in missing)
        raise SpecError(f"does not give {names}", file=document.file, remedy=f"{kernel.name} needs it: add it")
    values: dict[str, Value] = {}
    for variable in kernel.problem:
        if variable.name in given:
            value = check_value(document, variable, given[variable.name], ("problem", variable.name))
        else:
            assert variable.default is not None  # missing ones were refused
            value = variable.default
        values[variable.name] = value
    for argument in kernel.arguments:
        dtype = values.get(argument.dtype, argument.dtype)
        if dtype not in DTYPES:
            raise document.fault(("problem", argument.dtype), f"is {shown(dtype)}", remedy=nearest(str(dtype), DTYPES))
        _check_range(document, kernel, argument, values)
    return values


def _check_range(document: Document, kernel: Kernel, argument: Argument, values: Mapping[str, Value]) -> None:
    if argument.low is None or argument.high is None:
        return
    low, high = (float(bound.evaluate(values)) for bound in (argument.low, argument.high))
    wrong = range_fault(argument.fill, low, high)
    if wrong:
        problem = f"makes arguments.{argument.name}.high of {kernel.name} ({argument.high.text}) wrong: it {wrong}"
        raise document.fault(("problem",), problem, remedy="choose other sizes")
