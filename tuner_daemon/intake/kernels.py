"""Loads a kernel folder: one loader for templates, users' kernels, recorded spaces and kernels inside a spec."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from tuner_daemon.errors import KernelError
from tuner_daemon.intake.declared import Declared, nearest
from tuner_daemon.intake.documents import Document, Keys, dotted, parse
from tuner_daemon.intake.files import ARRAY_BYTES, SOURCE_BYTES, inside, read_text, sha256_of
from tuner_daemon.intake.schema import KernelTables, ReferenceTable, SourceTable, validated
from tuner_daemon.records.includes import TREE_LIMIT_BYTES, header_files
from tuner_daemon.records.kernel import Argument, Kernel, Reference, Source

_LANGUAGE_OF_SUFFIX = {".cu": "cuda", ".cuh": "cuda", ".c": "cpu"}
_KINDS_OF_REFERENCE = "source (or cuda, cpu), config, or arrays"


def load_kernel(folder: Path) -> Kernel:
    """The kernel that ``folder/kernel.toml`` declares, with every file it names.

    A folder without sources but with a Parquet file beside kernel.toml is a recorded space: its kernel has no sources.
    Raises KernelError with file, key and line.
    """
    if not folder.is_dir():
        raise KernelError("is not a folder", file=folder, remedy="name a folder with a kernel.toml in it")
    file = folder / "kernel.toml"
    return kernel_from_document(parse(read_text(file, KernelError), file, KernelError), folder)


def kernel_from_declaration(text: str, sha256: str) -> Kernel:
    """A kernel from its canonical declaration, without sources and stored arrays: enough to compute features.

    Raises KernelError if the text is not a declaration.
    """
    document = parse(text, Path(f"declaration-{sha256[:12]}.json"), KernelError)
    kernel = _Loader(document, None).kernel()
    return replace(kernel, sha256=sha256, declaration=text)


def kernel_from_document(document: Document, folder: Path) -> Kernel:
    """The kernel whose tables the document holds, with its files in ``folder``. Raises KernelError.

    Its hash covers everything that can change an answer: the declaration, the files it names, the headers that those
    include from the folder, and the recordings of a folder without sources.
    """
    loader = _Loader(document, folder)
    kernel = loader.kernel()
    digest = hashlib.sha256(kernel.declaration.encode())
    _add(digest, loader.files)
    unnamed = _unnamed_files(kernel)
    _add(digest, {name: unnamed[name] for name in unnamed.keys() - loader.files.keys()})
    return replace(kernel, sha256=digest.hexdigest())


def _add(digest: hashlib._Hash, files: Mapping[str, tuple[Path, int]]) -> None:
    for name, (path, limit) in sorted(files.items()):
        digest.update(f"\n{name}\n{sha256_of(path, KernelError, limit=limit)}".encode())


def _unnamed_files(kernel: Kernel) -> dict[str, tuple[Path, int]]:
    """What the declaration does not name and an answer depends on; name in the folder -> path and its size limit."""
    if not kernel.sources:
        return {path.name: (path, ARRAY_BYTES) for path in kernel.folder.glob("[!.]*.parquet")}
    root = kernel.folder.resolve()
    sources = {source.file for source in (*kernel.sources.values(), *kernel.reference.sources.values())}
    headers = {header for source in sources for header in header_files(source, kernel.folder)}
    return {str(header): (root / header, TREE_LIMIT_BYTES) for header in headers}


class _Loader:
    """Builds a Kernel from a document. Without a folder, files are neither looked for nor named in the result."""

    def __init__(self, document: Document, folder: Path | None) -> None:
        self.document, self.folder = document, folder
        self.tables = validated(KernelTables, document.tables, document)
        self.declared = Declared(self.tables, document)
        self.files: dict[str, tuple[Path, int]] = {}  # name -> path and the most bytes it may have

    def kernel(self) -> Kernel:
        tables, declared = self.tables, self.declared
        arguments = declared.arguments()
        sources = self._sources()
        baseline = None
        if tables.baseline is not None:
            baseline = declared.config(tables.baseline.config, ("baseline", "config"))
        self._check_fills(arguments)
        return Kernel(
            name=tables.name,
            folder=Path() if self.folder is None else self.folder.absolute(),
            sources=sources,
            problem=declared.problem,
            parameters=declared.parameters,
            constraints=declared.expressions(tables.constraints.all, ("constraints", "all")),
            launch=declared.launch(),
            arguments=arguments,
            reference=self._reference(arguments),
            baseline=baseline,
            work=declared.work(),
            reduction_length=declared.optional(tables.reduction_length, ("reduction_length",)),
            tolerance=tables.tolerance,
            sha256="",
            declaration=json.dumps(tables.model_dump(exclude_none=True), separators=(",", ":")),
        )

    def _sources(self) -> dict[str, Source]:
        if self.folder is None:
            return {}
        if not self.tables.sources and not any(self.folder.glob("*.parquet")):
            remedy = 'name a file per language, such as cuda = "kernel.cu"'
            raise self.document.fault(("sources",), "is missing", remedy=remedy)
        if self.tables.sources and not self.tables.arguments:
            raise self.document.fault(("arguments",), "is missing", remedy="declare what the kernel is called with")
        return {
            language: self._source(table, language, self.tables.name, ("sources", language))
            for language, table in self.tables.sources.items()
        }

    def _source(self, table: SourceTable, language: str, entry: str, keys: Keys) -> Source:
        return Source(language, self._file(table.file, keys), table.entry or entry)

    def _file(self, name: str, keys: Keys, *, limit: int = SOURCE_BYTES) -> Path:
        if self.folder is None:
            return Path(name)
        line = self.document.line(keys)
        path = inside(self.folder, name, KernelError, key=dotted(keys), file=self.document.file, line=line)
        self.files[str(PurePosixPath(name))] = (path, limit)
        return path

    def _check_fills(self, arguments: tuple[Argument, ...]) -> None:
        for i, argument in enumerate(arguments):
            if argument.fill.endswith(".npy"):
                self._file(argument.fill, ("arguments", i, "fill"), limit=ARRAY_BYTES)

    def _reference(self, arguments: tuple[Argument, ...]) -> Reference:
        table, tables = self.tables.reference, self.tables
        if table is None:
            if tables.baseline is not None:  # the configuration to beat is one that its author trusts
                return Reference(
                    sources={}, config=self.declared.config(tables.baseline.config, ("baseline", "config"))
                )
            if tables.sources:
                remedy = f"say what results are compared with: {_KINDS_OF_REFERENCE}"
                raise self.document.fault(("reference",), "is missing", remedy=remedy)
            return Reference(sources={})
        by_language = self._reference_sources(table)
        given = [kind for kind in (by_language, table.config, table.arrays) if kind]
        if len(given) != 1:
            what = "is empty" if not given else "has more than one kind"
            raise self.document.fault(("reference",), what, remedy=f"want one of {_KINDS_OF_REFERENCE}")
        if table.config is not None:
            return Reference(sources={}, config=self.declared.config(table.config, ("reference", "config")))
        if table.arrays is not None:
            return Reference(sources={}, arrays=self._reference_arrays(table.arrays, arguments))
        sources = {
            language: self._source(source, language, f"{tables.name}_reference", keys)
            for language, (source, keys) in by_language.items()
        }
        return Reference(sources=sources if self.folder is not None else {})

    def _reference_sources(self, table: ReferenceTable) -> Mapping[str, tuple[SourceTable, Keys]]:
        named: dict[str, SourceTable | None] = {"cuda": table.cuda, "cpu": table.cpu}
        found: dict[str, tuple[SourceTable, Keys]] = {}
        for language, source in named.items():
            if source is not None:
                found[language] = (source, ("reference", language))
        if table.source is not None:
            suffix = PurePosixPath(table.source.file).suffix
            if suffix not in _LANGUAGE_OF_SUFFIX:
                remedy = "want a .cu or .c file, or say which language: cuda = … or cpu = …"
                raise self.document.fault(("reference", "source"), f'is "{table.source.file}"', remedy=remedy)
            language = _LANGUAGE_OF_SUFFIX[suffix]
            if language in found:
                raise self.document.fault(("reference", "source"), f"is the {language} one again", remedy="remove one")
            found[language] = (table.source, ("reference", "source"))
        return found

    def _reference_arrays(self, arrays: Mapping[str, str], arguments: tuple[Argument, ...]) -> Mapping[str, Path]:
        outputs = [argument.name for argument in arguments if argument.kind in ("output", "inout")]
        for name, file in arrays.items():
            keys = ("reference", "arrays", name)
            if name not in outputs:
                raise self.document.fault(keys, "is not an output", remedy=nearest(name, outputs))
            if not file.endswith(".npy"):
                raise self.document.fault(keys, f'is "{file}"', remedy="want a .npy file")
        missing = [name for name in outputs if name not in arrays]
        if missing:
            table = ("reference", "arrays")
            raise self.document.fault(table, f"has no {', '.join(missing)}", remedy="name an array per output")
        paths = {
            name: self._file(file, ("reference", "arrays", name), limit=ARRAY_BYTES) for name, file in arrays.items()
        }
        return paths if self.folder is not None else {}
