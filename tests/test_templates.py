"""The shipped kernels: what their kernel.toml promises, and that every sampled candidate is right on the CPU."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.template_kernels import (
    EDGE_SHAPES,
    FAMILIES,
    SIZES,
    Array,
    error_norm,
    expected,
    inputs_of,
    problem_of,
    sampled,
    space_of,
    spec_of,
    template,
)
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.gcc import GccBuilder
from tuner_daemon.builders.preamble import text_macro
from tuner_daemon.records.kernel import Kernel, Value
from tuner_daemon.records.measurement import Artifact, Failure
from tuner_daemon.records.space import Config

GUARD = 4096  # floats on either side of a buffer
TOLERANCE = 2e-6
Candidate = Callable[..., None]


@pytest.fixture(scope="module")
def gcc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GccBuilder]:
    builder = GccBuilder(BuildCache(tmp_path_factory.mktemp("cache"), 1 << 30), jobs=2)
    yield builder
    builder.close()


def build(gcc: GccBuilder, family: str, configs: Sequence[Config], kernel: Kernel | None = None) -> list[Artifact]:
    built = list(gcc.build(spec_of(family, kernel=kernel), configs))
    failures = [item for item in built if isinstance(item, Failure)]
    assert not failures, failures[0]
    return [item for item in built if isinstance(item, Artifact)]


def candidate(artifact: Artifact) -> Candidate:
    function = ctypes.CDLL(str(artifact.path))[artifact.entry]
    function.restype = None
    return function


def guarded(data: NDArray[Any]) -> tuple[Array, Array]:
    """A copy of ``data`` between bands of NaN: the whole, and the view on the data. A read past its ends spreads."""
    whole = np.full(data.size + 2 * GUARD, np.nan, dtype=np.float32)
    view = whole[GUARD:-GUARD].reshape(data.shape)
    view[...] = data
    return whole, view


def run(function: Candidate, family: str, inputs: Sequence[Array], shape: Sequence[int]) -> Array:
    """The output, after checks that nothing else was written."""
    size = (shape[0], shape[1])
    buffers = [guarded(array) for array in (*inputs, np.full(size, np.nan))]
    before = [whole.copy() for whole, _ in buffers]
    function(*(ctypes.c_void_p(view.ctypes.data) for _, view in buffers), *(ctypes.c_int(extent) for extent in shape))
    for (whole, _), old in zip(buffers[:-1], before[:-1], strict=True):
        assert np.array_equal(whole, old, equal_nan=True), "an input was written"
    whole, output = buffers[-1]
    assert np.isnan(whole[:GUARD]).all(), "written before the output"
    assert np.isnan(whole[-GUARD:]).all(), "written past the output"
    return output


def worst_error(function: Candidate, family: str) -> float:
    """Over the edge shapes; infinite where a result is not finite."""
    errors = []
    for seed, shape in enumerate(EDGE_SHAPES[family]):
        inputs = inputs_of(family, shape, seed)
        errors.append(error_norm(run(function, family, inputs, shape), expected(family, inputs)))
    return max(error if math.isfinite(error) else math.inf for error in errors)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_template_declares_both_languages_a_reference_in_each_and_a_valid_baseline(family: str) -> None:
    kernel = template(family)
    assert kernel.name == family
    assert set(kernel.sources) == set(kernel.reference.sources) == {"cuda", "cpu"}
    assert all(source.entry == f"{family}_reference" for source in kernel.reference.sources.values())
    assert kernel.baseline is not None
    assert space_of(family).contains(kernel.baseline)
    assert not space_of(family).contains({**kernel.baseline, "VEC": 3})
    assert kernel.reduction_length is not None
    assert kernel.work.flops is not None
    assert kernel.work.bytes is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_the_space_is_large_listed_and_does_not_depend_on_the_problem(family: str) -> None:
    space = space_of(family)
    assert space.listed
    assert 5_000 <= space.size <= 200_000
    assert space.size == len(set(space.all()))
    sizes = [variable for variable in template(family).problem if variable.name in SIZES[family]]
    assert [variable.min for variable in sizes] == [1] * len(sizes)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_configuration_launches_whole_warps_and_shared_memory_that_every_gpu_has(family: str) -> None:
    space, launch = space_of(family), template(family).launch
    values = {**space.columns(space.all()), **problem_of(family, EDGE_SHAPES[family][1])}
    (threads,) = (expression.evaluate_arrays(values) for expression in launch.block)
    shared_bytes = launch.shared_bytes.evaluate_arrays(values)
    assert threads.shape == (space.size,)
    assert np.all(threads % 32 == 0)
    assert threads.min() >= 32
    assert threads.max() <= 1024
    assert shared_bytes.min() > 0
    assert shared_bytes.max() <= 99 << 10


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_means_something_in_both_languages(family: str) -> None:
    kernel = template(family)
    for source in kernel.sources.values():
        code = re.sub(r"//.*", "", source.file.read_text())
        for parameter in kernel.parameters:
            macros = [text_macro(parameter.name, v) if isinstance(v, str) else parameter.name for v in parameter.values]
            assert any(re.search(rf"\b{macro}\b", code) for macro in macros), (source.file, parameter.name)
    assert not re.search(r"\bBLOCK_SIZE_X\b", code), "the search above finds what is not there"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_template_is_data_alone(family: str) -> None:
    names = {path.name for path in template(family).folder.iterdir()}
    assert names == {"kernel.toml", "kernel.cu", "kernel.c", "reference.cu", "reference.c"}


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_candidates_are_right_at_edge_shapes_on_the_cpu(gcc: GccBuilder, family: str) -> None:
    baseline = template(family).baseline
    assert baseline is not None
    configs = [space_of(family).config(baseline), *sampled(family, 60, seed=1)]
    errors = {str(a.config.as_dict()): worst_error(candidate(a), family) for a in build(gcc, family, configs)}
    assert len(errors) >= 60
    worst = max(errors, key=lambda config: errors[config])
    assert errors[worst] < TOLERANCE, worst


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_is_right(gcc: GccBuilder, family: str) -> None:
    assert worst_error(candidate(gcc.build_reference(spec_of(family))), family) < 1e-7


MUTATIONS = {
    "matmul": ("step < depth; ++step) {\n        const vector", "step < depth - 1; ++step) {\n        const vector"),
    "softmax": ("row->sum *= expf(", "row->sum *= 1.001f * expf("),
}


def mutated(family: str, folder: Path) -> Kernel:
    """The template with one slip in its C source."""
    kernel = template(family)
    right, wrong = MUTATIONS[family]
    text = kernel.sources["cpu"].file.read_text()
    assert right in text
    file = folder / "kernel.c"
    file.write_text(text.replace(right, wrong))
    sources = {"cpu": dataclasses.replace(kernel.sources["cpu"], file=file)}
    return dataclasses.replace(kernel, folder=folder, sources=sources, sha256="mutated")


@pytest.mark.parametrize("family", FAMILIES)
def test_one_slip_in_a_kernel_is_noticed(gcc: GccBuilder, family: str, tmp_path: Path) -> None:
    configs = [config for config in sampled(family, 40, seed=2) if family == "matmul" or config["ONLINE"]][:3]
    artifacts = build(gcc, family, configs, mutated(family, tmp_path))
    assert len(artifacts) == 3
    assert all(worst_error(candidate(artifact), family) > TOLERANCE for artifact in artifacts)


def test_softmax_takes_masked_elements_and_lets_nan_through(gcc: GccBuilder) -> None:
    shape = (3, 203)
    (x,) = inputs_of("softmax", shape)
    x[:, ::3] = -np.inf
    wanted = expected("softmax", [x])
    for artifact in build(gcc, "softmax", sampled("softmax", 12, seed=3)):
        assert error_norm(run(candidate(artifact), "softmax", [x], shape), wanted) < TOLERANCE
        spoilt = x.copy()
        spoilt[1, 7] = np.nan
        output = run(candidate(artifact), "softmax", [spoilt], shape)
        assert np.isnan(output[1]).all(), artifact.config.as_dict()
        assert np.isfinite(output[[0, 2]]).all()


TUNED: dict[str, dict[str, Value]] = {  # what differs from the baseline
    "matmul": {"BM": 64, "BN": 64, "BK": 32, "TM": 4, "TN": 8, "VEC": 4, "UNROLL": 4},
    "softmax": {"ROW_THREADS": 512, "VEC": 4, "WORK": 8, "UNROLL": 2, "CACHE": 2, "REDUCE": "shuffle", "EXP": "fast"},
}
LARGE_SHAPES = {"matmul": (384, 384, 384), "softmax": (512, 1024)}


def fastest_s(function: Candidate, family: str) -> float:
    shape = LARGE_SHAPES[family]
    inputs = inputs_of(family, shape)
    output = np.empty(shape[:2], dtype=np.float32)
    arguments = [*(ctypes.c_void_p(a.ctypes.data) for a in (*inputs, output)), *map(ctypes.c_int, shape)]
    times_s = []
    for _ in range(7):
        started = time.perf_counter()
        function(*arguments)
        times_s.append(time.perf_counter() - started)
    return min(times_s)


@pytest.mark.parametrize("family", FAMILIES)
def test_tuning_is_worth_it_on_the_cpu(gcc: GccBuilder, family: str) -> None:
    space, baseline = space_of(family), template(family).baseline
    assert baseline is not None
    slow, fast = (space.config(values) for values in (baseline, {**baseline, **TUNED[family]}))
    times_s = {a.config: fastest_s(candidate(a), family) for a in build(gcc, family, [slow, fast])}
    assert times_s[slow] > 3 * times_s[fast]
