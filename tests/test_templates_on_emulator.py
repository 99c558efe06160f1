"""The shipped CUDA sources compute what they should, run thread by thread on the processor (see cuda_on_cpu/)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.emulator import IGNORE_BARRIERS, SANITIZERS, EmulatedError, Emulator
from tests.families import FAMILIES, ON_CPU, Family, Problem, binary, family
from tuner_daemon.records.space import Config

MOST_SAMPLED = 6
WITH_BARRIERS = tuple(name for name in FAMILIES if family(name).module.NEEDS_BARRIER is not None)
WITH_SHARED_MEMORY = tuple(name for name in FAMILIES if family(name).kernel.launch.shared_bytes.text != "0")

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator is compiled with g++")

Candidate = tuple[Config | None, Problem]  # of a variant; without a config the reference


def sampled(of: Family, count: int, seed: int) -> list[Candidate]:
    """Configurations of every variant in turn."""
    variants = list(islice(cycle(of.tiny_variants), count))
    rounds = -(-count // len(of.tiny_variants))
    configs: dict[tuple[object, ...], Iterator[Config]] = {
        binary(variant): iter(of.sampled(rounds, seed, variant)) for variant in of.tiny_variants
    }
    return [(next(configs[binary(variant)]), variant) for variant in variants]


def problems(of: Family, candidate: Candidate) -> list[Problem]:
    """Those that the candidate's binary serves."""
    config, variant = candidate
    alike = [p for p in of.tiny_problems if binary(p) == binary(variant)]
    return [p for p in alike if config is None or of.space(p).contains(config)]


def errors(of: Family, emulator: Emulator, candidate: Candidate, language: str = "cuda") -> dict[str, float]:
    """By problem, over its tolerance: right up to 1.

    Every other problem lies at addresses that are aligned to single elements only, and is launched twice, as kernels
    with a workspace must bear; threads run backwards in two of four.
    """
    found: dict[str, float] = {}
    for number, problem in enumerate(problems(of, candidate)):
        inputs = of.inputs(problem, seed=number)
        got = emulator.run(
            of.kernel,
            candidate[0],
            problem,
            inputs,
            language=language,
            unaligned=number % 2 == 1,
            descending=number // 2 % 2 == 1,
            launches=1 + number % 2,
        )
        found[str(problem)] = of.excess(problem, got, of.expected(problem, inputs))
    return found


def wrong(of: Family, emulator: Emulator, candidate: Candidate) -> str:
    """What is wrong with a candidate, in words; empty if nothing is."""
    try:
        found = errors(of, emulator, candidate)
    except EmulatedError as error:
        return f"{candidate}: {error}"
    bad = {problem: ratio for problem, ratio in found.items() if not ratio <= 1.0}
    return f"{candidate[0]} at {bad} times the tolerance" if bad else ""


def all_wrong(of: Family, emulator: Emulator, candidates: Sequence[Candidate]) -> list[str]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda candidate: wrong(of, emulator, candidate), candidates))


@pytest.mark.parametrize("name", FAMILIES)
def test_sampled_cuda_candidates_are_right(name: str, tmp_path: Path) -> None:
    of = family(name)
    candidates = sampled(of, max(4, min(MOST_SAMPLED, len(of.tiny_variants))), seed=21)
    assert any(problems(of, candidate) for candidate in candidates)
    assert all_wrong(of, Emulator(tmp_path), candidates) == [""] * len(candidates)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FAMILIES)
def test_many_cuda_candidates_are_right_and_stay_inside_their_buffers(name: str, tmp_path: Path) -> None:
    of = family(name)
    assert all_wrong(of, Emulator(tmp_path, *SANITIZERS), sampled(of, 60, seed=22)) == [""] * 60


@pytest.mark.parametrize("name", WITH_BARRIERS)
def test_a_missing_barrier_is_noticed(name: str, tmp_path: Path) -> None:
    of = family(name)
    needed = of.module.NEEDS_BARRIER
    fitting = [c for c in of.sampled(400, 23, of.tiny_variants[0]) if needed.items() <= c.as_dict().items()][:2]
    candidates: list[Candidate] = [(config, of.tiny_variants[0]) for config in fitting]
    assert len(candidates) == 2
    assert "" not in all_wrong(of, Emulator(tmp_path, IGNORE_BARRIERS), candidates)


@pytest.mark.parametrize("name", WITH_SHARED_MEMORY)
def test_a_launch_with_too_little_shared_memory_is_noticed(name: str, tmp_path: Path) -> None:
    of = family(name)
    problem = of.tiny_problems[1]
    wanted = of.kernel.launch.shared_bytes
    configs = of.sampled(100, 24, problem)
    config = max(configs, key=lambda config: wanted.evaluate({**problem, **config.as_dict()}))
    with pytest.raises(EmulatedError, match=r"AddressSanitizer:|runtime error:"):
        Emulator(tmp_path, *SANITIZERS).run(of.kernel, config, problem, of.inputs(problem), shared_bytes=16)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_cuda_reference_is_right(name: str, tmp_path: Path) -> None:
    of = family(name)
    candidates: list[Candidate] = [(None, variant) for variant in of.tiny_variants]
    assert all_wrong(of, Emulator(tmp_path), candidates) == [""] * len(candidates)


@pytest.mark.parametrize("name", ON_CPU)
def test_c_candidates_stay_inside_their_buffers(name: str, tmp_path: Path) -> None:
    of = family(name)
    emulator = Emulator(tmp_path, *SANITIZERS)
    on_cpu = [candidate for candidate in sampled(of, 20, seed=25) if of.is_for_cpu(candidate[1])][:2]
    assert on_cpu
    for candidate in on_cpu:
        found = errors(of, emulator, candidate, language="cpu")
        assert found
        assert max(found.values()) <= 1.0, (candidate, found)
