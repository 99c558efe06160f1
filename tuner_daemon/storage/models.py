"""The model store: one folder per version, and a link to the champion.

    <version>/{policy.safetensors, policy.json, cost_model.ubj, cost_model.json, manifest.json}    current -> <version>

Only formats without code in them are stored, and nothing here decodes them. A version is published complete or not at
all; promotion is one rename of the link; a damaged champion falls back to the one before it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner_daemon.errors import ModelError
from tuner_daemon.storage import files

logger = logging.getLogger(__name__)
KEPT = 3
SUFFIXES = (".safetensors", ".ubj", ".json")
_MANIFEST, _CURRENT, _HISTORY = "manifest.json", "current", "promoted.json"
_MANIFEST_BYTES = 64 << 20  # it says how large the others are
_VERSION = re.compile(r"[0-9]{8}T[0-9]{12}Z-[0-9a-f]{8}")


@dataclass(frozen=True)
class StoredModel:
    """A version whose files were what its manifest says when it was read."""

    version: str
    folder: Path
    files: Mapping[str, bytes]  # the verified bytes: nothing is read a second time
    metadata: Mapping[str, Any]  # as given to publish (feature schema, log fingerprint, metrics), and created_at
    created_at: datetime


class ModelStore:
    """Versions under ``folder``. ``damaged`` names those found broken, with the reason."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: dict[str, str] = {}
        self._guard = files.Guard(ModelError)

    def publish(self, contents: Mapping[str, bytes], metadata: Mapping[str, Any]) -> str:
        """Stores a version, complete and synced, without promoting it. Returns its name.

        Raises ModelError for a file name or format that is not stored, DiskFullError.
        """
        _check_names(contents)
        created_at = _now()
        digest = hashlib.sha256(b"".join(contents[name] for name in sorted(contents)) + uuid.uuid4().bytes).hexdigest()
        version = f"{created_at:%Y%m%dT%H%M%S%fZ}-{digest[:8]}"
        manifest = _manifest(version, contents, metadata, created_at)
        with self._guard(f"model {version}"):
            files.make_folder(self.folder)
            self._publish(version, {**contents, _MANIFEST: manifest})
        return version

    def _publish(self, version: str, contents: Mapping[str, bytes]) -> None:
        temp = files.temporary(self.folder / version)
        try:
            temp.mkdir()
            for name, data in contents.items():
                files.write_synced(temp / name, data)
            files.publish_folder(temp, self.folder / version)
        except OSError:
            files.remove(temp)
            raise

    def promote(self, version: str) -> None:
        """Makes it the champion by one rename and keeps the last three. Raises ModelError if it is damaged."""
        self.load(version)
        with self._guard(f"promotion of model {version}"):
            history = self.promoted()
            before = self.current_version()
            files.replace_link(self.folder / _CURRENT, version)
            earlier = [v for v in dict.fromkeys([*history, *([before] if before else [])]) if v != version]
            kept = [*earlier, version][-KEPT:]
            files.publish_bytes(self.folder / _HISTORY, json.dumps(kept).encode())
            self._prune(set(kept), older_than=version)

    def current(self) -> StoredModel | None:
        """The champion; if it is damaged the latest earlier one that is not; None if there is none."""
        return next(self.whole(), None)

    def whole(self) -> Iterator[StoredModel]:
        """The champion and then the earlier ones, latest first, without those that are damaged."""
        for version in self._candidates():
            try:
                stored = self.load(version)
            except ModelError as error:
                if self.damaged.get(version) != str(error):
                    logger.error("model %s is damaged, falling back: %s", version, error)
                self.damaged[version] = str(error)
            else:
                yield stored

    def current_version(self) -> str | None:
        """What the link names, without looking at it: cheap enough to ask between two jobs."""
        try:
            target = (self.folder / _CURRENT).readlink().name
        except OSError:
            return None
        return target if _VERSION.fullmatch(target) else None

    def load(self, version: str) -> StoredModel:
        """A version with every file verified. Raises ModelError."""
        folder = self.folder / version
        if not _VERSION.fullmatch(version):
            raise ModelError(f"{version!r} is not the name of a model version")
        try:
            manifest = _checked(json.loads(files.read_regular(folder / _MANIFEST, _MANIFEST_BYTES)))
            _check_names(manifest["files"])
            contents = {
                name: files.read_regular(folder / name, facts["bytes"]) for name, facts in manifest["files"].items()
            }
            created_at = datetime.fromisoformat(manifest["created_at"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(f"model {version}: {error}") from error
        for name, data in contents.items():
            if hashlib.sha256(data).hexdigest() != manifest["files"][name]["sha256"]:
                raise ModelError(f"model {version}: {name} is not what was stored: its SHA-256 differs")
        metadata = {**manifest["metadata"], "created_at": manifest["created_at"]}
        return StoredModel(version, folder, contents, metadata, created_at)

    def versions(self) -> list[str]:
        """Every stored version, oldest first, promoted or not."""
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir() if _VERSION.fullmatch(path.name))

    def promoted(self) -> list[str]:
        """The last champions, oldest first."""
        with suppress(OSError, ValueError, RecursionError):
            history = json.loads((self.folder / _HISTORY).read_text())
            if isinstance(history, list):
                return [version for version in history if isinstance(version, str)]
        return []

    def _candidates(self) -> Iterator[str]:
        current = self.current_version()
        if current is not None:
            yield current
        yield from (version for version in reversed(self.promoted()) if version != current)

    def _prune(self, kept: set[str], older_than: str) -> None:
        """Newer versions stay: one may be on its way to promotion in another process."""
        for version in self.versions():
            if version not in kept and version < older_than:
                files.remove(self.folder / version)
        for temp in self.folder.glob(".*.tmp"):
            if temp.name[1:] < older_than:
                files.remove(temp)


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        plain = Path(name).name == name and not name.startswith(".") and name != _MANIFEST
        if not plain or Path(name).suffix not in SUFFIXES:
            raise ModelError(f"model file {name!r}: want a plain name that ends in {', '.join(SUFFIXES)}")


def _now() -> datetime:
    return datetime.now(UTC)


def _manifest(version: str, contents: Mapping[str, bytes], metadata: Mapping[str, Any], created_at: datetime) -> bytes:
    hashes = {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in contents.items()}
    body = {
        "schema": 1,
        "version": version,
        "created_at": created_at.isoformat(),
        "files": hashes,
        "metadata": json.loads(json.dumps(dict(metadata))),  # as it will be read: keys are text
    }
    return json.dumps({**body, "digest": _digest(body)}, indent=1).encode()


def _checked(manifest: dict[str, Any]) -> dict[str, Any]:
    digest = manifest.pop("digest")
    if digest != _digest(manifest):
        raise ValueError("its manifest is not what was stored")
    return manifest


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
