"""Model files as a broken disk or an enemy would leave them. A payload makes a file; nobody may ever see it made."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

Spoil = Callable[[bytes, random.Random], bytes]


class Payload:
    """What unpickling it runs."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def flip(whole: bytes, rng: random.Random) -> bytes:
    spoilt = bytearray(whole)
    for _ in range(rng.randint(1, 8)):
        spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def cut(whole: bytes, rng: random.Random) -> bytes:
    return whole[: rng.randrange(len(whole))]


def overwrite(whole: bytes, rng: random.Random) -> bytes:
    begin = rng.randrange(len(whole))
    return whole[:begin] + rng.randbytes(rng.randint(1, 4096)) + whole[begin + 64 :]


CORRUPTIONS: dict[str, Spoil] = {
    "flip": flip,
    "cut": cut,
    "overwrite": overwrite,
    "zeros": lambda whole, rng: bytes(len(whole)),
    "nothing": lambda whole, rng: b"",
    "appended": lambda whole, rng: whole + rng.randbytes(rng.randint(1, 999)),
    "noise": lambda whole, rng: rng.randbytes(len(whole)),
}


def payloads(marker: Path) -> dict[str, bytes]:
    """Pickles in the containers in which libraries keep them."""
    evil = Payload(marker)
    arrays, packed = io.BytesIO(), io.BytesIO()
    np.save(arrays, np.array([evil], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(evil, 2))
        archive.writestr("archive/version", "3\n")
    return {
        **{f"pickle {protocol}": pickle.dumps(evil, protocol) for protocol in (0, 2, 4, 5)},
        "gzipped pickle": gzip.compress(pickle.dumps(evil)),
        "numpy objects": arrays.getvalue(),
        "torch archive": packed.getvalue(),
        "yaml": f'!!python/object/apply:os.system ["touch {marker}"]\n'.encode(),
        "json pickle": json.dumps({"py/reduce": [{"py/function": "os.system"}, [f"touch {marker}"]]}).encode(),
    }


def bombs() -> dict[str, bytes]:
    """Files that are well formed up to where they are not."""

    def safetensors(header: object, body: bytes = b"", size: int | None = None) -> bytes:
        text = json.dumps(header).encode()
        return (len(text) if size is None else size).to_bytes(8, "little") + text + body

    tensor = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    return {
        "header of 2^63 bytes": safetensors({}, size=1 << 63),
        "offsets beyond the end": safetensors({"mean": {**tensor, "data_offsets": [0, 1 << 40]}}, bytes(16)),
        "shape of 10^18": safetensors({"mean": {**tensor, "shape": [10**9, 10**9]}}, bytes(16)),
        "unknown type": safetensors({"mean": {**tensor, "dtype": "OBJECT"}}, bytes(16)),
        "one tensor": safetensors({"mean": tensor}, bytes(16)),
        "nesting": b"[" * 100_000,
        "long number": b'{"format": ' + b"9" * 100_000 + b"}",
        "not a number": b'{"format": 1, "schema": NaN, "groups": [], "offset": NaN, "deviation": NaN}',
        "list": b"[1, 2, 3]",
        "null": b"null",
        "lone surrogate": b'{"schema": "\\ud800", "groups": ["\\ud800"], "format": 1}',
    }


def forged(manifest: bytes, name: str, data: bytes) -> bytes:
    """The manifest that would vouch for ``data``: its digests need no secret."""
    body = json.loads(manifest)
    del body["digest"]
    body["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    return json.dumps(
        {**body, "digest": hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()}
    ).encode()
