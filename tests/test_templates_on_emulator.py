"""The shipped CUDA sources compute what they should, run thread by thread on the processor (see cuda_on_cpu/)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.template_kernels import FAMILIES, ROOT, sampled, template
from tuner_daemon.builders.preamble import preamble
from tuner_daemon.records.space import Config

PROGRAMS = ROOT / "tests" / "cuda_on_cpu"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WRONG_RESULT = 1
# Every other shape lies at an address that is no multiple of 8 bytes; threads run backwards in two of four.
SHAPES = {
    "matmul": ("1,1,1", "17,29,13", "64,4,40", "1,300,7", "130,12,36", "33,36,100", "40,40,40", "40,40,40"),
    "softmax": ("1,1", "3,1000", "11,5", "5,36", "2,2052", "9,31", "1,9000", "1,9000"),
}

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator is compiled with g++")


def compiled(family: str, config: Config, folder: Path, *options: str) -> Path:
    """A program that checks one candidate on the emulator."""
    kernel = template(family)
    shared_bytes = kernel.launch.shared_bytes.evaluate(config.as_dict())
    folder = folder / config.key
    folder.mkdir()
    defines = folder / "config.h"
    defines.write_text(preamble(kernel.parameters, config, {"dtype": "float32"}))
    command = [
        *(
            "g++",
            "-std=c++20",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Wno-unknown-pragmas",
            "-Wno-maybe-uninitialized",
            "-Werror",
        ),
        *(f"-DSHARED_BYTES={shared_bytes}", f'-DKERNEL="{kernel.sources["cuda"].file}"', *options),
        *("-include", str(defines), str(PROGRAMS / f"{family}.cpp"), "-o", str(folder / "check")),
    ]
    subprocess.run(command, check=True)
    return folder / "check"


def check(family: str, folder: Path, options: Sequence[str], config: Config) -> tuple[Config, int, str]:
    done = subprocess.run(
        [compiled(family, config, folder, *options), *SHAPES[family]], capture_output=True, text=True, check=False
    )
    return config, done.returncode, done.stderr


def check_all(family: str, configs: Sequence[Config], folder: Path, *options: str) -> list[tuple[Config, int, str]]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(partial(check, family, folder, options), configs))


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_cuda_candidates_are_right(family: str, tmp_path: Path) -> None:
    for config, status, output in check_all(family, sampled(family, 5, seed=21), tmp_path):
        assert status == 0, (config.as_dict(), output)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("family", FAMILIES)
def test_many_cuda_candidates_are_right_and_stay_inside_their_buffers(family: str, tmp_path: Path) -> None:
    for config, status, output in check_all(family, sampled(family, 60, seed=22), tmp_path, *SANITIZERS):
        assert status == 0, (config.as_dict(), output)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_barrier_is_noticed(family: str, tmp_path: Path) -> None:
    wanted = {"matmul": {}, "softmax": {"REDUCE": "shared"}}[family]
    configs = [c for c in sampled(family, 40, seed=23) if wanted.items() <= c.as_dict().items()][:2]
    results = check_all(family, configs, tmp_path, "-DIGNORE_BARRIERS")
    assert [status for _, status, _ in results] == [WRONG_RESULT] * 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_launch_with_too_little_shared_memory_is_noticed(family: str, tmp_path: Path) -> None:
    (config,) = sampled(family, 1, seed=24)
    (result,) = check_all(family, [config], tmp_path, *SANITIZERS, "-USHARED_BYTES", "-DSHARED_BYTES=64")
    assert re.search("AddressSanitizer:|runtime error:", result[2])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cuda_reference_is_right(family: str, tmp_path: Path) -> None:
    program = tmp_path / "check"
    reference = template(family).reference.sources["cuda"].file
    defines = ("-DREFERENCE", "-DSHARED_BYTES=16", f'-DKERNEL="{reference}"')
    command = ["g++", "-std=c++20", "-O1", *defines, str(PROGRAMS / f"{family}.cpp"), "-o", str(program)]
    subprocess.run(command, check=True)
    subprocess.run([program, *SHAPES[family]], check=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_c_candidates_stay_inside_their_buffers(family: str, tmp_path: Path) -> None:
    kernel = template(family)
    for config in sampled(family, 2, seed=25):
        defines = tmp_path / "config.h"
        defines.write_text(preamble(kernel.parameters, config, {"dtype": "float32"}))
        source, compiled_c = str(kernel.sources["cpu"].file), str(tmp_path / "kernel.o")
        options = ("-O1", "-g", "-march=native", *SANITIZERS)
        subprocess.run(
            ["gcc", *options, "-std=gnu11", "-include", str(defines), "-c", source, "-o", compiled_c], check=True
        )
        program = str(tmp_path / "check")
        checker = str(PROGRAMS / f"{family}.cpp")
        subprocess.run(["g++", *options, "-std=c++20", checker, compiled_c, "-lm", "-o", program], check=True)
        subprocess.run([program, *SHAPES[family]], check=True)
