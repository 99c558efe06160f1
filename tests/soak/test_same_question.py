"""The same question, asked a thousand times by eight writers in a thousand ways, is one job with one result."""

from __future__ import annotations

import json
import random
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.soak.services import serving
from tests.test_main_job import GOOD, KERNEL_TOML, REFERENCE
from tests.waiting import wait_until
from tuner_daemon.storage.log import ParquetLog

SEED = 6
WRITERS = 8
SETTINGS = 'allow_cpu_kernels = true\n[device]\nkind = "cpu"\n[search]\nfinal_blocks = 8\n'
MEASUREMENTS = 4


def question() -> dict[str, Any]:
    """An inline kernel without a name: its source lies beside it."""
    tables = tomllib.loads(KERNEL_TOML)
    asked = {"problem": {"n": 4000}, "budget": {"measurements": MEASUREMENTS, "seconds": 60}, "device": {"index": 0}}
    return {**{key: value for key, value in tables.items() if key not in ("name", "problem")}, **asked}


def written(value: Any, rng: random.Random) -> str:
    """JSON of the value, with keys and white space as they come."""

    def space() -> str:
        return "".join(rng.choices([" ", "\n", "\t", ""], k=rng.randint(0, 3)))

    if isinstance(value, dict):
        items = rng.sample(list(value.items()), len(value))
        inside = ",".join(f"{space()}{json.dumps(k)}{space()}:{space()}{written(v, rng)}{space()}" for k, v in items)
        return f"{{{inside}}}"
    if isinstance(value, list):
        return f"[{','.join(space() + written(item, rng) + space() for item in value)}]"
    return json.dumps(value)


def as_toml(value: dict[str, Any], rng: random.Random) -> str:
    """The same as TOML: every table on a line of its own, comments in between."""
    lines = [f"{key}{' ' * rng.randint(0, 3)}={' ' * rng.randint(0, 3)}{_inline(v, rng)}" for key, v in value.items()]
    rng.shuffle(lines)
    return "".join(f"{line}{' # as before' * rng.randint(0, 1)}{chr(10) * rng.randint(1, 3)}" for line in lines)


def _inline(value: Any, rng: random.Random) -> str:
    if isinstance(value, dict):
        items = rng.sample(list(value.items()), len(value))
        return f"{{ {', '.join(f'{key} = {_inline(v, rng)}' for key, v in items)} }}"
    if isinstance(value, list):
        return f"[{', '.join(_inline(item, rng) for item in value)}]"
    return json.dumps(value)


def ask(incoming: Path, count: int, asked: dict[str, Any], tag: str = "") -> set[str]:
    """``count`` specs from eight writers at once; half are renamed in, half written in place. The texts."""
    texts: set[str] = set()

    def write(writer: int) -> None:
        rng = random.Random(SEED * 1000 + writer)
        for n in range(writer, count, WRITERS):
            toml = rng.random() < 0.5
            name = f"{tag}ask-{n:04}.{'toml' if toml else rng.choice(['json', 'toml'])}"
            text = as_toml(asked, rng) if toml else written(asked, rng)
            texts.add(text)
            if rng.random() < 0.5:
                (incoming / f".{name}").write_text(text)
                (incoming / f".{name}").rename(incoming / name)
            else:
                (incoming / name).write_text(text)

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    return texts


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_the_same_question_is_one_job_with_one_result(in_memory: Path, count: int) -> None:
    state = in_memory / "state"
    with serving(state, SETTINGS) as service:
        incoming = service.spool / "incoming"
        (incoming / "kernel.c").write_text(GOOD.replace("void scale(", "void kernel("))
        (incoming / "reference.c").write_text(REFERENCE.replace("scale_reference", "kernel_reference"))
        texts = ask(incoming, count, question())
        wait_until(lambda: service.ended(count), within_s=600)
        assert service.names("failed") == service.names("hold") == []
        jobs = {name: (service.spool / "done" / f"{name}.job").read_text().split()[0] for name in service.names("done")}
        results = [path.name for path in (service.spool / "results").iterdir()]
        rows = ParquetLog(state / "log").stats()["rows"]
        print(f"specs {len(jobs)} (seed {SEED}), texts {len(texts)}, jobs {len(set(jobs.values()))}, ", end="")
        print(f"results {len(results)}, rows {rows}")
        assert len(jobs) == count
        assert len(texts) > 0.9 * count
        assert set(jobs.values()) == set(results)
        assert len(results) == 1
        assert rows == MEASUREMENTS
        other = {**question(), "problem": {"n": 4001}}  # negative control: another question is another job
        ask(incoming, 1, other, tag="other-")
        wait_until(lambda: service.ended(count + 1), within_s=60)
        assert len(list((service.spool / "results").iterdir())) == 2
