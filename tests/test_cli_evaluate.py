"""The command ``tunerd evaluate`` from its words to its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.recordings import record
from tuner_daemon.cli.app import app
from tuner_daemon.errors import InputError
from tuner_daemon.evaluation import run
from tuner_daemon.evaluation.pieces import Pieces
from tuner_daemon.evaluation.recorded import load


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def each(pieces: list[Any], folder: Path, paths: list[Path], jobs: int) -> Iterator[None]:
        for piece in pieces:
            Pieces(folder, load(paths)).do(piece)
            yield

    monkeypatch.setattr(run, "_each", each)


def called(*words: object) -> Any:
    return CliRunner().invoke(app, ["evaluate", *map(str, words)], catch_exceptions=False, env={"COLUMNS": "160"})


FEW = ("--measurements", 10, "--seeds", 2, "--policy-steps", 0, "--methods", "random,prior,floor")


def test_it_trains_on_the_first_and_searches_the_second(tmp_path: Path) -> None:
    known, also = record(tmp_path / "a", "A4000", sms=48), record(tmp_path / "b", "RTX_2080", sms=46)
    test = record(tmp_path / "c", "A100", sms=108)
    out, plot = tmp_path / "out" / "found.json", tmp_path / "out" / "found.svg"
    done = called(
        "--train", known, also, "--test", test, *FEW, "--out", tmp_path / "kept", "--json", out, "--plot", plot
    )
    assert done.exit_code == 0, done.output
    assert "best/optimum after" in done.output
    assert max(map(len, done.output.splitlines())) <= 110
    found = json.loads(out.read_text())
    assert (found["format"], found["measurements"], found["seeds"]) == (1, 10, 2)
    assert found["folds"] == [
        {"split": "given", "left_out": "", "train": ["stencil__A4000", "stencil__RTX_2080"], "test": ["stencil__A100"]}
    ]
    assert {(r["space"], r["method"], r["seed"]) for r in found["runs"]} == {
        ("stencil__A100", method, seed) for method in ("random", "prior", "floor") for seed in range(2)
    }
    assert all(len(r["ratio"]) == 10 and min(r["ratio"]) >= 1.0 for r in found["runs"])
    assert [space["configurations"] for space in found["spaces"]] == [152, 152, 152]
    assert found["summary"][0]["methods"]["prior"]["after"]["8"] >= 1.0
    assert plot.read_text().startswith("<svg")


def test_the_words_of_an_option_may_also_be_given_one_by_one(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a"), record(tmp_path / "b", "A4000", sms=48)
    files = []
    for at, words in enumerate((["--train", a, b], ["--train", a, "--train", b])):
        out = tmp_path / f"{at}.json"
        assert called(*words, "--test", a, *FEW, "--out", tmp_path / "kept", "--json", out).exit_code == 0
        files.append(json.loads(out.read_text()))
    assert files[0] == files[1]


def test_devices_are_left_out_in_turn(tmp_path: Path) -> None:
    for device, sms in (("A100", 108), ("A4000", 48)):
        record(tmp_path / "hub", device, sms=sms)
    out = tmp_path / "found.json"
    done = called(tmp_path / "hub", "--leave-out", "device", *FEW, "--out", tmp_path / "kept", "--json", out)
    assert done.exit_code == 0, done.output
    folds = json.loads(out.read_text())["folds"]
    assert [(fold["train"], fold["test"]) for fold in folds] == [
        (["stencil__A4000"], ["stencil__A100"]),
        (["stencil__A100"], ["stencil__A4000"]),
    ]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "name recordings"),
        (["--train", "HERE"], "name recordings"),
        (["HERE", "--train", "HERE", "--test", "HERE"], "name recordings"),
        (["HERE", "--leave-out", "colour"], "colour cannot be left out"),
        (["HERE", "--methods", "magic"], "magic is no method"),
        (["HERE", "--leave-out", "device"], "nothing left to train on"),
        (["nowhere"], "no recorded space"),
    ],
)
def test_what_cannot_be_evaluated_is_said(words: list[str], problem: str, tmp_path: Path) -> None:
    here = str(record(tmp_path))
    with pytest.raises(InputError, match=problem):
        called(*[here if word == "HERE" else word for word in words], "--out", tmp_path / "kept")


def test_training_on_what_is_searched_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = record(tmp_path)
    done = called("--train", file, "--test", file, *FEW, "--out", tmp_path / "kept")
    assert "trained on what is searched: stencil__A100" in done.output + done.stderr + capsys.readouterr().err
