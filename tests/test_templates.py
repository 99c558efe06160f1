"""The shipped kernels: what their kernel.toml promises, and that every sampled candidate in C is right."""

from __future__ import annotations

import ctypes
import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.emulator import dtype_of, shape_of
from tests.families import FAMILIES, ON_CPU, Arrays, Family, Problem, binary, error, family
from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.gcc import GccBuilder
from tuner_daemon.builders.preamble import text_macro
from tuner_daemon.records.kernel import Argument, Kernel, ProblemVariable, Value
from tuner_daemon.records.measurement import Artifact, Failure
from tuner_daemon.records.space import Config

GUARD_BYTES = 16384  # on either side of a buffer
MOST_SHARED_BYTES = 163 << 10  # of a block since sm_80, on request; 99 KiB everywhere
Candidate = Callable[..., None]


@pytest.fixture(scope="module")
def gcc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GccBuilder]:
    builder = GccBuilder(BuildCache(tmp_path_factory.mktemp("cache"), 1 << 30), jobs=2)
    yield builder
    builder.close()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_template_declares_its_sources_a_reference_for_each_and_a_valid_baseline(name: str) -> None:
    of = family(name)
    kernel = of.kernel
    assert kernel.name == name
    assert "cuda" in kernel.sources
    assert set(kernel.sources) == set(kernel.reference.sources)
    assert all(source.entry == f"{name}_reference" for source in kernel.reference.sources.values())
    for problem in (*of.variants, of.module.LARGE_PROBLEM):
        assert of.space(problem).contains(of.baseline)
        assert of.space(problem).contains({**of.baseline, **of.module.TUNED}) or problem != of.module.LARGE_PROBLEM
    parameter = kernel.parameters[0].name
    assert not of.space(problem).contains({**of.baseline, parameter: 12345})
    assert kernel.reduction_length is not None
    for problem in of.edge_problems:
        for work in (kernel.work.flops, kernel.work.bytes):
            assert work is not None
            assert float(work.evaluate(problem)) > 0 or work is kernel.work.flops


@pytest.mark.parametrize("name", FAMILIES)
def test_the_space_is_large_listed_and_takes_any_size(name: str) -> None:
    of = family(name)
    for problem in of.variants:
        space = of.space(problem)
        assert space.listed
        assert 2_000 <= space.size <= 500_000
        rows = space.all_indices()
        assert len(np.unique(rows, axis=0)) == space.size
    sizes = [variable for variable in of.kernel.problem if variable.type == "int" and not variable.values]
    assert [variable.min for variable in sizes] == [min(1, variable.min or 0) for variable in sizes]


@pytest.mark.parametrize("name", FAMILIES)
def test_problems_are_enough_and_allowed_and_every_choice_appears(name: str) -> None:
    of = family(name)
    for problems in (of.edge_problems, of.tiny_problems):
        assert len(problems) >= 5
        for problem in problems:
            assert list(problem) == [variable.name for variable in of.kernel.problem]
            assert not [v.name for v in of.kernel.problem if not allowed(v, problem[v.name])]
        for variable in of.kernel.problem:
            assert set(variable.values) <= {problem[variable.name] for problem in problems}, variable.name


def allowed(variable: ProblemVariable, value: Value) -> bool:
    if variable.values:
        return value in variable.values
    assert not isinstance(value, str)
    return variable.min is None or (variable.min <= value and (variable.max is None or value <= variable.max))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_configuration_launches_whole_warps_and_shared_memory_that_every_gpu_has(name: str) -> None:
    of = family(name)
    launch = of.kernel.launch
    for problem in of.variants:
        space = of.space(problem)
        values = {**space.columns_at(space.all_indices()), **problem}
        extents = [np.broadcast_to(extent.evaluate_arrays(values), space.size) for extent in launch.block]
        threads = np.prod(np.array(extents, dtype=np.int64), axis=0)
        shared_bytes = launch.shared_bytes.evaluate_arrays(values)
        assert np.all(threads % 32 == 0)
        assert threads.min() >= 32
        assert threads.max() <= 1024
        assert np.min(shared_bytes) >= 0
        assert np.max(shared_bytes) <= MOST_SHARED_BYTES


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_means_something_in_every_language(name: str) -> None:
    kernel = family(name).kernel
    for source in kernel.sources.values():
        code = re.sub(r"//.*", "", source.file.read_text())
        for parameter in kernel.parameters:
            macros = [text_macro(parameter.name, v) if isinstance(v, str) else parameter.name for v in parameter.values]
            assert any(re.search(rf"\b{macro}\b", code) for macro in macros), (source.file, parameter.name)
    assert not re.search(r"\bBLOCK_SIZE_X\b", code), "the search above finds what is not there"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_is_declared_with_its_role(name: str) -> None:
    of = family(name)
    declared = (of.kernel.folder / "kernel.toml").read_text()
    for parameter in of.kernel.parameters:
        assert re.search(rf"^{parameter.name} = .*\brole = ", declared, re.MULTILINE), parameter.name


@pytest.mark.parametrize("name", FAMILIES)
def test_a_template_is_data_alone(name: str) -> None:
    kernel = family(name).kernel
    sources = (*kernel.sources.values(), *kernel.reference.sources.values())
    names = {path.name for path in kernel.folder.iterdir()}
    assert names == {"kernel.toml", *(source.file.name for source in sources)}


def variants_on_cpu(of: Family) -> list[Problem]:
    """An edge problem for every binary that a configuration has in C."""
    first: dict[tuple[Value, ...], Problem] = {}
    for problem in of.edge_problems_on_cpu:
        first.setdefault(binary(problem), problem)
    return list(first.values())


def build(
    gcc: GccBuilder,
    of: Family,
    configs: Sequence[Config],
    kernel: Kernel | None = None,
    variant: Problem | None = None,
) -> list[Artifact]:
    built = list(gcc.build(of.spec(variant or of.edge_problems_on_cpu[0], kernel=kernel), configs))
    failures = [item for item in built if isinstance(item, Failure)]
    assert not failures, failures[0]
    return [item for item in built if isinstance(item, Artifact)]


def candidate(artifact: Artifact) -> Candidate:
    function = ctypes.CDLL(str(artifact.path))[artifact.entry]
    function.restype = None
    return function


@dataclasses.dataclass(frozen=True)
class Guarded:
    """Data between bands of ones, which are NaN in every floating-point type: a read past its ends spreads."""

    whole: NDArray[np.uint8]
    data: NDArray[Any]

    @classmethod
    def of(cls, data: NDArray[Any]) -> Guarded:
        whole = np.full(data.nbytes + 2 * GUARD_BYTES, 0xFF, dtype=np.uint8)
        view = whole[GUARD_BYTES:-GUARD_BYTES].view(data.dtype).reshape(data.shape)
        view[...] = data
        return cls(whole, view)

    @property
    def bands_hold(self) -> bool:
        return bool((self.whole[:GUARD_BYTES] == 0xFF).all() and (self.whole[-GUARD_BYTES:] == 0xFF).all())


def scalar(argument: Argument, problem: Problem) -> ctypes.c_int | ctypes.c_longlong | ctypes.c_float | ctypes.c_double:
    assert argument.value is not None
    value = argument.value.evaluate(problem)
    if argument.dtype == "int32":
        return ctypes.c_int(int(value))
    if argument.dtype == "int64":
        return ctypes.c_longlong(int(value))
    return ctypes.c_float(value) if argument.dtype == "float32" else ctypes.c_double(value)


def empty(argument: Argument, problem: Problem) -> NDArray[Any]:
    dtype = dtype_of(argument, problem)
    fill = 0 if argument.kind == "workspace" else 0xFF
    return np.full(int(np.prod(shape_of(argument, problem))) * dtype.itemsize, fill, np.uint8).view(dtype)


def run(function: Candidate, of: Family, inputs: Arrays, problem: Problem) -> Arrays:
    """The outputs, after checks that nothing else was written."""
    buffers: dict[str, Guarded] = {}
    passed: list[object] = []
    for argument in of.kernel.arguments:
        if argument.kind == "scalar":
            passed.append(scalar(argument, problem))
            continue
        data = inputs[argument.name] if argument.kind == "input" else empty(argument, problem)
        buffers[argument.name] = Guarded.of(data.reshape(shape_of(argument, problem)))
        passed.append(ctypes.c_void_p(buffers[argument.name].data.ctypes.data))
    function(*passed)
    assert all(buffer.bands_hold for buffer in buffers.values()), "written before or past a buffer"
    assert all(np.array_equal(buffers[name].data, inputs[name], equal_nan=True) for name in inputs), (
        "an input was written"
    )
    return {a.name: buffers[a.name].data for a in of.kernel.arguments if a.kind == "output"}


def worst_error(function: Candidate, of: Family, variant: Problem) -> float:
    """Over the edge problems that share the variant's binary, in units of the tolerance."""
    errors = []
    for seed, problem in enumerate(p for p in of.edge_problems_on_cpu if binary(p) == binary(variant)):
        inputs = of.inputs(problem, seed)
        got = run(function, of, inputs, problem)
        errors.append(of.excess(problem, got, of.expected(problem, inputs)))
    return max(errors)


def sampled(of: Family, count: int, seed: int) -> list[Config]:
    return of.sampled(count, seed, of.edge_problems_on_cpu[0])


def worst_errors(
    gcc: GccBuilder, of: Family, configs: Sequence[Config], kernel: Kernel | None = None
) -> dict[str, float]:
    """The configurations are shared out over the variants."""
    variants = variants_on_cpu(of)
    return {
        str(artifact.config.as_dict()): worst_error(candidate(artifact), of, variant)
        for number, variant in enumerate(variants)
        for artifact in build(gcc, of, configs[number :: len(variants)], kernel, variant)
    }


@pytest.mark.parametrize("name", ON_CPU)
def test_sampled_candidates_are_right_at_edge_problems_on_the_cpu(gcc: GccBuilder, name: str) -> None:
    of = family(name)
    errors = worst_errors(gcc, of, [Config.of(of.baseline), *sampled(of, 6, seed=4)])
    assert len(errors) >= 6
    assert max(errors.values()) < 1.0, errors


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ON_CPU)
def test_many_candidates_are_right_at_edge_problems_on_the_cpu(gcc: GccBuilder, name: str) -> None:
    of = family(name)
    errors = worst_errors(gcc, of, sampled(of, 60, seed=1))
    assert len(errors) == 60
    assert max(errors.values()) < 1.0, errors


@pytest.mark.parametrize("name", ON_CPU)
def test_the_reference_is_right(gcc: GccBuilder, name: str) -> None:
    of = family(name)
    for variant in variants_on_cpu(of):
        assert worst_error(candidate(gcc.build_reference(of.spec(variant))), of, variant) < 0.05


def mutated(of: Family, folder: Path) -> Kernel:
    """The template with one slip in its C source."""
    kernel = of.kernel
    right, wrong = of.module.SLIP_IN_C
    text = kernel.sources["cpu"].file.read_text()
    assert right in text
    file = folder / "kernel.c"
    file.write_text(text.replace(right, wrong))
    sources = {"cpu": dataclasses.replace(kernel.sources["cpu"], file=file)}
    return dataclasses.replace(kernel, folder=folder, sources=sources, sha256="mutated")


@pytest.mark.parametrize("name", ON_CPU)
def test_one_slip_in_a_kernel_is_noticed(gcc: GccBuilder, name: str, tmp_path: Path) -> None:
    of = family(name)
    needed: Mapping[str, object] = getattr(of.module, "SLIP_NEEDS", {})
    configs = [config for config in sampled(of, 40, seed=2) if needed.items() <= config.as_dict().items()][:3]
    errors = worst_errors(gcc, of, configs, mutated(of, tmp_path))
    assert len(errors) == 3
    assert min(errors.values()) > 1.0, errors


def test_softmax_takes_masked_elements_and_lets_nan_through(gcc: GccBuilder) -> None:
    of = family("softmax")
    problem: Problem = {**of.edge_problems_on_cpu[0], "rows": 3, "cols": 203}
    x = of.inputs(problem)["x"]
    x[:, ::3] = -np.inf
    wanted = of.expected(problem, {"x": x})["y"]
    for artifact in build(gcc, of, sampled(of, 5, seed=3)):
        assert error(run(candidate(artifact), of, {"x": x}, problem)["y"], wanted) < of.tolerance(problem)
        spoilt = x.copy()
        spoilt[1, 7] = np.nan
        output = run(candidate(artifact), of, {"x": spoilt}, problem)["y"]
        assert np.isnan(output[1]).all(), artifact.config.as_dict()
        assert np.isfinite(output[[0, 2]]).all()


def fastest_s(function: Candidate, of: Family) -> float:
    problem: Problem = of.module.LARGE_PROBLEM_ON_CPU
    arrays = {**of.inputs(problem)}
    for argument in of.kernel.arguments:
        if argument.kind in ("output", "workspace"):
            arrays[argument.name] = empty(argument, problem)
    arguments = [
        scalar(a, problem) if a.kind == "scalar" else ctypes.c_void_p(arrays[a.name].ctypes.data)
        for a in of.kernel.arguments
    ]
    times_s = []
    for _ in range(7):
        started = time.perf_counter()
        function(*arguments)
        times_s.append(time.perf_counter() - started)
    return min(times_s)


@pytest.mark.parametrize("name", ON_CPU)
def test_tuning_is_worth_it_on_the_cpu(gcc: GccBuilder, name: str) -> None:
    of = family(name)
    slow, fast = (Config.of(values) for values in (of.baseline, {**of.baseline, **of.module.TUNED_ON_CPU}))
    times_s = {a.config: fastest_s(candidate(a), of) for a in build(gcc, of, [slow, fast])}
    assert times_s[slow] > 3 * times_s[fast]
