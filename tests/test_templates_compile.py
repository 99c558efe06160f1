"""The shipped kernels compile for the GPUs that are sold, without one: NVRTC needs none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.families import FAMILIES, Family, Problem, family
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.nvrtc import NvrtcBuilder
from tuner_daemon.records.measurement import Artifact, Failure
from tuner_daemon.records.space import Config

ARCHITECTURES = ("sm_80", "sm_90")
ALL_ARCHITECTURES = (*ARCHITECTURES, "sm_100")
SAMPLE, LARGE_SAMPLE = 6, 100  # configurations of a family for one architecture, over its variants in turn
SHARE_THAT_BUILDS = 0.95
REGISTERS_PER_BLOCK = 65536
REGISTERS_PER_THREAD = 255
STATIC_SHARED_BYTES = 48 << 10
MOST_SHARED_BYTES = 163 << 10


@pytest.fixture(scope="module")
def builders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NvrtcBuilder]]:
    cache = BuildCache(tmp_path_factory.mktemp("cache"), 1 << 30)
    made = {arch: NvrtcBuilder(cache, arch=arch, jobs=2) for arch in ALL_ARCHITECTURES}
    yield made
    for builder in made.values():
        builder.close()


def shortcoming(of: Family, problem: Problem, item: Artifact | Failure) -> str:
    """Why it would not be launched; empty if nothing is known against it."""
    if isinstance(item, Failure):
        return item.detail
    names = {**problem, **item.config.as_dict()}
    threads = 1
    for extent in of.kernel.launch.block:
        threads *= int(extent.evaluate(names))
    assert item.registers is not None
    # As the hardware hands them out: by the warp, in units of 256.
    registers = -(-item.registers * 32 // 256) * 256 * -(-threads // 32)
    dynamic, static = int(of.kernel.launch.shared_bytes.evaluate(names)), item.shared_bytes or 0
    checks = {
        f"{registers} registers": item.registers > REGISTERS_PER_THREAD or registers > REGISTERS_PER_BLOCK,
        f"{static} + {dynamic} bytes": static > STATIC_SHARED_BYTES or static + dynamic > MOST_SHARED_BYTES,
    }
    return ", ".join(what for what, exceeded in checks.items() if exceeded)


def shortcomings(of: Family, builder: NvrtcBuilder, count: int, seed: int) -> list[str]:
    """Of ``count`` sampled configurations, at least one of every variant, and the baseline's."""
    found: list[str] = []
    count = max(count, len(of.variants))
    for number, problem in enumerate(of.variants):
        share = len(range(number, count, len(of.variants)))
        configs: Sequence[Config] = of.sampled(share, seed, problem) if share else []
        if number == 0:
            configs = [Config.of(of.baseline), *configs]
        built = list(builder.build(of.spec(problem, kind="cuda"), configs))
        assert len(built) == len(configs)
        found += [shortcoming(of, problem, item) for item in built]
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", FAMILIES)
def test_sampled_configurations_compile_and_fit_a_block(
    builders: dict[str, NvrtcBuilder], name: str, arch: str
) -> None:
    found = shortcomings(family(name), builders[arch], SAMPLE, seed=11)
    assert found == [""] * len(found)
    assert len(found) > SAMPLE


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("arch", ALL_ARCHITECTURES)
@pytest.mark.parametrize("name", FAMILIES)
def test_nearly_all_configurations_compile_and_fit_a_block(
    builders: dict[str, NvrtcBuilder], name: str, arch: str
) -> None:
    found = shortcomings(family(name), builders[arch], LARGE_SAMPLE, seed=12)
    assert found.count("") >= SHARE_THAT_BUILDS * len(found), next(filter(None, found))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_reference_compiles(builders: dict[str, NvrtcBuilder], name: str) -> None:
    of = family(name)
    for problem in of.variants:
        assert builders["sm_80"].build_reference(of.spec(problem, kind="cuda")).entry == f"{name}_reference"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_source_with_a_slip_does_not_compile(builders: dict[str, NvrtcBuilder], name: str, tmp_path: Path) -> None:
    of = family(name)
    file = tmp_path / "kernel.cu"
    file.write_text(of.kernel.sources["cuda"].file.read_text().replace("extern", "extren"))
    sources = {"cuda": dataclasses.replace(of.kernel.sources["cuda"], file=file)}
    broken = dataclasses.replace(of.kernel, folder=tmp_path, sources=sources, sha256="broken")
    problem = of.variants[0]
    built = list(builders["sm_80"].build(of.spec(problem, kind="cuda", kernel=broken), of.sampled(2, 12, problem)))
    assert len(built) == 2
    assert all(isinstance(item, Failure) for item in built)
    assert all(shortcoming(of, problem, item) for item in built)
