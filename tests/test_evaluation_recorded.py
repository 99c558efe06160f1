"""Recorded spaces are read as they are: names say what is not said, and a kernel.toml beside them counts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.learning_tasks import device, measured, tiled_kernel, tiled_task
from tests.recordings import VALUES, record, time_ms
from tuner_daemon.errors import InputError, KernelError
from tuner_daemon.evaluation.recorded import joined, load
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.storage.hub import import_hub, kernel_toml
from tuner_daemon.storage.log import ParquetLog


def test_names_of_parameters_say_roles_and_launch_geometry(tmp_path: Path) -> None:
    (space,) = load([record(tmp_path)])
    assert [(p.name, p.role) for p in space.kernel.parameters] == [
        ("block_size_x", "thread_x"),
        ("block_size_y", "thread_y"),
        ("tile_size_x", "work_x"),
        ("use_shmem", "shared"),
    ]
    assert [side.text for side in space.kernel.launch.block] == ["block_size_x", "block_size_y"]
    assert [side.text for side in space.kernel.launch.grid] == [
        "ceil_div(size_x, block_size_x * tile_size_x)",
        "ceil_div(size_y, block_size_y * 1)",
    ]
    assert (space.rows.problem, space.device.attributes["sm_count"]) == ({"size_x": 4096, "size_y": 1024}, 108)
    assert space.space.size == len(space.rows) == 152
    config = {"block_size_x": 64, "block_size_y": 2, "tile_size_x": 4, "use_shmem": 1}
    expected_ms = time_ms(config, 100)
    assert expected_ms is not None
    assert math.exp(space.log_s[tuple(config.values())]) == pytest.approx(1e-3 * expected_ms)


@pytest.mark.parametrize(
    ("parameters", "block", "grid"),
    [
        (["MWG", "NWG", "MDIMC", "NDIMC"], ["MDIMC", "NDIMC"], ["ceil_div(m, MWG)", "ceil_div(n, NWG)"]),
        (["WORK_GROUP_SIZE_X", "UNROLL"], ["WORK_GROUP_SIZE_X"], ["ceil_div(size_x, WORK_GROUP_SIZE_X * 1)"]),
        (["block_size_x", "tile_size"], ["block_size_x"], ["ceil_div(size_x, block_size_x * tile_size)"]),
        (
            ["block_size_x", "work_per_thread_x"],
            ["block_size_x"],
            ["ceil_div(size_x, block_size_x * work_per_thread_x)"],
        ),
        (["anything"], ["1"], ["1"]),
    ],
)
def test_conventions_go_by_names_of_parameters_not_of_kernels(
    parameters: list[str], block: list[str], grid: list[str]
) -> None:
    values = {name: [1, 2] for name in parameters}
    text = kernel_toml({"kernel": "any", "params": parameters, "param_values": values, "problem_size": [512, 256]})
    assert f"block = {json.dumps(block)}" in text
    assert f"grid = {json.dumps(grid)}" in text


def test_a_kernel_toml_beside_a_recording_overrides_what_names_say(tmp_path: Path) -> None:
    file = record(tmp_path)
    (plain,) = load([file])
    beside = tmp_path / "kernel.toml"
    beside.write_text('name = "another"\n[parameters]\nuse_shmem = { role = "flag" }\n')
    assert load([file])[0].digest == plain.digest, "it is about another kernel"
    beside.write_text('[parameters]\nuse_shmem = { role = "flag" }\n[launch]\nblock = ["32"]\ngrid = ["7"]\n')
    (own,) = load([file])
    assert (own.kernel.parameters[3].role, own.kernel.parameters[3].values) == ("flag", (0, 1))
    assert own.kernel.parameters[0].role == "thread_x"
    assert [side.text for side in own.kernel.launch.grid] == ["7"]
    assert own.rows.problem == plain.rows.problem
    beside.write_text(WHOLE)
    (mine,) = load([file])
    assert (mine.kernel.name, mine.rows.problem, mine.kernel.constraints) == ("mine", {"n": 4096}, ())
    assert len(mine.rows) == 40, "a value that is not declared leaves its configurations out"


WHOLE = """
name = "mine"
problem = { n = { type = "int", min = 1 } }
launch = { block = ["1"], grid = ["n"] }
[parameters]
block_size_x = [16, 32, 64, 128, 256]
block_size_y = [1]
tile_size_x = [1, 2, 4, 8]
use_shmem = [0, 1]
"""


def test_an_imported_folder_is_the_same_space(tmp_path: Path) -> None:
    file = record(tmp_path / "hub")
    folder = import_hub(file.with_suffix(".json"), file, tmp_path / "folder")
    (theirs,), (ours,) = load([file]), load([folder])
    assert list(ours.log_s) == list(theirs.log_s)
    np.testing.assert_array_equal(list(ours.log_s.values()), list(theirs.log_s.values()))
    assert ours.device == theirs.device
    assert (ours.kernel.launch, ours.rows.problem) == (theirs.kernel.launch, theirs.rows.problem)


def test_what_was_recorded_is_the_space_whatever_the_restrictions_say(tmp_path: Path) -> None:
    (space,) = load([record(tmp_path, restrictions=["block_size_x ** 2 < 9", "use_shmem in (0, 1)"])])
    assert space.kernel.constraints == ()
    assert space.space.size == 152
    free = ParamSpace(space.kernel, space.rows.problem)
    assert free.size == 160
    outside = [config for config in free.all() if not space.space.contains(config)]
    assert len(outside) == 8
    with pytest.raises(KernelError, match="not among"):
        space.space.config(outside[0].as_dict())
    rng = np.random.default_rng(0)
    near = space.space.neighbours(space.space.first(), rng, 50)
    assert near
    assert all(space.space.contains(config) for config in [*near, *space.space.sample(152, rng)])
    assert space.space.sha256 != free.sha256


def test_a_recording_without_a_sidecar_is_described_by_its_columns(tmp_path: Path) -> None:
    file = record(tmp_path)
    file.with_suffix(".json").unlink()
    (space,) = load([file])
    assert space.kernel.name == "stencil"
    assert {p.name: sorted(p.values) for p in space.kernel.parameters} == VALUES
    assert space.device.name == "stencil__A100"


def test_a_log_is_as_many_spaces_as_it_has_tasks(tmp_path: Path) -> None:
    log = ParquetLog(tmp_path / "log")
    rng = np.random.default_rng(0)
    for n in (1024, 2048):
        task = tiled_task(device("small", 40), n=n)
        log.append(measured(task, task.space.sample(40, rng), job=f"job-{n}"))
    (tmp_path / "log" / "declarations").mkdir()
    with pytest.raises(InputError, match="no recorded space"):
        load([tmp_path / "log"])  # its kernel is not known
    declaration = tmp_path / "log" / "declarations" / f"{tiled_kernel().sha256}.json"
    declaration.write_text(json.dumps(DECLARATION))
    spaces = load([tmp_path / "log"])
    assert [space.name for space in spaces] == ["tiled 1024 float32 on small", "tiled 2048 float32 on small"]
    assert [space.space.size for space in spaces] == [40, 40]


DECLARATION = {
    "name": "tiled",
    "problem": {"n": {"type": "int", "min": 1}, "dtype": {"values": ["float32"]}},
    "parameters": {p.name: {"values": list(p.values), "role": p.role} for p in tiled_kernel().parameters},
    "launch": {"block": ["BX", "BY"], "grid": ["ceil_div(n, BX * TX)", "ceil_div(n, BY * TY)"]},
}


def test_a_recording_counts_once_and_names_differ(tmp_path: Path) -> None:
    one, other = record(tmp_path / "one"), record(tmp_path / "other", sms=120)
    spaces = load([one, one.with_suffix(".json"), tmp_path / "one", other])
    assert [space.name for space in spaces] == ["stencil__A100", "stencil__A100 (2)"]
    together, (train, test) = joined(load([one]), load([tmp_path / "one", other]))
    assert [space.digest for space in together] == [space.digest for space in spaces]
    assert (train, test) == ([0], [0, 1])


def test_a_path_with_nothing_in_it_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.*no recorded space"):
        load([tmp_path / "nowhere"])
    file = record(tmp_path)
    file.with_suffix(".json").write_text("[1]")
    with pytest.raises(KernelError, match="is not a recording's sidecar"):
        load([file])


def test_every_space_of_a_hub_is_read_as_it_is(root: Path) -> None:
    hub = root.parent / "shared" / "data" / "hub"
    if not hub.is_dir():
        pytest.skip("no recorded spaces beside this checkout")
    spaces = load([hub])
    assert len(spaces) == len(list(hub.glob("*.parquet")))
    for space in spaces:
        roles = {p.role for p in space.kernel.parameters}
        assert "thread_x" in roles, space.name
        assert [side.text for side in space.kernel.launch.block] != ["1"], space.name
        assert space.space.size == len(space.rows), space.name
