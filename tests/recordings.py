"""Small recorded spaces whose times are a formula, in the form in which others record theirs."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

VALUES: dict[str, list[Any]] = {
    "block_size_x": [16, 32, 64, 128, 256],
    "block_size_y": [1, 2, 4, 8],
    "tile_size_x": [1, 2, 4, 8],
    "use_shmem": [0, 1],
}
RESTRICTIONS = ["block_size_x * block_size_y <= 1024"]


def time_ms(config: dict[str, Any], sms: int) -> float | None:
    """Milliseconds; None where the launch fails. The best place moves a little with the device."""
    threads = math.log2(config["block_size_x"] * config["block_size_y"])
    work = math.log2(config["tile_size_x"])
    if threads + work > 11:
        return None
    # The last term makes all times differ.
    cost = (
        0.013 * math.log2(config["block_size_y"]) + 0.2 * (threads - 7.43) ** 2 + 0.3 * (work - math.log2(sms) / 4) ** 2
    )
    return 10.0 / sms * math.exp(cost - 0.3 * config["use_shmem"])


def record(folder: Path, device: str = "A100", *, sms: int = 100, kernel: str = "stencil", **other: Any) -> Path:
    """Writes ``<kernel>__<device>.parquet`` and its sidecar, 160 configurations; ``other``: keys of the sidecar."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for values in itertools.product(*VALUES.values()):
        config = dict(zip(VALUES, values, strict=True))
        if config["block_size_x"] * config["block_size_y"] <= 1024:
            took = time_ms(config, sms)
            rows.append({**config, "time_ms": took, "status": "runtime_error" if took is None else "ok"})
    sidecar = {
        "kernel": kernel,
        "device": device,
        "device_name": "",
        "source": "somewhere@1",
        "license": "MIT",
        "params": list(VALUES),
        "param_values": VALUES,
        "restrictions": RESTRICTIONS,
        "problem_size": [4096, 1024],
        **other,
    }
    file = folder / f"{kernel}__{device}.parquet"
    file.with_suffix(".json").write_text(json.dumps(sidecar))
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file
