"""The daemon's log: a line per event, whatever the event's words are, and not more lines than one can use."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from io import StringIO

import pytest

from tests.fakes_session import ListLog, NearestModel, ScriptedBuilder, ScriptedRunner, UniformPart, scripted_task
from tuner_daemon.cli import logs
from tuner_daemon.events import tell
from tuner_daemon.measuring import Parts
from tuner_daemon.session import tune

logger = logging.getLogger("tuner_daemon.tests")


@pytest.fixture
def now_s() -> list[float]:
    return [0.0]


@pytest.fixture
def said(now_s: list[float]) -> Iterator[tuple[StringIO, logging.Handler]]:
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(logs.RateLimit(lambda: now_s[0]))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield stream, handler
    root.removeHandler(handler)
    root.setLevel(before)


HOSTILE = "a\nERROR forged\r\x1b[31m\u2028b\x85"


@pytest.mark.parametrize("formatter", [logs.TextFormatter(), logs.JsonFormatter()])
def test_an_event_is_one_line_whatever_its_words(
    said: tuple[StringIO, logging.Handler], formatter: logging.Formatter
) -> None:
    stream, handler = said
    handler.setFormatter(formatter)
    tell(logger, logging.WARNING, "job", "%s: failed: %s", HOSTILE, "x" * 1_000_000, spec=HOSTILE, reason="y" * 100_000)
    try:
        raise ValueError(HOSTILE * 1000)
    except ValueError:
        logger.exception("not foreseen")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) < 4 * logs.LONGEST
    assert "\x1b" not in stream.getvalue()


def test_without_the_formatter_the_forged_line_would_stand_alone(said: tuple[StringIO, logging.Handler]) -> None:
    """Negative control."""
    tell(logger, logging.WARNING, "job", "%s", HOSTILE)
    assert "ERROR forged" in said[0].getvalue().splitlines()


def test_json_names_event_and_fields(said: tuple[StringIO, logging.Handler]) -> None:
    stream, handler = said
    handler.setFormatter(logs.JsonFormatter())
    tell(logger, logging.INFO, "candidate", "job %s", "j", job="j", candidate="c", outcome="ok", median_s=0.001)
    told = json.loads(stream.getvalue())
    assert {
        "event": "candidate",
        "level": "info",
        "job": "j",
        "candidate": "c",
        "median_s": 0.001,
    }.items() <= told.items()
    assert told["time"].endswith("+00:00")


def test_a_flood_of_one_kind_is_thinned_and_counted_and_others_pass(
    said: tuple[StringIO, logging.Handler], now_s: list[float]
) -> None:
    stream, handler = said
    handler.setFormatter(logs.TextFormatter())
    for number in range(100_000):
        tell(logger, logging.INFO, "candidate", "candidate %d", number)
    tell(logger, logging.INFO, "job", "a job")
    now_s[0] += 1.0
    tell(logger, logging.INFO, "candidate", "the next one")
    lines = stream.getvalue().splitlines()
    assert len(lines) == logs.BURST + 2
    assert lines[-2] == "INFO a job"
    assert lines[-1] == f"INFO the next one ({100_000 - logs.BURST} more of these were not logged)"


def test_a_job_tells_of_each_row_with_its_ids(said: tuple[StringIO, logging.Handler]) -> None:
    stream, handler = said
    handler.setFormatter(logs.JsonFormatter())
    log = ListLog()
    parts = Parts(UniformPart(), NearestModel(), ScriptedBuilder(), ScriptedRunner(), log)
    tune(scripted_task(measurements=16), "job-1", parts)
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    rows = [(line["job"], line["candidate"], line["outcome"]) for line in told if line["event"] == "candidate"]
    assert rows == [(row.job, row.ran.config.key, str(row.ran.outcome)) for row in log.rows]
    assert len(rows) == 16
