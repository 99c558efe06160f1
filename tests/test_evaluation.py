"""What an evaluation does with recorded spaces: equal budgets, nothing shared, nothing done twice, honest figures."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.recordings import record
from tuner_daemon.errors import InputError
from tuner_daemon.evaluation import methods, run
from tuner_daemon.evaluation.folds import given, leave_out
from tuner_daemon.evaluation.methods import METHODS, Models, curve, running_best
from tuner_daemon.evaluation.pieces import Pieces, Search, Training
from tuner_daemon.evaluation.plots import svg
from tuner_daemon.evaluation.recorded import Recorded, load
from tuner_daemon.evaluation.run import Run, Wanted, evaluate
from tuner_daemon.evaluation.summary import against, curves_of, figures, reached, summary
from tuner_daemon.learning.decisions import STATE_SIZE
from tuner_daemon.learning.policy import Policy
from tuner_daemon.learning.training import train_on
from tuner_daemon.records.space import Config

MEASUREMENTS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three devices of one kernel, two of another."""
    hub = tmp_path_factory.mktemp("hub")
    for device, sms in (("A100", 108), ("A4000", 48), ("RTX_2080", 46)):
        record(hub, device, sms=sms)
    for device, sms in (("A100", 108), ("A4000", 48)):
        record(hub, device, sms=sms, kernel="other", problem_size=[512, 512])
    return hub


@pytest.fixture(scope="module")
def spaces(folder: Path) -> list[Recorded]:
    return load([folder])


@pytest.fixture(scope="module")
def models(spaces: list[Recorded]) -> Models:
    """A prior that has learned and a policy that has not, which spares the tests torch."""
    trained = train_on([space.rows for space in spaces[1:]], seed=0, steps=0, threads=1)
    rng = np.random.default_rng(0)
    shapes = {"w0": (8, STATE_SIZE), "b0": (8,), "w1": (8, 8), "b1": (8,), "w_mu": (1, 8), "b_mu": (1,)}
    weights = {name: rng.normal(0.0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
    flat = {"mean": np.zeros(STATE_SIZE, np.float32), "scale": np.ones(STATE_SIZE, np.float32)}
    policy = Policy({**weights, **flat, "std": np.ones(1, np.float32)}, trained.kernels)
    return Models(trained.prior, policy)


# -- methods ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_method_spends_its_budget_on_distinct_configurations(
    name: str, spaces: list[Recorded], models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Config] = []

    def times_of(space: Recorded, configs: Sequence[Config]) -> list[float]:
        asked.extend(configs)
        return [0.0] * len(configs)

    monkeypatch.setattr(methods, "_times", times_of)
    times = METHODS[name].search(spaces[0], models, MEASUREMENTS, np.random.default_rng(0))
    assert len(times) == len(asked) == len(set(asked)) == MEASUREMENTS


@pytest.mark.parametrize("name", METHODS)
def test_a_seed_decides_a_search(name: str, spaces: list[Recorded], models: Models) -> None:
    first, again = (curve(spaces[0], name, models, MEASUREMENTS, 3) for _ in range(2))
    assert first == again
    assert len(first) == MEASUREMENTS
    assert all(a >= b >= 1.0 for a, b in pairwise(first))
    if name in ("random", "cold", "floor"):
        assert any(curve(spaces[0], name, models, MEASUREMENTS, seed) != first for seed in (4, 5, 6))


def test_a_session_without_success_is_a_search_without_success(tmp_path: Path) -> None:
    (space,) = load([record(tmp_path)])
    failed = space.rows.log_s.copy()
    failed[np.flatnonzero(np.isfinite(failed))[:-4]] = math.nan
    hopeless = Recorded("hopeless", type(space.rows)(**{**vars(space.rows), "log_s": failed}))
    times = METHODS["floor"].search(hopeless, Models(), 40, np.random.default_rng(0))
    assert 24 <= len(times) <= 40, "patience ends after 24 failures"
    assert running_best([math.nan] * 3, 5, hopeless) == [pytest.approx(math.exp(hopeless.worst - hopeless.optimum))] * 5


def test_a_failure_costs_a_measurement_and_the_curve_stays_where_it_was(spaces: list[Recorded]) -> None:
    space = spaces[0]
    best, worse = space.optimum, space.optimum + math.log(2)
    assert running_best([worse, math.nan, best], 5, space) == pytest.approx([2.0, 2.0, 1.0, 1.0, 1.0])
    assert running_best([math.nan, worse], 2, space)[0] == pytest.approx(math.exp(space.worst - best))
    assert running_best([], 2, space) == pytest.approx([math.exp(space.worst - best)] * 2)


def test_searches_share_no_space_object(spaces: list[Recorded]) -> None:
    first, other = spaces[0].task(5), spaces[0].task(5)
    assert first.space is not other.space
    assert first.space is not spaces[0].space


def test_what_was_learned_elsewhere_helps(spaces: list[Recorded], models: Models) -> None:
    def typical(name: str) -> float:
        return float(np.median([curve(spaces[0], name, models, 8, seed)[-1] for seed in range(5)]))

    assert typical("prior") < typical("random")


def test_a_method_of_ones_own_is_named_by_its_module() -> None:
    assert methods.method_named("tuner_daemon.evaluation.methods:random") is METHODS["random"]
    for name in ("nothing", "no.such.module:random", "json:random"):
        with pytest.raises(InputError, match="is no method"):
            methods.method_named(name)


# -- folds ------------------------------------------------------------------------------------------------------


def test_what_is_left_out_is_left_out_whole(spaces: list[Recorded]) -> None:
    for split, group in (
        ("device", lambda at: spaces[at].device.name),
        ("shape", lambda at: spaces[at].shape),
        ("family", lambda at: spaces[at].kernel.name),
    ):
        for fold in leave_out(split, spaces):
            assert not {group(at) for at in fold.train} & {group(at) for at in fold.test}, split
            assert len(fold.train) + len(fold.test) <= len(spaces)
    assert [len(fold.test) for fold in leave_out("device", spaces)] == [2, 2, 1]
    assert [len(fold.test) for fold in leave_out("family", spaces)] == [2, 3]
    assert leave_out("shape", spaces) == [], "a kernel at one problem has no other to learn from"


def test_a_shape_is_left_out_of_the_kernel_that_has_others(tmp_path: Path) -> None:
    record(tmp_path / "a", problem_size=[512, 512])
    record(tmp_path / "b", problem_size=[1024, 512])
    folds = leave_out("shape", load([tmp_path]))
    assert [(fold.train, fold.test) for fold in folds] == [((1,), (0,)), ((0,), (1,))]


# -- pieces -----------------------------------------------------------------------------------------------------

FEW = Wanted(measurements=12, seeds=2, training_seeds=2, methods=("random", "prior", "no-policy"), policy_steps=0)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is done, in order."""
    done: list[object] = []

    def each(pieces: list[Training | Search], folder: Path, paths: list[Path], jobs: int) -> Iterator[None]:
        for piece in pieces:
            Pieces(folder, load(paths)).do(piece)
            done.append(piece)
            yield

    monkeypatch.setattr(run, "_each", each)
    return done


def test_a_second_call_does_what_the_first_one_left(
    folder: Path, spaces: list[Recorded], tmp_path: Path, in_this_process: list[object]
) -> None:
    folds = given([1], [0])
    first = evaluate(folds, spaces, [folder], FEW, tmp_path, jobs=1)
    assert len(in_this_process) == 2 + 3 * 2
    in_this_process.clear()
    assert evaluate(folds, spaces, [folder], FEW, tmp_path, jobs=1) == first
    assert in_this_process == []
    next((tmp_path / "runs").rglob("*.json")).unlink()
    assert evaluate(folds, spaces, [folder], FEW, tmp_path, jobs=1) == first
    assert len(in_this_process) == 1
    in_this_process.clear()
    evaluate(given([1, 2], [0]), spaces, [folder], FEW, tmp_path, jobs=1)
    assert len(in_this_process) == 2 + 2 * 2, "what learns is done anew, random search is not"


def test_a_piece_is_named_by_all_that_it_depends_on(spaces: list[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training((1, 2), 0, 100)
    base = Search(0, "full", 0, 12, training)
    others = [
        Search(1, "full", 0, 12, training),
        Search(0, "floor", 0, 12, training),
        Search(0, "full", 1, 12, training),
        Search(0, "full", 0, 13, training),
        Search(0, "full", 0, 12, Training((1,), 0, 100)),
        Search(0, "full", 0, 12, Training((1, 2), 1, 100)),
        Search(0, "full", 0, 12, Training((1, 2), 0, 101)),
        Search(0, "full", 0, 12, None),
    ]
    keys = [search.key(spaces) for search in (base, *others)]
    assert len(set(keys)) == len(keys)
    assert Search(0, "full", 0, 12, Training((2, 1), 0, 100)).key(spaces) == keys[0]
    monkeypatch.setattr("tuner_daemon.evaluation.pieces.program", lambda: "another version")
    assert base.key(spaces) != keys[0]


def test_the_training_seeds_take_turns(spaces: list[Recorded]) -> None:
    wanted = Wanted(seeds=5, training_seeds=3, methods=("random", "full"))
    searches = list(run._searches(given([1], [0])[0], wanted))
    assert [s.training.seed if s.training else None for s in searches] == [None] * 5 + [0, 1, 2, 0, 1]


def test_another_process_gives_the_same(folder: Path, spaces: list[Recorded], tmp_path: Path) -> None:
    wanted = Wanted(measurements=8, seeds=2, training_seeds=1, methods=("random",), policy_steps=0)
    said: list[tuple[int, int, str]] = []
    found = evaluate(given([1], [0]), spaces, [folder], wanted, tmp_path, jobs=1, say=lambda *what: said.append(what))
    assert said[-1] == (2, 2, "searching")
    assert [list(r.ratio) for r in found] == [curve(spaces[0], "random", Models(), 8, seed) for seed in range(2)]


# -- figures ----------------------------------------------------------------------------------------------------


def _run(space: str, method: str, seed: int, ratio: list[float], training_seed: int | None = None) -> Run:
    return Run("device", "x", space, method, seed, training_seed, True, tuple(ratio))


def test_figures_are_geometric_means_over_spaces_of_medians_over_seeds() -> None:
    runs = [_run("a", "full", seed, [2.0] * 7 + [last] * 93) for seed, last in enumerate((1.0, 1.0, 3.0))]
    runs += [_run("b", "full", seed, [4.0] * 59 + [1.04] * 41) for seed in range(3)]
    (curves,) = curves_of(runs)
    row = figures(curves, "full")
    assert row["after"]["5"] == pytest.approx(math.sqrt(8))
    assert row["after"]["8"] == pytest.approx(2.0)
    assert row["after"]["96"] == pytest.approx(math.sqrt(1.04))
    assert row["within"] == pytest.approx((2 / 3 + 0) / 2)
    assert row["needed"] == {"1.05": (8 + 60) / 2, "1.01": None}
    assert reached(np.array([[2.0, 1.0], [1.0, 1.0], [3.0, 3.0]]), 1.05).tolist() == [2.0, 1.0, math.inf]


def test_differences_are_paired() -> None:
    rng = np.random.default_rng(0)
    runs = []
    for space, seed in ((space, seed) for space in "abc" for seed in range(9)):
        hardness = float(np.exp(rng.normal(1.0, 1.0)))
        runs += [_run(space, "full", seed, [hardness] * 40), _run(space, "floor", seed, [1.1 * hardness] * 40)]
    (curves,) = curves_of(runs)
    mean, error, share = against(curves, "floor")["after"]["32"]
    assert (mean, share) == (pytest.approx(1 / 1.1), 1.0)
    assert error == pytest.approx(1.0), "however different the spaces are"
    assert against(curves, "floor")["worst"]["factor"] == pytest.approx(1 / 1.1)


def test_harm_anywhere_on_the_curve_is_shown() -> None:
    runs = [_run("a", "full", 0, [1.0] * 9 + [1.5] + [1.0] * 30), _run("a", "random", 0, [1.0] * 40)]
    assert against(curves_of(runs)[0], "random")["worst"] == {"factor": pytest.approx(1.5), "after": 10}


def test_each_training_seed_has_its_figures() -> None:
    runs = [_run("a", "full", seed, [1.0 + seed % 2] * 10, seed % 2) for seed in range(4)]
    (part,) = summary(runs)
    assert part["training_seeds"]["full"]["8"] == [1.0, 2.0]
    json.dumps(part, allow_nan=False)


def test_curves_are_drawn_as_lines_that_fall() -> None:
    runs = [_run("a", "full", 0, [3.0, 2.0, 1.5, 1.0]), _run("a", "<random>", 0, [3.0, 3.0, 2.5, 2.0])]
    drawn = ET.fromstring(svg(curves_of(runs)))
    lines = [e for e in drawn.iter("{http://www.w3.org/2000/svg}polyline") if e.get("stroke-width") == "2"]
    assert len(lines) == 2
    heights = [float(point.split(",")[1]) for point in str(lines[0].get("points")).split()]
    assert heights == sorted(heights)
    assert heights[0] < heights[-1]
    assert "<random>" in [e.text for e in drawn.iter("{http://www.w3.org/2000/svg}text")]
