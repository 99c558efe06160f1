"""What the daemon costs while it waits, and how soon it starts: ``python -m benchmarks.footprint``.

Trains models from the seed log first, so that the daemon holds them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.main_job import TUNERD, daemon

SEED = Path(__file__).resolve().parent.parent / "datasets" / "seed"
SPEC = """template = "softmax"
[problem]
rows = {rows}
cols = 256
dtype = "float32"
[budget]
measurements = 2
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tunerd-bench-") as folder:
        state = Path(folder)
        settings = state / "tunerd.toml"
        settings.write_text(
            f'state_dir = "{state}"\nseed_logs = ["{SEED}"]\nallow_cpu_kernels = true\n[device]\nkind = "cpu"\n'
            "[retrain]\npolicy_steps = 100\n"
        )
        subprocess.run([*TUNERD, "retrain", "--settings", str(settings)], check=True, stdout=subprocess.DEVNULL)
        with daemon(settings):
            latencies_s = [drop(state / "spool", rows) for rows in (64, 65, 66, 67, 68)]
            share, rss_bytes = idle(20.0)
    print(f"tunerd --help: {help_s():.2f} s (best of 5)")
    print(f"from the rename of a spec into incoming/ to its claim: {', '.join(f'{s:.2f}' for s in latencies_s)} s")
    print(f"idle daemon and its worker, models loaded: {share:.2%} of a core, {rss_bytes / 1e6:.0f} MB resident")
    return 0


def drop(spool: Path, rows: int) -> float:
    """Seconds until the daemon has taken a spec that is renamed in while it waits."""
    incoming = spool / "incoming"
    while not incoming.is_dir():
        time.sleep(0.1)
    time.sleep(1.5)
    hidden, name = incoming / f".{rows}.toml", f"{rows}.toml"
    hidden.write_text(SPEC.format(rows=rows))
    began_s = time.monotonic()
    hidden.rename(incoming / name)
    while (incoming / name).exists():
        time.sleep(0.005)
    taken_s = time.monotonic() - began_s
    while not (spool / "done" / name).exists():
        time.sleep(0.1)
    return taken_s


def idle(wall_s: float) -> tuple[float, int]:
    """(share of one core, resident bytes) of everything this process has started."""
    family = psutil.Process().children(recursive=True)
    before_s = sum(sum(p.cpu_times()[:2]) for p in family)
    time.sleep(wall_s)
    spent_s = sum(sum(p.cpu_times()[:2]) for p in family) - before_s
    return spent_s / wall_s, sum(p.memory_info().rss for p in family)


def help_s() -> float:
    def once() -> float:
        began_s = time.monotonic()
        subprocess.run([*TUNERD, "--help"], stdout=subprocess.DEVNULL, check=True)
        return time.monotonic() - began_s

    return min(once() for _ in range(5))


if __name__ == "__main__":
    sys.exit(main())
