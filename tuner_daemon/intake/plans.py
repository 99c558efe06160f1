"""Loads a collection plan: which kernels, problems and how many configurations to measure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tuner_daemon.errors import SpecError
from tuner_daemon.intake.documents import parse
from tuner_daemon.intake.files import read_spec_text
from tuner_daemon.intake.schema import Name, Scalar, Table, validated
from tuner_daemon.intake.specs import spec_from_document
from tuner_daemon.records.spec import Budget, DeviceRequest, KernelSpec


class TaskTable(Table):
    """One kernel on several problems."""

    template: Name
    count: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["all"]  # configurations per problem
    seed: Annotated[int, Field(ge=0)] = 0
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0  # for checking and timing one candidate
    problems: Annotated[list[dict[str, Scalar]], Field(min_length=1)]
    device: Annotated[dict[str, Scalar], Field(default_factory=dict)]


class PlanTables(Table):
    """``[[task]]`` …"""

    task: Annotated[list[TaskTable], Field(min_length=1)]


@dataclass(frozen=True)
class PlannedTask:
    """One problem of a plan. ``job`` names its rows in the log: the same plan goes on where it stopped. ``count``: how
    many configurations; None: all."""

    job: str
    spec: KernelSpec
    count: int | None
    seed: int
    timeout_s: float

    @property
    def binaries(self) -> str:
        """Equal for tasks whose candidates, those with the same configuration, are the same binaries."""
        texts = {name: value for name, value in self.spec.problem.items() if isinstance(value, str)}
        identity = [self.spec.kernel.sha256, texts, str(self.spec.device), self.count, self.seed]
        return json.dumps(identity, sort_keys=True)


def load_plan(path: Path, *, template_dirs: Sequence[Path], default_device: DeviceRequest) -> list[PlannedTask]:
    """Raises SpecError or KernelError with file, key, line and what to do."""
    document = parse(read_spec_text(path), path, SpecError)
    plan = validated(PlanTables, document.tables, document)

    def planned() -> Iterator[PlannedTask]:
        for table in plan.task:
            count = None if table.count == "all" else table.count
            for problem in table.problems:
                one = {"template": table.template, "problem": problem, "device": table.device}
                spec = spec_from_document(
                    replace(document, tables=one),
                    path.stem,
                    template_dirs=template_dirs,
                    default_device=default_device,
                    default_budget=Budget(),
                )
                yield PlannedTask(_job(spec, table.seed), spec, count, table.seed, table.timeout_s)

    return list(planned())


def _job(spec: KernelSpec, seed: int) -> str:
    identity: list[Any] = [spec.identity, seed]
    return f"collect-{spec.kernel.name}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]}"
