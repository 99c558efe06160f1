"""The builder of recorded spaces."""

from __future__ import annotations

from pathlib import Path

from tests.builds import CONFIGS, artifact
from tests.fakes import spec_for, vector_add_kernel
from tuner_daemon.builders.replay import ReplayBuilder
from tuner_daemon.interfaces import Builder
from tuner_daemon.records.space import Config


def test_replay_builds_nothing(tmp_path: Path) -> None:
    builder: Builder = ReplayBuilder()
    kernel = vector_add_kernel(tmp_path)
    items = [artifact(item) for item in builder.build(spec_for(kernel, "replay"), CONFIGS)]
    assert [item.config for item in items] == CONFIGS
    assert [item.sha256 for item in items] == [config.key for config in CONFIGS]
    assert {(item.path, item.build_s) for item in items} == {(kernel.folder, 0.0)}
    assert builder.build_reference(spec_for(kernel, "replay")).config == Config((), ())
    builder.close()
