"""Readers of what others have written, fed by hypothesis: each text is read, or refused in words."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.kernel_folders import write_kernel
from tests.rows import measurement
from tests.soak.attacks import BOMBS, CALLS
from tests.soak.hostile import GOOD, TOKENS
from tuner_daemon.errors import ExpressionError, InputError, KernelError, ModelError
from tuner_daemon.intake.documents import parse
from tuner_daemon.intake.kernels import kernel_from_declaration
from tuner_daemon.intake.specs import load_spec, priority_of
from tuner_daemon.learning.decisions import STATE_SCHEMA, STATE_SIZE
from tuner_daemon.learning.policy import TENSORS, Policy, load_policy
from tuner_daemon.records._intervals import Interval
from tuner_daemon.records.expression import Expression
from tuner_daemon.records.space import ParamSpace
from tuner_daemon.records.spec import Budget, DeviceRequest
from tuner_daemon.storage.log import ParquetLog
from tuner_daemon.storage.models import ModelStore
from tuner_daemon.storage.parts import manifest_path
from tuner_daemon.storage.recorded import read_recorded
from tuner_daemon.storage.status import read_status

SEED = 1906
EXAMPLES = [
    pytest.param(40, id="short"),
    pytest.param(2000, id="full", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
]
COUNTS = pytest.mark.parametrize("count", EXAMPLES)

KEYS = (
    *("template", "kernel", "problem", "budget", "device", "options", "name", "sources", "parameters", "constraints"),
    *("launch", "arguments", "reference", "baseline", "work", "tolerance", "reduction_length", "n", "m", "k", "dtype"),
    *("alpha", "all", "block", "grid", "shared_bytes", "kind", "shape", "fill", "value", "values", "role", "config"),
    *("cuda", "cpu", "file", "entry", "source", "arrays", "measurements", "seconds", "index", "force", "priority"),
    *("min", "max", "type", "default", "flops", "bytes", "WORK", "LAYOUT", "block_size_x"),
)
WORDS = (
    *("matmul", "softmax", "scale", "mine", "kernel.c", "kernel.cu", "../kernel.c", "x.npy", "float32", "int", "str"),
    *("input", "output", "scalar", "constant", "n", "ceil_div(n, WORK)", "n % WORK == 0", "WORK", "tile_m", "cpu"),
    *("replay", "cuda", "1", "0", "-1", "", " ", "a\nb", "\u202e", *CALLS[:12], *BOMBS[:12]),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-3, 130),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=5)), inner, max_size=5),
    ),
    max_leaves=25,
)
DOCUMENTS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8)


def fuzzed(count: int, **given_: Any) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """``given`` with so many examples and a fixed seed; the first failure ends it, as small as it can be made."""
    limits = settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False
    )

    def decorate(function: Callable[..., None]) -> Callable[[], None]:
        wrapped: Callable[[], None] = seed(SEED)(limits(given(**given_)(function)))
        return wrapped

    return decorate


def report(what: str, outcomes: Counter[str]) -> None:
    print(f"{what} (seed {SEED}): " + ", ".join(f"{name} {n}" for name, n in sorted(outcomes.items())))


def alike(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same type, most of which would do as well."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int | float):
        return st.integers(1, 90) if isinstance(value, int) else st.floats(1.0, 90.0)
    return st.sampled_from(WORDS) if isinstance(value, str) else st.just(value)


@st.composite
def changed_documents(draw: st.DrawFn) -> dict[str, Any]:
    """A good document with other values in some places."""
    text = draw(st.sampled_from(GOOD))
    document = parse(text, Path("good.json" if text.startswith("{") else "good.toml"), InputError).tables
    for _ in range(draw(st.integers(0, 3))):
        here: Any = document
        while isinstance(here, dict | list) and here:
            keys = list(here) if isinstance(here, dict) else range(len(here))
            key = draw(st.sampled_from(list(keys)))
            if isinstance(here[key], dict | list) and draw(st.booleans()):
                here = here[key]
                continue
            here[key] = draw(st.one_of(VALUES, alike(here[key])))
            break
    return document


@COUNTS
def test_a_spec_is_a_question_or_an_error_in_words(tmp_path: Path, count: int) -> None:
    for name in ("kernel.c", "kernel.cu", "reference.c", "reference.cu"):
        (tmp_path / name).write_text("/* */\n")
    templates = [write_kernel(tmp_path / "templates" / "scale").parent, Path("templates").absolute()]
    outcomes: Counter[str] = Counter()

    @fuzzed(count, document=st.one_of(changed_documents(), DOCUMENTS))
    def check(document: dict[str, Any]) -> None:
        path = tmp_path / "spec.json"
        path.write_bytes(json.dumps(document).encode("utf-8", "surrogatepass"))
        outcomes[_loaded(path, templates)] += 1

    check()
    report("documents", outcomes)
    assert outcomes["refused without a remedy"] == 0
    assert outcomes["read"] > count // 250
    assert outcomes["refused"] > count // 2


@COUNTS
def test_any_bytes_are_a_question_or_an_error_in_words(tmp_path: Path, count: int) -> None:
    outcomes: Counter[str] = Counter()
    pieces = st.one_of(
        st.sampled_from(TOKENS), st.sampled_from(GOOD).map(lambda text: text[:200]), st.text(max_size=20)
    )
    texts = st.lists(pieces, max_size=6).map(lambda parts: "\n".join(parts).encode("utf-8", "surrogatepass"))

    @fuzzed(count, data=st.one_of(st.binary(max_size=300), texts), suffix=st.sampled_from([".toml", ".json"]))
    def check(data: bytes, suffix: str) -> None:
        path = tmp_path / f"spec{suffix}"
        path.write_bytes(data)
        outcomes[_loaded(path, [])] += 1

    check()
    report("bytes as specs", outcomes)
    assert outcomes["refused"] == outcomes.total() >= count // 2


def _loaded(path: Path, templates: list[Path]) -> str:
    assert isinstance(priority_of(path), int)
    try:
        spec = load_spec(path, template_dirs=templates, default_device=DeviceRequest("cpu"), default_budget=Budget())
        space = ParamSpace(spec.kernel, spec.problem)
        assert space.sample(2, np.random.default_rng(0))
        again = kernel_from_declaration(spec.kernel.declaration, spec.kernel.sha256)
        assert [p.name for p in again.parameters] == [p.name for p in spec.kernel.parameters]
    except InputError as error:
        return "refused" if error.remedy and str(error).encode() else "refused without a remedy"
    return "read"


@COUNTS
def test_an_expression_is_a_number_or_an_error_in_words(count: int) -> None:
    outcomes: Counter[str] = Counter()
    words = ("a", "b", "c", "1", "2.5", "0", "(", ")", ",", "+", "-", "*", "/", "//", "%", "<", "==", "!=", "and", "or")
    more = (
        "not",
        "min(",
        "max(",
        "abs(",
        "ceil_div(",
        "'x'",
        '"y"',
        "**",
        ".",
        "[",
        "1e308",
        "4611686018427387904",
        "\n",
    )
    texts = st.lists(st.sampled_from([*words, *words, *more]), max_size=14).map(" ".join)
    grown = st.recursive(
        st.sampled_from(["a", "b", "c", "0", "3", "0.5", "'x'", "4611686018427387904"]),
        lambda e: st.tuples(e, st.sampled_from(["+", "*", "/", "//", "%", "<", "==", "and", "or"]), e).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        max_leaves=12,
    )
    values = st.one_of(
        st.integers(-(2**63), 2**63), st.integers(-9, 9), st.floats(), st.booleans(), st.text(max_size=2)
    )

    @fuzzed(count, text=st.one_of(texts, grown, st.text(max_size=30)), a=values, b=values, c=values)
    def check(text: str, a: Any, b: Any, c: Any) -> None:
        outcomes[_evaluated(text, {"a": a, "b": b, "c": c})] += 1

    check()
    report("expressions", outcomes)
    assert min(outcomes["a number"], outcomes["no value"], outcomes["refused"]) > count // 50


def _evaluated(text: str, names: dict[str, Any]) -> str:
    try:
        expression = Expression.parse(text)
    except ExpressionError as error:
        str(error).encode()
        return "refused"
    parts = expression.conjuncts()
    assert {name for part in parts for name in part.names} <= expression.names
    if expression.names <= names.keys() and all(
        isinstance(value, int) and abs(value) < 2**62 for value in names.values()
    ):
        expression.may_hold({name: Interval.of(int(value), int(value)) for name, value in names.items()})
    columns = {
        n: np.array([v]) if not isinstance(v, int) or abs(v) < 2**63 else np.array([v], float) for n, v in names.items()
    }
    try:
        held = expression.holds(columns)
        assert held.shape == (1,)
    except ExpressionError:
        held = None
    try:
        value = expression.evaluate(names)
    except ExpressionError:
        return "no value"
    assert isinstance(value, int | float)
    assert abs(value) <= float("inf")
    return "a number"


@st.composite
def damage(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with some of them changed, cut out, repeated, or other ones in between."""
    spoilt = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(spoilt) - 1)))
        until = at + draw(st.one_of(st.just(1), st.integers(0, 64), st.just(len(spoilt))))
        with_ = draw(
            st.one_of(st.binary(max_size=8), st.just(bytes(spoilt[:32])), st.just(b"[" * 3000), st.just(b"\xff" * 4))
        )
        spoilt[at:until] = with_
    return bytes(spoilt)


@COUNTS
@pytest.mark.parametrize("manifest", [True, False], ids=["manifest", "no manifest"])
def test_a_spoilt_part_is_read_as_it_was_or_not_at_all(tmp_path: Path, count: int, manifest: bool) -> None:
    log = ParquetLog(tmp_path / "log")
    log.append([measurement(n) for n in range(40)])
    part = next((tmp_path / "log").rglob("part-*.parquet"))
    whole, outcomes = part.read_bytes(), Counter[str]()
    written = [row.key for row in log.measurements("job-1")] or [row.key for row in _rows(log)]
    if not manifest:
        manifest_path(part).unlink()

    @fuzzed(count, data=damage(whole))
    def check(data: bytes) -> None:
        part.write_bytes(data)
        found = [row.key for row in _rows(ParquetLog(tmp_path / "log"))]
        assert found in (written, []) or (not manifest and set(found) <= set(written))
        assert not (manifest and found and data != whole)
        outcomes["read" if found else "refused"] += 1

    check()
    report("parts", outcomes)
    assert outcomes["refused"] > count // 2


def _rows(log: ParquetLog) -> list[Any]:
    return [row for job in ("job-0", "job-1", "job") for row in log.measurements(job)]


@COUNTS
def test_a_spoilt_manifest_is_refused(tmp_path: Path, count: int) -> None:
    log = ParquetLog(tmp_path / "log")
    log.append([measurement(n) for n in range(4)])
    manifest = manifest_path(next((tmp_path / "log").rglob("part-*.parquet")))
    whole, outcomes = manifest.read_bytes(), Counter[str]()

    @fuzzed(count, data=st.one_of(damage(whole), VALUES.map(lambda value: json.dumps(value).encode())))
    def check(data: bytes) -> None:
        manifest.write_bytes(data)
        damaged = ParquetLog(tmp_path / "log").stats()["damaged"]
        outcomes["refused" if damaged else "read"] += 1
        assert damaged or json.loads(data) == json.loads(whole)

    check()
    report("manifests", outcomes)
    assert outcomes["refused"] > count // 2


@COUNTS
def test_a_spoilt_recording_is_an_error_in_words(tmp_path: Path, count: int) -> None:
    path, outcomes = tmp_path / "a.parquet", Counter[str]()
    table = pa.table({"A": [1, 2, 4], "time_ms": [1.0, 2.0, 0.5], "status": ["ok"] * 3})
    pq.write_table(table, path, write_page_checksum=True)
    whole = path.read_bytes()
    assert len(read_recorded(path, ("A",)).rows) == 3

    @fuzzed(count, data=damage(whole))
    def check(data: bytes) -> None:
        path.write_bytes(data)
        try:
            outcomes["read"] += bool(read_recorded(path, ("A",)).rows)
        except KernelError:
            outcomes["refused"] += 1

    check()
    report("recordings", outcomes)
    assert outcomes["refused"] > count // 2


def small_policy(folder: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = {
        "mean": (STATE_SIZE,),
        "scale": (STATE_SIZE,),
        "w0": (4, STATE_SIZE),
        "b0": (4,),
        "w1": (4, 4),
        "b1": (4,),
    }
    shapes |= {"w_mu": (1, 4), "b_mu": (1,), "std": (1,)}
    Policy({name: rng.normal(size=shapes[name]).astype(np.float32) for name in TENSORS}, frozenset({"scale"})).save(
        folder
    )


@COUNTS
@pytest.mark.parametrize("file", ["policy.safetensors", "policy.json"])
def test_a_spoilt_policy_is_a_policy_of_the_same_shape_or_a_model_error(tmp_path: Path, count: int, file: str) -> None:
    small_policy(tmp_path)
    whole, outcomes = (tmp_path / file).read_bytes(), Counter[str]()
    assert load_policy(tmp_path).mean(np.zeros((2, STATE_SIZE), np.float32)).shape == (2,)
    header = VALUES.map(lambda value: json.dumps({"format": 1, "schema": STATE_SCHEMA, "groups": value}).encode())

    @fuzzed(count, data=st.one_of(damage(whole), header))
    def check(data: bytes) -> None:
        (tmp_path / file).write_bytes(data)
        try:
            policy = load_policy(tmp_path)
        except ModelError:
            outcomes["refused"] += 1
            return
        outcomes["read"] += 1
        assert policy.mean(np.zeros((2, STATE_SIZE), np.float32)).shape == (2,)
        assert np.isfinite(policy.std)

    check()
    report(file, outcomes)
    assert outcomes["refused"] > count // 3


@COUNTS
@pytest.mark.parametrize("file", ["manifest.json", "policy.json", "promoted.json", "status.json"])
def test_a_spoilt_model_is_never_the_champion(tmp_path: Path, count: int, file: str) -> None:
    store, outcomes = ModelStore(tmp_path / "models"), Counter[str]()
    first = store.publish({"policy.json": b'{"a": 1}'}, {"n": 1})
    store.promote(first)
    second = store.publish({"policy.json": b'{"a": 2}'}, {"n": 2})
    store.promote(second)
    place = {"promoted.json": store.folder / file, "status.json": tmp_path / file}.get(
        file, store.folder / second / file
    )
    whole = place.read_bytes() if place.exists() else b'{"state": "waiting"}'

    @fuzzed(count, data=st.one_of(damage(whole), VALUES.map(lambda value: json.dumps(value).encode())))
    def check(data: bytes) -> None:
        place.write_bytes(data)
        read_status(tmp_path)
        current = ModelStore(store.folder).current()
        assert current is not None
        outcomes[current.files["policy.json"].decode()] += 1
        assert current.version == second or (current.version == first and data != whole)

    check()
    report(file, outcomes)
    assert outcomes.total() >= count // 2
    shutil.rmtree(store.folder)
