"""What all compiling builders share: look in the cache, compile the rest in parallel, hand over as they finish."""

from __future__ import annotations

import hashlib
import json
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from tuner_daemon.builders.cache import BuildCache, Cached, Compiled, Rejected
from tuner_daemon.builders.preamble import preamble, with_source
from tuner_daemon.builders.sources import SourceRefusedError, SourceTree, read_source
from tuner_daemon.errors import KernelError
from tuner_daemon.records.kernel import Source
from tuner_daemon.records.measurement import Artifact, Failure, Outcome
from tuner_daemon.records.space import Config
from tuner_daemon.records.spec import KernelSpec

Item = Artifact | Failure


@dataclass(frozen=True)
class CompileUnit:
    """What one compilation depends on, apart from the compiler. ``headers``: name in ``#include`` -> text."""

    text: str
    headers: Mapping[str, str]
    entry: str

    def key(self, compiler: str) -> str:
        parts = [compiler, self.entry, self.text, *(text for item in sorted(self.headers.items()) for text in item)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Compilation(Protocol):
    """One compilation of one unit."""

    def run(self) -> Compiled | Rejected:
        """Blocks until it is done or stopped; called at most once, in a thread of its builder."""
        ...

    def stop(self) -> None:
        """Ends it from another thread, before or while it runs."""
        ...


@dataclass(frozen=True)
class Decided:
    """A compilation whose outcome was known without a compiler."""

    outcome: Compiled | Rejected

    def run(self) -> Compiled | Rejected:
        return self.outcome

    def stop(self) -> None:
        """Nothing runs."""


@dataclass(frozen=True)
class Job:
    """A compilation in the queue of a builder's threads."""

    compilation: Compilation
    future: Future[Compiled | Rejected]

    def cancel(self) -> None:
        self.future.cancel()
        self.compilation.stop()


class BuildStream(Iterator[Item]):
    """Results in order of completion. Dropping or closing it cancels what is left."""

    def __init__(self, ready: Sequence[Item], jobs: Sequence[Job], finish: Sequence[Callable[[], Item]]) -> None:
        self._ready, self._finish, self._left = list(reversed(ready)), finish, len(jobs)
        self._done: SimpleQueue[int] = SimpleQueue()
        self._finalizer = weakref.finalize(self, _cancel_all, [job.cancel for job in jobs])
        for index, job in enumerate(jobs):
            job.future.add_done_callback(partial(_announce, self._done, index))

    def __next__(self) -> Item:
        if not self._finalizer.alive:
            raise StopIteration
        if self._ready:
            return self._ready.pop()
        if not self._left:
            raise StopIteration
        self._left -= 1
        try:
            return self._finish[self._done.get()]()
        except CancelledError:
            raise StopIteration from None  # closed by another thread while this one waited

    def close(self) -> None:
        self._finalizer()


def _announce(done: SimpleQueue[int], index: int, _future: object) -> None:
    done.put(index)


def _cancel_all(cancels: Sequence[Callable[[], object]]) -> None:
    for cancel in cancels:
        cancel()


class CompilingBuilder(ABC):
    """A Builder for one language. Subclasses say which compiler it is and how it compiles one unit.

    ``jobs``: compilations at a time.
    """

    language: str

    def __init__(self, cache: BuildCache, jobs: int) -> None:
        self._cache = cache
        # Threads only wait: each compilation runs in a process.
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="build")
        # The device waits for a reference, while candidates may be queued ahead of it for minutes.
        self._urgent = ThreadPoolExecutor(1, thread_name_prefix="reference")
        self._streams: weakref.WeakSet[BuildStream] = weakref.WeakSet()

    @property
    @abstractmethod
    def compiler(self) -> str:
        """Name and version, for people. Raises MissingPartError if there is none."""

    @abstractmethod
    def _identity(self) -> str:
        """Everything beside the unit that decides what is built: version, options, architecture.

        Raises MissingPartError."""

    @abstractmethod
    def _compilation(self, unit: CompileUnit) -> Compilation: ...

    def build(self, spec: KernelSpec, configs: Sequence[Config]) -> BuildStream:
        """See Builder. Raises KernelError if the kernel has no source in this language, or it cannot be read."""
        source = spec.kernel.sources.get(self.language)
        if source is None:
            raise KernelError(
                f"{spec.kernel.name} has no source for {self.language}",
                key="sources",
                remedy=f"add one, or tune on {' or '.join(spec.kernel.sources) or 'nothing'}",
            )
        compiler = self._identity()
        try:
            tree = read_source(source, spec.kernel.folder)
        except SourceRefusedError as refused:
            return BuildStream([_failure(config, Rejected(str(refused))) for config in configs], [], [])
        units = [_unit(spec, tree, source, config) for config in configs]
        stream = self._stream([(config, unit, unit.key(compiler)) for config, unit in zip(configs, units, strict=True)])
        self._streams.add(stream)
        return stream

    def build_reference(self, spec: KernelSpec) -> Artifact:
        """See Builder."""
        source = spec.kernel.reference.sources.get(self.language)
        if source is None:
            raise KernelError(f"{spec.kernel.name} has no reference source for {self.language}", key="reference")
        unit = _unit(spec, read_source(source, spec.kernel.folder), source, None)
        (item,) = self._stream([(Config((), ()), unit, unit.key(self._identity()))], self._urgent)
        if isinstance(item, Failure):
            raise KernelError(f"does not compile: {item.detail}", file=source.file, key="reference")
        return item

    def close(self) -> None:
        """Ends every compilation that is under way; streams that were not read to their end are over."""
        for stream in list(self._streams):
            stream.close()
        for threads in (self._threads, self._urgent):
            threads.shutdown(wait=True, cancel_futures=True)

    def _stream(
        self, wanted: Sequence[tuple[Config, CompileUnit, str]], threads: ThreadPoolExecutor | None = None
    ) -> BuildStream:
        ready: list[Item] = []
        jobs: list[Job] = []
        finish: list[Callable[[], Item]] = []
        for config, unit, key in wanted:
            known = self._cache.get(key)
            if isinstance(known, Cached):
                ready.append(_artifact(config, known, build_s=0.0, cached=True))
            elif known is not None:
                ready.append(_failure(config, known))
            else:
                compilation = self._compilation(unit)
                job = Job(compilation, (threads or self._threads).submit(compilation.run))
                jobs.append(job)
                finish.append(partial(self._finish, config, key, job.future))
        return BuildStream(ready, jobs, finish)

    def _finish(self, config: Config, key: str, future: Future[Compiled | Rejected]) -> Item:
        outcome = future.result()
        if isinstance(outcome, Compiled):
            return _artifact(config, self._cache.put(key, outcome), build_s=outcome.build_s, cached=False)
        if outcome.lasting:
            self._cache.put_rejected(key, outcome)
        return _failure(config, outcome)


def _unit(spec: KernelSpec, tree: SourceTree, source: Source, config: Config | None) -> CompileUnit:
    defines = preamble(spec.kernel.parameters, config, spec.problem)
    return CompileUnit(with_source(defines, tree.name, tree.text), tree.headers, source.entry)


def _artifact(config: Config, built: Cached, *, build_s: float, cached: bool) -> Artifact:
    return Artifact(
        config,
        built.path,
        built.entry,
        built.sha256,
        build_s,
        built.registers,
        built.shared_bytes,
        built.spill_bytes,
        cached,
    )


def _failure(config: Config, rejected: Rejected) -> Failure:
    return Failure(config, Outcome.BUILD_FAILED, rejected.detail, build_s=rejected.build_s)
