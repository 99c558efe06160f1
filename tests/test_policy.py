"""The learned policy: states and actions, training, and the network in numpy."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from tests.learning_tasks import PARAMETERS, device, log_of, tiled_kernel, tiled_task, true_log_s
from tuner_daemon.errors import ModelError
from tuner_daemon.learning.dataset import Transitions, group, transitions
from tuner_daemon.learning.decisions import STATE_NAMES, STATE_SIZE, Episode, action_values
from tuner_daemon.learning.policy import TENSORS, Policy, load_policy
from tuner_daemon.learning.policy_training import PolicySettings, export_weights, train_iql, train_policy
from tuner_daemon.records.kernel import Parameter
from tuner_daemon.records.roles import ROLES

SETTINGS = PolicySettings(steps=400, batch=128, hidden=48)


@pytest.fixture(scope="module")
def data() -> Transitions:
    kernel = tiled_kernel()
    tasks = group(log_of([device("small", 40), device("large", 120)], 400), {kernel.sha256: kernel}.get)
    return transitions(tasks, rows_per_task=400, rng=np.random.default_rng(0))


@pytest.fixture(scope="module")
def policy(data: Transitions) -> Policy:
    return train_policy(data, groups=frozenset({"tiled"}), seed=0, threads=1, settings=SETTINGS)


def test_parameters_are_decided_in_the_order_of_their_roles() -> None:
    task = tiled_task()
    episode = Episode(task.spec.kernel, task.spec.problem, task.device)
    assert episode.order == ("BX", "BY", "TX", "TY", "VEC", "SHARED", "MODE")
    assert [d.role for d in episode.decisions] == sorted((d.role for d in episode.decisions), key=ROLES.index)


def test_the_same_size_is_the_same_action_in_every_kernel() -> None:
    few, many = Parameter("A", (16, 64), "thread_x"), Parameter("B", (8, 16, 32, 64, 128), "thread_x")
    assert action_values(few).tolist() == pytest.approx(action_values(many)[[1, 3]].tolist())
    assert action_values(Parameter("C", (False, True), "shared")).tolist() == [-1.0, 1.0]
    assert action_values(Parameter("D", ("a", "b", "c"), "other")).tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "parameter",
    [
        Parameter("HUGE", (1, 4096, 65536), "thread_x"),
        Parameter("ONE", (7,), "unroll"),
        Parameter("ZERO", (0, 1, 2, 4), "unroll"),
        Parameter("FRACTION", (0.25, 0.5, 2.0), "work_x"),
    ],
)
def test_actions_are_distinct_and_within_bounds_for_any_value_list(parameter: Parameter) -> None:
    actions = action_values(parameter)
    assert len(set(actions.tolist())) == len(parameter.values)
    assert np.abs(actions).max() <= 1.0


def test_a_state_tells_what_has_been_decided() -> None:
    task = tiled_task()
    episode = Episode(task.spec.kernel, task.spec.problem, task.device)
    states, actions = episode.states_of(task.space.indices(task.space.sample(5, np.random.default_rng(0))))
    decided = [STATE_NAMES.index(f"decided.{role}") for role in ROLES]
    assert states.shape == (5, 7, STATE_SIZE)
    assert actions.shape == (5, 7)
    assert states[0][:, decided].sum(axis=1).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert np.isfinite(states).all()


def test_an_unknown_device_gives_finite_states() -> None:
    task = tiled_task(replace(device(), attributes={}))
    assert np.isfinite(Episode(task.spec.kernel, task.spec.problem, task.device).start(1)).all()


def test_the_network_in_numpy_equals_the_one_that_was_trained(data: Transitions) -> None:
    mean = data.states.mean(axis=0)
    scale = (1.0 / np.maximum(data.states.std(axis=0), 0.1)).astype(np.float32)
    algorithm = train_iql(data, mean, scale, seed=0, threads=1, settings=replace(SETTINGS, steps=5))
    policy = Policy(export_weights(algorithm, mean, scale))
    states = data.states[::50]
    with torch.no_grad():
        output = algorithm.impl.policy(torch.from_numpy(np.clip((states - mean) * scale, -5.0, 5.0)))
    assert np.abs(policy.mean(states) - output.squashed_mu.numpy()[:, 0]).max() < 1e-5
    assert policy.std == pytest.approx(float(output.logstd.exp()[0, 0]), abs=1e-6)
    assert (
        np.abs(
            Policy({**policy.weights, "b_mu": policy.weights["b_mu"] + 0.1}).mean(states) - policy.mean(states)
        ).max()
        > 1e-3
    )


def test_training_again_with_the_same_seed_gives_the_same_policy(data: Transitions) -> None:
    short = replace(SETTINGS, steps=20)
    a, b = (train_policy(data, groups=frozenset(), seed=1, threads=1, settings=short) for _ in "ab")
    other = train_policy(data, groups=frozenset(), seed=2, threads=1, settings=short)
    assert all(np.array_equal(a.weights[name], b.weights[name]) for name in TENSORS)
    assert not np.array_equal(a.weights["w0"], other.weights["w0"])


def test_a_log_without_a_single_good_row_is_refused(data: Transitions) -> None:
    with pytest.raises(ValueError, match="no measured configuration"):
        train_policy(replace(data, upper=np.zeros_like(data.upper)), groups=frozenset(), seed=0)


def test_training_writes_no_files_and_prints_nothing(
    data: Transitions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train_policy(data, groups=frozenset(), seed=0, threads=1, settings=replace(SETTINGS, steps=3))
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_samples_are_valid_and_faster_than_uniform_ones_on_a_device_not_trained_on(policy: Policy) -> None:
    task = tiled_task(device("middle", 80))
    sampled = policy.sample(task, 256, np.random.default_rng(0))
    uniform = task.space.sample(256, np.random.default_rng(0))
    assert all(task.space.contains(config) for config in sampled)
    assert np.nanmedian(true_log_s(task, sampled)) < np.nanmedian(true_log_s(task, uniform)) - 0.3


def test_an_untrained_policy_is_no_better_than_uniform(policy: Policy) -> None:
    task = tiled_task(device("middle", 80))
    rng = np.random.default_rng(0)
    untrained = Policy(
        {name: w if w.ndim < 2 else 0 * w for name, w in policy.weights.items()}
        | {"std": np.full(1, 0.8, np.float32), "b_mu": np.zeros(1, np.float32)}
    )
    sampled, uniform = untrained.sample(task, 256, rng), task.space.sample(256, rng)
    assert np.nanmedian(true_log_s(task, sampled)) > np.nanmedian(true_log_s(task, uniform)) - 0.3


def test_sampling_is_deterministic_for_a_seed(policy: Policy) -> None:
    task = tiled_task()
    a, b, other = (policy.sample(task, 32, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert a == b
    assert a != other


def test_likely_configurations_are_the_fast_ones(policy: Policy) -> None:
    task = tiled_task(device("middle", 80))
    configs = task.space.sample(400, np.random.default_rng(0))
    episode = Episode(task.spec.kernel, task.spec.problem, task.device)
    likely = np.argsort(-policy.log_likelihood(episode, task.space.indices(configs)))
    log_s = true_log_s(task, configs)
    assert np.nanmedian(log_s[likely[:80]]) < np.nanmedian(log_s[likely[-80:]]) - 0.3


def test_probabilities_of_all_combinations_sum_to_one(policy: Policy) -> None:
    kernel = tiled_kernel(parameters=PARAMETERS)
    task = tiled_task(kernel=kernel)
    sizes = [len(p.values) for p in kernel.parameters]
    every = np.stack([axis.ravel() for axis in np.meshgrid(*map(np.arange, sizes), indexing="ij")], axis=1)
    episode = Episode(kernel, task.spec.problem, task.device)
    assert np.exp(policy.log_likelihood(episode, every)).sum() == pytest.approx(1.0, abs=1e-3)


def test_a_stored_policy_is_the_same_policy(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path)
    loaded = load_policy(tmp_path)
    task = tiled_task()
    assert loaded.groups == {"tiled"}
    assert loaded.known(task)
    assert loaded.sample(task, 16, np.random.default_rng(0)) == policy.sample(task, 16, np.random.default_rng(0))


@pytest.mark.parametrize(
    "damage", ["cut short", "no weights", "no manifest", "other states", "missing tensor", "wrong shape", "not finite"]
)
def test_a_damaged_policy_is_a_model_error(policy: Policy, tmp_path: Path, damage: str) -> None:
    policy.save(tmp_path)
    weights, manifest = tmp_path / "policy.safetensors", tmp_path / "policy.json"
    tensors = load_file(weights)
    match damage:
        case "cut short":
            weights.write_bytes(weights.read_bytes()[:-100])
        case "no weights":
            weights.unlink()
        case "no manifest":
            manifest.unlink()
        case "other states":
            manifest.write_text(json.dumps({"schema": "else", "groups": []}))
        case "missing tensor":
            save_file({name: tensors[name] for name in TENSORS if name != "std"}, weights)
        case "wrong shape":
            save_file(tensors | {"w0": tensors["w0"][:, :-1].copy()}, weights)
        case "not finite":
            save_file(tensors | {"b0": tensors["b0"] * np.float32("nan")}, weights)
    with pytest.raises(ModelError, match="policy"):
        load_policy(tmp_path)


def test_using_a_policy_needs_neither_torch_nor_d3rlpy() -> None:
    script = (
        "import sys; from tuner_daemon.learning import policy, proposers, training;"
        "print(sorted({'torch', 'd3rlpy'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
