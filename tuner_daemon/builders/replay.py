"""The Builder of replayed spaces: nothing is built, because what ran was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuner_daemon.records.measurement import Artifact, Failure
from tuner_daemon.records.space import Config
from tuner_daemon.records.spec import KernelSpec


class ReplayBuilder:
    """Every configuration is an Artifact of its own at once: ``sha256`` is the configuration's key."""

    def build(self, spec: KernelSpec, configs: Sequence[Config]) -> Iterator[Artifact | Failure]:
        return iter([_artifact(spec, config) for config in configs])

    def build_reference(self, spec: KernelSpec) -> Artifact:
        return _artifact(spec, Config((), ()))

    def close(self) -> None:
        """Holds nothing."""


def _artifact(spec: KernelSpec, config: Config) -> Artifact:
    return Artifact(config, spec.kernel.folder, entry="", sha256=config.key, build_s=0.0)
