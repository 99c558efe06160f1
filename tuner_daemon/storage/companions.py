"""A spec dropped as a bare file may name a kernel folder or source files that lie beside it in incoming/.

They, and the headers that the sources include from there, are copied to a work folder of the claim, so that later
changes in incoming/ cannot reach a running job. The spec in active/ stays the truth; the work folder is made anew at
every claim and thrown away.
"""

from __future__ import annotations

import re
from pathlib import Path

from tuner_daemon.errors import KernelError
from tuner_daemon.records.includes import header_files
from tuner_daemon.storage import dropping, files
from tuner_daemon.storage.incoming import SOURCE_SUFFIXES

_SPEC_LIMIT_BYTES = 256 << 10
_QUOTED_NAME = re.compile(r"""["']([\w-][\w.+-]{0,126})["']""")


class CompanionError(Exception):
    """A file that the spec names cannot be copied. Never leaves the package: the spec has failed."""


def gather(place: Path, incoming: Path, workplace: Path) -> Path:
    """What to load for the spec at ``place``: itself, or its copy in ``workplace`` beside all that it names."""
    files.remove(workplace)
    if place.is_dir():
        return place
    named = beside(place, incoming)
    if not named:
        return place
    workplace.mkdir()
    for path in [*named, place]:
        _copy(path, workplace / (path.name if path == place else path.relative_to(incoming)))
    return workplace / place.name


def beside(spec: Path, folder: Path | None = None) -> list[Path]:
    """Kernel folders and files in ``folder`` (default: the spec's own) that the spec file names, and the headers in it
    that these files include; none for a folder."""
    if spec.is_dir():
        return []
    folder = spec.parent if folder is None else folder
    named = [Path(name) for name in sorted(_named(spec)) if _is_there(folder / name)]
    included = {header for name in named for header in _headers(folder / name, folder)}
    return [folder / name for name in (*named, *sorted(included - set(named)))]


def _headers(source: Path, folder: Path) -> list[Path]:
    """Relative to the folder; none where they cannot be followed: loading the spec will say why."""
    if source.suffix not in SOURCE_SUFFIXES or source.is_dir():
        return []
    try:
        return header_files(source, folder)
    except KernelError:
        return []


def _copy(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        dropping.copy(source, target)
    except OSError as error:
        if files.may_be_retried(error) or isinstance(error, files.FsyncError):
            raise
        raise CompanionError(f"{source.name} cannot be copied: {error}") from error


def _is_there(path: Path) -> bool:
    try:
        return not path.is_symlink() and (path.is_file() or (path / "kernel.toml").is_file())
    except OSError:  # such as a folder that is not for us to read
        return False


def _named(place: Path) -> set[str]:
    """Every quoted text in the spec that could be a plain file name.

    Found without parsing: whoever wants to stop the daemon can write a text over which a parser takes hours. A spec
    that cannot be read names nothing: loading it will say what is wrong.
    """
    try:
        text = files.read_regular(place, _SPEC_LIMIT_BYTES).decode()
    except (OSError, ValueError):
        return set()
    return {match[1] for match in _QUOTED_NAME.finditer(text)}
