"""What tests of builders share: configurations, slow sources, and one result at a time."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from tests.fakes import spec_for
from tuner_daemon.interfaces import Builder
from tuner_daemon.records.kernel import Kernel
from tuner_daemon.records.measurement import Artifact, Failure, Outcome
from tuner_daemon.records.space import Config

CONFIGS = [Config.of({"BLOCK": block, "WORK": work}) for block in (32, 64) for work in (1, 2)]
# 2 ** 24 instantiations: NVRTC is busy with them for far longer than any test waits.
SLOW_CU = """\
template <int D, int P> struct T { enum { v = T<D - 1, 2 * P>::v + T<D - 1, 2 * P + 1>::v }; };
template <int P> struct T<0, P> { enum { v = P & 1 }; };
__device__ int slow = T<24, 0>::v;
"""
HAS_NVRTC = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None
needs_nvrtc = pytest.mark.skipif(not HAS_NVRTC, reason="needs cuda-bindings and NVRTC")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs the CUDA toolkit's nvcc")


def one(builder: Builder, kernel: Kernel, kind: str, config: Config = CONFIGS[0]) -> Artifact | Failure:
    (item,) = builder.build(spec_for(kernel, kind), [config])
    return item


def artifact(item: Artifact | Failure) -> Artifact:
    assert isinstance(item, Artifact), item
    return item


def refusal(item: Artifact | Failure) -> str:
    assert isinstance(item, Failure)
    assert item.outcome is Outcome.BUILD_FAILED
    return item.detail
