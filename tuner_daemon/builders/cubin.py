"""What the two CUDA builders share: architecture names, and reading a finished cubin."""

from __future__ import annotations

import re

from tuner_daemon.builders.cache import Compiled, Rejected
from tuner_daemon.builders.diagnostics import ptxas_usage
from tuner_daemon.builders.elf import find_kernel, kernels
from tuner_daemon.errors import MissingPartError


def real_arch(arch: str) -> str:
    """``sm_90`` -> ``sm_90a``: from Hopper on, tensor-core instructions are in the architecture's own variant.

    The cubin is built on the machine that runs it, so that nothing is lost. Raises MissingPartError for what is no
    CUDA architecture.
    """
    number = re.fullmatch(r"sm_(\d+)([af]?)", arch)
    if number is None:
        raise MissingPartError(f"{arch!r} is not a CUDA architecture such as sm_90; is there a CUDA device?")
    return f"{arch}a" if int(number[1]) >= 90 and not number[2] else arch


def compiled_cubin(cubin: bytes, entry: str, output: str, build_s: float) -> Compiled | Rejected:
    """``output``: what ``ptxas -v`` printed. ``entry``: as declared, or already a symbol."""
    try:
        symbol = find_kernel(kernels(cubin), entry)
    except LookupError as error:
        return Rejected(str(error), build_s)
    except ValueError as error:
        return Rejected(f"the compiler wrote a {error}", build_s, lasting=False)
    usage = ptxas_usage(output, symbol)
    return Compiled(cubin, symbol, build_s, usage.registers, usage.shared_bytes, usage.spill_bytes)
