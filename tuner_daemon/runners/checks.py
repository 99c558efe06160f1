"""The worker's own kernels as a kernel folder, so that any builder of references can build them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import tuner_daemon
from tuner_daemon.errors import KernelError, MissingPartError
from tuner_daemon.interfaces import Builder
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Kernel, Launch, Reference, Source, Work
from tuner_daemon.records.measurement import Artifact
from tuner_daemon.records.spec import DeviceRequest, KernelSpec

SOURCE = Path(tuner_daemon.__file__).parent / "worker" / "checks.cu"
_ENTRY = "fingerprint"  # one of several: the worker knows the others


def build_checks(builder: Builder) -> Artifact | None:
    """None if there is no compiler for them: the worker then compares on the host."""
    try:
        return builder.build_reference(checks_spec())
    except (KernelError, MissingPartError):
        return None


def checks_spec() -> KernelSpec:
    one = (Expression.parse("1"),)
    kernel = Kernel(
        name="checks",
        folder=SOURCE.parent,
        sources={},
        problem=(),
        parameters=(),
        constraints=(),
        launch=Launch(one, one, Expression.parse("0")),
        arguments=(),
        reference=Reference(sources={"cuda": Source("cuda", SOURCE, _ENTRY)}),
        baseline=None,
        work=Work(),
        reduction_length=None,
        tolerance=None,
        sha256=hashlib.sha256(SOURCE.read_bytes()).hexdigest(),
        declaration="{}",
    )
    return KernelSpec(kernel, {}, DeviceRequest("cuda"))
