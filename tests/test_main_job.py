"""The main job on real parts: a daemon process, a real compiler, real child processes, a real log.

One daemon serves all of it, good specs and bad, one after the other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.test_bad_specs import FILES, TEXTS
from tuner_daemon.storage.models import ModelStore

SEED = Path(__file__).parent.parent / "datasets" / "seed"
TUNERD = [sys.executable, "-m", "tuner_daemon.cli"]

KERNEL_TOML = """name = "scale"
[sources]
cpu = "kernel.c"
[problem]
n = { type = "int", min = 1 }
[parameters]
UNROLL = { values = [1, 2, 4, 8], role = "unroll" }
STEP = { values = [1, 16], role = "work_x" }
[launch]
block = ["1"]
grid = ["1"]
[[arguments]]
name = "x"
kind = "input"
dtype = "float32"
shape = ["n"]
[[arguments]]
name = "y"
kind = "output"
dtype = "float32"
shape = ["n"]
[[arguments]]
name = "n"
kind = "scalar"
[reference]
cpu = "reference.c"
[baseline]
config = { UNROLL = 1, STEP = 1 }
"""
REFERENCE = (
    "void scale_reference(const float *x, float *y, int n) { for (int i = 0; i < n; ++i) y[i] = 2.0f * x[i]; }\n"
)
HEAD = "void scale(const float *x, float *y, int n) "
# STEP = 1 does the work sixteen times over, so that there is something to find.
GOOD = HEAD + "{ for (int r = 0; r < 16 / STEP; ++r) for (volatile int i = 0; i < n; ++i) y[i] = 2.0f * x[i]; }\n"
BAD = {
    "does_not_compile": (HEAD + "{ y[0] = ; }\n", "build_failed"),
    "hangs": (HEAD + "{ for (volatile int i = 0;;) i = 1; }\n", "timed_out"),
    "crashes": (HEAD + "{ *(volatile int *)8 = n; }\n", "crashed"),
    "writes_out_of_bounds": (HEAD + "{ for (int i = 0; i < n + 8; ++i) y[i] = 2.0f * x[i < n ? i : 0]; }\n", "wrong"),
    "returns_wrong_numbers": (HEAD + "{ for (int i = 0; i < n; ++i) y[i] = 3.0f * x[i]; }\n", "wrong_result"),
    "writes_nothing": (HEAD + "{ (void)x; (void)y; (void)n; }\n", "wrong_result"),
    "exits": ("#include <stdlib.h>\n" + HEAD + "{ exit(0); }\n", "crashed"),
}


@dataclass(frozen=True)
class Service:
    """A running daemon and its folders."""

    process: subprocess.Popen[bytes]
    state: Path
    settings: Path

    def submit(self, folder: Path) -> dict[str, Any]:
        """The answer to a dropped job folder."""
        command = [*TUNERD, "submit", str(folder), "--wait", "--json", "--timeout", "60"]
        done = self.call(*command[len(TUNERD) :])
        answer: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if "result" in answer else 1), done.stderr
        return answer

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*TUNERD, *arguments, "--settings", str(self.settings)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    state = tmp_path_factory.mktemp("state")
    settings = state / "tunerd.toml"
    settings.write_text(
        f'state_dir = "{state}"\nallow_cpu_kernels = true\nseed_logs = ["{SEED}"]\n[device]\nkind = "cpu"\n'
        "[search]\nfinal_blocks = 12\n[retrain]\npolicy_steps = 60\n"
    )
    subprocess.run([*TUNERD, "retrain", "--settings", str(settings)], check=True, stdout=subprocess.DEVNULL)
    process = subprocess.Popen([*TUNERD, "serve", "--settings", str(settings)], stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 30
    while not (state / "status.json").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    yield Service(process, state, settings)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def job(folder: Path, source: str = GOOD, *, n: int = 4000, toml: str = KERNEL_TOML, seconds: float = 2.0) -> Path:
    """A job folder: a spec, the kernel folder that it names."""
    kernel = folder / "scale"
    kernel.mkdir(parents=True)
    (kernel / "kernel.toml").write_text(toml)
    (kernel / "kernel.c").write_text(source)
    (kernel / "reference.c").write_text(REFERENCE)
    (folder / "spec.toml").write_text(
        f'kernel = "scale"\n[problem]\nn = {n}\n[budget]\nmeasurements = 8\nseconds = {seconds}\n'
    )
    return folder


def test_a_dropped_spec_gets_a_verified_winner_and_the_log_grows(service: Service, tmp_path: Path) -> None:
    before = json.loads(service.call("log", "stats", "--json").stdout)["rows"]
    answer = service.submit(job(tmp_path / "good", seconds=30))
    result = answer["result"]
    assert result["verdict"] == "faster"
    assert result["best"]["config"]["STEP"] == 16
    assert result["best"]["speedup"] > 4
    assert result["best"]["error_norm"] < 1e-6
    assert result["measured"] == 8
    assert result["models"]["policy"] == result["models"]["cost_model"] != ""
    assert json.loads(service.call("log", "stats", "--json").stdout)["rows"] == before + 8
    folder = service.state / "spool" / "results" / answer["job"]
    names = {path.name for path in folder.iterdir()}
    assert {"result.json", "config.h", "report.html", "measurements.parquet", "kernel.c"} <= names


def test_the_same_spec_again_is_answered_at_once(service: Service, tmp_path: Path) -> None:
    first = service.submit(job(tmp_path / "one", n=4001, seconds=30))
    rows = json.loads(service.call("log", "stats", "--json").stdout)["rows"]
    again = service.submit(job(tmp_path / "two", n=4001, seconds=30))
    assert again["result"] == first["result"]
    assert json.loads(service.call("log", "stats", "--json").stdout)["rows"] == rows, "nothing was measured"


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_kernel_ends_in_failed_with_a_reason_and_the_daemon_goes_on(
    service: Service, tmp_path: Path, kind: str
) -> None:
    source, outcome = BAD[kind]
    answer = service.submit(job(tmp_path / kind, source))
    assert "no configuration gave right results" in answer["reason"]
    assert outcome in answer["reason"]
    assert service.process.poll() is None


def test_a_bad_spec_ends_in_failed_with_file_key_and_remedy(service: Service, tmp_path: Path) -> None:
    folder = job(tmp_path / "typo")
    (folder / "spec.toml").write_text('kernel = "scale"\n[problem]\nm = 3\n')
    reason = service.submit(folder)["reason"]
    assert "spec.toml" in reason
    assert "problem" in reason
    failed = service.state / "spool" / "failed"
    assert any(path.name.endswith(".reason.txt") for path in failed.iterdir())


def test_every_bad_spec_of_the_corpus_ends_in_failed_with_a_reason_and_the_next_one_is_served(
    service: Service, tmp_path: Path
) -> None:
    spool = service.state / "spool"
    dropped = list(drop_corpus(spool / "incoming"))
    assert len(dropped) >= 80
    deadline_s = time.monotonic() + 60
    while missing := [name for name in dropped if not (spool / "failed" / f"{name}.reason.txt").exists()]:
        assert time.monotonic() < deadline_s, missing
        time.sleep(0.1)
    for name in dropped:
        reason = (spool / "failed" / f"{name}.reason.txt").read_text()
        assert len(reason.split()) >= 3, (name, reason)
        assert "Traceback" not in reason
        assert os.path.lexists(spool / "failed" / name)
    good = service.submit(job(tmp_path / "good", n=4004, seconds=30))
    assert good["result"]["verdict"] == "faster"


def drop_corpus(incoming: Path) -> Iterator[str]:
    """Renames every bad spec of the corpus in; the names they got."""
    for number, (content, _) in enumerate(TEXTS.values()):
        hidden = incoming / f".text-{number}.toml"
        hidden.write_bytes(content)
        hidden.rename(incoming / f"text-{number}.toml")
        yield f"text-{number}.toml"
    for number, (kind, (make, _)) in enumerate(FILES.items()):
        hidden = incoming / f".file-{number}"
        hidden.mkdir()
        make(hidden / "spec.toml")
        whole = "kernel" in kind or "constraint" in kind  # these need what lies beside the spec
        name = f"file-{number}" if whole else f"file-{number}.toml"
        if os.path.lexists(hidden / "spec.toml"):
            (hidden if whole else hidden / "spec.toml").rename(incoming / name)
            yield name


def test_a_spec_dropped_by_rename_starts_within_a_second(service: Service, tmp_path: Path) -> None:
    spool = service.state / "spool"

    def seconds_until_taken(name: str, n: int) -> float:
        hidden = spool / "incoming" / f".{name}"
        job(tmp_path / name, n=n, seconds=30).rename(hidden)
        time.sleep(1.0)  # the daemon is idle
        began_s = time.monotonic()
        hidden.rename(spool / "incoming" / name)
        while not (spool / "active" / name).exists():
            assert time.monotonic() - began_s < 10
            time.sleep(0.01)
        taken_s = time.monotonic() - began_s
        while not (spool / "done" / name).exists():
            assert time.monotonic() - began_s < 60
            time.sleep(0.05)
        return taken_s

    # Again, since whatever else the machine does may cost a second now and then.
    assert any(seconds_until_taken(f"renamed-{n}", n) < 1.0 for n in range(4020, 4025))


def test_models_promoted_while_the_daemon_runs_are_used_by_the_next_job(service: Service, tmp_path: Path) -> None:
    before = service.submit(job(tmp_path / "before", n=4010, seconds=30))["result"]["models"]
    store = ModelStore(service.state / "models")
    champion = store.current()
    assert champion is not None
    version = store.publish(champion.files, champion.metadata)
    store.promote(version)
    after = service.submit(job(tmp_path / "after", n=4011, seconds=30))["result"]["models"]
    assert version == after["policy"] == after["cost_model"] != before["policy"]


def test_the_idle_daemon_uses_little_of_a_core_and_of_memory(service: Service) -> None:
    daemon = psutil.Process(service.process.pid)
    family = [daemon, *daemon.children(recursive=True)]

    def share() -> float:
        spent_s = sum(sum(p.cpu_times()[:2]) for p in family)
        time.sleep(5.0)
        return (sum(sum(p.cpu_times()[:2]) for p in family) - spent_s) / 5.0

    assert any(share() < 0.01 for _ in range(3)), "on a busy machine the same work takes longer now and then"
    assert sum(p.memory_info().rss for p in family) < 600e6


def test_status_names_queue_devices_and_log(service: Service) -> None:
    facts = json.loads(service.call("status", "--json").stdout)
    assert facts["state"] == "waiting"
    assert facts["queue"]["incoming"] == 0
    assert facts["queue"]["failed"] >= 1
    assert facts["devices"]
    assert facts["log"]["rows"] > 0


def test_sigterm_in_mid_job_puts_the_spec_back_and_a_new_daemon_finishes_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    settings = state / "tunerd.toml"
    settings.write_text(f'state_dir = "{state}"\nallow_cpu_kernels = true\n[device]\nkind = "cpu"\n')
    slow = GOOD.replace("r < 16 / STEP", "r < 12000 / STEP")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    first = subprocess.Popen([*TUNERD, "serve", "--settings", str(settings)], env=environment)
    service = Service(first, state, settings)
    service.call("submit", str(job(tmp_path / "slow", slow, seconds=60)))
    deadline_s = time.monotonic() + 30
    while not list((state / "log").rglob("part-*.parquet")):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    rows = json.loads(service.call("log", "stats", "--json").stdout)["rows"]
    assert [p.name for p in (state / "spool" / "incoming").iterdir() if not p.name.startswith(".")] == ["slow"]
    second = subprocess.Popen([*TUNERD, "serve", "--settings", str(settings)], env=environment)
    while not (state / "spool" / "done" / "slow").exists():
        assert time.monotonic() < deadline_s + 60
        time.sleep(0.1)
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0
    assert 1 <= rows < 8
    assert json.loads(service.call("log", "stats", "--json").stdout)["rows"] == 8
