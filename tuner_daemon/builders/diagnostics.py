"""What compilers say: their first errors, and ptxas's figures."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ERROR = re.compile(r"\berror\b|undefined reference|ptxas fatal|multiple definition", re.IGNORECASE)
# What another run, with more memory or disk, may not say again: not to be remembered as the candidate's fault.
_PASSING = re.compile(
    r"out of memory|memory exhausted|bad_alloc|internal compiler error|internal error|no space left|killed|"
    r"terminated|signal|file size limit|cannot allocate|resource temporarily|cannot execute",
    re.IGNORECASE,
)
_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)


@dataclass(frozen=True)
class Usage:
    """ptxas's figures of one kernel. ``spill_bytes``: spill stores; ``shared_bytes``: static shared memory."""

    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None


def first_errors(output: str, *, lines: int = 6, limit: int = 1200) -> str:
    """The first lines that report errors; without any, the first lines that say something."""
    said = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in said if _ERROR.search(line) and not re.match(r"\d+ errors? detected", line)]
    return "\n".join((errors or said)[:lines])[:limit]


def is_passing(output: str) -> bool:
    """The failure came from the machine's limits or the compiler itself, not (surely) from the source."""
    return bool(_PASSING.search(output)) or not _ERROR.search(output)


def speaks_of_full_disk(output: str) -> bool:
    """What a compiler says on a full disk; a source can make it say so as well."""
    return bool(_FULL.search(output))


def ptxas_usage(output: str, symbol: str) -> Usage:
    """Reads what ``ptxas -v`` printed about the kernel ``symbol``; None for what it did not say."""
    started = re.search(rf"Compiling entry function '{re.escape(symbol)}'", output)
    if started is None:
        return Usage()
    rest = output[started.end() :].split("Compiling entry function", 1)[0]
    registers, spill = re.search(r"Used (\d+) registers", rest), re.search(r"(\d+) bytes spill stores", rest)
    shared = re.search(r"(\d+)(?:\+\d+)? bytes smem", rest)
    return Usage(
        registers=int(registers[1]) if registers else None,
        shared_bytes=int(shared[1]) if shared else (0 if registers else None),
        spill_bytes=int(spill[1]) if spill else None,
    )
