"""Starts without a GPU, or with one that is lost: an error that says so, exit code 1, and no other device in its
place."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.spool import counts_in

STAND_IN = Path(__file__).parent / "driver_stand_in"
WAYS = {
    "no library": "libcuda.so.1",
    "no device": "no CUDA-capable device is detected",
    "driver mismatch": "unsupported display driver",
    "none left": "there is no CUDA device 0; the driver sees 0",
    "dies": "killed by SIGABRT",
    "no context": "GPU is lost",
    "canary fails": "GPU is lost",
    "canary is wrong": "the canary kernel gives wrong numbers",
    "in the job": "GPU is lost",
}
SPEC = 'template = "softmax"\n[problem]\nrows = 64\ncols = 64\n[budget]\nmeasurements = 4\n'
SETTINGS = 'state_dir = "{state}"\nallow_cpu_kernels = true\n[build]\njobs = 1\n'


def start(folder: Path, command: str, how: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The daemon with a spec in its queue, or ``tunerd tune`` of that spec."""
    state, settings, spec = folder / "state", folder / "tunerd.toml", folder / "asked.toml"
    incoming = state / "spool" / "incoming"
    incoming.mkdir(parents=True)
    settings.write_text(SETTINGS.format(state=state))
    spec.write_text(SPEC)
    if command == "serve":
        (incoming / ".asked").write_text(SPEC)
        (incoming / ".asked").rename(incoming / "asked.toml")
    arguments = [command, *([str(spec)] if command == "tune" else []), "--settings", str(settings)]
    environment = {
        **os.environ,
        "DRIVER_STAND_IN": how,
        "DRIVER_STAND_IN_MARKER": str(folder / "lost"),
        "PYTHONPATH": f"{STAND_IN}:{ROOT}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tuner_daemon.cli", *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done, state


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("starts", [pytest.param(100, marks=pytest.mark.slow), 4])
def test_without_its_gpu_nothing_is_run_and_the_error_says_so(tmp_path: Path, starts: int) -> None:
    began_s, ways, codes = time.monotonic(), list(WAYS), Counter[int]()
    kinds = [(command, how) for how in ways for command in ("serve", "tune")]
    clear = fell_back = failed = 0
    for number in range(starts):
        command, how = kinds[(number * (1 if starts > 50 else 5)) % len(kinds)]
        done, state = start(tmp_path / str(number), command, how)
        codes[done.returncode] += 1
        last = done.stderr.strip().splitlines()[-1]
        clear += last.startswith("tunerd: ") and WAYS[how] in last and "cuda 0" in last
        fell_back += int(ParquetLog(state / "log").stats()["rows"]) + len(list((state / "spool").glob("results/*")))
        counts = counts_in(state / "spool")
        failed += counts["failed"] + counts["hold"]
        assert clear == number + 1, (command, how, done.stderr[-2000:])
        assert counts["incoming"] + counts["active"] == (command == "serve")
    print(
        f"starts {starts} in {len(ways)} ways, clear errors {clear}, exit codes {dict(codes)}, rows or results "
        f"{fell_back}, specs failed for it {failed}, {time.monotonic() - began_s:.0f} s"
    )
    assert codes == {1: starts}
    assert fell_back == failed == 0


def test_with_another_device_the_same_spec_is_answered(tmp_path: Path) -> None:
    """Negative control: it is not the spec that fails, and rows would be seen."""
    state, spec = tmp_path / "state", tmp_path / "asked.toml"
    (tmp_path / "tunerd.toml").write_text(SETTINGS.format(state=state))
    spec.write_text(f'{SPEC}[device]\nkind = "cpu"\n')
    command = [sys.executable, "-m", "tuner_daemon.cli", "tune", str(spec), "--settings", str(tmp_path / "tunerd.toml")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=200)
    assert ParquetLog(state / "log").stats()["rows"] == 4
