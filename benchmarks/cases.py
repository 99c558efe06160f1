"""The problems that the families are judged at, with their goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner_daemon.records.kernel import Value


@dataclass(frozen=True)
class Case:
    """A family at a problem. Goals, as shares: of the library's speed, and of the bandwidth of a copy."""

    family: str
    problem: Mapping[str, Value] = field(default_factory=dict)
    of_library: float | None = None
    of_copy: float | None = None

    @property
    def name(self) -> str:
        texts = [str(value) for value in self.problem.values() if isinstance(value, str) and value != "float32"]
        sizes = [f"{v:g}" if isinstance(v, float) else str(v) for v in self.problem.values() if not isinstance(v, str)]
        return " ".join([self.family, "x".join(sizes), *texts])


def _square(size: int, **more: Value) -> dict[str, Value]:
    return {"m": size, "n": size, "k": size, **more}


def _rows(rows: int, cols: int, **more: Value) -> dict[str, Value]:
    return {"rows": rows, "cols": cols, **more}


def _conv(n: int, c: int, size: int, k: int, taps: int, stride: int, pad: int) -> dict[str, Value]:
    return {"n": n, "c": c, "h": size, "w": size, "k": k, "r": taps, "s": taps, "stride": stride, "pad": pad}


def _heads(length: int, width: str, causal: str = "no") -> dict[str, Value]:
    return {"batch": 4, "heads": 16, "q_len": length, "kv_len": length, "head_dim": width, "causal": causal}


SIZES = (1024, 2048, 4096, 8192)
ROWWISE = ((8192, 4096), (32768, 4096), (4096, 32768), (131072, 1024))
FITS_ON_CHIP = 16384  # columns of float32: 64 KiB

CASES: Mapping[str, Sequence[Case]] = {
    "cuda": (
        *(Case("matmul", _square(size), of_library=0.95) for size in SIZES),
        *(
            Case("matmul_half", _square(size, dtype=dtype), of_library=0.8 if size >= 4096 else None)
            for dtype in ("bfloat16", "float16")
            for size in SIZES
        ),
        *(
            Case(family, _rows(rows, cols), of_library=1.0, of_copy=0.9 if cols <= FITS_ON_CHIP else None)
            for family in ("softmax", "layernorm", "rmsnorm")
            for rows, cols in ROWWISE
        ),
        Case("attention", _heads(2048, "64")),
        Case("attention", _heads(4096, "128"), of_library=0.6),
        Case("attention", _heads(4096, "128", "yes")),
        Case("conv2d", _conv(32, 64, 56, 64, 3, 1, 1), of_library=0.8),
        Case("conv2d", _conv(32, 256, 14, 256, 3, 1, 1), of_library=0.8),
        Case("conv2d", _conv(16, 3, 224, 64, 7, 2, 3), of_library=0.8),
        Case("reduction", _rows(1, 1 << 28, operation="sum"), of_copy=0.97),
        Case("transpose", _rows(16384, 16384), of_copy=0.9),
        Case("elementwise", {"n": 1 << 27}),
        Case("scan", _rows(1, 1 << 25)),
        Case("histogram", {"n": 1 << 27, "bins": 256}),
        Case("spmv", {"rows": 1 << 19, "cols": 1 << 19, "nnz": 1 << 24}),
        Case("stencil2d", {"height": 8192, "width": 8192}),
        Case("stencil3d", {"depth": 256, "height": 512, "width": 512}),
    ),
    "cpu": (Case("matmul", _square(96)), Case("softmax", _rows(64, 300))),
}
