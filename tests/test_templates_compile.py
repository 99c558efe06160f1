"""The shipped kernels compile for the GPUs that are sold, without one: NVRTC needs none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.template_kernels import FAMILIES, sampled, space_of, spec_of, template
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.nvrtc import NvrtcBuilder
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.measurement import Artifact, Failure

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SAMPLE = 100
REGISTERS_PER_BLOCK = 65536
REGISTERS_PER_THREAD = 255


@pytest.fixture(scope="module", params=ARCHITECTURES)
def nvrtc(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvrtcBuilder]:
    builder = NvrtcBuilder(BuildCache(tmp_path_factory.mktemp("cache"), 1 << 30), arch=request.param, jobs=2)
    yield builder
    builder.close()


def registers_of_a_block(family: str, artifact: Artifact) -> int:
    """As the hardware hands them out: by the warp, in units of 256."""
    names: dict[str, Value] = {**artifact.config.as_dict()}
    threads = int(template(family).launch.block[0].evaluate(names))
    assert artifact.registers is not None
    assert artifact.registers <= REGISTERS_PER_THREAD
    return -(-artifact.registers * 32 // 256) * 256 * (threads // 32)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_configurations_compile_and_fit_the_registers_of_a_block(nvrtc: NvrtcBuilder, family: str) -> None:
    baseline = template(family).baseline
    assert baseline is not None
    configs = [space_of(family).config(baseline), *sampled(family, SAMPLE, seed=11)]
    built = list(nvrtc.build(spec_of(family, kind="cuda"), configs))
    failures = [item for item in built if isinstance(item, Failure)]
    artifacts = [item for item in built if isinstance(item, Artifact)]
    assert not failures, failures[0]
    assert len(artifacts) == SAMPLE + 1
    assert all(registers_of_a_block(family, artifact) <= REGISTERS_PER_BLOCK for artifact in artifacts)
    assert all(not artifact.shared_bytes for artifact in artifacts), "shared memory is the launch's to declare"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_compiles(nvrtc: NvrtcBuilder, family: str) -> None:
    assert nvrtc.build_reference(spec_of(family, kind="cuda")).entry == f"{family}_reference"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_source_with_a_slip_does_not_compile(nvrtc: NvrtcBuilder, family: str, tmp_path: Path) -> None:
    kernel = template(family)
    file = tmp_path / "kernel.cu"
    file.write_text(kernel.sources["cuda"].file.read_text().replace("__syncthreads();", "__syncthreads()"))
    sources = {"cuda": dataclasses.replace(kernel.sources["cuda"], file=file)}
    broken = dataclasses.replace(kernel, folder=tmp_path, sources=sources, sha256="broken")
    built = list(nvrtc.build(spec_of(family, kind="cuda", kernel=broken), sampled(family, 2, seed=12)))
    assert len(built) == 2
    assert all(isinstance(item, Failure) for item in built)
