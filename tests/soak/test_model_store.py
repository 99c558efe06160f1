"""Models are swapped while the power goes, and their files are spoilt: there is always one that works."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cost_model.prior import booster_file
from tests.conftest import ROOT
from tests.soak.faults import quick_folder
from tests.soak.hostile_models import payloads
from tests.soak.model_driver import model_files, works
from tuner_daemon.cli.workshop import Workshop
from tuner_daemon.settings import Settings
from tuner_daemon.storage.models import ModelStore

SEED = 20261201


def swap_until_killed(folder: Path, source: Path, delay_s: float) -> None:
    command = [sys.executable, "-m", "tests.soak.swapper", str(folder), str(source)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(delay_s)
    assert process.poll() is None
    process.kill()
    process.communicate()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [pytest.param(300, marks=pytest.mark.slow), 10])
def test_killed_while_models_are_swapped_there_is_always_a_working_one(tmp_path: Path, kills: int) -> None:
    rng, swapped, interrupted = random.Random(SEED), set[str](), 0
    source = tmp_path / "source"
    model_files(source, 1)
    with quick_folder(tmp_path) as folder:
        settings = Settings(state_dir=folder)
        store = ModelStore(settings.models_dir)
        store.promote(store.publish(model_files(tmp_path / "first", 2), {}))
        for _ in range(kills):
            swap_until_killed(store.folder, source, rng.uniform(0.0, 0.03))
            swapped.add(store.current_version() or "")
            interrupted += any(store.folder.glob(".*.tmp")) or set(store.versions()) != set(store.promoted())
            with Workshop(settings) as workshop:
                models = workshop.models()
            assert works(models)
            assert models.version == store.current_version()
            assert store.damaged == {}
    print(f"seed {SEED}: kills {kills}, {interrupted} in the middle of a swap, working {kills}")
    assert len(swapped) > kills / 2
    assert interrupted > kills / 10


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("n", [pytest.param(300, marks=pytest.mark.slow), 40])
def test_whatever_lies_in_the_champions_place_a_model_works_and_no_payload_runs(tmp_path: Path, n: int) -> None:
    arguments = json.dumps({"folder": str(tmp_path / "work"), "files": n, "seed": SEED})
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.model_driver", arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    print(
        "seed {seed}: files {files}, working {working}, fell back {fell_back}, payload run {payloads_run}".format(
            seed=SEED, **found
        )
    )
    print(done.stderr, end="")
    assert (found["files"], found["working"], found["payloads_run"]) == (n, n, 0)
    assert found["fell_back"] > 0.9 * n


def test_the_payload_would_run_where_it_is_unpickled_and_half_a_model_would_be_seen(
    tmp_path: Path,
) -> None:
    """Negative controls."""
    marker = tmp_path / "payload-ran"
    pickle.loads(payloads(marker)["pickle 4"])
    assert marker.exists()
    store = ModelStore(tmp_path / "models")
    store.promote(store.publish(model_files(tmp_path / "source", 1), {}))
    champion = store.folder / (store.current_version() or "")
    trees = champion / booster_file(0)
    trees.write_bytes(trees.read_bytes()[:-1])
    assert store.current() is None
