"""What stands in for a GPU computes what a GPU computes, and notices what it should."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.emulator import SANITIZERS, EmulatedError, Emulator
from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Argument, Kernel
from tuner_daemon.records.space import Config
from tuner_daemon.worker.arrays import from_bfloat16, to_bfloat16

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator is compiled with g++")

TOML = """
name = "probe"
[sources]
cuda = "kernel.cu"
[problem]
n = {{ type = "int", min = 1 }}
[parameters]
X = [{x}]
Y = [{y}]
Z = [{z}]
[launch]
block = ["X", "Y", "Z"]
grid = ["{blocks}"]
shared_bytes = "{shared_bytes}"
[[arguments]]
name = "given"
kind = "input"
dtype = "{takes}"
shape = ["n"]
[[arguments]]
name = "out"
kind = "output"
dtype = "{gives}"
shape = ["n"]
[[arguments]]
name = "n"
kind = "scalar"
[baseline]
config = {{ X = {x}, Y = {y}, Z = {z} }}
"""


def probe(
    folder: Path,
    body: str,
    *,
    x: int = 32,
    y: int = 1,
    z: int = 1,
    blocks: int = 1,
    shared_bytes: int = 0,
    takes: str = "int32",
    gives: str = "int32",
    before: str = "",
) -> tuple[Kernel, Config]:
    """A kernel of one statement, with `given`, `out`, `n` and the linear index `t` at hand."""
    types = {"int32": "int", "float32": "float", "bfloat16": "unsigned short", "uint32": "unsigned"}
    folder.mkdir(parents=True)
    toml = TOML.format(x=x, y=y, z=z, blocks=blocks, shared_bytes=shared_bytes, takes=takes, gives=gives)
    (folder / "kernel.toml").write_text(toml)
    (folder / "kernel.cu").write_text(
        f"{before}\nextern __shared__ float4 shared_storage[];\n"
        f'extern "C" __global__ void probe(const {types[takes]} *given, {types[gives]} *out, int n) {{\n'
        "    const int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);\n"
        f"    (void)n;\n{body}\n}}\n"
    )
    return load_kernel(folder), Config.of({"X": x, "Y": y, "Z": z})


def ran(folder: Path, given: NDArray[Any], body: str, *options: str, **more: Any) -> NDArray[Any]:
    """The output of one block that is given these elements; as many elements as were given."""
    descending = more.pop("descending", False)
    kernel, config = probe(folder / "probe", body, **more)
    emulator = Emulator(folder, *options, timeout_s=20.0)
    return emulator.run(kernel, config, {"n": given.size}, {"given": given}, descending=descending)["out"]


def numbers(count: int) -> NDArray[np.int32]:
    return np.arange(count, dtype=np.int32)


@pytest.mark.parametrize("options", [(), ("-DUSE_UCONTEXT",)], ids=["own", "ucontext"])
def test_threads_know_their_place_in_three_dimensions(tmp_path: Path, options: tuple[str, ...]) -> None:
    body = "out[t] = 100 * threadIdx.z + 10 * threadIdx.y + threadIdx.x + 1000 * blockDim.z + gridDim.x;"
    out = ran(tmp_path, numbers(24), f"__syncthreads(); {body}", *options, x=4, y=3, z=2)
    assert out.reshape(2, 3, 4)[1, 2, 3] == 2124
    assert out.reshape(2, 3, 4)[0, 2, 1] == 2022


@pytest.mark.parametrize("descending", [False, True])
def test_shuffles_move_values_within_their_width(tmp_path: Path, descending: bool) -> None:
    body = """
        const int a = __shfl_sync(~0u, given[t], 3, 16), b = __shfl_up_sync(~0u, given[t], 2, 8);
        const int c = __shfl_down_sync(~0u, given[t], 5), d = __shfl_xor_sync(~0u, given[t], 7);
        out[t] = a + 100 * b + 10000 * c + 1000000 * d;"""
    t = numbers(64)
    lane = t % 32
    b = np.where(t % 8 >= 2, t - 2, t)
    c = np.where(lane + 5 < 32, t + 5, t)
    wanted = (t // 16 * 16 + 3) + 100 * b + 10000 * c + 1000000 * (t ^ 7)
    assert np.array_equal(ran(tmp_path, t, body, x=64, descending=descending), wanted)


def test_votes_and_reductions_see_the_lanes_of_their_mask(tmp_path: Path) -> None:
    body = """
        if (t % 2) {
            const unsigned odd = 0xaaaaaaaau;
            out[t] = __reduce_add_sync(odd, given[t]) + (__any_sync(odd, t == 2) ? 1000 : 0);
        } else {
            const unsigned even = 0x55555555u;
            out[t] = __popc(__ballot_sync(even, t < 10)) + (__all_sync(even, t < 32) ? 1000 : 0);
        }"""
    out = ran(tmp_path, numbers(32), body)
    assert set(out[1::2]) == {256}
    assert set(out[::2]) == {1005}


def test_threads_that_have_returned_count_as_arrived(tmp_path: Path) -> None:
    body = """
        int *shared = reinterpret_cast<int *>(shared_storage);
        shared[t] = given[t];
        if (t >= 40) return;
        __syncthreads();
        out[t] = shared[39 - t] + __shfl_xor_sync(~0u, given[t], 1);"""
    out = ran(tmp_path, numbers(64), body, x=64, shared_bytes=256)
    assert np.array_equal(out[:40], 39 - numbers(40) + (numbers(40) ^ 1))


BARRIERS = {
    "half of a warp for the other": "if (t < 32 || t > 47) __syncthreads(); else __any_sync(~0u, 1);",
    "a lane that never comes": "if (t % 32) __syncwarp(); else __syncthreads();",
    "a lane outside of its own mask": "__shfl_sync(1u, t, 0);",
    "spinning": "if (t == 0) { __syncthreads(); } else { for (;;) __nanosleep(1); }",
}


@pytest.mark.parametrize("body", BARRIERS.values(), ids=BARRIERS.keys())
def test_a_wait_that_cannot_end_ends_the_program(tmp_path: Path, body: str) -> None:
    with pytest.raises(EmulatedError, match="exit status 3"):
        ran(tmp_path, numbers(64), body, x=64)


def test_threads_run_as_far_apart_as_barriers_allow(tmp_path: Path) -> None:
    body = """
        int *shared = reinterpret_cast<int *>(shared_storage);
        shared[t] = given[t];
        {barrier}
        out[t] = shared[63 - t];"""
    right = ran(tmp_path, numbers(64), body.replace("{barrier}", "__syncthreads();"), x=64, shared_bytes=256)
    assert np.array_equal(right, 63 - numbers(64))
    wrong = ran(tmp_path / "w", numbers(64), body.replace("{barrier}", ""), x=64, shared_bytes=256)
    assert np.array_equal(wrong[:32], [-1] * 32)  # what shared memory holds at first


def test_a_kernel_may_name_its_parts_as_it_likes(tmp_path: Path) -> None:
    """X, Y and Z are macros here, too."""
    before = "struct Block { int count; }; template <int T> int call(int given) { return given * T; } int run, lane;"
    out = ran(tmp_path, numbers(32), "Block block{call<X>(given[t])}; out[t] = block.count;", before=before)
    assert np.array_equal(out, 32 * numbers(32))


def test_blocks_share_atomics_and_run_in_either_order(tmp_path: Path) -> None:
    before = "__device__ int next;"
    body = "if (t == 0) { const int turn = atomicAdd(&next, 1); out[turn] = blockIdx.x; atomicMax(out + turn, 1); }"
    up = ran(tmp_path, numbers(5), body, blocks=5, before=before)
    down = ran(tmp_path / "d", numbers(5), body, blocks=5, before=before, descending=True)
    assert list(up) == [1, 1, 2, 3, 4]
    assert list(down) == [4, 3, 2, 1, 1]


def test_asynchronous_copies_come_no_sooner_than_they_are_waited_for(tmp_path: Path) -> None:
    body = """
        float *shared = reinterpret_cast<float *>(shared_storage);
        for (int i = 0; i < 3; ++i) {
            __pipeline_memcpy_async(shared + 32 * i + t, given + 32 * i + t, 4, i == 1 ? 4 : 0);
            __pipeline_commit();
        }
        __pipeline_wait_prior(1);
        for (int i = 0; i < 3; ++i) out[32 * i + t] = shared[32 * i + t];"""
    given = numbers(96).astype(np.float32) + 1
    before = "#include <cuda_pipeline.h>"
    out = ran(tmp_path, given, body, shared_bytes=384, takes="float32", gives="float32", before=before)
    assert np.array_equal(out[:32], given[:32])
    assert np.array_equal(out[32:64], [0.0] * 32)
    assert np.isnan(out[64:]).all()
    misplaced = "__pipeline_memcpy_async(shared_storage, given + 1, 8);"
    with pytest.raises(EmulatedError, match="not aligned"):
        ran(tmp_path / "m", given, misplaced, shared_bytes=384, takes="float32", gives="float32", before=before)


MMA = """
    unsigned short *tile = reinterpret_cast<unsigned short *>(shared_storage);
    for (int i = t; i < 384; i += 32) tile[i] = given[i];  // A[16, 16], then B[16, 8], or B[8, 16]
    __syncwarp();
    unsigned a[4], b[2];
    float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    ldmatrix_x4(a, tile + t %% 16 * 16 + t / 16 * 8);
    %s
    %s(d, a, b);
    for (int i = 0; i < 4; ++i) out[(t / 4 + i / 2 * 8) * 8 + t %% 4 * 2 + i %% 2] = d[i];"""
B_ROWS = "ldmatrix_x2_trans(b, tile + 256 + t % 16 * 8);"  # B[k, n]
B_COLUMNS = "ldmatrix_x2(b, tile + 256 + t % 8 * 16 + t / 8 % 2 * 8);"  # B[n, k]


@pytest.mark.parametrize("multiply", ["mma_bf16", "mma_f16"])
@pytest.mark.parametrize("loads", [B_ROWS, B_COLUMNS], ids=["rows", "columns"])
def test_matrix_instructions_multiply_fragments_in_their_layout(tmp_path: Path, multiply: str, loads: str) -> None:
    values = np.random.default_rng(0).standard_normal(384).astype(np.float32)
    bf16 = multiply == "mma_bf16"
    stored = to_bfloat16(values) if bf16 else values.astype(np.float16).view(np.uint16)
    values = from_bfloat16(stored) if bf16 else stored.view(np.float16).astype(np.float32)
    a, b = values[:256].reshape(16, 16), values[256:]
    wanted = 1 + a @ (b.reshape(16, 8) if loads == B_ROWS else b.reshape(8, 16).T)
    out = ran(tmp_path, stored, MMA % (loads, multiply), takes="bfloat16", gives="float32", shared_bytes=768)
    assert np.allclose(out[:128].reshape(16, 8), wanted, atol=1e-4)
    assert not np.allclose(out[:128].reshape(16, 8), 1 + a @ b.reshape(8, 16).T[:, ::-1], atol=1e-4)


def test_small_floats_round_as_numpy_does(tmp_path: Path) -> None:
    body = """
        const __nv_bfloat16 b = __float2bfloat16(given[t]);
        const __half h = __float2half(given[t]);
        out[t] = static_cast<unsigned>(__half_as_ushort(h)) << 16 | __bfloat16_as_ushort(b);"""
    given = (10.0 ** np.random.default_rng(1).uniform(-9, 6, 32)).astype(np.float32)
    before = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>"
    out = ran(tmp_path, given, body, takes="float32", gives="uint32", before=before)
    assert np.array_equal(out & 0xFFFF, to_bfloat16(given))
    with np.errstate(over="ignore"):
        assert np.array_equal((out >> 16).astype(np.uint16), given.astype(np.float16).view(np.uint16))


OUTSIDE = {
    "past the output": ("out[n] = 1;", "written outside"),
    "before the output": ("out[-1] = 1;", "written outside"),
    "into the input": ("const_cast<int *>(given)[t] = 7;", "an input was written"),
    "past shared memory": ("reinterpret_cast<int *>(shared_storage)[16 + t] = 1;", "past the launch's shared"),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_writes_outside_are_noticed_without_sanitizers_too(tmp_path: Path, what: str) -> None:
    body, said = OUTSIDE[what]
    with pytest.raises(EmulatedError, match=said):
        ran(tmp_path, numbers(32), body, shared_bytes=64)


READS = {
    "past the input": "out[t] = given[t + 1];",
    "past shared memory": "out[t] = reinterpret_cast<int *>(shared_storage)[t];",
    "across alignment": "out[t] = reinterpret_cast<const int2 *>(given + 1)->x;",
}


@pytest.mark.parametrize("what", READS)
def test_reads_outside_and_unaligned_ones_are_noticed_with_sanitizers(tmp_path: Path, what: str) -> None:
    with pytest.raises(EmulatedError, match=re.compile("AddressSanitizer|runtime error")):
        ran(tmp_path, numbers(32), READS[what], *SANITIZERS, shared_bytes=124)


def test_a_workspace_is_zero_at_first_and_kept_between_launches(tmp_path: Path) -> None:
    kernel, config = probe(tmp_path / "probe", "out[t] = given[t] + 10 * atomicAdd(given_back + t, 1);")
    file = kernel.sources["cuda"].file
    file.write_text(file.read_text().replace("int n)", "int n, int *given_back)"))
    parse = Expression.parse
    workspace = Argument("given_back", "workspace", "int32", (parse("n"),), "zeros")
    kernel = dataclasses.replace(kernel, arguments=(*kernel.arguments, workspace))
    emulator = Emulator(tmp_path)
    for launches in (1, 3):
        out = emulator.run(kernel, config, {"n": 32}, {"given": numbers(32)}, launches=launches)
        assert set(out) == {"out"}
        assert np.array_equal(out["out"], numbers(32) + 10 * (launches - 1))


def test_a_declaration_that_is_not_the_kernels_is_noticed(tmp_path: Path) -> None:
    kernel, config = probe(tmp_path / "probe", "out[t] = given[t];")
    file = kernel.sources["cuda"].file
    file.write_text(file.read_text().replace("int n)", "long long n)"))
    with pytest.raises(EmulatedError, match="another size"):
        Emulator(tmp_path).run(kernel, config, {"n": 32}, {"given": numbers(32)})
    (tmp_path / "broken").mkdir()
    file.write_text("nonsense")
    with pytest.raises(subprocess.CalledProcessError):
        Emulator(tmp_path / "broken", "-w").run(kernel, config, {"n": 32}, {"given": numbers(32)})
