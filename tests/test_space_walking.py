"""Configurations as numbers: encoding, and walking prefixes one parameter at a time."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.spaces import SGEMM, SGEMM_RULES, space, walk
from tuner_daemon.errors import KernelError
from tuner_daemon.records.kernel import Value
from tuner_daemon.records.space import Config

# --- arrays


def test_encoding_is_within_one_and_decoding_undoes_it() -> None:
    some = space(SGEMM, SGEMM_RULES, {"m": 128, "n": 128})
    x = some.encode(some.all())
    assert x.dtype == np.float32
    assert x.shape == (some.size, 8)
    assert (x.min(), x.max()) == (-1.0, 1.0)
    assert some.decode(x[:200]) == some.all()[:200]


def test_sizes_are_encoded_by_their_logarithm_and_flags_by_rank() -> None:
    parameters: dict[str, list[Value]] = {"s": [64, 1, 8], "z": [0, 4, 100], "t": ["x", "y", "w"], "f": [True, False]}
    some = space({**parameters, "one": [5]})
    by_name: dict[str, dict[Value, float]] = {name: {} for name in (*parameters, "one")}
    for config, row in zip(some.all(), some.encode(some.all()), strict=True):
        for name, value, code in zip(config.names, config.values, row.tolist(), strict=True):
            by_name[name][value] = code
    assert by_name == {
        "s": {1: -1.0, 8: 0.0, 64: 1.0},
        "z": {0: -1.0, 4: 0.0, 100: 1.0},
        "t": {"x": -1.0, "y": 0.0, "w": 1.0},
        "f": {False: -1.0, True: 1.0},
        "one": {5: 0.0},
    }


def test_decoding_gives_the_nearest_valid_configuration() -> None:
    some, rng = space(SGEMM, SGEMM_RULES, {"m": 64, "n": 64}), np.random.default_rng(5)
    points = rng.uniform(-1.2, 1.2, (20, 8)).astype(np.float32)
    codes = some.encode(some.all()).astype(np.float64)
    for point, config in zip(points, some.decode(points), strict=True):
        distance = ((codes - point.astype(np.float64)) ** 2).sum(axis=1)
        mine = ((some.encode([config])[0].astype(np.float64) - point) ** 2).sum()
        assert mine == pytest.approx(distance.min(), rel=1e-6)


def test_columns_and_indices_speak_of_the_same_values() -> None:
    some = space(SGEMM, SGEMM_RULES, {"m": 64, "n": 64})
    rows = some.indices(some.all())
    assert rows.dtype == np.int32
    assert some.from_indices(rows) == some.all()
    assert np.array_equal(some.all_indices(), rows)
    columns = some.columns(some.all())
    assert [columns[name].dtype.kind for name in ("BM", "LAYOUT", "SHARED", "ALPHA")] == ["i", "U", "b", "f"]
    for name in SGEMM:
        assert columns[name].tolist() == [config[name] for config in some.all()]


def test_positions_that_are_not_valid_are_refused() -> None:
    some = space({"a": [1, 2], "b": [1, 2]}, ["a != b"])
    assert [c.values for c in some.from_indices(np.array([[0, 1]], dtype=np.int32))] == [(1, 2)]
    for row in ([0, 0], [0, 2], [-1, 0]):
        with pytest.raises(ValueError, match="row 1 is not a valid configuration"):
            some.from_indices(np.array([[0, 1], row], dtype=np.int32))
    with pytest.raises(KernelError, match="is not of this space"):
        some.indices([Config.of({"a": 3, "b": 1})])


# --- walking


@pytest.mark.parametrize("order", [list(SGEMM), list(SGEMM)[::-1], [*list(SGEMM)[4:], *list(SGEMM)[:4]]])
def test_options_are_exactly_the_values_that_some_valid_configuration_continues_with(order: list[str]) -> None:
    some, rng = space(SGEMM, SGEMM_RULES, {"m": 64, "n": 128}), np.random.default_rng(2)
    valid = [config.as_dict() for config in some.all()]
    walker = some.walker(order)
    state = walker.start(6)
    prefixes: list[dict[str, Value]] = [{} for _ in range(6)]
    while not walker.done(state):
        parameter = walker.parameter(state)
        options = walker.options(state)
        for prefix, mask in zip(prefixes, options, strict=True):
            continuing = {c[parameter.name] for c in valid if all(c[n] == v for n, v in prefix.items())}
            assert {v for v, allowed in zip(parameter.values, mask, strict=True) if allowed} == continuing
        picks = np.argmax(rng.random(options.shape) * options, axis=1)
        state = walker.choose(state, picks)
        for prefix, pick in zip(prefixes, picks, strict=True):
            prefix[parameter.name] = parameter.values[pick]
    assert [config.as_dict() for config in walker.finish(state)] == [
        {name: prefix[name] for name in SGEMM} for prefix in prefixes
    ]


def test_every_valid_configuration_can_be_reached_by_walking() -> None:
    some, rng = space(SGEMM, [*SGEMM_RULES, "BM == BN"], {"m": 32, "n": 32}), np.random.default_rng(0)
    assert set(walk(some.walker(list(SGEMM)[::-1]), 4000, rng)) == set(some.all())


def test_a_pick_that_is_not_an_option_is_an_error() -> None:
    walker = space({"a": [1, 2], "b": [1, 2]}, ["a < b"]).walker(["b", "a"])
    with pytest.raises(ValueError, match="picked a value of b"):
        walker.choose(walker.start(2), np.array([1, 0]))
    with pytest.raises(ValueError, match="2 parameters are undecided"):
        walker.finish(walker.start(2))
    with pytest.raises(ValueError, match="every parameter is decided"):
        walker.options(walker.choose(walker.choose(walker.start(1), np.array([1])), np.array([0])))


def test_a_state_can_be_continued_more_than_once() -> None:
    walker = space({"a": [1, 2, 3], "b": [1, 2, 3]}, ["a < b"]).walker(["b", "a"])
    third = walker.choose(walker.start(1), np.array([2]))
    ends = [walker.finish(walker.choose(third, np.array([pick])))[0].values for pick in (0, 1)]
    assert ends == [(1, 3), (2, 3)]


def test_a_prefix_that_cannot_be_completed_is_dropped_and_the_others_are_kept() -> None:
    """Looked at alone, each constraint allows a == 1; together they do not. Only a listed space can know."""
    parameters: dict[str, list[Value]] = {"a": [1, 2], "b": [1, 2, 3], "c": [1, 2, 3]}
    rules = ["a != 1 or b < c", "a != 1 or c < b", "a + b + c > 0"]
    known, blind = space(parameters, rules), space(parameters, rules, list_limit=1)
    assert known.walker(["a", "b", "c"]).options(known.walker(["a", "b", "c"]).start(1)).tolist() == [[False, True]]
    walker = blind.walker(["a", "b", "c"])
    state = walker.choose(walker.start(2), np.array([0, 1]))
    while not walker.done(state):
        state = walker.choose(state, np.argmax(walker.options(state), axis=1))
    assert [config.values for config in walker.finish(state)] == [(2, 1, 1)]
    assert state.alive.tolist() == [False, True]


def test_an_order_names_every_parameter_once() -> None:
    some = space({"a": [1], "b": [1]})
    for order in (["a"], ["a", "a"], ["a", "b", "c"], ["a", "x"]):
        with pytest.raises(ValueError, match="must name every parameter once"):
            some.walker(order)


def test_walking_256_prefixes_of_fifteen_parameters_is_quick() -> None:
    parameters: dict[str, list[Value]] = {f"p{i}": [1, 2, 4, 8, 16] if i < 9 else [0, 1] for i in range(15)}
    rules = ["p0*p1 <= 64", "p2*p3 <= p0*p1", "p4 + p5 <= p2*p3", "p6 <= p7", "p5*p6 >= 64", "p1*p2 == 32", "p9 <= p10"]
    some, rng = space(parameters, rules), np.random.default_rng(0)
    assert 50_000 < some.size < 1_000_000
    walker = some.walker(list(parameters)[::-1])
    walk(walker, 256, rng)
    best = min(_seconds(lambda: walk(walker, 256, rng)) for _ in range(5))
    assert best < 0.2  # 0.003 s on an idle core


def _seconds(action: object) -> float:
    assert callable(action)
    started = time.monotonic()
    action()
    return time.monotonic() - started
