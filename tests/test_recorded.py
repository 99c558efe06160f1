"""Recorded spaces, and their import."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tuner_daemon.errors import KernelError, MissingPartError
from tuner_daemon.intake.kernels import load_kernel
from tuner_daemon.records.measurement import Outcome
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.storage.gpus import device_named
from tuner_daemon.storage.hub import import_hub, kernel_toml
from tuner_daemon.storage.recorded import load_recorded, read_recorded, recorded_files

SIDECAR: dict[str, Any] = {
    "kernel": "stencil",
    "device": "A100",
    "device_name": "NVIDIA A100-PCIE-40GB",
    "source": "somewhere@1",
    "license": "MIT",
    "params": ["block_size_x", "tile_size_x", "use_shmem"],
    "param_values": {"block_size_x": [32, 64], "tile_size_x": [1, 2], "use_shmem": [0, 1]},
    "restrictions": ["32 <= block_size_x * tile_size_x <= 64", "use_shmem == 0 or block_size_x % 64 != 0"],
    "problem_size": [1000],
}
ROWS = [
    {"block_size_x": 32, "tile_size_x": 1, "use_shmem": 0, "time_ms": 2.0, "status": "ok", "rep_std_ms": 0.02},
    {"block_size_x": 32, "tile_size_x": 1, "use_shmem": 1, "time_ms": 1.5, "status": "ok", "rep_std_ms": None},
    {"block_size_x": 32, "tile_size_x": 2, "use_shmem": 0, "time_ms": None, "status": "compile_error"},
    {"block_size_x": 32, "tile_size_x": 2, "use_shmem": 1, "time_ms": None, "status": "runtime_error"},
    {"block_size_x": 64, "tile_size_x": 1, "use_shmem": 0, "time_ms": 4.0, "status": "ok"},
]


def _files(folder: Path, sidecar: dict[str, Any] = SIDECAR, name: str = "a") -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(sidecar))
    pq.write_table(pa.Table.from_pylist(ROWS), folder / f"{name}.parquet")
    return folder / f"{name}.json", folder / f"{name}.parquet"


def test_a_configuration_is_answered_with_its_recorded_times(tmp_path: Path) -> None:
    import_hub(*_files(tmp_path / "in"), tmp_path / "stencil")
    space = load_recorded(tmp_path / "stencil")
    assert len(space) == 5
    first = {"use_shmem": 0, "tile_size_x": 1, "block_size_x": 32}
    assert space.lookup(first) == (Outcome.OK, (2e-3,))
    assert space.relative_spread(first) == pytest.approx(0.01)
    assert space.relative_spread({**first, "use_shmem": 1}) is None
    assert space.lookup({**first, "tile_size_x": 2}) == (Outcome.BUILD_FAILED, ())
    assert space.lookup({**first, "tile_size_x": 2, "use_shmem": 1}) == (Outcome.LAUNCH_FAILED, ())
    assert space.best_s() == 1.5e-3
    assert not space.contains({**first, "block_size_x": 128})
    with pytest.raises(KernelError, match="no row"):
        space.lookup({**first, "block_size_x": 128})


def test_the_recording_names_its_device(tmp_path: Path) -> None:
    import_hub(*_files(tmp_path / "in"), tmp_path / "stencil")
    device = load_recorded(tmp_path / "stencil").device
    assert (device.kind, device.name, device.arch) == ("replay", "NVIDIA A100-PCIE-40GB", "sm_80")
    assert device.attributes["sm_count"] == 108
    assert device == device_named("NVIDIA A100-PCIE-40GB", "A100")
    assert device_named("Some GPU", "unheard of").attributes == {}


def test_an_imported_folder_is_a_kernel_whose_space_is_what_was_recorded(tmp_path: Path) -> None:
    import_hub(*_files(tmp_path / "in"), tmp_path / "stencil")
    kernel = load_kernel(tmp_path / "stencil")
    space = ParamSpace(kernel, {"size_x": 1000})
    recorded = load_recorded(tmp_path / "stencil")
    assert [config.as_dict() for config in space.all()] == [
        dict(zip(recorded.parameters, key, strict=True)) for key in recorded.rows
    ]
    assert [e.text for e in kernel.launch.grid] == ["ceil_div(size_x, block_size_x * tile_size_x)"]


def test_a_kernel_may_be_recorded_on_several_devices(tmp_path: Path) -> None:
    import_hub(*_files(tmp_path / "in"), tmp_path / "stencil")
    import_hub(*_files(tmp_path / "in", {**SIDECAR, "device": "A4000", "device_name": ""}, "b"), tmp_path / "stencil")
    assert [path.name for path in recorded_files(tmp_path / "stencil")] == ["a.parquet", "b.parquet"]
    second = load_recorded(tmp_path / "stencil", index=1).device
    assert (second.name, second.index) == ("NVIDIA RTX A4000", 1)
    with pytest.raises(MissingPartError, match="2 recordings"):
        load_recorded(tmp_path / "stencil", index=2)
    other = _files(tmp_path / "in", {**SIDECAR, "problem_size": [7]}, "c")
    with pytest.raises(KernelError, match="another kernel"):
        import_hub(*other, tmp_path / "stencil")


@pytest.mark.parametrize(
    ("restriction", "why"),
    [
        ("__import__('os').system('true')", "calls"),
        ("block_size_x ** 2 < 9", "Pow"),
        ("block_size_x in (32, 64)", "In"),
        ("block_size_x if use_shmem else 1", "IfExp"),
        ("max_threads > 3", "max_threads is no parameter"),
        ("block_size_x <", "invalid syntax"),
        ("block_size_x.real > 1", "Attribute"),
    ],
)
def test_what_cannot_be_translated_is_listed(restriction: str, why: str) -> None:
    sidecar = {**SIDECAR, "restrictions": ["use_shmem >= 0", restriction, "lambda: 1"]}
    with pytest.raises(KernelError) as refused:
        kernel_toml(sidecar)
    assert restriction in str(refused.value).replace('\\"', '"')
    assert why in str(refused.value)
    assert "Lambda" in str(refused.value)
    assert "use_shmem >= 0" not in str(refused.value)


def test_a_sidecar_that_lacks_something_is_named(tmp_path: Path) -> None:
    sidecar = {name: value for name, value in SIDECAR.items() if name != "param_values"}
    with pytest.raises(KernelError, match=r"a\.json.*param_values"):
        import_hub(*_files(tmp_path / "in", sidecar), tmp_path / "stencil")
    assert not (tmp_path / "stencil").exists()


def test_all_repeats_are_given_where_they_were_recorded(tmp_path: Path) -> None:
    table = pa.table({"BM": [1, 2], "times_ms": [[3.0, 4.0], []], "status": ["ok", "wrong_result"]})
    pq.write_table(table, tmp_path / "times.parquet")
    space = load_recorded(tmp_path)
    assert space.parameters == ("BM",)
    assert space.lookup({"BM": 1}) == (Outcome.OK, (0.003, 0.004))
    assert space.lookup({"BM": 2}) == (Outcome.WRONG_RESULT, ())
    assert space.device.name == "times"


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"BM": [1], "time_ms": [1.0]}, "status is missing"),
        ({"BM": [1], "time_ms": [1.0], "status": ["fine"]}, 'status is "fine"'),
        ({"BM": [1], "time_ms": [None], "status": ["ok"]}, "time_ms of"),
        ({"BM": [1], "time_ms": [-1.0], "status": ["ok"]}, "time_ms of"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, columns: dict[str, Any], problem: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.raises(KernelError, match=problem):
        read_recorded(tmp_path / "x.parquet")


def test_a_damaged_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(KernelError, match="cannot be read"):
        load_recorded(tmp_path)


def test_the_toml_is_toml() -> None:
    tables = tomllib.loads(kernel_toml({**SIDECAR, "kernel": 'a "quoted" name'}))
    assert tables["name"] == 'a "quoted" name'
    assert tables["parameters"] == SIDECAR["param_values"]
    assert tables["constraints"]["all"] == SIDECAR["restrictions"]
    assert tables["problem"] == {"size_x": {"type": "int", "min": 1, "default": 1000}}


def test_every_space_of_a_hub_can_be_imported_whole(tmp_path: Path, root: Path) -> None:
    hub = root.parent / "shared" / "data" / "hub"
    if not hub.is_dir():
        pytest.skip("no recorded spaces beside this checkout")
    sidecars = sorted(hub.glob("*.json"))
    assert sidecars
    for sidecar in sidecars:
        folder = import_hub(sidecar, sidecar.with_suffix(".parquet"), tmp_path / sidecar.stem)
        recorded = load_recorded(folder)
        counts = json.loads(sidecar.read_text())["status_counts"]
        assert len(recorded) == sum(counts.values())
        kernel = load_kernel(folder)
        problem = {v.name: v.default for v in kernel.problem if v.default is not None}
        space = ParamSpace(kernel, problem)
        restricted = bool(kernel.constraints)
        assert space.size == len(recorded) or not restricted, sidecar.stem
        assert all(
            space.contains(dict(zip(recorded.parameters, key, strict=True))) for key in list(recorded.rows)[::97]
        )
        assert recorded.device.attributes["sm_count"] > 0
