"""Chooses the CUDA compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

from tuner_daemon.builders.cache import BuildCache
from tuner_daemon.builders.nvcc import NvccBuilder
from tuner_daemon.builders.nvrtc import NvrtcBuilder
from tuner_daemon.errors import MissingPartError


def cuda_builder(
    cache: BuildCache, *, arch: str, jobs: int, timeout_s: float = 60.0, cuda_home: Path | None = None
) -> NvrtcBuilder | NvccBuilder:
    """NVRTC if it loads, which is several times faster and instantiates templates; else nvcc.

    ``arch``: the device's, such as ``sm_90``. ``cuda_home``: toolkit to take headers and nvcc from. Raises
    MissingPartError if neither is there.
    """
    nvrtc = NvrtcBuilder(cache, arch=arch, jobs=jobs, timeout_s=timeout_s, cuda_home=cuda_home)
    try:
        if nvrtc.compiler:
            return nvrtc
    except MissingPartError as missing:
        nvrtc.close()
        why = missing
    command = "nvcc" if cuda_home is None else str(cuda_home / "bin" / "nvcc")
    found = shutil.which(command) or shutil.which("/usr/local/cuda/bin/nvcc")
    if found is None:
        raise MissingPartError(f"there is no CUDA compiler: {why}, or the CUDA toolkit with nvcc on the PATH") from why
    return NvccBuilder(cache, arch=arch, jobs=jobs, timeout_s=timeout_s, command=found)
