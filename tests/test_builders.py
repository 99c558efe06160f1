from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

from tests.builds import CONFIGS, SLOW_CU, artifact, needs_nvcc, needs_nvrtc, one, refusal
from tests.fakes import KERNEL_C, KERNEL_CU, spec_for, vector_add_kernel
from tests.waiting import command_line
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.compiling import CompilingBuilder
from tuner_daemon.builders.cubin import real_arch
from tuner_daemon.builders.cuda import cuda_builder
from tuner_daemon.builders.gcc import GccBuilder
from tuner_daemon.builders.nvcc import NvccBuilder
from tuner_daemon.builders.nvrtc import NvrtcBuilder
from tuner_daemon.errors import KernelError, MissingPartError
from tuner_daemon.records.kernel import Kernel, Reference, Source
from tuner_daemon.records.measurement import Failure
from tuner_daemon.records.space import Config


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "cache", 1 << 28)


@pytest.fixture(scope="module")
def nvrtc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvrtcBuilder]:
    builder = NvrtcBuilder(BuildCache(tmp_path_factory.mktemp("nvrtc"), 1 << 28), arch="sm_90", jobs=2)
    yield builder
    builder.close()


@pytest.fixture
def gcc(cache: BuildCache) -> Iterator[GccBuilder]:
    builder = GccBuilder(cache, jobs=2)
    yield builder
    builder.close()


@pytest.fixture
def nvcc(cache: BuildCache) -> Iterator[NvccBuilder]:
    builder = NvccBuilder(cache, arch="sm_90", jobs=2)
    yield builder
    builder.close()


class BuilderContract:
    """What every compiling Builder does; subclasses provide ``builder`` and the two facts below."""

    kind: str
    source: str  # of the candidate, with BLOCK and WORK in it

    @pytest.fixture
    def builder(self) -> CompilingBuilder:
        raise NotImplementedError

    def kernel(self, folder: Path, text: str | None = None) -> Kernel:
        source = self.source if text is None else text
        return vector_add_kernel(folder, cuda=source, cpu=source)

    def test_every_config_gives_one_artifact(self, builder: CompilingBuilder, tmp_path: Path) -> None:
        items = [artifact(item) for item in builder.build(spec_for(self.kernel(tmp_path / "k"), self.kind), CONFIGS)]
        assert {item.config for item in items} == set(CONFIGS)
        assert {item.entry for item in items} == {"vector_add"}
        assert all(item.path.read_bytes().startswith(b"\x7fELF") for item in items)
        assert all(item.build_s > 0.0 and not item.cached for item in items)

    def test_a_binary_serves_every_problem_size(self, builder: CompilingBuilder, tmp_path: Path) -> None:
        kernel = self.kernel(tmp_path / "k", self.source + "/* sizes */\n")
        first = artifact(next(iter(builder.build(spec_for(kernel, self.kind, n=100), CONFIGS[:1]))))
        second = artifact(next(iter(builder.build(spec_for(kernel, self.kind, n=200), CONFIGS[:1]))))
        other_type = artifact(next(iter(builder.build(spec_for(kernel, self.kind, n=200, t="half"), CONFIGS[:1]))))
        assert (first.cached, second.cached, other_type.cached) == (False, True, False)
        assert (second.path, second.build_s) == (first.path, 0.0)

    def test_a_source_that_does_not_compile_says_where(self, builder: CompilingBuilder, tmp_path: Path) -> None:
        kernel = self.kernel(tmp_path / "k", self.source + "int broken = undeclared_name;\n")
        line = self.source.count("\n") + 1
        for _ in range(2):  # the second answer is the cache's
            detail = refusal(one(builder, kernel, self.kind))
            assert "undeclared_name" in detail
            assert str(line) in detail
            assert str(tmp_path) not in detail

    def test_a_bad_config_is_a_value_and_the_others_go_on(self, builder: CompilingBuilder, tmp_path: Path) -> None:
        text = f"#if BLOCK == 64\n#error sixty-four\n#endif\n{self.source}"
        items = list(builder.build(spec_for(self.kernel(tmp_path / "k", text), self.kind), CONFIGS))
        failed = {item.config for item in items if isinstance(item, Failure) and "sixty-four" in item.detail}
        assert failed == {config for config in CONFIGS if config["BLOCK"] == 64}
        assert len(items) == len(CONFIGS)

    def test_a_missing_entry_is_named_with_what_there_is(self, builder: CompilingBuilder, tmp_path: Path) -> None:
        kernel = self.kernel(tmp_path / "k", self.source.replace("vector_add", "vector_sub"))
        detail = refusal(one(builder, kernel, self.kind))
        assert "vector_add is not defined" in detail
        assert "vector_sub" in detail

    def test_headers_of_the_kernel_folder_are_found_and_count(self, builder: CompilingBuilder, tmp_path: Path) -> None:
        kernel = self.kernel(tmp_path / "k", '#include "sub/helper.h"\n' + self.source.replace("a[i] +", "HELP a[i] +"))
        (tmp_path / "k" / "sub").mkdir()
        header = tmp_path / "k" / "sub" / "helper.h"
        header.write_text("#define HELP 2.0f *\n")
        first = artifact(one(builder, kernel, self.kind))
        header.write_text("#define HELP 3.0f *\n")
        assert artifact(one(builder, kernel, self.kind)).sha256 != first.sha256

    @pytest.mark.parametrize("name", ["/etc/passwd", "../secret.h"])
    def test_no_source_reads_files_outside_its_folder(
        self, builder: CompilingBuilder, tmp_path: Path, name: str
    ) -> None:
        (tmp_path / "secret.h").write_text("hunter2\n")
        items = list(builder.build(spec_for(self.kernel(tmp_path / "k", f'#include "{name}"\n'), self.kind), CONFIGS))
        assert len(items) == len(CONFIGS)
        assert all("outside its kernel folder" in refusal(item) for item in items)

    def test_the_working_folder_is_not_searched_for_headers(
        self, builder: CompilingBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "secret.h").write_text("hunter2\n")
        monkeypatch.chdir(tmp_path)
        detail = refusal(one(builder, self.kernel(tmp_path / "k", '#include "secret.h"\n'), self.kind))
        assert "secret.h" in detail
        assert "hunter2" not in detail

    def test_a_kernel_without_this_language_is_refused_at_the_call(
        self, builder: CompilingBuilder, tmp_path: Path
    ) -> None:
        kernel = dataclasses.replace(self.kernel(tmp_path / "k"), sources=MappingProxyType({}))
        with pytest.raises(KernelError, match=f"no source for {builder.language}"):
            builder.build(spec_for(kernel, self.kind), CONFIGS)

    def test_the_reference_is_built_without_parameters(self, builder: CompilingBuilder, tmp_path: Path) -> None:
        built = builder.build_reference(spec_for(self.kernel(tmp_path / "k"), self.kind))
        assert (built.entry, built.config) == ("vector_add_reference", Config((), ()))
        assert built.path.is_file()

    def test_a_reference_that_does_not_compile_is_the_kernels_error(
        self, builder: CompilingBuilder, tmp_path: Path
    ) -> None:
        kernel = self.kernel(tmp_path / "k")
        kernel.reference.sources[builder.language].file.write_text("#error nonsense_here\n")
        with pytest.raises(KernelError, match=r"reference\.c[^\n]*nonsense_here"):
            builder.build_reference(spec_for(kernel, self.kind))
        without = dataclasses.replace(kernel, reference=Reference(config={"BLOCK": 32, "WORK": 1}))
        with pytest.raises(KernelError, match="no reference source"):
            builder.build_reference(spec_for(without, self.kind))


class TestGccBuilder(BuilderContract):
    kind = "cpu"
    source = KERNEL_C

    @pytest.fixture
    def builder(self, gcc: GccBuilder) -> CompilingBuilder:
        return gcc

    def test_the_function_computes(self, gcc: GccBuilder, tmp_path: Path) -> None:
        built = artifact(one(gcc, self.kernel(tmp_path / "k"), "cpu"))
        three = ctypes.c_float * 3
        c = three()
        ctypes.CDLL(str(built.path)).vector_add(three(1, 2, 3), three(10, 20, 30), c, 3)
        assert list(c) == [11, 22, 33]

    def test_the_compiler_is_named(self, gcc: GccBuilder) -> None:
        assert gcc.compiler.startswith("gcc ")


@needs_nvrtc
class TestNvrtcBuilder(BuilderContract):
    kind = "cuda"
    source = KERNEL_CU

    @pytest.fixture
    def builder(self, nvrtc: NvrtcBuilder) -> CompilingBuilder:
        return nvrtc

    def test_ptxas_figures_are_read(self, nvrtc: NvrtcBuilder, tmp_path: Path) -> None:
        text = KERNEL_CU.replace("{\n", "{\n  __shared__ float s[BLOCK];\n  s[threadIdx.x] = b[0];\n", 1)
        text = text.replace("+ b[i]", "+ s[i % BLOCK]")
        built = artifact(one(nvrtc, self.kernel(tmp_path / "k", text), "cuda"))
        assert built.shared_bytes == 4 * 32
        assert built.registers is not None
        assert 4 <= built.registers <= 255
        assert built.spill_bytes == 0

    def test_a_template_entry_is_instantiated_with_the_parameters(self, nvrtc: NvrtcBuilder, tmp_path: Path) -> None:
        text = "namespace ns { template <int B, class T> __global__ void f(T* c) { c[threadIdx.x] = B; } }\n"
        kernel = self.kernel(tmp_path / "k", text)
        source = Source("cuda", kernel.sources["cuda"].file, "ns::f<BLOCK * 2, float>")
        kernel = dataclasses.replace(kernel, sources={"cuda": source})
        entries = {artifact(item).entry for item in nvrtc.build(spec_for(kernel, "cuda"), CONFIGS)}
        assert entries == {"_ZN2ns1fILi64EfEEvPT0_", "_ZN2ns1fILi128EfEEvPT0_"}

    def test_c_headers_have_substitutes(self, nvrtc: NvrtcBuilder, tmp_path: Path) -> None:
        names = ("cuda_runtime.h", "cstdint", "stdint.h", "math.h", "cmath", "cfloat", "climits", "stdio.h", "cassert")
        text = "".join(f"#include <{name}>\n" for name in names) + (
            'extern "C" __global__ void vector_add(std::uint64_t* p, float* q) {\n'
            "  static_assert(sizeof(std::uint64_t) == 8 && sizeof(int16_t) == 2 && INT32_MAX == INT_MAX);\n"
            '  assert(p); if (q[0] < -INFINITY || q[0] > FLT_MAX) printf("%f", M_PI);\n  p[0] = UINT64_MAX;\n}\n'
        )
        artifact(one(nvrtc, self.kernel(tmp_path / "k", text), "cuda"))

    def test_a_compiler_that_takes_too_long_is_stopped_and_the_next_one_works(
        self, cache: BuildCache, tmp_path: Path
    ) -> None:
        builder = NvrtcBuilder(cache, arch="sm_90", jobs=1, timeout_s=1.0)
        try:
            _ = builder.compiler
            started = time.monotonic()
            assert "stopped after 1 s" in refusal(one(builder, self.kernel(tmp_path / "slow", SLOW_CU), "cuda"))
            assert time.monotonic() - started < 10.0
            artifact(one(builder, self.kernel(tmp_path / "fast"), "cuda"))
        finally:
            builder.close()

    def test_a_compiler_that_dies_costs_one_candidate(self, cache: BuildCache, tmp_path: Path) -> None:
        builder = NvrtcBuilder(cache, arch="sm_90", jobs=1)
        try:
            _ = builder.compiler
            stream = builder.build(spec_for(self.kernel(tmp_path / "slow", SLOW_CU), "cuda"), CONFIGS[:1])
            time.sleep(0.3)
            for worker in compiling_workers():
                worker.kill()
            assert "brought its process down" in refusal(next(stream))
            artifact(one(builder, self.kernel(tmp_path / "fast"), "cuda"))
        finally:
            builder.close()

    def test_a_cubin_without_end_is_refused_where_it_was_made(self, cache: BuildCache, tmp_path: Path) -> None:
        builder = NvrtcBuilder(cache, arch="sm_90", jobs=1, output_bytes=1 << 20)
        try:
            large = self.kernel(tmp_path / "large", "__device__ int table[1 << 19] = {1};")
            assert refusal(one(builder, large, "cuda")) == "the cubin has 2 MiB; at most 1 are allowed"
            artifact(one(builder, self.kernel(tmp_path / "small"), "cuda"))
        finally:
            builder.close()

    def test_what_is_built_for_one_architecture_does_not_serve_another(self, cache: BuildCache, tmp_path: Path) -> None:
        kernel, built = self.kernel(tmp_path / "k"), []
        for arch in ("sm_80", "sm_90", "sm_80"):
            builder = NvrtcBuilder(cache, arch=arch, jobs=1)
            built.append(artifact(one(builder, kernel, "cuda")))
            builder.close()
        assert [item.cached for item in built] == [False, False, True]
        assert built[0].sha256 == built[2].sha256 != built[1].sha256

    def test_a_worker_too_small_for_nvrtc_is_a_missing_part(self, cache: BuildCache) -> None:
        builder = NvrtcBuilder(cache, arch="sm_90", jobs=1, memory_bytes=192 << 20)
        with pytest.raises(MissingPartError, match="NVRTC cannot be loaded"):
            _ = builder.compiler
        builder.close()

    def test_an_idle_worker_that_dies_is_replaced(self, cache: BuildCache, tmp_path: Path) -> None:
        builder = NvrtcBuilder(cache, arch="sm_90", jobs=1)
        try:
            _ = builder.compiler
            for worker in compiling_workers():
                worker.kill()
            time.sleep(0.5)
            artifact(one(builder, self.kernel(tmp_path / "k"), "cuda"))
        finally:
            builder.close()

    def test_an_abandoned_build_frees_the_workers(self, cache: BuildCache, tmp_path: Path) -> None:
        builder = NvrtcBuilder(cache, arch="sm_90", jobs=1)
        try:
            _ = builder.compiler
            builder.build(spec_for(self.kernel(tmp_path / "slow", SLOW_CU), "cuda"), CONFIGS).close()
            started = time.monotonic()
            artifact(one(builder, self.kernel(tmp_path / "fast"), "cuda"))
            assert time.monotonic() - started < 10.0
        finally:
            builder.close()
        assert not compiling_workers()


def compiling_workers() -> list[psutil.Process]:
    """Processes forked from the fork server, the pool's workers: grandchildren that run Python."""
    return [
        grandchild
        for child in psutil.Process().children()
        if "forkserver" in command_line(child)
        for grandchild in child.children()
        if grandchild.status() != psutil.STATUS_ZOMBIE
    ]


@needs_nvcc
class TestNvccBuilder:
    def test_a_cubin_with_its_figures(self, nvcc: NvccBuilder, tmp_path: Path) -> None:
        text = KERNEL_CU.replace('extern "C" ', "").replace("__global__", "namespace ns { __global__") + "}\n"
        kernel = vector_add_kernel(tmp_path / "k", cuda=text)
        source = Source("cuda", kernel.sources["cuda"].file, "ns::vector_add")
        kernel = dataclasses.replace(kernel, sources={"cuda": source})
        built = artifact(one(nvcc, kernel, "cuda"))
        assert built.entry == "_ZN2ns10vector_addEPKfS1_Pfi"
        assert built.registers is not None
        assert (built.shared_bytes, built.spill_bytes) == (0, 0)

    def test_an_error_keeps_its_line(self, nvcc: NvccBuilder, tmp_path: Path) -> None:
        kernel = vector_add_kernel(tmp_path / "k", cuda=KERNEL_CU + "int broken = undeclared_name;\n")
        assert "kernel.cu(5): error" in refusal(one(nvcc, kernel, "cuda"))

    def test_a_template_needs_nvrtc(self, nvcc: NvccBuilder, tmp_path: Path) -> None:
        kernel = vector_add_kernel(tmp_path / "k")
        kernel = dataclasses.replace(kernel, sources={"cuda": Source("cuda", tmp_path / "k" / "kernel.cu", "f<BLOCK>")})
        assert "NVRTC" in refusal(one(nvcc, kernel, "cuda"))


@needs_nvrtc
def test_nvrtc_is_chosen_where_it_loads(cache: BuildCache) -> None:
    builder = cuda_builder(cache, arch="sm_90", jobs=1)
    try:
        assert builder.compiler.startswith("NVRTC ")
    finally:
        builder.close()


def test_no_cuda_compiler_at_all_says_what_to_install(
    cache: BuildCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingPartError, match=r"tuner-daemon\[cuda\].*nvcc"):
        cuda_builder(cache, arch="sm_90", jobs=1)
    monkeypatch.setattr(shutil, "which", lambda name: "/opt/nvcc")
    builder = cuda_builder(cache, arch="sm_90", jobs=1)
    assert isinstance(builder, NvccBuilder)
    builder.close()


@pytest.mark.parametrize(
    ("arch", "real"), [("sm_80", "sm_80"), ("sm_90", "sm_90a"), ("sm_90a", "sm_90a"), ("sm_120", "sm_120a")]
)
def test_the_variant_of_the_architecture_is_built(arch: str, real: str) -> None:
    assert real_arch(arch) == real
    with pytest.raises(MissingPartError, match="x86_64"):
        real_arch("x86_64")


WGMMA = """
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;");
#else
    WITHOUT_ITS_OWN_FEATURES;
#endif
"""


@needs_nvrtc
def test_features_of_the_architecture_itself_can_be_used(cache: BuildCache, tmp_path: Path) -> None:
    """wgmma, for one, assembles for sm_90a alone; rows say sm_90, the device's."""
    kernel = vector_add_kernel(tmp_path, cuda=KERNEL_CU.replace("{", "{" + WGMMA, 1))
    for arch, error in (("sm_90", ""), ("sm_80", "WITHOUT_ITS_OWN_FEATURES")):
        builder = NvrtcBuilder(cache, arch=arch, jobs=1)
        item = one(builder, kernel, "cuda")
        assert (refusal(item) if error else artifact(item).entry).count(error or "vector_add"), item
        builder.close()


@needs_nvcc
def test_nvcc_builds_for_the_architectures_own_features_too(cache: BuildCache, tmp_path: Path) -> None:
    kernel = vector_add_kernel(tmp_path, cuda=KERNEL_CU.replace("{", "{" + WGMMA, 1))
    builder = NvccBuilder(cache, arch="sm_90", jobs=1)
    artifact(one(builder, kernel, "cuda"))
    builder.close()


@pytest.mark.parametrize("change", ["nothing", "source", "config", "options", "compiler"])
def test_the_cache_is_asked_for_source_options_and_compiler(
    cache: BuildCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    kernel, config = vector_add_kernel(tmp_path / "k"), CONFIGS[0]
    first = GccBuilder(cache, jobs=1)
    artifact(one(first, kernel, "cpu", config))
    first.close()
    if change == "source":
        file = kernel.sources["cpu"].file
        file.write_text(f"{file.read_text()}\n")
    elif change == "config":
        config = CONFIGS[1]
    elif change == "options":
        monkeypatch.setattr("tuner_daemon.builders.gcc.OPTIONS", ("-O1", "-shared", "-fPIC"))
    elif change == "compiler":
        monkeypatch.setattr(GccBuilder, "_resolved", "gcc version 99")
    second = GccBuilder(cache, jobs=1)
    assert artifact(one(second, kernel, "cpu", config)).cached is (change == "nothing")
    second.close()
