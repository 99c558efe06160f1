"""The main job, end to end, on this machine's CPU: ``make demo``.

Trains from the seed log, starts the daemon on a temporary folder, drops a spec, shows the verified result, asks the
same again, retrains, and tunes a second shape. Exits 0 only if every step gave what it should.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from tuner_daemon.cli.show import show_result

ROOT = Path(__file__).resolve().parent.parent
TUNERD = [sys.executable, "-m", "tuner_daemon.cli"]
SPEC = """template = "matmul"
[problem]
m = {m}
n = {n}
k = {k}
dtype = "float32"
[budget]
measurements = {measurements}
seconds = 60
"""
SETTINGS = """state_dir = "{state}"
seed_logs = ["{seed}"]
allow_cpu_kernels = true
[device]
kind = "cpu"
"""
console = Console()


class DemoError(Exception):
    """A step of the demo did not give what it should."""


def main() -> int:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tunerd-demo-") as folder:
        settings = Path(folder) / "tunerd.toml"
        settings.write_text(SETTINGS.format(state=folder, seed=ROOT / "datasets" / "seed"))
        say("1. pretrain the policy and the cost model from the seed log")
        print(run("retrain", "--settings", str(settings)))
        say("2. start the daemon and drop a spec into its folder")
        daemon = subprocess.Popen([*TUNERD, "serve", "--settings", str(settings)])
        try:
            wait_until_served(Path(folder))
            serve_demo(Path(folder), settings)
        except DemoError as error:
            console.print(f"[red]the demo failed:[/] {error}")
            return 1
        finally:
            daemon.send_signal(signal.SIGTERM)
            code = daemon.wait(60)
    console.print(f"daemon stopped with exit code {code}; the demo took {time.monotonic() - began_s:.0f} s")
    return code


def wait_until_served(folder: Path) -> None:
    deadline_s = time.monotonic() + 30
    while not (folder / "status.json").exists():
        expect(time.monotonic() < deadline_s, "the daemon does not start")
        time.sleep(0.05)


def serve_demo(folder: Path, settings: Path) -> None:
    """Everything that happens while the daemon runs."""
    first = write(folder / "first.toml", m=384, n=384, k=384, measurements=9)
    result, wall_s = submit(first, settings)
    show_result(result)
    expect(result["verdict"] == "faster", f"the verdict is {result['verdict']}, not faster")
    expect(result["best"]["speedup"] >= 3, f"{result['best']['speedup']:.2f}x over the naive baseline, want 3x")
    expect(result["best"]["proposed_by"] == "policy", f"the winner came from {result['best']['proposed_by']}")
    say(f"   answered in {wall_s:.1f} s after {result['measured']} measurements")

    say("3. the same spec again: answered from what is known")
    again, wall_s = submit(first, settings)
    expect(again["job"] == result["job"] and again["best"] == result["best"], "the second answer differs")
    expect(wall_s < 5, f"took {wall_s:.1f} s")
    say(f"   answered in {wall_s:.1f} s, nothing measured")

    say("4. retrain from the seed log and the measurements just made")
    report = json.loads(run("retrain", "--json", "--settings", str(settings)))
    print(f"{'promoted' if report['promoted'] else 'not promoted'}: {report['reason']}")
    in_use = report["version"] if report["promoted"] else report["champion"]

    say("5. another shape starts warm")
    second = write(folder / "second.toml", m=320, n=512, k=256, measurements=17)
    warm, wall_s = submit(second, settings)
    show_result(warm)
    expect(warm["verdict"] == "faster", f"the verdict is {warm['verdict']}, not faster")
    expect(warm["models"]["policy"] == in_use, "the second shape did not start from the models in use")
    say(f"   answered in {wall_s:.1f} s after {warm['measured']} measurements")


def submit(spec: Path, settings: Path) -> tuple[dict[str, Any], float]:
    """The result of a dropped spec and how long it took, seconds."""
    began_s = time.monotonic()
    answer = json.loads(run("submit", str(spec), "--wait", "--json", "--timeout", "180", "--settings", str(settings)))
    return answer["result"], time.monotonic() - began_s


def run(*arguments: str) -> str:
    done = subprocess.run([*TUNERD, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    expect(done.returncode == 0, f"tunerd {arguments[0]} exited with {done.returncode}: {done.stdout.strip()}")
    return done.stdout.rstrip()


def write(path: Path, **sizes: int) -> Path:
    path.write_text(SPEC.format(**sizes))
    return path


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DemoError(otherwise)


def say(line: str) -> None:
    console.print(f"[bold cyan]{line}[/]")


if __name__ == "__main__":
    sys.exit(main())
