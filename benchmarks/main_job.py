"""Both families through the daemon on a real device: ``python -m benchmarks.main_job --kind cuda``.

Prints, for each spec: verdict, best against baseline, verification error, configurations measured per minute, the share
of wall time in which candidates were being checked and timed, and on a GPU the share in which it executed kernels (the
driver's own figure, sampled five times a second); then candidates built per second with a cold cache. With
``--retrain``, models are then trained from what was measured, and other shapes are tuned with them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

TUNERD = [sys.executable, "-m", "tuner_daemon.cli"]
PROBLEMS: dict[str, list[tuple[str, dict[str, int]]]] = {
    "cuda": [
        ("matmul", {"m": 4096, "n": 4096, "k": 4096}),
        ("matmul", {"m": 1000, "n": 2000, "k": 3000}),
        ("softmax", {"rows": 8192, "cols": 4096}),
        ("softmax", {"rows": 4097, "cols": 1023}),
    ],
    "cpu": [
        ("matmul", {"m": 384, "n": 384, "k": 384}),
        ("softmax", {"rows": 512, "cols": 1000}),
    ],
}
WARM: dict[str, list[tuple[str, dict[str, int]]]] = {
    "cuda": [("matmul", {"m": 2048, "n": 2048, "k": 2048}), ("softmax", {"rows": 16384, "cols": 1000})],
    "cpu": [("matmul", {"m": 320, "n": 512, "k": 256}), ("softmax", {"rows": 300, "cols": 2000})],
}


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="tunerd-bench-") as folder:
        state = Path(options.state or folder)
        settings = write_settings(state, options.kind)
        with daemon(settings):
            answers = [tune(state, settings, options, *problem) for problem in PROBLEMS[options.kind]]
            if options.retrain:
                subprocess.run([*TUNERD, "retrain", "--settings", str(settings)], check=True)
                options.measurements = options.warm_measurements
                answers += [tune(state, settings, options, *problem) for problem in WARM[options.kind]]
    print(table(answers))
    built, wall_s = build_speed(options.kind, options.builds)
    print(
        f"\nbuilt {built} of {options.builds} matmul candidates in {wall_s:.1f} s with {os.cpu_count()} cores: ", end=""
    )
    print(f"{options.builds / wall_s:.1f} a second")
    if options.json:
        options.json.write_text(json.dumps({"answers": answers, "builds_per_s": options.builds / wall_s}, indent=2))
    return 0 if all("result" in answer for answer in answers) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=sorted(PROBLEMS), default="cpu")
    parser.add_argument("--measurements", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--builds", type=int, default=128, help="candidates for the build-speed figure")
    parser.add_argument("--retrain", action="store_true", help="then retrain and tune other shapes")
    parser.add_argument("--warm-measurements", type=int, default=16, help="budget of those")
    parser.add_argument("--state", type=Path, help="keep the daemon's folders here (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write everything here, too")
    return parser.parse_args()


def write_settings(state: Path, kind: str) -> Path:
    state.mkdir(parents=True, exist_ok=True)
    settings = state / "tunerd.toml"
    settings.write_text(f'state_dir = "{state}"\nallow_cpu_kernels = true\n[device]\nkind = "{kind}"\n')
    return settings


@contextmanager
def daemon(settings: Path) -> Iterator[None]:
    process = subprocess.Popen([*TUNERD, "serve", "--settings", str(settings)])
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def tune(
    state: Path, settings: Path, options: argparse.Namespace, family: str, sizes: dict[str, int]
) -> dict[str, Any]:
    """The daemon's answer to one spec, with the seconds from drop to answer."""
    spec = state / f"{family}-{'x'.join(map(str, sizes.values()))}.toml"
    problem = "\n".join(f"{name} = {size}" for name, size in sizes.items())
    spec.write_text(
        f'template = "{family}"\n[problem]\n{problem}\ndtype = "float32"\n'
        f"[budget]\nmeasurements = {options.measurements}\nseconds = {options.seconds}\n"
    )
    began_s = time.monotonic()
    command = [*TUNERD, "submit", str(spec), "--wait", "--json", "--settings", str(settings)]
    with gpu_utilisation() as samples:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    answer: dict[str, Any] = json.loads(done.stdout)
    busy = float(np.mean(samples)) / 100 if samples else None
    return {**answer, "spec": spec.name, "wall_s": time.monotonic() - began_s, "gpu_busy": busy}


@contextmanager
def gpu_utilisation() -> Iterator[list[float]]:
    """Per cent of time in which the first GPU executed a kernel, in samples taken while the body runs; none without."""
    samples: list[float] = []
    if shutil.which("nvidia-smi") is None:
        yield samples
        return
    query = ["nvidia-smi", "-i", "0", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
    with subprocess.Popen(query, stdout=subprocess.PIPE, text=True) as reader:
        yield samples
        reader.terminate()
        samples += [float(line) for line in reader.stdout or () if line.strip().isdigit()]


def table(answers: list[dict[str, Any]]) -> str:
    names = (
        "spec, verdict, best, baseline, speed-up (95 %), error, measured (ok), per minute, running, GPU busy, proposer"
    )
    columns = names.split(", ")
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for answer in answers:
        if "result" not in answer:
            lines.append(f"| {answer['spec']} | {answer['reason']} |" + " |" * (len(columns) - 2))
            continue
        result = answer["result"]
        best, baseline, wall_s = result["best"], result["baseline"], result["wall_s"]
        lines.append(
            f"| {answer['spec']} | {result['verdict']} | {best['median_s'] * 1e3:.4g} ms "
            f"| {baseline['median_s'] * 1e3:.4g} ms "
            f"| {best['speedup']:.2f} ({best['speedup_ci'][0]:.2f} to {best['speedup_ci'][1]:.2f}) "
            f"| {best['error_norm']:.1e} | {result['measured']} ({result['outcomes'].get('ok', 0)}) "
            f"| {60 * result['measured'] / wall_s['total']:.0f} | {wall_s['run'] / wall_s['total']:.0%} "
            f"| {'' if answer['gpu_busy'] is None else format(answer['gpu_busy'], '.0%')} | {best['proposed_by']} |"
        )
    return "\n".join(lines)


def build_speed(kind: str, n: int) -> tuple[int, float]:
    """Candidates of the matmul family that compiled, and the wall seconds for all n, with an empty cache."""
    from tuner_daemon.cli.workshop import Workshop
    from tuner_daemon.records.kernel import Value
    from tuner_daemon.records.measurement import Artifact
    from tuner_daemon.records.space import ParamSpace
    from tuner_daemon.records.spec import DeviceRequest, KernelSpec

    with tempfile.TemporaryDirectory(prefix="tunerd-bench-") as folder:
        from tuner_daemon.settings import load_settings

        settings = load_settings(write_settings(Path(folder), kind))
        with Workshop(settings) as workshop:
            request = DeviceRequest(kind)
            builder = workshop.parts_for(request).builder
            kernel = workshop.template("matmul")
            rows = {"dtype": "float32", "a_layout": "row", "b_layout": "row"}
            problem: dict[str, Value] = {"m": 1024, "n": 1024, "k": 1024, **rows}
            configs = ParamSpace(kernel, problem).sample(n, np.random.default_rng(0))
            began_s = time.monotonic()
            items = list(builder.build(KernelSpec(kernel, problem, request), configs))
            return sum(isinstance(item, Artifact) for item in items), time.monotonic() - began_s


if __name__ == "__main__":
    sys.exit(main())
