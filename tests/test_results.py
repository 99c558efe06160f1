"""results/<job>/."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.fakes import spec_for, vector_add_kernel
from tests.rows import CLOCKS, DEVICE, failure, measurement
from tuner_daemon.errors import DiskFullError, SpoolError
from tuner_daemon.records.measurement import Measurement
from tuner_daemon.records.result import Published, Result, Verdict
from tuner_daemon.records.space import Config
from tuner_daemon.storage import files, results, schema
from tuner_daemon.storage.results import ResultStore, read_result, restore_results, result_json, write_result

DEFINES = "#define BLOCK 64\n#define WORK 2\n"


@pytest.fixture
def result(tmp_path: Path) -> Result:
    return example_result(tmp_path)


def example_result(folder: Path) -> Result:
    """Of a kernel that is written into ``folder``."""
    best = Config.of({"BLOCK": 64, "WORK": 2})
    return Result(
        job="vector_add-0123456789ab",
        spec=spec_for(vector_add_kernel(folder / "kernel")),
        verdict=Verdict.FASTER,
        reason="1.20 times as fast, 95 % interval 1.18 to 1.22",
        best=Published(best, 1e-4, (0.9e-4, 1.1e-4), 1.2, (1.18, 1.22), 0.7, 1e-7, "policy"),
        baseline=Published(Config.of({"BLOCK": 32, "WORK": 1}), 1.2e-4, (1.1e-4, 1.3e-4)),
        ties=(Config.of({"BLOCK": 64, "WORK": 4}),),
        noise_floor=0.004,
        measured=3,
        outcomes={"ok": 2, "build_failed": 1},
        space_size=11,
        device=DEVICE,
        clocks=CLOCKS,
        models={"policy": "p1", "cost_model": ""},
        wall_s={"propose": 0.1, "build": 2.0, "run": 3.0, "total": 5.1},
        notes=("no model yet",),
        counters={"build_cache_hits": 2.0},
    )


ROWS = [measurement(0), failure(1), measurement(2)]


def _write(folder: Path, result: Result, rows: list[Measurement] = ROWS) -> Path:
    return write_result(folder, result, defines=DEFINES, source=results.winning_source(result), rows=rows)


def test_result_json_has_every_name_of_the_contract(result: Result) -> None:
    summary = result_json(result)
    assert json.loads(json.dumps(summary)) == summary
    assert set(summary) >= {
        *(
            "schema",
            "job",
            "spec",
            "kernel",
            "verdict",
            "reason",
            "best",
            "baseline",
            "ties",
            "noise_floor",
            "measured",
        ),
        *("outcomes", "space_size", "device", "clocks", "models", "wall_s"),
    }
    assert summary["schema"] == 1
    assert summary["verdict"] == "faster"
    assert set(summary["best"]) >= {"config", "median_s", "ci_s", "speedup", "speedup_ci", "roofline_fraction"}
    assert summary["baseline"] == {"config": {"BLOCK": 32, "WORK": 1}, "median_s": 1.2e-4, "ci_s": [1.1e-4, 1.3e-4]}
    assert summary["ties"] == [{"BLOCK": 64, "WORK": 4}]
    assert set(summary["device"]) >= {"name", "arch", "driver", "runtime", "compiler"}
    assert summary["clocks"] == {"policy": "verify", "sm_mhz": [1200, 1980], "mode": "locked"}
    assert summary["kernel"] == {"name": "vector_add", "source_sha256": result.spec.kernel.sha256}
    assert summary["spec"]["problem"] == {"n": 1000}
    assert set(summary["spec"]["budget"]) == {"measurements", "seconds"}
    assert set(summary["wall_s"]) == {"propose", "build", "run", "total"}


def test_a_result_is_a_folder_with_everything_in_it(tmp_path: Path, result: Result) -> None:
    folder = _write(tmp_path / "results", result)
    assert folder == tmp_path / "results" / result.job
    assert sorted(p.name for p in folder.iterdir()) == [
        *("build.log", "config.h", "kernel.c", "measurements.parquet", "report.html", "result.json"),
    ]
    assert read_result(tmp_path / "results", result.job) == result_json(result)
    rows = schema.to_measurements(schema.conform(pq.ParquetFile(folder / "measurements.parquet").read()))
    assert rows == ROWS
    assert "build_failed" in (folder / "build.log").read_text()
    assert "error: <no such> register" in (folder / "build.log").read_text()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_winning_source_builds_as_it_is(tmp_path: Path, result: Result) -> None:
    nasty = replace(result, device=replace(DEVICE, name="x\n#error injected ??/"), spec=replace(result.spec, name="*/"))
    folder = _write(tmp_path, nasty)
    command = ["gcc", "-std=gnu11", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(tmp_path / "k.so")]
    subprocess.run([*command, str(folder / "kernel.c")], check=True)
    user = tmp_path / "user.c"
    user.write_text('#include "config.h"\n#include "config.h"\nint block(void) { return BLOCK * WORK; }\n')
    subprocess.run([*command, f"-I{folder}", str(user)], check=True)


def test_a_header_that_is_named_in_several_ways_is_there_once(tmp_path: Path, result: Result) -> None:
    """A file cannot lie below another one either: whatever a kernel includes, its result can be written."""
    kernel = tmp_path / "kernel"
    (kernel / "sub" / "a.h").mkdir(parents=True)
    (kernel / "sub" / "a.h" / "b.h").write_text("")
    (kernel / "sub" / "c.h").write_text('#include "a.h/b.h"\n')
    (kernel / "a.h").write_text("#pragma once\n")
    source = result.spec.kernel.sources["cpu"].file
    source.write_text('#include "a.h"\n#include "./a.h"\n#include "sub/c.h"\n#include "sub//c.h"\n')
    folder = ResultStore(tmp_path / "results", preamble=lambda *_: DEFINES).write(result, ROWS)
    headers = [path.relative_to(folder / "include") for path in (folder / "include").rglob("*") if path.is_file()]
    assert sorted(map(str, headers)) == ["a.h", "sub/c.h"]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_winning_source_comes_with_the_headers_of_its_folder(tmp_path: Path, result: Result) -> None:
    kernel = tmp_path / "kernel"
    (kernel / "parts").mkdir()
    (kernel / "config.h").write_text('#include "parts/one.h"\n')
    (kernel / "parts" / "one.h").write_text('#include "two.h"\n')
    (kernel / "parts" / "two.h").write_text("#define TWO 2\n")
    (kernel / "unused.h").write_text("#error not asked for\n")
    source = result.spec.kernel.sources["cpu"].file
    source.write_text(
        f'#include "config.h"\n#include <stddef.h>\nint two(void) {{ return TWO; }}\n{source.read_text()}'
    )
    folder = ResultStore(tmp_path / "results", preamble=lambda *_: DEFINES).write(result, ROWS)
    assert sorted(p.name for p in (folder / "include").rglob("*.h")) == ["config.h", "one.h", "two.h"]
    assert "BLOCK" in (folder / "tuned_config.h").read_text(), "beside the source, config.h would be the kernel's own"
    assert not (folder / "config.h").exists()
    command = ["gcc", "-std=gnu11", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(tmp_path / "k.so")]
    without = subprocess.run([*command, str(folder / "kernel.c")], check=False, capture_output=True, text=True)
    assert "TWO" in without.stderr or "config.h" in without.stderr
    subprocess.run([*command, f"-I{folder / 'include'}", str(folder / "kernel.c")], check=True)


class _Page(HTMLParser):
    """Collects tags and checks that they close; nothing may be fetched or run."""

    VOID = frozenset({"meta", "circle", "line", "path", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def _page(text: str) -> _Page:
    page = _Page()
    page.feed(text)
    page.close()
    return page


def test_the_report_stands_alone_and_shows_the_search(tmp_path: Path, result: Result) -> None:
    text = (_write(tmp_path, result) / "report.html").read_text()
    page = _page(text)
    assert page.open == []
    assert page.tags.count("svg") == 1
    assert page.tags.count("circle") == 2  # a dot for each measurement that has a time
    assert page.tags.count("tr") == 3 + 1 + len(ROWS)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not {"src", "href"} & set(page.attributes)
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", text)
    assert "1.20 times as fast" in text
    assert "no model yet" in text


def test_nothing_from_outside_is_markup_in_the_report(tmp_path: Path, result: Result) -> None:
    evil = '<script>alert("x")</script>'
    rows = [replace(failure(1), problem={"m": evil}), measurement(0, config={"BM": evil, evil: 1})]
    nasty = replace(
        result,
        reason=evil,
        notes=(evil,),
        device=replace(DEVICE, name=evil, compiler=evil),
        best=replace(result.best, config=Config.of({evil: evil}), proposed_by=evil),
        spec=replace(result.spec, problem={"n": evil}),
        outcomes={evil: 1},
        wall_s={evil: 1.0},
    )
    text = (_write(tmp_path, nasty, rows) / "report.html").read_text()
    assert text.count("&lt;script&gt;") >= 8
    assert "script" not in _page(text).tags
    assert evil not in text


def test_a_search_in_which_nothing_ran_has_a_report(tmp_path: Path, result: Result) -> None:
    assert "Nothing ran" in (_write(tmp_path / "a", result, [failure(0)]) / "report.html").read_text()
    assert "measurements: 1" in (_write(tmp_path / "b", result, [measurement(0)]) / "report.html").read_text()
    assert "Nothing ran" in (_write(tmp_path / "c", result, []) / "report.html").read_text()


def test_a_newer_result_takes_the_place_of_the_older(tmp_path: Path, result: Result) -> None:
    _write(tmp_path, result)
    _write(tmp_path, replace(result, measured=99))
    stored = read_result(tmp_path, result.job)
    assert stored is not None
    assert stored["measured"] == 99
    assert [p.name for p in tmp_path.iterdir() if p.name != "kernel"] == [result.job]


class _Crash(BaseException):
    """The process ends here."""


def test_a_crash_at_any_step_leaves_the_older_result_or_the_newer(tmp_path: Path, result: Result) -> None:
    crashes, found = 0, set()
    for n in range(1, 40):
        folder = tmp_path / str(n)
        _write(folder, result)
        steps = 0
        with pytest.MonkeyPatch.context() as patch:

            def wrap(real: Callable[..., Any], n: int = n) -> Callable[..., Any]:
                def step(*args: Any, **kwargs: Any) -> Any:
                    nonlocal steps
                    steps += 1
                    if steps == n:
                        raise _Crash
                    return real(*args, **kwargs)

                return step

            patch.setattr(os, "fsync", lambda _: None)
            for module, name in ((os, "mkdir"), (files, "rename_to_free"), (files, "write_synced"), (shutil, "rmtree")):
                patch.setattr(module, name, wrap(getattr(module, name)))
            patch.setattr(files, "fsync_folder", wrap(files.fsync_folder))
            try:
                _write(folder, replace(result, measured=99))
            except _Crash:
                crashes += 1
            else:
                break
        for _ in range(2):  # before and after the daemon has started again
            stored = read_result(folder, result.job)
            assert stored is not None, f"no result after a crash at step {n}"
            found.add(stored["measured"])
            restore_results(folder)
    assert crashes > 8
    assert found == {3, 99}


def test_a_full_disk_leaves_the_older_result(tmp_path: Path, result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "results", result)
    real, calls = files.rename_to_free, []

    def full(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:  # the older one has been put aside
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(files, "rename_to_free", full)
    with pytest.raises(DiskFullError):
        _write(tmp_path / "results", replace(result, measured=99))
    assert [p.name for p in (tmp_path / "results").iterdir()] == [result.job]
    stored = read_result(tmp_path / "results", result.job)
    assert stored is not None
    assert stored["measured"] == 3


def test_a_store_writes_with_the_preamble_it_is_given(tmp_path: Path, result: Result) -> None:
    store = ResultStore(tmp_path / "results", preamble=lambda parameters, config, problem: f"// {config['BLOCK']}\n")
    assert store.read(result.job) is None
    store.write(result, ROWS)
    assert "// 64\n" in (tmp_path / "results" / result.job / "kernel.c").read_text()
    assert ResultStore(tmp_path / "results").read(result.job) == result_json(result)
    with pytest.raises(ValueError, match="only reads"):
        ResultStore(tmp_path / "results").write(result, ROWS)


def test_a_recorded_kernel_has_no_source_to_build(tmp_path: Path, result: Result) -> None:
    kernel = replace(result.spec.kernel, sources={})
    recorded = replace(result, spec=replace(result.spec, kernel=kernel))
    assert not list(_write(tmp_path / "results", recorded).glob("kernel.*"))


def test_a_job_is_never_a_path(tmp_path: Path, result: Result) -> None:
    for job in ("../x", "a/b", ".hidden", "", "x" * 300):
        with pytest.raises(SpoolError, match="cannot name a folder"):
            read_result(tmp_path, job)
        with pytest.raises(SpoolError, match="cannot name a folder"):
            _write(tmp_path, replace(result, job=job))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 2}'])
def test_a_damaged_result_counts_as_absent_so_that_it_is_made_again(
    tmp_path: Path, result: Result, content: str
) -> None:
    folder = _write(tmp_path, result)
    assert read_result(tmp_path, result.job) is not None
    (folder / "result.json").write_text(content)
    assert read_result(tmp_path, result.job) is None


def test_a_source_that_is_not_utf8_is_published_as_it_is(tmp_path: Path, result: Result) -> None:
    file = result.spec.kernel.sources["cpu"].file
    file.write_bytes(b"// caf\xe9\n" + file.read_bytes())
    assert b"// caf\xe9\n" in (_write(tmp_path / "results", result) / "kernel.c").read_bytes()
