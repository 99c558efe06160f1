"""Loads a collection plan: which kernels, problems and how many configurations to measure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tuner_daemon.errors import SpecError
from tuner_daemon.intake.declared import nearest
from tuner_daemon.intake.documents import Document, parse
from tuner_daemon.intake.files import read_spec_text
from tuner_daemon.intake.schema import Name, Scalar, Table, validated
from tuner_daemon.intake.specs import spec_from_document
from tuner_daemon.records.kernel import Kernel, Parameter, Value
from tuner_daemon.records.spec import Budget, DeviceRequest, KernelSpec


class TaskTable(Table):
    """One kernel on several problems."""

    template: Name
    count: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["all"]  # configurations per problem
    seed: Annotated[int, Field(ge=0)] = 0
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0  # for checking and timing one candidate
    problems: Annotated[list[dict[str, Scalar]], Field(min_length=1)]
    values: Annotated[dict[str, Annotated[list[Scalar], Field(min_length=1)]], Field(default_factory=dict)]
    device: Annotated[dict[str, Scalar], Field(default_factory=dict)]


class PlanTables(Table):
    """``[[task]]`` …"""

    task: Annotated[list[TaskTable], Field(min_length=1)]


@dataclass(frozen=True)
class PlannedTask:
    """One problem of a plan. ``job`` names its rows in the log: the same plan goes on where it stopped. ``count``: how
    many configurations; None: all. The kernel's parameters have the values that the plan leaves them; its hash is the
    whole kernel's, whose binaries they are."""

    job: str
    spec: KernelSpec
    count: int | None
    seed: int
    timeout_s: float

    @property
    def binaries(self) -> str:
        """Equal for tasks whose candidates, those with the same configuration, are the same binaries."""
        texts = {name: value for name, value in self.spec.problem.items() if isinstance(value, str)}
        values = [[p.name, p.values] for p in self.spec.kernel.parameters]
        identity = [self.spec.kernel.sha256, texts, values, str(self.spec.device), self.count, self.seed]
        return json.dumps(identity, sort_keys=True)


def load_plan(path: Path, *, template_dirs: Sequence[Path], default_device: DeviceRequest) -> list[PlannedTask]:
    """Raises SpecError or KernelError with file, key, line and what to do."""
    document = parse(read_spec_text(path), path, SpecError)
    plan = validated(PlanTables, document.tables, document)
    sources = _Sources(template_dirs, default_device)
    return [task for at, table in enumerate(plan.task) for task in _planned(document, at, table, sources)]


@dataclass(frozen=True)
class _Sources:
    """Where kernels are looked for, and the device of a task that names none."""

    template_dirs: Sequence[Path]
    default_device: DeviceRequest


def _planned(document: Document, at: int, table: TaskTable, sources: _Sources) -> Iterator[PlannedTask]:
    count = None if table.count == "all" else table.count
    for problem in table.problems:
        one = {"template": table.template, "problem": problem, "device": table.device}
        spec = spec_from_document(
            replace(document, tables=one),
            document.file.stem,
            template_dirs=sources.template_dirs,
            default_device=sources.default_device,
            default_budget=Budget(),
        )
        job = _job(spec, table.seed, table.values)
        kernel = _narrowed(spec.kernel, table.values, document, at)
        yield PlannedTask(job, replace(spec, kernel=kernel), count, table.seed, table.timeout_s)


def _narrowed(kernel: Kernel, values: Mapping[str, Sequence[Value]], document: Document, at: int) -> Kernel:
    """The kernel with some of its parameters' values, in their declared order. Raises SpecError."""
    names = [parameter.name for parameter in kernel.parameters]
    for name in values:
        if name not in names:
            keys = ("task", at, "values", name)
            raise document.fault(keys, f"is no parameter of {kernel.name}", remedy=nearest(name, names))
    return replace(kernel, parameters=tuple(_kept(p, values.get(p.name), document, at) for p in kernel.parameters))


def _kept(parameter: Parameter, chosen: Sequence[Value] | None, document: Document, at: int) -> Parameter:
    if chosen is None:
        return parameter
    known = {json.dumps(value) for value in parameter.values}  # as texts: true is not 1
    for value in chosen:
        if json.dumps(value) not in known:
            keys = ("task", at, "values", parameter.name)
            allowed = ", ".join(json.dumps(v) for v in parameter.values)
            raise document.fault(keys, f"has {json.dumps(value)}, which it never is", remedy=f"use some of {allowed}")
    wanted = {json.dumps(value) for value in chosen}
    return replace(parameter, values=tuple(v for v in parameter.values if json.dumps(v) in wanted))


def _job(spec: KernelSpec, seed: int, values: Mapping[str, Sequence[Value]]) -> str:
    identity: list[Any] = [spec.identity, seed, *([sorted(values.items())] if values else [])]
    return f"collect-{spec.kernel.name}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]}"
