"""Builds CUDA kernels to cubins with NVRTC, in worker processes that a bad source may bring down.

The functions with ``_in_worker`` in their names run there; only they import ``cuda.bindings``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import resource
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tuner_daemon.builders.cache import BuildCache, Compiled, Rejected
from tuner_daemon.builders.compiling import Compilation, CompileUnit, CompilingBuilder
from tuner_daemon.builders.cubin import compiled_cubin, real_arch
from tuner_daemon.builders.diagnostics import first_errors, is_passing
from tuner_daemon.builders.nvrtc_headers import SUBSTITUTES, WITHOUT_TOOLKIT, include_folders
from tuner_daemon.errors import MissingPartError

REMEDY = "install the extra tuner-daemon[cuda], which brings NVRTC"
TASKS_PER_WORKER = 1000  # then a fresh one: NVRTC does not give all its memory back


class NvrtcBuilder(CompilingBuilder):
    """A Builder of cubins. ``entry`` may be a C++ name expression, templates included, with parameters' names in it.

    ``cuda_home``: toolkit whose headers sources may include; by default those of the nvidia wheels, else of
    /usr/local/cuda. NVRTC itself needs none. ``memory_bytes`` bounds the address space of each worker,
    ``output_bytes`` a cubin.
    """

    language = "cuda"

    def __init__(
        self,
        cache: BuildCache,
        *,
        arch: str,
        jobs: int,
        timeout_s: float = 60.0,
        memory_bytes: int = 8 << 30,
        output_bytes: int = 64 << 20,
        cuda_home: Path | None = None,
    ) -> None:
        super().__init__(cache, jobs)
        self._timeout_s, self._output_bytes = timeout_s, output_bytes
        self._workers = Workers(jobs + 1, memory_bytes, cache.folder / "empty")  # one for a reference
        folders = include_folders(cuda_home)
        self._headers = {**SUBSTITUTES, **({} if folders else WITHOUT_TOOLKIT)}
        self._options = (
            f"--gpu-architecture={real_arch(arch)}",
            "-std=c++17",
            "--ptxas-options=-v",
            *(f"--include-path={folder}" for folder in folders),
        )

    @property
    def compiler(self) -> str:
        return f"NVRTC {self._description.version}"

    @cached_property
    def _description(self) -> Description:
        if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
            raise MissingPartError(f"cuda-bindings is not installed; {REMEDY}")
        try:
            found = self._workers.schedule(_describe_in_worker, (), timeout_s=60.0).result()
        except (TimeoutError, OSError, MemoryError) as error:  # pebble's ProcessExpired is an OSError
            found = f"its process ended, {error}"
        if isinstance(found, str):
            raise MissingPartError(f"NVRTC cannot be loaded ({found}); {REMEDY}")
        description: Description = found
        return description

    def _identity(self) -> str:
        return "\n".join([repr(self._description), *self._options])

    def _compilation(self, unit: CompileUnit) -> Compilation:
        request = Request(unit.text, {**self._headers, **unit.headers}, unit.entry, self._options, self._output_bytes)
        return NvrtcCompilation(self._workers, request, self._timeout_s)

    def close(self) -> None:
        super().close()
        self._workers.close()


@dataclass(frozen=True)
class Description:
    """Which NVRTC it is: two builds of one version are told apart by their file."""

    version: str
    library: str
    library_bytes: int


@dataclass(frozen=True)
class Request:
    """What a worker compiles."""

    text: str
    headers: Mapping[str, str]
    entry: str
    options: Sequence[str]
    output_bytes: int


class NvrtcCompilation:
    """One compilation in a worker."""

    def __init__(self, workers: Workers, request: Request, timeout_s: float) -> None:
        self._workers, self._request, self._timeout_s = workers, request, timeout_s
        self._lock = threading.Lock()
        self._stopped = False
        self._future: Any = None

    def run(self) -> Compiled | Rejected:
        from pebble import ProcessExpired

        started = time.monotonic()
        with self._lock:
            if self._stopped:
                return Rejected("stopped", lasting=False)
            self._future = self._workers.schedule(_compile_in_worker, (self._request,), timeout_s=self._timeout_s)
        try:
            outcome: Compiled | Rejected = self._future.result()
        except TimeoutError:
            detail = f"NVRTC was stopped after {self._timeout_s:g} s"
        except ProcessExpired as expired:
            detail = f"NVRTC brought its process down (exit status {expired.exitcode}), or ran out of memory"
        except MemoryError:
            detail = "NVRTC ran out of memory"
        except (CancelledError, BrokenProcessPool):
            detail = "stopped"
        else:
            return outcome
        return Rejected(detail, time.monotonic() - started, lasting=False)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._future is not None:
                self._future.cancel()


def start_server() -> None:
    """Starts the process that workers are forked from, and does not wait for it: half a second later a pool of them
    starts so much faster. Whoever has something else to start meanwhile calls this first."""
    from multiprocessing import forkserver

    _context()
    forkserver.ensure_running()


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__, "cuda.bindings.nvrtc"])
    return context


class Workers:
    """A pool of processes, started at the first task, which never holds more tasks than processes.

    Forked from a server process that has loaded the compiler's modules and nothing of the daemon's.
    """

    def __init__(self, count: int, memory_bytes: int, empty_folder: Path) -> None:
        self._count, self._memory_bytes, self._folder = count, memory_bytes, empty_folder
        self._lock = threading.Lock()
        self._pool: Any = None

    def schedule(self, function: object, arguments: Sequence[object], *, timeout_s: float) -> Any:
        """A future: TimeoutError after ``timeout_s`` of work, ProcessExpired if the worker dies."""
        with self._lock:
            if self._pool is None or not self._pool.active:  # a pool breaks if a worker is killed while it is idle
                self._stop()
                self._begin()
            return self._pool.schedule(function, args=arguments, timeout=timeout_s)

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _begin(self) -> None:
        from pebble import ProcessPool

        self._pool = ProcessPool(
            max_workers=self._count,
            max_tasks=TASKS_PER_WORKER,
            initializer=_set_up_in_worker,
            initargs=(self._memory_bytes, self._folder, os.getpid()),
            context=_context(),
        )

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None


def _set_up_in_worker(memory_bytes: int, empty_folder: Path, daemon: int) -> None:
    """Must not raise: a pool starts workers that fail here again and again."""
    for kind, limit in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (value, value))
    # NVRTC looks for headers in the working folder too.
    empty_folder.mkdir(parents=True, exist_ok=True)
    os.chdir(empty_folder)
    threading.Thread(target=_end_with_in_worker, args=(daemon,), daemon=True).start()


def _end_with_in_worker(daemon: int) -> None:
    """A compilation must not go on for ever when the process that would stop it was killed."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(daemon, 0)
            time.sleep(1.0)
    os._exit(1)


@cache
def _nvrtc_in_worker() -> Any:
    from cuda.bindings import nvrtc

    nvrtc.nvrtcVersion()  # loads the library, which may be found through the environment
    os.environ.clear()
    return nvrtc


def _describe_in_worker() -> Description | str:
    """Text, if NVRTC cannot be loaded: why."""
    try:
        nvrtc = _nvrtc_in_worker()
    except (ImportError, RuntimeError, OSError) as error:
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    _, major, minor = nvrtc.nvrtcVersion()
    mapped = (line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    library = next((Path(path) for path in mapped if "libnvrtc.so" in path or "libnvrtc.alt" in path), None)
    size = library.stat().st_size if library is not None else 0
    return Description(f"{major}.{minor}", str(library), size)


def _compile_in_worker(request: Request) -> Compiled | Rejected:
    nvrtc = _nvrtc_in_worker()
    started = time.monotonic()
    names = [name.encode() for name in request.headers]
    texts = [text.encode("utf-8", "surrogateescape") for text in request.headers.values()]
    source = request.text.encode("utf-8", "surrogateescape")
    status, program = nvrtc.nvrtcCreateProgram(source, b"unit.cu", len(names), texts, names)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return Rejected(f"NVRTC: {status.name}", lasting=False)
    try:
        return _compile_program_in_worker(nvrtc, program, request, started)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _compile_program_in_worker(nvrtc: Any, program: Any, request: Request, started: float) -> Compiled | Rejected:
    templated = "<" in request.entry
    if templated:
        nvrtc.nvrtcAddNameExpression(program, request.entry.encode())
    options = [option.encode() for option in request.options]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = _bytes_in_worker(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    output = log.decode("utf-8", "replace").rstrip("\0")
    build_s = time.monotonic() - started
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        refused = status == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION
        lasting = refused and not is_passing(output)
        return Rejected(first_errors(output) or f"NVRTC: {status.name}", build_s, lasting=lasting)
    entry = request.entry
    if templated:
        _, lowered = nvrtc.nvrtcGetLoweredName(program, entry.encode())
        entry = lowered.decode()
    size = int(nvrtc.nvrtcGetCUBINSize(program)[1])
    if size > request.output_bytes:
        return Rejected(f"the cubin has {size >> 20} MiB; at most {request.output_bytes >> 20} are allowed", build_s)
    cubin = _bytes_in_worker(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    return compiled_cubin(cubin, entry, output, build_s)


def _bytes_in_worker(program: Any, size_of: Any, read: Any) -> bytes:
    size = int(size_of(program)[1])
    content = b"\0" * max(size, 2)  # the binding writes into it; a single byte would be an object that others share
    read(program, content)
    return content[:size]
