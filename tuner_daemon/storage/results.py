"""The answer to a job, as a folder: ``results/<job>/``.

    result.json, <kernel>.cu|.c (ready to build), config.h, report.html, measurements.parquet, build.log

The folder appears complete. Replacing an older one puts that aside first; whatever a crash leaves, a reader finds one
of the two.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

from tuner_daemon.errors import SpoolError
from tuner_daemon.records import includes
from tuner_daemon.records.kernel import Parameter, Value
from tuner_daemon.records.measurement import Measurement, Outcome
from tuner_daemon.records.result import Published, Result
from tuner_daemon.records.space import Config
from tuner_daemon.storage import files
from tuner_daemon.storage.report import report_html

logger = logging.getLogger(__name__)

Preamble = Callable[[Sequence[Parameter], Config, Mapping[str, Value]], str]
"""The #defines of one candidate: parameters, configuration, problem."""

_ALWAYS_THERE = frozenset({"job", "spec", "kernel", "verdict", "best", "baseline", "measured", "device"})
_SUFFIX = {"cuda": ".cu", "cpu": ".c"}


class ResultStore:
    """Results under ``folder``. ``preamble`` makes the winner's #defines; reading needs none."""

    def __init__(self, folder: Path, *, preamble: Preamble | None = None) -> None:
        self.folder = folder
        self._preamble = preamble

    def read(self, job: str) -> dict[str, Any] | None:
        """The job's result.json; None if it has no result."""
        return read_result(self.folder, job)

    def write(self, result: Result, rows: Sequence[Measurement]) -> Path:
        """Raises DiskFullError, SpoolError; ValueError without a ``preamble``."""
        if self._preamble is None:
            raise ValueError("a ResultStore without a preamble only reads")
        spec = result.spec
        defines = self._preamble(spec.kernel.parameters, result.best.config, spec.problem)
        return write_result(
            self.folder,
            result,
            defines=defines,
            source=winning_source(result),
            headers=winning_headers(result),
            rows=rows,
        )


def write_result(
    results_dir: Path,
    result: Result,
    *,
    defines: str,
    source: str | None,
    rows: Sequence[Measurement],
    headers: Mapping[str, bytes] | None = None,
    build_log: str | None = None,
) -> Path:
    """Publishes ``results_dir/<job>`` and returns it.

    ``defines`` are the winner's macros, ``source`` the kernel's text (None for a recorded kernel, which has none),
    ``headers`` the kernel's own by the names that the source includes them by: they go into ``include/``.
    Without ``build_log`` the rows say what failed. Raises DiskFullError, SpoolError.
    """
    # Imported here: reading a result must not cost a client the start of pyarrow.
    from tuner_daemon.storage import parts, schema

    summary = result_json(result)
    contents = {
        "result.json": json.dumps(summary, indent=2, ensure_ascii=False).encode(),
        # Beside the source it would be taken for the kernel's own header of that name.
        "tuned_config.h" if "config.h" in (headers or {}) else "config.h": config_h(result, defines).encode(),
        "report.html": report_html(summary, rows).encode(),
        "measurements.parquet": parts.encode(schema.to_table(rows)),
        "build.log": (failures_log(rows) if build_log is None else build_log).encode(errors="replace"),
    }
    if source is not None:
        suffix = _SUFFIX[result.spec.language]
        hint = "// its headers are in include/: build with -Iinclude\n" if headers else ""
        contents[f"kernel{suffix}"] = f"{_banner(result)}{hint}{defines}\n{source}".encode(errors="surrogateescape")
        contents |= {f"include/{name}": text for name, text in (headers or {}).items()}
    with files.Guard(SpoolError)(f"result of {result.job}"):
        return _publish(results_dir, _checked_job(result.job), contents)


def _publish(results_dir: Path, job: str, contents: Mapping[str, bytes]) -> Path:
    files.make_folder(results_dir)
    target, aside = results_dir / job, _aside(results_dir, job)
    temp = files.temporary(target)
    try:
        temp.mkdir()
        for name, data in contents.items():
            (temp / name).parent.mkdir(parents=True, exist_ok=True)
            files.write_synced(temp / name, data)
        files.fsync_tree(temp)
        if target.exists():
            files.remove(aside)
            files.move(target, aside)
        files.move(temp, target)
    except OSError:
        files.remove(temp)
        with suppress(OSError):  # readers find the older result where it is
            restore_results(results_dir)
        raise
    files.remove(aside)
    return target


def restore_results(results_dir: Path) -> None:
    """After a crash: an older result that was put aside comes back if its successor did not appear."""
    for aside in results_dir.glob(".*.old"):
        target = results_dir / aside.name[1:-4]
        if target.exists():
            files.remove(aside)
        else:
            files.move(aside, target)


def read_result(results_dir: Path, job: str) -> dict[str, Any] | None:
    """The job's result.json as a dict; None if there is none, or none that can be read: it is made again."""
    for folder in (results_dir / _checked_job(job), _aside(results_dir, job), results_dir / job):
        try:
            stored = json.loads((folder / "result.json").read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("%s cannot be read and counts as absent: %s", folder / "result.json", error)
            continue
        if isinstance(stored, dict) and stored.keys() >= _ALWAYS_THERE:
            return stored
        logger.warning("%s is no result and counts as absent", folder / "result.json")
    return None


def _aside(results_dir: Path, job: str) -> Path:
    return results_dir / f".{job}.old"


def _checked_job(job: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}", job):
        raise SpoolError(f"job {job!r} cannot name a folder")
    return job


def result_json(result: Result) -> dict[str, Any]:
    """The result as ``result.json`` says it; ``notes`` and ``counters`` come after what every reader may rely on."""
    device, clocks = result.device, result.clocks
    return {
        "schema": 1,
        "job": result.job,
        "spec": _spec_json(result),
        "kernel": {"name": result.spec.kernel.name, "source_sha256": result.spec.kernel.sha256},
        "verdict": str(result.verdict),
        "reason": result.reason,
        "best": {
            **_published_json(result.best),
            "speedup": result.best.speedup,
            "speedup_ci": list(result.best.speedup_ci),
            "roofline_fraction": result.best.roofline_fraction,
            "error_norm": result.best.error_norm,
            "proposed_by": result.best.proposed_by,
        },
        "baseline": _published_json(result.baseline),
        "ties": [config.as_dict() for config in result.ties],
        "noise_floor": result.noise_floor,
        "measured": result.measured,
        "outcomes": {str(outcome): n for outcome, n in result.outcomes.items()},
        "space_size": result.space_size,
        "device": {
            "name": device.name,
            "arch": device.arch,
            "driver": device.driver,
            "runtime": device.runtime,
            "compiler": device.compiler,
            "kind": device.kind,
            "uuid": device.uuid,
        },
        "clocks": {
            "policy": clocks.policy,
            "sm_mhz": None if clocks.sm_mhz is None else list(clocks.sm_mhz),
            "mode": clocks.mode,
        },
        "models": dict(result.models),
        "wall_s": dict(result.wall_s),
        "notes": list(result.notes),
        "counters": dict(result.counters),
    }


def _published_json(published: Published) -> dict[str, Any]:
    return {
        "config": published.config.as_dict(),
        "median_s": published.median_s,
        "ci_s": list(published.ci_s),
    }


def _spec_json(result: Result) -> dict[str, Any]:
    spec = result.spec
    return {
        "name": spec.name,
        "kernel": spec.kernel.name,
        "problem": dict(spec.problem),
        "device": asdict(spec.device),
        "budget": asdict(spec.budget),
        "options": asdict(spec.options),
    }


def winning_source(result: Result) -> str | None:
    """The kernel's source text in the spec's language, bytes that are not UTF-8 as surrogates; None if it has none (a
    recorded space)."""
    source = result.spec.kernel.sources.get(result.spec.language)
    return None if source is None else source.file.read_text(encoding="utf-8", errors="surrogateescape")


def winning_headers(result: Result) -> dict[str, bytes]:
    """The kernel folder's headers that the source needs, by the names that it includes them by; one of several that
    say the same in other ways (``a.h``, ``./a.h``). What could only lie below another header is left out."""
    source = result.spec.kernel.sources.get(result.spec.language)
    if source is None:
        return {}
    found = includes.headers(source.file, result.spec.kernel.folder)
    plain = {PurePosixPath(name): file for name, file in found.items()}
    return {
        str(name): includes.read(file).encode("utf-8", "surrogateescape")
        for name, file in plain.items()
        if plain.keys().isdisjoint(name.parents)
    }


def config_h(result: Result, defines: str) -> str:
    """The winning configuration as a header to include before the kernel's source."""
    guard = re.sub(r"[^A-Z0-9]", "_", f"{result.spec.kernel.name}_config_h".upper())
    return f"{_banner(result)}#ifndef {guard}\n#define {guard}\n{defines}#endif\n"


def _banner(result: Result) -> str:
    problem = ", ".join(f"{name} = {value}" for name, value in result.spec.problem.items())
    lines = [
        f"{result.spec.kernel.name} ({problem}) on {result.device.name} ({result.device.arch})",
        f"job {result.job}: {result.verdict}, {result.best.median_s * 1e3:.6g} ms, "
        f"{result.best.speedup:.4g} times the baseline's speed",
    ]
    return "".join(f"// {re.sub(r'[^ -~]|[?]{2}', ' ', line).rstrip(chr(92))}\n" for line in lines)


def failures_log(rows: Sequence[Measurement]) -> str:
    """What did not build or launch, with the compiler's words."""
    failed = [row for row in rows if row.ran.outcome is not Outcome.OK]
    blocks = []
    for row in failed:
        config = ", ".join(f"{name} = {value}" for name, value in row.config.items())
        detail = getattr(row.ran, "detail", "")
        blocks.append(f"== {row.ran.outcome}: {config}\n{detail}\n")
    return "\n".join(blocks)
