"""What the cost model is told about a configuration."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.fakes import spec_for, vector_add_kernel
from tests.learning_tasks import PARAMETERS, device, tiled_kernel, tiled_task
from tuner_daemon.learning.features import FEATURE_NAMES, FEATURE_SCHEMA, features
from tuner_daemon.learning.quantities import occupancy_numbers
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.kernel import Launch, Parameter, Value, Work
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.task import Task


def column(task: Task, name: str, **values: Value) -> float:
    first = task.space.first().as_dict()
    x = features(task, [task.space.config(first | values)])
    return float(x[0, FEATURE_NAMES.index(name)])


PLAIN: dict[str, Value] = {"MODE": "direct", "TX": 2, "TY": 4, "BX": 64, "BY": 4, "VEC": 1, "SHARED": True}


def test_a_matrix_has_one_named_column_per_feature() -> None:
    task = tiled_task()
    x = features(task, task.space.all())
    assert x.shape == (task.space.size, len(FEATURE_NAMES))
    assert x.dtype == np.float32
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES)
    assert len(FEATURE_SCHEMA) == 16


def test_no_configuration_gives_an_empty_matrix() -> None:
    assert features(tiled_task(), []).shape == (0, len(FEATURE_NAMES))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("launch.threads", 8.0),
        ("launch.blocks", np.log2((2048 / 128) * (2048 / 16))),
        ("launch.outputs_per_thread", 3.0),
        ("launch.shared_bytes", np.log2(1 + 4 * 64 * 2 * 4 * 4)),
        ("launch.warp_efficiency", 1.0),
        ("launch.bytes_per_thread", 6.0),
        ("launch.warp_row", 1.0),
        ("shape.edge_use", 0.0),
        ("shape.instruction_parallelism", 3.0),
        ("shape.tile_intensity_over_balance", np.log2(128 * 16 / 144) + 1 - 2 - np.log2(20)),
        ("shape.side_n", 7.0),
        ("shape.tile_area", 11.0),
        ("problem.flops", np.log2(100 * 2048**2)),
        ("problem.outputs", 22.0),
        ("role.thread_x_0", 6.0),
        ("role.work_y_product", 2.0),
        ("role.shared_0", 0.0),
        ("role.layout_0", 0.0),
        ("device.sm_count", np.log2(40)),
    ],
)
def test_derived_quantities_follow_from_the_declaration(name: str, value: float) -> None:
    assert column(tiled_task(), name, **PLAIN) == pytest.approx(value, rel=1e-5)


def test_blocks_that_reach_past_the_edges_show_as_unused() -> None:
    assert column(tiled_task(n=100), "shape.edge_use", **PLAIN) == pytest.approx(np.log2(100 * 100 / (128 * 112)))


def test_where_no_output_is_declared_the_sizes_that_the_grid_covers_stand_in() -> None:
    kernel = replace(tiled_kernel(), arguments=())
    assert column(tiled_task(kernel=kernel), "launch.outputs_per_thread", **PLAIN) == pytest.approx(3.0)
    bare = replace(kernel, launch=replace(kernel.launch, grid=()))
    assert column(tiled_task(kernel=bare), "launch.outputs_per_thread", **PLAIN) == pytest.approx(3.0)
    assert np.isnan(column(tiled_task(kernel=bare), "problem.outputs", **PLAIN))


def test_a_parameter_with_one_value_is_a_constant_of_the_kernel() -> None:
    parameters = (*PARAMETERS, Parameter("TAPS", (15,), "other"))
    work = Work(Expression.parse("2 * TAPS * n * n"), None)
    task = tiled_task(kernel=replace(tiled_kernel(parameters=parameters), work=work))
    assert column(task, "problem.flops", **PLAIN) == pytest.approx(np.log2(30 * 2048**2))
    varied = (*PARAMETERS, Parameter("TAPS", (15, 17), "other"))
    task = tiled_task(kernel=replace(tiled_kernel(parameters=varied), work=work))
    assert np.isnan(column(task, "problem.flops", **PLAIN))


def test_half_a_warp_wastes_half_of_it() -> None:
    numbers = occupancy_numbers(device(), np.array([16.0, 32.0]), np.ones(2), np.zeros(2), np.ones(2))
    assert numbers["warp_efficiency"].tolist() == [0.5, 1.0]


def test_shared_memory_limits_occupancy() -> None:
    shared = np.array([0.0, 50.0 * 1024])
    numbers = occupancy_numbers(device(), np.full(2, 256.0), np.full(2, 1e4), shared, np.ones(2))
    assert numbers["occupancy"].tolist() == [1.0, 0.25]


def test_a_last_wave_that_is_almost_empty_shows_as_tail() -> None:
    blocks = np.array([320.0, 321.0])  # 8 resident blocks of 256 threads on each of 40 SMs
    numbers = occupancy_numbers(device(), np.full(2, 256.0), blocks, np.zeros(2), np.ones(2))
    assert numbers["tail"][0] == pytest.approx(1.0)
    assert numbers["tail"][1] == pytest.approx(321 / 640)


def test_absent_roles_and_unknown_attributes_are_missing_not_zero() -> None:
    bare = replace(device(), attributes={})
    task = tiled_task(bare)
    assert np.isnan(column(task, "role.tile_m_0", **PLAIN))
    assert np.isnan(column(task, "device.sm_count", **PLAIN))
    assert np.isnan(column(task, "launch.occupancy", **PLAIN))
    assert np.isfinite(column(task, "launch.threads", **PLAIN))


def test_two_parameters_of_one_role_have_a_slot_each_and_a_product() -> None:
    parameters = (*PARAMETERS[:-1], Parameter("VEC_B", (1, 2, 4), "vector_width"), PARAMETERS[-1])
    task = tiled_task(kernel=tiled_kernel(parameters=parameters))
    values: dict[str, Value] = PLAIN | {"TX": 4, "VEC": 2, "VEC_B": 4}
    assert [column(task, f"role.vector_width_{end}", **values) for end in ("0", "1", "product")] == [1.0, 2.0, 3.0]


def test_a_launch_that_cannot_be_evaluated_leaves_features_missing() -> None:
    task = tiled_task()
    kernel = task.spec.kernel
    broken = replace(kernel, launch=Launch(kernel.launch.block, tuple(_division_by_zero()), kernel.launch.shared_bytes))
    task = Task(replace(task.spec, kernel=broken), task.space, task.device)
    assert np.isnan(column(task, "launch.blocks", **PLAIN))
    assert column(task, "launch.threads", **PLAIN) == 8.0


def _division_by_zero() -> list[Expression]:
    return [Expression.parse("n // (BX - BX)")]


def test_a_kernel_on_the_processor_is_described_by_the_same_columns(tmp_path: Path) -> None:
    kernel = vector_add_kernel(tmp_path)
    spec = spec_for(kernel, "cpu")
    task = Task(spec, ParamSpace(kernel, spec.problem), replace(device(kind="cpu"), attributes={"vector_bytes": 32.0}))
    x = features(task, task.space.all())
    assert x[:, FEATURE_NAMES.index("device.is_cpu")].tolist() == [1.0] * task.space.size
    assert np.isfinite(x[:, FEATURE_NAMES.index("launch.threads")]).all()


def test_distinct_configurations_look_different() -> None:
    task = tiled_task()
    x = np.nan_to_num(features(task, task.space.all()), nan=-99.0)
    assert len(np.unique(x, axis=0)) == task.space.size


def test_ten_thousand_configurations_take_tens_of_milliseconds() -> None:
    task = tiled_task()
    configs = (task.space.all() * 3)[:10_000]
    took_s = []
    for _ in range(3):
        began_s = time.process_time()
        features(task, configs)
        took_s.append(time.process_time() - began_s)
    assert min(took_s) < 0.25  # 11 to 25 ms on one core, whatever the kernel
