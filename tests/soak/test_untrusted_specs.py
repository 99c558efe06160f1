"""Whatever is dropped ends in failed/ with a reason: nothing is started for it, and nothing outside is opened."""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.kernel_folders import SOURCES, write_kernel
from tests.soak.hostile import GOOD, handmade, mutants
from tests.soak.services import Service, serving
from tests.test_main_job import drop_corpus
from tests.waiting import wait_until

SEED = 3
CHUNK = 1000
SECRET = "the-secret-that-nobody-may-read"
CODE = (".py", ".pyc", ".so", ".pth", ".txt", "METADATA", ".json")  # what importing opens


@dataclass(frozen=True)
class Memory:
    """Bytes of the daemon, by the kernel's count."""

    resident: int
    peak: int

    @classmethod
    def of(cls, process: int) -> Memory:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        return cls(*(1024 * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM")))


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_hostile_specs_end_with_a_reason_and_do_nothing_else(in_memory: Path, count: int) -> None:
    secret = in_memory / "secret.h"
    secret.write_text(SECRET)
    templates = write_kernel(in_memory / "templates" / "scale").parent
    log, state = in_memory / "audit.txt", in_memory / "state"
    settings = f'allow_cpu_kernels = false\ntemplate_dirs = ["{templates}"]\n[device]\nkind = "cpu"\n'
    command = [sys.executable, "-m", "tests.soak.audited", str(log)]
    with serving(state, settings, command) as service:
        started = len(log.read_text().splitlines())
        incoming = service.spool / "incoming"
        for name in SOURCES:
            (incoming / name).write_text("/* beside the spec */\n")
        dropped, memory, names = set[str](), list[Memory](), list[str]()
        for chunk in chunks(count):
            dropped |= drop(incoming, chunk)
            if memory and not names:
                names = drop_by_hand(incoming, secret)
                dropped |= set(names)
            wait_until(partial(service.ended, len(dropped)), within_s=600)
            memory.append(Memory.of(service.process.pid))
        assert set(service.names("failed")) == dropped
        assert [service.names(state) for state in ("hold", "done", "active")] == [[], [], []]
        reasons = reasons_in(service)
    events = log.read_text().splitlines()[started:]
    opened, processes = opened_outside(events, [state, templates]), [e for e in events if e.startswith("start ")]
    grown, peak = memory[-1].resident - memory[0].resident, memory[-1].peak - memory[0].peak
    print(f"mutants {count} (seed {SEED}), by hand {len(names)}, kinds of reason {len(kinds(reasons))}, ", end="")
    print(
        f"grown {grown / 1e6:.1f} MB (peak {peak / 1e6:.1f} MB), opened outside {len(opened)}, started {len(processes)}"
    )
    assert len(names) >= 200
    assert len(kinds(reasons)) > 20
    assert all(len(reason.split()) >= 3 and SECRET not in reason and "Traceback" not in reason for reason in reasons)
    assert sum("runs host code" in reason for reason in reasons) < len(reasons) / 4  # these were right
    assert opened == []
    assert processes == []
    assert grown < 50e6
    assert peak < 100e6


def drop_by_hand(incoming: Path, secret: Path) -> list[str]:
    """The names that the corpus has in failed/."""
    from tuner_daemon.storage.incoming import safe_name

    names = list(drop_corpus(incoming))
    for name, make in handmade(secret).items():
        make(incoming / name)
        names.append(safe_name(name))
    assert len(set(names)) == len(names)
    return names


def chunks(count: int) -> Iterator[list[tuple[str, bytes]]]:
    """Good ones first, so that the memory of the first chunk is that of a daemon which has seen all there is."""
    made = list(mutants(random.Random(SEED), count))
    good = [(f"good-{n}.{'json' if text.startswith('{') else 'toml'}", text.encode()) for n, text in enumerate(GOOD)]
    size = min(CHUNK, count // 2)
    yield good + made[:size]
    for start in range(size, count, size):
        yield made[start : start + size]


def drop(incoming: Path, specs: list[tuple[str, bytes]]) -> set[str]:
    for name, content in specs:
        hidden = incoming / f".{name}"
        hidden.write_bytes(content or b" ")
        hidden.rename(incoming / name)
    return {name for name, _ in specs}


def reasons_in(service: Service) -> list[str]:
    failed = service.spool / "failed"
    return [(failed / f"{name}.reason.txt").read_text(errors="replace") for name in service.names("failed")]


def kinds(reasons: list[str]) -> Counter[str]:
    """Reasons without names, numbers and what was quoted."""
    words = (word for reason in reasons for word in [" ".join(w for w in reason.split(":")[-1].split() if w.isalpha())])
    return Counter(words)


def opened_outside(events: list[str], inside: list[Path]) -> list[str]:
    """Paths that were opened and are neither in these folders nor code that was imported."""
    paths = [Path(os.path.normpath(ast.literal_eval(event[5:]))) for event in events if event.startswith("open ")]
    code = [Path(folder) for folder in (sys.prefix, sys.base_prefix)]
    ours = [ROOT / name for name in ("tuner_daemon", "cost_model", "templates")]
    return [
        str(path)
        for path in paths
        if not any(path.is_relative_to(folder) for folder in (*inside, *ours))
        and not (path.name.endswith(CODE) and any(path.is_relative_to(folder) for folder in code))
    ]


def test_what_would_be_opened_or_started_would_be_seen(tmp_path: Path) -> None:
    """Negative control."""
    log, secret = tmp_path / "log", tmp_path / "secret.h"
    secret.write_text(SECRET)
    script = (
        "import subprocess; from tests.soak.audited import watch; watch('log'); "
        "open('../' + __import__('os').getcwd().split('/')[-1] + '/secret.h').read(); subprocess.run(['true'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)
    events = log.read_text().splitlines()
    assert str(secret) in opened_outside(events, [tmp_path / "state"])
    assert any(event.startswith("start subprocess.Popen") for event in events)
